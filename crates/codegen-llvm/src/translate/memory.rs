//! Loads, stores and atomics.

use beeline_codegen::Machine;
use beeline_isa::{Atomic, FRAME_POINTER, Operand, Size};
use inkwell::attributes::{Attribute, AttributeLoc};
use inkwell::values::{BasicValue, InstructionValue, IntValue, PointerValue};
use inkwell::{AtomicOrdering, AtomicRMWBinOp};

use super::function_calls::returned;
use super::registers::Registers;
use crate::origin::Origin;
use crate::trouble::Trouble;

/// `memory(read, inaccessiblemem: readwrite)`, in LLVM's encoding of memory effects. Inaccessible
/// memory counts as written, so that two such loads are never merged.
const READS_MEMORY: u64 = 0b01_11_01;

/// A register and a displacement.
type Place = (u8, i16);

impl<'c> Registers<'_, 'c> {
    /// Returns the address of a place. Accesses to the function's own stack say so, which turns its
    /// slots into values.
    fn address(&self, (base, off): Place) -> Result<PointerValue<'c>, Trouble> {
        let base = if base == FRAME_POINTER {
            self.frame
        } else {
            self.ir.pointer(self.read(base)?)?
        };
        self.ir.offset(base, off.into())
    }

    pub(super) fn load(
        &self,
        index: usize,
        (size, signed): (Size, bool),
        dst: u8,
        place: Place,
    ) -> Result<(), Trouble> {
        let builder = &self.ir.builder;
        let origin = self.program.origins.register(index, place.0);
        if origin == Origin::Anything && self.program.machine == Machine::X86_64 {
            let value = self.load_that_may_fault(size, signed, place)?;
            return self.write(dst, value);
        }
        let ty = self.ir.type_of(size);
        let value = builder
            .build_load(ty, self.address(place)?, "")?
            .into_int_value();
        unaligned(value.as_instruction(), origin)?;
        let value = if origin.is_written() {
            value
        } else {
            self.ir.settled(value)
        };
        let long = self.ir.types.long;
        let value = if signed && size != Size::B8 {
            builder.build_int_s_extend(value, long, "")?
        } else {
            value
        };
        self.write(dst, value)
    }

    /// Emits a load with one of the instruction forms that the agent's signal handler knows. LLVM
    /// would otherwise use the memory as the operand of another instruction, or compute the address
    /// within the instruction.
    fn load_that_may_fault(
        &self,
        size: Size,
        signed: bool,
        (base, off): Place,
    ) -> Result<IntValue<'c>, Trouble> {
        let builder = &self.ir.builder;
        let long = self.ir.types.long;
        let mnemonic = match (size, signed) {
            (Size::B1, false) => "movzbl",
            (Size::B2, false) => "movzwl",
            (Size::B4, false) => "movl",
            (Size::B1, true) => "movsbq",
            (Size::B2, true) => "movswq",
            (Size::B4, true) => "movslq",
            (Size::B8, _) => "movq",
        };
        let part = if signed || size == Size::B8 { "q" } else { "k" };
        // R: without r12, which needs a longer form.
        let load = self.program.context.create_inline_asm(
            long.fn_type(&[long.into()], false),
            format!("{mnemonic} {off}($1), ${{0:{part}}}"),
            "=r,R,~{memory}".to_owned(),
            // Must not be moved out of a loop.
            true,
            false,
            None,
            false,
        );
        let base = self.read(base)?;
        let ty = long.fn_type(&[long.into()], false);
        let call = builder.build_indirect_call(ty, load, &[base.into()], "")?;
        for (name, value) in [("memory", READS_MEMORY), ("nounwind", 0), ("willreturn", 0)] {
            let kind = Attribute::get_named_enum_kind_id(name);
            let attribute = self.program.context.create_enum_attribute(kind, value);
            call.add_attribute(AttributeLoc::Function, attribute);
        }
        Ok(returned(call)?.into_int_value())
    }

    pub(super) fn store(
        &self,
        index: usize,
        size: Size,
        src: Operand,
        place: Place,
    ) -> Result<(), Trouble> {
        let value = self.stored(size, src)?;
        let store = self.ir.builder.build_store(self.address(place)?, value)?;
        let origin = self.program.origins.register(index, place.0);
        unaligned(Some(store), origin)
    }

    /// Returns the value that a store of an operand writes.
    fn stored(&self, size: Size, src: Operand) -> Result<IntValue<'c>, Trouble> {
        let builder = &self.ir.builder;
        let ty = self.ir.type_of(size);
        let value = self.operand(src, true)?;
        Ok(builder.build_int_truncate_or_bit_cast(value, ty, "")?)
    }

    pub(super) fn load_acquire(&self, size: Size, dst: u8, place: Place) -> Result<(), Trouble> {
        let ty = self.ir.type_of(size);
        let value = self.ir.builder.build_load(ty, self.address(place)?, "")?;
        if let Some(load) = value.as_instruction_value() {
            load.set_alignment(size.bytes().into())?;
            load.set_atomic_ordering(AtomicOrdering::Acquire)?;
        }
        self.write(dst, self.ir.settled(value.into_int_value()))
    }

    pub(super) fn store_release(&self, size: Size, src: u8, place: Place) -> Result<(), Trouble> {
        let value = self.stored(size, Operand::Reg(src))?;
        let store = self.ir.builder.build_store(self.address(place)?, value)?;
        store.set_alignment(size.bytes().into())?;
        Ok(store.set_atomic_ordering(AtomicOrdering::Release)?)
    }

    pub(super) fn atomic(
        &self,
        op: Atomic,
        fetch: bool,
        size: Size,
        src: u8,
        place: Place,
    ) -> Result<(), Trouble> {
        let builder = &self.ir.builder;
        let operation = match op {
            Atomic::Add => AtomicRMWBinOp::Add,
            Atomic::Or => AtomicRMWBinOp::Or,
            Atomic::And => AtomicRMWBinOp::And,
            Atomic::Xor => AtomicRMWBinOp::Xor,
            Atomic::Exchange => AtomicRMWBinOp::Xchg,
            Atomic::CompareExchange => return self.compare_exchange(size, src, place),
        };
        // As in Linux, an atomic that returns nothing orders nothing.
        let ordering = if fetch {
            AtomicOrdering::SequentiallyConsistent
        } else {
            AtomicOrdering::Monotonic
        };
        let value = self.stored(size, Operand::Reg(src))?;
        let address = self.address(place)?;
        let old = builder.build_atomicrmw(operation, address, value, ordering)?;
        if fetch {
            self.write(src, self.ir.settled(old))?;
        }
        Ok(())
    }

    fn compare_exchange(&self, size: Size, src: u8, place: Place) -> Result<(), Trouble> {
        let builder = &self.ir.builder;
        let ordering = AtomicOrdering::SequentiallyConsistent;
        let expected = self.stored(size, Operand::Reg(0))?;
        let value = self.stored(size, Operand::Reg(src))?;
        let address = self.address(place)?;
        let both = builder.build_cmpxchg(address, expected, value, ordering, ordering)?;
        let old = builder.build_extract_value(both, 0, "")?;
        self.write(0, self.ir.settled(old.into_int_value()))
    }
}

/// Marks an access as unaligned, because eBPF promises no alignment. LLVM may not merge, drop or
/// repeat accesses to shared memory.
fn unaligned(access: Option<InstructionValue<'_>>, origin: Origin) -> Result<(), Trouble> {
    if let Some(access) = access {
        access.set_alignment(1)?;
        access.set_volatile(origin.is_shared())?;
    }
    Ok(())
}
