//! The C library keeps working with every system call hooked, in a child of this process.

mod support;

use std::io::{Read, Write};
use std::os::fd::FromRawFd;

use beeline_hook::{CallForm, CallPlan};

use support::child::in_a_child;
use support::elf::Library;
use support::syscalls::{self, Hooks, Mode};

fn with_libc(test: impl FnOnce(&[CallPlan])) {
    let Some(library) = Library::find("libc.so.6") else {
        eprintln!("skipped: no libc.so.6");
        return;
    };
    in_a_child(|| {
        syscalls::reset(Mode::Look, 0);
        let hooked = Hooks::near(&library).hook_library(&library);
        assert!(hooked.len() > 400, "{}", hooked.len());
        test(&hooked);
    });
}

/// Uses files, memory, sockets and time.
fn calls_of_all_kinds() -> String {
    let directory = std::env::temp_dir().join(format!("beeline-calls-{}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    let path = directory.join("file");
    std::fs::write(&path, "one\ntwo\n").unwrap();
    let link = directory.join("link");
    std::os::unix::fs::symlink("file", &link).unwrap();
    let mut out = std::fs::read_to_string(&link).unwrap();
    let missing = std::fs::metadata(directory.join("missing"));
    out += &format!("{:?}", missing.unwrap_err().raw_os_error());
    out += &format!("{}", std::fs::read_dir(&directory).unwrap().count());
    out += &format!("{}", std::fs::metadata(&path).unwrap().len());
    std::fs::remove_dir_all(&directory).unwrap();
    let (mut one, mut other) = std::os::unix::net::UnixStream::pair().unwrap();
    one.write_all(b"through a socket").unwrap();
    drop(one);
    other.read_to_string(&mut out).unwrap();
    let big = vec![1u8; 8 << 20];
    out += &format!("{}", big.iter().map(|byte| u64::from(*byte)).sum::<u64>());
    std::thread::sleep(std::time::Duration::from_millis(2));
    out
}

#[test]
fn calls_of_all_kinds_have_an_entry_and_an_exit() {
    with_libc(|_| {
        let wanted = calls_of_all_kinds();
        assert_eq!(syscalls::numbers(), []);
        syscalls::watch_all();
        let got = calls_of_all_kinds();
        syscalls::watch(|_| (false, false));
        let numbers = syscalls::numbers();
        assert_eq!(got, wanted);
        assert!(numbers.len() > 50, "{numbers:?}");
        for pair in numbers.chunks(2) {
            assert_eq!(pair, [(pair[0].0, false), (pair[0].0, true)]);
        }
    });
}

#[test]
fn each_kind_of_call_is_seen_once() {
    with_libc(|_| {
        syscalls::watch_all();
        let mut ends = [0; 2];
        // SAFETY: room for two descriptors, each owned by one file afterwards.
        let (mut reader, mut writer) = unsafe {
            assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
            (
                std::fs::File::from_raw_fd(ends[0]),
                std::fs::File::from_raw_fd(ends[1]),
            )
        };
        writer.write_all(b"12345").unwrap();
        let mut got = [0; 5];
        reader.read_exact(&mut got).unwrap();
        // SAFETY: calls without pointers.
        unsafe {
            libc::getppid();
            libc::syscall(libc::SYS_getppid);
            libc::syscall(libc::SYS_close, -1);
        }
        syscalls::watch(|_| (false, false));
        let results: Vec<_> = syscalls::seen()
            .iter()
            .filter(|seen| seen.is_exit)
            .map(|seen| (seen.number() as i64, seen.result() as i64))
            .collect();
        // SAFETY: as above.
        let parent = i64::from(unsafe { libc::getppid() });
        assert_eq!(&got, b"12345");
        assert_eq!(
            results,
            [
                (libc::SYS_pipe2, 0),
                (libc::SYS_write, 5),
                (libc::SYS_read, 5),
                (libc::SYS_getppid, parent),
                (libc::SYS_getppid, parent),
                (libc::SYS_close, -9),
            ]
        );
    });
}

#[test]
fn threads_and_processes() {
    with_libc(|_| {
        syscalls::watch_all();
        let threads: Vec<_> = (0..4)
            .map(|i| {
                std::thread::spawn(move || {
                    let status = std::process::Command::new("/bin/sh")
                        .args(["-c", "exit 7"])
                        .status()
                        .unwrap();
                    (i, status.code())
                })
            })
            .collect();
        for (i, thread) in threads.into_iter().enumerate() {
            assert_eq!(thread.join().unwrap(), (i, Some(7)));
        }
        syscalls::watch(|_| (false, false));
        let numbers = syscalls::numbers();
        let count = |number: i64, is_exit| {
            numbers
                .iter()
                .filter(|seen| **seen == (number as u64, is_exit))
                .count()
        };
        // The children's calls are in this process's memory too if they share it.
        assert_eq!(
            count(libc::SYS_wait4, true) + count(libc::SYS_waitid, true),
            4
        );
        assert!(count(libc::SYS_clone3, false) + count(libc::SYS_clone, false) >= 8);
        assert!(count(libc::SYS_clone3, true) + count(libc::SYS_clone, true) >= 12);
        assert_eq!(count(libc::SYS_execve, false), 4);
        assert_eq!(count(libc::SYS_exit, false), 4);
    });
}

/// A call as the kernel saw it: registers on entry, and on exit.
type Traced = ([u64; 21], Option<[u64; 21]>);

/// Follows the child, which asked for it and stops itself first, to its end; also returns the
/// hooks' records.
fn trace(child: libc::pid_t) -> (Vec<Traced>, Vec<syscalls::Seen>) {
    let mut calls: Vec<Traced> = Vec::new();
    let mut seen = Vec::new();
    let mut inside = false;
    loop {
        let mut status = 0;
        // SAFETY: a child of this process, which is stopped while it is looked at.
        unsafe {
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
            if libc::WIFEXITED(status) {
                assert_eq!(libc::WEXITSTATUS(status), 0);
                return (calls, seen);
            }
            assert!(libc::WIFSTOPPED(status), "{status:#x}");
            if libc::WSTOPSIG(status) == libc::SIGTRAP | 0x80 {
                let mut regs = std::mem::zeroed::<libc::user_regs_struct>();
                libc::ptrace(libc::PTRACE_GETREGS, child, 0, &mut regs);
                let regs = std::mem::transmute::<libc::user_regs_struct, [u64; 27]>(regs);
                let regs: [u64; 21] = regs[..21].try_into().unwrap();
                if inside {
                    calls.last_mut().unwrap().1 = Some(regs);
                } else {
                    calls.push((regs, None));
                }
                inside = !inside;
                if regs[15] == libc::SYS_exit_group as u64 {
                    seen = syscalls::seen_by(child);
                }
            } else {
                libc::ptrace(
                    libc::PTRACE_SETOPTIONS,
                    child,
                    0,
                    libc::PTRACE_O_TRACESYSGOOD,
                );
            }
            libc::ptrace(libc::PTRACE_SYSCALL, child, 0, 0);
        }
    }
}

/// Compares the kernel's own view of each call with the hooks': the same calls, with the same
/// registers.
#[test]
fn the_kernel_sees_the_same() {
    with_libc(|plans| {
        // SAFETY: the child runs as this process would, and leaves by `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: no pointers that matter.
            unsafe {
                libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
                libc::raise(libc::SIGSTOP);
                syscalls::watch_all();
                calls_of_all_kinds();
                libc::syscall(libc::SYS_getpid);
                libc::_exit(0);
            }
        }
        let (traced, seen) = trace(child);
        let entered = seen.iter().filter(|seen| !seen.is_exit).count();
        let traced = &traced[traced.len() - entered..];
        let mut wanted = traced
            .iter()
            .flat_map(|(enter, exit)| [(false, Some(enter)), (true, exit.as_ref())])
            .filter_map(|(is_exit, regs)| Some((is_exit, regs?)));
        let mut moved = 0;
        for got in &seen {
            let (is_exit, regs) = wanted.next().unwrap();
            assert_eq!(got.is_exit, is_exit);
            let plan = plans.iter().find(|plan| plan.call == got.call).unwrap();
            let in_place = plan.form() == CallForm::InPlace;
            moved += u32::from(!in_place);
            for (place, (got, wanted)) in got.regs.iter().zip(regs).enumerate() {
                // r11 and flags; cx and ip if the call is made elsewhere; sp if it is made below a
                // frame.
                let differs = match place {
                    6 | 18 => true,
                    11 | 16 => !in_place,
                    19 => plan.number.is_none(),
                    _ => false,
                };
                assert!(
                    differs || got == wanted,
                    "{plan:?}, {place}: {got:#x}, {wanted:#x}"
                );
            }
        }
        assert_eq!(wanted.next(), None);
        assert!(entered > 25 && moved > 1, "{entered}, {moved}");
    });
}
