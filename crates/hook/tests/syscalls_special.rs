//! Calls that return twice, or never, or late: hooked in each form, they behave as before.

mod support;

use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicI32, AtomicU64};

use beeline_hook::{CallForm, CallSites, Function};
use beeline_uapi::signal::{SA_RESTORER, Sigaction};
use iced_x86::IcedError;
use iced_x86::code_asm::*;

use support::child::in_a_child;
use support::memory::Pool;
use support::syscalls::{self, Hooks, Mode};

/// The code that loads the call's number into its register, and the code behind the call.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Way {
    InPlace,
    MovedStatic,
    Dynamic,
}

const WAYS: [Way; 3] = [Way::InPlace, Way::MovedStatic, Way::Dynamic];

/// A call with four arguments, `(second to fourth argument of the function)`, the third zero; the
/// function's first is the number. `then` uses the result.
fn code(
    way: Way,
    number: i64,
    then: impl Fn(&mut CodeAssembler) -> Result<(), IcedError>,
) -> Vec<u8> {
    let write = || {
        let mut a = CodeAssembler::new(64)?;
        let mut behind = a.create_label();
        a.mov(rax, rdi)?;
        a.mov(rdi, rsi)?;
        a.mov(rsi, rdx)?;
        a.mov(rdx, rcx)?;
        if way == Way::MovedStatic {
            a.cmp(rax, -1)?;
            a.je(behind)?;
        }
        if way != Way::Dynamic {
            a.mov(eax, number as i32)?;
        }
        a.syscall()?;
        a.set_label(&mut behind)?;
        a.cmp(rax, -4096)?;
        then(&mut a)?;
        a.assemble(0x1000)
    };
    write().unwrap()
}

type Function4 = extern "sysv64" fn(i64, u64, u64, u64) -> i64;

fn as_function(address: u64) -> Function4 {
    // SAFETY: only used for code made by `code`.
    unsafe { std::mem::transmute(address) }
}

fn hooked(hooks: &mut Hooks, way: Way, code: &[u8]) -> Function4 {
    let (function, plans) = hooks.hooked(code);
    let (form, is_known) = match way {
        Way::InPlace => (CallForm::InPlace, true),
        Way::MovedStatic => (CallForm::Moved, true),
        Way::Dynamic => (CallForm::Moved, false),
    };
    assert_eq!(
        (plans[0].form(), plans[0].number.is_some()),
        (form, is_known)
    );
    as_function(function)
}

fn in_children(test: impl Fn(Way, &mut Hooks)) {
    for way in WAYS {
        in_a_child(|| {
            syscalls::reset(Mode::Look, 0);
            let mut hooks = Hooks::new(Pool::new(1 << 16));
            test(way, &mut hooks);
        });
    }
}

fn returns(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.ret()
}

/// Exit code of a child.
fn wait(child: i64) -> i32 {
    let mut status = 0;
    // SAFETY: waits for a child of this process.
    let waited = unsafe { libc::waitpid(child as i32, &mut status, 0) };
    assert_eq!(i64::from(waited), child);
    assert!(libc::WIFEXITED(status), "{status:#x}");
    libc::WEXITSTATUS(status)
}

#[test]
fn fork_and_clone_return_in_both_processes() {
    let mut clone_arguments = [0u64; 11];
    clone_arguments[4] = libc::SIGCHLD as u64;
    let arguments = clone_arguments.as_ptr() as u64;
    for (number, first, second) in [
        (libc::SYS_fork, 0, 0),
        (libc::SYS_clone, libc::SIGCHLD as u64, 0),
        (
            libc::SYS_clone3,
            arguments,
            size_of_val(&clone_arguments) as u64,
        ),
    ] {
        in_children(|way, hooks| {
            let function = hooked(hooks, way, &code(way, number, returns));
            syscalls::watch_all();
            let child = function(number, first, second, 0);
            let seen = syscalls::numbers();
            if child == 0 {
                let is_right = seen == [(number as u64, false), (number as u64, true)];
                // SAFETY: the end of the child.
                unsafe { libc::_exit(if is_right { 7 } else { 8 }) };
            }
            assert!(child > 0, "{child}");
            assert_eq!(wait(child), 7);
            assert_eq!(seen, [(number as u64, false), (number as u64, true)]);
        });
    }
}

/// The child ends by itself; its parent returns.
fn child_exits(a: &mut CodeAssembler) -> Result<(), IcedError> {
    let mut is_parent = a.create_label();
    a.test(eax, eax)?;
    a.jne(is_parent)?;
    a.mov(edi, 5)?;
    a.mov(eax, libc::SYS_exit as i32)?;
    a.syscall()?;
    a.ud2()?;
    a.set_label(&mut is_parent)?;
    a.ret()
}

