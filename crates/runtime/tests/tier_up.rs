//! Better code replaces the running code, in running targets, and no call is lost.

mod common;

use std::ffi::OsString;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use beeline_codegen::CodeStore;
use beeline_codegen::aot::{Aot, AotProgram};
use beeline_runtime::backend::{Backend, Id, Info, ObjectRef};
use beeline_runtime::engines::{Choice, Engines, Optimizer};
use beeline_runtime::{Report, Rules, Runtime, Scope};
use beeline_uapi::{AttachType, MapType, ProgramType};
use common::*;
use parking_lot::Mutex;

/// A session, and its reports.
struct Session {
    runtime: Arc<Runtime>,
    said: Arc<Mutex<Vec<String>>>,
}

impl Session {
    fn new(targets: &[Target], engines: impl FnOnce(Report) -> Engines) -> Self {
        let said: Arc<Mutex<Vec<String>>> = Arc::default();
        let report: Report = {
            let said = said.clone();
            Arc::new(move |line: &str| said.lock().push(line.to_owned()))
        };
        let scope = Scope::Processes(targets.iter().map(Target::pid).collect());
        let engines = engines(report.clone());
        let runtime = Runtime::new(
            vec![OsString::from("test")],
            scope,
            Rules::default(),
            engines,
            report,
        )
        .unwrap();
        Self { runtime, said }
    }

    /// Starts a session with an optimizer that runs beside the baseline compiler.
    fn with(targets: &[Target], choice: Choice, optimizer: Optimizer) -> Self {
        Self::new(targets, |report| {
            Engines::new(choice, report)
                .with_optimizer(optimizer)
                .verbose(true)
        })
    }

    fn has_said(&self, what: &str) -> bool {
        self.said.lock().iter().any(|line| line.contains(what))
    }

    /// Ends the session; returns the hits that ran no program.
    fn close(&self) -> u64 {
        self.runtime.close();
        let said = self.said.lock();
        let missed = said.iter().find_map(|line| {
            let (number, _) = line.split_once(" probe hits ran no program")?;
            number.parse().ok()
        });
        missed.unwrap_or(0)
    }
}

fn through(gate: &Arc<Gate>) -> Optimizer {
    Box::new(Through(gate.clone()))
}

fn start(hits: &Hits, count: usize) -> Vec<Target> {
    (0..count).map(|_| hits.start()).collect()
}

/// The counter, attached directly, at the return, or behind a tail call.
#[derive(Debug, Clone, Copy, PartialEq)]
enum How {
    Entry,
    Return,
    TailCall,
}

fn set_up(session: &Session, hits: &Hits, how: How) -> (Id, Id) {
    let runtime = &session.runtime;
    let counts = map(runtime, MapType::ARRAY, 8);
    let counter = load(
        runtime,
        ProgramType::KPROBE,
        &counter(counts.0 as i32),
        &[counts],
    );
    if how != How::TailCall {
        return (counts, attach(runtime, counter, hits, how == How::Return));
    }
    let next = map(runtime, MapType::PROG_ARRAY, 4);
    let caller = load(
        runtime,
        ProgramType::KPROBE,
        &tail_caller(next.0 as i32),
        &[next],
    );
    let element = ObjectRef::Program(counter);
    runtime.map_set_object(next, &[0; 4], element, 0).unwrap();
    (counts, attach(runtime, caller, hits, false))
}

#[test]
fn every_call_is_counted_once_while_the_code_is_replaced() {
    let _turn = turn();
    let hits = Hits::build();
    for how in [
        How::Entry,
        How::Return,
        How::TailCall,
        How::Entry,
        How::Entry,
    ] {
        let mut targets = start(&hits, 3);
        let gate = Arc::new(Gate::default());
        let session = Session::with(&targets, Choice::Auto, through(&gate));
        let (counts, _link) = set_up(&session, &hits, how);
        let now = || split(value(&session.runtime, counts));
        targets.iter_mut().for_each(Target::go);
        until("calls by the first code", || now().0 > 0);
        assert_eq!(now().1, 0, "{how:?}: nothing was compiled yet");
        assert_eq!(targets[0].engines(), ["baseline"]);
        gate.open();
        for target in &targets {
            until("the other code in every target", || {
                target.engines() == ["other"]
            });
        }
        until("calls by the other code", || now().1 > 0);
        let mut all: u64 = targets.iter_mut().map(Target::stop).sum();
        // No thread runs the first code any more.
        let by_first = now().0;
        targets.iter_mut().for_each(Target::go);
        let so_far = now().1;
        until("more calls", || now().1 > so_far);
        all += targets.iter_mut().map(Target::stop).sum::<u64>();
        let (first, other) = now();
        assert_eq!(first, by_first, "{how:?}");
        let missed = session.close();
        assert_eq!(
            first + other + missed,
            all,
            "{how:?}: {first} + {other} + {missed}"
        );
        let (offset, bytes) = hits.hit();
        for target in &targets {
            let now = target.memory_at(&hits.path, offset, bytes.len());
            assert_eq!(now, bytes, "the code is restored");
            let maps = std::fs::read_to_string(format!("/proc/{}/maps", target.pid())).unwrap();
            assert!(!maps.contains("beeline"), "{maps}");
        }
    }
}

