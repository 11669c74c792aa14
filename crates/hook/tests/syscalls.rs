//! Hooked system calls have their usual effects, and the hooks see them as the kernel's tracepoints
//! would.

mod support;

use beeline_hook::{CallForm, WATCHED, WATCHED_COMPACTLY};
use iced_x86::IcedError;
use iced_x86::code_asm::*;

use support::memory::Pool;
use support::state::State;
use support::syscalls::{self, Hooks, Mode, TURN};

type Write = fn(&mut CodeAssembler) -> Result<(), IcedError>;

fn assemble(write: Write) -> Vec<u8> {
    let mut asm = CodeAssembler::new(64).unwrap();
    write(&mut asm).unwrap();
    asm.assemble(0x1000).unwrap()
}

const GETPID: u64 = libc::SYS_getpid as u64;

/// Functions that call `getpid`, with the form of the hook, and whether the number is known.
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
            a.nop()?;
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
    (
        "flags from before the call are read behind it",
        |a| {
            a.mov(r12d, i32::MAX)?;
            a.add(r12d, 1)?;
            a.mov(eax, GETPID as i32)?;
            a.syscall()?;
            a.pushfq()?;
            a.pop(r14)?;
            a.mov(rdx, rax)?;
            a.ret()
        },
        CallForm::InPlace,
        true,
    ),
    (
        "flags are read behind a call with a branch to there",
        |a| {
            let mut behind = a.create_label();
            a.cmp(edi, 77)?;
            a.je(behind)?;
            a.mov(eax, GETPID as i32)?;
            a.stc()?;
            a.syscall()?;
            a.set_label(&mut behind)?;
            a.setb(r14b)?;
            a.setp(r13b)?;
            a.mov(rdx, rax)?;
            a.ret()
        },
        CallForm::Moved,
        true,
    ),
];

fn hooks() -> Hooks {
    Hooks::new(Pool::new(1 << 20))
}

/// Returns registers to call a sample with; the first argument is the number, for those that take
/// it.
fn before() -> State {
    let mut state = State::sample(0);
    state.general[7] = GETPID;
    state
}

/// Calls the function; clears the registers that a system call may change.
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
        let plain = hooks.pool.push(&code);
        let (hooked, plans) = hooks.hooked(&code);
        assert_eq!(plans[0].form(), *form, "{name}");
        assert_eq!(plans[0].number.is_some(), *is_known, "{name}");
        let wanted = run(plain, &before());
        for (enter, exit) in (0..9).map(|i| (i / 3, i % 3)) {
            syscalls::reset(Mode::Look, 0);
            syscalls::watch_how(|_| (enter, exit));
            let got = run(hooked, &before());
            assert_eq!(got, wanted, "{name}, {enter} {exit}");
            let each = [(GETPID, false), (GETPID, true)]
                .into_iter()
                .filter(|(_, is_exit)| if *is_exit { exit } else { enter } != 0);
            let all = each.collect::<Vec<_>>().repeat(plans.len());
            assert_eq!(syscalls::numbers(), all, "{name}, {enter} {exit}");
        }
    }
}

/// A kernel uprobe restores the file's first byte when it goes, and with it a wrong number.
#[test]
fn a_jump_whose_first_byte_came_back_makes_the_right_call_still() {
    let _turn = TURN.lock();
    let mut hooks = hooks();
    const UNKNOWN: u64 = 490;
    let known: Write = |a| {
        a.mov(eax, GETPID as i32)?;
        a.syscall()?;
        a.cmp(rax, -4096)?;
        a.seta(dl)?;
        a.ret()
    };
    let unknown: Write = |a| {
        a.mov(eax, UNKNOWN as i32)?;
        a.syscall()?;
        a.cmp(rax, -4096)?;
        a.seta(dl)?;
        a.ret()
    };
    for (number, write) in [(GETPID, known), (UNKNOWN, unknown)] {
        let mut code = assemble(write);
        // Stubs are further away than there are numbers.
        code.extend([0xcc; 4096]);
        let plain = hooks.pool.push(&code);
        let (hooked, plans) = hooks.hooked(&code);
        assert_eq!(plans[0].form(), CallForm::InPlace);
        // SAFETY: the function's first byte, which no thread runs now.
        unsafe { (hooked as *mut u8).write(code[0]) };
        let wanted = run(plain, &before());
        for watched in [0, 1, 2] {
            syscalls::reset(Mode::Look, 0);
            syscalls::watch_how(|_| (watched, watched));
            assert_eq!(run(hooked, &before()), wanted, "{number}, {watched}");
        }
        assert!(syscalls::numbers().contains(&(number, false)));
    }
}

