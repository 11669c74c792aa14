//! Runs one program in every engine and compares the results.

use std::time::{Duration, Instant};

use beeline_codegen::{Baseline, Engine, Interpreter};
use beeline_codegen_llvm::Llvm;
use beeline_e2e::skipped;
use beeline_fuzz::kernel::{self, Refusal};
use beeline_fuzz::world::{CONSTANTS, MAPS, contents};
use beeline_isa::Insn;
use beeline_isa::opcode::{ATOMIC, B, CMPXCHG, FETCH, JCOND, JMP, MEM, SIZE_MASK, STX, W};
use beeline_uapi::ProgramType;
use beeline_uapi::flags::SLEEPABLE;
use beeline_verifier::program::{Kind, Map, Program};
use beeline_verifier::types::ProgramTypes;
use beeline_verifier::verdict::LogLevel;
use beeline_verifier::{function_starts, verify};

use crate::emulated::Emulated;
use crate::world::{Bytes, Here, Left, There, is_helper, used};

/// The places that run programs: the engines, then the baseline compiler's code for aarch64, then
/// the kernel.
pub const PLACES: [&str; 5] = ["baseline", "interpreter", "llvm", "aarch64", "kernel"];
pub const ENGINES: usize = 3;
const AARCH64: usize = ENGINES;
pub const KERNEL: usize = PLACES.len() - 1;

/// The share of the processor's time that each place may take; cheap ones always run.
const SHARES: [f64; PLACES.len()] = [1.0, 1.0, 0.15, 0.05, 0.25];

/// The verdict on a program.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All places that ran it agree. Names them.
    Same([bool; PLACES.len()]),
    /// A verifier, the kernel's or Beeline's, gave up on following every path through it.
    GivenUp,
    /// A verifier refuses it, for this reason.
    Refused(String),
    /// Two places differ, and in this.
    Differs(String),
}

/// Runs programs and compares the results.
pub struct Judge {
    cpu: u32,
    here: Here,
    pub engines: [Box<dyn Engine>; ENGINES],
    /// Started when it is first needed; `Some(None)` where it cannot be.
    emulated: Option<Option<Emulated>>,
    pub kernel: Option<There>,
    start: Duration,
    /// The time that each place has taken.
    pub spent: [Duration; PLACES.len()],
}

impl Judge {
    /// Runs on one CPU, to which the calling thread is bound; with the kernel or without.
    pub fn new(cpu: u32, with_kernel: bool) -> Self {
        let engines = engines();
        let names = engines.each_ref().map(|engine| engine.name());
        assert_eq!(names, PLACES[..ENGINES]);
        Self {
            cpu,
            here: Here::new(cpu),
            engines,
            emulated: None,
            kernel: with_kernel.then(There::new),
            start: processor_time(),
            spent: [Duration::ZERO; PLACES.len()],
        }
    }

    /// Runs a program wherever there is time for it; calls `entering` with each place first.
    pub fn judge(&mut self, insns: &[Insn], entering: impl FnMut(usize)) -> Verdict {
        self.judge_in(insns, self.due(), entering)
    }

    /// Returns the places that have time for a program.
    pub fn due(&self) -> [bool; PLACES.len()] {
        let elapsed = processor_time() - self.start;
        std::array::from_fn(|place| {
            SHARES[place] == 1.0 || self.spent[place] <= elapsed.mul_f64(SHARES[place])
        })
    }

    /// Runs a program everywhere, if the kernel accepts it.
    pub fn judge_everywhere(&mut self, insns: &[Insn], entering: impl FnMut(usize)) -> Verdict {
        self.judge_in(insns, [true; PLACES.len()], entering)
    }

    /// Returns whether a program's result depends on leftovers on the stack, or on the addresses of
    /// memory. Part of a program may do so, and differing runs of it are no bug.
    pub fn depends_on_chance(&mut self, insns: &[Insn]) -> bool {
        const LEFT: [u8; 6] = [0, 1, 0x20, 0x7f, 0x80, 0xff];
        let used = used(insns);
        let mut elsewhere = Here::new(self.cpu);
        let outcome = |here: &mut Here, left: u8| {
            let program = Baseline.load(&here.program(insns)).ok()?;
            fill_stack(left);
            let result = here.run(&*program, &used).ok()?;
            Some((result, here.left(&used)))
        };
        let first = outcome(&mut self.here, LEFT[0]);
        let others = LEFT.map(|left| deeper(|| outcome(&mut elsewhere, left)));
        first.is_none() || others.iter().any(|other| *other != first)
    }

