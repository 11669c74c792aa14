//! The engines of a session, and the choice of when each compiles a program.
//!
//! The baseline compiler takes microseconds, so its code is attached at once. An optimizing
//! compiler may take much longer and runs in a process of its own. Its code replaces the baseline
//! code when it is there (`crate::tier_up`), and is kept on disk, so that the next start has it
//! at once. Each distinct program is compiled once in a session.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use beeline_agent::helpers;
use beeline_codegen::aot::{Aot, Unusable};
use beeline_codegen::{
    Baseline, Bytecode, Code, CodeStore, Compiler, Digest, Error, MapShape, RegisterSet,
};
use beeline_isa::{Imm64, Insn, Op};
use parking_lot::Mutex;

use crate::arch::MACHINE;
use crate::budget::Budget;
use crate::session::Report;

/// The choice of the engine that makes the code of programs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Choice {
    /// The baseline compiler's at once, and the optimizer's as soon as it is there.
    #[default]
    Auto,
    /// The baseline compiler's.
    Baseline,
    /// The optimizer's, which is waited for.
    Optimized,
    /// The interpreter runs programs and checks every access. Programs need not be verified, and
    /// are attached nowhere.
    Interpreter,
}

/// A compiler that may take its time.
pub type Optimizer = Box<dyn Compiler + Send + Sync>;

/// The engines of a session.
pub struct Engines {
    choice: Choice,
    optimizer: Option<Optimizer>,
    store: Option<CodeStore>,
    ahead: Option<Aot>,
    report: Report,
    budget: Budget,
    /// Also report what is of interest to some users only.
    is_verbose: bool,
    has_failed: AtomicBool,
    baseline: Mutex<Made>,
    optimized: Mutex<Made>,
}

/// The most bytes of unused code that are kept for the next program like it.
const MOST_UNUSED: usize = 16 << 20;

/// Compiled code, by the program that it was made from. Unused code goes when there is much of it.
#[derive(Default)]
struct Made {
    code: HashMap<Digest, Arc<Compiled>>,
    /// Bytes added since unused code was last thrown away.
    added: usize,
}

impl Made {
    fn get(&self, digest: &Digest) -> Option<&Arc<Compiled>> {
        self.code.get(digest)
    }

    fn insert(&mut self, digest: Digest, compiled: Arc<Compiled>) {
        self.added += compiled.size();
        if self.added > MOST_UNUSED {
            self.code.retain(|_, known| Arc::strong_count(known) > 1);
            self.added = compiled.size();
        }
        self.code.insert(digest, compiled);
    }
}

/// A program's code, and the engine that made it.
#[derive(Debug, PartialEq, Eq)]
pub struct Compiled {
    /// The engine's name.
    pub engine: String,
    /// True if it was made ahead of time, and came in a file.
    pub is_ahead: bool,
    /// The code.
    pub code: Code,
}

impl Compiled {
    /// Returns its approximate size in memory.
    pub(crate) fn size(&self) -> usize {
        size_of::<Self>() + self.code.bytes.len() + size_of_val(self.code.insns.as_slice())
    }

    /// Returns the code of a program that cannot run here.
    pub(crate) fn none() -> Self {
        Self {
            engine: String::new(),
            is_ahead: false,
            code: Code {
                bytes: Vec::new(),
                clobbers: RegisterSet::EMPTY,
                uses_run: false,
                stack_bytes: 0,
                insns: Vec::new(),
            },
        }
    }
}

/// The beginning of a program that says if the program has to run at all. It needs no slot.
#[derive(Debug)]
pub struct ProgramFilter {
    /// Its code.
    pub code: Arc<Compiled>,
    /// True if it asks for the thread's ids.
    pub asks_ids: bool,
    /// The maps whose values it reads, by their places among the program's.
    pub maps: Vec<u32>,
}

/// The source that code is made from.
#[derive(Debug)]
pub struct Source {
    insns: Vec<Insn>,
    maps: Vec<MapShape>,
    digest: Digest,
}

