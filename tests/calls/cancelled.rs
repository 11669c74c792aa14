//! Threads that are cancelled while they wait in a traced call end as they would without Beeline.

use std::path::Path;

use beeline_e2e::{Scratch, Turn, engines, find_program, need};

use crate::asleep::wait_asleep;
use crate::trace::{Traced, every_call, plain};

/// Cancels threads in each of the calls: begun before the tool attaches, while it looks, and after
/// it has detached.
fn cancelled(program: &Path, sleep: i64) {
    let _turn = Turn::take();
    let waits = [
        ("read", "cancel", libc::SYS_read),
        ("sleep", "cancel", sleep),
        ("condition", "cancel", libc::SYS_futex),
        ("asynchronous", "cancel asynchronous", libc::SYS_pause),
    ];
    let target = plain(program);
    for engine in need!(engines()) {
        for (start, cancel, number) in waits {
            let mut workload = beeline_e2e::Workload::start_command(target());
            let pid = workload.pid();
            let asleep = || wait_asleep(pid, &[libc::SYS_read, number]);
            let (started, ended) = (format!("done {start}"), format!("done {cancel}"));
            assert_eq!(workload.tell(start), started);
            asleep();
            let mut traced = need!(Traced::attach(engine, workload, &every_call(engine)));
            assert_eq!(traced.workload.tell(cancel), ended, "{engine}: {start}");
            assert_eq!(traced.workload.tell(start), started);
            asleep();
            assert_eq!(traced.workload.tell(cancel), ended, "{engine}: {start}");
            assert_eq!(traced.workload.tell(start), started);
            asleep();
            let (mut workload, _) = traced.finish_tool();
            assert_eq!(workload.tell(cancel), ended, "{engine}: {start}");
            workload.finish();
        }
    }
}

#[test]
fn cancelled_threads_of_glibc_run_their_destructors() {
    let scratch = Scratch::new();
    let program = scratch.build_with("calls/cancel.cpp", &["-DDESTRUCTORS=1"]);
    cancelled(&program, libc::SYS_clock_nanosleep);
}

/// glibc 2.41, like musl, checks a thread's position: its cancellable calls all share one
/// instruction.
#[test]
fn cancelled_threads_of_a_newer_glibc_run_their_destructors() {
    let scratch = Scratch::new();
    let library = need!(newer_libc());
    let loader = format!("-Wl,--dynamic-linker={library}/ld-linux-x86-64.so.2");
    let path = format!("-Wl,-rpath,{library}");
    let program = scratch.build_with("calls/cancel.cpp", &["-DDESTRUCTORS=1", &loader, &path]);
    cancelled(&program, libc::SYS_clock_nanosleep);
}

#[test]
fn cancelled_threads_of_a_static_program_run_their_destructors() {
    let scratch = Scratch::new();
    let program = scratch.build_with("calls/cancel.cpp", &["-DDESTRUCTORS=1", "-static"]);
    cancelled(&program, libc::SYS_clock_nanosleep);
}

/// musl checks whether a thread to be cancelled is before its `syscall` instruction.
#[test]
fn cancelled_threads_of_musl_clean_up() {
    let scratch = Scratch::new();
    let musl = need!(find_program("musl-gcc"));
    for linking in [&["-static"][..], &[]] {
        let program = scratch.build_by(&musl, "calls/cancel.c", linking);
        cancelled(&program, libc::SYS_nanosleep);
    }
}

/// The path to which `scripts/deps.sh` installs Debian 13's C library.
fn newer_libc() -> Result<&'static str, String> {
    let library = "/usr/local/lib/beeline-test-tools";
    match Path::new(library).join("libc.so.6").exists() {
        true => Ok(library),
        false => Err(format!("there is no C library in {library}")),
    }
}
