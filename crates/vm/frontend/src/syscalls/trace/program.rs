//! The program that makes records of the lines, and the records.

use beeline_isa::opcode::{self, ALU64, DW, JA, JEQ, JMP, K, LDX, MEM, MOV, ST, STX, W, X};
use beeline_isa::{FRAME_POINTER, Insn, imm64};
use beeline_uapi::HelperId;

/// A record: the time, the thread, the CPU, the thread's name, the number of lines of this CPU for
/// which there was no room until now, and the text.
pub(super) mod record {
    pub(crate) const TIME: usize = 0;
    pub(crate) const THREAD: usize = 8;
    pub(crate) const CPU: usize = 12;
    pub(crate) const NAME: usize = 16;
    pub(crate) const LOST: usize = 32;
    pub(crate) const TEXT: usize = 40;
    /// The longest text that the kernel prints.
    pub(crate) const LONGEST: usize = beeline_uapi::limits::MAX_BPRINTF_BUF;
    pub(crate) const LEN: usize = TEXT + LONGEST;
}

const LOAD: u8 = LDX | MEM | DW;
const SET: u8 = ALU64 | MOV | K;
const COPY: u8 = ALU64 | MOV | X;
const ADD: u8 = ALU64 | opcode::ADD | K;
const STORE: u8 = STX | MEM | DW;
const STORE_HALF: u8 = STX | MEM | W;
const STORE_NUMBER: u8 = ST | MEM | W;
const IF_ZERO: u8 = JMP | JEQ | K;
const GO: u8 = JMP | JA;
const CALL: u8 = JMP | opcode::CALL;
const EXIT: u8 = JMP | opcode::EXIT;

/// Builds an instruction from its code, the registers, the offset, and the number.
fn insn(code: u8, dst: u8, src: u8, off: i16, imm: i32) -> [u8; 8] {
    let insn = Insn {
        code,
        dst,
        src,
        off,
        imm,
    };
    insn.encode()
}

/// Builds the program that makes a record of each line; its context begins with the line's address.
/// If there is no room, the program counts the line in its CPU's element of `counts`, where no
/// other run of it can interrupt it.
pub(super) fn program(ring: u32, counts: u32) -> Vec<[u8; 8]> {
    // Registers: 6 the line's address, 7 the record, 8 the count.
    let call = |helper: HelperId| insn(CALL, 0, 0, 0, helper.0 as i32);
    let set = |to, number: usize| insn(SET, to, 0, 0, number as i32);
    let store = |code, from, offset: usize| insn(code, 7, from, offset as i16, 0);
    let part = |offset: usize| [insn(COPY, 1, 7, 0, 0), insn(ADD, 1, 0, 0, offset as i32)];
    let address = |map: u32| imm64(1, opcode::PSEUDO_MAP_FD, map.into()).map(Insn::encode);
    let find = [
        &[
            insn(LOAD, 6, 1, 0, 0),
            insn(STORE_NUMBER, FRAME_POINTER, 0, -4, 0),
        ][..],
        &[insn(COPY, 2, FRAME_POINTER, 0, 0), insn(ADD, 2, 0, 0, -4)],
        &address(counts),
        &[call(HelperId::MAP_LOOKUP_ELEM)],
    ];
    let reserve = [
        &[insn(COPY, 8, 0, 0, 0)][..],
        &address(ring),
        &[
            set(2, record::LEN),
            set(3, 0),
            call(HelperId::RINGBUF_RESERVE),
        ],
    ];
    let fill = [
        &[
            insn(COPY, 7, 0, 0, 0),
            call(HelperId::KTIME_GET_NS),
            store(STORE, 0, record::TIME),
        ][..],
        &[
            call(HelperId::GET_CURRENT_PID_TGID),
            store(STORE_HALF, 0, record::THREAD),
        ],
        &[
            call(HelperId::GET_SMP_PROCESSOR_ID),
            store(STORE_HALF, 0, record::CPU),
        ],
        &[insn(LOAD, 1, 8, 0, 0), store(STORE, 1, record::LOST)],
        &part(record::NAME),
        &[
            set(2, record::LOST - record::NAME),
            call(HelperId::GET_CURRENT_COMM),
        ],
        &part(record::TEXT),
        &[
            set(2, record::LONGEST),
            insn(COPY, 3, 6, 0, 0),
            call(HelperId::PROBE_READ_KERNEL_STR),
        ],
        &[
            insn(COPY, 1, 7, 0, 0),
            set(2, 0),
            call(HelperId::RINGBUF_SUBMIT),
        ],
    ];
    let count = [
        insn(LOAD, 1, 8, 0, 0),
        insn(ADD, 1, 0, 0, 1),
        insn(STORE, 8, 1, 0, 0),
    ];
    let (find, reserve, fill) = (find.concat(), reserve.concat(), fill.concat());
    let over = |insns: &[[u8; 8]]| insns.len() as i16;
    let jump_over = |code, count| insn(code, 0, 0, count, 0);
    [
        &find[..],
        // Jumps to the end.
        &[jump_over(
            IF_ZERO,
            over(&reserve) + 1 + over(&fill) + 1 + over(&count),
        )],
        &reserve,
        &[jump_over(IF_ZERO, over(&fill) + 1)],
        &fill,
        &[jump_over(GO, over(&count))],
        &count,
        &[set(0, 0), insn(EXIT, 0, 0, 0, 0)],
    ]
    .concat()
}
