//! A target whose functions begin with every kind of instruction, and the two kinds of probes on
//! it.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use beeline_e2e::{
    Ended, Engine, Footprint, PATIENCE, Scratch, Tool, Workload, altered_text, beeline,
    beeline_wanted, file_offset, find_program, until,
};

/// The most bytes of a function that are examined.
const NEAR: usize = 16;
/// Bytes of a jump; a function's first instruction may itself be a jump.
const JUMP_LEN: usize = 5;
/// A jump's first byte.
pub const JUMP: u8 = 0xe9;
pub const INT3: u8 = 0xcc;
/// The number of functions in `beside.c`.
pub const THREADS: u64 = 8;
/// Functions whose first instruction is a jump, a call or a return: Beeline does not see the hits
/// that the kernel's probe takes.
pub const LEAVING: [&str; 11] = [
    "b_ret",
    "b_jmp_short",
    "b_je_short",
    "b_jne_short",
    "b_jmp_near",
    "b_jmp_away",
    "b_call_near",
    "b_je_near",
    "b_jne_near",
    "b_jmp_rip",
    "b_call_rip",
];

/// Functions that branch into their first five bytes: a breakpoint hooks them, and its hits are not
/// seen beside a kernel uprobe.
pub const BREAKPOINTS: [&str; 2] = ["b_looped", "b_inner_loop"];
/// Functions that pop their return address and push it back: their returns are not seen beside a
/// kernel uretprobe.
pub const POPPING: [&str; 1] = ["b_pop_r11"];

/// The target, and the kernel's probes.
pub struct Setting {
    pub target: Workload,
    pub kernel: Workload,
    pub program: PathBuf,
    pub bpftrace: PathBuf,
    pub functions: Vec<(String, u64)>,
    before: Footprint,
    pub scratch: Scratch,
}

/// The place in a function where a probe is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Entry,
    Return,
}

impl Place {
    fn for_kernel(self) -> &'static str {
        match self {
            Place::Entry => "entry",
            Place::Return => "ret",
        }
    }

    pub fn for_bpftrace(self) -> &'static str {
        match self {
            Place::Entry => "uprobe",
            Place::Return => "uretprobe",
        }
    }
}

impl Setting {
    pub fn new() -> Result<Setting, String> {
        beeline_wanted()?;
        let bpftrace = find_program("bpftrace")?;
        let scratch = Scratch::new();
        let program = scratch.build("beside.c");
        let mut kernel = Workload::start(&scratch.build("kernel_probes.c"));
        let mut target = Workload::start(&program);
        assert!(target.tell("calls 1").starts_with("right "));
        let names = target.tell("list");
        let with_offset = |name: &str| Ok((name.to_owned(), file_offset(&program, name)?));
        let functions = names
            .split(' ')
            .map(with_offset)
            .collect::<Result<Vec<_>, String>>()?;
        let first = kernel.tell(&format!(
            "on {} {} entry",
            program.display(),
            functions[0].1
        ));
        if first != "0" {
            return Err(format!("the kernel has no uprobes here: {first}"));
        }
        kernel.tell("off all");
        Ok(Setting {
            before: Footprint::of(target.pid()),
            target,
            kernel,
            program,
            bpftrace,
            functions,
            scratch,
        })
    }

    /// Has the kernel probe all functions; returns the ones that it accepts, in the order of their
    /// numbers. It refuses some.
    pub fn attach_kernel(&mut self, place: Place) -> Vec<String> {
        let mut probed = Vec::new();
        for (name, offset) in &self.functions {
            let command = format!(
                "on {} {offset} {}",
                self.program.display(),
                place.for_kernel()
            );
            let answer = self.kernel.tell(&command);
            match answer.parse::<usize>() {
                Ok(number) => {
                    assert_eq!(number, probed.len());
                    probed.push(name.clone());
                }
                Err(_) => assert!(answer.starts_with("refused"), "{name}: {answer}"),
            }
        }
        probed
    }

    /// Has the kernel probe one place; returns the probe's number, unless the kernel refuses.
    pub fn attach_kernel_at(&mut self, offset: u64, place: Place) -> Option<u64> {
        let command = format!(
            "on {} {offset} {}",
            self.program.display(),
            place.for_kernel()
        );
        self.kernel.tell(&command).parse().ok()
    }

