//! References: objects that a program has taken and must give back (`acquire_reference`,
//! `release_reference`), packet pointers that are void, constant texts, and owned pointers in maps.

use beeline_uapi::flags::RDONLY_PROG;
use beeline_uapi::helper::maps::suits;
use beeline_uapi::{Errno, HelperId};

use super::helper::Meta;
use super::{Check, Explorer, no};
use crate::helpers::helper;
use crate::program::{FieldKind, MapField};
use crate::state::{Byte, Flags, HeldKind, Reg, Slot, Type};

impl Explorer<'_> {
    /// Gives a reference back: every copy of the pointer is a number from now on. Returns `false`
    /// if there was none.
    pub(super) fn release(&mut self, id: u32) -> bool {
        if !self.cur.drop_held(HeldKind::Object, id) {
            return false;
        }
        self.forget_pointers(|reg| reg.ref_id == id);
        true
    }

    /// Moves an object into a map: the program no longer owns it, but in an RCU section per-CPU
    /// objects stay where they are.
    pub(super) fn hand_over(&mut self, id: u32) -> bool {
        if !self.cur.drop_held(HeldKind::Object, id) {
            return false;
        }
        let in_rcu = self.in_rcu();
        self.cur.for_each_reg(|reg| {
            if reg.ref_id != id {
                return;
            }
            if in_rcu && reg.flags.has(Flags::ALLOC) && reg.flags.has(Flags::PERCPU) {
                reg.ref_id = 0;
                reg.flags = reg.flags.without(Flags::ALLOC).with(Flags::RCU);
            } else {
                *reg = Reg::UNKNOWN;
            }
        });
        true
    }

    /// Voids registers that must not be used as pointers any more.
    pub(super) fn forget_pointers(&mut self, which: impl Fn(&Reg) -> bool) {
        self.cur.for_each_reg(|reg| {
            if which(reg) {
                *reg = Reg::UNKNOWN;
            }
        });
    }

    /// Voids packet pointers, because packets may have moved (`clear_all_pkt_pointers`).
    pub(super) fn forget_packet_pointers(&mut self) {
        self.forget_pointers(|reg| reg.is_packet_or_end() || reg.flags.has(Flags::DYNPTR_SLICE));
    }

    /// Marks the content of a stack slot as something that mattered.
    pub(super) fn mark_slot_precise(&mut self, frame: usize, slot: usize) {
        let mut cur = self.take_state();
        self.follow_slot_back(&mut cur, frame, slot);
        self.cur = cur;
    }

    /// Checks an operation under a lock: locks are held only for a few instructions, and no helper
    /// is called meanwhile.
    pub(super) fn allowed_under_lock(
        &self,
        found: &'static crate::helpers::Helper,
    ) -> Check<&'static crate::helpers::Helper> {
        if self.cur.locks > 0 && found.id != HelperId::SPIN_UNLOCK {
            return no(
                Errno::EINVAL,
                "function calls are not allowed while holding a lock",
            );
        }
        Ok(found)
    }

    /// Implements `check_map_func_compatibility`.
    pub(super) fn check_map_suits(&self, map: crate::state::MapId, helper: HelperId) -> Check {
        let map_type = self.program.map(map).map_type;
        if suits(helper, map_type) && super::maps::may_update(&self.program.kind, map_type, helper)
        {
            return Ok(());
        }
        no(
            Errno::EINVAL,
            format!(
                "cannot pass map_type {} into func {helper}#{}",
                map_type.0, helper.0
            ),
        )
    }

    /// Returns a text in a read-only map that was frozen (`check_reg_const_str`).
    pub(super) fn constant_text(&mut self, number: u8, reg: &Reg) -> Check<Vec<u8>> {
        let Type::MapValue(id) = reg.kind else {
            return no(
                Errno::EINVAL,
                format!("R{number} does not point to a map value"),
            );
        };
        let map = self.program.map(id);
        if map.flags & RDONLY_PROG == 0 {
            return no(
                Errno::EACCES,
                format!("R{number} does not point to a readonly map'"),
            );
        }
        let Some(at) = reg.var.constant() else {
            return no(
                Errno::EACCES,
                format!("R{number} is not a constant address'"),
            );
        };
        let Some(bytes) = &map.constant else {
            return no(
                Errno::EACCES,
                format!("R{number} does not point to a readonly map'"),
            );
        };
        let start = i64::from(reg.off) + at.cast_signed();
        let text = usize::try_from(start)
            .ok()
            .and_then(|start| bytes.get(start..));
        let text = text.and_then(|text| {
            text.split(|&byte| byte == 0)
                .next()
                .filter(|found| found.len() < text.len())
        });
        match text {
            Some(text) => Ok(text.to_vec()),
            None => no(Errno::EINVAL, "string is not zero-terminated"),
        }
    }

    /// Checks the format of `bpf_snprintf` (`check_bpf_snprintf_call`).
    pub(super) fn check_format(&mut self) -> Check {
        debug_assert!(helper(HelperId::SNPRINTF, &self.program.kind, None).is_ok());
        let reg = *self.cur.reg(3);
        let text = self.constant_text(3, &reg)?;
        let Some(bytes) = self.cur.reg(5).constant() else {
            return Ok(());
        };
        if bytes % 8 != 0 || !format_is_good(&text, bytes / 8) {
            return no(Errno::EINVAL, "Invalid format string");
        }
        Ok(())
    }

    /// Returns the owned pointer at `place` in a map's value.
    pub(super) fn pointer_field(&self, reg: &Reg, place: i64) -> Option<MapField> {
        let Type::MapValue(id) = reg.kind else {
            return None;
        };
        let fields = &self.program.map(id).fields;
        fields
            .iter()
            .copied()
            .find(|field| i64::from(field.offset) == place && is_pointer(field.kind))
    }

    /// Checks a load or store of such a pointer (`check_map_kptr_access`).
    pub(super) fn access_pointer_field(
        &mut self,
        field: MapField,
        access: super::memory::Access,
    ) -> Check<Reg> {
        let owned = !matches!(field.kind, FieldKind::UntrustedPointer(_));
        if access.write {
            let stored = access.value.map(|number| *self.cur.reg(number));
            let null = stored.is_some_and(|reg| reg.is_null()) || access.constant == Some(0);
            if owned {
                return no(Errno::EACCES, "store to referenced kptr disallowed");
            }
            let matches = stored.is_some_and(|reg| self.is_pointer_for(&reg, field.kind));
            if null || matches {
                return Ok(Reg::UNKNOWN);
            }
            return no(
                Errno::EACCES,
                format!(
                    "invalid kptr access, R{} type={}",
                    access.value.unwrap_or(0),
                    stored.map_or(String::new(), |reg| super::state_text::type_name(&reg))
                ),
            );
        }
        let id = self.fresh_id();
        let rcu = self.in_rcu();
        let (kind, flags) = match field.kind {
            FieldKind::UntrustedPointer(btf_id) => (Type::Btf(btf_id), Flags::UNTRUSTED),
            FieldKind::OwnedPointer {
                btf_id,
                local: true,
            } => (
                Type::Btf(btf_id),
                if rcu {
                    Flags::ALLOC.with(Flags::RCU).with(Flags::NON_OWN_REF)
                } else {
                    Flags::ALLOC.with(Flags::UNTRUSTED)
                },
            ),
            FieldKind::OwnedPointer { btf_id, .. } => (
                Type::Btf(btf_id),
                if rcu && self.is_rcu_protected(btf_id) {
                    Flags::RCU
                } else {
                    Flags::UNTRUSTED
                },
            ),
            FieldKind::PerCpuPointer(btf_id) => (
                Type::Btf(btf_id),
                if rcu {
                    Flags::PERCPU.with(Flags::RCU)
                } else {
                    Flags::PERCPU.with(Flags::UNTRUSTED)
                },
            ),
            FieldKind::UserPointer(btf_id) => {
                let bytes = self.program.types.and_then(|types| types.size(btf_id));
                (Type::Mem(bytes.unwrap_or(0)), Flags::NONE)
            }
            _ => return Ok(Reg::UNKNOWN),
        };
        Ok(Reg {
            id,
            ..Reg::pointer(kind).flagged(flags.with(Flags::MAYBE_NULL))
        })
    }

    /// Implements `map_kptr_match_type`.
    fn is_pointer_for(&self, reg: &Reg, field: FieldKind) -> bool {
        let (wanted, strict, local) = match field {
            FieldKind::UntrustedPointer(wanted) => (wanted, false, false),
            FieldKind::OwnedPointer { btf_id, local } => (btf_id, true, local),
            FieldKind::PerCpuPointer(btf_id) => (btf_id, true, true),
            _ => return false,
        };
        let Type::Btf(have) = reg.kind else {
            return false;
        };
        if local {
            return reg.flags.has(Flags::ALLOC)
                && self
                    .program
                    .types
                    .is_some_and(|types| types.matches(have, reg.off, wanted, strict));
        }
        !reg.flags
            .has(Flags::ALLOC.with(Flags::PERCPU).with(Flags::USER))
            && reg.var.constant() == Some(0)
            && self
                .program
                .kernel
                .is_some_and(|kernel| kernel.matches(have, reg.off, wanted, strict))
    }

    /// Returns the place that `bpf_kptr_xchg` exchanges (`process_kptr_func`).
    pub(super) fn exchanged_field(&mut self, number: u8, reg: &Reg, meta: &mut Meta) -> Check {
        let Some(variable) = reg.var.constant() else {
            return no(
                Errno::EINVAL,
                format!(
                    "R{number} doesn't have constant offset. kptr has to be at the constant offset"
                ),
            );
        };
        let place = i64::from(reg.off) + variable.cast_signed();
        let field = match reg.kind {
            Type::MapValue(_) => self.pointer_field(reg, place),
            Type::Btf(btf_id) => self.program.types.and_then(|types| {
                types
                    .object_fields(btf_id, self.program.kernel)
                    .into_iter()
                    .find(|field| i64::from(field.offset) == place)
            }),
            _ => None,
        };
        let Some(field) = field else {
            let fields = self.fields_behind(reg);
            if !fields.iter().any(|field| is_pointer(field.kind)) {
                return no(Errno::EINVAL, format!("R{number} has no valid kptr"));
            }
            return no(Errno::EACCES, format!("off={place} doesn't point to kptr"));
        };
        match field.kind {
            FieldKind::OwnedPointer { .. } | FieldKind::PerCpuPointer(_) => {
                meta.field = Some(field.kind);
                Ok(())
            }
            _ => no(
                Errno::EACCES,
                format!("off={place} kptr isn't referenced kptr"),
            ),
        }
    }

    pub(super) fn check_exchange(&self, number: u8, reg: &Reg, meta: &Meta) -> Check {
        let suits = meta
            .field
            .is_some_and(|field| self.is_pointer_for(reg, field));
        if suits {
            return Ok(());
        }
        let name = super::state_text::type_name(reg);
        no(
            Errno::EACCES,
            format!("invalid kptr access, R{number} type={name}"),
        )
    }

    /// Implements `rcu_protected_object`, for the kernel's structures.
    fn is_rcu_protected(&self, btf_id: u32) -> bool {
        const PROTECTED: [&str; 5] = [
            "task_struct",
            "cgroup",
            "bpf_cpumask",
            "bpf_crypto_ctx",
            "prog_test_ref_kfunc",
        ];
        self.program
            .kernel
            .is_some_and(|kernel| PROTECTED.contains(&kernel.name(btf_id)))
    }

    /// Implements `in_rcu_cs`.
    pub(super) fn in_rcu(&self) -> bool {
        self.cur.rcu > 0 || self.cur.locks > 0 || !self.cur.in_sleepable
    }

    /// Clears a slot that is overwritten, with the object that it was part of.
    pub(super) fn clear_slot(&mut self, frame: usize, slot: usize) {
        let content = &mut self.cur.frames[frame].stack[slot];
        *content = Slot::INVALID;
        content.bytes = [Byte::Invalid; 8];
    }
}

