//! Hooked system calls do what they did, and the hooks see them as the kernel's tracepoints would.

mod support;

use beeline_hook::CallForm;
use iced_x86::IcedError;
use iced_x86::code_asm::*;

use support::calls::{self, Hooks, Mode, TURN};
use support::memory::Arena;
use support::state::State;

type Write = fn(&mut CodeAssembler) -> Result<(), IcedError>;

fn assemble(write: Write) -> Vec<u8> {
    let mut asm = CodeAssembler::new(64).unwrap();
    write(&mut asm).unwrap();
    asm.assemble(0x1000).unwrap()
}

const GETPID: u64 = libc::SYS_getpid as u64;

/// Functions that call `getpid`, what form the hook has, and whether the number is known.
const SAMPLES: &[(&str, Write, CallForm, bool)] = &[
    (
        "as compilers write it",
        |a| {
            a.mov(eax, GETPID as i32)?;
            a.syscall()?;
            a.cmp(rax, -4096)?;
            a.seta(dl)?;
            a.ret()
        },
        CallForm::InPlace,
        true,
    ),
    (
        "return and padding behind",
        |a| {
            a.mov(ebx, GETPID as i32)?;
            a.mov(eax, ebx)?;
            a.syscall()?;
            a.ret()?;
            a.db(&[0xcc; 8])
        },
        CallForm::InPlace,
        true,
    ),
    (
        "short instructions around",
        |a| {
            let mut again = a.create_label();
            a.push(GETPID as i32)?;
            a.pop(rax)?;
            a.jmp(again)?;
            a.set_label(&mut again)?;
            a.inc(rdi)?;
            a.syscall()?;
            a.mov(rbx, rax)?;
            a.ret()
        },
        CallForm::Moved,
        false,
    ),
    (
        "a branch behind the call",
        |a| {
            let mut behind = a.create_label();
            a.cmp(edi, 77)?;
            a.je(behind)?;
            a.mov(eax, GETPID as i32)?;
            a.syscall()?;
            a.set_label(&mut behind)?;
            a.mov(rdx, rax)?;
            a.ret()
        },
        CallForm::Moved,
        true,
    ),
    (
        "a branch to the call",
        |a| {
            let mut call = a.create_label();
            a.mov(eax, GETPID as i32)?;
            a.cmp(edi, 77)?;
            a.je(call)?;
            a.nop()?;
            a.set_label(&mut call)?;
            a.syscall()?;
            a.mov(r12, rax)?;
            a.ret()
        },
        CallForm::Moved,
        false,
    ),
    (
        "the number is an argument",
        |a| {
            a.mov(rax, rdi)?;
            a.mov(rdi, rsi)?;
            a.syscall()?;
            a.ret()
        },
        CallForm::Moved,
        false,
    ),
    (
        "the red zone is in use",
        |a| {
            a.mov(qword_ptr(rsp - 8), rsi)?;
            a.mov(qword_ptr(rsp - 128), rbx)?;
            a.mov(eax, GETPID as i32)?;
            a.syscall()?;
            a.mov(r8, qword_ptr(rsp - 8))?;
            a.mov(r9, qword_ptr(rsp - 128))?;
            a.ret()
        },
        CallForm::InPlace,
        true,
    ),
    (
        "the red zone is in use, and the number an argument",
        |a| {
            a.mov(qword_ptr(rsp - 8), rsi)?;
            a.mov(qword_ptr(rsp - 128), rbx)?;
            a.mov(eax, edi)?;
            a.syscall()?;
            a.mov(r8, qword_ptr(rsp - 8))?;
            a.mov(r9, qword_ptr(rsp - 128))?;
            a.ret()
        },
        CallForm::Moved,
        false,
    ),
    (
        "two calls close to each other",
        |a| {
            a.mov(eax, GETPID as i32)?;
            a.syscall()?;
            a.mov(r12, rax)?;
            a.mov(eax, GETPID as i32)?;
            a.syscall()?;
            a.mov(r13, rax)?;
            a.ret()
        },
        CallForm::InPlace,
        true,
    ),
    (
        "an odd stack pointer",
        |a| {
            a.lea(rsp, ptr(rsp - 133))?;
            a.mov(eax, GETPID as i32)?;
            a.syscall()?;
            a.lea(rsp, ptr(rsp + 133))?;
            a.ret()
        },
        CallForm::InPlace,
        true,
    ),
];

fn hooks() -> Hooks {
    Hooks::new(Arena::new(1 << 20))
}

/// Registers to call a sample with; the first argument is the number, for those that take it.
fn before() -> State {
    let mut state = State::sample(0);
    state.general[7] = GETPID;
    state
}

/// Calls the function; what a system call may change is cleared.
fn run(function: u64, before: &State) -> State {
    // SAFETY: a sample, which returns.
    let mut after = unsafe { before.call(function) };
    after.general[1] = 0;
    after.general[11] = 0;
    after.flags = 0;
    after
}