#[test]
fn vfork_shares_the_stack() {
    in_children(|way, hooks| {
        let number = libc::SYS_vfork;
        let function = hooked(hooks, way, &code(way, number, child_exits));
        syscalls::watch_all();
        let child = function(number, 0, 0, 0);
        let seen = syscalls::seen();
        assert_eq!(wait(child), 5);
        let seen: Vec<_> = seen
            .iter()
            .map(|seen| (seen.number() as i64, seen.is_exit, seen.result() as i64))
            .collect();
        assert_eq!(
            seen,
            [
                (number, false, -38),
                (number, true, 0),
                (libc::SYS_exit, false, -38),
                (number, true, child)
            ]
        );
    });
}

#[test]
fn a_thread_begins_on_its_own_stack() {
    static DONE: AtomicI32 = AtomicI32::new(0);
    const FLAGS: i32 = libc::CLONE_VM
        | libc::CLONE_FS
        | libc::CLONE_FILES
        | libc::CLONE_SIGHAND
        | libc::CLONE_THREAD
        | libc::CLONE_SYSVSEM
        | libc::CLONE_CHILD_CLEARTID;
    in_children(|way, hooks| {
        let number = libc::SYS_clone;
        DONE.store(1, SeqCst);
        let then = |a: &mut CodeAssembler| child_exits(a);
        let mut code = code(way, number, then);
        // mov r10, r8: the fourth argument.
        code.splice(0..0, *b"\x4d\x89\xc2");
        let (function, _) = hooks.hooked(&code);
        // SAFETY: code made above, with an argument more.
        let function = unsafe {
            std::mem::transmute::<u64, extern "sysv64" fn(i64, u64, u64, u64, *const i32) -> i64>(
                function,
            )
        };
        let stack = vec![0u64; 4096];
        syscalls::watch_all();
        let top = stack.as_ptr_range().end as u64;
        let thread = function(number, FLAGS as u64, top, 0, DONE.as_ptr());
        assert!(thread > 0, "{thread}");
        while DONE.load(SeqCst) != 0 {
            std::hint::spin_loop();
        }
        syscalls::watch(|_| (false, false));
        let seen = syscalls::seen();
        let on_stack = |pointer: u64| pointer == top;
        let began: Vec<_> = seen.iter().filter(|seen| on_stack(seen.regs[19])).collect();
        let numbers: Vec<_> = began
            .iter()
            .map(|seen| (seen.number() as i64, seen.is_exit))
            .collect();
        assert_eq!(numbers, [(number, true), (libc::SYS_exit, false)]);
        let parent = seen
            .iter()
            .find(|seen| seen.is_exit && !on_stack(seen.regs[19]));
        assert_eq!(parent.unwrap().result() as i64, thread);
    });
}

static HANDLED: AtomicU64 = AtomicU64::new(0);

extern "C" fn handler(_: i32) {
    HANDLED.fetch_add(1, Relaxed);
}

#[test]
fn a_signal_handler_returns_through_a_hook() {
    in_a_child(|| {
        syscalls::reset(Mode::Look, 0);
        let mut hooks = Hooks::new(Pool::new(1 << 16));
        // xor eax, eax; or al, 15; syscall: the code is not taken for a restorer.
        let restorer = b"\x31\xc0\x0c\x0f\x0f\x05\x0f\x1f\x00\x0f\x0b";
        let (restorer, plans) = hooks.hooked(restorer);
        assert_eq!(plans[0].number, None);
        let action = Sigaction {
            handler: handler as *const () as u64,
            flags: SA_RESTORER,
            restorer,
            mask: 0,
        };
        // SAFETY: the kernel's own structure; the handler only counts.
        let result = unsafe { libc::syscall(libc::SYS_rt_sigaction, libc::SIGUSR1, &action, 0, 8) };
        assert_eq!(result, 0);
        syscalls::watch_all();
        // SAFETY: a signal to this thread, which has a handler.
        unsafe { libc::raise(libc::SIGUSR1) };
        assert_eq!(HANDLED.load(Relaxed), 1);
        assert_eq!(
            syscalls::numbers(),
            [(libc::SYS_rt_sigreturn as u64, false)]
        );
    });
}

fn pipe() -> [i32; 2] {
    let mut ends = [0; 2];
    // SAFETY: room for two descriptors.
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
    ends
}

/// Waits until a thread or process sleeps in `read`.
fn wait_for_read(thread: i32) {
    let path = format!("/proc/{thread}/syscall");
    while !std::fs::read_to_string(&path).unwrap().starts_with("0 ") {
        std::thread::yield_now();
    }
}

