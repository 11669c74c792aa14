//! Children that work on a map until they are killed.

/// Forks a child that runs `work` for ever, or until the calling thread ends; returns its pid. The
/// child must not allocate.
pub fn spawn(work: impl Fn()) -> i32 {
    // SAFETY: the child touches the maps and its stack only.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork failed");
    if pid == 0 {
        // SAFETY: plain call.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        loop {
            work();
        }
    }
    pid
}

pub fn kill(pid: i32) {
    // SAFETY: our own child, not yet waited for.
    unsafe {
        libc::kill(pid, libc::SIGKILL);
        libc::waitpid(pid, std::ptr::null_mut(), 0);
    }
}

/// A small generator of random numbers that needs no memory of its own.
pub fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}
