//! Sections of a program in which it may not sleep, and the objects that are safe only in them:
//! RCU, no preemption, no interrupts, and resilient spin locks.

use beeline_uapi::Errno;

use super::super::{Check, Explorer, no};
use super::Call;
use super::iterators::{Place, lines};
use crate::program::FieldKind;
use crate::state::{Byte, Flags, HeldKind, LockPlace, Object, Reg, Slot, Type};
use crate::types::kernel_functions::flags;

impl Explorer<'_> {
    /// Begins or ends a section; functions that may sleep are refused in all of them.
    pub(super) fn pass_sections(&mut self, call: &Call<'_>) -> Check {
        self.pass_rcu(call)?;
        let name = call.function.name;
        let sleeps = call.has(flags::SLEEPABLE);
        match name {
            "bpf_preempt_disable" => self.cur.preempt += 1,
            "bpf_preempt_enable" if self.cur.preempt == 0 => {
                return no(
                    Errno::EINVAL,
                    format!("unmatched attempt to enable preemption (kernel function {name})"),
                );
            }
            "bpf_preempt_enable" => self.cur.preempt -= 1,
            _ if sleeps && self.cur.preempt > 0 => {
                return no(
                    Errno::EACCES,
                    format!("kernel func {name} is sleepable within non-preemptible region"),
                );
            }
            _ => {}
        }
        if sleeps && self.cur.irq_id != 0 {
            return no(
                Errno::EACCES,
                format!("kernel func {name} is sleepable within IRQ-disabled region"),
            );
        }
        if call.has(flags::RCU_PROTECTED) && !self.in_rcu() {
            return no(
                Errno::EACCES,
                format!("kernel func {name} requires RCU critical section protection"),
            );
        }
        Ok(())
    }

    fn pass_rcu(&mut self, call: &Call<'_>) -> Check {
        let name = call.function.name;
        let (lock, unlock) = (call.is("bpf_rcu_read_lock"), call.is("bpf_rcu_read_unlock"));
        let inside = self.cur.rcu > 0;
        if inside && (lock || unlock) && self.in_tree_callback() {
            return no(
                Errno::EACCES,
                "Calling bpf_rcu_read_{lock,unlock} in unnecessary rbtree callback",
            );
        }
        if lock && inside {
            return no(
                Errno::EINVAL,
                format!("nested rcu read lock (kernel function {name})"),
            );
        }
        if unlock && !inside {
            return no(
                Errno::EINVAL,
                format!("unmatched rcu read unlock (kernel function {name})"),
            );
        }
        if inside && call.has(flags::SLEEPABLE) {
            return no(
                Errno::EACCES,
                format!("kernel func {name} is sleepable within rcu_read_lock region"),
            );
        }
        if lock {
            self.cur.rcu = 1;
        } else if unlock {
            self.cur.rcu = 0;
            self.end_rcu();
        }
        Ok(())
    }

    /// Ends an RCU section: objects that were safe in it are no longer trusted.
    fn end_rcu(&mut self) {
        let end = |reg: &mut Reg| {
            if reg.flags.has(Flags::RCU) {
                let flags = reg.flags.without(Flags::RCU.with(Flags::MAYBE_NULL));
                reg.flags = flags.with(Flags::UNTRUSTED);
            }
        };
        self.cur.for_each_reg(end);
        for frame in &mut self.cur.frames {
            for slot in &mut frame.stack {
                if matches!(slot.object, Object::Iter { .. }) {
                    end(&mut slot.reg);
                }
            }
        }
    }

    /// Checks the state of interrupts, which is kept on the stack until it is restored
    /// (`process_irq_flag`).
    pub(super) fn irq_flag_argument(&mut self, call: &Call<'_>, number: u8) -> Check {
        let reg = *self.cur.reg(number);
        let arg = number - 1;
        if !matches!(reg.kind, Type::Stack(_)) {
            return no(
                Errno::EINVAL,
                format!("arg#{arg} doesn't point to an irq flag on stack"),
            );
        }
        let of_lock = call.function.name.starts_with("bpf_res_spin_");
        if call.function.name.ends_with("save") {
            let expected = format!("expected uninitialized irq flag as arg#{arg}");
            let room = self.make_room(number, ("irq_flag", 1), Byte::IrqFlag, &expected)?;
            self.save_irq(room, of_lock);
            return Ok(());
        }
        let expected = format!("expected an initialized irq flag as arg#{arg}");
        match self.object_place(&reg, "irq_flag", 1) {
            Ok(Place::At(frame, slot)) => self.restore_irq(frame, slot, arg, of_lock),
            Ok(Place::Beyond) => no(Errno::EINVAL, expected),
            Err(why) => no(Errno::EINVAL, lines(&why, &expected)),
        }
    }

    fn save_irq(&mut self, (frame, slot): (usize, usize), of_lock: bool) {
        let id = self.fresh_id();
        self.cur.hold(HeldKind::Irq, id, self.insn, LockPlace::None);
        self.cur.irq_id = id;
        self.cur.frames[frame].stack[slot] = Slot {
            bytes: [Byte::IrqFlag; 8],
            reg: Reg {
                ref_id: id,
                ..Reg::UNINIT
            },
            object: Object::IrqFlag { of_lock },
        };
        self.stack_liveness.write(frame, slot);
    }

    fn restore_irq(&mut self, frame: usize, slot: usize, arg: u8, of_lock: bool) -> Check {
        let content = self.cur.frames[frame].stack[slot];
        let (Object::IrqFlag { of_lock: by_lock }, true) = (
            content.object,
            content.bytes == [Byte::IrqFlag; 8] && content.reg.ref_id != 0,
        ) else {
            return no(
                Errno::EINVAL,
                format!("expected an initialized irq flag as arg#{arg}"),
            );
        };
        self.stack_liveness.read(frame, slot);
        if by_lock != of_lock {
            let class = |of_lock| if of_lock { "lock" } else { "native" };
            return no(
                Errno::EINVAL,
                format!(
                    "irq flag acquired by {} kfuncs cannot be restored with {} kfuncs",
                    class(by_lock),
                    class(of_lock)
                ),
            );
        }
        let id = content.reg.ref_id;
        let held = self.cur.held.iter();
        if id != self.cur.irq_id {
            let last = self.cur.irq_id;
            let place = held
                .filter(|held| held.id == last)
                .map(|held| held.insn)
                .next_back();
            return no(
                Errno::EACCES,
                format!(
                    "cannot restore irq state out of order, expected id={last} acquired at insn_idx={}",
                    place.map_or(-1, |insn| insn as i64)
                ),
            );
        }
        self.cur.drop_held(HeldKind::Irq, id);
        let outer = self.cur.held.iter().rev();
        let outer = outer
            .filter(|held| held.kind == HeldKind::Irq)
            .map(|held| held.id)
            .next();
        self.cur.irq_id = outer.unwrap_or(0);
        self.clear_object(frame, slot, 1);
        Ok(())
    }

    /// Puts off the failure of a resilient lock: then r0 has the reason, and nothing is held.
    pub(super) fn put_off_failed_lock(&mut self) -> Check {
        let next = self.insn + 1;
        let state = self.put_off(next)?;
        state.frame_mut().regs[..=5].fill(Reg::UNINIT);
        let mut why = Reg::UNKNOWN;
        (why.var.wide.smin, why.var.wide.smax) = (-i64::from(Errno::MAX), -1);
        (why.var.narrow.smin, why.var.narrow.smax) = (-Errno::MAX, -1);
        why.var.sync();
        *state.reg_mut(0) = why;
        Ok(())
    }

    /// Implements `process_spin_lock` for a resilient lock.
    pub(super) fn resilient_lock_argument(&mut self, call: &Call<'_>, number: u8) -> Check {
        let reg = *self.cur.reg(number);
        let is_object = reg.is_allocated_object() && reg.flags == Flags::ALLOC;
        let plain_value = matches!(reg.kind, Type::MapValue(_)) && reg.flags == Flags::NONE;
        if !plain_value && !is_object {
            return no(
                Errno::EINVAL,
                format!(
                    "arg#{} doesn't point to map value or allocated object",
                    number - 1
                ),
            );
        }
        let place = self.lock_place(number, &reg, FieldKind::ResilientSpinLock)?;
        let name = call.function.name;
        let kind = if name.contains("irq") {
            HeldKind::ResilientLockIrq
        } else {
            HeldKind::ResilientLock
        };
        let is_this = |held: &&crate::state::Held| held.id == reg.id && held.place == place;
        if !name.contains("unlock") {
            let again = self.cur.held.iter().filter(is_this).any(|held| {
                matches!(
                    held.kind,
                    HeldKind::ResilientLock | HeldKind::ResilientLockIrq
                )
            });
            if again {
                return no(
                    Errno::EINVAL,
                    "Acquiring the same lock again, AA deadlock detected",
                );
            }
            self.cur.locks += 1;
            self.cur.hold(kind, reg.id, self.insn, place);
            return Ok(());
        }
        if self.cur.locks == 0 {
            return no(Errno::EINVAL, "bpf_res_spin_unlock without taking a lock");
        }
        let held = &self.cur.held;
        if !held.iter().filter(is_this).any(|held| held.kind == kind) {
            return no(Errno::EINVAL, "bpf_res_spin_unlock of different lock");
        }
        let last = held.iter().rev().find(|held| held.kind.is_lock());
        if !last.as_ref().is_some_and(is_this) {
            return no(Errno::EINVAL, "bpf_res_spin_unlock cannot be out of order");
        }
        self.cur.drop_held(kind, reg.id);
        self.cur.locks -= 1;
        self.forget_pointers(Reg::is_non_owning);
        Ok(())
    }
}
