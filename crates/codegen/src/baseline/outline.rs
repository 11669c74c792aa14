//! The facts about a program that are the same for every machine: its functions and their needs,
//! the targets of jumps, and the meaning of its operands.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use beeline_isa::abi::{HELPER_SLOTS, MAX_MAPS};
use beeline_isa::{FRAME_POINTER, Imm64, Insn, Op};
use beeline_uapi::HelperId;
use beeline_verifier::{Flow, Function};

use crate::code::Error;
use crate::engine::Bytecode;
use crate::inline::{Inline, inlines};

/// A program as the walk and the machines see it.
pub(crate) struct Outline<'a> {
    insns: &'a [Insn],
    pub(crate) flow: &'a Flow,
    /// True if reachable code calls a helper or names a map.
    pub(crate) uses_run: bool,
    /// True if poison in a called function must end the program. Functions then tell their callers
    /// whether it did.
    pub(crate) unwinds: bool,
    /// By slot: the code in place of a helper's call.
    inlines: HashMap<usize, Inline>,
}

/// The places of a program, as labels of a machine.
pub(crate) struct Labels<L> {
    /// By function number: the first instruction of its prologue.
    pub(crate) entries: Vec<L>,
    /// By function number, for functions with their address taken: the thunks that helpers call.
    pub(crate) callbacks: BTreeMap<usize, L>,
    /// By slot, if a jump leads there: behind the prologue, if the slot is a function's first.
    targets: HashMap<usize, L>,
}

/// The needs of a function for its frame.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Needs {
    /// Bit n for each rn that it writes.
    written: u16,
    pub(crate) reads_frame_pointer: bool,
    /// True if it calls a function or a helper.
    pub(crate) calls: bool,
    pub(crate) tail_calls: bool,
    /// True if it has `may_goto` instructions, which share one count.
    pub(crate) counts: bool,
    /// The bytes of eBPF stack.
    pub(crate) stack_bytes: u32,
}

/// The meaning of a 64-bit immediate.
pub(crate) enum Value<L> {
    Number(u64),
    /// The handle of the map of this index.
    Map(i32),
    /// The first value of the map of this index, and so many bytes.
    Memory(i32, i32),
    /// The thunk that helpers call to call a function.
    Callback(L),
}

impl<'a> Outline<'a> {
    pub(crate) fn of(program: &Bytecode<'a>, flow: &'a Flow) -> Self {
        let is_poison = |(_, op)| matches!(op, Op::Poison { .. });
        let mut called = flow.functions().iter().skip(1);
        Self {
            insns: program.insns,
            flow,
            uses_run: reachable(flow).any(|(_, op)| needs_run(&op)),
            unwinds: called.any(|&function| flow.reachable_ops(function).any(is_poison)),
            inlines: inlines(program, flow),
        }
    }

    /// Returns the code in place of the call of a helper at a slot, if there is any.
    pub(crate) fn inline(&self, index: usize) -> Option<Inline> {
        self.inlines.get(&index).copied()
    }

    /// Returns the number of the function that an instruction calls or takes the address of.
    pub(crate) fn callee(&self, index: usize) -> Option<usize> {
        self.flow.function_at(self.flow.callee(index)?)
    }

    /// Returns each function's needs, by its number.
    pub(crate) fn needs(&self) -> impl Iterator<Item = Needs> {
        let functions = self.flow.functions().iter();
        functions.map(|&function| Needs::of(self.flow, function))
    }

    /// Returns the most native stack that a chain of calls uses, with `frame` bytes for a function
    /// of this number and `callback` more if helpers call it.
    pub(crate) fn stack_bytes<L>(
        &self,
        labels: &Labels<L>,
        frame: impl Fn(usize) -> u32,
        callback: u32,
    ) -> Result<u32, Error> {
        let cost = |number| {
            let is_callback = labels.callbacks.contains_key(&number);
            frame(number) + if is_callback { callback } else { 0 }
        };
        let deepest = self.flow.deepest(|number| cost(number) as usize)?;
        Ok(u32::try_from(deepest).unwrap_or(u32::MAX))
    }

