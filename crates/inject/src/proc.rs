//! Facts from `/proc/PID` about a process or one of its threads.

use std::path::PathBuf;

use crate::arch::SYSCALL_LEN;

/// The lines of `/proc/PID/status` that decide whether a process can be worked on.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Status {
    /// `R`, `S`, `D`, `T`, `t`, `Z`, `X`, `I`; NUL if the line is missing.
    pub state: char,
    /// The process, if this is a thread's.
    pub process: Option<i32>,
    /// Its number in its own, innermost pid namespace.
    pub own: Option<i32>,
    /// The thread that traces it; 0 for none.
    pub tracer: i32,
    /// Real user id.
    pub uid: u32,
    /// 0 off, 1 strict, 2 filter.
    pub seccomp: u32,
    /// Signals that are ignored, bit n-1 for signal n.
    pub ignored: u64,
    /// Signals that have a handler.
    pub caught: u64,
    /// Signals that are blocked now. In a call with a mask of its own, that mask counts.
    pub blocked: u64,
    /// Signals that are pending for the thread or the process.
    pub pending: u64,
}

impl Status {
    /// Reads the file's text. An unknown or odd line is skipped.
    pub fn parse(text: &[u8]) -> Self {
        let mut status = Self::default();
        for line in String::from_utf8_lossy(text).lines() {
            let Some((name, rest)) = line.split_once(':') else {
                continue;
            };
            let first = rest.split_whitespace().next().unwrap_or("");
            match name {
                "State" => status.state = first.chars().next().unwrap_or('\0'),
                "Tgid" => status.process = first.parse().ok(),
                "NSpid" => {
                    let own = rest.split_whitespace().next_back();
                    status.own = own.and_then(|own| own.parse().ok());
                }
                "TracerPid" => status.tracer = first.parse().unwrap_or(0),
                "Uid" => status.uid = first.parse().unwrap_or(0),
                "Seccomp" => status.seccomp = first.parse().unwrap_or(0),
                "SigBlk" => status.blocked = u64::from_str_radix(first, 16).unwrap_or(0),
                "SigPnd" | "ShdPnd" => {
                    status.pending |= u64::from_str_radix(first, 16).unwrap_or(0);
                }
                "SigCgt" => status.caught = u64::from_str_radix(first, 16).unwrap_or(u64::MAX),
                "SigIgn" => status.ignored = u64::from_str_radix(first, 16).unwrap_or(0),
                _ => {}
            }
        }
        status
    }

    /// True for a zombie, or a process about to become one: its memory is gone.
    pub fn is_dead(&self) -> bool {
        is_dead(self.state)
    }
}

/// A thread that sleeps in a system call, as its `/proc/PID/task/TID/syscall` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asleep {
    /// The call's number.
    pub number: i64,
    /// The address behind the instruction that made the call.
    pub ip: u64,
}

impl Asleep {
    /// Reads the file's text: the call's number, six arguments, the stack pointer and the
    /// instruction pointer. `None` if the thread runs, or sleeps for another reason, which shows as
    /// the call -1.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        let mut words = text.split_ascii_whitespace();
        let number = words.next()?.parse().ok().filter(|number| *number >= 0)?;
        let ip = words.nth(7)?.strip_prefix("0x")?;
        let ip = u64::from_str_radix(ip, 16).ok()?;
        Some(Self { number, ip })
    }

    /// Returns the address of the `syscall` instruction, if it was one.
    pub fn call(&self) -> u64 {
        self.ip.wrapping_sub(SYSCALL_LEN)
    }
}

/// True if a state letter means that the thread will never run again.
pub(crate) fn is_dead(state: char) -> bool {
    matches!(state, 'Z' | 'X' | 'x')
}

/// Returns the state letter and `PF_*` flags of `/proc/PID/stat`. The name in it may hold anything,
/// including blanks and brackets, so the fields are counted from the last bracket.
pub(crate) fn state_and_flags(stat: &[u8]) -> Option<(char, u64)> {
    let text = String::from_utf8_lossy(stat);
    let state = field(&text, 3)?.chars().next()?;
    let flags = field(&text, 9)?.parse().ok()?;
    Some((state, flags))
}

/// Returns the number of threads of the process that a `/proc/PID/stat` is of; the start of the
/// text is enough. `None` if the process has ended.
pub(crate) fn thread_count(stat: &[u8]) -> Option<usize> {
    let text = String::from_utf8_lossy(stat);
    // The next field is there, so the number is whole.
    field(&text, 21)?;
    field(&text, 20)?.parse().ok().filter(|count| *count > 0)
}

