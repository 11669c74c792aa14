//! A program is stopped when its libraries are mapped and before any of its code has run.

mod common;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use beeline_inject::{Error, Loaded, MapFlags, Process, ProtFlags, Stopped, Watched};
use common::{Target, compile};

/// A program that uses a library of ours, with further options.
fn program(options: &[&str]) -> PathBuf {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    let library = LIBRARY.get_or_init(|| compile("library.c", &["-shared", "-fPIC"]));
    let mut all = vec![library.to_str().unwrap()];
    all.extend(options);
    compile("uses_library.c", &all)
}

/// A shell that waits for a line before it starts the program.
fn waiting_shell(before: &str, program: &Path, arguments: &str) -> Target {
    let script = format!(
        "echo ready; read go; {before} exec {} {arguments}",
        program.display()
    );
    let mut target = Target::spawn(Command::new("sh").args(["-c", &script]));
    target.await_line("ready");
    target
}

fn has(stopped: &Stopped, name: &str) -> bool {
    let regions = stopped.regions().unwrap();
    regions
        .iter()
        .any(|region| region.permissions.execute && region.path.to_string_lossy().contains(name))
}

/// Does the work of every callback: runs system calls, and leaves a page behind.
fn work(stopped: &mut Stopped) {
    assert_eq!(stopped.threads().len(), 1);
    let pid = stopped.process().pid() as u64;
    assert_eq!(stopped.syscall(libc::SYS_getpid, [0; 6]).unwrap(), pid);
    stopped
        .mmap_anonymous(4096, ProtFlags::READ, MapFlags::PRIVATE, 0)
        .unwrap();
}

#[test]
fn libraries_are_there_and_constructors_have_not_run() {
    for options in [&["-fPIE", "-pie"][..], &["-no-pie"]] {
        let mut target = waiting_shell("", &program(options), "");
        let watched = Watched::seize(&target.open(), target.pid()).unwrap();
        target.close_input();
        let loaded = watched.run_until_loaded(|stopped| {
            work(stopped);
            assert!(has(stopped, "library.c") && has(stopped, "libc.so"));
            breakpoints_left(stopped)
        });
        assert_eq!(loaded.unwrap(), Loaded::Ready(0));
        target.await_line("constructor");
        target.await_line("main");
        target.finish_fine();
    }
}

/// Returns 1 if the loader's function begins with a breakpoint, or else 0.
fn breakpoints_left(stopped: &Stopped) -> usize {
    let ip = stopped.threads()[0].ip();
    let mut byte = [0];
    stopped.read(ip, &mut byte).unwrap();
    usize::from(byte == [0xcc])
}

#[test]
fn a_program_of_one_piece() {
    let mut target = waiting_shell("", &compile("target.c", &["-static"]), "registers");
    let watched = Watched::seize(&target.open(), target.pid()).unwrap();
    // The shell reads a line, so give it none: end of file is enough, and the program ends at once.
    target.close_input();
    let loaded = watched.run_until_loaded(|stopped| {
        work(stopped);
        has(stopped, "target.c")
    });
    assert_eq!(loaded.unwrap(), Loaded::Ready(true));
    target.await_line("ready");
    target.finish_fine();
}

#[test]
fn the_loader_started_by_name() {
    let loader = Path::new("/lib64/ld-linux-x86-64.so.2");
    if !loader.exists() {
        eprintln!("skipped: no glibc here");
        return;
    }
    let mut target = waiting_shell("", loader, &program(&[]).display().to_string());
    let watched = Watched::seize(&target.open(), target.pid()).unwrap();
    target.close_input();
    let loaded = watched.run_until_loaded(|stopped| {
        work(stopped);
        has(stopped, "library.c")
    });
    assert_eq!(loaded.unwrap(), Loaded::Ready(true));
    target.await_line("constructor");
    target.await_line("main");
    target.finish_fine();
}

#[test]
fn a_thread_that_is_not_the_first_runs_the_program() {
    let starter = compile("thread_exec.c", &["-pthread"]);
    let program = program(&[]);
    let echo = Path::new("/bin/echo");
    for (program, line, code) in [(echo, "fine", 0), (&program, "constructor", 42)] {
        let mut target = Target::spawn(Command::new(&starter).args([program, Path::new("fine")]));
        let thread = target.await_line("thread");
        let tid: i32 = thread.rsplit(' ').next().unwrap().trim().parse().unwrap();
        assert_ne!(tid, target.pid());
        let watched = Watched::seize(&target.open(), tid).unwrap();
        let pid = target.pid();
        let follow = std::thread::spawn(move || {
            let given_up = Arc::new(AtomicBool::new(false));
            watched.run_until_exec(&given_up, |stopped| {
                work(stopped);
                stopped.threads()[0].tid() == pid
            })
        });
        target.close_input();
        assert_eq!(follow.join().unwrap().unwrap(), Loaded::Ready(true));
        target.await_line(line);
        assert_eq!(target.finish().code(), Some(code));
    }
}

#[test]
fn a_thread_that_cannot_run_the_program_ends_like_the_rest() {
    let starter = compile("thread_exec.c", &["-pthread"]);
    let mut target = Target::spawn(Command::new(&starter).arg("/nonexistent"));
    let thread = target.await_line("thread");
    let tid = thread.rsplit(' ').next().unwrap().trim().parse().unwrap();
    let watched = Watched::seize(&target.open(), tid).unwrap();
    target.close_input();
    let given_up = Arc::new(AtomicBool::new(false));
    let loaded = watched.run_until_exec(&given_up, work).unwrap();
    assert_eq!(loaded, Loaded::Ended);
    assert_eq!(target.finish().code(), Some(2));
}

