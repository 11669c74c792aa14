//! All processes of the machine, as they are looked at time and again: who is new, who runs another program, and who is of the tool's family.
//!
//! There may be thousands, most of which sleep for days. So of a process that is not new the program is read once a second only, what
//! is known of its family is kept, and on a machine with very many the looks are further apart.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::fs::{Dir, Mode, OFlags, open};

use super::program;

/// How long a process is new, and looked at each time: it may yet run another program, and load its libraries.
pub(super) const YOUTH: Duration = Duration::from_secs(2);
/// Of older processes one in so many is looked at each time.
const TURNS: u32 = 10;
/// Looks take at most one part in so many of a CPU's time.
const SHARE: u32 = 20;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Neighbours {
    known: BTreeMap<i32, Neighbour>,
    looks: u32,
    /// When the last look began, and how long to wait from then on.
    last: Option<(Instant, Duration)>,
    /// Whose family it is of which is known who belongs to it.
    tools: Tools,
}

/// The tool, and how many others that make eBPF calls.
type Tools = (i32, usize);

#[derive(Debug)]
struct Neighbour {
    /// Of its directory in `/proc`. Another process with the same number has another one, and the kernel may give a process a new one.
    inode: u64,
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
    /// Looks who is there, unless that was done a moment ago, as moments are with so many of them.
    pub fn look(&mut self) {
        let begin = Instant::now();
        let is_early = |(last, pause): (Instant, Duration)| begin.duration_since(last) < pause;
        if self.last.is_some_and(is_early) {
            return;
        }
        self.list();
        self.looks = self.looks.wrapping_add(1);
        let turn = self.looks % TURNS;
        for (&pid, neighbour) in &mut self.known {
            let is_its_turn = pid.unsigned_abs() % TURNS == turn;
            if is_its_turn || neighbour.program == Program::NotRead || neighbour.is_young(begin) {
                neighbour.read(pid, begin);
            }
        }
        self.last = Some((begin, begin.elapsed() * SHARE));
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

    /// Whether these are of the family is to be asked anew.
    pub fn doubt(&mut self, pids: &[i32]) {
        for pid in pids {
            if let Some(neighbour) = self.known.get_mut(pid) {
                neighbour.is_family = None;
            }
        }
    }

    /// All that are of the family, as `is_family` says of those of whom it is not known yet.
    pub fn family(&mut self, tools: Tools, is_family: impl Fn(i32) -> bool) -> Vec<i32> {
        if self.tools != tools {
            self.tools = tools;
            for neighbour in self.known.values_mut() {
                neighbour.is_family = None;
            }
        }
        let known = self.known.iter_mut().filter_map(|(pid, neighbour)| {
            let is_family = *neighbour.is_family.get_or_insert_with(|| is_family(*pid));
            is_family.then_some(*pid)
        });
        known.collect()
    }

    /// Finds who has come and who is gone.
    pub fn list(&mut self) {
        let now = Instant::now();
        let Ok(entries) = entries() else {
            return;
        };
        self.known.retain(|pid, _| entries.contains_key(pid));
        for (pid, inode) in entries {
            let neighbour = self.known.entry(pid).or_insert(Neighbour {
                inode,
                program: Program::NotRead,
                since: now,
                is_family: None,
            });
            if neighbour.inode != inode {
                neighbour.inode = inode;
                neighbour.is_family = None;
                neighbour.read(pid, now);
            }
        }
    }
}

impl Neighbour {
    fn is_young(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) < YOUTH
    }

    fn read(&mut self, pid: i32, now: Instant) {
        let program = Program::Read(program(pid));
        let before = std::mem::replace(&mut self.program, program);
        if before != Program::NotRead && before != self.program {
            self.since = now;
        }
    }
}

/// The processes in `/proc`, with their directories' inodes.
fn entries() -> Result<BTreeMap<i32, u64>, rustix::io::Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut found = BTreeMap::new();
    for entry in Dir::new(open("/proc", flags, Mode::empty())?)? {
        let entry = entry?;
        let pid = entry.file_name().to_str().ok();
        if let Some(pid) = pid.and_then(|name| name.parse().ok()) {
            found.insert(pid, entry.ino());
        }
    }
    Ok(found)
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
        let asked = Cell::new(0);
        let is_family = |pid| {
            asked.set(asked.get() + 1);
            pid == me
        };
        assert_eq!(neighbours.family((1, 0), is_family), [me]);
        let all = asked.replace(0);
        assert!(all > 0);
        assert_eq!(neighbours.family((1, 0), is_family), [me]);
        assert_eq!(asked.get(), 0);
        neighbours.doubt(&[me]);
        assert_eq!(neighbours.family((1, 0), is_family), [me]);
        assert_eq!(asked.replace(0), 1);
        // There is another tool.
        assert_eq!(neighbours.family((1, 1), is_family), [me]);
        assert_eq!(asked.get(), all);
        // The number is another process's.
        neighbours.known.get_mut(&me).unwrap().inode ^= 1;
        neighbours.list();
        asked.set(0);
        assert_eq!(neighbours.family((1, 1), is_family), [me]);
        assert_eq!(asked.get(), 1);
    }

    #[test]
    fn looks_take_a_small_share_of_the_time() {
        let mut neighbours = Neighbours::default();
        neighbours.look();
        let looks = neighbours.looks;
        neighbours.last = Some((Instant::now(), Duration::from_secs(100)));
        neighbours.look();
        assert_eq!(neighbours.looks, looks);
    }
}
