//! Dynptrs: two slots of stack that only helpers may access (`process_dynptr_func`,
//! `mark_stack_slots_dynptr`).

use beeline_uapi::verifier::BPF_DYNPTR_SIZE;
use beeline_uapi::{Errno, HelperId};

use super::helper::Meta;
use super::kernel_call::Initialised;
use super::{Check, Explorer, no};
use crate::helpers::Dynptr;
use crate::state::{Byte, DynptrKind, Flags, HeldKind, LockPlace, Object, Reg, Slot, Type, place};

impl Explorer<'_> {
    /// Returns the frame and the upper slot of the dynptr that a register points to: it lies there
    /// and in the slot below.
    pub(super) fn dynptr_slot(&self, reg: &Reg) -> Option<(usize, usize)> {
        let at = reg.off.wrapping_add(reg.var.constant()? as i32);
        if at >= 0 || at % 8 != 0 {
            return None;
        }
        // The structure begins at the lower address: the slot with the higher number.
        let (low, _) = place(at);
        let high = low.checked_sub(1)?;
        let frame = Self::frame_of(reg);
        Some((frame, high))
    }

    fn dynptr_at(&self, reg: &Reg) -> Option<Slot> {
        let (frame, high) = self.dynptr_slot(reg)?;
        let stack = &self.cur.frames[frame].stack;
        let (first, second) = (stack.get(high + 1)?, stack.get(high)?);
        let whole = |slot: &Slot| slot.bytes == [Byte::Dynptr; 8];
        let is_first = matches!(first.object, Object::Dynptr { first: true, .. });
        (whole(first) && whole(second) && is_first).then_some(*first)
    }

    pub(super) fn dynptr_argument(
        &mut self,
        number: u8,
        reg: &Reg,
        wanted: Dynptr,
        meta: &mut Meta,
    ) -> Check {
        if let Dynptr::NewLocal | Dynptr::NewRingbuf = wanted {
            let kind = match wanted {
                Dynptr::NewLocal => DynptrKind::Local,
                _ => DynptrKind::Ringbuf,
            };
            return self.new_dynptr(number, reg, kind, 0);
        }
        if let Type::Dynptr(kind) = reg.kind {
            if wanted == Dynptr::ReleaseRingbuf {
                return no(Errno::EINVAL, "cannot release unowned const bpf_dynptr");
            }
            self.check_no_offset(reg, number, false)?;
            meta.dynptr = Some(kind);
            meta.dynptr_id = reg.id;
            return Ok(());
        }
        let Initialised { kind, id, ref_id } = self.initialised_dynptr(number, reg)?;
        if wanted == Dynptr::ReleaseRingbuf && kind != DynptrKind::Ringbuf {
            return no(
                Errno::EINVAL,
                format!("Expected a dynptr of type ringbuf as arg #{}", number - 1),
            );
        }
        meta.dynptr = Some(kind);
        meta.dynptr_id = id;
        if meta.id == HelperId::DYNPTR_DATA || wanted == Dynptr::ReleaseRingbuf {
            meta.ref_id = ref_id;
        }
        Ok(())
    }

    /// Returns the dynptr that a register points to, which is read.
    pub(super) fn initialised_dynptr(&mut self, number: u8, reg: &Reg) -> Check<Initialised> {
        if let Type::Dynptr(kind) = reg.kind {
            self.check_no_offset(reg, number, false)?;
            return Ok(Initialised {
                kind,
                id: reg.id,
                ref_id: 0,
            });
        }
        self.check_dynptr_offset(number, reg)?;
        let found = self.dynptr_at(reg).map(|slot| (slot.object, slot.reg));
        let Some((Object::Dynptr { kind, .. }, known)) = found else {
            return no(
                Errno::EINVAL,
                format!("Expected an initialized dynptr as arg #{}", number - 1),
            );
        };
        if let Some((frame, high)) = self.dynptr_slot(reg) {
            self.stack_liveness.read(frame, high);
            self.stack_liveness.read(frame, high + 1);
        }
        Ok(Initialised {
            kind,
            id: known.id,
            ref_id: known.ref_id,
        })
    }

    /// Checks a global function's parameter.
    pub(super) fn check_dynptr_argument(&mut self, number: u8) -> Check {
        let reg = *self.cur.reg(number);
        let mut meta = Meta::default();
        if !matches!(reg.kind, Type::Stack(_) | Type::Dynptr(_)) {
            return no(
                Errno::EINVAL,
                format!(
                    "arg#{} expected pointer to stack or const struct bpf_dynptr",
                    number - 1
                ),
            );
        }
        self.dynptr_argument(number, &reg, Dynptr::Any, &mut meta)
    }

    fn check_dynptr_offset(&self, number: u8, reg: &Reg) -> Check {
        let Some(variable) = reg.var.constant() else {
            return no(
                Errno::EINVAL,
                format!("R{number} has to be at the constant offset"),
            );
        };
        let at = reg.off.wrapping_add(variable as i32);
        if at >= 0 || at % 8 != 0 || self.dynptr_slot(reg).is_none() {
            return no(
                Errno::EINVAL,
                format!("cannot pass in dynptr at an offset={at}"),
            );
        }
        Ok(())
    }

    /// Makes a dynptr; for a copy, `parent` is the reference that it shares, else 0.
    pub(super) fn new_dynptr(
        &mut self,
        number: u8,
        reg: &Reg,
        kind: DynptrKind,
        parent: u32,
    ) -> Check {
        if !matches!(reg.kind, Type::Stack(_)) {
            return no(
                Errno::EINVAL,
                format!("arg#{} expected pointer to stack", number - 1),
            );
        }
        self.check_dynptr_offset(number, reg)?;
        self.check_stack_bounds(number, reg.off, BPF_DYNPTR_SIZE, " write to")?;
        let Some((frame, high)) = self.dynptr_slot(reg) else {
            return no(Errno::EINVAL, "Dynptr has to be an uninitialized dynptr");
        };
        for slot in [high, high + 1] {
            self.destroy_dynptr(frame, slot)?;
        }
        let id = self.fresh_id();
        let mut ref_id = parent;
        if kind == DynptrKind::Ringbuf && parent == 0 {
            ref_id = self.fresh_id();
            self.cur
                .hold(HeldKind::Object, ref_id, self.insn, LockPlace::None);
        }
        for (slot, first) in [(high + 1, true), (high, false)] {
            let content = &mut self.cur.frames[frame].stack[slot];
            content.bytes = [Byte::Dynptr; 8];
            content.object = Object::Dynptr { kind, first };
            content.reg = Reg {
                id,
                ref_id,
                ..Reg::UNINIT
            };
            self.stack_liveness.write(frame, slot);
        }
        Ok(())
    }

    /// Releases the record behind a dynptr, and with it every dynptr and slice of it.
    pub(super) fn release_dynptr(&mut self, reg: &Reg) -> Check {
        let Some(found) = self.dynptr_at(reg) else {
            return no(Errno::EINVAL, "arg 1 is an unacquired reference");
        };
        let ref_id = found.reg.ref_id;
        let mut ids = vec![found.reg.id];
        for frame in 0..self.cur.frames.len() {
            for slot in 0..self.cur.frames[frame].stack.len() {
                let content = self.cur.frames[frame].stack[slot];
                if matches!(content.object, Object::Dynptr { .. }) && content.reg.ref_id == ref_id {
                    ids.push(content.reg.id);
                    self.clear_slot(frame, slot);
                }
            }
        }
        self.forget_slices(&ids);
        self.release(ref_id);
        Ok(())
    }

    /// Forgets memory that belongs to dynptrs which no longer exist.
    fn forget_slices(&mut self, ids: &[u32]) {
        self.forget_pointers(|reg| {
            matches!(reg.kind, Type::Mem(_))
                && reg.range != 0
                && ids.contains(&reg.range.cast_unsigned())
        });
    }

    /// Destroys a dynptr that is stored over; one that owns something must not end that way
    /// (`destroy_if_dynptr_stack_slot`).
    pub(super) fn destroy_dynptr(&mut self, frame: usize, slot: usize) -> Check {
        let Some(content) = self.cur.frames[frame].stack.get(slot).copied() else {
            return Ok(());
        };
        let Object::Dynptr { first, .. } = content.object else {
            return Ok(());
        };
        if content.reg.ref_id != 0 && !self.another_holds(frame, slot, content.reg.ref_id, first) {
            return no(Errno::EINVAL, "cannot overwrite referenced dynptr");
        }
        let high = if first { slot - 1 } else { slot };
        self.clear_slot(frame, high);
        self.clear_slot(frame, high + 1);
        // A slice of a packet does not end with the dynptr.
        let id = content.reg.id.cast_signed();
        self.forget_pointers(|reg| {
            let plain = reg.flags.without(Flags::MAYBE_NULL) == Flags::NONE;
            matches!(reg.kind, Type::Mem(_)) && plain && reg.range == id
        });
        Ok(())
    }

    /// Returns whether another dynptr holds the same reference.
    fn another_holds(&self, frame: usize, slot: usize, ref_id: u32, first: bool) -> bool {
        let high = if first { slot - 1 } else { slot };
        let frames = self.cur.frames.iter().enumerate();
        frames
            .flat_map(|(number, frame)| {
                let slots = frame.stack.iter().enumerate();
                slots.map(move |(slot, content)| (number, slot, content))
            })
            .any(|(number, other, content)| {
                let itself = number == frame && (other == high || other == high + 1);
                !itself
                    && matches!(content.object, Object::Dynptr { .. })
                    && content.reg.ref_id == ref_id
            })
    }
}