#[test]
fn an_ignored_trap_stays_ignored() {
    let mut target = waiting_shell("trap '' TRAP;", &program(&[]), "ignored");
    let watched = Watched::seize(&target.open(), target.pid()).unwrap();
    target.close_input();
    assert_eq!(watched.run_until_loaded(work).unwrap(), Loaded::Ready(()));
    target.await_line("constructor");
    target.await_line("main");
    target.finish_fine();
}

#[test]
fn a_blocked_trap_stays_blocked() {
    use std::os::unix::process::CommandExt;
    let script = format!(
        "echo ready; read go; exec {} blocked",
        program(&[]).display()
    );
    let mut command = Command::new("bash");
    // SAFETY: only async-signal-safe functions are called, on values of this frame.
    unsafe {
        command.args(["-c", &script]).pre_exec(|| {
            let mut set = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            libc::sigaddset(&mut set, libc::SIGTRAP);
            libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
            Ok(())
        });
    }
    let mut target = Target::spawn(&mut command);
    target.await_line("ready");
    let watched = Watched::seize(&target.open(), target.pid()).unwrap();
    target.close_input();
    assert_eq!(watched.run_until_loaded(work).unwrap(), Loaded::Ready(()));
    target.await_line("constructor");
    target.await_line("main");
    target.finish_fine();
}

#[test]
fn it_ends_before_it_starts_anything() {
    let mut target = Target::spawn(Command::new("sh").args(["-c", "echo ready; read go; exit 42"]));
    target.await_line("ready");
    let watched = Watched::seize(&target.open(), target.pid()).unwrap();
    target.close_input();
    assert_eq!(watched.run_until_loaded(|_| ()).unwrap(), Loaded::Ended);
    target.finish_fine();
}

#[test]
fn signals_reach_it_on_the_way() {
    let script = "trap 'echo ready' USR1; echo ready; while ! read go; do :; done; exit 42";
    let mut target = Target::spawn(Command::new("bash").args(["-c", script]));
    target.await_line("ready");
    let watched = Watched::seize(&target.open(), target.pid()).unwrap();
    let pid = target.pid();
    let watcher = std::thread::spawn(move || watched.run_until_loaded(|_| ()));
    target.signal(libc::SIGUSR1);
    target.await_line("ready");
    // Stopped and continued it is still there; terminated it ends.
    target.signal(libc::SIGSTOP);
    std::thread::sleep(std::time::Duration::from_millis(50));
    target.signal(libc::SIGCONT);
    target.signal(libc::SIGUSR1);
    target.await_line("ready");
    target.signal(libc::SIGTERM);
    assert_eq!(watcher.join().unwrap().unwrap(), Loaded::Ended);
    use std::os::unix::process::ExitStatusExt;
    assert_eq!(target.finish().signal(), Some(libc::SIGTERM));
    assert!(matches!(
        Process::open(pid),
        Err(Error::NoSuchProcess { .. })
    ));
}

#[test]
fn dropped_it_runs_on() {
    let mut target = waiting_shell("", &program(&[]), "");
    drop(Watched::seize(&target.open(), target.pid()).unwrap());
    target.close_input();
    target.await_line("constructor");
    target.await_line("main");
    target.finish_fine();
}

/// Its loader does not reach the point where the libraries are mapped.
#[test]
fn given_up_in_its_loader_it_runs_on_as_it_was() {
    for options in [&[][..], &["-DLONG"]] {
        let bare = [
            "-static-pie",
            "-nostdlib",
            "-fno-stack-protector",
            "-fcf-protection=none",
        ];
        let loader = compile("slow_loader.c", &[&bare, options].concat());
        let named = format!("-Wl,--dynamic-linker={}", loader.display());
        let mut target = waiting_shell("", &program(&[&named]), "");
        let watched = Watched::seize(&target.open(), target.pid()).unwrap();
        let given_up = Arc::new(AtomicBool::new(false));
        let watcher = std::thread::spawn({
            let given_up = given_up.clone();
            move || {
                let begun = |_: &mut Stopped| ControlFlow::Continue(());
                watched.run_through_start(&given_up, begun, |_| ())
            }
        });
        target.close_input();
        target.await_line("loader");
        given_up.store(true, Ordering::SeqCst);
        assert_eq!(watcher.join().unwrap().unwrap(), Loaded::Ended);
        target.signal(libc::SIGUSR1);
        target.finish_fine();
    }
}

/// It never runs another program.
#[test]
fn given_up_before_its_program_it_runs_on() {
    let mut target = Target::spawn(Command::new("sh").args(["-c", "echo ready; read go; exit 42"]));
    target.await_line("ready");
    let watched = Watched::seize(&target.open(), target.pid()).unwrap();
    let given_up = Arc::new(AtomicBool::new(true));
    let loaded = watched.run_through_start(&given_up, |_| ControlFlow::Continue(()), |_| ());
    assert_eq!(loaded.unwrap(), Loaded::Ended);
    target.close_input();
    target.finish_fine();
}