impl Source {
    /// Creates a source of resolved instructions over maps of these shapes.
    pub fn new(insns: Vec<Insn>, maps: Vec<MapShape>) -> Self {
        let digest = Digest::of_program(&program(&insns, &maps));
        Self {
            insns,
            maps,
            digest,
        }
    }

    /// Returns its approximate size in memory.
    pub(crate) fn size(&self) -> usize {
        size_of_val(&*self.insns) + size_of_val(&*self.maps)
    }

    /// Returns the program as engines are given it.
    pub fn program(&self) -> Bytecode<'_> {
        program(&self.insns, &self.maps)
    }

    /// Returns its name.
    pub fn digest(&self) -> Digest {
        self.digest
    }
}

impl Engines {
    /// Creates the engines with the baseline compiler alone, until others are added.
    pub fn new(choice: Choice, report: Report) -> Self {
        Self {
            choice,
            optimizer: None,
            store: None,
            ahead: None,
            report,
            budget: Budget::default(),
            is_verbose: false,
            has_failed: AtomicBool::new(false),
            baseline: Mutex::default(),
            optimized: Mutex::default(),
        }
    }

    /// Adds a compiler for [`Choice::Auto`] and [`Choice::Optimized`].
    pub fn with_optimizer(self, optimizer: Optimizer) -> Self {
        Self {
            optimizer: Some(optimizer),
            ..self
        }
    }

    /// Adds a place where the optimizer's code is kept.
    pub fn with_store(self, store: CodeStore) -> Self {
        Self {
            store: Some(store),
            ..self
        }
    }

    /// Adds code made ahead of time, which is used for the programs that it was made from.
    ///
    /// # Errors
    ///
    /// Those of [`Aot::check`].
    pub fn with_aot(self, aot: Aot) -> Result<Self, Unusable> {
        aot.check(&helper_table())?;
        Ok(Self {
            ahead: Some(aot),
            ..self
        })
    }

    /// Reports what is compiled when.
    pub fn verbose(self, is_verbose: bool) -> Self {
        Self { is_verbose, ..self }
    }

    /// Charges the memory that an optimizer takes while it is at work.
    pub(crate) fn with_budget(self, budget: Budget) -> Self {
        Self { budget, ..self }
    }

    /// True if programs are to be verified before they run.
    pub fn are_verified(&self) -> bool {
        self.choice != Choice::Interpreter
    }

    /// Returns the code to begin with.
    pub(crate) fn first(&self, source: &Source) -> Result<Arc<Compiled>, Error> {
        if let Some(ahead) = self.ahead.as_ref().and_then(|aot| aot.find(&source.digest)) {
            return Ok(Arc::new(Compiled {
                engine: ahead.engine.clone(),
                is_ahead: true,
                code: ahead.code.clone(),
            }));
        }
        match (self.choice, &self.optimizer) {
            (Choice::Baseline | Choice::Interpreter, _) | (_, None) => self.by_baseline(source),
            (Choice::Optimized, Some(optimizer)) => self.optimized(source).or_else(|error| {
                let baseline = self.by_baseline(source)?;
                if !self.has_failed.swap(true, Relaxed) {
                    let engine = optimizer.name();
                    (self.report)(&format!(
                        "{engine} failed, and the baseline compiler's code runs: {error}"
                    ));
                }
                Ok(baseline)
            }),
            (Choice::Auto, Some(optimizer)) => match self.kept(source, optimizer.as_ref()) {
                Some(kept) => Ok(kept),
                None => self.by_baseline(source).or_else(|_| self.optimized(source)),
            },
        }
    }

