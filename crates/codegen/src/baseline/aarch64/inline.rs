//! Helpers that are a few instructions long, emitted in place of their calls.

use beeline_isa::abi::{CONTEXT_COOKIE, CONTEXT_CPU, CONTEXT_SITE, SITE_ADDRESS};

use super::array_values::ArrayValues;
use super::assembler::{Access, Reg};
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
            } => ArrayValues { map, cpu_stride }.at(self, offset),
            Inline::Element {
                map,
                entries,
                stride,
                cpu_stride,
            } => ArrayValues { map, cpu_stride }.element(self, entries, stride),
            Inline::ElementOfCpu {
                map,
                entries,
                stride,
                cpu_stride,
                cpus,
            } => ArrayValues { map, cpu_stride }.element_of_cpu(self, entries, stride, cpus),
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

    /// Emits `d = cpu`.
    pub(crate) fn cpu(&mut self, d: Reg) {
        let _always = self.asm.access(Access::Load, 2, d, RUN, CONTEXT_CPU as i32);
    }
}
