//! Decides whether everything that may follow a state is covered by what followed an earlier one
//! (`states_equal`).

use beeline_uapi::verifier::BPF_ADD_CONST;

use crate::program::Program;
use crate::state::{Byte, Frame, Object, Reg, Slot, State, Type};

/// The required likeness of two states (`enum exact_level`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Alike {
    /// Numbers that did not matter may be anything.
    Covered,
    /// The later state's numbers lie within the earlier one's, even if nothing is known of these.
    Enclosed,
    /// Like `Enclosed`, and slots of the stack are of the same kinds.
    Within,
    /// The states are the same.
    Exactly,
}

/// The ids of the later state that stand for those of the earlier one (`struct bpf_idmap`).
#[derive(Debug, Default)]
pub(super) struct Ids {
    pairs: Vec<(u32, u32)>,
    /// The number of ids made for numbers without one, each of which gets its own.
    made: u32,
}

impl Ids {
    fn check(&mut self, old: u32, new: u32) -> bool {
        if (old != 0) != (new != 0) {
            return false;
        }
        if old == 0 {
            return true;
        }
        for &(known_old, known_new) in &self.pairs {
            if known_old == old {
                return known_new == new;
            }
            if known_new == new {
                return false;
            }
        }
        self.pairs.push((old, new));
        true
    }

    fn check_scalar(&mut self, old: u32, new: u32) -> bool {
        let mut own = |id: u32| {
            if id == 0 {
                self.made += 1;
                // Beyond every id of an exploration, and without BPF_ADD_CONST.
                (1 << 29) + self.made
            } else {
                id
            }
        };
        let (old, new) = (own(old), own(new));
        self.check(old, new)
    }
}

/// Compares states; `live` are the registers of the innermost frame, and of each other frame, that
/// are read later.
pub(super) fn states_equal(
    program: &Program<'_>,
    old: &State,
    new: &State,
    live: impl Fn(usize) -> u16,
    alike: Alike,
) -> bool {
    if old.frames.len() != new.frames.len() || old.in_sleepable != new.in_sleepable {
        return false;
    }
    let mut ids = Ids::default();
    if !same_references(old, new, &mut ids) {
        return false;
    }
    let frames = old.frames.iter().zip(&new.frames).enumerate();
    for (number, (old_frame, new_frame)) in frames {
        if old_frame.callsite != new_frame.callsite
            || old_frame.callback_depth > new_frame.callback_depth
        {
            return false;
        }
        let live = live(old.insn_of(number));
        let registers = old_frame.regs.iter().zip(&new_frame.regs).enumerate();
        for (register, (old_reg, new_reg)) in registers {
            if live & 1 << register != 0 && !reg_is_safe(old_reg, new_reg, &mut ids, alike) {
                return false;
            }
        }
        if !stack_is_safe(program, old_frame, new_frame, &mut ids, alike) {
            return false;
        }
    }
    true
}

fn same_references(old: &State, new: &State, ids: &mut Ids) -> bool {
    old.held.len() == new.held.len()
        && old.locks == new.locks
        && old.rcu == new.rcu
        && old.preempt == new.preempt
        && ids.check(old.irq_id, new.irq_id)
        && old.held.iter().zip(&new.held).all(|(old, new)| {
            old.kind == new.kind && old.place == new.place && ids.check(old.id, new.id)
        })
}

/// Implements `regsafe`.
fn reg_is_safe(old: &Reg, new: &Reg, ids: &mut Ids, alike: Alike) -> bool {
    if alike == Alike::Exactly {
        return exactly(old, new, ids);
    }
    if old.kind == Type::Uninit {
        return true;
    }
    if !same_kind(old, new) {
        return false;
    }
    match old.kind {
        Type::Scalar => {
            if !old.precise && alike == Alike::Covered {
                return true;
            }
            if !old.var.contains(&new.var) {
                return false;
            }
            // If nothing relied on a link, another link does no harm.
            if old.id == 0 {
                return true;
            }
            let same_link = (old.id ^ new.id) & BPF_ADD_CONST == 0
                && (old.id & BPF_ADD_CONST == 0 || old.off == new.off);
            same_link && ids.check_scalar(old.id, new.id)
        }
        Type::MapKey(_)
        | Type::MapValue(_)
        | Type::Mem(_)
        | Type::Buffer
        | Type::TracepointBuffer => {
            old.kind == new.kind
                && old.off == new.off
                && old.range == new.range
                && old.var.contains(&new.var)
                && ids.check(old.id, new.id)
                && ids.check(old.ref_id, new.ref_id)
        }
        Type::Packet | Type::PacketMeta => {
            let range = if old.range < 0 || new.range < 0 {
                old.range == new.range
            } else {
                old.range <= new.range
            };
            range && old.off == new.off && ids.check(old.id, new.id) && old.var.contains(&new.var)
        }
        Type::Arena => true,
        _ => exactly(old, new, ids),
    }
}

