//! The facts about a helper call's arguments that are known before the program runs.
//!
//! They come from one walk over each function, in the order of its slots. Where ways meet, only the
//! facts that all of them agree on are known; at the head of a loop nothing is. So the facts about
//! a call hold on every way to it.

use std::collections::{BTreeSet, HashMap};

use beeline_isa::{Alu, FRAME_POINTER, Imm64, Op, Operand, Size};
use beeline_uapi::HelperId;
use beeline_verifier::{Flow, Function};

/// The content of a register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// Anything.
    Nothing,
    /// This number.
    Number(u64),
    /// The map of this index.
    Map(u32),
    /// The function's frame pointer plus so many bytes.
    Stack(i32),
    /// Not an address of the stack.
    Elsewhere,
}

/// The facts where a helper is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arguments {
    registers: [Known; FRAME_POINTER as usize],
    stack: Stack,
}

impl Arguments {
    /// Returns the content of a register.
    pub fn register(&self, register: u8) -> Known {
        match self.registers.get(usize::from(register)) {
            Some(&known) => known,
            None => Known::Stack(0),
        }
    }

    /// Returns the map that a register holds.
    pub fn map(&self, register: u8) -> Option<u32> {
        match self.register(register) {
            Known::Map(map) => Some(map),
            _ => None,
        }
    }

    /// Returns the number that a register holds.
    pub fn number(&self, register: u8) -> Option<u64> {
        match self.register(register) {
            Known::Number(number) => Some(number),
            _ => None,
        }
    }

    /// Returns the number in the four bytes that a register points to.
    pub fn word_at(&self, register: u8) -> Option<u32> {
        match self.register(register) {
            Known::Stack(at) => self.stack.word(at),
            _ => None,
        }
    }

    fn nothing() -> Self {
        Self {
            registers: [Known::Nothing; FRAME_POINTER as usize],
            stack: Stack::default(),
        }
    }

    fn set(&mut self, register: u8, known: Known) {
        if let Some(place) = self.registers.get_mut(usize::from(register)) {
            *place = known;
        }
    }

    /// Keeps the facts that hold in both.
    fn meet(&mut self, other: &Self) {
        for (here, there) in self.registers.iter_mut().zip(other.registers) {
            if *here != there {
                *here = Known::Nothing;
            }
        }
        self.stack.meet(&other.stack);
    }

    /// Updates the facts for an operation.
    fn pass(&mut self, op: Op) {
        match op {
            Op::Store {
                size,
                dst,
                src,
                off,
            } => {
                let value = match src {
                    Operand::Imm(imm) => Known::Number(i64::from(imm).cast_unsigned()),
                    Operand::Reg(src) => self.register(src),
                };
                self.store(dst, off, size, value);
            }
            Op::StoreRelease { size, dst, off, .. } => self.store(dst, off, size, Known::Nothing),
            Op::Atomic { wide, dst, off, .. } => {
                let size = if wide { Size::B8 } else { Size::B4 };
                self.store(dst, off, size, Known::Nothing);
            }
            Op::CallHelper { id } => return self.call(Some(id)),
            Op::CallLocal { .. } | Op::CallKernel { .. } => return self.call(None),
            _ => {}
        }
        if let Some(register) = op.written() {
            self.set(register, self.result(op));
        }
    }

    /// Returns the content of the register that an operation, other than a call, writes.
    fn result(&self, op: Op) -> Known {
        match op {
            Op::Move { wide, src, .. } => {
                let value = match src {
                    Operand::Imm(imm) => Known::Number(i64::from(imm).cast_unsigned()),
                    Operand::Reg(src) => self.register(src),
                };
                match value {
                    Known::Number(number) if !wide => Known::Number(number & 0xffff_ffff),
                    value if wide => value,
                    _ => Known::Nothing,
                }
            }
            Op::Alu {
                op: Alu::Add,
                wide: true,
                dst,
                src: Operand::Imm(imm),
            } => match self.register(dst) {
                Known::Stack(at) => at.checked_add(imm).map_or(Known::Nothing, Known::Stack),
                Known::Number(number) => {
                    Known::Number(number.wrapping_add(i64::from(imm).cast_unsigned()))
                }
                Known::Elsewhere => Known::Elsewhere,
                _ => Known::Nothing,
            },
            Op::Imm64 { kind, low, .. } => match (kind, u32::try_from(low)) {
                (Imm64::Map, Ok(map)) => Known::Map(map),
                (Imm64::MapValue, _) => Known::Elsewhere,
                _ => Known::Nothing,
            },
            _ => Known::Nothing,
        }
    }

    fn store(&mut self, dst: u8, off: i16, size: Size, value: Known) {
        match self.register(dst) {
            Known::Stack(base) => match base.checked_add(off.into()) {
                Some(at) => self.stack.store(at, size, value),
                None => self.stack = Stack::default(),
            },
            Known::Elsewhere | Known::Map(_) => {}
            Known::Nothing | Known::Number(_) => self.stack = Stack::default(),
        }
    }

