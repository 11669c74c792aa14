//! Calls: of functions of the program, of helpers, from helpers back into the program, and into the
//! next program.

use std::collections::BTreeSet;

use beeline_codegen::Error;
use beeline_isa::abi::{
    HELPER_SLOTS, RUN_CONTEXT, RUN_HELPERS, RUN_MAP_COUNT, RUN_MAPS, RUN_VALUES,
};
use beeline_isa::{Imm64, Op};
use beeline_uapi::HelperId;
use inkwell::attributes::{Attribute, AttributeLoc};
use inkwell::module::Linkage;
use inkwell::values::{
    BasicMetadataValueEnum, BasicValueEnum, CallSiteValue, FunctionValue, IntValue,
    LLVMTailCallKind,
};

use super::function::Body;
use super::{TAIL, Translation, callback_name};
use crate::trouble::Trouble;

/// The fields of the run that a tail call may change, and that must be restored when the program is
/// returned to.
const TABLES: [usize; 3] = [RUN_MAPS, RUN_VALUES, RUN_MAP_COUNT];

/// r1 to r5 and the run.
type Arguments<'c> = [BasicMetadataValueEnum<'c>; 6];

impl<'c> Body<'_, 'c> {
    fn arguments(&self) -> Result<Arguments<'c>, Trouble> {
        Ok([
            self.read(1)?.into(),
            self.read(2)?.into(),
            self.read(3)?.into(),
            self.read(4)?.into(),
            self.read(5)?.into(),
            self.run.into(),
        ])
    }

    /// Sets `r0 = value`; the registers that a call destroys are no longer of interest.
    pub(super) fn after_call(&self, value: IntValue<'c>) -> Result<(), Trouble> {
        for register in 1..=5 {
            self.write(register, self.program.types.long.const_zero())?;
        }
        self.write(0, value)
    }

    pub(super) fn call_helper(&self, index: usize, id: u32) -> Result<(), Trouble> {
        let value = self.helper(index, id)?;
        self.after_call(value)
    }

    pub(super) fn helper(&self, index: usize, id: u32) -> Result<IntValue<'c>, Trouble> {
        if id as usize >= HELPER_SLOTS {
            return Err(Error::NoSuchHelper { insn: index, id }.into());
        }
        let table = self.load_pointer(self.run, RUN_HELPERS as i64)?;
        let helper = self.load_pointer(table, i64::from(id) * 8)?;
        let call = self.builder().build_indirect_call(
            self.program.types.helper,
            helper,
            &self.arguments()?,
            "",
        )?;
        Ok(returned(call)?.into_int_value())
    }

    pub(super) fn call_local(&self, index: usize) -> Result<(), Trouble> {
        let callee = self.callee(index)?;
        let call = self.builder().build_call(callee, &self.arguments()?, "")?;
        let (value, aborted) = self.program.outcome(call)?;
        if let Some(aborted) = aborted {
            let next = self.new_block();
            self.builder()
                .build_conditional_branch(aborted, self.aborted, next)?;
            self.builder().position_at_end(next);
        }
        self.after_call(value)
    }

    /// Sets `dst` to the address of the thunk that helpers call to call the function.
    pub(super) fn callback_address(&self, index: usize, dst: u8) -> Result<(), Trouble> {
        let program = self.program;
        let mut callee = self.callee(index)?;
        if program.unwinds
            && let Some(number) = self.callee_number(index)
        {
            callee = program.callback(number);
        }
        let address = callee.as_global_value().as_pointer_value();
        let address = self
            .builder()
            .build_ptr_to_int(address, program.types.long, "")?;
        self.write(dst, address)
    }

    fn callee(&self, index: usize) -> Result<FunctionValue<'c>, Trouble> {
        self.callee_number(index)
            .and_then(|number| self.program.functions.get(&number).copied())
            .ok_or_else(|| Trouble::new(format!("insn {index} calls nothing")))
    }

    fn callee_number(&self, index: usize) -> Option<usize> {
        let flow = self.program.flow;
        flow.function_at(flow.callee(index)?)
    }

    /// Emits a tail call: the next program takes the place of this one, or of the called function.
    pub(super) fn tail_call(&self, index: usize) -> Result<(), Trouble> {
        let long = self.program.types.long;
        let mut kept = Vec::new();
        if self.number != 0 {
            for table in TABLES {
                kept.push(self.load_long(self.run, table as i64)?);
            }
        }
        let next = self.helper(index, HelperId::TAIL_CALL.0)?;
        let (goes, stays) = (self.new_block(), self.new_block());
        let none = self.is(next, long.const_zero())?;
        self.builder().build_conditional_branch(none, stays, goes)?;
        self.builder().position_at_end(goes);
        if self.number == 0 {
            self.enter_next(next)?;
        } else {
            self.hand_over(next, &kept)?;
        }
        self.builder().position_at_end(stays);
        self.after_call(next)
    }

    /// Leaves the frame for the next program's.
    fn enter_next(&self, next: IntValue<'c>) -> Result<(), Trouble> {
        let types = &self.program.types;
        let next = self.builder().build_int_to_ptr(next, types.pointer, "")?;
        let context = self.load_pointer(self.run, RUN_CONTEXT as i64)?;
        let arguments = [context.into(), self.run.into()];
        let call = self
            .builder()
            .build_indirect_call(types.entry, next, &arguments, "")?;
        self.return_from(call)
    }

    /// Leaves the frame for that of [`TAIL`], which keeps the tables of this program while the next
    /// one runs.
    fn hand_over(&self, next: IntValue<'c>, kept: &[IntValue<'c>]) -> Result<(), Trouble> {
        let zero = self.program.types.long.const_zero();
        let mut arguments: Vec<BasicMetadataValueEnum> = vec![next.into()];
        arguments.extend(
            kept.iter()
                .map(|&value| BasicMetadataValueEnum::from(value)),
        );
        arguments.push(zero.into());
        arguments.push(self.run.into());
        let tail = self.program.tail();
        let call = self.builder().build_call(tail, &arguments, "")?;
        self.return_from(call)
    }

    /// Turns a call into a jump, and returns its result.
    fn return_from(&self, call: CallSiteValue<'c>) -> Result<(), Trouble> {
        call.set_tail_call_kind(LLVMTailCallKind::LLVMTailCallKindMustTail);
        self.builder().build_return(Some(&returned(call)?))?;
        Ok(())
    }
}