#[test]
fn flags_that_are_read_behind_a_call_are_those_from_before_it() {
    let _turn = TURN.lock();
    let mut hooks = hooks();
    let are_read = |sample: &&(&str, Write, CallForm, bool)| sample.0.contains("flags");
    for (name, write, ..) in SAMPLES.iter().filter(are_read) {
        let code = assemble(*write);
        let plain = hooks.pool.push(&code);
        let (hooked, _) = hooks.hooked(&code);
        let kept = |state: &State| [12, 13, 14].map(|register| state.general[register]);
        let wanted = kept(&run(plain, &before()));
        assert_ne!(wanted, kept(&before()), "{name}");
        for mode in [Mode::Look, Mode::Skip, Mode::Argument, Mode::Result] {
            syscalls::reset(mode, 7);
            syscalls::watch_all();
            assert_eq!(kept(&run(hooked, &before())), wanted, "{name}, {mode:?}");
            assert!(!syscalls::seen().is_empty(), "{name}, {mode:?}");
        }
    }
}

#[test]
fn a_record_holds_the_number_and_the_arguments_or_the_result() {
    let _turn = TURN.lock();
    let mut hooks = hooks();
    for (name, write, _, is_known) in SAMPLES {
        let (hooked, plans) = hooks.hooked(&assemble(*write));
        let seen = |(enter, exit)| {
            syscalls::reset(Mode::Look, 0);
            syscalls::watch_how(|_| (enter, exit));
            run(hooked, &before());
            syscalls::seen()
        };
        let full = seen((WATCHED, WATCHED));
        let compact = seen((WATCHED_COMPACTLY, WATCHED_COMPACTLY));
        let either = [
            seen((WATCHED, WATCHED_COMPACTLY)),
            seen((WATCHED_COMPACTLY, WATCHED)),
        ];
        assert_eq!(full.len(), compact.len(), "{name}");
        assert!(compact.iter().all(|seen| seen.is_compact), "{name}");
        // The frame is one of registers where both sides have one.
        let is_one = |seen: &[syscalls::Seen]| seen.iter().all(|one| !one.is_compact);
        assert!(
            either.iter().all(|seen| is_one(seen) != *is_known),
            "{name}"
        );
        for (full, compact) in full.iter().zip(&compact) {
            assert_eq!(compact.call, full.call, "{name}");
            assert_eq!(compact.regs[..2], [0, GETPID], "{name}");
            let regs = full.regs;
            let arguments = [14, 13, 12, 7, 9, 8].map(|i| regs[i]);
            match full.is_exit {
                false => assert_eq!(compact.regs[2..8], arguments, "{name}"),
                true => assert_eq!(compact.result(), full.result(), "{name}"),
            }
        }
        assert_eq!(full.len(), 2 * plans.len(), "{name}");
    }
}

