//! The code in place of calls of helpers.

use beeline_codegen::{Inline, Machine};
use beeline_isa::abi::{
    CONTEXT_COOKIE, CONTEXT_SITE, CONTEXT_TARGET, SITE_ADDRESS, TARGET_CONTROL, TARGET_TID_OFFSET,
    TID_UNKNOWN,
};
use inkwell::values::IntValue;
use inkwell::{AddressSpace, IntPredicate};

use super::function::Body;
use crate::trouble::Trouble;

/// LLVM's number for memory addressed from fs, the thread pointer.
const FS: u16 = 257;

impl<'c> Body<'_, 'c> {
    pub(super) fn inline(&self, index: usize, id: u32, inline: Inline) -> Result<(), Trouble> {
        let builder = &self.ir.builder;
        let value = match inline {
            Inline::Null => self.ir.types.long.const_zero(),
            Inline::Value {
                map,
                offset,
                cpu_stride,
            } => {
                let first = self.run.first_value(index, map, cpu_stride)?;
                builder.build_int_add(first, self.ir.number(offset), "")?
            }
            Inline::Element {
                map,
                entries,
                stride,
                cpu_stride,
            } => {
                let first = self.run.first_value(index, map, cpu_stride)?;
                self.element(first, entries, stride)?
            }
            Inline::ElementOfCpu {
                map,
                entries,
                stride,
                cpu_stride,
                cpus,
            } => {
                let first = self.run.first_value(index, map, 0)?;
                let element = self.element(first, entries, stride)?;
                self.of_cpu(element, cpu_stride, cpus)?
            }
            Inline::Helper(place) => self.helper(index, place)?,
            Inline::Cpu => self.run.cpu()?,
            Inline::Cookie => self.run.field(CONTEXT_COOKIE)?,
            Inline::FuncIp => self.func_ip()?,
            Inline::PidTgid if self.program.machine == Machine::X86_64 => {
                self.pid_tgid(index, id)?
            }
            Inline::PidTgid => self.helper(index, id)?,
        };
        self.registers.after_call(value)
    }

    /// Returns `*r2 < entries ? first + *r2 * stride : 0`.
    fn element(
        &self,
        first: IntValue<'c>,
        entries: u32,
        stride: u32,
    ) -> Result<IntValue<'c>, Trouble> {
        let builder = &self.ir.builder;
        let address = self.ir.pointer(self.registers.read(2)?)?;
        let key = self.ir.load_word(address, 0)?;
        let exists =
            builder.build_int_compare(IntPredicate::ULT, key, self.ir.number(entries), "")?;
        let offset = builder.build_int_mul(key, self.ir.number(stride), "")?;
        let value = builder.build_int_add(first, offset, "")?;
        self.ir.choose(exists, value, self.ir.number(0))
    }

    /// Returns `element && r3 < cpus ? element + r3 * cpu_stride : 0`.
    fn of_cpu(
        &self,
        element: IntValue<'c>,
        cpu_stride: u32,
        cpus: u32,
    ) -> Result<IntValue<'c>, Trouble> {
        let builder = &self.ir.builder;
        let cpu = builder.build_and(self.registers.read(3)?, self.ir.number(u32::MAX), "")?;
        let has_cpu =
            builder.build_int_compare(IntPredicate::ULT, cpu, self.ir.number(cpus), "")?;
        let none = self.ir.number(0);
        let is_element = builder.build_int_compare(IntPredicate::NE, element, none, "")?;
        let exists = builder.build_and(has_cpu, is_element, "")?;
        let offset = builder.build_int_mul(cpu, self.ir.number(cpu_stride), "")?;
        let value = builder.build_int_add(element, offset, "")?;
        self.ir.choose(exists, value, none)
    }

    /// Returns `site ? site.address : 0`.
    fn func_ip(&self) -> Result<IntValue<'c>, Trouble> {
        let site = self.run.pointer_field(CONTEXT_SITE)?;
        let nowhere = self.ir.builder.build_is_null(site, "")?;
        self.either(
            nowhere,
            |body| Ok(body.ir.number(0)),
            |body| body.ir.load_long(site, SITE_ADDRESS as i64),
        )
    }

    /// Returns `pid << 32 | tid`, from the target's words; by the helper if the thread's id has to
    /// be asked for.
    fn pid_tgid(&self, index: usize, id: u32) -> Result<IntValue<'c>, Trouble> {
        let builder = &self.ir.builder;
        let target = self.run.pointer_field(CONTEXT_TARGET)?;
        let offset = self.ir.load_word(target, TARGET_TID_OFFSET)?;
        let unknown = self.ir.number(TID_UNKNOWN.cast_unsigned());
        let unknown = self.ir.is(offset, unknown)?;
        self.either(
            unknown,
            |body| body.helper(index, id),
            |body| {
                let types = &body.ir.types;
                let offset = builder.build_int_truncate(offset, types.word, "")?;
                let offset = builder.build_int_s_extend(offset, types.long, "")?;
                let in_thread = body.program.context.ptr_type(AddressSpace::from(FS));
                let place = builder.build_int_to_ptr(offset, in_thread, "")?;
                let tid = builder.build_load(types.word, place, "")?.into_int_value();
                let tid = builder.build_int_z_extend(tid, types.long, "")?;
                let control = body.ir.load_pointer(target, TARGET_CONTROL as i64)?;
                let pid = body.ir.load_word(control, 0)?;
                let pid = builder.build_left_shift(pid, body.ir.number(32), "")?;
                Ok(builder.build_or(pid, tid, "")?)
            },
        )
    }

    /// Returns `condition ? yes : no`; only one of the two is evaluated.
    fn either(
        &self,
        condition: IntValue<'c>,
        yes: impl FnOnce(&Self) -> Result<IntValue<'c>, Trouble>,
        no: impl FnOnce(&Self) -> Result<IntValue<'c>, Trouble>,
    ) -> Result<IntValue<'c>, Trouble> {
        let [when, otherwise, done] = [(); 3].map(|()| self.new_block());
        let builder = &self.ir.builder;
        builder.build_conditional_branch(condition, when, otherwise)?;
        let mut ways = Vec::new();
        builder.position_at_end(when);
        ways.push((yes(self)?, builder.get_insert_block()));
        builder.build_unconditional_branch(done)?;
        builder.position_at_end(otherwise);
        ways.push((no(self)?, builder.get_insert_block()));
        builder.build_unconditional_branch(done)?;
        builder.position_at_end(done);
        let result = builder.build_phi(self.ir.types.long, "")?;
        for (value, block) in ways {
            let block = block.ok_or_else(|| Trouble::new("no block"))?;
            result.add_incoming(&[(&value, block)]);
        }
        Ok(result.as_basic_value().into_int_value())
    }
}
