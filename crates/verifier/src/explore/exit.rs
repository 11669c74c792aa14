//! The end of a function, a callback or the program (`prepare_func_exit`, `check_return_code`,
//! `check_resource_leak`).

use beeline_uapi::{AttachType, Errno, ProgramType};

use super::state_text::type_name;
use super::{Check, Explorer, Next, no};
use crate::context::returns::{Returns, not_a_number, out_of_range, returns};
use crate::state::{HeldKind, Reg, Type};
use crate::types::{self, ParamType};

impl Explorer<'_> {
    pub(super) fn exit(&mut self, what: &str) -> Check<Next> {
        let outermost = self.cur.depth() == 0;
        self.check_nothing_is_held(outermost, what)?;
        if !outermost {
            return self.back_to_caller().map(Next::Insn);
        }
        self.check_program_result(0)?;
        Ok(Next::End)
    }

    /// Checks that everything taken has been given back.
    pub(super) fn check_nothing_is_held(&self, locks_too: bool, what: &str) -> Check {
        // An operation of a structure may hand an object back to the kernel.
        let handed_back = match self.program.kind.prog_type {
            ProgramType::STRUCT_OPS => self.cur.reg(0).ref_id,
            _ => 0,
        };
        let objects_too = self.cur.depth() == 0;
        self.check_held(locks_too, objects_too, handed_back, what)
    }

    /// Checks the same at a throw: an exception ends all functions at once.
    pub(super) fn check_nothing_is_held_at_throw(&self) -> Check {
        self.check_held(true, true, 0, "bpf_throw")
    }

    fn check_held(
        &self,
        locks_too: bool,
        objects_too: bool,
        handed_back: u32,
        what: &str,
    ) -> Check {
        let state = &self.cur;
        if locks_too && state.locks > 0 {
            return no(
                Errno::EINVAL,
                format!("{what} cannot be used inside bpf_spin_lock-ed region"),
            );
        }
        let lost = state.held.iter().filter(|held| {
            held.kind == HeldKind::Object && (handed_back == 0 || held.id != handed_back)
        });
        let mut lines: Vec<String> = lost
            .map(|held| {
                format!(
                    "Unreleased reference id={} alloc_insn={}\n{what} would lead to reference leak",
                    held.id, held.insn
                )
            })
            .collect();
        if objects_too && !lines.is_empty() {
            lines.push(format!("{what} would lead to reference leak"));
            return no(Errno::EINVAL, lines.join("\n"));
        }
        if !locks_too {
            return Ok(());
        }
        if state.irq_id != 0 {
            return no(
                Errno::EINVAL,
                format!("{what} cannot be used inside bpf_local_irq_save-ed region"),
            );
        }
        if state.rcu > 0 {
            return no(
                Errno::EINVAL,
                format!("{what} cannot be used inside bpf_rcu_read_lock-ed region"),
            );
        }
        if state.preempt > 0 {
            return no(
                Errno::EINVAL,
                format!("{what} cannot be used inside bpf_preempt_disable-ed region"),
            );
        }
        Ok(())
    }

    /// Handles an instruction that may end a function with `result`, or continue; a program that
    /// ends there is done.
    pub(super) fn return_early(&mut self, result: Reg, changes_packet: bool) -> Check<Next> {
        let next = self.insn + 1;
        if self.cur.depth() == 0 {
            return Ok(Next::Insn(next));
        }
        self.put_off(next)?;
        if changes_packet {
            self.forget_packet_pointers();
        }
        *self.cur.reg_mut(0) = result;
        self.back_to_caller().map(Next::Insn)
    }

    fn back_to_caller(&mut self) -> Check<usize> {
        let result = *self.cur.reg(0);
        if matches!(result.kind, Type::Stack(_)) {
            return no(Errno::EINVAL, "cannot return stack pointer to the caller");
        }
        let is_callback = self.cur.frame().in_callback;
        if is_callback {
            if !result.is_scalar() {
                return no(Errno::EACCES, "R0 not a scalar value");
            }
            self.mark_precise(0)?;
            let (least, most) = self.cur.frame().callback_returns;
            self.check_within(0, &result, (least, most), "At callback return", false)?;
        }
        self.update_alive();
        let last_state = if self.log.level.paths() {
            self.state_text()
        } else {
            String::new()
        };
        let Some(callee) = self.cur.frames.pop() else {
            return no(Errno::EINVAL, "no frame");
        };
        let callsite = callee.callsite.unwrap_or(0);
        if !is_callback {
            *self.cur.reg_mut(0) = result;
        }
        self.enter_instance();
        self.print_return(&last_state, callsite + usize::from(!is_callback));
        if !is_callback {
            return Ok(callsite + 1);
        }
        if let Some(earlier) = self.earlier_turn(callsite, self.cur.dfs_depth) {
            let mut cur = self.take_state();
            super::equal::widen(self.explored.state(earlier), &mut cur);
            self.cur = cur;
        }
        Ok(callsite)
    }

    /// Checks the result of the program, of a global function, or of the function that runs when
    /// the program throws.
    pub(super) fn check_program_result(&mut self, register: u8) -> Check {
        let frame = &self.cur.frames[0];
        let (function, in_callback) = (frame.function, frame.in_async_callback);
        let callback_returns = frame.callback_returns;
        let ends_program = function == 0 || self.exception_callback() == Some(function);
        if ends_program && self.check_hook_result(register)? {
            return Ok(());
        }
        self.read_reg(register)?;
        let result = *self.cur.reg(register);
        if in_callback {
            let (least, most) = callback_returns;
            self.mark_precise(register)?;
            if !result.is_scalar() {
                let name = type_name(&result);
                return no(
                    Errno::EINVAL,
                    format!(
                        "In async callback the register R{register} is not a known value ({name})"
                    ),
                );
            }
            let range = (least, most);
            let what = "At async callback return";
            return self.check_within(register, &result, range, what, false);
        }
        if !ends_program {
            let start = self.flow.functions()[function].start;
            let described = self.program.types.and_then(|types| types.function(start));
            let void = described.is_some_and(|function| function.returns == types::Returns::Void);
            if void || result.is_scalar() {
                return Ok(());
            }
            let name = type_name(&result);
            return no(
                Errno::EINVAL,
                format!(
                    "At subprogram exit the register R{register} is not a scalar value ({name})"
                ),
            );
        }
        let range = match returns(&self.program.kind) {
            Returns::Anything => return Ok(()),
            Returns::ByHook => match self.hook_returns() {
                Some(range) => range,
                None => return Ok(()),
            },
            Returns::NotSupported => {
                return no(Errno::ENOTSUPP, "");
            }
            Returns::Within(range) => range,
        };
        if !result.is_scalar() {
            let name = type_name(&result);
            return no(
                Errno::EINVAL,
                not_a_number("At program exit", register, &name),
            );
        }
        self.mark_precise(register)?;
        let range = (i64::from(*range.start()), i64::from(*range.end()));
        let kind = &self.program.kind;
        let low_half =
            kind.prog_type == ProgramType::LSM && kind.attach_type != AttachType::LSM_CGROUP;
        self.check_within(register, &result, range, "At program exit", low_half)
    }

    /// Checks the result for a hook. Returns `true` if the kernel does not check it, or if it is an
    /// object that the hook is to return.
    fn check_hook_result(&self, register: u8) -> Check<bool> {
        let kind = &self.program.kind;
        let of_structure = kind.prog_type == ProgramType::STRUCT_OPS;
        let of_hook =
            kind.prog_type == ProgramType::LSM && kind.attach_type != AttachType::LSM_CGROUP;
        if !of_structure && !of_hook {
            return Ok(false);
        }
        let reg = *self.cur.reg(register);
        match self.hook_result() {
            Some(ParamType::Void) => Ok(true),
            Some(ParamType::Structure { btf_id, .. })
                if of_structure && reg.kind == Type::Btf(btf_id) && reg.ref_id != 0 =>
            {
                self.check_no_offset(&reg, register, false)?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    fn hook_result(&self) -> Option<ParamType> {
        self.program.kernel?.hook_result(&self.program.kind)
    }

    /// Returns the range for programs that hook functions of the kernel; `None` for anything
    /// (`bpf_lsm_get_retval_range`).
    pub(super) fn hook_returns(&self) -> Option<std::ops::RangeInclusive<i32>> {
        const BOOLEAN: [&str; 2] = ["bpf_lsm_audit_rule_known", "bpf_lsm_inode_xattr_skipcap"];
        let kind = &self.program.kind;
        let result = self.hook_result()?;
        let is_void = result == ParamType::Void;
        match (kind.prog_type, kind.attach_type) {
            (ProgramType::LSM, AttachType::LSM_CGROUP) if is_void => Some(1..=1),
            (ProgramType::LSM, AttachType::LSM_CGROUP) => Some(0..=1),
            (ProgramType::LSM, _) => {
                let name = self.target_name().unwrap_or_default();
                let boolean = BOOLEAN.contains(&name);
                Some(if boolean { 0..=1 } else { -Errno::MAX..=0 })
            }
            // A pointer is null, unless it is an object that is handed back.
            _ if is_void || matches!(result, ParamType::Number { .. } | ParamType::Other) => None,
            _ => Some(0..=0),
        }
    }

    /// Implements `retval_range_within`.
    fn check_within(
        &self,
        register: u8,
        result: &Reg,
        (least, most): (i64, i64),
        where_: &str,
        low_half: bool,
    ) -> Check {
        let (smin, smax) = if low_half {
            (result.var.narrow.smin.into(), result.var.narrow.smax.into())
        } else {
            (result.var.wide.smin, result.var.wide.smax)
        };
        if least <= smin && smax <= most {
            return Ok(());
        }
        let range = least as i32..=most as i32;
        no(
            Errno::EINVAL,
            out_of_range(where_, register, smin, smax, &range),
        )
    }
}