#[test]
fn hooks_see_what_the_kernel_shows() {
    let _turn = TURN.lock();
    let mut hooks = hooks();
    for (name, write, _, _) in SAMPLES.iter().take(6) {
        let (hooked, plans) = hooks.hooked(&assemble(*write));
        syscalls::reset(Mode::Look, 0);
        syscalls::watch_all();
        let after = run(hooked, &before());
        let [enter, exit] = syscalls::seen()[..] else {
            panic!("{name}: not two");
        };
        assert_eq!((enter.is_exit, exit.is_exit), (false, true));
        let behind = plans[0].call + 2;
        for seen in [enter, exit] {
            assert_eq!(seen.call, plans[0].call);
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

/// The cancellation points of musl and glibc: the flag's test, the arguments, the call.
fn write_cancellation_point(
    a: &mut CodeAssembler,
    is_cancelled: CodeLabel,
) -> Result<(), IcedError> {
    a.mov(eax, dword_ptr(rdi))?;
    a.test(eax, eax)?;
    a.jne(is_cancelled)?;
    for (to, from) in [
        (r11, rdi),
        (rax, rsi),
        (rdi, rdx),
        (rsi, rcx),
        (rdx, r8),
        (r10, r9),
    ] {
        a.mov(to, from)?;
    }
    a.mov(r8, qword_ptr(rsp + 8))?;
    a.mov(r9, qword_ptr(rsp + 16))?;
    a.mov(qword_ptr(rsp + 8), r11)?;
    a.syscall()?;
    a.ret()
}

/// `mmap(0, 4096, 0, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)` by way of a cancellation point, to which
/// rdi points.
const CANCELLABLE: Write = |a| {
    let [mut point, mut cancelled] = [(); 2].map(|()| a.create_label());
    a.push(0)?;
    a.push(-1)?;
    a.mov(esi, libc::SYS_mmap as i32)?;
    a.xor(edx, edx)?;
    a.mov(ecx, 4096)?;
    a.xor(r8d, r8d)?;
    a.mov(r9d, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS)?;
    a.call(point)?;
    a.pop(rdx)?;
    a.pop(rcx)?;
    a.cmp(rax, -4)?;
    a.sete(cl)?;
    a.ret()?;
    a.set_label(&mut point)?;
    write_cancellation_point(a, cancelled)?;
    a.set_label(&mut cancelled)?;
    a.mov(eax, -125)?;
    a.ret()
};

#[test]
fn a_cancellation_point_is_hooked_where_it_is_called() {
    let _turn = TURN.lock();
    let mut hooks = hooks();
    let (hooked, plans) = hooks.hooked(&assemble(CANCELLABLE));
    let [plan] = &plans[..] else {
        panic!("{plans:?}");
    };
    assert_eq!((plan.form(), plan.number), (CallForm::Caller, None));
    let run = |flag: &u32, mode, value| {
        syscalls::reset(mode, value);
        syscalls::watch_all();
        let mut state = before();
        state.general[7] = std::ptr::from_ref(flag) as u64;
        let after = run(hooked, &state);
        for kept in [3, 5, 12, 13, 14, 15] {
            assert_eq!(after.general[kept], state.general[kept]);
        }
        (after.general[0], syscalls::seen())
    };

    let (mapped, seen) = run(&0, Mode::Look, 0);
    // SAFETY: the page that was just mapped, which nothing else knows.
    let unmapped = unsafe { libc::munmap(mapped as *mut libc::c_void, 4096) };
    assert_eq!(unmapped, 0);
    let [enter, exit] = seen[..] else {
        panic!("{seen:?}");
    };
    for seen in [enter, exit] {
        assert_eq!(seen.number(), libc::SYS_mmap as u64);
        assert_eq!(seen.regs[16], plan.call + 2);
        let arguments = [14, 13, 12, 7, 9, 8].map(|place| seen.regs[place]);
        assert_eq!(arguments, [0, 4096, 0, 0x22, u64::MAX, 0]);
    }
    assert_eq!((enter.is_exit, exit.is_exit), (false, true));
    assert_eq!((enter.result().cast_signed(), exit.result()), (-38, mapped));

    let cancelled = (-125i32).cast_unsigned();
    assert_eq!(run(&1, Mode::Look, 0).0, u64::from(cancelled));
    let (result, seen) = run(&0, Mode::Skip, 99);
    assert_eq!((result, seen.len()), (99, 1));
    let (result, seen) = run(&0, Mode::Number, GETPID);
    assert_eq!((result, seen.len()), (u64::from(std::process::id()), 2));
    assert_eq!(seen[1].number(), GETPID);
    // Not a multiple of a page.
    let (result, seen) = run(&0, Mode::Argument, 1);
    assert_eq!((result, seen[1].result()), (seen[1].result(), result));
    syscalls::watch(|_| (false, false));
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
            syscalls::reset(mode, value);
            syscalls::watch_all();
            (
                run(hooked, &state).general[0].cast_signed(),
                syscalls::numbers().len(),
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