#[test]
fn a_program_that_runs_in_beeline_is_replaced_too() {
    let _turn = turn();
    let gate = Arc::new(Gate::default());
    let session = Session::with(&[], Choice::Auto, through(&gate));
    let runtime = &session.runtime;
    let program = load(runtime, ProgramType::RAW_TRACEPOINT, &constant(7), &[]);
    assert_eq!(runtime.program_test_run(program, &[]), Ok(7));
    gate.open();
    until("the other code", || {
        runtime.program_test_run(program, &[]) == Ok(8)
    });
    session.close();
}

#[test]
fn each_distinct_program_is_compiled_once() {
    let _turn = turn();
    let gate = Arc::new(Gate::default());
    gate.open();
    let session = Session::with(&[], Choice::Optimized, through(&gate));
    let runtime = &session.runtime;
    let programs: Vec<Id> = [7, 7, 9, 7]
        .map(|value| load(runtime, ProgramType::RAW_TRACEPOINT, &constant(value), &[]))
        .into();
    let results = programs
        .iter()
        .map(|id| runtime.program_test_run(*id, &[]).unwrap());
    assert_eq!(
        results.collect::<Vec<_>>(),
        [8, 8, 10, 8],
        "the optimizer was waited for"
    );
    assert_eq!(gate.asked.load(SeqCst), 2);
    session.close();
}

#[test]
fn the_next_session_finds_the_code_on_disk() {
    let _turn = turn();
    let directory = tempfile::tempdir().unwrap();
    let gate = Arc::new(Gate::default());
    gate.open();
    for (round, asked) in [1, 1, 2].into_iter().enumerate() {
        if round == 2 {
            for file in std::fs::read_dir(directory.path()).unwrap() {
                std::fs::write(file.unwrap().path(), "damaged").unwrap();
            }
        }
        let store = CodeStore::open(directory.path()).unwrap();
        let session = Session::new(&[], |report| {
            Engines::new(Choice::Auto, report)
                .with_optimizer(through(&gate))
                .with_store(store)
        });
        let runtime = &session.runtime;
        let program = load(runtime, ProgramType::RAW_TRACEPOINT, &constant(7), &[]);
        if round == 1 {
            assert_eq!(
                runtime.program_test_run(program, &[]),
                Ok(8),
                "from its first run on"
            );
        }
        until("the other code", || {
            runtime.program_test_run(program, &[]) == Ok(8)
        });
        assert_eq!(gate.asked.load(SeqCst), asked, "round {round}");
        session.close();
    }
}

/// Ends the session; one target's calls are counted by the first code.
fn check_counts(session: &Session, target: &mut Target, counts: Id) {
    target.go();
    until("calls", || value(&session.runtime, counts) > 0);
    let all = target.stop();
    assert_eq!(target.engines(), ["baseline"]);
    let missed = session.close();
    let (first, other) = split(value(&session.runtime, counts));
    assert_eq!((first + missed, other), (all, 0));
}

#[test]
fn an_optimizer_that_fails_or_hangs_does_no_harm() {
    let _turn = turn();
    let hits = Hits::build();
    for choice in [Choice::Auto, Choice::Optimized] {
        let mut targets = start(&hits, 1);
        let session = Session::with(&targets, choice, Box::new(Broken));
        let (counts, _link) = set_up(&session, &hits, How::Entry);
        until("a word about it", || session.has_said("makes no code"));
        check_counts(&session, &mut targets[0], counts);
    }
    let mut targets = start(&hits, 1);
    let gate = Arc::new(Gate::default());
    let session = Session::with(&targets, Choice::Auto, through(&gate));
    let (counts, _link) = set_up(&session, &hits, How::Entry);
    until("that it is asked", || gate.asked.load(SeqCst) == 1);
    check_counts(&session, &mut targets[0], counts);
    gate.open();
}

#[test]
fn code_that_needs_more_than_was_attached_for_is_not_taken() {
    let _turn = turn();
    let hits = Hits::build();
    // Without helpers and maps a program runs on the target's own stack; with them, on a slot's.
    for (insns, claimed) in [(Some(constant(0)), 4096), (None, 1 << 20)] {
        let targets = start(&hits, 1);
        let gate = Arc::new(Gate::default());
        gate.stack_bytes.store(claimed, SeqCst);
        let session = Session::with(&targets, Choice::Auto, through(&gate));
        let runtime = &session.runtime;
        let counts = map(runtime, MapType::ARRAY, 8);
        let insns = insns.unwrap_or_else(|| counter(counts.0 as i32));
        let program = load(runtime, ProgramType::KPROBE, &insns, &[counts]);
        attach(runtime, program, &hits, true);
        gate.open();
        until("a word about it", || session.has_said("more stack"));
        assert_eq!(targets[0].engines(), ["baseline"]);
        session.close();
    }
}

