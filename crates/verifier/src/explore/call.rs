//! Calls of the program's own functions (`check_func_call`).

use beeline_isa::Op;
use beeline_uapi::Errno;
use beeline_uapi::limits::MAX_CALL_FRAMES;

use super::{Check, Explorer, Next, kernel_call, no};
use crate::flow::Flow;
use crate::program::Program;
use crate::state::{Flags, Frame, Reg, State, Type};
use crate::types::FunctionArg;

impl Explorer<'_> {
    pub(super) fn call_local(&mut self) -> Check<Next> {
        let callee = self.flow.callee(self.insn);
        let Some(function) = callee.and_then(|start| self.flow.function_at(start)) else {
            return no(Errno::EINVAL, format!("invalid insn idx {}", self.insn));
        };
        if self.is_global(function) {
            return self.call_global(function);
        }
        let regs = self.cur.frame().regs;
        let insn = self.insn;
        let mut cur = self.take_state();
        let entered = enter(&mut cur, function, insn);
        self.cur = cur;
        entered?;
        self.cur.frame_mut().regs[1..=5].copy_from_slice(&regs[1..=5]);
        self.forget_caller_saved(self.cur.depth() - 1);
        self.enter_instance();
        self.print_call();
        Ok(Next::Insn(self.flow.functions()[function].start))
    }

    /// Calls a global function. It is verified by itself, so only its arguments are checked here.
    fn call_global(&mut self, function: usize) -> Check<Next> {
        let name = self.function_name(function);
        if self.cur.locks > 0 {
            return no(
                Errno::EINVAL,
                "global function calls are not allowed while holding a lock,\nuse static function instead",
            );
        }
        self.check_sleep(function)?;
        if let Err(why) = self.check_global_arguments(function) {
            let why = format!(
                "{}\nCaller passes invalid args into func#{function} ('{name}')",
                why.why
            );
            return no(Errno::EINVAL, why);
        }
        let changes_packet = self.changes_packet(function);
        self.called[function] = true;
        if changes_packet {
            self.forget_packet_pointers();
        }
        let depth = self.cur.depth();
        self.forget_caller_saved(depth);
        *self.cur.reg_mut(0) = Reg::UNKNOWN;
        Ok(Next::Insn(self.insn + 1))
    }

    /// Implements `btf_check_func_arg_match`.
    fn check_global_arguments(&mut self, function: usize) -> Check {
        let start = self.flow.functions()[function].start;
        let types = self.program.types;
        let Some(described) = types.and_then(|types| types.function(start)) else {
            return Ok(());
        };
        let args = match &described.args {
            Ok(args) => args,
            Err((errno, why)) => return no(*errno, why.clone()),
        };
        for (number, arg) in (1_u8..).zip(args) {
            self.check_global_argument(number, *arg)?;
        }
        Ok(())
    }

    fn check_global_argument(&mut self, number: u8, arg: FunctionArg) -> Check {
        self.read_reg(number)?;
        let reg = *self.cur.reg(number);
        match arg {
            FunctionArg::Scalar if reg.is_scalar() => Ok(()),
            FunctionArg::Scalar => no(Errno::EINVAL, format!("R{number} is not a scalar")),
            FunctionArg::Context => {
                if reg.kind != Type::Context {
                    return no(
                        Errno::EINVAL,
                        format!("arg#{} expects pointer to ctx", number - 1),
                    );
                }
                self.check_no_offset(&reg, number, false)
            }
            FunctionArg::Mem { bytes, or_null } => {
                if or_null && reg.is_null() {
                    return Ok(());
                }
                if !or_null && reg.may_be_null() {
                    return no(
                        Errno::EINVAL,
                        format!("arg#{} is expected to be non-NULL", number - 1),
                    );
                }
                self.check_memory_argument(number, bytes)
            }
            FunctionArg::UntrustedMem => Ok(()),
            FunctionArg::Dynptr => self.check_dynptr_argument(number),
            FunctionArg::Arena if matches!(reg.kind, Type::Arena | Type::Scalar) => Ok(()),
            FunctionArg::Arena => no(
                Errno::EINVAL,
                format!("R{number} is not a pointer to arena or scalar."),
            ),
            FunctionArg::Btf {
                btf_id,
                or_null,
                trusted,
            } => {
                if or_null && reg.is_null() {
                    return Ok(());
                }
                let good = matches!(reg.kind, Type::Btf(_))
                    && (or_null || !reg.may_be_null())
                    && (!trusted || reg.is_trusted() || reg.flags.has(Flags::RCU));
                if !good {
                    return no(
                        Errno::EINVAL,
                        format!("R{number} is not a pointer to BTF ID"),
                    );
                }
                self.check_structure(number, &reg, btf_id, false)
            }
        }
    }

    /// Implements `check_mem_reg`: the memory must be readable and writable.
    pub(super) fn check_memory_argument(&mut self, number: u8, bytes: u32) -> Check {
        let saved = *self.cur.reg(number);
        if saved.is_null() {
            return Ok(());
        }
        if saved.may_be_null() {
            let mut reg = saved;
            self.not_null(&mut reg);
            *self.cur.reg_mut(number) = reg;
        }
        let outcome = self
            .helper_memory(number, bytes, false, true, false)
            .and_then(|_| self.helper_memory(number, bytes, true, true, false));
        *self.cur.reg_mut(number) = saved;
        outcome.map(|_| ())
    }

    /// Returns whether a function changes packets, itself or through its callees
    /// (`changes_pkt_data`).
    fn changes_packet(&mut self, function: usize) -> bool {
        if let Some(known) = self.globals[function].changes_packet {
            return known;
        }
        let changes = changes_packet(self.program, self.flow, function);
        self.globals[function].changes_packet = Some(changes);
        changes
    }

    /// Checks that a function that may sleep (`might_sleep`) is called where sleeping is allowed.
    fn check_sleep(&mut self, function: usize) -> Check {
        let state = &self.cur;
        let may = state.in_sleepable && state.rcu == 0 && state.preempt == 0 && state.irq_id == 0;
        if may || !self.might_sleep(function) {
            return Ok(());
        }
        no(
            Errno::EINVAL,
            "global functions that may sleep are not allowed in non-sleepable context,\n\
             i.e., in a RCU/IRQ/preempt-disabled section, or in\n\
             a non-sleepable BPF program context",
        )
    }

    fn might_sleep(&mut self, function: usize) -> bool {
        if let Some(known) = self.globals[function].might_sleep {
            return known;
        }
        let sleeps = calls_any(self.flow, function, |op| match op {
            Op::CallHelper { id } => crate::helpers::helper(id, &self.program.kind, None)
                .is_ok_and(|helper| helper.might_sleep),
            Op::CallKernel { btf_id } => kernel_call::might_sleep(self.program, btf_id),
            _ => false,
        });
        self.globals[function].might_sleep = Some(sleeps);
        sleeps
    }

    /// Voids r0 to r5 of a frame after a call.
    pub(super) fn forget_caller_saved(&mut self, frame: usize) {
        self.cur.frames[frame].regs[..=5].fill(Reg::UNINIT);
    }
}

