//! Loads, stores, atomics, and the 64-bit immediates, which name memory.

use beeline_codegen::{Error, Machine};
use beeline_isa::abi::{RUN_MAPS, RUN_VALUES};
use beeline_isa::{Atomic, FRAME_POINTER, Imm64, Operand, Size};
use inkwell::attributes::{Attribute, AttributeLoc};
use inkwell::llvm_sys::core::LLVMBuildFreeze;
use inkwell::values::{AsValueRef, BasicValue, InstructionValue, IntValue, PointerValue};
use inkwell::{AtomicOrdering, AtomicRMWBinOp};

use super::calls::returned;
use super::function::{Body, unsupported};
use crate::origin::Origin;
use crate::trouble::Trouble;

/// `memory(read, inaccessiblemem: readwrite)`, in LLVM's encoding of memory effects. Inaccessible
/// memory counts as written, so that two such loads are never merged.
const READS_MEMORY: u64 = 0b01_11_01;
/// The limit of map indexes.
const MAX_MAPS: i32 = 1 << 20;

/// A register and a displacement.
type Place = (u8, i16);

impl<'c> Body<'_, 'c> {
    /// Returns the address of a place. Accesses to the function's own stack say so, which turns its
    /// slots into values.
    fn address(&self, (base, off): Place) -> Result<PointerValue<'c>, Trouble> {
        let base = if base == FRAME_POINTER {
            self.frame
        } else {
            self.pointer(self.read(base)?)?
        };
        self.offset(base, off.into())
    }

    pub(super) fn pointer(&self, address: IntValue<'c>) -> Result<PointerValue<'c>, Trouble> {
        let pointer = self.program.types.pointer;
        Ok(self.builder().build_int_to_ptr(address, pointer, "")?)
    }

    pub(super) fn load(
        &self,
        index: usize,
        (size, signed): (Size, bool),
        dst: u8,
        place: Place,
    ) -> Result<(), Trouble> {
        let origin = self.program.origins.register(index, place.0);
        if origin == Origin::Anything && self.program.machine == Machine::X86_64 {
            let value = self.load_that_may_fault(size, signed, place)?;
            return self.write(dst, value);
        }
        let ty = self.program.type_of(size);
        let value = self
            .builder()
            .build_load(ty, self.address(place)?, "")?
            .into_int_value();
        unaligned(value.as_instruction(), origin)?;
        let value = if origin.is_written() {
            value
        } else {
            self.settled(value)
        };
        let long = self.program.types.long;
        let value = if signed && size != Size::B8 {
            self.builder().build_int_s_extend(value, long, "")?
        } else {
            value
        };
        self.write(dst, value)
    }

    /// Freezes a value: it becomes some number even if it was never written. LLVM would otherwise
    /// take it for a different number each time.
    pub(super) fn settled(&self, value: IntValue<'c>) -> IntValue<'c> {
        // SAFETY: the builder stands in a block, and the value is of the same function. (inkwell
        // does not support freeze.)
        unsafe {
            IntValue::new(LLVMBuildFreeze(
                self.builder().as_mut_ptr(),
                value.as_value_ref(),
                c"".as_ptr(),
            ))
        }
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
        let long = self.program.types.long;
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
        let call = self
            .builder()
            .build_indirect_call(ty, load, &[base.into()], "")?;
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
        let store = self.builder().build_store(self.address(place)?, value)?;
        let origin = self.program.origins.register(index, place.0);
        unaligned(Some(store), origin)
    }

    /// Returns the value that a store of an operand writes.
    fn stored(&self, size: Size, src: Operand) -> Result<IntValue<'c>, Trouble> {
        let ty = self.program.type_of(size);
        let value = self.operand(src, true)?;
        Ok(self
            .builder()
            .build_int_truncate_or_bit_cast(value, ty, "")?)
    }

    pub(super) fn load_acquire(&self, size: Size, dst: u8, place: Place) -> Result<(), Trouble> {
        let ty = self.program.type_of(size);
        let value = self.builder().build_load(ty, self.address(place)?, "")?;
        if let Some(load) = value.as_instruction_value() {
            load.set_alignment(size.bytes().into())?;
            load.set_atomic_ordering(AtomicOrdering::Acquire)?;
        }
        self.write(dst, self.settled(value.into_int_value()))
    }

    pub(super) fn store_release(&self, size: Size, src: u8, place: Place) -> Result<(), Trouble> {
        let value = self.stored(size, Operand::Reg(src))?;
        let store = self.builder().build_store(self.address(place)?, value)?;
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
        let old = self
            .builder()
            .build_atomicrmw(operation, address, value, ordering)?;
        if fetch {
            self.write(src, self.settled(old))?;
        }
        Ok(())
    }

    fn compare_exchange(&self, size: Size, src: u8, place: Place) -> Result<(), Trouble> {
        let ordering = AtomicOrdering::SequentiallyConsistent;
        let expected = self.stored(size, Operand::Reg(0))?;
        let value = self.stored(size, Operand::Reg(src))?;
        let address = self.address(place)?;
        let both = self
            .builder()
            .build_cmpxchg(address, expected, value, ordering, ordering)?;
        let old = self.builder().build_extract_value(both, 0, "")?;
        self.write(0, self.settled(old.into_int_value()))
    }

    pub(super) fn imm64(
        &self,
        index: usize,
        kind: Imm64,
        dst: u8,
        low: i32,
    ) -> Result<(), Trouble> {
        let high = self
            .program
            .insns
            .get(index + 1)
            .map_or(0, |second| second.imm);
        let long = self.program.types.long;
        let what = match kind {
            Imm64::Number => {
                let value = u64::from(high.cast_unsigned()) << 32 | u64::from(low.cast_unsigned());
                return self.write(dst, long.const_int(value, false));
            }
            Imm64::Map => return self.write(dst, self.table_entry(index, RUN_MAPS, low)?),
            Imm64::MapValue => {
                let base = self.table_entry(index, RUN_VALUES, low)?;
                let high = long.const_int(i64::from(high).cast_unsigned(), true);
                return self.write(dst, self.builder().build_int_add(base, high, "")?);
            }
            Imm64::Function => return self.callback_address(index, dst),
            Imm64::KernelVariable => "the address of a kernel variable",
            Imm64::MapIndex | Imm64::MapIndexValue => "a map named by its index in fd_array",
        };
        Err(unsupported(index, what, "rewrite the program without it"))
    }

    /// Returns `run.table[index]`.
    pub(super) fn table_entry(
        &self,
        insn: usize,
        table: usize,
        index: i32,
    ) -> Result<IntValue<'c>, Trouble> {
        if !(0..MAX_MAPS).contains(&index) {
            return Err(Error::NoSuchMap { insn, index }.into());
        }
        let table = self.load_pointer(self.run, table as i64)?;
        self.load_long(table, i64::from(index) * 8)
    }

    /// Loads 8 bytes at an offset from a pointer, from memory that is whole and aligned.
    pub(super) fn load_long(
        &self,
        pointer: PointerValue<'c>,
        bytes: i64,
    ) -> Result<IntValue<'c>, Trouble> {
        let place = self.offset(pointer, bytes)?;
        let long = self.program.types.long;
        Ok(self.builder().build_load(long, place, "")?.into_int_value())
    }

    /// Like [`Body::load_long`], for a pointer.
    pub(super) fn load_pointer(
        &self,
        pointer: PointerValue<'c>,
        bytes: i64,
    ) -> Result<PointerValue<'c>, Trouble> {
        let place = self.offset(pointer, bytes)?;
        let ty = self.program.types.pointer;
        Ok(self
            .builder()
            .build_load(ty, place, "")?
            .into_pointer_value())
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
