//! Calls of functions: of the program's own, of helpers, from helpers back into the program, and
//! into the next program.

use std::collections::BTreeSet;

use beeline_isa::abi::{RUN_CONTEXT, RUN_TABLES};
use beeline_isa::{Imm64, Op};
use beeline_uapi::HelperId;
use inkwell::attributes::{Attribute, AttributeLoc};
use inkwell::module::Linkage;
use inkwell::values::{
    BasicMetadataValueEnum, BasicValueEnum, CallSiteValue, FunctionValue, IntValue,
    LLVMTailCallKind,
};

use super::function::Body;
use super::run::Run;
use super::{TAIL, Translation, callback_name};
use crate::trouble::Trouble;

/// r1 to r5 and the run.
type Arguments<'c> = [BasicMetadataValueEnum<'c>; 6];

impl<'c> Body<'_, 'c> {
    fn arguments(&self) -> Result<Arguments<'c>, Trouble> {
        Ok([
            self.registers.read(1)?.into(),
            self.registers.read(2)?.into(),
            self.registers.read(3)?.into(),
            self.registers.read(4)?.into(),
            self.registers.read(5)?.into(),
            self.run.pointer.into(),
        ])
    }

    pub(super) fn call_helper(&self, index: usize, id: u32) -> Result<(), Trouble> {
        let value = self.helper(index, id)?;
        self.registers.after_call(value)
    }

    pub(super) fn helper(&self, index: usize, id: u32) -> Result<IntValue<'c>, Trouble> {
        let helper = self.run.helper(index, id)?;
        let call = self.ir.builder.build_indirect_call(
            self.ir.types.helper,
            helper,
            &self.arguments()?,
            "",
        )?;
        Ok(returned(call)?.into_int_value())
    }

    pub(super) fn call_local(&self, index: usize) -> Result<(), Trouble> {
        let builder = &self.ir.builder;
        let callee = self.program.callee(index)?;
        let call = builder.build_call(callee, &self.arguments()?, "")?;
        let (value, aborted) = self.program.outcome(call)?;
        if let Some(aborted) = aborted {
            let next = self.new_block();
            builder.build_conditional_branch(aborted, self.aborted, next)?;
            builder.position_at_end(next);
        }
        self.registers.after_call(value)
    }

    /// Returns the address of the thunk that helpers call to call the function.
    pub(super) fn callback_address(&self, index: usize) -> Result<IntValue<'c>, Trouble> {
        let program = self.program;
        let mut callee = program.callee(index)?;
        if program.unwinds
            && let Some(number) = program.callee_number(index)
        {
            callee = program.callback(number);
        }
        let address = callee.as_global_value().as_pointer_value();
        let long = self.ir.types.long;
        Ok(self.ir.builder.build_ptr_to_int(address, long, "")?)
    }

    /// Emits a tail call: the next program takes the place of this one, or of the called function.
    pub(super) fn tail_call(&self, index: usize) -> Result<(), Trouble> {
        let builder = &self.ir.builder;
        let long = self.ir.types.long;
        let mut kept = Vec::new();
        if self.number != 0 {
            for table in RUN_TABLES {
                kept.push(self.run.field(table)?);
            }
        }
        let next = self.helper(index, HelperId::TAIL_CALL.0)?;
        let (goes, stays) = (self.new_block(), self.new_block());
        let none = self.ir.is(next, long.const_zero())?;
        builder.build_conditional_branch(none, stays, goes)?;
        builder.position_at_end(goes);
        if self.number == 0 {
            self.enter_next(next)?;
        } else {
            self.hand_over(next, &kept)?;
        }
        builder.position_at_end(stays);
        self.registers.after_call(next)
    }

    /// Leaves the frame for the next program's.
    fn enter_next(&self, next: IntValue<'c>) -> Result<(), Trouble> {
        let builder = &self.ir.builder;
        let types = &self.ir.types;
        let next = self.ir.pointer(next)?;
        let context = self.run.pointer_field(RUN_CONTEXT)?;
        let arguments = [context.into(), self.run.pointer.into()];
        let call = builder.build_indirect_call(types.entry, next, &arguments, "")?;
        self.return_from(call)
    }

    /// Leaves the frame for that of [`TAIL`], which keeps the tables of this program while the next
    /// one runs.
    fn hand_over(&self, next: IntValue<'c>, kept: &[IntValue<'c>]) -> Result<(), Trouble> {
        let zero = self.ir.types.long.const_zero();
        let mut arguments: Vec<BasicMetadataValueEnum> = vec![next.into()];
        arguments.extend(
            kept.iter()
                .map(|&value| BasicMetadataValueEnum::from(value)),
        );
        arguments.push(zero.into());
        arguments.push(self.run.pointer.into());
        let tail = self.program.tail();
        let call = self.ir.builder.build_call(tail, &arguments, "")?;
        self.return_from(call)
    }

    /// Turns a call into a jump, and returns its result.
    fn return_from(&self, call: CallSiteValue<'c>) -> Result<(), Trouble> {
        call.set_tail_call_kind(LLVMTailCallKind::LLVMTailCallKindMustTail);
        self.ir.builder.build_return(Some(&returned(call)?))?;
        Ok(())
    }
}