/// Returns where the heap of the process of `/proc/PID/stat` begins; `None` where the kernel does
/// not tell.
pub(crate) fn heap_start(stat: &[u8]) -> Option<u64> {
    let start = field(&String::from_utf8_lossy(stat), 47)?.parse().ok()?;
    (start != 0).then_some(start)
}

/// Returns a field of `/proc/PID/stat` behind the name, counted from 1 as in proc_pid_stat(5).
fn field(stat: &str, number: usize) -> Option<&str> {
    const STATE: usize = 3;
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(number - STATE)
}

/// Returns the control group that holds a process frozen, if one does, by its path in its
/// hierarchy; see `cgroup-v1/freezer-subsystem.rst` and `cgroup.events` in `cgroup-v2.rst`.
pub(crate) fn frozen_group(pid: i32) -> Option<PathBuf> {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    groups.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        let (file, word) = match controllers {
            "" => (format!("{MOUNTED}{path}/cgroup.events"), "frozen 1"),
            "freezer" => (format!("{MOUNTED}/freezer{path}/freezer.state"), "FROZEN"),
            _ => return None,
        };
        let state = std::fs::read_to_string(file).ok()?;
        let is_frozen = state.lines().any(|line| line == word);
        is_frozen.then(|| PathBuf::from(path))
    })
}

/// The mount point of control groups.
const MOUNTED: &str = "/sys/fs/cgroup";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleepers_show_their_call() {
        let text = b"230 0x0 0x0 0x7ffd0 0x0 0x0 0x0 0x7ffc8 0x7f12e\n";
        let asleep = Asleep {
            number: 230,
            ip: 0x7f12e,
        };
        assert_eq!(Asleep::parse(text), Some(asleep));
        assert_eq!(asleep.call(), 0x7f12c);
        for other in [
            "running\n",
            "-1 0x7ffc8 0x7f12e\n",
            "",
            "230",
            "1 0 0 0 0 0 0 0 x",
        ] {
            assert_eq!(Asleep::parse(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn status_with_an_odd_name() {
        let text = b"Name:\tState: Z \xff\nState:\tt (tracing stop)\nTgid:\t41\nTracerPid:\t42\nNSpid:\t41\t1\nUid:\t1000\t0\t0\t0\nSeccomp:\t2\nSigPnd:\t0000000000000001\nShdPnd:\t0000000000000010\nSigBlk:\t0000000000000003\nSigIgn:\t0000000000000010\nSigCgt:\t0000000000000004\n";
        let status = Status::parse(text);
        assert_eq!(
            status,
            Status {
                state: 't',
                process: Some(41),
                own: Some(1),
                tracer: 42,
                uid: 1000,
                seccomp: 2,
                ignored: 16,
                caught: 4,
                blocked: 3,
                pending: 0x11,
            }
        );
        assert!(!status.is_dead());
    }

    #[test]
    fn stat_with_brackets_in_the_name() {
        let (state, flags) = state_and_flags(b"7 (a) Z 1 (b) S 1 7 7 0 -1 2097152 0 0").unwrap();
        assert_eq!((state, flags), ('S', beeline_uapi::linux::PF_KTHREAD));
        assert_eq!(state_and_flags(b"garbage"), None);
        assert_eq!(heap_start(b"7 (a) S 1"), None);
    }

    #[test]
    fn a_cut_number_of_threads_is_none() {
        let stat = b"7 (a) S 1 7 7 0 -1 2097152 0 0 0 0 0 0 0 0 20 0 13 0 5";
        assert_eq!(thread_count(stat), Some(13));
        assert_eq!(thread_count(&stat[..stat.len() - 4]), None);
        assert_eq!(thread_count(&stat[..stat.len() - 5]), None);
        let ended = b"7 (a) Z 1 7 7 0 -1 2097152 0 0 0 0 0 0 0 0 20 0 0 0 5";
        assert_eq!(thread_count(ended), None);
    }

    #[test]
    fn the_heap_starts_where_the_kernel_says() {
        let stat = std::fs::read("/proc/self/stat").unwrap();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let heap = maps.lines().find(|line| line.ends_with("[heap]")).unwrap();
        let start = heap.split('-').next().unwrap();
        assert_eq!(heap_start(&stat), u64::from_str_radix(start, 16).ok());
    }
}
