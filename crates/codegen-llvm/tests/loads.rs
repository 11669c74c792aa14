//! A load through a wild pointer gives 0, as with the baseline compiler: the agent's signal handler
//! recognises it in LLVM's code.

#[path = "../../codegen/tests/common/mod.rs"]
mod common;

use beeline_agent::fault_fixup::{LONGEST, decode};
use beeline_codegen::{Baseline, Bytecode, Compiler, Executable, Machine};
use beeline_codegen_llvm::Llvm;
use beeline_isa::{Insn, Listing, opcode::*};

use beeline_fuzz::Random;
use common::{EXIT, alu, alu_imm, branch, in_child, load, mov, mov_reg};

/// Registers in the processor's order, as in the signal frame.
const PLACES: [i32; 16] = [
    libc::REG_RAX,
    libc::REG_RCX,
    libc::REG_RDX,
    libc::REG_RBX,
    libc::REG_RSP,
    libc::REG_RBP,
    libc::REG_RSI,
    libc::REG_RDI,
    libc::REG_R8,
    libc::REG_R9,
    libc::REG_R10,
    libc::REG_R11,
    libc::REG_R12,
    libc::REG_R13,
    libc::REG_R14,
    libc::REG_R15,
];

/// Acts as the agent's handler; an unknown load ends the process.
extern "C" fn on_fault(_: i32, _: *mut libc::siginfo_t, context: *mut libc::ucontext_t) {
    // SAFETY: the kernel hands over the context of the instruction that faulted, which can be read,
    // with others behind it.
    unsafe {
        let registers = &mut (*context).uc_mcontext.gregs;
        let code = &*(registers[libc::REG_RIP as usize] as *const [u8; LONGEST]);
        let Some(load) = decode(code) else {
            libc::_exit(1);
        };
        registers[libc::REG_RIP as usize] += load.len as i64;
        registers[PLACES[usize::from(load.register)] as usize] = 0;
    }
}

/// Returns the result of a program in a child, where wild loads give 0; `None` for a fault of
/// another kind.
fn result(compiler: &dyn Compiler, insns: &[Insn], context: &[u64]) -> Option<u64> {
    let code = compiler
        .compile(&Bytecode::new(insns), Machine::X86_64)
        .unwrap_or_else(|error| panic!("{error}\n{}", Listing(insns)));
    // Behind the last instruction the handler reads a few bytes more.
    let program = Executable::of(code).expect("executable memory");
    in_child(|| {
        // SAFETY: the handler touches the frame that it is given only; the program accesses its
        // context, or faults.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_fault as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
            libc::sigaction(libc::SIGSEGV, &action, std::ptr::null_mut());
            program.call(context.as_ptr().cast(), std::ptr::null())
        }
    })
}

fn load_as(mode: u8, size: u8, dst: u8, src: u8, off: i16) -> Insn {
    Insn {
        code: LDX | mode | size,
        ..load(dst, src, off)
    }
}

#[test]
fn loads_from_nowhere_give_zero() {
    let context = [0_u64, 0x123, 0xffff_8000_0000_0000];
    for at in [0, 8, 16] {
        for (mode, size) in [
            (MEM, DW),
            (MEM, W),
            (MEM, H),
            (MEM, B),
            (MEMSX, W),
            (MEMSX, H),
            (MEMSX, B),
        ] {
            for off in [0, 8, -16, 0x1000] {
                // r0 = *(*(context + at) + off) == 0 ? 5 : 6, and the load's value is an operand of
                // more.
                let insns = [
                    load(2, 1, at),
                    load_as(mode, size, 3, 2, off),
                    mov(0, 5),
                    branch(JEQ, 3, 0, 1),
                    mov(0, 6),
                    alu(ADD, 0, 3),
                    EXIT,
                ];
                assert_eq!(
                    result(&Llvm, &insns, &context),
                    Some(5),
                    "{}",
                    Listing(&insns)
                );
            }
        }
    }
}

#[test]
fn chains_of_loads_give_what_the_light_compiler_gives() {
    for seed in 0..150 {
        let mut random = Random::new(seed);
        let insns = chain(&mut random);
        let context = [0, 64, 0x1000, 1 << 63];
        let [baseline, llvm] =
            [&Baseline as &dyn Compiler, &Llvm].map(|compiler| result(compiler, &insns, &context));
        assert!(
            baseline.is_some() && baseline == llvm,
            "{baseline:x?}, {llvm:x?}, seed {seed}\n{}",
            Listing(&insns)
        );
    }
}

/// Loads pointers, follows them, computes with the results, and folds all into r0.
fn chain(random: &mut Random) -> Vec<Insn> {
    let mut insns = vec![mov_reg(6, 1), mov(0, 0)];
    for register in [2, 3, 4, 5, 7, 8, 9] {
        insns.push(load(register, 6, random.pick(&[0, 8, 16, 24])));
    }
    for _ in 0..12 {
        let (dst, src) = (
            random.pick(&[2, 3, 4, 5, 7, 8, 9]),
            random.pick(&[2, 3, 4, 5, 7, 8, 9]),
        );
        let off = random.pick(&[0, 8, -8, 16, 1000]);
        insns.push(match random.below(5) {
            0 => alu(random.pick(&[ADD, XOR, AND, OR]), dst, src),
            1 => alu_imm(random.pick(&[ADD, AND]), dst, random.below(64) as i32),
            2 => load_as(MEMSX, random.pick(&[B, H, W]), dst, src, off),
            _ => load_as(MEM, random.pick(&[B, H, W, DW]), dst, src, off),
        });
        insns.extend([alu_imm(MUL, 0, 31), alu(XOR, 0, dst)]);
        // The rest is a small number or no address at all, so that it leads nowhere.
        insns.extend([branch(JEQ, dst, 0, 1), alu_imm(AND, dst, 0xff0)]);
    }
    insns.push(EXIT);
    insns
}
