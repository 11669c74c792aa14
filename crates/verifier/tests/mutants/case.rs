//! A program with its maps, and the two verifiers' answers.

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use beeline_fuzz::kernel::functions;
use beeline_isa::opcode::{PSEUDO_FUNC, PSEUDO_MAP_FD, PSEUDO_MAP_VALUE};
use beeline_isa::{Insn, Listing, Op};
use beeline_kernel::{MapSpec, ProgramSpec, create_map, freeze, load_program, load_types, update};
use beeline_uapi::{HelperId, MapType};
use beeline_verifier::function_starts;
use beeline_verifier::oracle::verify_shortly;
use beeline_verifier::program::{Kind, Map, Program};
use beeline_verifier::types::{KernelTypes, ProgramTypes};
use beeline_verifier::verdict::{LogLevel, ProgramSummary};

/// A program to be judged.
#[derive(Debug, Clone)]
pub struct Case {
    pub kind: Kind,
    pub insns: Vec<Insn>,
    /// By the descriptors that instructions have.
    pub maps: Vec<(i32, Map)>,
}

/// Error numbers of loads that do not depend on the program: no permission, no memory.
const ASIDE: [i32; 3] = [libc::EPERM, libc::ENOMEM, libc::EAGAIN];

/// Beeline's verifier has no time limit for a program that takes the kernel longer than this.
const LONG: Duration = Duration::from_millis(100);

/// The results: error numbers, 0 for acceptance.
#[derive(Debug)]
pub struct Verdicts {
    /// `None` if the kernel cannot be asked.
    pub kernel: Option<i32>,
    /// `None` for a panic.
    pub ours: Option<i32>,
    /// The time that Beeline's verifier took.
    pub took: Duration,
}

impl Verdicts {
    /// Returns whether the difference is to be fixed.
    pub fn differ(&self) -> bool {
        let Some(ours) = self.ours else {
            return true;
        };
        self.kernel
            .is_some_and(|kernel| (kernel == 0) != (ours == 0))
    }
}

/// Map types for programs like the first one loaded with them: arrays of programs, of devices, of
/// CPUs.
const OWNED: [MapType; 4] = [
    MapType::PROG_ARRAY,
    MapType::DEVMAP,
    MapType::CPUMAP,
    MapType::DEVMAP_HASH,
];

/// The parameters of maps.
type Shape = (MapType, u32, u32, u32, u32, bool);

/// Linux 6.18's verifier can follow a bad pointer where a loop ends by `may_goto`, or where a
/// helper calls back, in a senseless program.
fn endangers_kernel(insns: &[Insn]) -> bool {
    const CALL_BACK: [HelperId; 5] = [
        HelperId::FOR_EACH_MAP_ELEM,
        HelperId::TIMER_SET_CALLBACK,
        HelperId::FIND_VMA,
        HelperId::LOOP,
        HelperId::USER_RINGBUF_DRAIN,
    ];
    insns.iter().any(|insn| match insn.op() {
        Ok(Op::MayGoto { .. } | Op::CallKernel { .. }) => true,
        Ok(Op::CallHelper { id }) => CALL_BACK.contains(&id),
        _ => false,
    })
}

/// Asks both verifiers.
pub struct Judge {
    types: Option<KernelTypes>,
    maps: HashMap<Shape, Option<OwnedFd>>,
    /// By number of functions.
    functions: HashMap<usize, OwnedFd>,
}

impl Judge {
    pub fn new() -> Self {
        let types = std::fs::read("/sys/kernel/btf/vmlinux").ok();
        Self {
            types: types.and_then(KernelTypes::new),
            maps: HashMap::new(),
            functions: HashMap::new(),
        }
    }

