//! Checks the stack of every chain of calls (`check_max_stack_depth`).

use std::collections::{BTreeMap, BTreeSet};

use beeline_isa::{Op, STACK_BYTES};
use beeline_uapi::limits::{BPF_PRIV_STACK_MIN_SIZE, MAX_CALL_FRAMES, MAX_STACK_ABOVE_TAIL_CALL};
use beeline_uapi::{Errno, HelperId, ProgramType};

use super::{Check, no};
use crate::flow::Flow;
use crate::program::Program;

/// `MAX_BPF_STACK`.
const MOST: u32 = STACK_BYTES.unsigned_abs();
const TAIL_CALL: Op = Op::CallHelper {
    id: HelperId::TAIL_CALL,
};

/// The chains of calls of a program that was walked, and the stack that each one takes.
pub(super) struct CallChains<'a> {
    pub program: &'a Program<'a>,
    pub flow: &'a Flow,
    /// The bytes of stack, by function.
    pub stack_bytes: &'a [u32],
    /// The functions that are callbacks of timers and the like.
    pub async_callbacks: &'a [bool],
    /// The function that runs when the program throws.
    pub exception_callback: Option<usize>,
}

impl CallChains<'_> {
    /// Checks chain by chain, all of one length at once: for a function, only the largest stack
    /// above it matters.
    pub(super) fn check(&self) -> Check {
        let functions = self.flow.functions().len();
        self.check_callbacks_do_not_throw()?;
        self.check_exceptions_are_not_called()?;
        let tail_calls: Vec<bool> = (0..functions).map(|it| self.has_tail_call(it)).collect();
        let private = !tail_calls.contains(&true) && has_private_stack(self.program.kind.prog_type);
        let callees: Vec<BTreeSet<usize>> = (0..functions).map(|it| self.callees(it)).collect();
        let exception_callback = self.exception_callback;
        if exception_callback.is_some_and(|it| self.reaches_tail_call(it)) {
            return no(Errno::EINVAL, "cannot tail call within exception cb");
        }
        let starts = (0..functions)
            .filter(|&it| it == 0 || self.async_callbacks[it] || exception_callback == Some(it));
        let mut chains: BTreeMap<usize, u32> = starts.map(|start| (start, 0)).collect();
        for frames in 1.. {
            let mut longer = BTreeMap::new();
            for (&function, &above) in &chains {
                if function != 0 && tail_calls[function] && above >= MAX_STACK_ABOVE_TAIL_CALL {
                    return no(
                        Errno::EACCES,
                        format!(
                            "tail_calls are not allowed when call stack of previous frames is {above} bytes. Too large"
                        ),
                    );
                }
                let depth = self.depth_with(function, above, frames, private)?;
                for &callee in &callees[function] {
                    let deepest = longer.entry(callee).or_insert(0);
                    *deepest = depth.max(*deepest);
                }
            }
            if longer.is_empty() {
                break;
            }
            if frames >= MAX_CALL_FRAMES {
                return no(
                    Errno::E2BIG,
                    format!("the call stack of {} frames is too deep !", frames),
                );
            }
            chains = longer;
        }
        Ok(())
    }

    /// Checks that no callee of a callback throws: the exception would go through the helper that
    /// called back.
    fn check_callbacks_do_not_throw(&self) -> Check {
        let functions = 0..self.flow.functions().len();
        let mut open: Vec<usize> = functions
            .flat_map(|function| self.flow.reachable_ops(self.flow.functions()[function]))
            .filter(|(_, op)| !matches!(op, Op::CallLocal { .. }))
            .filter_map(|(index, _)| self.flow.function_at(self.flow.callee(index)?))
            .chain(self.exception_callback)
            .collect();
        let mut seen = BTreeSet::new();
        while let Some(function) = open.pop() {
            if !seen.insert(function) {
                continue;
            }
            let mut ops = self.flow.reachable_ops(self.flow.functions()[function]);
            let throw = ops.find(|(_, op)| super::kernel_call::throws(self.program, op));
            if let Some((insn, _)) = throw {
                return no(
                    Errno::EINVAL,
                    format!(
                        "bpf_throw kfunc (insn {insn}) cannot be called from callback subprog {function}"
                    ),
                );
            }
            open.extend(self.callees(function));
        }
        Ok(())
    }

    /// Checks that the function which runs when the program throws is not called.
    fn check_exceptions_are_not_called(&self) -> Check {
        let Some(types) = self.program.types else {
            return Ok(());
        };
        let mut ops = (0..self.flow.functions().len())
            .flat_map(|function| self.flow.reachable_ops(self.flow.functions()[function]));
        let is_call = |insn: usize| {
            let callee = self.flow.callee(insn);
            callee.is_some_and(|start| types.is_exception_callback(start))
        };
        match ops.find(|&(insn, _)| is_call(insn)) {
            Some((insn, _)) => no(
                Errno::EINVAL,
                format!("insn {insn} cannot call exception cb directly"),
            ),
            None => Ok(()),
        }
    }

    fn reaches_tail_call(&self, function: usize) -> bool {
        let (mut open, mut seen) = (vec![function], BTreeSet::new());
        while let Some(function) = open.pop() {
            if self.has_tail_call(function) {
                return true;
            }
            if seen.insert(function) {
                open.extend(self.callees(function));
            }
        }
        false
    }

    /// Returns the stack with a function's own.
    fn depth_with(&self, function: usize, above: u32, frames: usize, private: bool) -> Check<u32> {
        let own = self.stack_bytes[function].next_multiple_of(16);
        if private && own >= BPF_PRIV_STACK_MIN_SIZE {
            if own <= MOST {
                return Ok(above);
            }
            return no(
                Errno::EACCES,
                format!("stack size of subprog {function} is {own}. Too large"),
            );
        }
        let depth = above + own;
        if depth <= MOST {
            return Ok(depth);
        }
        no(
            Errno::EACCES,
            format!("combined stack size of {frames} calls is {depth}. Too large"),
        )
    }

    /// Returns the functions that a function calls, itself or through a helper; callbacks that run
    /// later are not on its stack.
    fn callees(&self, function: usize) -> BTreeSet<usize> {
        let ops = self.flow.reachable_ops(self.flow.functions()[function]);
        ops.filter_map(|(index, op)| {
            let callee = self.flow.function_at(self.flow.callee(index)?)?;
            let called = matches!(op, Op::CallLocal { .. });
            (called || !self.async_callbacks[callee]).then_some(callee)
        })
        .collect()
    }

    fn has_tail_call(&self, function: usize) -> bool {
        let mut ops = self.flow.reachable_ops(self.flow.functions()[function]);
        ops.any(|(_, op)| op == TAIL_CALL)
    }
}

/// Returns whether functions of this type get stacks of their own on x86-64
/// (`bpf_enable_priv_stack`).
fn has_private_stack(prog_type: ProgramType) -> bool {
    matches!(
        prog_type,
        ProgramType::KPROBE
            | ProgramType::TRACEPOINT
            | ProgramType::PERF_EVENT
            | ProgramType::RAW_TRACEPOINT
            | ProgramType::RAW_TRACEPOINT_WRITABLE
    )
}