impl<'c> Translation<'_, 'c> {
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
        let value = self.builder.build_extract_value(both, 0, "")?;
        let aborted = self.builder.build_extract_value(both, 1, "")?;
        Ok((value.into_int_value(), Some(aborted.into_int_value())))
    }

    /// Returns the thunk that helpers call in place of a function that returns more than they
    /// expect.
    fn callback(&self, number: usize) -> FunctionValue<'c> {
        self.named(&callback_name(number), self.types.helper)
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
            .filter_map(|index| self.flow.function_at(self.flow.callee(index)?))
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
        self.builder.position_at_end(block);
        let arguments: Vec<_> = thunk.get_param_iter().map(Into::into).collect();
        let call = self.builder.build_call(function, &arguments, "")?;
        let (value, aborted) = self.outcome(call)?;
        let stop = self.types.long.const_int(1, false);
        let value = match aborted {
            Some(aborted) => self.builder.build_select(aborted, stop, value, "")?,
            None => value.into(),
        };
        self.builder.build_return(Some(&value))?;
        Ok(())
    }

    /// Emits `(next, the tables, _, run)`: runs the next program, and gives the run its tables
    /// back.
    fn fill_tail(&self, tail: FunctionValue<'c>) -> Result<(), Trouble> {
        let missing = || Trouble::new("too few parameters");
        let block = self.context.append_basic_block(tail, "");
        self.builder.position_at_end(block);
        let mut parameters = tail.get_param_iter();
        let next = parameters.next().ok_or_else(missing)?.into_int_value();
        let kept: Vec<_> = parameters.take(TABLES.len()).collect();
        let run = tail
            .get_last_param()
            .ok_or_else(missing)?
            .into_pointer_value();
        let next = self
            .builder
            .build_int_to_ptr(next, self.types.pointer, "")?;
        let field = |offset: usize| {
            let offset = self.types.long.const_int(offset as u64, false);
            // SAFETY: this GEP does not promise to stay inside an object, so it is defined for any
            // number.
            unsafe { self.builder.build_gep(self.types.byte, run, &[offset], "") }
        };
        let context = self
            .builder
            .build_load(self.types.pointer, field(RUN_CONTEXT)?, "")?;
        let arguments = [context.into(), run.into()];
        let call = self
            .builder
            .build_indirect_call(self.types.entry, next, &arguments, "")?;
        for (table, value) in TABLES.into_iter().zip(kept) {
            self.builder.build_store(field(table)?, value)?;
        }
        let value = returned(call)?;
        if self.unwinds {
            let stays = self.types.bool.const_zero();
            self.builder
                .build_aggregate_return(&[value, stays.into()])?;
        } else {
            self.builder.build_return(Some(&value))?;
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
