//! Compiled code by itself: its bytes, the registers that it keeps or declares changed, calls, maps
//! and atomics.

mod common;

use std::arch::global_asm;

use beeline_codegen::{Baseline, Bytecode, Compiler, Error, Machine, RegisterSet};
use beeline_isa::abi::Run;
use beeline_isa::{Insn, imm64, opcode::*};
use iced_x86::{Decoder, DecoderOptions, InstructionInfoFactory};
use proptest::prelude::*;

use common::{
    EXIT as END, Environment, alu, alu_imm, branch, call, call_local, compile, executable,
    in_child, load, mov, mov_reg, random, result, store,
};

// `enter_with(entry, before, after)` calls `entry` with rax, rcx, ... r15 (but rsp) as in `before`,
// and notes in `after` what they are when it returns. `stack_offset` is a helper that returns how
// far the stack is from 16-byte alignment.
global_asm!(
    ".globl enter_with",
    "enter_with:",
    "push rbx; push rbp; push r12; push r13; push r14; push r15; push rdx; push rdi; sub rsp, 8",
    "mov rax, [rsi]; mov rcx, [rsi + 8]; mov rdx, [rsi + 16]; mov rbx, [rsi + 24]; mov rbp, [rsi + 40]",
    "mov rdi, [rsi + 56]; mov r8, [rsi + 64]; mov r9, [rsi + 72]; mov r10, [rsi + 80]; mov r11, [rsi + 88]",
    "mov r12, [rsi + 96]; mov r13, [rsi + 104]; mov r14, [rsi + 112]; mov r15, [rsi + 120]; mov rsi, [rsi + 48]",
    "call [rsp + 8]",
    "mov [rsp], rax; mov rax, [rsp + 16]",
    "mov [rax + 8], rcx; mov [rax + 16], rdx; mov [rax + 24], rbx; mov [rax + 40], rbp; mov [rax + 48], rsi",
    "mov [rax + 56], rdi; mov [rax + 64], r8; mov [rax + 72], r9; mov [rax + 80], r10; mov [rax + 88], r11",
    "mov [rax + 96], r12; mov [rax + 104], r13; mov [rax + 112], r14; mov [rax + 120], r15",
    "mov rcx, [rsp]; mov [rax], rcx",
    "add rsp, 24; pop r15; pop r14; pop r13; pop r12; pop rbp; pop rbx; ret",
    ".globl stack_offset",
    "stack_offset: lea rax, [rsp + 8]; and eax, 15; ret",
);

unsafe extern "sysv64" {
    fn enter_with(entry: usize, before: *const [u64; 16], after: *mut [u64; 16]);
    fn stack_offset(a: u64, b: u64, c: u64, d: u64, e: u64, run: *const Run) -> u64;
}

#[test]
fn the_smallest_program_is_two_instructions() {
    let code = compile(&[mov(0, 0), END]).expect("a good program");
    assert_eq!(code.bytes, [0x31, 0xc0, 0xc3], "xor eax, eax; ret");
    assert_eq!(
        (code.clobbers, code.uses_run, code.stack_bytes),
        (RegisterSet::from_bits(1), false, 8)
    );
}

/// Each reachable instruction has its place, and the program's first has the prologue's; places are
/// boundaries of machine instructions.
#[test]
fn the_code_of_each_instruction_is_found() {
    for seed in 0..50 {
        let insns = random::program(seed, 60);
        let code = compile(&insns).expect("a good program");
        let mut decoder = Decoder::new(64, &code.bytes, 0);
        let mut boundaries = vec![0];
        while decoder.can_decode() {
            boundaries.push(decoder.decode().next_ip());
        }
        assert!(code.insns.is_sorted_by_key(|place| place.at));
        for place in &code.insns {
            assert!(
                boundaries.contains(&place.at.into()),
                "seed {seed}: {place:?}"
            );
        }
        let flow = beeline_verifier::Flow::of(&insns).expect("a good program");
        let mut found: Vec<_> = code.insns.iter().map(|it| it.insn as usize).collect();
        assert_eq!(code.insns.first().map(|it| (it.at, it.insn)), Some((0, 0)));
        found.sort_unstable();
        let mut all: Vec<usize> = Vec::new();
        for &function in flow.functions() {
            if flow.is_reachable(function.start) {
                all.extend(flow.reachable_ops(function).map(|(insn, _)| insn));
            }
        }
        // Some are compiled together with the one before.
        assert!(found.iter().all(|insn| all.contains(insn)), "seed {seed}");
        assert!(found.len() * 2 >= all.len(), "seed {seed}");
    }
}