    /// Returns the program's filter, if it has one. The program must be a verified one.
    pub(crate) fn filter(&self, source: &Source) -> Option<ProgramFilter> {
        let insns = beeline_codegen::filter(&source.insns)?;
        let asks = |insn: &Insn| matches!(insn.op(), Ok(Op::CallHelper { .. }));
        let asks_ids = insns.iter().any(asks);
        let map = |insn: &Insn| match insn.op() {
            Ok(Op::Imm64 {
                kind: Imm64::MapValue,
                low,
                ..
            }) => Some(low.cast_unsigned()),
            _ => None,
        };
        let maps = insns.iter().filter_map(map).collect();
        let filter = Source::new(insns, source.maps.clone());
        let code = self.by_baseline(&filter).ok()?;
        Some(ProgramFilter {
            code,
            asks_ids,
            maps,
        })
    }

    /// True if better code than this will come.
    pub(crate) fn tiers_up(&self, first: &Compiled) -> bool {
        let Some(optimizer) = &self.optimizer else {
            return false;
        };
        self.choice == Choice::Auto
            && first.engine == Baseline.name()
            && optimizer.name() != first.engine
    }

    /// Returns the optimizer's code, however long it takes.
    pub(crate) fn optimized(&self, source: &Source) -> Result<Arc<Compiled>, Error> {
        let optimizer = self.optimizer.as_deref().ok_or(Error::NoCodeForMachine)?;
        if let Some(kept) = self.kept(source, optimizer) {
            return Ok(kept);
        }
        // A thread that wants the same program meanwhile waits here, and finds it.
        let mut made = self.optimized.lock();
        if let Some(known) = made.get(&source.digest) {
            return Ok(known.clone());
        }
        let place = self.place_of(source, optimizer);
        let _charge = self.budget.charge(bytes_to_optimize(source)).map_err(|_| {
            Error::Worker(format!("there is no memory left for {}", optimizer.name()))
        })?;
        let compiled = compile(optimizer, source)?;
        // If another optimizer was installed meanwhile, the origin of the code is unknown.
        if let Some((store, name)) = place
            && self.place_of(source, optimizer).map(|place| place.1) == Some(name)
            && let Err(error) = store.put(&name, &compiled.code)
        {
            self.tell(&format!("compiled code is not kept: {error}"));
        }
        made.insert(source.digest, compiled.clone());
        Ok(compiled)
    }

    /// Stops all compilation at the session's end.
    pub(crate) fn stop(&self) {
        if let Some(optimizer) = &self.optimizer {
            optimizer.stop();
        }
    }

    /// Reports something in verbose mode.
    pub(crate) fn tell(&self, what: &str) {
        if self.is_verbose {
            (self.report)(what);
        }
    }

    fn by_baseline(&self, source: &Source) -> Result<Arc<Compiled>, Error> {
        if let Some(known) = self.baseline.lock().get(&source.digest) {
            return Ok(known.clone());
        }
        let compiled = compile(&Baseline, source)?;
        self.baseline.lock().insert(source.digest, compiled.clone());
        Ok(compiled)
    }

    /// Returns the optimizer's code if it was made before: here, or in another session.
    fn kept(
        &self,
        source: &Source,
        optimizer: &(dyn Compiler + Send + Sync),
    ) -> Option<Arc<Compiled>> {
        // Does not wait for the lock: it is held for as long as a program is compiled.
        let mut made = self.optimized.try_lock()?;
        if let Some(known) = made.get(&source.digest) {
            return Some(known.clone());
        }
        let (store, name) = self.place_of(source, optimizer)?;
        let compiled = Arc::new(Compiled {
            engine: optimizer.name().to_owned(),
            is_ahead: false,
            code: store.get(&name)?,
        });
        made.insert(source.digest, compiled.clone());
        Some(compiled)
    }

    /// Returns where the optimizer's code of a program is kept, if it is.
    fn place_of(
        &self,
        source: &Source,
        optimizer: &(dyn Compiler + Send + Sync),
    ) -> Option<(&CodeStore, Digest)> {
        let store = self.store.as_ref()?;
        let is_kept = !optimizer.identity().is_empty();
        is_kept.then(|| (store, Digest::of_code(&source.digest, optimizer, MACHINE)))
    }
}

