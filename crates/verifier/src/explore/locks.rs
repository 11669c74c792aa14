//! Spin locks and timers in maps' values (`process_spin_lock`, `process_timer_func`).

use std::collections::BTreeSet;

use beeline_isa::{Imm64, Op};
use beeline_uapi::{Errno, HelperId, MapType};

use super::helper::Meta;
use super::{Check, Explorer, no};
use crate::program::{FieldKind, Map};
use crate::state::{HeldKind, LockPlace, Reg, Type};

/// Returns whether there is a lock in the map's values.
pub(super) fn has_lock(map: &Map) -> bool {
    map.fields.iter().any(|field| {
        matches!(
            field.kind,
            FieldKind::SpinLock | FieldKind::ResilientSpinLock
        )
    })
}

impl Explorer<'_> {
    pub(super) fn spin_lock(&mut self, number: u8, helper: HelperId) -> Check {
        if self.in_tree_callback() {
            return no(Errno::EACCES, "can't spin_{lock,unlock} in rbtree cb");
        }
        let reg = *self.cur.reg(number);
        let place = self.lock_place(number, &reg, FieldKind::SpinLock)?;
        if helper == HelperId::SPIN_LOCK {
            return self.take_lock(&reg, place);
        }
        self.give_lock_back(&reg, place)
    }

    /// Returns the value or object that contains the lock of this kind which a register points to.
    pub(super) fn lock_place(&self, number: u8, reg: &Reg, kind: FieldKind) -> Check<LockPlace> {
        let name = kind.name();
        let Some(variable) = reg.var.constant() else {
            return no(
                Errno::EINVAL,
                format!(
                    "R{number} doesn't have constant offset. {name} has to be at the constant offset"
                ),
            );
        };
        let place = i64::from(reg.off) + variable.cast_signed();
        let (fields, place_of, what) = match reg.kind {
            Type::MapValue(id) => {
                let map = self.program.map(id);
                (
                    map.fields.clone(),
                    LockPlace::Map(id),
                    format!("map '{}'", map.name),
                )
            }
            Type::Btf(btf_id) => (
                self.program
                    .types
                    .map(|types| types.object_fields(btf_id, self.program.kernel))
                    .unwrap_or_default(),
                LockPlace::Object(btf_id),
                "local kptr".to_owned(),
            ),
            _ => return no(Errno::EINVAL, format!("R{number} doesn't point to a lock")),
        };
        let lock = fields.iter().find(|field| field.kind == kind);
        let Some(lock) = lock else {
            return no(Errno::EINVAL, format!("{what} has no valid {name}"));
        };
        if i64::from(lock.offset) != place {
            return no(
                Errno::EINVAL,
                format!(
                    "off {place} doesn't point to 'struct {name}' that is at {}",
                    lock.offset
                ),
            );
        }
        Ok(place_of)
    }

    fn take_lock(&mut self, reg: &Reg, place: LockPlace) -> Check {
        if self.cur.locks > 0 {
            return no(Errno::EINVAL, "Locking two bpf_spin_locks are not allowed");
        }
        self.cur.locks += 1;
        self.cur.hold(HeldKind::Lock, reg.id, self.insn, place);
        Ok(())
    }

    fn give_lock_back(&mut self, reg: &Reg, place: LockPlace) -> Check {
        if self.cur.locks == 0 {
            return no(Errno::EINVAL, "bpf_spin_unlock without taking a lock");
        }
        let held =
            self.cur.held.iter().any(|held| {
                held.kind == HeldKind::Lock && held.id == reg.id && held.place == place
            });
        if !held {
            return no(Errno::EINVAL, "bpf_spin_unlock of different lock");
        }
        let last = self.cur.held.iter().rev().find(|held| held.kind.is_lock());
        if last.is_none_or(|last| last.id != reg.id || last.place != place) {
            return no(Errno::EINVAL, "bpf_spin_unlock cannot be out of order");
        }
        self.cur.drop_held(HeldKind::Lock, reg.id);
        self.cur.locks -= 1;
        self.forget_pointers(Reg::is_non_owning);
        Ok(())
    }

    pub(super) fn check_timer(&mut self, number: u8, reg: &Reg, meta: &mut Meta) -> Check {
        let Some(variable) = reg.var.constant() else {
            return no(
                Errno::EINVAL,
                format!(
                    "R{number} doesn't have constant offset. bpf_timer has to be at the constant offset"
                ),
            );
        };
        let Type::MapValue(id) = reg.kind else {
            return no(
                Errno::EINVAL,
                format!("R{number} doesn't point to a map's value"),
            );
        };
        let map = self.program.map(id);
        let timer = map
            .fields
            .iter()
            .find(|field| field.kind == FieldKind::Timer);
        let Some(timer) = timer else {
            return no(
                Errno::EINVAL,
                format!("map '{}' has no valid bpf_timer", map.name),
            );
        };
        let place = variable.cast_signed() + i64::from(reg.off);
        if i64::from(timer.offset) != place {
            return no(
                Errno::EINVAL,
                format!(
                    "off {place} doesn't point to 'struct bpf_timer' that is at {}",
                    timer.offset
                ),
            );
        }
        meta.map = Some(id);
        Ok(())
    }

    /// Checks that programs which may interrupt the holder of a lock do not use maps that have one
    /// (`check_map_prog_compatibility`). Only maps that the program names count.
    pub(crate) fn check_maps_suit(&self) -> Check {
        use beeline_uapi::ProgramType;
        let prog_type = self.program.kind.prog_type;
        let tracing = matches!(
            prog_type,
            ProgramType::KPROBE
                | ProgramType::TRACEPOINT
                | ProgramType::PERF_EVENT
                | ProgramType::RAW_TRACEPOINT
                | ProgramType::RAW_TRACEPOINT_WRITABLE
        );
        let named = self.named_maps();
        let maps = self.program.maps.iter();
        for (_, map) in maps.filter(|(fd, _)| named.contains(fd)) {
            let has = |kind: FieldKind| map.fields.iter().any(|field| field.kind == kind);
            let has_root = map.fields.iter().any(|field| {
                matches!(
                    field.kind,
                    FieldKind::ListHead { .. } | FieldKind::RbRoot { .. }
                )
            });
            let why = if has_root && tracing {
                "tracing progs cannot use bpf_{list_head,rb_root} yet"
            } else if has_lock(map) && prog_type == ProgramType::SOCKET_FILTER {
                "socket filter progs cannot use bpf_spin_lock yet"
            } else if has_lock(map) && tracing {
                "tracing progs cannot use bpf_spin_lock yet"
            } else if has(FieldKind::Timer) && tracing {
                "tracing progs cannot use bpf_timer yet"
            } else if has(FieldKind::Workqueue) && tracing {
                "tracing progs cannot use bpf_wq yet"
            } else if map.map_type == MapType::STRUCT_OPS && prog_type != ProgramType::STRUCT_OPS {
                "bpf_struct_ops map cannot be used in prog"
            } else if self.program.kind.is_sleepable() && !may_be_held(map.map_type) {
                "Sleepable programs can only use array, hash, ringbuf and local storage maps"
            } else {
                continue;
            };
            return no(Errno::EINVAL, why);
        }
        Ok(())
    }

    /// Returns the maps that instructions name, by their descriptors; the file's other maps are not
    /// the program's.
    fn named_maps(&self) -> BTreeSet<i32> {
        let ops = (0..self.flow.len()).filter_map(|insn| self.op_at(insn));
        ops.filter_map(|op| match op {
            Op::Imm64 {
                kind: Imm64::Map | Imm64::MapValue,
                low,
                ..
            } => Some(low),
            _ => None,
        })
        .collect()
    }
}

/// Returns whether values of such a map stay while a program sleeps.
fn may_be_held(map_type: MapType) -> bool {
    matches!(
        map_type,
        MapType::HASH
            | MapType::ARRAY
            | MapType::PERCPU_HASH
            | MapType::PERCPU_ARRAY
            | MapType::LRU_HASH
            | MapType::LRU_PERCPU_HASH
            | MapType::ARRAY_OF_MAPS
            | MapType::HASH_OF_MAPS
            | MapType::QUEUE
            | MapType::STACK
            | MapType::RINGBUF
            | MapType::USER_RINGBUF
            | MapType::SK_STORAGE
            | MapType::INODE_STORAGE
            | MapType::TASK_STORAGE
            | MapType::CGRP_STORAGE
            | MapType::ARENA
    )
}