    fn call(&mut self, helper: Option<HelperId>) {
        let keeps_stack = helper.is_some_and(|id| LEAVE_STACK_ALONE.contains(&id));
        if !keeps_stack {
            self.stack = Stack::default();
        }
        for register in 0..=5 {
            self.set(register, Known::Nothing);
        }
        if helper.is_some_and(|id| GIVE_NO_STACK.contains(&id)) {
            self.set(0, Known::Elsewhere);
        }
    }
}

/// Helpers that write nothing to memory that a program may point them to.
const LEAVE_STACK_ALONE: [HelperId; 23] = [
    HelperId::MAP_LOOKUP_ELEM,
    HelperId::MAP_UPDATE_ELEM,
    HelperId::MAP_DELETE_ELEM,
    HelperId::KTIME_GET_NS,
    HelperId::TRACE_PRINTK,
    HelperId::GET_PRANDOM_U32,
    HelperId::GET_SMP_PROCESSOR_ID,
    HelperId::GET_CURRENT_PID_TGID,
    HelperId::GET_CURRENT_UID_GID,
    HelperId::PERF_EVENT_OUTPUT,
    HelperId::GET_STACKID,
    HelperId::GET_CURRENT_TASK,
    HelperId::GET_CURRENT_CGROUP_ID,
    HelperId::KTIME_GET_BOOT_NS,
    HelperId::RINGBUF_OUTPUT,
    HelperId::RINGBUF_RESERVE,
    HelperId::RINGBUF_SUBMIT,
    HelperId::RINGBUF_DISCARD,
    HelperId::RINGBUF_QUERY,
    HelperId::GET_FUNC_IP,
    HelperId::GET_ATTACH_COOKIE,
    HelperId::TRACE_VPRINTK,
    HelperId::MAP_LOOKUP_PERCPU_ELEM,
];
/// Helpers that return an address or null.
const GIVE_NO_STACK: [HelperId; 3] = [
    HelperId::MAP_LOOKUP_ELEM,
    HelperId::RINGBUF_RESERVE,
    HelperId::MAP_LOOKUP_PERCPU_ELEM,
];

/// Numbers on the stack: those stored last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Stack([Option<Stored>; 8]);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stored {
    /// The offset of the first byte from the frame pointer.
    at: i32,
    size: Size,
    value: u64,
}

impl Stored {
    fn end(&self) -> i32 {
        self.at.saturating_add(self.size.bytes().into())
    }
}

impl Stack {
    fn store(&mut self, at: i32, size: Size, value: Known) {
        let end = at.saturating_add(size.bytes().into());
        for place in &mut self.0 {
            if place.is_some_and(|stored| stored.at < end && at < stored.end()) {
                *place = None;
            }
        }
        if let Known::Number(value) = value {
            // The last place is free now, or its content is forgotten.
            let free = self.0.iter().position(Option::is_none);
            let place = free.unwrap_or(self.0.len() - 1);
            self.0[..=place].rotate_right(1);
            self.0[0] = Some(Stored { at, size, value });
        }
    }

    fn word(&self, at: i32) -> Option<u32> {
        let end = at.checked_add(4)?;
        let mut stored = self.0.iter().flatten();
        let stored = stored.find(|stored| stored.at <= at && end <= stored.end())?;
        let shift = (at - stored.at) * 8;
        Some((stored.value >> shift) as u32)
    }

    fn meet(&mut self, other: &Self) {
        for place in &mut self.0 {
            if !other.0.contains(place) {
                *place = None;
            }
        }
    }
}

/// Calls `visit` for each reachable call of a helper with its slot, the helper, and the facts
/// there.
pub fn at_calls(flow: &Flow, mut visit: impl FnMut(usize, HelperId, &Arguments)) {
    for &function in flow.functions() {
        walk(flow, function, &mut visit);
    }
}

fn walk(flow: &Flow, function: Function, visit: &mut impl FnMut(usize, HelperId, &Arguments)) {
    let loops = loop_heads(flow, function);
    let mut coming: HashMap<usize, Arguments> = HashMap::new();
    let mut fallen = Some(on_entry(function));
    for (index, op) in flow.reachable_ops(function) {
        let jumped = coming.remove(&index);
        let mut known = match (fallen.take(), jumped) {
            _ if loops.contains(&index) => Arguments::nothing(),
            (Some(mut one), Some(other)) => {
                one.meet(&other);
                one
            }
            (Some(only), None) | (None, Some(only)) => only,
            (None, None) => Arguments::nothing(),
        };
        if let Op::CallHelper { id } = op {
            visit(index, id, &known);
        }
        known.pass(op);
        let next = index + if flow.op(index + 1).is_none() { 2 } else { 1 };
        for successor in flow.successors(index).filter(|&to| to > index) {
            if successor == next {
                fallen = Some(known);
            } else {
                coming
                    .entry(successor)
                    .and_modify(|other| other.meet(&known))
                    .or_insert(known);
            }
        }
    }
}

fn on_entry(function: Function) -> Arguments {
    let mut known = Arguments::nothing();
    if function.start == 0 {
        known.set(1, Known::Elsewhere);
    }
    known
}

/// Returns the slots that jumps lead back to.
fn loop_heads(flow: &Flow, function: Function) -> BTreeSet<usize> {
    flow.reachable_ops(function)
        .flat_map(|(index, _)| flow.successors(index).filter(move |&to| to <= index))
        .collect()
}
