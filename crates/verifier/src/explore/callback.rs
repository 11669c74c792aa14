//! Functions that helpers call: during their own run (`bpf_loop`, `bpf_for_each_map_elem` ...), or
//! later (timers).
//!
//! A helper's call is walked as often as necessary: each time the callback is put off as a further
//! path that comes back to the call, until its states are alike (`push_callback_call`).

use beeline_isa::Op;
use beeline_uapi::{Errno, HelperId, MapType};

use super::{Check, Explorer, no};
use crate::program::Program;
use crate::state::{DynptrKind, Flags, Frame, MapId, Reg, Type};

/// Returns whether this calls functions of the program during its own run.
pub(super) fn is_synchronous(program: &Program<'_>, op: &Op) -> bool {
    match op {
        Op::CallHelper { id } => {
            matches!(
                *id,
                HelperId::FOR_EACH_MAP_ELEM
                    | HelperId::FIND_VMA
                    | HelperId::LOOP
                    | HelperId::USER_RINGBUF_DRAIN
            )
        }
        Op::CallKernel { btf_id } => super::kernel_call::calls_back(program, *btf_id),
        _ => false,
    }
}

/// Returns whether this has a function of the program called later.
pub(super) fn is_asynchronous(program: &Program<'_>, op: &Op) -> bool {
    match op {
        Op::CallHelper { id } => *id == HelperId::TIMER_SET_CALLBACK,
        Op::CallKernel { btf_id } => super::kernel_call::calls_back_later(program, *btf_id),
        _ => false,
    }
}

/// The arguments of a callback, and the values that it may return.
#[derive(Debug, Clone, Copy)]
pub(super) struct Callback {
    /// r1 to r5.
    pub args: [Reg; 5],
    pub returns: (i64, i64),
}

impl Callback {
    fn of(args: &[Reg], returns: (i64, i64)) -> Self {
        let mut all = [Reg::UNINIT; 5];
        all[..args.len()].copy_from_slice(args);
        Self { args: all, returns }
    }
}

impl Explorer<'_> {
    /// Handles the call of a helper that takes a function; `map` is the map that it was given, if
    /// any.
    pub(super) fn call_back(
        &mut self,
        helper: HelperId,
        function: usize,
        map: Option<MapId>,
    ) -> Check {
        let regs = self.cur.frame().regs;
        let number = Reg::UNKNOWN;
        let map = map.unwrap_or(MapId {
            index: 0,
            inner: false,
            unique: 0,
        });
        match helper {
            HelperId::LOOP => {
                self.mark_precise(1)?;
                let done = u64::from(self.cur.frame().callback_depth) >= regs[1].var.wide.umax;
                if done {
                    self.cur.frame_mut().callback_depth = 0;
                    return Ok(());
                }
                self.put_off_callback(function, Callback::of(&[number, regs[3]], (0, 1)))
            }
            HelperId::FOR_EACH_MAP_ELEM => {
                // The only type here without `map_set_for_each_callback_args`.
                if self.program.map(map).map_type == MapType::LPM_TRIE {
                    return no(Errno::ENOTSUPP, "callback function not allowed for map");
                }
                let args = [
                    Reg::pointer(Type::Map(map)),
                    Reg::pointer(Type::MapKey(map)),
                    Reg::pointer(Type::MapValue(map)),
                    regs[3],
                ];
                self.put_off_callback(function, Callback::of(&args, (0, 1)))
            }
            HelperId::FIND_VMA => {
                let task = regs[1];
                let area = self.structure("vm_area_struct");
                let args = [task, Reg::pointer(Type::Btf(area)), regs[4]];
                self.put_off_callback(function, Callback::of(&args, (0, 1)))
            }
            HelperId::USER_RINGBUF_DRAIN => {
                let id = self.fresh_id();
                let record = Reg {
                    id,
                    ..Reg::pointer(Type::Dynptr(DynptrKind::Local)).flagged(Flags::RDONLY)
                };
                self.put_off_callback(function, Callback::of(&[record, regs[3]], (0, 1)))
            }
            HelperId::TIMER_SET_CALLBACK => {
                let args = [
                    Reg::pointer(Type::Map(timer_map(&regs[1]))),
                    Reg::pointer(Type::MapKey(timer_map(&regs[1]))),
                    Reg::pointer(Type::MapValue(timer_map(&regs[1]))),
                ];
                self.put_off_asynchronous(function, Callback::of(&args, (0, 0)))
            }
            _ => no(Errno::EINVAL, "kernel subsystem misconfigured verifier"),
        }
    }

    pub(super) fn put_off_callback(&mut self, function: usize, callback: Callback) -> Check {
        let start = self.flow.functions()[function].start;
        let insn = self.insn;
        self.cur.frame_mut().callback_depth += 1;
        let state = self.put_off(start)?;
        super::call::enter(state, function, insn)?;
        state.callback_unroll_depth += 1;
        let frame = state.frame_mut();
        frame.regs[1..=5].copy_from_slice(&callback.args);
        frame.in_callback = true;
        frame.callback_returns = callback.returns;
        self.cur.frame_mut().callback_depth = 0;
        Ok(())
    }

    /// Implements `push_async_cb`: the state when it runs is unknown, and the paths before it
    /// continue without it.
    pub(super) fn put_off_asynchronous(&mut self, function: usize, callback: Callback) -> Check {
        self.async_callbacks[function] = true;
        let start = self.flow.functions()[function].start;
        let mut frame = Frame::new(None, function, 0);
        frame.regs[1..=5].copy_from_slice(&callback.args);
        frame.in_callback = true;
        frame.in_async_callback = true;
        frame.async_entry = self.cur.frame().async_entry + 1;
        frame.callback_returns = callback.returns;
        self.put_off_alone(start, frame)?;
        Ok(())
    }

    fn structure(&self, name: &str) -> u32 {
        let kernel = self.program.kernel;
        kernel
            .and_then(|kernel| kernel.structure(name))
            .unwrap_or(0)
    }
}

/// Returns the map with the value that contains the timer.
fn timer_map(reg: &Reg) -> MapId {
    match reg.kind {
        Type::MapValue(map) | Type::Map(map) => map,
        _ => MapId {
            index: 0,
            inner: false,
            unique: 0,
        },
    }
}
