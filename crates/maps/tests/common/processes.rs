//! Children that work on maps until they are killed, and the memory through which they report.

use super::children;

/// Zeroed memory that children share.
pub fn shared<T>(count: usize) -> &'static [T] {
    // SAFETY: a new anonymous mapping, zeroed, never unmapped.
    unsafe {
        let at = libc::mmap(
            std::ptr::null_mut(),
            count * size_of::<T>(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        assert_ne!(at, libc::MAP_FAILED);
        std::slice::from_raw_parts(at.cast(), count)
    }
}

/// Does the same as [`children::spawn`], with a priority; the child dies with its parent.
pub fn spawn(nice: i32, work: impl Fn()) -> i32 {
    children::spawn(|| {
        // SAFETY: plain calls. A higher priority saves killed processes a wait for a CPU to die on;
        // where it is forbidden it takes longer.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            libc::setpriority(libc::PRIO_PROCESS, 0, nice);
        }
        work();
    })
}

pub fn nanoseconds() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the result is live and writable.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
