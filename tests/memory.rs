//! A tool's objects have a memory limit: beyond it the tool's calls fail with ENOMEM, and Beeline
//! goes on.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use beeline_e2e::{EXIT_CODE, Scratch, Workload, beeline, beeline_wanted, need};

const MIB: u64 = 1 << 20;
/// The limit in most tests.
const LIMIT: u64 = 64 * MIB;
/// Beeline's own memory, with the kernel's types, and the reserve of its allocator.
const OWN: u64 = 80 * MIB;
const REFUSED: &str = "Cannot allocate memory";

/// A tool that takes as much as it gets, under Beeline.
struct Hoarder {
    tool: Workload,
    errors: PathBuf,
    _scratch: Scratch,
}

impl Hoarder {
    /// Starts it with a shell's limits set before, and options of `beeline run`.
    fn start(limits: &str, options: &[&str]) -> Self {
        let scratch = Scratch::new();
        let errors = scratch.path().join("errors");
        let mut shell = Command::new("bash");
        let script = "exec 2>\"$0\"; eval \"$1\"; shift; exec \"$@\"";
        shell.args(["-c", script]).arg(&errors).arg(limits);
        shell.arg(beeline()).arg("run").args(options).arg("--");
        shell.arg(scratch.build("hoards.c"));
        Self {
            tool: Workload::start_command(shell),
            errors,
            _scratch: scratch,
        }
    }

    fn limited() -> Self {
        Self::start(":", &["--memory-limit", "64M", "--engine", "baseline"])
    }

    /// Returns how many it made, and why it stopped.
    fn take(&mut self, what: &str) -> (u64, String) {
        let answer = self.tool.tell(what);
        let (count, why) = answer.split_once(' ').expect("a number and words");
        (count.parse().expect("a number"), why.to_owned())
    }

    /// Returns how many it made until there was no memory left.
    fn take_all(&mut self, what: &str) -> u64 {
        let (count, why) = self.take(what);
        assert_eq!(why, REFUSED, "{what}");
        self.check_size(what);
        count
    }

    fn close(&mut self) {
        assert_eq!(self.take("close").1, "good");
    }

    /// Returns whether Beeline stays within its limit, and always has.
    fn check_size(&self, what: &str) {
        let pid = self.tool.pid();
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
        let kilobytes = |name| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let number = line.and_then(|line| line.split_whitespace().next());
            number
                .and_then(|number| number.parse::<u64>().ok())
                .expect(name)
        };
        let most = LIMIT + OWN;
        let now = 1024 * kilobytes("RssAnon:") + in_files(pid);
        assert!(now <= most, "{} MiB behind {what}", now / MIB);
        let highest = 1024 * kilobytes("VmHWM:");
        assert!(highest <= most, "{} MiB at {what}", highest / MIB);
    }

    /// Ends it; returns Beeline's messages.
    fn end(mut self) -> Vec<String> {
        assert_eq!(self.tool.wait().code(), Some(EXIT_CODE));
        let said = fs::read_to_string(&self.errors).expect("bash has made it");
        assert!(!said.contains("panicked"), "{said}");
        said.lines().map(str::to_owned).collect()
    }
}

/// Returns the bytes of the memory files that a process has open, mapped or not.
fn in_files(pid: u32) -> u64 {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).expect("it lives");
    let of = |path: &Path| {
        let name = fs::read_link(path).ok()?;
        let is_memory = name.to_string_lossy().starts_with("/memfd:");
        let file = fs::metadata(path).ok().filter(|_| is_memory)?;
        Some((file.ino(), file.blocks() * 512))
    };
    let files = files.filter_map(|file| of(&file.ok()?.path()));
    let each_once: std::collections::BTreeMap<u64, u64> = files.collect();
    each_once.values().sum()
}

#[test]
fn maps_are_refused_when_memory_is_out_and_made_again_when_it_is_back() {
    need!(beeline_wanted());
    let mut hoarder = Hoarder::limited();
    // Arrays of 4 MiB, every byte written.
    let arrays = hoarder.take_all("filled 65536 64 1000");
    assert!((10..=16).contains(&arrays), "{arrays}");
    assert_eq!(hoarder.take_all("filled 65536 64 1000"), 0);
    hoarder.close();
    assert_eq!(hoarder.take_all("filled 65536 64 1000"), arrays);
    hoarder.close();
    // Hashes, also without preallocated elements, tries, ring buffers, and arrays of rings.
    for (map, least) in [
        ("1 4 64 10000 0", 30),
        ("1 4 64 10000 1", 30),
        ("5 4 64 1000 0", 30),
        ("11 8 8 10000 1", 30),
        ("27 0 0 1048576 0", 20),
        ("22 0 64 10000 0", 50),
        ("3 4 4 10000 0", 10),
    ] {
        let made = hoarder.take_all(&format!("maps {map} 10000"));
        assert!(made >= least, "{map}: {made}");
        hoarder.close();
    }
    assert_eq!(hoarder.take_all("maps 4 4 4 4000000000 0 10"), 0);
    let rings = hoarder.take_all("rings 1024 1000");
    assert!((8..=16).contains(&rings), "{rings}");
    hoarder.close();
    assert_eq!(hoarder.take("filled 65536 64 5"), (5, "good".into()));
    let said = hoarder.end();
    let told = |line: &String| line.contains("ENOMEM") && line.contains("--memory-limit");
    assert_eq!(said.len(), 1, "told once: {said:?}");
    assert!(said.iter().all(told), "{said:?}");
}

