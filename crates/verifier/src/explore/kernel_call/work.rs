//! Work that is done later: functions for work queues, and for tasks on their way out of the
//! kernel.

use beeline_uapi::Errno;

use super::super::callback::Callback;
use super::super::{Check, Explorer, no};
use super::Meta;
use crate::program::FieldKind;
use crate::state::{Flags, MapId, Reg, Type};

impl Explorer<'_> {
    /// Checks the map that contains some work, which is passed beside it.
    pub(super) fn map_argument(&self, number: u8, reg: &Reg, meta: &mut Meta) -> Check {
        let map = match reg.kind {
            Type::Map(map) | Type::MapValue(map) | Type::MapKey(map) => map,
            // A map that the kernel passes, as to its iterators: it is treated as a structure, and
            // its identity is unknown.
            Type::Btf(_) => return Ok(()),
            _ => {
                return no(
                    Errno::EINVAL,
                    format!("pointer in R{number} isn't map pointer"),
                );
            }
        };
        if let Some(known) = meta.map
            && known != map
        {
            let has = |kind| {
                self.program
                    .map(map)
                    .fields
                    .iter()
                    .any(|field| field.kind == kind)
            };
            let (what, registers) = if has(FieldKind::TaskWork) {
                ("bpf_task_work", (2, 3))
            } else if has(FieldKind::Workqueue) {
                ("workqueue", (1, 2))
            } else {
                meta.map = Some(map);
                return Ok(());
            };
            return no(
                Errno::EINVAL,
                format!(
                    "{what} pointer in R{} map_uid={} doesn't match map pointer in R{} map_uid={}",
                    registers.0, known.unique, registers.1, map.unique
                ),
            );
        }
        meta.map = Some(map);
        Ok(())
    }

    /// Checks a work queue or a task's work in a map's value (`process_wq_func`,
    /// `process_task_work_func`).
    pub(super) fn work_argument(
        &self,
        number: u8,
        reg: &Reg,
        (kind, name): (FieldKind, &str),
        meta: &mut Meta,
    ) -> Check {
        let Type::MapValue(id) = reg.kind else {
            return no(
                Errno::EINVAL,
                format!("arg#{} doesn't point to a map value", number - 1),
            );
        };
        if reg.flags != Flags::NONE {
            return no(
                Errno::EINVAL,
                format!("arg#{} doesn't point to a map value", number - 1),
            );
        }
        let Some(variable) = reg.var.constant() else {
            return no(
                Errno::EINVAL,
                format!(
                    "R{number} doesn't have constant offset. {name} has to be at the constant offset"
                ),
            );
        };
        let map = self.program.map(id);
        let Some(field) = map.fields.iter().find(|field| field.kind == kind) else {
            return no(
                Errno::EINVAL,
                format!("map '{}' has no valid {name}", map.name),
            );
        };
        let place = variable.cast_signed() + i64::from(reg.off);
        if i64::from(field.offset) != place {
            return no(
                Errno::EINVAL,
                format!(
                    "off {place} doesn't point to 'struct {name}' that is at {}",
                    field.offset
                ),
            );
        }
        meta.map = Some(id);
        Ok(())
    }

    /// Lets the callback that was just put off sleep.
    pub(super) fn callback_may_sleep(&mut self) {
        if let Some(pending) = self.pending.last_mut() {
            pending.state.in_sleepable = true;
        }
    }

    /// Puts off a function that a task runs on its way out of the kernel.
    pub(super) fn put_off_task_work(&mut self, function: usize, map: Option<MapId>) -> Check {
        let Some(map) = map else {
            return no(Errno::EINVAL, "work without a map");
        };
        let mut args = [Reg::UNINIT; 5];
        args[0] = Reg::pointer(Type::Map(map));
        args[1] = Reg::pointer(Type::MapKey(map));
        args[2] = Reg::pointer(Type::MapValue(map));
        let returns = (i32::MIN.into(), i32::MAX.into());
        self.put_off_asynchronous(function, Callback { args, returns })
    }
}