#[test]
fn a_signal_interrupts_or_restarts_a_call() {
    in_children(|way, hooks| {
        let function = hooked(hooks, way, &code(way, libc::SYS_read, returns));
        syscalls::watch_all();
        for (flags, result) in [(0, -4), (libc::SA_RESTART, 1)] {
            syscalls::reset(Mode::Look, 0);
            syscalls::watch_all();
            let ends = pipe();
            // SAFETY: a handler that only counts; a thread that is alive until it is joined; one
            // byte.
            unsafe {
                let mut action = std::mem::zeroed::<libc::sigaction>();
                action.sa_sigaction = handler as *const () as usize;
                action.sa_flags = flags;
                libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut());
                let (sender, id) = std::sync::mpsc::channel();
                let reader = std::thread::spawn(move || {
                    sender.send((libc::gettid(), libc::pthread_self())).unwrap();
                    let mut byte = 0u8;
                    function(libc::SYS_read, ends[0] as u64, &raw mut byte as u64, 1)
                });
                let (tid, thread) = id.recv().unwrap();
                wait_for_read(tid);
                let before = HANDLED.load(SeqCst);
                libc::pthread_kill(thread, libc::SIGUSR1);
                while HANDLED.load(SeqCst) == before {
                    std::thread::yield_now();
                }
                assert_eq!(libc::write(ends[1], (&raw const flags).cast(), 1), 1);
                assert_eq!(reader.join().unwrap(), result);
            }
            let exit = syscalls::seen()[1];
            assert_eq!(syscalls::numbers(), [(0, false), (0, true)]);
            assert_eq!(exit.result() as i64, result);
        }
    });
}

/// Patches a child that sleeps in a call, as a tracer does: it wakes up in the hook, or in a call
/// that is made again there.
#[test]
fn a_call_that_sleeps_is_taken_into_the_hook() {
    in_children(|way, hooks| {
        let code = code(way, libc::SYS_read, returns);
        let start = hooks.pool.push(&code);
        let function = as_function(start);
        let place = hooks.pool.push(&[0; 1024]);
        let ends = pipe();
        syscalls::watch_all();
        // SAFETY: the child leaves by `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let mut bytes = [0u8; 2];
            let first = function(libc::SYS_read, ends[0] as u64, bytes.as_mut_ptr() as u64, 1);
            let seen = syscalls::numbers();
            let second = function(libc::SYS_read, ends[0] as u64, bytes.as_mut_ptr() as u64, 1);
            // A call with an unknown number has no exit without an entry.
            let woken: &[_] = if way == Way::Dynamic {
                &[]
            } else {
                &[(0, true)]
            };
            let is_right = (first, second) == (1, 1)
                && seen == woken
                && syscalls::numbers()[seen.len()..] == [(0, false), (0, true)];
            // SAFETY: the end of the child.
            unsafe { libc::_exit(if is_right { 0 } else { 1 }) };
        }
        wait_for_read(child);

        let sites = CallSites::of(&[Function { start, code: &code }], |_| None);
        let stub = sites.plans[0].emit(place, &hooks.common, 2).unwrap();
        // SAFETY: a child of this process, stopped from here to the detach; room for its registers.
        unsafe {
            libc::ptrace(libc::PTRACE_ATTACH, child, 0, 0);
            assert_eq!(libc::waitpid(child, &mut 0, 0), child);
            let memory = std::fs::File::options()
                .write(true)
                .open(format!("/proc/{child}/mem"))
                .unwrap();
            memory.write_all_at(&stub.bytes, place).unwrap();
            let mut regs = std::mem::zeroed::<libc::user_regs_struct>();
            libc::ptrace(libc::PTRACE_GETREGS, child, 0, &mut regs);
            assert_eq!(regs.rip, sites.plans[0].call + 2);
            for patch in &stub.patches {
                memory.write_all_at(&patch.bytes, patch.site).unwrap();
                if patch.inside.contains(&regs.rip) {
                    let moved = patch.resume_map.iter().find(|(from, _)| *from == regs.rip);
                    regs.rip = moved.unwrap().1;
                    libc::ptrace(libc::PTRACE_SETREGS, child, 0, &regs);
                }
            }
            assert_eq!(regs.rip >= place, way != Way::InPlace);
            libc::ptrace(libc::PTRACE_DETACH, child, 0, 0);
            assert_eq!(libc::write(ends[1], stub.bytes.as_ptr().cast(), 2), 2);
        }
        assert_eq!(wait(child.into()), 0);
    });
}
