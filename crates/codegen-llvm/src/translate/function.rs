//! One function: its blocks, and the walk over its instructions.

use std::collections::BTreeMap;

use beeline_codegen::Error;
use beeline_codegen::switch::{Decision, Decisions, Leaf};
use beeline_isa::abi::{RUN_MAPS, RUN_VALUES};
use beeline_isa::{Cond, Imm64, MAY_GOTO_LIMIT, Op, Operand, Size};
use beeline_uapi::HelperId;
use beeline_verifier::Function;
use inkwell::IntPredicate;
use inkwell::basic_block::BasicBlock;
use inkwell::values::{BasicValue, FunctionValue, IntValue, PointerValue};

use super::Translation;
use super::ir::Ir;
use super::registers::Registers;
use super::run::Run;
use crate::trouble::Trouble;

/// A function on its way into the module.
pub(super) struct Body<'a, 'c> {
    pub(super) program: &'a Translation<'a, 'c>,
    pub(super) ir: &'a Ir<'c>,
    /// The function's number; 0 is the program's entry.
    pub(super) number: usize,
    pub(super) value: FunctionValue<'c>,
    function: Function,
    /// The blocks by slot: at targets of jumps, and behind branches.
    blocks: BTreeMap<usize, BasicBlock<'c>>,
    pub(super) registers: Registers<'a, 'c>,
    /// The number of times that `may_goto` instructions may still go on.
    may_goto: PointerValue<'c>,
    pub(super) run: Run<'a, 'c>,
    /// Returns because poison ended the program.
    pub(super) aborted: BasicBlock<'c>,
}

impl<'a, 'c> Body<'a, 'c> {
    pub(super) fn new(
        program: &'a Translation<'a, 'c>,
        number: usize,
        function: Function,
        value: FunctionValue<'c>,
    ) -> Result<Self, Trouble> {
        let ir = &program.ir;
        let start = program.context.append_basic_block(value, "start");
        ir.builder.position_at_end(start);
        let variables = Registers::variables(ir)?;
        let long = ir.types.long;
        let may_goto = ir.builder.build_alloca(long, "may_goto")?;
        let limit = long.const_int(MAY_GOTO_LIMIT.into(), false);
        ir.builder.build_store(may_goto, limit)?;
        let bytes = program.flow.stack_bytes(function).next_multiple_of(8);
        let stack = ir.types.byte.array_type(bytes);
        let stack = ir.builder.build_alloca(stack, "stack")?;
        if let Some(alloca) = stack.as_instruction_value() {
            alloca.set_alignment(8)?;
        }
        let frame = ir.offset(stack, bytes.into())?;
        let registers = Registers::new(program, variables, frame);
        registers.initialise(value, number == 0)?;
        let missing = || Trouble::new("a function has too few parameters");
        let run = value.get_last_param().ok_or_else(missing)?;
        let pointer = run.into_pointer_value();
        let mut body = Self {
            program,
            ir,
            number,
            value,
            function,
            blocks: BTreeMap::new(),
            registers,
            may_goto,
            run: Run { ir, pointer },
            aborted: program.context.append_basic_block(value, "aborted"),
        };
        body.make_blocks();
        Ok(body)
    }

    fn make_blocks(&mut self) {
        let mut starts = std::collections::BTreeSet::from([self.function.start]);
        for (index, op) in self.program.flow.reachable_ops(self.function) {
            if ends_block(op) {
                starts.extend(self.program.flow.successors(index));
            }
        }
        for start in starts {
            let block = self.program.context.append_basic_block(self.value, "");
            self.blocks.insert(start, block);
        }
    }

    pub(super) fn translate(&self) -> Result<(), Trouble> {
        self.go_to(self.function.start)?;
        let mut decisions = Decisions::default();
        let is_start = |slot: usize| self.blocks.contains_key(&slot);
        // True if control comes here from the slot before.
        let mut flows = false;
        for (index, op) in self.program.flow.reachable_ops(self.function) {
            if let Some(&block) = self.blocks.get(&index) {
                if flows {
                    self.ir.builder.build_unconditional_branch(block)?;
                }
                self.ir.builder.position_at_end(block);
            }
            match decisions.at(self.program.flow, index, &is_start) {
                Some(decision) => self.decide(&decision)?,
                None => self.op(index, op)?,
            }
            flows = !ends_block(op);
        }
        self.ir.builder.position_at_end(self.aborted);
        self.leave(self.ir.types.long.const_zero(), true)
    }

    /// Ends the block with a jump to a slot.
    pub(super) fn go_to(&self, slot: usize) -> Result<(), Trouble> {
        let block = self.block(slot)?;
        self.ir.builder.build_unconditional_branch(block)?;
        Ok(())
    }

