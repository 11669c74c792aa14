//! Helpers that are a few instructions long, emitted in place of their calls.

use beeline_isa::abi::{CONTEXT_COOKIE, CONTEXT_CPU, CONTEXT_SITE, RUN_VALUES, SITE_ADDRESS};

use super::assembler::{Access, Condition, Reg, Three, ZR};
use super::macro_assembler::MacroAssembler;
use super::registers::{RUN, home};
use crate::code::Error;
use crate::inline::Inline;

impl MacroAssembler {
    /// Emits the code in place of the call of a helper.
    pub(crate) fn inline(&mut self, index: usize, id: u32, inline: Inline) -> Result<(), Error> {
        let r0 = self.clobber(home(0));
        match inline {
            Inline::Null => self.constant(r0, 0),
            Inline::Value {
                map,
                offset,
                cpu_stride,
            } => {
                self.first_value(r0, map, cpu_stride);
                if offset != 0 {
                    self.add_offset(r0, r0, offset.cast_signed());
                }
            }
            Inline::Element {
                map,
                entries,
                stride,
                cpu_stride,
            } => self.element(map, entries, stride, cpu_stride),
            Inline::ElementOfCpu {
                map,
                entries,
                stride,
                cpu_stride,
                cpus,
            } => self.element_of_cpu(map, [entries, cpus], [stride, cpu_stride]),
            Inline::Helper(place) => self.call_helper(index, place)?,
            Inline::Cpu => self.cpu(r0),
            Inline::Cookie => self.load_field(r0, RUN, CONTEXT_COOKIE),
            Inline::FuncIp => {
                let nowhere = self.asm.label();
                self.load_field(r0, RUN, CONTEXT_SITE);
                self.asm.cbz(true, r0, nowhere);
                self.load_field(r0, r0, SITE_ADDRESS);
                self.asm.bind(nowhere);
            }
            // Thread pointers lead to different things on each machine; the agent knows them.
            Inline::PidTgid => self.call_helper(index, id)?,
        }
        Ok(())
    }

    /// Emits `r0 = key < entries ? values + cpu * cpu_stride + key * stride : 0`.
    fn element(&mut self, map: u32, entries: u32, stride: u32, cpu_stride: u32) {
        let (r0, key) = (home(0), self.scratch(3));
        let _always = self.asm.access(Access::Load, 2, key, home(2), 0);
        self.first_value(r0, map, cpu_stride);
        self.add_multiple(r0, key, stride);
        self.null_unless_below(key, entries);
    }

    /// Emits `r0 = key < entries && r3 < cpus ? values + r3 * cpu_stride + key * stride : 0`.
    fn element_of_cpu(
        &mut self,
        map: u32,
        [entries, cpus]: [u32; 2],
        [stride, cpu_stride]: [u32; 2],
    ) {
        let (r0, key, cpu) = (home(0), self.scratch(3), self.scratch(2));
        let _always = self.asm.access(Access::Load, 2, key, home(2), 0);
        self.first_value(r0, map, 0);
        self.asm.mov(false, cpu, home(3));
        self.add_multiple(r0, cpu, cpu_stride);
        self.add_multiple(r0, key, stride);
        self.null_unless_below(key, entries);
        self.null_unless_below(cpu, cpus);
    }

    /// Emits `r0 = 0` unless a number is below a limit.
    fn null_unless_below(&mut self, number: Reg, limit: u32) {
        let limit = self.operand(limit.into());
        self.asm.three(Three::Subs, false, ZR, number, limit);
        self.asm.csel(home(0), home(0), ZR, Condition::Lo);
    }

    /// Emits `d = values + cpu * cpu_stride`.
    fn first_value(&mut self, d: Reg, map: u32, cpu_stride: u32) {
        self.table_entry(RUN_VALUES, d, map.cast_signed());
        if cpu_stride != 0 {
            let cpu = self.scratch(2);
            self.cpu(cpu);
            self.add_multiple(d, cpu, cpu_stride);
        }
    }

    fn cpu(&mut self, d: Reg) {
        let _always = self.asm.access(Access::Load, 2, d, RUN, CONTEXT_CPU as i32);
    }

    /// Emits `d += number * factor`.
    fn add_multiple(&mut self, d: Reg, number: Reg, factor: u32) {
        if factor.is_power_of_two() {
            let shift = factor.trailing_zeros();
            self.asm.three_shifted(Three::Add, d, d, number, shift);
        } else {
            let factor = self.operand(factor.into());
            self.asm.madd(d, number, factor, d);
        }
    }
}