#[test]
fn memory_of_closed_objects_is_reusable_at_once() {
    need!(beeline_wanted());
    let mut hoarder = Hoarder::limited();
    // Each takes a fourth of all.
    assert_eq!(hoarder.take("churn 65536 240 60"), (60, "good".into()));
    hoarder.check_size("churn");
    assert_eq!(hoarder.end(), [""; 0]);
}

#[test]
fn programs_and_types_are_refused_when_memory_is_out() {
    need!(beeline_wanted());
    let mut hoarder = Hoarder::limited();
    let programs = hoarder.take_all("programs 4000 10000");
    assert!(programs > 100, "{programs}");
    hoarder.close();
    let again = hoarder.take_all("programs 4000 10000");
    assert!(again * 10 > programs * 9, "{again} of {programs}");
    hoarder.close();
    let small = hoarder.take_all("programs 20 100000");
    assert!(small > 1000, "{small}");
    hoarder.close();
    assert_eq!(hoarder.take_all("btf 10000000 100"), 5);
    hoarder.close();
    // A program that would take everything while it is verified.
    assert_eq!(hoarder.take_all("calls 1"), 0);
    assert_eq!(hoarder.take("programs 4000 10"), (10, "good".into()));
    assert_eq!(hoarder.end().len(), 1);
}

#[test]
fn children_of_the_tool_share_its_limit() {
    need!(beeline_wanted());
    let mut hoarder = Hoarder::limited();
    let of_child = hoarder.take_all("child filled 65536 64 1000");
    assert!(of_child >= 10, "{of_child}");
    assert_eq!(hoarder.take_all("filled 65536 64 1000"), 0);
    let mut tool = hoarder;
    assert_eq!(tool.tool.tell("end"), "0 good");
    assert_eq!(tool.take_all("filled 65536 64 1000"), of_child);
    assert_eq!(tool.end().len(), 1);
}

#[test]
fn without_an_option_the_address_space_is_the_limit() {
    need!(beeline_wanted());
    let mut hoarder = Hoarder::start("ulimit -c 0; ulimit -v 500000", &[]);
    for what in [
        "maps 1 4 64 100000 0 1000",
        "filled 65536 64 1000",
        "programs 4000 20000",
        "btf 10000000 100",
        "calls 1",
    ] {
        let (made, why) = hoarder.take(what);
        assert_eq!(why, REFUSED, "{what}: {made} were made");
        hoarder.close();
    }
    assert_eq!(hoarder.take("programs 4000 10"), (10, "good".into()));
    assert_eq!(hoarder.end().len(), 1);
}

#[test]
fn too_little_address_space_is_told_with_what_to_do() {
    need!(beeline_wanted());
    for kilobytes in [80_000, 100_000, 150_000, 200_000] {
        let mut shell = Command::new("bash");
        let script = format!("ulimit -c 0; ulimit -v {kilobytes}; exec \"$0\" run -- true");
        let ended = shell.args(["-c", &script]).arg(beeline()).output();
        let ended = ended.expect("bash runs");
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(1), "{kilobytes}: {ended:?}");
        assert!(said.contains("ulimit -v"), "{kilobytes}: {said}");
    }
}

#[test]
fn a_program_that_is_run_alone_has_the_limit_too() {
    need!(beeline_wanted());
    let scratch = Scratch::new();
    let object = need!(scratch.build_bpf("injected.bpf.c"));
    let run = |limit| {
        let mut command = Command::new(beeline());
        command.args(["prog", "run", "--memory-limit", limit]);
        command.args(["--section", "kretprobe/__x64_sys_sethostname"]);
        command.arg(&object).output().expect("beeline runs")
    };
    let ended = run("16K");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    assert!(
        said.contains("--memory-limit") && said.contains(REFUSED),
        "{said}"
    );
    let ended = run("nonsense");
    assert_eq!(ended.status.code(), Some(2), "{ended:?}");
}
