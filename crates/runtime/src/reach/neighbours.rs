//! All processes of the machine, as they are looked at time and again: who is new, who runs another program, and who is of the tool's family.
//!
//! There may be thousands, most of which sleep for days. So of a process that is not new the program is read at one look in ten only, what
//! is known of its family is kept, and on a machine with very many the looks are further apart.

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
pub(super) struct Neighbours {
    known: BTreeMap<i32, Neighbour>,
    looks: u32,
    /// When the last look began, and how long to wait from then on.
    last: Option<(Instant, Duration)>,
    /// The tool whose family it is of which is known who belongs to it, and the others that make eBPF calls.
    tools: (i32, Vec<i32>),
}

#[derive(Debug)]
struct Neighbour {
    /// Of its directory in `/proc`. Another process with the same number has another one, and the kernel may give a process a new one.
    inode: u64,
    /// In clock ticks since boot. Nothing if it could not be read, or has not been yet.
    start: Option<u64>,
    program: Program,
    /// When it was first seen with its program.
    since: Instant,
    is_family: Option<bool>,
}

#[derive(Debug, PartialEq, Eq)]
enum Program {
    NotRead,
    /// It has none if it is a thread of the kernel's, or may not be looked at.
    Read(Option<PathBuf>),
}

impl Neighbours {
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
        for (&pid, neighbour) in &mut self.known {
            let is_its_turn = pid.unsigned_abs() % TURNS == turn;
            if is_its_turn || neighbour.program == Program::NotRead || neighbour.is_young(begin) {
                neighbour.read(pid, begin);
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
        self.change(pids, |neighbour| neighbour.since = Instant::now());
    }

    /// Whether these are of the family is to be asked anew.
    pub fn doubt(&mut self, pids: &[i32]) {
        self.change(pids, |neighbour| neighbour.is_family = None);
    }

    fn change(&mut self, pids: &[i32], change: impl Fn(&mut Neighbour)) {
        for pid in pids {
            self.known.get_mut(pid).map(&change);
        }
    }

    /// All that are of the family of a tool, as `is_family` says of those of whom it is not known yet. The others that make eBPF calls may
    /// make members of whom nobody knew.
    pub fn family(
        &mut self,
        (tool, others): (i32, &[i32]),
        is_family: impl Fn(i32) -> Option<bool>,
    ) -> Vec<i32> {
        if self.tools.0 != tool || self.tools.1 != others {
            self.tools = (tool, others.to_vec());
            for neighbour in self.known.values_mut() {
                neighbour.is_family = None;
            }
        }
        let mut found = Vec::new();
        for (&pid, neighbour) in &mut self.known {
            neighbour.is_family = neighbour.is_family.or_else(|| is_family(pid));
            if neighbour.is_family == Some(true) {
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
            let neighbour = self.known.entry(pid);
            let neighbour = neighbour.or_insert_with(|| Neighbour::new(inode, now));
            if neighbour.inode == inode {
                continue;
            }
            match neighbour.start.is_some() && start_time(pid) == neighbour.start {
                true => neighbour.inode = inode,
                false => *neighbour = Neighbour::new(inode, now),
            }
        }
    }
}

impl Neighbour {
    fn new(inode: u64, now: Instant) -> Self {
        Self {
            inode,
            start: None,
            program: Program::NotRead,
            since: now,
            is_family: None,
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

    fn looked_again(neighbours: &mut Neighbours) -> BTreeSet<i32> {
        neighbours.last = None;
        neighbours.look();
        neighbours.young()
    }

    fn have_grown_old(neighbours: &mut Neighbours) {
        for neighbour in neighbours.known.values_mut() {
            neighbour.since = neighbour.since.checked_sub(YOUTH).unwrap();
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

        let mut neighbours = Neighbours::default();
        assert!(looked_again(&mut neighbours).contains(&pid));
        have_grown_old(&mut neighbours);
        for _ in 0..TURNS {
            assert!(!looked_again(&mut neighbours).contains(&pid));
        }
        input.write_all(b"go\nhere\n").unwrap();
        line.clear();
        output.read_line(&mut line).unwrap();
        assert_eq!(line, "here\n");
        let is_found = (0..TURNS).any(|_| looked_again(&mut neighbours).contains(&pid));
        assert!(is_found);

        drop(input);
        shell.wait().unwrap();
        looked_again(&mut neighbours);
        assert!(!neighbours.pids().contains(&pid));
    }

    #[test]
    fn who_is_of_the_family_is_asked_once() {
        let mut neighbours = Neighbours::default();
        neighbours.list();
        let me = std::process::id() as i32;
        // Of others, as processes come all the time, nothing is known.
        let asked = Cell::new(0);
        let is_family = |pid| {
            asked.set(asked.get() + u32::from(pid == me));
            (pid == me).then_some(true)
        };
        let family = |neighbours: &mut Neighbours, others: &[i32]| {
            assert_eq!(neighbours.family((1, others), is_family), [me]);
            asked.replace(0)
        };
        assert_eq!(family(&mut neighbours, &[]), 1);
        assert_eq!(family(&mut neighbours, &[]), 0);
        neighbours.doubt(&[me]);
        assert_eq!(family(&mut neighbours, &[]), 1);
        // There is another tool.
        assert_eq!(family(&mut neighbours, &[2]), 1);
        assert_eq!(family(&mut neighbours, &[2]), 0);
        // The number is another process's.
        neighbours.known.get_mut(&me).unwrap().inode ^= 1;
        neighbours.list();
        assert_eq!(family(&mut neighbours, &[2]), 1);
    }

    #[test]
    fn another_process_of_the_same_number_is_new() {
        let mut neighbours = Neighbours::default();
        let me = std::process::id() as i32;
        assert!(looked_again(&mut neighbours).contains(&me));
        have_grown_old(&mut neighbours);
        // The kernel has made the directory anew.
        neighbours.known.get_mut(&me).unwrap().inode ^= 1;
        assert!(!looked_again(&mut neighbours).contains(&me));
        let known = neighbours.known.get_mut(&me).unwrap();
        known.inode ^= 1;
        known.start = known.start.map(|start| start - 1);
        assert!(looked_again(&mut neighbours).contains(&me));
    }

    #[test]
    fn a_process_that_runs_the_same_program_anew_is_new() {
        let mut neighbours = Neighbours::default();
        let me = std::process::id() as i32;
        looked_again(&mut neighbours);
        have_grown_old(&mut neighbours);
        neighbours.renew(&[me]);
        assert!(neighbours.young().contains(&me));
    }

    #[test]
    fn looks_are_apart_as_they_take_long() {
        let mut neighbours = Neighbours::default();
        neighbours.look();
        let (_, pause) = neighbours.last.unwrap();
        assert!(!pause.is_zero() && pause <= LONGEST_PAUSE);
        let looks = neighbours.looks;
        neighbours.last = Some((Instant::now(), Duration::from_secs(100)));
        neighbours.look();
        assert_eq!(neighbours.looks, looks);
    }
}
