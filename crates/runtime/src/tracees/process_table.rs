//! The table of all processes of the machine, refreshed time and again: which are new, which run
//! another program, and which are the tool's descendants.
//!
//! There may be thousands of processes, and most of them sleep for days. So the program of a
//! process that is not new is read in only one look out of ten, known descents are kept, and on a
//! machine with very many processes the looks are further apart.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::fs::{Dir, Mode, OFlags, open};
use rustix::time::{ClockId, clock_gettime};

use super::program;
use crate::proc::start_time;

/// The time for which a process counts as new and is examined at each look. It may yet run another
/// program and load its libraries.
pub(super) const YOUTH: Duration = Duration::from_secs(2);
/// One in this many older processes is examined at each look.
const TURNS: u32 = 10;
/// Looks take at most one part in this many of a CPU's time.
const SHARE: u32 = 20;
/// The longest pause between two looks.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct ProcessTable {
    known: BTreeMap<i32, Entry>,
    looks: u32,
    /// When the last look began, and how long to wait from then on.
    last: Option<(Instant, Duration)>,
    /// The tool that the known descents refer to, and the other descendants that make eBPF calls.
    tools: (i32, Vec<i32>),
}

#[derive(Debug)]
struct Entry {
    /// The inode of its directory in `/proc`. Another process with the same number has another
    /// inode, and the kernel may give a process a new one.
    inode: u64,
    /// Start time in clock ticks since boot. `None` if it could not be read or has not been read
    /// yet.
    start: Option<u64>,
    program: Executable,
    /// When the process was first seen with its program.
    since: Instant,
    is_descendant: Option<bool>,
}

#[derive(Debug, PartialEq, Eq)]
enum Executable {
    NotRead,
    /// The program's path. `None` for a kernel thread or a process that may not be examined.
    Read(Option<PathBuf>),
}

impl ProcessTable {
    /// Refreshes the table and returns true, unless it was refreshed a moment ago. The more
    /// processes there are, the longer that moment is.
    pub fn look(&mut self) -> bool {
        let begin = Instant::now();
        let is_early = |(last, pause): (Instant, Duration)| begin.duration_since(last) < pause;
        if self.last.is_some_and(is_early) {
            return false;
        }
        let used = cpu_time();
        self.list();
        self.looks = self.looks.wrapping_add(1);
        let turn = self.looks % TURNS;
        for (&pid, entry) in &mut self.known {
            let is_its_turn = pid.unsigned_abs() % TURNS == turn;
            if is_its_turn || entry.program == Executable::NotRead || entry.is_young(begin) {
                entry.read(pid, begin);
            }
        }
        let pause = cpu_time().saturating_sub(used) * SHARE;
        self.last = Some((begin, pause.min(LONGEST_PAUSE)));
        true
    }

    /// Returns the ids of all processes.
    pub fn pids(&self) -> Vec<i32> {
        self.known.keys().copied().collect()
    }

    /// Returns the processes that were recently new or began to run another program.
    pub fn young(&self) -> BTreeSet<i32> {
        let now = Instant::now();
        let young = self.known.iter().filter(|(_, one)| one.is_young(now));
        young.map(|(pid, _)| *pid).collect()
    }

    /// Marks processes that were found to run other programs, possibly with the same names.
    pub fn renew(&mut self, pids: &[i32]) {
        self.change(pids, |entry| entry.since = Instant::now());
    }

    /// Forgets whether these processes are descendants, so that it is asked anew.
    pub fn doubt(&mut self, pids: &[i32]) {
        self.change(pids, |entry| entry.is_descendant = None);
    }

    fn change(&mut self, pids: &[i32], change: impl Fn(&mut Entry)) {
        for pid in pids {
            self.known.get_mut(pid).map(&change);
        }
    }

    /// Returns all descendants of a tool. `is_descendant` decides for processes that are not known
    /// yet.
    ///
    /// The other descendants that make eBPF calls may make members that were not known yet.
    pub fn descendants(
        &mut self,
        (tool, others): (i32, &[i32]),
        is_descendant: impl Fn(i32) -> Option<bool>,
    ) -> Vec<i32> {
        if self.tools.0 != tool || self.tools.1 != others {
            self.tools = (tool, others.to_vec());
            for entry in self.known.values_mut() {
                entry.is_descendant = None;
            }
        }
        let mut found = Vec::new();
        for (&pid, entry) in &mut self.known {
            entry.is_descendant = entry.is_descendant.or_else(|| is_descendant(pid));
            if entry.is_descendant == Some(true) {
                found.push(pid);
            }
        }
        found
    }

    /// Finds processes that have come or gone.
    pub fn list(&mut self) {
        let now = Instant::now();
        let (entries, is_whole) = entries();
        if is_whole {
            self.known.retain(|pid, _| entries.contains_key(pid));
        }
        for (pid, inode) in entries {
            let entry = self.known.entry(pid);
            let entry = entry.or_insert_with(|| Entry::new(inode, now));
            if entry.inode == inode {
                continue;
            }
            match entry.start.is_some() && start_time(pid) == entry.start {
                true => entry.inode = inode,
                false => *entry = Entry::new(inode, now),
            }
        }
    }
}

