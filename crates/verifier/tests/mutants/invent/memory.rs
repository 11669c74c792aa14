//! Pointers and their targets: values of maps, the stack, packets, records, contexts.

use beeline_fuzz::asm::{
    alu, alu_imm, atomic, branch, load, load_sized, mov, mov_reg, store, store_imm, store_sized,
};
use beeline_fuzz::world::{ARRAY, CONSTANTS, HASH, PERCPU_ARRAY, RING};
use beeline_isa::opcode::*;
use beeline_isa::{Insn, imm64};
use beeline_uapi::HelperId;

use super::{CONTEXT, Inventor, SLOTS, VALUE, helper};
use crate::worldly::FIRST_FD;

impl Inventor<'_> {
    /// `dst = &map[0] + offset`
    pub(super) fn map_value(&mut self, dst: u8, map: usize, offset: u64) -> Vec<Insn> {
        let fd = (FIRST_FD + map as i32) as u64;
        imm64(dst, PSEUDO_MAP_VALUE, fd | offset << 32).to_vec()
    }

    pub(super) fn map(&mut self, dst: u8, map: usize) -> Vec<Insn> {
        let fd = (FIRST_FD + map as i32) as u64;
        imm64(dst, PSEUDO_MAP_FD, fd).to_vec()
    }

    /// Reads or writes a register's target.
    pub(super) fn access(&mut self, pointer: u8, off: i16) -> Insn {
        let (size, _) = self.size();
        let register = self.register();
        match self.random.below(8) {
            0 => store_imm(size, pointer, off, 1),
            1 => store_sized(size, pointer, off, register),
            2 if size != DW => load_sized(MEMSX | size, register, pointer, off),
            // The address has to be aligned, and that is seldom known.
            3 if self.extra.is_none() || self.breaks() => {
                atomic(W, pointer, off, register, (ADD | FETCH as u8).into())
            }
            _ => load_sized(MEM | size, register, pointer, off),
        }
    }

    /// Moves a pointer by a number, and uses it.
    pub(super) fn moved(&mut self, pointer: u8, index: u8) -> Vec<Insn> {
        let mut unit = Vec::new();
        let by = self.random.below(8) as i32;
        match self.random.below(6) {
            0 if self.breaks() => unit.push(alu(SUB, pointer, index)),
            1 => unit.extend([alu_imm(ADD, pointer, by), alu(ADD, pointer, index)]),
            2 => unit.extend([alu(ADD, pointer, index), alu_imm(ADD, pointer, by)]),
            _ => unit.push(alu(ADD, pointer, index)),
        }
        let off = if self.breaks() {
            self.random.below(40) as i16 - 8
        } else {
            0
        };
        unit.push(self.access(pointer, off));
        unit
    }

    pub(super) fn value_access(&mut self) -> Vec<Insn> {
        let index = self.random.pick(&[6, 7, 5]);
        let most = self.random.pick(&[63, 60, 49, 48, 31, 15, 7]);
        let mut unit = self.bounded(index, most);
        if self.breaks() {
            let offset = self.random.pick(&[0, 8, 120]);
            unit.extend(self.map_value(1, CONSTANTS, offset));
        } else {
            unit.push(mov_reg(1, VALUE));
        }
        unit.extend(self.moved(1, index));
        unit
    }

    pub(super) fn stack_access(&mut self) -> Vec<Insn> {
        let index = self.random.pick(&[6, 7, 5]);
        let most = self.random.pick(&[3, 7, 8, 15, 31]);
        let mut unit = self.bounded(index, most);
        let room = if self.breaks() {
            0
        } else {
            (most / 8 + 1) as u64
        };
        let slot = room + 1 + self.random.below(SLOTS + 1 - room.min(SLOTS));
        unit.extend([
            mov_reg(1, 10),
            alu_imm(ADD, 1, -8 * slot as i32),
            alu(ADD, 1, index),
            self.access(1, 0),
        ]);
        unit
    }

    pub(super) fn packet_access(&mut self) -> Vec<Insn> {
        let Some((begin, end)) = self.packet else {
            return self.value_access();
        };
        let index = self.random.pick(&[6, 7, 5]);
        let bytes = self.random.pick(&[1, 2, 8, 14, 34, 64]);
        let mut unit = vec![
            load_sized(MEM | W, 2, CONTEXT, begin),
            load_sized(MEM | W, 3, CONTEXT, end),
        ];
        if self.random.once_in(2) {
            unit.extend(self.bounded(index, 0xff));
            unit.push(alu(ADD, 2, index));
        }
        unit.extend([mov_reg(4, 2), alu_imm(ADD, 4, bytes)]);
        let op = self.random.pick(&[JGT, JGT, JGE, JLT, JLE]);
        let (dst, src) = if self.random.once_in(4) {
            (3, 4)
        } else {
            (4, 3)
        };
        let skip = branch(op, dst, 0, 1);
        unit.push(Insn {
            code: skip.code | X,
            src,
            ..skip
        });
        let off = if self.breaks() {
            self.random.below(bytes as u64 + 2) as i16 - 1
        } else {
            self.random.below((bytes as u64).saturating_sub(7).max(1)) as i16
        };
        let pointer = self.random.pick(&[2, 2, 4]);
        let off = if pointer == 4 {
            off - bytes as i16
        } else {
            off
        };
        unit.push(self.access(pointer, off));
        unit
    }

    pub(super) fn look_up(&mut self) -> Vec<Insn> {
        let map = self.random.pick(&[ARRAY, HASH, PERCPU_ARRAY]);
        let mut unit = self.map(1, map);
        unit.extend([
            mov_reg(2, 10),
            alu_imm(ADD, 2, -8 * (1 + self.random.below(SLOTS) as i32)),
        ]);
        unit.push(helper(HelperId::MAP_LOOKUP_ELEM));
        let index = self.random.pick(&[6, 7]);
        let mut body = vec![mov_reg(1, 0)];
        let most = self.random.pick(&[8, 15, 16, 23]);
        body.extend(self.bounded(index, most));
        body.extend(self.moved(1, index));
        if !self.breaks() {
            unit.push(branch(JEQ, 0, 0, body.len() as i16));
        }
        unit.extend(body);
        unit.extend([mov(0, 0), mov(5, self.random.below(9) as i32)]);
        unit
    }

    /// Calls a helper that takes memory and its size.
    pub(super) fn helper(&mut self) -> Vec<Insn> {
        // Helper, registers of memory and size.
        let (id, memory, size) = self.random.pick(&[
            (HelperId::GET_CURRENT_COMM, 1, 2),
            (HelperId::PROBE_READ_KERNEL, 1, 2),
            (HelperId::PROBE_READ, 1, 2),
            (HelperId::TRACE_PRINTK, 1, 2),
            (HelperId::RINGBUF_OUTPUT, 2, 3),
            (HelperId::SKB_LOAD_BYTES, 3, 4),
            (HelperId::CSUM_DIFF, 1, 2),
            (HelperId::PERF_EVENT_OUTPUT, 4, 5),
            (HelperId::GET_STACK, 2, 3),
            (HelperId::PROBE_READ_USER, 1, 2),
            (HelperId::PROBE_READ_STR, 1, 2),
            (HelperId::SKB_STORE_BYTES, 3, 4),
            (HelperId::STRTOL, 1, 2),
        ]);
        let index = self.random.pick(&[6, 7]);
        let most = self.random.pick(&[0, 8, 16, 24, 32, 40, 64]);
        let mut unit = self.bounded(index, most);
        for register in 1..=5 {
            unit.push(mov(register, 0));
        }
        unit.push(mov_reg(1, CONTEXT));
        match id {
            HelperId::RINGBUF_OUTPUT => unit.extend(self.map(1, RING)),
            HelperId::PERF_EVENT_OUTPUT => unit.extend(self.map(2, ARRAY)),
            _ => {}
        }
        let base = self.random.pick(&[10, VALUE]);
        unit.push(mov_reg(memory, base));
        if base == 10 {
            unit.push(alu_imm(
                ADD,
                memory,
                -8 * (1 + self.random.below(SLOTS + 1) as i32),
            ));
        }
        match self.random.below(3) {
            0 => unit.push(mov(size, most)),
            _ => unit.push(mov_reg(size, index)),
        }
        unit.push(helper(id));
        unit.push(self.unknown(5));
        unit
    }

    pub(super) fn context_access(&mut self) -> Insn {
        if !self.breaks() {
            // Most contexts have words at the start.
            let off = 4 * self.random.below(4) as i16;
            let register = self.register();
            return load_sized(MEM | W, register, CONTEXT, off);
        }
        let (size, width) = self.size();
        let off = self.random.below(self.context_bytes / width + 1) * width;
        let register = self.register();
        match self.random.below(6) {
            0 => store_sized(size, CONTEXT, off as i16, register),
            _ => load_sized(MEM | size, register, CONTEXT, off as i16),
        }
    }

    pub(super) fn spilled_pointer(&mut self) -> Vec<Insn> {
        let what = self.random.pick(&[VALUE, CONTEXT, 10]);
        let off = -8 * (1 + self.random.below(SLOTS) as i16);
        let mut unit = vec![store(10, off, what)];
        match self.random.below(4) {
            0 => unit.push(store_imm(B, 10, off + 1, 0)),
            1 => unit.push(self.stack_slot()),
            _ => {}
        }
        unit.push(load(1, 10, off));
        let at = self.random.below(16) as i16 - i16::from(what == 10) * 24;
        unit.push(self.access(1, at));
        unit
    }

    /// Reserves memory of a ring buffer, which has to be released.
    pub(super) fn record(&mut self) -> Vec<Insn> {
        let mut unit = self.map(1, RING);
        unit.extend([mov(2, 16), mov(3, 0), helper(HelperId::RINGBUF_RESERVE)]);
        let index = self.random.pick(&[6, 7]);
        let mut body = vec![mov_reg(1, 0)];
        let most = self.random.pick(&[8, 15]);
        body.extend(self.bounded(index, most));
        let moved = self.moved(1, index);
        body.extend(moved);
        body.extend([mov_reg(1, 0), mov(2, 0), helper(HelperId::RINGBUF_SUBMIT)]);
        // If a number leads out of the program, the record is lost.
        unit.push(branch(JEQ, 0, 0, body.len() as i16));
        unit.extend(body);
        unit.extend([mov(0, 0), mov(5, 1)]);
        unit
    }
}
