//! The module's types, and sequences that LLVM's builder has no single call for.

use beeline_isa::Size;
use inkwell::IntPredicate;
use inkwell::builder::Builder;
use inkwell::context::ContextRef;
use inkwell::llvm_sys::core::LLVMBuildFreeze;
use inkwell::types::{FunctionType, IntType, PointerType, StructType};
use inkwell::values::{AsValueRef, IntValue, PointerValue};

use crate::trouble::Trouble;

/// Builds numbers, addresses and loads wherever the builder stands.
pub(super) struct Ir<'c> {
    pub(super) builder: Builder<'c>,
    pub(super) types: Types<'c>,
}

/// The types of values and functions.
pub(super) struct Types<'c> {
    pub(super) pointer: PointerType<'c>,
    /// Of 1, 8, 16, 32 and 64 bits.
    pub(super) bool: IntType<'c>,
    pub(super) byte: IntType<'c>,
    pub(super) short: IntType<'c>,
    pub(super) word: IntType<'c>,
    pub(super) long: IntType<'c>,
    /// r0, and whether poison was met.
    pub(super) outcome: StructType<'c>,
    pub(super) helper: FunctionType<'c>,
    pub(super) entry: FunctionType<'c>,
}

impl<'c> Types<'c> {
    fn new(context: ContextRef<'c>) -> Self {
        let (long, bool) = (context.i64_type(), context.bool_type());
        let pointer = context.ptr_type(Default::default());
        let arguments = [
            long.into(),
            long.into(),
            long.into(),
            long.into(),
            long.into(),
            pointer.into(),
        ];
        Self {
            pointer,
            bool,
            byte: context.i8_type(),
            short: context.i16_type(),
            word: context.i32_type(),
            long,
            outcome: context.struct_type(&[long.into(), bool.into()], false),
            helper: long.fn_type(&arguments, false),
            entry: long.fn_type(&[pointer.into(), pointer.into()], false),
        }
    }
}

impl<'c> Ir<'c> {
    pub(super) fn new(context: ContextRef<'c>) -> Self {
        Self {
            builder: context.create_builder(),
            types: Types::new(context),
        }
    }

    pub(super) fn type_of(&self, size: Size) -> IntType<'c> {
        match size {
            Size::B1 => self.types.byte,
            Size::B2 => self.types.short,
            Size::B4 => self.types.word,
            Size::B8 => self.types.long,
        }
    }

    /// Returns the type that 64-bit or 32-bit operations work on.
    pub(super) fn width(&self, wide: bool) -> IntType<'c> {
        let types = &self.types;
        if wide { types.long } else { types.word }
    }

    pub(super) fn number(&self, number: u32) -> IntValue<'c> {
        self.types.long.const_int(number.into(), false)
    }

    pub(super) fn is(
        &self,
        value: IntValue<'c>,
        number: IntValue<'c>,
    ) -> Result<IntValue<'c>, Trouble> {
        Ok(self
            .builder
            .build_int_compare(IntPredicate::EQ, value, number, "")?)
    }

    /// Returns `condition ? yes : no`.
    pub(super) fn choose(
        &self,
        condition: IntValue<'c>,
        yes: IntValue<'c>,
        no: IntValue<'c>,
    ) -> Result<IntValue<'c>, Trouble> {
        Ok(self
            .builder
            .build_select(condition, yes, no, "")?
            .into_int_value())
    }

    /// Freezes a value: it becomes some number even if it was never written. LLVM would otherwise
    /// take it for a different number each time.
    pub(super) fn settled(&self, value: IntValue<'c>) -> IntValue<'c> {
        // SAFETY: the builder stands in a block, and the value is of the same function. (inkwell
        // does not support freeze.)
        unsafe {
            IntValue::new(LLVMBuildFreeze(
                self.builder.as_mut_ptr(),
                value.as_value_ref(),
                c"".as_ptr(),
            ))
        }
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
        let types = &self.types;
        let bytes = types.long.const_int(bytes.cast_unsigned(), true);
        // SAFETY: this GEP does not promise to stay inside an object, so it is defined for any
        // number.
        Ok(unsafe { self.builder.build_gep(types.byte, pointer, &[bytes], "")? })
    }

    pub(super) fn pointer(&self, address: IntValue<'c>) -> Result<PointerValue<'c>, Trouble> {
        let pointer = self.types.pointer;
        Ok(self.builder.build_int_to_ptr(address, pointer, "")?)
    }

    /// Loads 8 bytes at an offset from a pointer, from memory that is whole and aligned.
    pub(super) fn load_long(
        &self,
        pointer: PointerValue<'c>,
        bytes: i64,
    ) -> Result<IntValue<'c>, Trouble> {
        let place = self.offset(pointer, bytes)?;
        let long = self.types.long;
        Ok(self.builder.build_load(long, place, "")?.into_int_value())
    }

    /// Like [`Self::load_long`], for a pointer.
    pub(super) fn load_pointer(
        &self,
        pointer: PointerValue<'c>,
        bytes: i64,
    ) -> Result<PointerValue<'c>, Trouble> {
        let place = self.offset(pointer, bytes)?;
        let ty = self.types.pointer;
        Ok(self.builder.build_load(ty, place, "")?.into_pointer_value())
    }

    /// Loads the 32 bits at an offset from a pointer, which may lie at any address; zero-extended.
    pub(super) fn load_word(
        &self,
        pointer: PointerValue<'c>,
        bytes: usize,
    ) -> Result<IntValue<'c>, Trouble> {
        let types = &self.types;
        let place = self.offset(pointer, bytes as i64)?;
        let word = self.builder.build_load(types.word, place, "")?;
        let word = word.into_int_value();
        if let Some(load) = word.as_instruction() {
            load.set_alignment(1)?;
        }
        let word = self.settled(word);
        Ok(self.builder.build_int_z_extend(word, types.long, "")?)
    }
}
