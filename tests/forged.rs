//! A process may map memory that looks like Beeline's and is not. `ps` and `detach` read it, and
//! must neither crash nor hang, whatever it holds.

use beeline_e2e::{
    Engine, Scratch, Tool, Turn, Workload, beeline, beeline_wanted, find_program, need,
};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The time that Beeline may take to inspect a machine with a forger on it.
const SOON: Duration = Duration::from_secs(15);

#[test]
fn garbage_under_beelines_name_is_ignored() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let scratch = Scratch::new();
    let forge = scratch.build("forge.c");
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let noise: Vec<u8> = (0..64 << 10).map(|_| random.next() as u8).collect();
    let contents = [
        vec![],
        vec![0; 4096],
        vec![0xff; 64 << 10],
        b"beeline\x01".repeat(512),
        noise,
    ];
    for name in [
        "beeline-1-2-trampolines",
        "beeline-0-0-trampolines",
        "beeline-1-2-session",
        "beeline-1-trampolines",
        "beeline--7-3-trampolines",
        "beeline-99999999999-1-trampolines",
        "beeline-1-99999999999999999999-trampolines",
        "beeline-1-2-a\n-trampolines",
    ] {
        for content in &contents {
            endure(
                &scratch,
                &forge,
                &Forgery {
                    name,
                    address: 0,
                    content,
                },
            );
        }
    }
}

#[test]
fn damaged_copies_of_real_memory_are_survived() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let bpftrace = need!(find_program("bpftrace"));
    let scratch = Scratch::new();
    let real = Pool::of_a_session(&scratch, &bpftrace);
    let forge = scratch.build("forge.c");
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    let mut damaged: Vec<_> = real
        .with_all_pointers_the_same()
        .chain(real.cut_short())
        .collect();
    for _ in 0..20 {
        damaged.push(real.with_bits_flipped(&mut random));
        damaged.push(real.with_words_overwritten(&mut random));
    }
    for content in &damaged {
        endure(
            &scratch,
            &forge,
            &Forgery {
                name: &real.name,
                address: real.address,
                content,
            },
        );
    }
}

/// A process's forged mappings.
struct Forgery<'a> {
    name: &'a str,
    address: u64,
    content: &'a [u8],
}

/// Runs a process with the forgery, and asserts that Beeline handles it in time and by itself. The
/// forger may be harmed by its forgery; no other process may.
fn endure(scratch: &Scratch, forge: &Path, forgery: &Forgery<'_>) {
    let file = scratch.path().join("content");
    fs::write(&file, forgery.content).expect("a file of our own");
    let mut command = Command::new(forge);
    command
        .arg(forgery.name)
        .arg(forgery.address.to_string())
        .arg(&file);
    let forger = Workload::start_command(command);
    let pid = forger.pid().to_string();
    for arguments in [["ps"].as_slice(), &["ps", "--json"], &["detach", &pid]] {
        let mut command = Command::new(beeline());
        command.args(arguments);
        let ended = Tool::start(command).wait_at_most(SOON);
        assert!(
            ended.status.code().is_some_and(|code| code < 100),
            "{arguments:?}: {:?}",
            ended.status
        );
        assert!(
            !ended.stderr.join(" ").contains("panicked at"),
            "{arguments:?}: {:?}",
            ended.stderr
        );
        if arguments[0] == "ps" {
            assert!(
                ended.status.success(),
                "{arguments:?}: {:?} {:?}",
                ended.status,
                ended.stderr
            );
        }
    }
}

/// Returns the first memory that Beeline mapped into a process for a session, now ended.
struct Pool {
    name: String,
    address: u64,
    content: Vec<u8>,
}

