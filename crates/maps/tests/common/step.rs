//! A child that does one operation, single-stepped.

use beeline_maps::Caller;

use super::{Ours, caller};

/// The tag of the child.
pub const DEAD: u32 = 77;

/// Runs `work` in a child, and `check` on a copy of the memory of `ours` after every instruction.
/// Returns the number of steps.
pub fn each_step(ours: &Ours, work: impl Fn(&Caller), check: impl Fn(Ours)) -> usize {
    let child = caller(DEAD, 0);
    // SAFETY: the child uses the map and its stack only, and leaves by _exit.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork failed");
    if pid == 0 {
        // SAFETY: plain calls; stops until the parent steps us.
        unsafe {
            libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
            libc::raise(libc::SIGSTOP);
        }
        work(&child);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(0) };
    }
    let mut steps = 0;
    let mut last = Vec::new();
    loop {
        let mut status = 0;
        // SAFETY: waits for our own child.
        unsafe {
            assert_eq!(libc::waitpid(pid, &mut status, 0), pid);
            if libc::WIFEXITED(status) {
                return steps;
            }
            assert!(libc::WIFSTOPPED(status), "the child died of something else");
        }
        steps += 1;
        let now = ours.memory.bytes();
        if now != last {
            check(copy_of(ours, &now));
            last = now;
        }
        // SAFETY: steps our own stopped child.
        unsafe { libc::ptrace(libc::PTRACE_SINGLESTEP, pid, 0, 0) };
    }
}

/// Makes a map with this memory.
fn copy_of(ours: &Ours, bytes: &[u8]) -> Ours {
    let copy = Ours::new(ours.map.spec(), ours.map.layout().cpus).unwrap();
    // SAFETY: both maps are of the same layout.
    unsafe {
        copy.memory
            .base
            .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
    };
    copy
}