    /// Returns the meaning of the 64-bit immediate at a slot; `None` for an address that is not a
    /// function's.
    pub(crate) fn value<L: Copy>(
        &self,
        labels: &Labels<L>,
        insn: usize,
        kind: Imm64,
        low: i32,
    ) -> Result<Option<Value<L>>, Error> {
        let high = self.insns.get(insn + 1).map_or(0, |second| second.imm);
        let what = match kind {
            Imm64::Number => {
                let value = u64::from(high.cast_unsigned()) << 32 | u64::from(low.cast_unsigned());
                return Ok(Some(Value::Number(value)));
            }
            Imm64::Map => return Ok(Some(Value::Map(map_index(insn, low)?))),
            Imm64::MapValue => return Ok(Some(Value::Memory(map_index(insn, low)?, high))),
            Imm64::Function => {
                let callback = self.callee(insn);
                let label = callback.and_then(|number| labels.callbacks.get(&number));
                return Ok(label.copied().map(Value::Callback));
            }
            Imm64::KernelVariable => "the address of a kernel variable",
            Imm64::MapIndex | Imm64::MapIndexValue => "a map named by its index in fd_array",
        };
        Err(Error::Unsupported {
            insn,
            what,
            remedy: "rewrite the program without it",
        })
    }

    /// Refuses the call of a kernel function.
    pub(crate) fn kernel_function(&self, insn: usize) -> Error {
        Error::Unsupported {
            insn,
            what: "a call of a kernel function",
            remedy: "kernel functions are out of reach in user space",
        }
    }
}

/// Returns a helper's place in the table.
pub(crate) fn helper_index(insn: usize, id: u32) -> Result<u32, Error> {
    if (id as usize) < HELPER_SLOTS {
        Ok(id)
    } else {
        Err(Error::NoSuchHelper { insn, id })
    }
}

fn map_index(insn: usize, index: i32) -> Result<i32, Error> {
    if (0..MAX_MAPS).contains(&index) {
        Ok(index)
    } else {
        Err(Error::NoSuchMap { insn, index })
    }
}

impl<L: Copy> Labels<L> {
    /// Creates a new label for each place.
    pub(crate) fn of(outline: &Outline<'_>, mut create: impl FnMut() -> L) -> Self {
        let entries = outline.flow.functions().iter().map(|_| create()).collect();
        let callbacks: BTreeSet<usize> = reachable(outline.flow)
            .filter(|(_, op)| takes_address(op))
            .filter_map(|(index, _)| outline.callee(index))
            .collect();
        let callbacks = callbacks.into_iter().map(|number| (number, create()));
        let mut labels = Self {
            entries,
            callbacks: callbacks.collect(),
            targets: HashMap::new(),
        };
        for (index, op) in reachable(outline.flow) {
            let off = match op {
                Op::Jump { off } => off,
                Op::Branch { off, .. } | Op::MayGoto { off } => off.into(),
                _ => continue,
            };
            if let Some(target) = (index + 1).checked_add_signed(off as isize) {
                labels.targets.entry(target).or_insert_with(&mut create);
            }
        }
        labels
    }

    /// Returns the place of a slot, if a jump leads there.
    pub(crate) fn at(&self, index: usize) -> Option<L> {
        self.targets.get(&index).copied()
    }

    /// Returns the target of the jump at a slot.
    pub(crate) fn target(&self, index: usize, off: i32) -> Option<L> {
        self.at((index + 1).checked_add_signed(off as isize)?)
    }
}

impl Needs {
    fn of(flow: &Flow, function: Function) -> Self {
        let mut needs = Self {
            written: 0,
            reads_frame_pointer: false,
            calls: false,
            tail_calls: false,
            counts: false,
            stack_bytes: flow.stack_bytes(function),
        };
        for (_, op) in flow.reachable_ops(function) {
            needs.written |= op.written().map_or(0, |register| 1 << register);
            needs.reads_frame_pointer |= op.read().any(|register| register == FRAME_POINTER);
            needs.calls |= matches!(op, Op::CallHelper { .. } | Op::CallLocal { .. });
            needs.counts |= matches!(op, Op::MayGoto { .. });
            needs.tail_calls |= matches!(
                op,
                Op::CallHelper {
                    id: HelperId::TAIL_CALL
                }
            );
        }
        needs
    }

    /// Returns the registers that it writes and must keep for its caller: of r6 to r9.
    pub(crate) fn preserved(&self) -> impl Iterator<Item = u8> + use<> {
        let written = self.written;
        (6..FRAME_POINTER).filter(move |register| written & 1 << register != 0)
    }
}

fn reachable(flow: &Flow) -> impl Iterator<Item = (usize, Op)> {
    let functions = flow.functions().iter();
    functions.flat_map(|&function| flow.reachable_ops(function))
}

fn needs_run(op: &Op) -> bool {
    use Imm64::{Map, MapValue};
    let names_map = matches!(
        op,
        Op::Imm64 {
            kind: Map | MapValue,
            ..
        }
    );
    names_map || matches!(op, Op::CallHelper { .. })
}

fn takes_address(op: &Op) -> bool {
    let kind = Imm64::Function;
    matches!(op, Op::Imm64 { kind: found, .. } if *found == kind)
}