    pub fn kernel_counts(&mut self) -> Vec<u64> {
        let answer = self.kernel.tell("counts");
        answer
            .split_whitespace()
            .map(|count| count.parse().expect("a number"))
            .collect()
    }

    /// Starts bpftrace under Beeline on the target and waits until it is attached.
    pub fn ours(&self, script: &str) -> Tool {
        let tool = self.ours_begun(script);
        tool.wait_attached();
        tool
    }

    /// Does the same as [`Setting::ours`], and asks for every process.
    pub fn ours_everywhere(&self, script: &str) -> Tool {
        let script = script.replace("{prog}", &self.program.display().to_string());
        let tool = Tool::bpftrace(Engine::Beeline.command(&self.bpftrace), &script);
        tool.wait_attached();
        tool
    }

    /// Does the same as [`Setting::ours`], without waiting.
    pub fn ours_begun(&self, script: &str) -> Tool {
        let mut command = Engine::Beeline.command(&self.bpftrace);
        command.args(["-p", &self.target.pid().to_string()]);
        let script = script.replace("{prog}", &self.program.display().to_string());
        Tool::bpftrace(command, &script)
    }

    /// Returns a script that counts hits of all functions by the target's phase.
    pub fn counting(&self, place: Place) -> String {
        let what = place.for_bpftrace();
        let names = self.functions.iter().map(|(name, _)| name);
        let probes: Vec<_> = names
            .map(|name| format!("{what}:{{prog}}:{name}"))
            .collect();
        format!(
            "uprobe:{{prog}}:b_phase {{ @phase = arg0 }} {} {{ @[@phase, probe] = count(); }}",
            probes.join(", ")
        )
    }

    /// Makes a thread block all signals.
    pub fn block(&mut self) {
        assert_eq!(self.target.tell("block"), "blocking");
        self.before.threads += 1;
    }

    /// Takes the room for some of the code that guards jumps.
    pub fn fill(&mut self) {
        assert_eq!(self.target.tell("fill"), "filled");
        self.before = Footprint::of(self.target.pid());
    }

    /// Takes the room for some of the code that guards jumps, and makes a thread block SIGTRAP,
    /// which rules out breakpoints.
    pub fn crowd(&mut self) {
        assert_eq!(self.target.tell("crowd"), "crowded");
        self.before = Footprint::of(self.target.pid());
    }

    pub fn phase(&mut self, number: u64) {
        assert_eq!(self.target.tell(&format!("phase {number}")), "phase");
    }

    /// Makes all threads call every function without end.
    pub fn run(&mut self) {
        assert_eq!(self.target.tell("start"), "running");
    }

    /// Waits until each thread has gone through all functions a few more times.
    pub fn go_on(&mut self) {
        let turns = |target: &mut Workload| target.tell("turns").parse::<u64>().expect("a number");
        let before = turns(&mut self.target);
        let further = until(PATIENCE, || turns(&mut self.target) > before + 5 * THREADS);
        assert!(further, "the target stands still");
    }

    /// Waits until Beeline has hooked again the functions where no thread shows that a kernel
    /// uprobe has gone.
    pub fn wait_hooked(&self) {
        let file = File::open(&self.program).expect("it is built");
        let functions = self.functions.iter();
        let leaving = functions.filter(|(name, _)| LEAVING.contains(&name.as_str()));
        for (name, offset) in leaving {
            let mut original = [0; JUMP_LEN];
            file.read_exact_at(&mut original, *offset)
                .expect("it has the function");
            let pid = self.target.pid();
            // The rest of a jump stays while the kernel has put the file's first byte back.
            let is_hooked = || {
                let now = code_at::<JUMP_LEN>(pid, &self.program, *offset);
                now != original && (now[0] != original[0] || now[0] == JUMP)
            };
            assert!(until(PATIENCE, is_hooked), "{name}: hits are lost for ever");
        }
    }

    pub fn stop(&mut self) {
        let answer = self.target.tell("stop");
        assert!(answer.starts_with("right "), "{answer}");
    }

    /// Makes each thread call every function so many times; returns the number of calls of each.
    pub fn calls(&mut self, each: u64) -> u64 {
        let answer = self.target.tell(&format!("calls {each}"));
        assert!(answer.starts_with("right "), "{answer}");
        each * THREADS
    }