/// Compares the types with their flags; the memory they point to is compared later.
fn same_kind(old: &Reg, new: &Reg) -> bool {
    std::mem::discriminant(&old.kind) == std::mem::discriminant(&new.kind) && old.flags == new.flags
}

/// Implements `regs_exact`.
fn exactly(old: &Reg, new: &Reg, ids: &mut Ids) -> bool {
    old.kind == new.kind
        && old.flags == new.flags
        && old.off == new.off
        && old.range == new.range
        && old.var == new.var
        && ids.check(old.id, new.id)
        && ids.check(old.ref_id, new.ref_id)
}

/// Implements `stacksafe`.
fn stack_is_safe(
    _program: &Program<'_>,
    old: &Frame,
    new: &Frame,
    ids: &mut Ids,
    alike: Alike,
) -> bool {
    for (index, old) in old.stack.iter().enumerate() {
        let new = new.stack.get(index);
        let same_kinds = matches!(alike, Alike::Within | Alike::Exactly);
        if same_kinds && new.is_none_or(|new| new.bytes != old.bytes) {
            return false;
        }
        let matters = |byte: &Byte| !matches!(byte, Byte::Invalid | Byte::Misc);
        if !old.bytes.iter().any(matters) {
            continue;
        }
        let Some(new) = new else { return false };
        if let (Some(old), Some(new)) = (as_number(old), as_number(new)) {
            if !reg_is_safe(&old, &new, ids, alike) {
                return false;
            }
            continue;
        }
        let bytes_are_safe = old
            .bytes
            .iter()
            .zip(&new.bytes)
            .all(|(old, new)| !matters(old) || old == new);
        if !bytes_are_safe {
            return false;
        }
        // The lowest byte decides, because a part of a number may be above other bytes.
        let same = match old.bytes[0] {
            Byte::Spill => reg_is_safe(&old.reg, &new.reg, ids, alike),
            Byte::Dynptr | Byte::Iter | Byte::IrqFlag => same_object(old, new, ids),
            Byte::Invalid | Byte::Misc | Byte::Zero => true,
        };
        if !same {
            return false;
        }
    }
    true
}

/// Returns a slot of any bytes as an unknown number (`scalar_reg_for_stack`).
fn as_number(slot: &Slot) -> Option<Reg> {
    if slot.is_whole_scalar() {
        return Some(slot.reg);
    }
    let any = |byte: &Byte| matches!(byte, Byte::Misc | Byte::Invalid);
    slot.bytes.iter().all(any).then_some(Reg::UNKNOWN)
}

fn same_object(old: &Slot, new: &Slot, ids: &mut Ids) -> bool {
    let same = match (old.object, new.object) {
        (
            Object::Iter {
                btf_id: old,
                active: old_active,
                ..
            },
            Object::Iter {
                btf_id: new,
                active: new_active,
                ..
            },
        ) => old == new && old_active == new_active,
        (old, new) => old == new,
    };
    same && ids.check(old.reg.ref_id, new.reg.ref_id) && ids.check(old.reg.id, new.reg.id)
}

/// Forgets numbers that differ from an earlier turn of a loop and did not matter, so that the
/// loop's turns become alike (`widen_imprecise_scalars`).
pub(super) fn widen(old: &State, new: &mut State) {
    let frames = old.frames.iter().zip(&mut new.frames);
    for (old, new) in frames {
        let registers = old.regs.iter().zip(&mut new.regs).take(10);
        registers.for_each(|(old, new)| widen_reg(old, new));
        let slots = old.stack.iter().zip(&mut new.stack);
        for (old, new) in slots {
            if old.is_spill() && new.is_spill() {
                widen_reg(&old.reg, &mut new.reg);
            }
        }
    }
}

fn widen_reg(old: &Reg, new: &mut Reg) {
    let numbers = old.is_scalar() && new.is_scalar();
    let same = old.var == new.var && old.off == new.off;
    if numbers && !old.precise && !new.precise && !same {
        *new = Reg::UNKNOWN;
    }
}