/// Returns the approximate number of bytes that an optimizer takes for a program: LLVM by itself,
/// and per instruction.
fn bytes_to_optimize(source: &Source) -> u64 {
    (64 << 20) + (2 << 10) * source.insns.len() as u64
}

/// Returns a program as all engines are given it.
fn program<'a>(insns: &'a [Insn], maps: &'a [MapShape]) -> Bytecode<'a> {
    Bytecode {
        insns,
        maps,
        in_agent: true,
    }
}

/// Returns the digest that code made ahead of time must have been made for.
pub fn helper_table() -> Digest {
    Digest::of_helpers(
        helpers::ALL
            .iter()
            .map(|helper| (helper.number, helper.name)),
    )
}

fn compile(compiler: &(impl Compiler + ?Sized), source: &Source) -> Result<Arc<Compiled>, Error> {
    Ok(Arc::new(Compiled {
        engine: compiler.name().to_owned(),
        is_ahead: false,
        code: compiler.compile(&program(&source.insns, &source.maps), MACHINE)?,
    }))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use beeline_codegen::Machine;

    use super::*;

    /// Another compiler is installed over it with every program that it compiles, unless it is
    /// settled.
    struct Replaced {
        is_settled: bool,
        version: AtomicU32,
    }

    impl Compiler for Replaced {
        fn name(&self) -> &'static str {
            "other"
        }

        fn identity(&self) -> String {
            format!("version {}", self.version.load(Relaxed))
        }

        fn compile(&self, program: &Bytecode<'_>, machine: Machine) -> Result<Code, Error> {
            if !self.is_settled {
                self.version.fetch_add(1, Relaxed);
            }
            Baseline.compile(program, machine)
        }
    }

    /// Returns `r0 = number; exit` behind many others of the kind.
    fn long_source(number: i32) -> Source {
        const LENGTH: usize = 4000;
        let mut bytes = Vec::new();
        for _ in 0..LENGTH {
            bytes.extend([0xb7, 0, 0, 0]);
            bytes.extend(number.to_ne_bytes());
        }
        bytes.extend([0x95, 0, 0, 0, 0, 0, 0, 0]);
        let insns = Insn::decode_all(&bytes).expect("whole");
        Source::new(insns.collect(), Vec::new())
    }

    #[test]
    fn code_that_no_program_has_is_not_kept_for_ever() {
        let engines = Engines::new(Choice::Baseline, Arc::new(|_: &str| {}));
        let used = long_source(-1);
        let in_use = engines.first(&used).expect("code");
        let mut most = 0;
        for number in 0..1000 {
            engines.first(&long_source(number)).expect("code");
            let kept: usize = engines
                .baseline
                .lock()
                .code
                .values()
                .map(|it| it.size())
                .sum();
            most = most.max(kept);
        }
        assert!(most <= MOST_UNUSED + 2 * in_use.size(), "{most} bytes");
        assert!(
            1000 * in_use.size() > 2 * MOST_UNUSED,
            "too little was made"
        );
        // Code that a program uses is found.
        assert!(Arc::ptr_eq(&in_use, &engines.first(&used).expect("code")));
    }

    #[test]
    fn code_of_an_optimizer_that_was_replaced_meanwhile_is_not_kept() {
        let exit = Insn::decode_all(&[0x95, 0, 0, 0, 0, 0, 0, 0]).expect("whole");
        let source = Source::new(exit.collect(), Vec::new());
        for is_settled in [true, false] {
            let directory = tempfile::tempdir().expect("a directory");
            let optimizer = Replaced {
                is_settled,
                version: AtomicU32::new(0),
            };
            let engines = Engines::new(Choice::Optimized, Arc::new(|_: &str| {}))
                .with_optimizer(Box::new(optimizer))
                .with_store(CodeStore::open(directory.path()).expect("a store"));
            let compiled = engines.first(&source).expect("code");
            assert_eq!(compiled.engine, "other");
            let files = std::fs::read_dir(directory.path()).expect("a directory");
            assert_eq!(files.count(), usize::from(is_settled));
        }
    }
}
