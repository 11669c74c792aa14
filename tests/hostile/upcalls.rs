//! A process floods Beeline with requests and wake-ups, or lies about what it does. Another user's
//! process forks and runs programs meanwhile: all of it is seen.

use std::time::{Duration, Instant};

use beeline_e2e::{Ended, Tool, Turn, Workload, map_counts, need, remark};

use crate::world::{World, as_user, isolated};

/// The user that attacks: Debian's "daemon".
const ATTACKER: u32 = 1;
/// The user whose process is honest: Debian's "nobody".
const HONEST: u32 = 65534;
/// Children in a round.
const CHILDREN: u64 = 50;
/// The time after which Beeline is taken not to end, on the busiest machine. It should take 2 s.
const PATIENCE: Duration = Duration::from_secs(20);
/// Each child calls the function once, runs the program anew, and calls it once more.
const SCRIPT: &str = "tracepoint:syscalls:sys_enter_execve /uid == 65534/ { @runs = count(); } \
    uprobe:{prog}:wl_add /uid == 65534/ { @calls = count(); }";

/// Has a process attack while another one works. Returns what the tool has said.
fn attacked(attack: &str) -> Ended {
    let world = World::new("upcalls.c").expect("the caller has looked");
    let mut honest = world.start_as(HONEST);
    let mut command = as_user(ATTACKER, &world.program);
    command.arg("attack");
    let mut attacker = Workload::start_command(command);
    let tool = Tool::bpftrace(isolated(&world.bpftrace), &world.script(SCRIPT));
    tool.wait_attached();
    assert_eq!(honest.go(), "done");
    assert_eq!(attacker.tell(attack), "attacks 1");
    for _ in 0..2 {
        assert_eq!(honest.go(), "done");
    }
    if let Some(told) = told_of(attack) {
        tool.wait_to_be_told(|line| line.contains(told));
    }
    assert_eq!(honest.go(), "done");
    tool.settle();
    let since = Instant::now();
    let ended = tool.interrupt();
    let took = since.elapsed();
    remark(&format!("{attack}: it took {took:?} to end"));
    attacker.kill();
    assert!(ended.status.success(), "{attack}: {ended:?}");
    assert!(took < PATIENCE, "{attack}: took {took:?}: {ended:?}");
    let counts = map_counts(&ended.stdout);
    let rounds = 4;
    assert_eq!(
        (counts.get("@runs"), counts.get("@calls")),
        (Some(&(rounds * CHILDREN)), Some(&(rounds * CHILDREN * 2))),
        "{attack}: {ended:?}"
    );
    honest.finish();
    ended
}

/// The words by which the user is told of an attack, if that must be.
fn told_of(attack: &str) -> Option<&'static str> {
    match &attack[..3] {
        "own" | "rin" | "tid" => Some("a process of user 1 keeps Beeline busy for nothing"),
        "lie" => Some("a process of user 1 makes false requests of Beeline"),
        _ => None,
    }
}

fn try_all(attacks: &[&str]) {
    let _turn = Turn::take();
    need!(World::new("upcalls.c"));
    for attack in attacks {
        let ended = attacked(attack);
        let told = ended.stderr.iter().filter(|line| line.contains("user 1 "));
        assert!(told.count() <= 1, "{attack}: {:?}", ended.stderr);
    }
}

#[test]
fn false_requests_end_with_the_user_who_makes_them() {
    try_all(&["lie1", "lie3", "lie4"]);
}

#[test]
fn requests_that_nothing_comes_of_keep_only_their_user_waiting() {
    try_all(&["own1", "own2", "own3", "own4", "own5", "own9", "tid1"]);
}

#[test]
fn wake_ups_without_a_request_are_not_listened_to() {
    try_all(&["ring"]);
}

#[test]
fn processes_that_never_run_what_they_announce_keep_nobody_waiting() {
    try_all(&["stop"]);
}

#[test]
fn storms_of_real_forks_and_programs_keep_nobody_waiting() {
    try_all(&["forks", "execs"]);
}