#[test]
fn nothing_is_saved_that_is_not_changed() {
    let code = compile(&[mov(6, 1), mov_reg(0, 6), END]).expect("a good program");
    assert_eq!(code.stack_bytes, 16, "the return address and rbx");
    let code = compile(&[store(10, -8, 1), load(0, 10, -8), END]).expect("a good program");
    assert_eq!(code.stack_bytes, 24, "the return address, rbp and one slot");
}

#[test]
fn all_that_is_not_said_to_be_clobbered_is_kept() {
    for seed in 0..200 {
        let insns = random::program(seed, 40);
        let program = executable(&insns);
        let kept =
            (0..16).filter(|&number| number != 4 && !program.code().clobbers.contains(number));
        let before: [u64; 16] =
            std::array::from_fn(|register| 0x5afe_0000_0000_0000 + register as u64);
        let mut after = [0; 16];
        // SAFETY: the program accesses its stack only; `enter_with` preserves the registers of
        // System V.
        unsafe { enter_with(program.entry(), &before, &mut after) };
        for number in kept {
            let register = usize::from(number);
            assert_eq!(
                after[register],
                before[register],
                "register {number}, seed {seed}\n{}",
                beeline_isa::Listing(&insns)
            );
        }
    }
}

#[test]
fn only_general_registers_are_touched() {
    let mut info = InstructionInfoFactory::new();
    for seed in 0..100 {
        let code = compile(&random::program(seed, 60)).expect("a good program");
        for instruction in Decoder::new(64, &code.bytes, DecoderOptions::NONE) {
            assert!(!instruction.is_invalid());
            for used in info.info(&instruction).used_registers() {
                let register = used.register();
                assert!(
                    register.is_gpr() || register.is_segment_register(),
                    "{instruction} uses {register:?}"
                );
            }
        }
    }
}

extern "sysv64" fn digits(a: u64, b: u64, c: u64, d: u64, e: u64, run: *const Run) -> u64 {
    a * 10_000 + b * 1000 + c * 100 + d * 10 + e + if run.is_null() { 1_000_000 } else { 0 }
}

#[test]
fn helpers_get_five_arguments_and_the_run() {
    let environment = Environment::new(&[(255, digits)], &[], &[]);
    let program = executable(&[
        mov(6, 9),
        mov(1, 1),
        mov(2, 2),
        mov(3, 3),
        mov(4, 4),
        mov(5, 5),
        call(255),
        alu(ADD, 0, 6),
        END,
    ]);
    assert!(program.code().uses_run);
    assert_eq!(
        program.code().clobbers,
        RegisterSet::from_bits(0b1111_1100_0111)
    );
    // SAFETY: the run has the one helper that the program calls.
    let result = unsafe { program.call(std::ptr::null(), &environment.run()) };
    assert_eq!(result, 12_345 + 9);
    assert_eq!(
        compile(&[call(256), END]),
        Err(Error::NoSuchHelper { insn: 0, id: 256 })
    );
}