/// Returns whether a function changes packets, itself or through its callees (`changes_pkt_data`).
pub(crate) fn changes_packet(program: &Program<'_>, flow: &Flow, function: usize) -> bool {
    calls_any(flow, function, |op| match op {
        Op::CallHelper { id } => crate::helpers::helper(id, &program.kind, None)
            .is_ok_and(|helper| helper.changes_packet),
        Op::CallKernel { btf_id } => kernel_call::changes_packet(program, btf_id),
        _ => false,
    })
}

/// Returns whether there is such a call in a function, or in its callees.
fn calls_any(flow: &Flow, function: usize, is_it: impl Fn(Op) -> bool) -> bool {
    let mut seen = vec![false; flow.functions().len()];
    let mut pending = vec![function];
    while let Some(next) = pending.pop() {
        if std::mem::replace(&mut seen[next], true) {
            continue;
        }
        for (index, op) in flow.reachable_ops(flow.functions()[next]) {
            if is_it(op) {
                return true;
            }
            let callee = flow.callee(index);
            pending.extend(callee.and_then(|start| flow.function_at(start)));
        }
    }
    false
}

/// Enters a new frame (`setup_func_entry`).
pub(super) fn enter(state: &mut State, function: usize, callsite: usize) -> Check {
    let depth = state.frames.len();
    if depth >= MAX_CALL_FRAMES {
        return no(
            Errno::E2BIG,
            format!("the call stack of {} frames is too deep", depth + 1),
        );
    }
    state
        .frames
        .push(Frame::new(Some(callsite), function, depth as u8));
    Ok(())
}
