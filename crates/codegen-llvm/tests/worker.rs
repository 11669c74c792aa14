//! The compiler in a process of its own.

#[path = "../../codegen/tests/common/mod.rs"]
mod common;

use std::fs;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use beeline_codegen::{Bytecode, Compiler, Error, Machine, MapShape, Worker};
use beeline_codegen_llvm::Llvm;

use common::{EXIT, call, mov, random};

fn worker() -> Worker {
    Worker::new(env!("CARGO_BIN_EXE_beeline-llvm"))
}

/// A file cannot be run while it is written, and a process that another test starts meanwhile has
/// it open for a moment.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn it_gives_what_the_compiler_gives() {
    let _turn = turn();
    let worker = worker();
    for seed in 0..20 {
        let insns = random::program(seed, 20);
        let program = Bytecode {
            insns: &insns,
            maps: &[MapShape::Array {
                entries: 4,
                stride: 8,
            }],
            in_agent: true,
        };
        for machine in [Machine::X86_64, Machine::Aarch64] {
            assert_eq!(
                worker.compile(&program, machine),
                Llvm.compile(&program, machine)
            );
        }
    }
}

#[test]
fn uncompilable_programs_are_named() {
    let _turn = turn();
    let insns = [call(300), EXIT];
    let program = Bytecode::new(&insns);
    let here = Llvm
        .compile(&program, Machine::X86_64)
        .expect_err("no such helper");
    let there = worker().compile(&program, Machine::X86_64);
    assert_eq!(there, Err(Error::Refused(here.to_string())));
}

#[test]
fn one_that_dies_is_started_again() {
    let _turn = turn();
    // A copy by another name, so that no other test's is found.
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("mortal");
    fs::copy(env!("CARGO_BIN_EXE_beeline-llvm"), &path).expect("a copy");
    let worker = Worker::new(&path);
    let insns = [mov(0, 7), EXIT];
    let program = Bytecode::new(&insns);
    let first = worker.compile(&program, Machine::X86_64).expect("code");
    let running = || running(&path);
    let before = running();
    assert_eq!(before.len(), 1);
    // SAFETY: the process is this test's.
    unsafe { libc::kill(before[0], libc::SIGKILL) };
    assert_eq!(worker.compile(&program, Machine::X86_64), Ok(first));
    let after = running();
    assert!(after.len() == 1 && after != before, "{before:?}, {after:?}");
    drop(worker);
    assert!(running().is_empty());
}

#[test]
fn one_that_was_installed_over_the_other_is_asked() {
    let _turn = turn();
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("replaced");
    let install = || {
        let new = directory.path().join("new");
        fs::copy(env!("CARGO_BIN_EXE_beeline-llvm"), &new).expect("a copy");
        fs::rename(&new, &path).expect("installed");
    };
    install();
    let worker = Worker::new(&path);
    let insns = [mov(0, 7), EXIT];
    let program = Bytecode::new(&insns);
    let first = worker.compile(&program, Machine::X86_64).expect("code");
    assert_eq!(worker.compile(&program, Machine::X86_64), Ok(first.clone()));
    let (before, identity) = (running(&path), worker.identity());
    assert_eq!(before.len(), 1);
    install();
    assert_ne!(worker.identity(), identity);
    assert_eq!(worker.compile(&program, Machine::X86_64), Ok(first));
    let after = running(&path);
    assert!(after.len() == 1 && after != before, "{before:?}, {after:?}");
    assert!(!std::path::Path::new(&format!("/proc/{}", before[0])).exists());
}

#[test]
fn one_that_hangs_can_be_stopped() {
    let _turn = turn();
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("hangs");
    fs::copy("/usr/bin/sort", &path).expect("a copy");
    let worker = Worker::new(&path);
    let insns = [mov(0, 7), EXIT];
    let program = Bytecode::new(&insns);
    let compile = || worker.compile(&program, Machine::X86_64);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(compile);
        let pid = loop {
            if let [pid] = running(&path)[..] {
                break pid;
            }
            std::thread::yield_now();
        };
        worker.stop();
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
        let error = waiting.join().expect("no panic").expect_err("no code");
        assert!(error.to_string().contains("stopped"), "{error}");
    });
    let error = compile().expect_err("it stays stopped");
    assert!(error.to_string().contains("stopped"), "{error}");
    assert!(running(&path).is_empty());
}

/// Returns the processes that run this file.
fn running(path: &Path) -> Vec<i32> {
    let is_it = |pid: &i32| fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == path);
    fs::read_dir("/proc")
        .expect("processes")
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(is_it)
        .collect()
}

#[test]
fn one_that_is_missing_hangs_or_talks_nonsense_is_an_error() {
    let _turn = turn();
    let insns = [mov(0, 7), EXIT];
    for (path, why) in [
        ("/nonexistent/beeline-llvm", "cannot be started"),
        ("/bin/true", "has died"),
        ("/usr/bin/yes", "does not speak"),
        // It waits for the end of its input.
        ("/usr/bin/sort", "gave no answer"),
    ] {
        let worker = Worker::new(path);
        let worker = match why {
            "gave no answer" => worker.with_patience(Duration::from_millis(300)),
            _ => worker,
        };
        let error = worker
            .compile(&Bytecode::new(&insns), Machine::X86_64)
            .expect_err(path);
        assert!(
            matches!(&error, Error::Worker(text) if text.contains(path) && text.contains(why)),
            "{error}"
        );
        let again = worker
            .compile(&Bytecode::new(&insns), Machine::X86_64)
            .expect_err(path);
        let is_given_up = again.to_string().contains("not asked again");
        assert_eq!(is_given_up, why == "gave no answer", "{again}");
    }
}