    /// Returns the file offsets of each function's start and of all its instructions near the
    /// start.
    pub fn instructions(&self) -> Result<Vec<(u64, Vec<u64>)>, String> {
        let bytes = std::fs::read(&self.program).map_err(|error| error.to_string())?;
        let decode = |(_, start): &(String, u64)| {
            let code = &bytes[*start as usize..*start as usize + NEAR];
            let decoder = iced_x86::Decoder::with_ip(64, code, *start, 0);
            (
                *start,
                decoder
                    .into_iter()
                    .map(|instruction| instruction.ip())
                    .collect(),
            )
        };
        Ok(self.functions.iter().map(decode).collect())
    }

    /// Has Beeline remove what killed sessions have left.
    pub fn detach(&self) {
        let mut command = Command::new(beeline());
        command.args(["detach", &self.target.pid().to_string()]);
        command.output().expect("cannot run beeline");
    }

    /// Does the same as [`Setting::finish`] where sessions were killed: one killed while it handed
    /// over files leaves the sockets for that open.
    pub fn finish_behind_kills(mut self) {
        let now = Footprint::of(self.target.pid()).descriptors;
        let sockets = now.into_iter().filter(|one| one.contains("socket:"));
        self.before.descriptors.extend(sockets);
        self.finish();
    }

    /// Asserts that the target is as it was, and lets it end.
    pub fn finish(mut self) {
        self.kernel.tell("off all");
        let pid = self.target.pid();
        assert!(
            until(PATIENCE, || altered_text(pid).is_empty()),
            "altered still: {:?}",
            altered_text(pid)
        );
        until(PATIENCE, || Footprint::of(pid) == self.before);
        assert_eq!(
            Footprint::of(pid),
            self.before,
            "now (left), before (right)"
        );
        self.calls(5);
        self.target.finish();
        self.kernel.finish();
    }
}

/// Returns the byte in a process's code at a file offset.
pub fn first_byte(pid: u32, file: &Path, offset: u64) -> u8 {
    code_at::<1>(pid, file, offset)[0]
}

/// Returns the bytes in a process's code at a file offset.
pub fn code_at<const LEN: usize>(pid: u32, file: &Path, offset: u64) -> [u8; LEN] {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("it lives");
    let hex = |text: &str| u64::from_str_radix(text, 16).expect("a hexadecimal number");
    let address = maps.lines().find_map(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let (start, end) = fields[0].split_once('-')?;
        let at = hex(start) + offset.checked_sub(hex(fields[2]))?;
        let is_it = fields[1].contains('x') && fields.get(5).map(Path::new) == Some(file);
        (is_it && at < hex(end)).then_some(at)
    });
    let memory = File::open(format!("/proc/{pid}/mem")).expect("it may be read");
    let mut code = [0; LEN];
    memory
        .read_exact_at(&mut code, address.expect("it maps the file"))
        .expect("it may be read");
    code
}

/// Returns the counts of a script of [`Setting::counting`] in a phase, by function.
pub fn counted(ended: &Ended, phase: u64) -> HashMap<String, u64> {
    let row = |line: &String| {
        let (key, count) = line.strip_prefix("@[")?.rsplit_once("]: ")?;
        let (of, probe) = key.split_once(", ")?;
        let name = probe.rsplit(':').next()?;
        (of == phase.to_string()).then_some((name.to_owned(), count.parse().ok()?))
    };
    ended.stdout.iter().filter_map(row).collect()
}

/// Returns the functions whose counts are not `wanted`, with their counts.
pub fn off_by<'a>(
    counts: &HashMap<String, u64>,
    names: impl Iterator<Item = &'a String>,
    wanted: u64,
) -> Vec<(String, u64)> {
    let known: HashSet<_> = LEAVING
        .into_iter()
        .chain(BREAKPOINTS)
        .chain(POPPING)
        .collect();
    let of = |name: &String| (name.clone(), counts.get(name).copied().unwrap_or(0));
    names
        .filter(|name| !known.contains(name.as_str()))
        .map(of)
        .filter(|(_, count)| *count != wanted)
        .collect()
}
