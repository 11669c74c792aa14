//! Iterators: a structure on the stack that only its own functions may access (`process_iter_arg`,
//! `process_iter_next_call`).

use beeline_uapi::{AttachType, Errno, ProgramType};

use super::super::memory::Access;
use super::super::{Check, Explorer, no};
use super::{Call, Meta};
use crate::state::{Byte, Flags, HeldKind, LockPlace, Object, Reg, Slot, Type, place};
use crate::types::KernelParam;
use crate::types::ParamType;
use crate::types::kernel_functions::flags;

/// The place of an object on the stack, present or not.
pub(super) enum Place {
    /// The frame, and the slot of the lowest address; the other slots have lower numbers.
    At(usize, usize),
    /// Below the stack that the program has used so far.
    Beyond,
}

impl Explorer<'_> {
    pub(super) fn iterator_argument(
        &mut self,
        call: &Call<'_>,
        number: u8,
        param: &KernelParam<'_>,
        meta: &mut Meta,
    ) -> Check {
        let reg = *self.cur.reg(number);
        let arg = number - 1;
        if !matches!(reg.kind, Type::Stack(_)) {
            return no(
                Errno::EINVAL,
                format!("arg#{arg} expected pointer to an iterator on stack"),
            );
        }
        let ParamType::Structure {
            btf_id,
            bytes: Some(bytes),
            ..
        } = param.is
        else {
            return no(
                Errno::EINVAL,
                format!("expected valid iter pointer as arg #{arg}"),
            );
        };
        if call.is("bpf_iter_css_task_new") && !self.may_walk_tasks() {
            return no(
                Errno::EINVAL,
                "css_task_iter is only allowed in bpf_lsm, bpf_iter and sleepable progs",
            );
        }
        let slots = bytes as usize / 8;
        if call.has(flags::ITER_NEW) {
            return self.new_iterator(call, number, btf_id, slots);
        }
        let at = self.object_place(&reg, "iter", slots);
        let live = at.and_then(|at| {
            let live = self.live_iterator(&at, btf_id, slots);
            live.ok_or_else(String::new)
        });
        let name = short_name(call, btf_id);
        let (frame, low) = live.or_else(|why| {
            let line = format!("expected an initialized iter_{name} as arg #{arg}");
            no(Errno::EINVAL, lines(&why, &line))
        })?;
        let stack = &self.cur.frames[frame].stack;
        let first = stack[low];
        if first.reg.flags.has(Flags::UNTRUSTED) {
            return no(
                Errno::EPROTO,
                format!("expected an RCU CS when using {}", call.function.name),
            );
        }
        for slot in low + 1 - slots..=low {
            self.stack_liveness.read(frame, slot);
        }
        meta.iterator = Some((frame, low));
        meta.ref_id = first.reg.ref_id;
        if call.has(flags::ITER_DESTROY) {
            self.release(first.reg.ref_id);
            self.clear_object(frame, low, slots);
        }
        Ok(())
    }

    /// Implements `check_css_task_iter_allowlist`: the iterator takes a lock that must not be held
    /// while others are interrupted.
    fn may_walk_tasks(&self) -> bool {
        let kind = &self.program.kind;
        match kind.prog_type {
            ProgramType::LSM => true,
            ProgramType::TRACING if kind.attach_type == AttachType::TRACE_ITER => true,
            _ => self.cur.in_sleepable,
        }
    }

    fn new_iterator(&mut self, call: &Call<'_>, number: u8, btf_id: u32, slots: usize) -> Check {
        let (name, arg) = (short_name(call, btf_id), number - 1);
        let expected = format!("expected uninitialized iter_{name} as arg #{arg}");
        let (frame, low) = self.make_room(number, ("iter", slots), Byte::Iter, &expected)?;
        let id = self.fresh_id();
        self.cur
            .hold(HeldKind::Object, id, self.insn, LockPlace::None);
        let trust = match call.has(flags::RCU_PROTECTED) {
            true if self.in_rcu() => Flags::RCU,
            true => Flags::UNTRUSTED,
            false => Flags::NONE,
        };
        for slot in low + 1 - slots..=low {
            let content = &mut self.cur.frames[frame].stack[slot];
            *content = Slot {
                bytes: [Byte::Iter; 8],
                reg: Reg {
                    ref_id: if slot == low { id } else { 0 },
                    flags: trust,
                    ..Reg::UNINIT
                },
                object: Object::Iter {
                    btf_id,
                    active: true,
                    depth: 0,
                },
            };
            self.stack_liveness.write(frame, slot);
        }
        Ok(())
    }

    /// Implements `stack_slot_obj_get_spi`.
    pub(super) fn object_place(
        &self,
        reg: &Reg,
        what: &str,
        slots: usize,
    ) -> Result<Place, String> {
        let Some(variable) = reg.var.constant() else {
            return Err(format!("{what} has to be at a constant offset"));
        };
        let at = reg.off.wrapping_add(variable as i32);
        let (low, _) = place(at.min(-1));
        if at % 8 != 0 || at > 0 || low + 1 < slots {
            return Err(format!("cannot pass in {what} at an offset={at}"));
        }
        let frame = Self::frame_of(reg);
        Ok(if at < 0 && low < self.cur.frames[frame].stack.len() {
            Place::At(frame, low)
        } else {
            Place::Beyond
        })
    }

    /// Makes room for an object where there is none of its kind.
    pub(super) fn make_room(
        &mut self,
        number: u8,
        (what, slots): (&str, usize),
        kind: Byte,
        expected: &str,
    ) -> Check<(usize, usize)> {
        let reg = *self.cur.reg(number);
        match self.object_place(&reg, what, slots) {
            Ok(place) if !self.holds(&place, slots, kind) => {}
            Ok(_) => return no(Errno::EINVAL, expected),
            Err(why) => return no(Errno::EINVAL, lines(&why, expected)),
        }
        self.write_object(number, slots)?;
        match self.object_place(&reg, what, slots) {
            Ok(Place::At(frame, low)) => Ok((frame, low)),
            _ => no(Errno::EINVAL, expected),
        }
    }

    /// Returns whether any byte there is part of such an object.
    fn holds(&self, place: &Place, slots: usize, kind: Byte) -> bool {
        let Place::At(frame, low) = *place else {
            return false;
        };
        let stack = &self.cur.frames[frame].stack;
        stack[low + 1 - slots..=low]
            .iter()
            .any(|slot| slot.bytes.contains(&kind))
    }

    /// Reserves room for an object, in which nothing else may be afterwards.
    fn write_object(&mut self, number: u8, slots: usize) -> Check {
        for slot in 0..slots as i32 {
            self.access(Access {
                base: number,
                off: slot * 8,
                size: 8,
                write: true,
                value: None,
                constant: None,
                signed: false,
                strict: false,
            })?;
        }
        Ok(())
    }

    pub(super) fn clear_object(&mut self, frame: usize, low: usize, slots: usize) {
        for slot in low + 1 - slots..=low {
            self.clear_slot(frame, slot);
            self.stack_liveness.write(frame, slot);
        }
    }

    /// Returns a whole iterator of this type, as it was made (`is_iter_reg_valid_init`).
    fn live_iterator(&self, place: &Place, wanted: u32, slots: usize) -> Option<(usize, usize)> {
        let Place::At(frame, low) = *place else {
            return None;
        };
        let stack = &self.cur.frames[frame].stack;
        let whole = (low + 1 - slots..=low).all(|at| {
            let slot = &stack[at];
            let same = matches!(slot.object, Object::Iter { btf_id, .. } if btf_id == wanted);
            same && slot.bytes == [Byte::Iter; 8] && (slot.reg.ref_id != 0) == (at == low)
        });
        whole.then_some((frame, low))
    }

    /// Advances an iterator: it returns a further element, or comes to its end. The former way is
    /// put off.
    pub(super) fn advance_iterator(&mut self, meta: &Meta) -> Check {
        let Some((frame, low)) = meta.iterator else {
            return no(Errno::EINVAL, "no iterator");
        };
        let Object::Iter {
            btf_id,
            active,
            depth,
        } = self.cur.frames[frame].stack[low].object
        else {
            return no(Errno::EINVAL, "no iterator");
        };
        if active {
            // The state that was just kept is this turn's.
            let kept = self
                .cur
                .parent
                .map_or(0, |parent| self.explored.state(parent).dfs_depth);
            let earlier = self.earlier_turn(self.insn, kept);
            let earlier = earlier.map(|id| self.explored.state(id).clone());
            let mut element = *self.cur.reg(0);
            self.not_null(&mut element);
            let queued = self.put_off(self.insn + 1)?;
            queued.frames[frame].stack[low].object = Object::Iter {
                btf_id,
                active: true,
                depth: depth + 1,
            };
            if let Some(earlier) = earlier {
                super::super::equal::widen(&earlier, queued);
            }
            *queued.reg_mut(0) = element;
        }
        self.cur.frames[frame].stack[low].object = Object::Iter {
            btf_id,
            active: false,
            depth,
        };
        *self.cur.reg_mut(0) = Reg::known(0);
        Ok(())
    }
}

/// Joins lines of the log; the first may be empty.
pub(super) fn lines(first: &str, second: &str) -> String {
    if first.is_empty() {
        second.to_owned()
    } else {
        format!("{first}\n{second}")
    }
}

/// Returns the log's name for an iterator's structure.
fn short_name<'a>(call: &Call<'a>, btf_id: u32) -> &'a str {
    let name = call.kernel.name(btf_id);
    name.strip_prefix("bpf_iter_").unwrap_or(name)
}
