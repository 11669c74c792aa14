//! Calls that the vDSO makes when it cannot answer by itself.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use beeline_e2e::{Engine, Scratch, Turn, Workload, beeline, beeline_wanted, need};

use crate::trace::{Traced, every_call, plain, same_calls, same_calls_but};

/// Checks that there are as many calls for this clock as the program says that it makes: the vDSO
/// has made them.
fn has_clock_calls(threads: &[Vec<String>]) {
    let is_clock = |call: &&String| *call == "+228";
    let count = threads.iter().flatten().filter(is_clock).count();
    assert!(count >= 200, "{count}");
}

fn clocks(options: &[&str]) {
    let scratch = Scratch::new();
    let program = scratch.build_with("calls/clocks.c", options);
    let scenes = ["clocks", "random", "children", "sharing", "clocks"];
    has_clock_calls(&need!(same_calls(plain(&program), &scenes)));
}

#[test]
fn calls_that_the_vdso_makes_are_seen() {
    clocks(&[]);
}

#[test]
fn calls_that_the_vdso_makes_for_a_static_program_are_seen() {
    clocks(&["-static"]);
}

#[test]
fn calls_that_the_vdso_makes_in_a_thread_are_seen() {
    let scratch = Scratch::new();
    let program = scratch.build("calls/clocks.c");
    let by_chance = libc::SYS_futex as u32;
    let seen = same_calls_but(plain(&program), &["thread"], |number| number == by_chance);
    need!(seen);
}

/// The programs ask for the time as well, at each of these calls.
#[test]
fn it_asks_for_every_time_where_only_the_kernel_can_tell() {
    let scratch = Scratch::new();
    let program = scratch.build("calls/clocks.c");
    let forgetful = || {
        let mut command = plain(&program)();
        command.arg("forgetful");
        command
    };
    let threads = need!(same_calls(forgetful, &["clocks", "random"]));
    let of = |number: &str| {
        threads
            .iter()
            .flatten()
            .filter(|call| *call == number)
            .count()
    };
    assert_eq!((of("+228"), of("+96")), (50 * 5, 50));
}

/// Returns the bytes of the process's vDSO.
fn vdso(pid: u32) -> Vec<u8> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("the target runs");
    let line = maps.lines().find(|line| line.ends_with("[vdso]"));
    let (range, _) = line.and_then(|line| line.split_once(' ')).expect("a vDSO");
    let (start, end) = range.split_once('-').expect("a range");
    let [start, end] = [start, end].map(|at| u64::from_str_radix(at, 16).expect("an address"));
    let mut bytes = vec![0; (end - start) as usize];
    let memory = File::open(Path::new(&format!("/proc/{pid}/mem"))).expect("its memory");
    memory.read_exact_at(&mut bytes, start).expect("its vDSO");
    bytes
}

/// It is listed with its calls while they are hooked, and is unchanged afterwards.
#[test]
fn it_is_listed_and_given_back() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let scratch = Scratch::new();
    let target = plain(&scratch.build("calls/clocks.c"))();
    let workload = Workload::start_command(target);
    let (pid, before) = (workload.pid(), vdso(workload.pid()));
    let script = every_call(Engine::Beeline);
    let mut traced = need!(Traced::attach(Engine::Beeline, workload, &script));
    assert_eq!(traced.workload.tell("clocks"), "done clocks");
    assert_ne!(vdso(pid), before);
    let listed = Command::new(beeline()).args(["ps", "--json"]).output();
    let listed = listed.expect("beeline ps").stdout;
    let listed: serde_json::Value = serde_json::from_slice(&listed).expect("JSON");
    let mine = listed.as_array().expect("a list").iter();
    let mine = mine.into_iter().find(|one| one["pid"] == pid);
    let mappings = &mine.expect("the target is listed")["calls"]["mappings"];
    let mut mappings = mappings.as_array().expect("a list").iter();
    let own = mappings.find(|one| one["name"] == "[vdso]");
    let own = own.expect("its vDSO is listed");
    assert!(own["hooked"].as_u64() > Some(0), "{own}");
    let (mut workload, _) = traced.finish_tool();
    assert_eq!(vdso(pid), before);
    assert_eq!(workload.tell("clocks"), "done clocks");
    workload.finish();
}