fn is_pointer(kind: FieldKind) -> bool {
    matches!(
        kind,
        FieldKind::UntrustedPointer(_)
            | FieldKind::OwnedPointer { .. }
            | FieldKind::PerCpuPointer(_)
            | FieldKind::UserPointer(_)
    )
}

/// Implements `bpf_bprintf_prepare`, without the arguments: each conversion has an argument (there
/// may be more), and is one that the kernel knows.
fn format_is_good(text: &[u8], arguments: u64) -> bool {
    let mut used = 0;
    let mut rest = text.iter().copied().peekable();
    while let Some(byte) = rest.next() {
        if !(byte.is_ascii_graphic() || byte.is_ascii_whitespace()) {
            return false;
        }
        if byte != b'%' {
            continue;
        }
        if rest.next_if_eq(&b'%').is_some() {
            continue;
        }
        used += 1;
        while rest
            .next_if(|byte| matches!(byte, b'0' | b'+' | b'-' | b' '))
            .is_some()
        {}
        while rest.next_if(u8::is_ascii_digit).is_some() {}
        let good = match rest.next() {
            Some(b'p') => pointer_is_good(&mut rest),
            Some(b's' | b'c' | b'd' | b'i' | b'u' | b'x' | b'X' | b'o') => true,
            Some(b'l') => {
                let _ = rest.next_if_eq(&b'l');
                matches!(rest.next(), Some(b'd' | b'i' | b'u' | b'x' | b'X'))
            }
            _ => false,
        };
        if !good {
            return false;
        }
    }
    used <= arguments
}

/// Returns whether the text behind `%p` is allowed.
fn pointer_is_good(rest: &mut std::iter::Peekable<impl Iterator<Item = u8>>) -> bool {
    match rest.peek() {
        Some(b'k' | b'u') => {
            rest.next();
            rest.next_if_eq(&b's');
            true
        }
        Some(b'x' | b'K' | b's' | b'S' | b'B') => {
            rest.next();
            true
        }
        Some(b'i' | b'I') => {
            rest.next();
            matches!(rest.next(), Some(b'4' | b'6'))
        }
        Some(byte) => byte.is_ascii_whitespace() || byte.is_ascii_punctuation(),
        None => true,
    }
}
