//! Facts about processes from `/proc`. A process is free to give itself any name, so none of them
//! need be UTF-8.

use std::fs::{self, File};
use std::io::{self, Read};
use std::ops::Range;
use std::path::Path;

/// Returns all process ids.
pub fn all_processes() -> Vec<i32> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// Reads all of a file. The kernel reports a length of 0, so a reader that relies on the length
/// would read it bit by bit.
///
/// # Errors
///
/// The system's error if the file cannot be opened or read.
pub fn text(path: impl AsRef<Path>) -> io::Result<String> {
    const USUAL: usize = 16 << 10;
    let mut bytes = Vec::with_capacity(USUAL);
    File::open(path)?.take(u64::MAX).read_to_end(&mut bytes)?;
    Ok(lossy(bytes))
}

fn lossy(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// Returns a process's `status`.
///
/// # Errors
///
/// Those of [`text`].
pub fn status(pid: i32) -> io::Result<String> {
    text(format!("/proc/{pid}/status"))
}

/// Reads a field of `/proc/PID/status`, by its name with the colon.
pub fn status_field(pid: i32, name: &str) -> Option<String> {
    let status = status(pid).ok()?;
    let field = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(field.trim().to_owned())
}

/// Returns its number in its own, innermost pid namespace.
pub fn own_pid(pid: i32) -> i32 {
    let numbers = status_field(pid, "NSpid:");
    let own = numbers.and_then(|numbers| numbers.split_whitespace().last()?.parse().ok());
    own.unwrap_or(pid)
}

/// Returns the process that a thread belongs to.
pub fn process_of(tid: i32) -> Option<i32> {
    status_field(tid, "Tgid:")?.parse().ok()
}

/// Returns where a thread goes on that sleeps in a system call, or is about to. `None` if it is
/// running, or may not be looked at.
pub fn ip_in_call(pid: i32, tid: i32) -> Option<u64> {
    /// The number of looks at a thread that has yet to fall asleep.
    const LOOKS: usize = 100;
    for _ in 0..LOOKS {
        let call = text(format!("/proc/{pid}/task/{tid}/syscall")).ok()?;
        match call.split_whitespace().last()?.strip_prefix("0x") {
            Some(ip) => return u64::from_str_radix(ip, 16).ok(),
            None => std::thread::yield_now(),
        }
    }
    None
}

/// A process's `stat`.
#[derive(Debug)]
pub struct Stat(String);

impl Stat {
    /// Returns `None` if the process has ended and has been waited for.
    pub fn of(pid: i32) -> Option<Self> {
        // The kernel gives it whole to a reader with enough room, and its 52 numbers and the name
        // need no more.
        const LONGEST: usize = 2048;
        let mut bytes = vec![0; LONGEST];
        let len = File::open(format!("/proc/{pid}/stat"))
            .and_then(|mut file| file.read(&mut bytes))
            .ok()?;
        bytes.truncate(len);
        Some(Self(lossy(bytes)))
    }

    /// Returns a field behind the name, counted from 1 as in proc_pid_stat(5). The name may itself
    /// hold spaces and parentheses.
    pub fn field(&self, number: usize) -> Option<&str> {
        const STATE: usize = 3;
        let (_, rest) = self.0.rsplit_once(')')?;
        rest.split_ascii_whitespace()
            .nth(number.checked_sub(STATE)?)
    }

    fn number<N: std::str::FromStr>(&self, number: usize) -> Option<N> {
        self.field(number)?.parse().ok()
    }

    /// Returns the process that has started it, or has adopted it.
    pub fn parent(&self) -> Option<i32> {
        self.number(4)
    }

    /// Returns its start time in clock ticks since boot. Together with the id this is a name that
    /// is not reused.
    pub fn start_time(&self) -> Option<u64> {
        self.number(22)
    }

    /// Returns where its stack began, which each `exec` chooses anew.
    pub fn stack_start(&self) -> Option<u64> {
        self.number(28)
    }

    /// Returns the addresses of its command line.
    pub fn arguments(&self) -> Option<Range<usize>> {
        Some(self.number(48)?..self.number(49)?)
    }

    /// True if it has ended, even if its parent does not know yet.
    pub fn has_ended(&self) -> bool {
        matches!(self.field(3), None | Some("Z" | "X"))
    }
}

/// See [`Stat::parent`].
pub fn parent(pid: i32) -> Option<i32> {
    Stat::of(pid)?.parent()
}

/// See [`Stat::start_time`].
pub fn start_time(pid: i32) -> Option<u64> {
    Stat::of(pid)?.start_time()
}

/// See [`Stat::stack_start`].
pub fn stack_start(pid: i32) -> Option<u64> {
    Stat::of(pid)?.stack_start()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::process::Command;

    #[test]
    fn a_process_may_have_any_name() {
        let name = OsStr::from_bytes(b"\xff) Z 1");
        let place = std::env::temp_dir().join(format!("beeline-names-{}", std::process::id()));
        fs::create_dir(&place).unwrap();
        std::os::unix::fs::symlink("/bin/sleep", place.join(name)).unwrap();
        let mut child = Command::new(place.join(name)).arg("100").spawn().unwrap();
        let pid = child.id() as i32;
        let stat = Stat::of(pid).unwrap();
        assert_eq!(stat.parent(), Some(std::process::id() as i32));
        assert!(!stat.has_ended());
        assert_eq!(own_pid(pid), pid);
        assert!(all_processes().contains(&pid));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(start_time(pid), None);
        fs::remove_dir_all(place).unwrap();
    }

    #[test]
    fn fields_are_those_of_the_manual() {
        let stat = Stat::of(std::process::id() as i32).unwrap();
        // SAFETY: `getppid` only returns a number.
        assert_eq!(stat.parent(), Some(unsafe { libc::getppid() }));
        // startcode, endcode, startstack: a program lies below its stack.
        let code = stat.number::<u64>(26);
        assert!(code < stat.number(27) && stat.number(27) < stat.stack_start());
        assert_eq!(stat.field(60), None);
    }
}
