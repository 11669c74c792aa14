//! One function: its blocks, registers and frame, and the walk over its instructions.

use std::collections::BTreeMap;

use beeline_codegen::Error;
use beeline_codegen::switch::{Decision, Decisions, Leaf};
use beeline_isa::{Cond, FRAME_POINTER, MAY_GOTO_LIMIT, Op, Operand, Size};
use beeline_uapi::HelperId;
use beeline_verifier::Function;
use inkwell::IntPredicate;
use inkwell::basic_block::BasicBlock;
use inkwell::builder::Builder;
use inkwell::types::IntType;
use inkwell::values::{BasicValue, FunctionValue, IntValue, PointerValue};

use super::Translation;
use crate::trouble::Trouble;

/// A function on its way into the module.
pub(super) struct Body<'a, 'c> {
    pub(super) program: &'a Translation<'a, 'c>,
    /// The function's number; 0 is the program's entry.
    pub(super) number: usize,
    pub(super) value: FunctionValue<'c>,
    function: Function,
    /// The blocks by slot: at targets of jumps, and behind branches.
    blocks: BTreeMap<usize, BasicBlock<'c>>,
    /// The registers r0 to r9.
    registers: Vec<PointerValue<'c>>,
    /// The number of times that `may_goto` instructions may still go on.
    may_goto: PointerValue<'c>,
    /// The end of the eBPF stack, r10.
    pub(super) frame: PointerValue<'c>,
    pub(super) run: PointerValue<'c>,
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
        let start = program.context.append_basic_block(value, "start");
        program.builder.position_at_end(start);
        let registers: Vec<_> = (0..FRAME_POINTER)
            .map(|_| program.builder.build_alloca(program.types.long, ""))
            .collect::<Result<_, _>>()?;
        let long = program.types.long;
        let may_goto = program.builder.build_alloca(long, "may_goto")?;
        let limit = long.const_int(MAY_GOTO_LIMIT.into(), false);
        program.builder.build_store(may_goto, limit)?;
        let bytes = program.flow.stack_bytes(function).next_multiple_of(8);
        let stack = program
            .builder
            .build_alloca(program.types.byte.array_type(bytes), "stack")?;
        if let Some(alloca) = stack.as_instruction_value() {
            alloca.set_alignment(8)?;
        }
        let missing = || Trouble::new("a function has too few parameters");
        let run = value
            .get_last_param()
            .ok_or_else(missing)?
            .into_pointer_value();
        let aborted = program.context.append_basic_block(value, "aborted");
        let mut body = Self {
            program,
            number,
            value,
            function,
            blocks: BTreeMap::new(),
            registers,
            may_goto,
            frame: stack,
            run,
            aborted,
        };
        body.frame = body.offset(stack, bytes.into())?;
        body.initialise_registers()?;
        body.make_blocks();
        Ok(body)
    }

    pub(super) fn builder(&self) -> &'a Builder<'c> {
        &self.program.builder
    }

    /// Returns `pointer + bytes`.
    pub(super) fn offset(
        &self,
        pointer: PointerValue<'c>,
        bytes: i64,
    ) -> Result<PointerValue<'c>, Trouble> {
        if bytes == 0 {
            return Ok(pointer);
        }
        let types = &self.program.types;
        let bytes = types.long.const_int(bytes.cast_unsigned(), true);
        // SAFETY: this GEP does not promise to stay inside an object, so it is defined for any
        // number.
        Ok(unsafe {
            self.builder()
                .build_gep(types.byte, pointer, &[bytes], "")?
        })
    }

    /// Sets the registers to the arguments; for the entry to the context, with the second argument
    /// in r2, whatever it is. The rest is 0.
    fn initialise_registers(&self) -> Result<(), Trouble> {
        let long = self.program.types.long;
        for register in 0..FRAME_POINTER {
            let argument = u32::from(register).checked_sub(1);
            let argument = argument.and_then(|number| self.value.get_nth_param(number));
            let value = match argument {
                Some(argument) if argument.is_pointer_value() && self.number == 0 => self
                    .builder()
                    .build_ptr_to_int(argument.into_pointer_value(), long, "")?,
                Some(argument) if argument.is_int_value() => argument.into_int_value(),
                _ => long.const_zero(),
            };
            self.write(register, value)?;
        }
        Ok(())
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
                    self.builder().build_unconditional_branch(block)?;
                }
                self.builder().position_at_end(block);
            }
            match decisions.at(self.program.flow, index, &is_start) {
                Some(decision) => self.decide(&decision)?,
                None => self.op(index, op)?,
            }
            flows = !ends_block(op);
        }
        self.builder().position_at_end(self.aborted);
        self.leave(self.program.types.long.const_zero(), true)
    }

    /// Ends the block with a jump to a slot.
    pub(super) fn go_to(&self, slot: usize) -> Result<(), Trouble> {
        let block = self.block(slot)?;
        self.builder().build_unconditional_branch(block)?;
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

    pub(super) fn read(&self, register: u8) -> Result<IntValue<'c>, Trouble> {
        let long = self.program.types.long;
        match self.registers.get(usize::from(register)) {
            Some(&variable) => Ok(self
                .builder()
                .build_load(long, variable, "")?
                .into_int_value()),
            None => Ok(self.builder().build_ptr_to_int(self.frame, long, "")?),
        }
    }

    /// Reads a register's low bits, or all.
    pub(super) fn read_as(&self, register: u8, ty: IntType<'c>) -> Result<IntValue<'c>, Trouble> {
        let value = self.read(register)?;
        Ok(self
            .builder()
            .build_int_truncate_or_bit_cast(value, ty, "")?)
    }

    /// Sets a register; shorter values are zero-extended.
    pub(super) fn write(&self, register: u8, value: IntValue<'c>) -> Result<(), Trouble> {
        if let Some(&variable) = self.registers.get(usize::from(register)) {
            let long = self.program.types.long;
            let value = self
                .builder()
                .build_int_z_extend_or_bit_cast(value, long, "")?;
            self.builder().build_store(variable, value)?;
        }
        Ok(())
    }

    /// Returns the type that 64-bit or 32-bit operations work on.
    pub(super) fn width(&self, wide: bool) -> IntType<'c> {
        let types = &self.program.types;
        if wide { types.long } else { types.word }
    }

    /// Reads an operand of 64 or 32 bits; immediates are sign-extended.
    pub(super) fn operand(&self, operand: Operand, wide: bool) -> Result<IntValue<'c>, Trouble> {
        let width = self.width(wide);
        match operand {
            Operand::Reg(register) => self.read_as(register, width),
            Operand::Imm(imm) => Ok(width.const_int(i64::from(imm).cast_unsigned(), true)),
        }
    }

    fn op(&self, index: usize, op: Op) -> Result<(), Trouble> {
        match op {
            Op::Alu { op, wide, dst, src } => self.alu(op, wide, dst, src),
            Op::Move { wide, dst, src } => self.write(dst, self.operand(src, wide)?),
            Op::MoveSigned {
                wide,
                dst,
                src,
                from,
            } => self.move_signed(wide, dst, src, from),
            Op::Neg { wide, dst } => {
                let value = self.read_as(dst, self.width(wide))?;
                self.write(dst, self.builder().build_int_neg(value, "")?)
            }
            Op::Swap { swap, dst, size } => self.swap(swap, dst, size),
            Op::Load {
                size,
                signed,
                dst,
                src,
                off,
            } => self.load(index, (size, signed), dst, (src, off)),
            Op::Store {
                size,
                dst,
                src,
                off,
            } => self.store(index, size, src, (dst, off)),
            Op::LoadAcquire {
                size,
                dst,
                src,
                off,
            } => self.load_acquire(size, dst, (src, off)),
            Op::StoreRelease {
                size,
                dst,
                src,
                off,
            } => self.store_release(size, src, (dst, off)),
            Op::Atomic {
                op,
                fetch,
                wide,
                dst,
                src,
                off,
            } => {
                let size = if wide { Size::B8 } else { Size::B4 };
                self.atomic(op, fetch, size, src, (dst, off))
            }
            Op::Imm64 { kind, dst, low } => self.imm64(index, kind, dst, low),
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
                self.builder().build_unconditional_branch(self.aborted)?;
                Ok(())
            }
            Op::Exit => self.leave(self.read(0)?, false),
            Op::CallKernel { .. } => Err(unsupported(
                index,
                "a call of a kernel function",
                "kernel functions are out of reach in user space",
            )),
        }
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
        let mut left = self.read_as(dst, self.width(wide))?;
        let mut right = self.operand(src, wide)?;
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
                left = self.builder().build_and(left, right, "")?;
                right = left.get_type().const_zero();
                IntPredicate::NE
            }
        };
        let holds = self
            .builder()
            .build_int_compare(predicate, left, right, "")?;
        self.go_if(index, holds)
    }

    /// Ends the block of a branch: goes to its target if the condition holds.
    fn go_if(&self, index: usize, holds: IntValue<'c>) -> Result<(), Trouble> {
        let mut successors = self.program.flow.successors(index);
        let next = self.block(successors.next().unwrap_or(index + 1))?;
        let target = self.block(successors.next().unwrap_or(index + 1))?;
        self.builder()
            .build_conditional_branch(holds, target, next)?;
        Ok(())
    }

    /// Ends the block with a choice among many.
    fn decide(&self, decision: &Decision) -> Result<(), Trouble> {
        let from = self.builder().get_insert_block();
        let value = self.read_as(decision.register, self.width(decision.wide))?;
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
            self.builder().position_at_end(from);
        }
        self.builder()
            .build_switch(value, block(&decision.default)?, &cases)?;
        Ok(())
    }

    /// Returns a block that makes the moves on a way through comparisons.
    fn leaf(&self, leaf: &Leaf) -> Result<BasicBlock<'c>, Trouble> {
        let block = self.new_block();
        self.builder().position_at_end(block);
        for (&register, &(wide, number)) in &leaf.moves {
            self.write(register, self.operand(Operand::Imm(number), wide)?)?;
        }
        self.go_to(leaf.slot)?;
        Ok(block)
    }

    fn may_goto(&self, index: usize) -> Result<(), Trouble> {
        let long = self.program.types.long;
        let left = self.builder().build_load(long, self.may_goto, "")?;
        let left = left.into_int_value();
        let none = self.is(left, long.const_zero())?;
        let one = long.const_int(1, false);
        let less = self.builder().build_int_sub(left, one, "")?;
        let less = self.choose(none, left, less)?;
        self.builder().build_store(self.may_goto, less)?;
        self.go_if(index, none)
    }

    /// Returns from the function; `aborted` says whether poison ends the program.
    pub(super) fn leave(&self, value: IntValue<'c>, aborted: bool) -> Result<(), Trouble> {
        if self.number == 0 || !self.program.unwinds {
            self.builder().build_return(Some(&value))?;
        } else {
            let aborted = self.program.types.bool.const_int(aborted.into(), false);
            self.builder()
                .build_aggregate_return(&[value.into(), aborted.into()])?;
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