impl Entry {
    fn new(inode: u64, now: Instant) -> Self {
        Self {
            inode,
            start: None,
            program: Executable::NotRead,
            since: now,
            is_descendant: None,
        }
    }

    fn is_young(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) < YOUTH
    }

    fn read(&mut self, pid: i32, now: Instant) {
        if self.start.is_none() {
            self.start = start_time(pid);
        }
        let program = Executable::Read(program(pid));
        if program != self.program {
            self.program = program;
            self.since = now;
        }
    }
}

/// Returns the CPU time of this thread.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Returns the processes in `/proc` with the inodes of their directories, and true if the list is
/// complete.
fn entries() -> (BTreeMap<i32, u64>, bool) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut found = BTreeMap::new();
    let Ok(directory) = open("/proc", flags, Mode::empty()).and_then(Dir::new) else {
        return (found, false);
    };
    for entry in directory {
        let Ok(entry) = entry else {
            return (found, false);
        };
        let pid = entry.file_name().to_str().ok();
        if let Some(pid) = pid.and_then(|name| name.parse().ok()) {
            found.insert(pid, entry.ino());
        }
    }
    (found, true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Command, Stdio};

    fn looked_again(processes: &mut ProcessTable) -> BTreeSet<i32> {
        processes.last = None;
        processes.look();
        processes.young()
    }

    fn have_grown_old(processes: &mut ProcessTable) {
        for entry in processes.known.values_mut() {
            entry.since = entry.since.checked_sub(YOUTH).unwrap();
        }
    }

    #[test]
    fn a_process_that_runs_another_program_is_new_again() {
        let mut shell = Command::new("sh")
            .args(["-c", "echo; read line; exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let pid = shell.id() as i32;
        let mut output = BufReader::new(shell.stdout.take().unwrap());
        let mut input = shell.stdin.take().unwrap();
        let mut line = String::new();
        output.read_line(&mut line).unwrap();

        let mut table = ProcessTable::default();
        assert!(looked_again(&mut table).contains(&pid));
        have_grown_old(&mut table);
        for _ in 0..TURNS {
            assert!(!looked_again(&mut table).contains(&pid));
        }
        input.write_all(b"go\nhere\n").unwrap();
        line.clear();
        output.read_line(&mut line).unwrap();
        assert_eq!(line, "here\n");
        let is_found = (0..TURNS).any(|_| looked_again(&mut table).contains(&pid));
        assert!(is_found);

        drop(input);
        shell.wait().unwrap();
        looked_again(&mut table);
        assert!(!table.pids().contains(&pid));
    }

    #[test]
    fn a_process_is_asked_once_whether_it_is_a_descendant() {
        let mut table = ProcessTable::default();
        table.list();
        let me = std::process::id() as i32;
        // Nothing is known of the other processes, since new ones come all the time.
        let asked = Cell::new(0);
        let is_descendant = |pid| {
            asked.set(asked.get() + u32::from(pid == me));
            (pid == me).then_some(true)
        };
        let descendants = |table: &mut ProcessTable, others: &[i32]| {
            assert_eq!(table.descendants((1, others), is_descendant), [me]);
            asked.replace(0)
        };
        assert_eq!(descendants(&mut table, &[]), 1);
        assert_eq!(descendants(&mut table, &[]), 0);
        table.doubt(&[me]);
        assert_eq!(descendants(&mut table, &[]), 1);
        // There is another tool.
        assert_eq!(descendants(&mut table, &[2]), 1);
        assert_eq!(descendants(&mut table, &[2]), 0);
        // The number belongs to another process.
        table.known.get_mut(&me).unwrap().inode ^= 1;
        table.list();
        assert_eq!(descendants(&mut table, &[2]), 1);
    }

    #[test]
    fn another_process_of_the_same_number_is_new() {
        let mut table = ProcessTable::default();
        let me = std::process::id() as i32;
        assert!(looked_again(&mut table).contains(&me));
        have_grown_old(&mut table);
        // The kernel has made the directory anew.
        table.known.get_mut(&me).unwrap().inode ^= 1;
        assert!(!looked_again(&mut table).contains(&me));
        let known = table.known.get_mut(&me).unwrap();
        known.inode ^= 1;
        known.start = known.start.map(|start| start - 1);
        assert!(looked_again(&mut table).contains(&me));
    }

    #[test]
    fn a_process_that_runs_the_same_program_anew_is_new() {
        let mut table = ProcessTable::default();
        let me = std::process::id() as i32;
        looked_again(&mut table);
        have_grown_old(&mut table);
        table.renew(&[me]);
        assert!(table.young().contains(&me));
    }

    #[test]
    fn looks_are_apart_as_they_take_long() {
        let mut table = ProcessTable::default();
        table.look();
        let (_, pause) = table.last.unwrap();
        assert!(!pause.is_zero() && pause <= LONGEST_PAUSE);
        let looks = table.looks;
        table.last = Some((Instant::now(), Duration::from_secs(100)));
        table.look();
        assert_eq!(table.looks, looks);
    }
}
