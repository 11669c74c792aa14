//! The lines of `/proc/PID/status` that say what a process may do.

use beeline_runtime::proc;

/// A process's `status`.
#[derive(Debug, Clone)]
pub struct Status(String);

impl Status {
    /// Reads this process's; `None` if `/proc` does not show it.
    pub fn own() -> Option<Self> {
        proc::text("/proc/self/status").ok().map(Self)
    }

    /// Reads another process's.
    pub fn of(pid: i32) -> Option<Self> {
        proc::status(pid).ok().map(Self)
    }

    /// Returns the words of a line.
    fn words(&self, name: &str) -> Option<std::str::SplitWhitespace<'_>> {
        let rest = |line| str::strip_prefix(line, name)?.strip_prefix(':');
        self.0.lines().find_map(rest).map(str::split_whitespace)
    }

    fn number(&self, name: &str) -> Option<u32> {
        self.words(name)?.next()?.parse().ok()
    }

    /// Returns its seccomp mode; `None` where the kernel has no seccomp.
    pub fn seccomp(&self) -> Option<u32> {
        self.number("Seccomp")
    }

    /// Returns the number of its filters.
    pub fn filters(&self) -> Option<u32> {
        self.number("Seccomp_filters")
    }

    /// Returns its state letter.
    pub fn state(&self) -> Option<char> {
        self.words("State")?.next()?.chars().next()
    }

    /// Returns its real user id.
    pub fn user(&self) -> Option<u32> {
        self.number("Uid")
    }

    /// Returns the number of its threads.
    pub fn threads(&self) -> Option<u32> {
        self.number("Threads")
    }

    /// Returns the thread that traces it; `None` if none does.
    pub fn tracer(&self) -> Option<i32> {
        let tracer = self.words("TracerPid")?.next()?.parse().ok()?;
        (tracer != 0).then_some(tracer)
    }

    /// Returns its effective capabilities.
    pub fn capabilities(&self) -> Option<u64> {
        u64::from_str_radix(self.words("CapEff")?.next()?, 16).ok()
    }

    /// Returns whether it gains no privileges by `execve`.
    pub fn gains_nothing(&self) -> bool {
        self.number("NoNewPrivs") == Some(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_found_by_their_whole_name() {
        let status = Status("Name:\tSeccomp: 7\nState:\tS (sleeping)\nUid:\t1000\t0\t0\t0\nThreads:\t3\nTracerPid:\t0\nNoNewPrivs:\t1\nSeccomp:\t2\nSeccomp_filters:\t5\nCapEff:\t0000000000080000\n".to_owned());
        assert_eq!((status.seccomp(), status.filters()), (Some(2), Some(5)));
        assert_eq!((status.state(), status.user()), (Some('S'), Some(1000)));
        assert_eq!((status.threads(), status.tracer()), (Some(3), None));
        assert_eq!(status.capabilities(), Some(1 << 19));
        assert!(status.gains_nothing());
    }
}