#[test]
fn nothing_but_the_result_changes() {
    let _turn = TURN.lock();
    let mut hooks = hooks();
    for (name, write, form, is_known) in SAMPLES {
        let code = assemble(*write);
        let plain = hooks.arena.push(&code);
        let (hooked, plans) = hooks.hooked(&code);
        assert_eq!(plans[0].form(), *form, "{name}");
        assert_eq!(plans[0].number.is_some(), *is_known, "{name}");
        let wanted = run(plain, &before());
        for (enter, exit) in [(false, false), (true, false), (false, true), (true, true)] {
            calls::reset(Mode::Look, 0);
            calls::watch(|_| (enter, exit));
            let got = run(hooked, &before());
            assert_eq!(got, wanted, "{name}, {enter} {exit}");
            let each = [(GETPID, false), (GETPID, true)]
                .into_iter()
                .filter(|(_, is_exit)| if *is_exit { exit } else { enter });
            let all = each.collect::<Vec<_>>().repeat(plans.len());
            assert_eq!(calls::numbers(), all, "{name}");
        }
    }
}

#[test]
fn hooks_see_what_the_kernel_shows() {
    let _turn = TURN.lock();
    let mut hooks = hooks();
    for (name, write, _, _) in SAMPLES.iter().take(6) {
        let (hooked, plans) = hooks.hooked(&assemble(*write));
        calls::reset(Mode::Look, 0);
        calls::watch_all();
        let after = run(hooked, &before());
        let [enter, exit] = calls::seen()[..] else {
            panic!("{name}: not two");
        };
        assert_eq!((enter.is_exit, exit.is_exit), (false, true));
        let behind = plans[0].call + 2;
        for seen in [enter, exit] {
            assert_eq!(seen.descriptor, calls::DESCRIPTOR);
            assert_eq!(
                (seen.regs[16], seen.regs[11]),
                (behind, behind),
                "{name}: ip, cx"
            );
            assert_eq!(
                (seen.regs[17], seen.regs[20]),
                (0x33, 0x2b),
                "{name}: cs, ss"
            );
            assert_eq!(
                (seen.regs[6], seen.regs[18]),
                (0x202, 0x202),
                "{name}: r11, flags"
            );
            assert_eq!(seen.regs[..6], exit.regs[..6], "{name}: kept registers");
            assert_eq!(seen.regs[9], 0x0909_0909_0909_0909, "{name}: r8");
        }
        assert_eq!(enter.result(), (-38i64).cast_unsigned(), "{name}");
        assert_eq!(exit.result(), u64::from(std::process::id()), "{name}");
        assert_eq!(exit.regs[19], enter.regs[19], "{name}: sp");
        assert_eq!(after.general[0], exit.result(), "{name}");
    }
}

#[test]
fn a_hook_may_do_the_call_itself_and_change_all_of_it() {
    let _turn = TURN.lock();
    let mut hooks = hooks();
    let close: Write = |a| {
        a.mov(eax, libc::SYS_close as i32)?;
        a.syscall()?;
        a.cmp(rax, -4096)?;
        a.ret()
    };
    let any: Write = |a| {
        a.mov(rax, rsi)?;
        a.syscall()?;
        a.ret()
    };
    let after_branch: Write = |a| {
        let mut behind = a.create_label();
        a.cmp(edi, -77)?;
        a.je(behind)?;
        a.mov(eax, libc::SYS_close as i32)?;
        a.syscall()?;
        a.set_label(&mut behind)?;
        a.mov(rdx, rax)?;
        a.ret()
    };
    for write in [close, any, after_branch] {
        let (hooked, _) = hooks.hooked(&assemble(write));
        let mut state = before();
        state.general[6] = libc::SYS_close as u64;
        // Not a descriptor.
        state.general[7] = u64::from(u32::MAX);
        let run = |mode, value| {
            calls::reset(mode, value);
            calls::watch_all();
            (
                run(hooked, &state).general[0].cast_signed(),
                calls::numbers().len(),
            )
        };
        assert_eq!(run(Mode::Look, 0), (-9, 2));
        assert_eq!(run(Mode::Skip, 1234), (1234, 1));
        assert_eq!(run(Mode::Result, 4321), (4321, 2));
        assert_eq!(
            run(Mode::Number, GETPID),
            (i64::from(std::process::id()), 2)
        );
        // SAFETY: a descriptor that nothing else knows.
        let descriptor = unsafe { libc::dup(2) };
        assert_eq!(run(Mode::Argument, descriptor as u64), (0, 2));
        // SAFETY: only asks whether it is closed.
        assert_eq!(unsafe { libc::fcntl(descriptor, libc::F_GETFD) }, -1);
    }
}