#[test]
fn helpers_are_called_on_an_aligned_stack() {
    let environment = Environment::new(&[(1, stack_offset)], &[], &[]);
    let run = environment.run();
    for saved in 0..4 {
        for slots in 0..3 {
            let mut body: Vec<Insn> = (0..saved).map(|register| mov(6 + register, 0)).collect();
            body.extend((0..slots).map(|slot| Insn {
                code: ST | MEM | DW,
                dst: 10,
                src: 0,
                off: -8 - 8 * slot,
                imm: 0,
            }));
            body.extend([call(1), END]);
            let mut nested = vec![mov(7, 0), call_local(1), END];
            nested.extend(&body);
            for insns in [body, nested] {
                // SAFETY: the run has the one helper that the programs call.
                let offset = unsafe { executable(&insns).call(std::ptr::null(), &run) };
                assert_eq!(offset, 0, "{}", beeline_isa::Listing(&insns));
            }
        }
    }
}

/// Calls back with every register that System V preserves holding something else.
extern "sysv64" fn call_back_and_look(
    callback: u64,
    _: u64,
    _: u64,
    _: u64,
    _: u64,
    run: *const Run,
) -> u64 {
    let mut before: [u64; 16] = std::array::from_fn(|register| 0x5afe_0000 + register as u64);
    before[9] = run.expose_provenance() as u64;
    let mut after = [0; 16];
    // SAFETY: the program's callback accesses its stack only; `enter_with` preserves the registers
    // of System V.
    unsafe { enter_with(callback as usize, &before, &mut after) };
    [3, 5, 12, 13, 14, 15]
        .into_iter()
        .filter(|&register| after[register] != before[register])
        .fold(after[0], |result, register| result | 1 << (8 + register))
}

#[test]
fn callbacks_keep_what_system_v_wants_kept_and_have_an_aligned_stack() {
    let environment = Environment::new(&[(1, stack_offset), (2, call_back_and_look)], &[], &[]);
    let [low, high] = imm64(1, PSEUDO_FUNC, 3);
    let mut insns = vec![low, high, call(2), END];
    // Changes every register that a function has to preserve, and checks the stack.
    insns.extend((6..10).map(|register| mov(register, 1)));
    insns.extend([store(10, -8, 6), call(1), END]);
    // SAFETY: the run has the two helpers that the program calls.
    let result = unsafe { executable(&insns).call(std::ptr::null(), &environment.run()) };
    assert_eq!(result, 0);
}

#[test]
fn maps_come_from_the_runs_tables() {
    let values = [7_u64, 8];
    let address = (&raw const values) as usize;
    let environment = Environment::new(&[], &[0, 0x1234], &[0, 0, address]);
    let handle = imm64(0, PSEUDO_MAP_FD, 1);
    let value = imm64(2, PSEUDO_MAP_VALUE, 8 << 32 | 2);
    let insns = [
        handle[0],
        handle[1],
        value[0],
        value[1],
        load(3, 2, 0),
        alu(ADD, 0, 3),
        END,
    ];
    // SAFETY: the third map has two values, the second of which the program reads.
    let result = unsafe { executable(&insns).call(std::ptr::null(), &environment.run()) };
    assert_eq!(result, 0x1234 + 8);
    let negative = imm64(0, PSEUDO_MAP_FD, u64::from(u32::MAX));
    assert_eq!(
        compile(&[negative[0], negative[1], END]),
        Err(Error::NoSuchMap { insn: 0, index: -1 })
    );
}

#[test]
fn uncompilable_programs_are_named() {
    let [variable, second] = imm64(1, PSEUDO_BTF_ID, 3);
    let error = compile(&[variable, second, mov(0, 0), END]).expect_err("a kernel variable");
    assert!(
        error
            .to_string()
            .starts_with("insn 0: the address of a kernel variable"),
        "{error}"
    );
    assert!(matches!(compile(&[]), Err(Error::Malformed(_))));
}

#[test]
fn functions_have_their_own_stack_and_keep_r6_to_r9() {
    let insns = [
        mov(6, 60),
        mov(9, 90),
        mov(1, 3),
        store(10, -8, 1),
        call_local(4),
        load(1, 10, -8),
        alu(ADD, 0, 1),
        alu(ADD, 0, 6),
        END,
        // f(r1) = 100 * r1, with its own slot and its own r6.
        mov_reg(6, 1),
        alu_imm(MUL, 6, 100),
        store(10, -8, 6),
        mov(6, 0),
        load(0, 10, -8),
        END,
    ];
    assert_eq!(result(&insns), 300 + 3 + 60);
}

