//! All processes of the machine, as they are looked at time and again: who is new, who runs another program, and who is of the tool's family.
//!
//! There may be thousands, most of which sleep for days. So of a process that is not new the program is read at one look in ten only, what
//! is known of its descent is kept, and on a machine with very many the looks are further apart.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::fs::{Dir, Mode, OFlags, open};
use rustix::time::{ClockId, clock_gettime};

use super::program;
use crate::proc::start_time;

/// How long a process is new, and looked at each time: it may yet run another program, and load its libraries.
pub(super) const YOUTH: Duration = Duration::from_secs(2);
/// Of older processes one in so many is looked at each time.
const TURNS: u32 = 10;
/// Looks take at most one part in so many of a CPU's time,
const SHARE: u32 = 20;
/// but are no further apart than this.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct ProcessTable {
    known: BTreeMap<i32, Entry>,
    looks: u32,
    /// When the last look began, and how long to wait from then on.
    last: Option<(Instant, Duration)>,
    /// The tool whose family it is of which is known who belongs to it, and the others that make eBPF calls.
    tools: (i32, Vec<i32>),
}

#[derive(Debug)]
struct Entry {
    /// Of its directory in `/proc`. Another process with the same number has another one, and the kernel may give a process a new one.
    inode: u64,
    /// In clock ticks since boot. Nothing if it could not be read, or has not been yet.
    start: Option<u64>,
    program: Program,
    /// When it was first seen with its program.
    since: Instant,
    is_descendant: Option<bool>,
}

#[derive(Debug, PartialEq, Eq)]
enum Program {
    NotRead,
    /// It has none if it is a thread of the kernel's, or may not be looked at.
    Read(Option<PathBuf>),
}

impl ProcessTable {
    /// Looks who is there, unless that was done a moment ago, as moments are with so many of them; false then.
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
            if is_its_turn || entry.program == Program::NotRead || entry.is_young(begin) {
                entry.read(pid, begin);
            }
        }
        let pause = cpu_time().saturating_sub(used) * SHARE;
        self.last = Some((begin, pause.min(LONGEST_PAUSE)));
        true
    }

    /// All of them.
    pub fn pids(&self) -> Vec<i32> {
        self.known.keys().copied().collect()
    }

    /// Those that are new, or have begun to run another program, since a moment.
    pub fn young(&self) -> BTreeSet<i32> {
        let now = Instant::now();
        let young = self.known.iter().filter(|(_, one)| one.is_young(now));
        young.map(|(pid, _)| *pid).collect()
    }

    /// These have been found to run other programs, which may be of the same names.
    pub fn renew(&mut self, pids: &[i32]) {
        self.change(pids, |entry| entry.since = Instant::now());
    }

    /// Whether these are descendants is to be asked anew.
    pub fn doubt(&mut self, pids: &[i32]) {
        self.change(pids, |entry| entry.is_descendant = None);
    }

    fn change(&mut self, pids: &[i32], change: impl Fn(&mut Entry)) {
        for pid in pids {
            self.known.get_mut(pid).map(&change);
        }
    }

    /// All that are descendants of a tool, as `is_descendant` says of those of whom it is not known yet. The others that make eBPF calls may
    /// make members of whom nobody knew.
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

    /// Finds who has come and who is gone.
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
            program: Program::NotRead,
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
        let program = Program::Read(program(pid));
        if program != self.program {
            self.program = program;
            self.since = now;
        }
    }
}

/// Of this thread.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The processes in `/proc`, with their directories' inodes; and whether that is all of them.
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
    fn who_runs_another_program_is_new_again() {
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
    fn who_is_of_the_family_is_asked_once() {
        let mut table = ProcessTable::default();
        table.list();
        let me = std::process::id() as i32;
        // Of others, as processes come all the time, nothing is known.
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
        // The number is another process's.
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