    pub fn verdicts(&mut self, case: &Case) -> Verdicts {
        let start = Instant::now();
        let kernel = self.kernel(case, 0).map(|(errno, _)| errno);
        if start.elapsed() > LONG {
            return Verdicts {
                kernel: None,
                ours: Some(0),
                took: Duration::ZERO,
            };
        }
        let start = Instant::now();
        let ours = self.ours(case, 0).ok().map(|(errno, _)| errno);
        Verdicts {
            kernel: kernel.filter(|errno| !ASIDE.contains(errno)),
            ours,
            took: start.elapsed(),
        }
    }

    /// Returns Beeline's error number and log, or the message of a panic.
    pub fn ours(&self, case: &Case, log: u32) -> Result<(i32, String), String> {
        self.ours_with(case, log, None)
    }

    /// Does the same where only some helpers are available.
    pub fn ours_with(
        &self,
        case: &Case,
        log: u32,
        helpers: Option<&dyn Fn(HelperId) -> bool>,
    ) -> Result<(i32, String), String> {
        let verify = |program: &Program<'_>| {
            let verdict = beeline_verifier::verify(program, LogLevel(log));
            let errno = verdict.result.map_or_else(|no| no.errno.0, |_| 0);
            (errno, verdict.log)
        };
        match catch_unwind(AssertUnwindSafe(|| self.with(case, helpers, verify))) {
            Ok(answer) => Ok(answer.unwrap_or_else(|refused| refused)),
            Err(_) => Err(PANIC.lock().map(|it| it.clone()).unwrap_or_default()),
        }
    }

    /// Returns the summary of a program that Beeline's verifier accepts where only some helpers are
    /// available, after at most so many instructions. Errors: the message of a panic.
    pub fn accepts(
        &self,
        case: &Case,
        helpers: &dyn Fn(HelperId) -> bool,
        most: u32,
    ) -> Result<Option<ProgramSummary>, String> {
        let verify = |program: &Program<'_>| verify_shortly(program, most).result.ok();
        let accepts = || self.with(case, Some(helpers), verify).ok().flatten();
        catch_unwind(AssertUnwindSafe(accepts))
            .map_err(|_| PANIC.lock().map(|it| it.clone()).unwrap_or_default())
    }

    /// Passes on a verifier's input; nothing if its types are refused.
    pub fn with_program<T>(
        &self,
        case: &Case,
        helpers: &dyn Fn(HelperId) -> bool,
        judge: impl FnOnce(&Program<'_>) -> T,
    ) -> Option<T> {
        self.with(case, Some(helpers), judge).ok()
    }

    /// Errors: the error number and the log of a refusal of the program's types.
    fn with<T>(
        &self,
        case: &Case,
        helpers: Option<&dyn Fn(HelperId) -> bool>,
        judge: impl FnOnce(&Program<'_>) -> T,
    ) -> Result<T, (i32, String)> {
        let maps: Vec<_> = case.maps.iter().map(|(fd, map)| (*fd, map)).collect();
        let types = described_functions(&case.insns).map(|starts| {
            let (btf, info) = functions(&starts);
            ProgramTypes::new(&btf, &info, &[], &case.kind, &case.insns, &starts, None)
        });
        let types = types.transpose().map_err(|(errno, log)| (errno.0, log))?;
        Ok(judge(&Program {
            kind: case.kind,
            gpl: true,
            insns: &case.insns,
            maps: &maps,
            types: types.as_ref(),
            kernel: self.types.as_ref(),
            helpers,
            ..Program::default()
        }))
    }

    /// Returns the kernel's error number and log; `None` if it does not make the maps.
    pub fn kernel(&mut self, case: &Case, log: u32) -> Option<(i32, String)> {
        if endangers_kernel(&case.insns) {
            return None;
        }
        let mut real = HashMap::new();
        for (fd, map) in &case.maps {
            let made = self.map(map)?;
            real.insert(*fd, made);
        }
        let insns: Vec<Insn> = resolved(&case.insns, &real);
        let starts = described_functions(&case.insns);
        let (described, info) = functions(starts.as_deref().unwrap_or_default());
        let btf = self.functions.entry(info.len()).or_insert_with(|| {
            let types = load_types(&described);
            types.expect("good type information")
        });
        let types = starts.is_some().then_some(beeline_kernel::ProgramTypes {
            btf: btf.as_fd(),
            functions: &info,
            lines: &[],
        });
        let loaded = load_program(&ProgramSpec {
            prog_type: case.kind.prog_type,
            expected_attach_type: case.kind.attach_type,
            flags: case.kind.flags,
            attach_btf_id: case.kind.attach_btf_id,
            license: "GPL",
            insns: &insns,
            types,
            log_level: log,
            ..ProgramSpec::default()
        });
        Some(match loaded {
            Ok((_, log)) => (0, log),
            Err(refusal) => (refusal.errno, refusal.log),
        })
    }

    fn map(&mut self, map: &Map) -> Option<i32> {
        let shape = (
            map.map_type,
            map.key_size,
            map.value_size,
            map.max_entries,
            map.flags,
            map.constant.is_some(),
        );
        if self.maps.len() > 4_000 {
            self.maps.clear();
        }
        if OWNED.contains(&map.map_type) {
            self.maps.remove(&shape);
        }
        let made = self.maps.entry(shape).or_insert_with(|| make(map));
        made.as_ref().map(AsRawFd::as_raw_fd)
    }
}

/// Returns the beginnings of the functions of a program that takes the address of one: it has to
/// have types for them.
fn described_functions(insns: &[Insn]) -> Option<Vec<usize>> {
    let takes_address = |insn: &Insn| insn.is_imm64() && insn.src == PSEUDO_FUNC;
    if !insns.iter().any(takes_address) {
        return None;
    }
    function_starts(insns).ok()
}

fn make(map: &Map) -> Option<OwnedFd> {
    let inner = map.inner.as_deref().map(make);
    let inner = match inner {
        Some(None) => return None,
        Some(made) => made,
        None => None,
    };
    let made = create_map(&MapSpec {
        map_type: map.map_type,
        key_size: map.key_size,
        value_size: map.value_size,
        max_entries: map.max_entries,
        flags: map.flags,
        inner: inner.as_ref().map(AsFd::as_fd),
        ..MapSpec::default()
    });
    let made = made.ok()?;
    if let Some(value) = &map.constant {
        update(&made, &[0; 4], value).ok()?;
        freeze(&made).ok()?;
    }
    Some(made)
}

/// Puts in the kernel's descriptors; -1 for anything that is not a map of the program's.
fn resolved(insns: &[Insn], maps: &HashMap<i32, i32>) -> Vec<Insn> {
    let mut second = false;
    let resolve = |insn: &Insn| {
        let names_map = matches!(insn.src, PSEUDO_MAP_FD | PSEUDO_MAP_VALUE);
        let first = insn.is_imm64() && !std::mem::take(&mut second);
        second = first;
        let mut insn = *insn;
        if first && names_map {
            insn.imm = maps.get(&insn.imm).copied().unwrap_or(-1);
        }
        insn
    };
    insns.iter().map(resolve).collect()
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{:?}", self.kind)?;
        for (fd, map) in &self.maps {
            let named = |insn: &Insn| insn.is_imm64() && insn.imm == *fd;
            if self.insns.iter().any(named) {
                writeln!(
                    f,
                    "map {fd}: type {} key {} value {} entries {} flags {:#x}{}",
                    map.map_type.0,
                    map.key_size,
                    map.value_size,
                    map.max_entries,
                    map.flags,
                    if map.constant.is_some() {
                        " frozen"
                    } else {
                        ""
                    }
                )?;
            }
        }
        write!(f, "{}", Listing(&self.insns))
    }
}

/// The place and reason of the last panic.
static PANIC: Mutex<String> = Mutex::new(String::new());

/// Reports panics together with their program.
pub fn remember_panics() {
    std::panic::set_hook(Box::new(|info| {
        if let Ok(mut said) = PANIC.lock() {
            *said = info.to_string().replace('\n', " ");
        }
    }));
}