    fn block(&self, slot: usize) -> Result<BasicBlock<'c>, Trouble> {
        self.blocks
            .get(&slot)
            .copied()
            .ok_or_else(|| Trouble::new(format!("no block at slot {slot}")))
    }

    /// Creates a new block of this function.
    pub(super) fn new_block(&self) -> BasicBlock<'c> {
        self.program.context.append_basic_block(self.value, "")
    }

    fn op(&self, index: usize, op: Op) -> Result<(), Trouble> {
        match op {
            Op::Alu { op, wide, dst, src } => self.registers.alu(op, wide, dst, src),
            Op::Move { wide, dst, src } => self.registers.move_(wide, dst, src),
            Op::MoveSigned {
                wide,
                dst,
                src,
                from,
            } => self.registers.move_signed(wide, dst, src, from),
            Op::Neg { wide, dst } => self.registers.neg(wide, dst),
            Op::Swap { swap, dst, size } => self.registers.swap(swap, dst, size),
            Op::Load {
                size,
                signed,
                dst,
                src,
                off,
            } => self.registers.load(index, (size, signed), dst, (src, off)),
            Op::Store {
                size,
                dst,
                src,
                off,
            } => self.registers.store(index, size, src, (dst, off)),
            Op::LoadAcquire {
                size,
                dst,
                src,
                off,
            } => self.registers.load_acquire(size, dst, (src, off)),
            Op::StoreRelease {
                size,
                dst,
                src,
                off,
            } => self.registers.store_release(size, src, (dst, off)),
            Op::Atomic {
                op,
                fetch,
                wide,
                dst,
                src,
                off,
            } => {
                let size = if wide { Size::B8 } else { Size::B4 };
                self.registers.atomic(op, fetch, size, src, (dst, off))
            }
            Op::Imm64 { kind, dst, low } => {
                self.registers.write(dst, self.imm64(index, kind, low)?)
            }
            Op::Jump { .. } => self.jump(index),
            Op::Branch {
                cond,
                wide,
                dst,
                src,
                ..
            } => self.branch(index, cond, wide, dst, src),
            Op::MayGoto { .. } => self.may_goto(index),
            Op::CallHelper {
                id: HelperId::TAIL_CALL,
            } => self.tail_call(index),
            Op::CallHelper { id } => match self.program.inlines.get(&index) {
                Some(&inline) => self.inline(index, id.0, inline),
                None => self.call_helper(index, id.0),
            },
            Op::CallLocal { .. } => self.call_local(index),
            Op::Poison { .. } => {
                self.ir.builder.build_unconditional_branch(self.aborted)?;
                Ok(())
            }
            Op::Exit => self.leave(self.registers.read(0)?, false),
            Op::CallKernel { .. } => Err(unsupported(
                index,
                "a call of a kernel function",
                "kernel functions are out of reach in user space",
            )),
        }
    }

    /// Returns a 64-bit immediate: a number, or what it names.
    fn imm64(&self, index: usize, kind: Imm64, low: i32) -> Result<IntValue<'c>, Trouble> {
        let second = self.program.insns.get(index + 1);
        let high = second.map_or(0, |second| second.imm);
        let long = self.ir.types.long;
        let what = match kind {
            Imm64::Number => {
                let value = u64::from(high.cast_unsigned()) << 32 | u64::from(low.cast_unsigned());
                return Ok(long.const_int(value, false));
            }
            Imm64::Map => return self.run.table_entry(index, RUN_MAPS, low),
            Imm64::MapValue => {
                let base = self.run.table_entry(index, RUN_VALUES, low)?;
                let high = long.const_int(i64::from(high).cast_unsigned(), true);
                return Ok(self.ir.builder.build_int_add(base, high, "")?);
            }
            Imm64::Function => return self.callback_address(index),
            Imm64::KernelVariable => "the address of a kernel variable",
            Imm64::MapIndex | Imm64::MapIndexValue => "a map named by its index in fd_array",
        };
        Err(unsupported(index, what, "rewrite the program without it"))
    }

    fn jump(&self, index: usize) -> Result<(), Trouble> {
        let mut successors = self.program.flow.successors(index);
        match successors.next() {
            Some(next) => self.go_to(next),
            None => Err(Trouble::new("a jump leads nowhere")),
        }
    }

    fn branch(
        &self,
        index: usize,
        cond: Cond,
        wide: bool,
        dst: u8,
        src: Operand,
    ) -> Result<(), Trouble> {
        let builder = &self.ir.builder;
        let mut left = self.registers.read_as(dst, self.ir.width(wide))?;
        let mut right = self.registers.operand(src, wide)?;
        let predicate = match cond {
            Cond::Equal => IntPredicate::EQ,
            Cond::NotEqual => IntPredicate::NE,
            Cond::Greater => IntPredicate::UGT,
            Cond::GreaterEqual => IntPredicate::UGE,
            Cond::Less => IntPredicate::ULT,
            Cond::LessEqual => IntPredicate::ULE,
            Cond::SignedGreater => IntPredicate::SGT,
            Cond::SignedGreaterEqual => IntPredicate::SGE,
            Cond::SignedLess => IntPredicate::SLT,
            Cond::SignedLessEqual => IntPredicate::SLE,
            Cond::AnySet => {
                left = builder.build_and(left, right, "")?;
                right = left.get_type().const_zero();
                IntPredicate::NE
            }
        };
        let holds = builder.build_int_compare(predicate, left, right, "")?;
        self.go_if(index, holds)
    }

    /// Ends the block of a branch: goes to its target if the condition holds.
    fn go_if(&self, index: usize, holds: IntValue<'c>) -> Result<(), Trouble> {
        let builder = &self.ir.builder;
        let mut successors = self.program.flow.successors(index);
        let next = self.block(successors.next().unwrap_or(index + 1))?;
        let target = self.block(successors.next().unwrap_or(index + 1))?;
        builder.build_conditional_branch(holds, target, next)?;
        Ok(())
    }

    /// Ends the block with a choice among many.
    fn decide(&self, decision: &Decision) -> Result<(), Trouble> {
        let builder = &self.ir.builder;
        let from = builder.get_insert_block();
        let value = self
            .registers
            .read_as(decision.register, self.ir.width(decision.wide))?;
        let mut blocks = BTreeMap::new();
        let leaves = decision.cases.iter().map(|(_, leaf)| leaf);
        for leaf in leaves.chain([&decision.default]) {
            if !blocks.contains_key(leaf) {
                blocks.insert(leaf, self.leaf(leaf)?);
            }
        }
        let block = |leaf| {
            blocks
                .get(leaf)
                .copied()
                .ok_or_else(|| Trouble::new("no leaf"))
        };
        let cases: Vec<_> = decision
            .cases
            .iter()
            .map(|(number, leaf)| Ok((value.get_type().const_int(*number, false), block(leaf)?)))
            .collect::<Result<_, Trouble>>()?;
        if let Some(from) = from {
            builder.position_at_end(from);
        }
        builder.build_switch(value, block(&decision.default)?, &cases)?;
        Ok(())
    }

    /// Returns a block that makes the moves on a way through comparisons.
    fn leaf(&self, leaf: &Leaf) -> Result<BasicBlock<'c>, Trouble> {
        let block = self.new_block();
        self.ir.builder.position_at_end(block);
        for (&register, &(wide, number)) in &leaf.moves {
            self.registers.move_(wide, register, Operand::Imm(number))?;
        }
        self.go_to(leaf.slot)?;
        Ok(block)
    }

    fn may_goto(&self, index: usize) -> Result<(), Trouble> {
        let long = self.ir.types.long;
        let left = self.ir.builder.build_load(long, self.may_goto, "")?;
        let left = left.into_int_value();
        let none = self.ir.is(left, long.const_zero())?;
        let one = long.const_int(1, false);
        let less = self.ir.builder.build_int_sub(left, one, "")?;
        let less = self.ir.choose(none, left, less)?;
        self.ir.builder.build_store(self.may_goto, less)?;
        self.go_if(index, none)
    }

    /// Returns from the function; `aborted` says whether poison ends the program.
    pub(super) fn leave(&self, value: IntValue<'c>, aborted: bool) -> Result<(), Trouble> {
        let builder = &self.ir.builder;
        if self.number == 0 || !self.program.unwinds {
            builder.build_return(Some(&value))?;
        } else {
            let aborted = self.ir.types.bool.const_int(aborted.into(), false);
            builder.build_aggregate_return(&[value.into(), aborted.into()])?;
        }
        Ok(())
    }
}

/// Returns whether an operation ends a block and continues where the flow says.
fn ends_block(op: Op) -> bool {
    matches!(
        op,
        Op::Jump { .. } | Op::Branch { .. } | Op::MayGoto { .. } | Op::Exit | Op::Poison { .. }
    )
}

pub(super) fn unsupported(insn: usize, what: &'static str, remedy: &'static str) -> Trouble {
    Trouble::Program(Error::Unsupported { insn, what, remedy })
}