#[test]
fn a_function_may_be_its_callers_loop_target_and_called_twice() {
    // for (r6 = 5; r6 != 0; r6--) r7 += f(); return r7
    let insns = [
        mov(6, 5),
        mov(7, 0),
        call_local(5),
        alu(ADD, 7, 0),
        alu_imm(SUB, 6, 1),
        branch(JNE, 6, 0, -4),
        mov_reg(0, 7),
        END,
        // f: its first instruction is a target, too.
        mov(1, 0),
        alu_imm(ADD, 1, 1),
        branch(JLT, 1, 10, -2),
        mov_reg(0, 1),
        END,
    ];
    assert_eq!(result(&insns), 50);
}

#[test]
fn far_jumps_and_near_ones() {
    for distance in [0_i16, 1, 40, 50, 400, 20_000] {
        let mut insns = vec![mov(0, 1), branch(JEQ, 0, 1, distance)];
        insns.extend(std::iter::repeat_n(
            mov(0, 2),
            distance.unsigned_abs().into(),
        ));
        insns.push(END);
        assert_eq!(result(&insns), 1, "over {distance}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(4000) })]

    #[test]
    fn no_instructions_make_it_panic(units in proptest::collection::vec(any_unit(), 0..24)) {
        let mut insns = units.concat();
        insns.push(END);
        if let Ok(code) = compile(&insns) {
            prop_assert!(!code.bytes.is_empty() && code.stack_bytes >= 8);
        }
        if let Ok(code) = Baseline.compile(&Bytecode::new(&insns), Machine::Aarch64) {
            prop_assert!(!code.bytes.is_empty() && code.bytes.len() % 4 == 0);
        }
    }
}

/// Instructions, some of them in pairs of slots: numbers, maps, and functions nearby.
fn any_unit() -> impl Strategy<Value = Vec<Insn>> {
    let pair = (0..10_u8, 0..7_u8, -12..12_i32)
        .prop_map(|(dst, src, low)| imm64(dst, src, low.cast_unsigned().into()).to_vec());
    prop_oneof![3 => any_insn().prop_map(|insn| vec![insn]), 1 => pair]
}

fn any_insn() -> impl Strategy<Value = Insn> {
    let code = prop_oneof![
        any::<u8>(),
        Just(JMP | CALL),
        Just(LD_IMM64),
        Just(JMP | JA),
        Just(JMP | JEQ),
        Just(ALU64 | MOV)
    ];
    let near = || prop_oneof![-12..12_i16, Just(0), any::<i16>()];
    (
        code,
        0..12_u8,
        0..7_u8,
        near(),
        prop_oneof![-12..12_i32, Just(POISON_CORE), any::<i32>()],
    )
        .prop_map(|(code, dst, src, off, imm)| match code & CLASS_MASK {
            // Mostly defined: fields that most operations of the class leave 0.
            ALU | ALU64 if code & X == 0 => Insn {
                code,
                dst,
                src: 0,
                off: 0,
                imm,
            },
            ALU | ALU64 => Insn {
                code,
                dst,
                src,
                off: 0,
                imm: 0,
            },
            JMP if code == JMP | CALL => Insn {
                code,
                dst: 0,
                src: src & 1,
                off: 0,
                imm,
            },
            _ => Insn {
                code,
                dst,
                src,
                off,
                imm,
            },
        })
}

#[test]
fn a_crash_in_a_child_is_no_result() {
    assert_eq!(in_child::<u64>(|| 5), Some(5));
    // SAFETY: only the child ends.
    assert_eq!(in_child::<u64>(|| unsafe { libc::_exit(1) }), None);
}