#[test]
fn code_that_finds_no_room_in_a_target_is_done_without() {
    let _turn = turn();
    let hits = Hits::build();
    let mut targets = start(&hits, 1);
    let gate = Arc::new(Gate::default());
    gate.code_bytes.store(40 << 20, SeqCst);
    let session = Session::with(&targets, Choice::Auto, through(&gate));
    let runtime = &session.runtime;
    let counts = map(runtime, MapType::ARRAY, 8);
    let program = load(
        runtime,
        ProgramType::KPROBE,
        &counter(counts.0 as i32),
        &[counts],
    );
    attach(runtime, program, &hits, false);
    gate.open();
    until("a word about it", || {
        session.has_said("keeps the code of baseline: ")
    });
    // Later attachments find no room for it either.
    attach(runtime, program, &hits, true);
    assert_eq!(targets[0].engines(), ["baseline", "baseline"]);
    targets[0].go();
    until("calls", || value(runtime, counts) > 0);
    let all = 2 * targets[0].stop();
    let missed = session.close();
    assert_eq!(split(value(runtime, counts)), (all - missed, 0));
}

#[test]
fn children_of_ours_that_are_no_compilers_are_traced_with_all_others() {
    let _turn = turn();
    let hits = Hits::build();
    let mut targets = start(&hits, 1);
    let report: Report = Arc::new(|_: &str| {});
    let engines = Engines::new(Choice::Baseline, report.clone());
    let runtime = Runtime::new(
        vec![OsString::from("test")],
        Scope::All,
        Rules::default(),
        engines,
        report,
    )
    .unwrap();
    let counts = map(&runtime, MapType::ARRAY, 8);
    let program = load(
        &runtime,
        ProgramType::KPROBE,
        &counter(counts.0 as i32),
        &[counts],
    );
    attach(&runtime, program, &hits, false);
    targets[0].go();
    until("calls", || value(&runtime, counts) > 0);
    targets[0].stop();
    runtime.close();
}

#[test]
fn code_made_ahead_of_time_is_taken_for_its_program() {
    let _turn = turn();
    let gate = Arc::new(Gate::default());
    gate.open();
    let insns = constant(7);
    let source = beeline_codegen::Bytecode {
        in_agent: true,
        ..beeline_codegen::Bytecode::new(&insns)
    };
    let machine = beeline_codegen::Machine::X86_64;
    let compile = beeline_codegen::Compiler::compile;
    let mut aot = Aot::new(
        machine,
        beeline_runtime::engines::helper_table(),
        "GPL".into(),
        Vec::new(),
    );
    aot.add(AotProgram {
        section: "raw_tp".into(),
        name: "seven".into(),
        prog_type: ProgramType::RAW_TRACEPOINT.0,
        expected_attach_type: AttachType::UNSPECIFIED.0,
        flags: 0,
        attach_btf_id: 0,
        functions: Vec::new(),
        digest: beeline_codegen::Digest::of_program(&source),
        insns: Vec::new(),
        maps: Vec::new(),
        engine: "other".into(),
        code: compile(&Through(gate), &source, machine).unwrap(),
    });
    let session = Session::new(&[], |report| {
        Engines::new(Choice::Baseline, report)
            .with_aot(aot.clone())
            .unwrap()
    });
    let runtime = &session.runtime;
    let of = |value| {
        let program = load(runtime, ProgramType::RAW_TRACEPOINT, &constant(value), &[]);
        runtime.program_test_run(program, &[])
    };
    assert_eq!(of(7), Ok(8));
    assert_eq!(of(9), Ok(9), "it is in no file");
    session.close();
    aot.helpers = beeline_codegen::Digest::of_helpers([(1, "other")]);
    let report: Report = Arc::new(|_: &str| {});
    assert!(
        Engines::new(Choice::Baseline, report)
            .with_aot(aot)
            .is_err()
    );
}

#[test]
fn the_tool_is_shown_the_code_that_runs() {
    let _turn = turn();
    let gate = Arc::new(Gate::default());
    let session = Session::with(&[], Choice::Auto, through(&gate));
    let program = load(
        &session.runtime,
        ProgramType::RAW_TRACEPOINT,
        &constant(7),
        &[],
    );
    let shown = || match session.runtime.info(program) {
        Ok(Info::Program { jited, .. }) => jited,
        other => panic!("{other:?}"),
    };
    let before = shown();
    gate.open();
    until("other code", || shown() != before);
    session.close();
}
