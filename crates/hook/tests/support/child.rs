//! Running a test in a process of its own.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `test` in a forked child; fails if it panics, dies or hangs for a minute.
pub fn in_a_child(test: impl FnOnce()) {
    // SAFETY: the child runs only `test`, and leaves by `_exit`. The C library keeps its own locks
    // usable over a fork.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork");
    if child == 0 {
        // SAFETY: no arguments that could be wrong; nothing of the parent's is flushed or run.
        unsafe {
            libc::alarm(60);
            let failed = catch_unwind(AssertUnwindSafe(test)).is_err();
            libc::_exit(i32::from(failed));
        }
    }
    let mut status = 0;
    // SAFETY: waits for the child just made.
    let waited = unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(waited, child);
    let signal = libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status));
    assert!(
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0,
        "status {status:#x}, signal {signal:?}"
    );
}