    fn judge_in(
        &mut self,
        insns: &[Insn],
        mut due: [bool; PLACES.len()],
        mut entering: impl FnMut(usize),
    ) -> Verdict {
        let used = used(insns);
        let mut theirs = None;
        due[KERNEL] &= self.kernel.is_some() && is_for_kernel(insns);
        if let Some(kernel) = self.kernel.as_ref().filter(|_| due[KERNEL]) {
            entering(KERNEL);
            let start = processor_time();
            let loaded = kernel.load(insns);
            let outcome = loaded.map(|program| kernel.run(&program, &used));
            self.spent[KERNEL] += processor_time() - start;
            match outcome {
                Ok(outcome) => {
                    match accept(insns) {
                        Ok(()) => {}
                        // Beeline's verifier follows nested callbacks further than the kernel's, so
                        // it reaches the limit sooner.
                        Err(reject) if is_limit(&reject) => return Verdict::GivenUp,
                        Err(reject) => {
                            return Verdict::Refused(format!("our verifier, alone: {reject}"));
                        }
                    }
                    theirs = Some(outcome);
                }
                Err(refusal) if has_given_up(&refusal) => return Verdict::GivenUp,
                Err(refusal) => return Verdict::Refused(words(&refusal)),
            }
        }
        let mut first: Option<(u64, Bytes)> = None;
        for place in (0..ENGINES).filter(|&place| due[place]) {
            entering(place);
            let start = processor_time();
            let compared = self.run_in(place, insns, &used, &mut first, &theirs);
            self.spent[place] += processor_time() - start;
            if let Err(difference) = compared {
                return Verdict::Differs(format!("{}: {difference}", PLACES[place]));
            }
        }
        due[AARCH64] &= Emulated::can_run(insns) && self.emulated().is_some();
        if due[AARCH64]
            && let Some((expected, _)) = first
        {
            entering(AARCH64);
            // Most of it passes in another process.
            let start = Instant::now();
            let compared = self.run_emulated(insns, &used, expected);
            self.spent[AARCH64] += start.elapsed();
            if let Err(difference) = compared {
                return Verdict::Differs(format!("{}: {difference}", PLACES[AARCH64]));
            }
        }
        Verdict::Same(due)
    }

    fn emulated(&mut self) -> Option<&mut Emulated> {
        let start = || {
            Emulated::start()
                .inspect_err(|why| skipped(&format!("code for aarch64: {why}")))
                .ok()
        };
        self.emulated.get_or_insert_with(start).as_mut()
    }

    /// Runs a program on the other machine, and compares it with the last run here.
    fn run_emulated(
        &mut self,
        insns: &[Insn],
        used: &[usize],
        expected: u64,
    ) -> Result<(), String> {
        let Some(emulated) = self.emulated() else {
            return Ok(());
        };
        let (result, left) = emulated.run(insns)?;
        same("r0", &format!("{result:#x}"), &format!("{expected:#x}"))?;
        compare(&left, &self.here.left(used))
    }

    /// Runs a program in one engine, and compares it with the first engine's run, or the first
    /// engine's run with the kernel's.
    fn run_in(
        &mut self,
        place: usize,
        insns: &[Insn],
        used: &[usize],
        first: &mut Option<(u64, Bytes)>,
        theirs: &Option<(u32, Left)>,
    ) -> Result<(), String> {
        let loaded = self.engines[place].load(&self.here.program(insns));
        let loaded = loaded.map_err(|error| format!("refuses the program: {error}"))?;
        let result = self.here.run(&*loaded, used)?;
        let bytes = self.here.bytes(used);
        if let Some((expected, theirs)) = theirs {
            same(
                "r0",
                &format!("{:#x}", result as u32),
                &format!("{expected:#x}"),
            )?;
            compare(&self.here.left(used), theirs)?;
        }
        match first {
            None => *first = Some((result, bytes)),
            Some((expected, before)) => {
                same("r0", &format!("{result:#x}"), &format!("{expected:#x}"))?;
                for (part, (ours, theirs)) in bytes.iter().zip(&*before).enumerate() {
                    let name = match part {
                        0 => "context".to_owned(),
                        part => format!("the bytes of map {}", used[part - 1]),
                    };
                    same(&name, ours, theirs)?;
                }
            }
        }
        Ok(())
    }
}