impl<'c> Translation<'_, 'c> {
    fn callee(&self, index: usize) -> Result<FunctionValue<'c>, Trouble> {
        self.callee_number(index)
            .and_then(|number| self.functions.get(&number).copied())
            .ok_or_else(|| Trouble::new(format!("insn {index} calls nothing")))
    }

    fn callee_number(&self, index: usize) -> Option<usize> {
        self.flow.function_at(self.flow.callee(index)?)
    }

    /// Returns r0, and whether poison was met if functions report that.
    fn outcome(
        &self,
        call: CallSiteValue<'c>,
    ) -> Result<(IntValue<'c>, Option<IntValue<'c>>), Trouble> {
        let value = returned(call)?;
        if !self.unwinds {
            return Ok((value.into_int_value(), None));
        }
        let both = value.into_struct_value();
        let value = self.ir.builder.build_extract_value(both, 0, "")?;
        let aborted = self.ir.builder.build_extract_value(both, 1, "")?;
        Ok((value.into_int_value(), Some(aborted.into_int_value())))
    }

    /// Returns the thunk that helpers call in place of a function that returns more than they
    /// expect.
    fn callback(&self, number: usize) -> FunctionValue<'c> {
        self.named(&callback_name(number), self.ir.types.helper)
    }

    /// Returns [`TAIL`]. It must not be inlined into its callers, because their frames are to be
    /// left.
    fn tail(&self) -> FunctionValue<'c> {
        let tail = self.named(TAIL, self.called());
        let kind = Attribute::get_named_enum_kind_id("noinline");
        let attribute = self.context.create_enum_attribute(kind, 0);
        tail.add_attribute(AttributeLoc::Function, attribute);
        tail
    }

    fn named(&self, name: &str, ty: inkwell::types::FunctionType<'c>) -> FunctionValue<'c> {
        self.module
            .get_function(name)
            .unwrap_or_else(|| self.function(name, ty, Linkage::Internal))
    }

    /// Emits the bodies of the thunks.
    pub(super) fn thunks(&self) -> Result<(), Trouble> {
        if let Some(tail) = self.module.get_function(TAIL) {
            self.fill_tail(tail)?;
        }
        if self.unwinds {
            for number in self.callbacks() {
                self.fill_callback(number)?;
            }
        }
        Ok(())
    }

    /// Returns the functions with an address that reachable code takes.
    fn callbacks(&self) -> BTreeSet<usize> {
        let takes_address = |index| {
            let op = self.flow.op(index);
            matches!(
                op,
                Some(Op::Imm64 {
                    kind: Imm64::Function,
                    ..
                })
            ) && self.flow.is_reachable(index)
        };
        (0..self.flow.len())
            .filter(|&index| takes_address(index))
            .filter_map(|index| self.callee_number(index))
            .collect()
    }

    /// Emits a callback's thunk. The helper stands between this and the program, so poison ends the
    /// helper's work: 1 means stop.
    fn fill_callback(&self, number: usize) -> Result<(), Trouble> {
        let Some(&function) = self.functions.get(&number) else {
            return Ok(());
        };
        let thunk = self.callback(number);
        let block = self.context.append_basic_block(thunk, "");
        self.ir.builder.position_at_end(block);
        let arguments: Vec<_> = thunk.get_param_iter().map(Into::into).collect();
        let call = self.ir.builder.build_call(function, &arguments, "")?;
        let (value, aborted) = self.outcome(call)?;
        let stop = self.ir.types.long.const_int(1, false);
        let value = match aborted {
            Some(aborted) => self.ir.builder.build_select(aborted, stop, value, "")?,
            None => value.into(),
        };
        self.ir.builder.build_return(Some(&value))?;
        Ok(())
    }

    /// Emits `(next, the tables, _, run)`: runs the next program, and gives the run its tables
    /// back.
    fn fill_tail(&self, tail: FunctionValue<'c>) -> Result<(), Trouble> {
        let missing = || Trouble::new("too few parameters");
        let (builder, types) = (&self.ir.builder, &self.ir.types);
        let block = self.context.append_basic_block(tail, "");
        builder.position_at_end(block);
        let mut parameters = tail.get_param_iter();
        let next = parameters.next().ok_or_else(missing)?.into_int_value();
        let kept: Vec<_> = parameters.take(RUN_TABLES.len()).collect();
        let run = tail.get_last_param().ok_or_else(missing)?;
        let run = Run {
            ir: &self.ir,
            pointer: run.into_pointer_value(),
        };
        let next = self.ir.pointer(next)?;
        let context = run.pointer_field(RUN_CONTEXT)?;
        let arguments = [context.into(), run.pointer.into()];
        let call = builder.build_indirect_call(types.entry, next, &arguments, "")?;
        for (table, value) in RUN_TABLES.into_iter().zip(kept) {
            let place = self.ir.offset(run.pointer, table as i64)?;
            builder.build_store(place, value)?;
        }
        let value = returned(call)?;
        if self.unwinds {
            let stays = types.bool.const_zero();
            builder.build_aggregate_return(&[value, stays.into()])?;
        } else {
            builder.build_return(Some(&value))?;
        }
        Ok(())
    }
}

/// Returns the result of a call.
pub(super) fn returned(call: CallSiteValue<'_>) -> Result<BasicValueEnum<'_>, Trouble> {
    call.try_as_basic_value()
        .basic()
        .ok_or_else(|| Trouble::new("a call that gives nothing"))
}