impl Pool {
    /// Traces a process and copies Beeline's memory there.
    fn of_a_session(scratch: &Scratch, bpftrace: &Path) -> Pool {
        let program = scratch.build("counts.c");
        let workload = Workload::start(&program);
        let mut command = Engine::Beeline.command(bpftrace);
        command.args(["-p", &workload.pid().to_string()]);
        let tool = Tool::bpftrace(
            command,
            &format!("uprobe:{}:wl_wild_* {{ @ = count(); }}", program.display()),
        );
        tool.wait_attached();
        let maps =
            fs::read_to_string(format!("/proc/{}/maps", workload.pid())).expect("the target runs");
        let line = maps
            .lines()
            .find(|line| line.contains("-trampolines"))
            .unwrap_or_else(|| panic!("no pool in {maps}"));
        let (start, rest) = line.split_once('-').expect("start-end");
        let (end, _) = rest.split_once(' ').expect("start-end");
        let name = line
            .split_once("/memfd:")
            .expect("a memory file")
            .1
            .trim_end_matches(" (deleted)");
        let number = |text| u64::from_str_radix(text, 16).expect("a hexadecimal number");
        let (address, length) = (number(start), number(end) - number(start));
        let mut content = vec![0; usize::try_from(length).expect("fits in memory")];
        let memory = fs::File::open(format!("/proc/{}/mem", workload.pid())).expect("ours to read");
        memory
            .read_exact_at(&mut content, address)
            .expect("mapped memory");
        let used = content
            .iter()
            .rposition(|byte| *byte != 0)
            .expect("something is in it")
            + 1;
        content.truncate(used.next_multiple_of(8));
        Pool {
            name: name.to_owned(),
            address,
            content,
        }
    }

    /// Half of the damage goes to the beginning, where all structures start.
    fn somewhere(&self, random: &mut Random) -> usize {
        let end = if random.next() & 1 == 0 {
            self.content.len().min(256)
        } else {
            self.content.len()
        };
        (random.next() % end as u64) as usize
    }

    fn with_bits_flipped(&self, random: &mut Random) -> Vec<u8> {
        let mut content = self.content.clone();
        for _ in 0..1 + random.next() % 64 {
            content[self.somewhere(random)] ^= 1 << (random.next() % 8);
        }
        content
    }

    /// Addresses become null, wild, or others of the same memory.
    fn with_words_overwritten(&self, random: &mut Random) -> Vec<u8> {
        let mut content = self.content.clone();
        for _ in 0..1 + random.next() % 16 {
            let inside = self.address + random.next() % self.content.len() as u64;
            let word = [0, 1, u64::MAX, 1 << 47, 0x8000_0000_0000_0000, inside]
                [(random.next() % 6) as usize];
            let place = self.somewhere(random) / 8 * 8;
            content[place..place + 8].copy_from_slice(&word.to_ne_bytes());
        }
        content
    }

    /// Makes every list circular.
    fn with_all_pointers_the_same(&self) -> impl Iterator<Item = Vec<u8>> {
        let range = self.address..self.address + self.content.len() as u64;
        let is_pointer = move |word: &[u8]| {
            word.try_into()
                .is_ok_and(|word| range.contains(&u64::from_ne_bytes(word)))
        };
        let mut pointers: Vec<&[u8]> = self
            .content
            .chunks_exact(8)
            .filter(|word| is_pointer(word))
            .collect();
        pointers.sort_unstable();
        pointers.dedup();
        let circular = |pointer: &[u8]| {
            let words = self.content.chunks_exact(8);
            words
                .flat_map(|word| if is_pointer(word) { pointer } else { word })
                .copied()
                .collect()
        };
        let all: Vec<Vec<u8>> = pointers.iter().map(|pointer| circular(pointer)).collect();
        all.into_iter()
    }

    /// Mapped memory behind the end of its file cannot be read.
    fn cut_short(&self) -> impl Iterator<Item = Vec<u8>> {
        [1, 8, 100, 4096]
            .into_iter()
            .map(|length| self.content[..length.min(self.content.len())].to_vec())
    }
}

/// Marsaglia's xorshift: the same damage in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}