/// Returns this thread's processor time.
pub fn processor_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: there is room for the time.
    let told = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(told, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Returns all engines.
pub fn engines() -> [Box<dyn Engine>; ENGINES] {
    [
        Box::new(Baseline),
        Box::new(Interpreter::default()),
        Box::new(Llvm),
    ]
}

/// Returns whether the kernel runs the program correctly. Linux 6.18 does not
/// - if an atomic operation fetches from the stack a value that the verifier knows to be a
///   constant: see the generator, which writes a byte there first;
/// - if a 32-bit compare-and-exchange stores: x86 leaves r0's high half then, and the verifier does
///   not put an instruction that clears it behind every one whose r0 is read whole;
/// - if there is a `may_goto`, next to callbacks at least: the verifier reports a bug of its own,
///   or follows a bad pointer (`__mark_chain_precision`) and brings the machine down. Never load
///   such programs here.
pub fn is_for_kernel(insns: &[Insn]) -> bool {
    (0..insns.len()).all(|at| {
        let insn = &insns[at];
        let before = at.checked_sub(1).map(|before| &insns[before]);
        let is_masked = before.is_some_and(|before| hides_constant(before, insn.off));
        !exchanges_words(insn)
            && (!fetches_from_stack(insn) || is_masked)
            && insn.code != JMP | JCOND
    })
}

fn exchanges_words(insn: &Insn) -> bool {
    insn.code == STX | ATOMIC | W && insn.imm == CMPXCHG
}

fn fetches_from_stack(insn: &Insn) -> bool {
    insn.code & !SIZE_MASK == STX | ATOMIC && insn.dst == 10 && insn.imm & FETCH != 0
}

fn hides_constant(insn: &Insn, slot: i16) -> bool {
    insn.code == STX | MEM | B && insn.dst == 10 && insn.off == slot + 1
}

/// Returns whether the kernel's verifier has gone through too much of a program, rather than found
/// something wrong with it.
pub fn has_given_up(refusal: &Refusal) -> bool {
    is_limit(&refusal.log)
}

fn is_limit(words: &str) -> bool {
    let limits = [
        "BPF program is too large. Processed",
        "jumps is too complex",
    ];
    limits.iter().any(|limit| words.contains(limit))
}

/// Returns the end of the kernel verifier's log.
pub fn words(refusal: &Refusal) -> String {
    let lines: Vec<&str> = refusal.log.trim_end().lines().collect();
    let last = lines[lines.len().saturating_sub(4)..].join("\n");
    format!("errno {}, ...\n{last}", refusal.errno)
}

fn compare(ours: &Left, theirs: &Left) -> Result<(), String> {
    same("context", &ours.context, &theirs.context)?;
    for ((map, ours), (_, theirs)) in ours.maps.iter().zip(&theirs.maps) {
        same(&format!("map {map}"), ours, theirs)?;
    }
    Ok(())
}

pub fn same<T: PartialEq + std::fmt::Debug>(
    what: &str,
    ours: &T,
    theirs: &T,
) -> Result<(), String> {
    if ours == theirs {
        Ok(())
    } else {
        Err(format!("{what} is {ours:x?}, elsewhere {theirs:x?}"))
    }
}

/// Leaves a byte everywhere on the stack that is used next.
#[inline(never)]
fn fill_stack(byte: u8) {
    let mut stack = [byte; 64 << 10];
    std::hint::black_box(&mut stack);
}

/// Does something with the stack at other addresses.
#[inline(never)]
fn deeper<T>(body: impl FnOnce() -> T) -> T {
    let mut stack = [0_u8; 5000];
    std::hint::black_box(&mut stack);
    body()
}

/// Beeline's verifier accepts every program that the kernel's accepts.
fn accept(insns: &[Insn]) -> Result<(), String> {
    let kind = Kind {
        prog_type: ProgramType::SYSCALL,
        flags: SLEEPABLE,
        ..Kind::default()
    };
    let starts = function_starts(insns).map_err(|reject| reject.to_string())?;
    let (btf, functions) = kernel::functions(&starts);
    let types = ProgramTypes::new(&btf, &functions, &[], &kind, insns, &starts, None);
    let types = types.map_err(|(_, why)| why)?;
    let maps: Vec<(i32, Map)> = (0..MAPS.len()).map(|at| (at as i32, map(at))).collect();
    let maps: Vec<_> = maps.iter().map(|(fd, map)| (*fd, map)).collect();
    let program = Program {
        kind,
        gpl: true,
        insns,
        maps: &maps,
        types: Some(&types),
        kernel: None,
        helpers: Some(&is_helper),
        ..Default::default()
    };
    let verdict = verify(&program, LogLevel(0)).result;
    verdict.map(drop).map_err(|refusal| refusal.reason)
}

fn map(at: usize) -> Map {
    let shape = MAPS[at];
    Map {
        id: at as u32 + 1,
        map_type: shape.map_type,
        key_size: shape.key,
        value_size: shape.value,
        max_entries: shape.entries,
        flags: shape.flags,
        constant: (at == CONSTANTS).then(|| contents(at).remove(0).1),
        ..Map::default()
    }
}
