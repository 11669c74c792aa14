//! Beeline dies while its targets are in the middle of calls: they live on, and `beeline detach`
//! restores them.

use std::process::Command;
use std::time::Duration;

use beeline_e2e::{
    Engine, PATIENCE, Scratch, Turn, Workload, altered_text, beeline, beeline_wanted, need, until,
};

use crate::asleep::{WITH_GLIBC, wait_asleep};
use crate::trace::{Traced, every_call, plain};

/// Kills the whole session of a traced workload.
fn kill(traced: Traced) -> Workload {
    let Traced { workload, tool, .. } = traced;
    tool.signal_group(libc::SIGKILL);
    tool.wait();
    workload
}

fn detach(pid: u32) {
    let detached = Command::new(beeline())
        .args(["detach", &pid.to_string()])
        .output()
        .expect("beeline runs");
    assert!(detached.status.success(), "{detached:?}");
    let is_clean = || altered_text(pid).is_empty();
    assert!(until(PATIENCE, is_clean), "{:?}", altered_text(pid));
}

#[test]
fn sleepers_of_a_killed_session_wake_and_are_restored() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let scratch = Scratch::new();
    let target = plain(&scratch.build("calls/asleep.c"));
    let mut traced = need!(Traced::start(
        Engine::Beeline,
        target(),
        &every_call(Engine::Beeline)
    ));
    assert_eq!(traced.workload.tell("wake"), "done wake");
    wait_asleep(traced.workload.pid(), &WITH_GLIBC);
    let mut workload = kill(traced);
    assert_eq!(workload.tell("wake"), "done wake");
    wait_asleep(workload.pid(), &WITH_GLIBC);
    detach(workload.pid());
    assert_eq!(workload.tell("wake"), "done wake");
    workload.finish();
}

/// The next session removes the remains, attaches itself, and detaches, all while the threads
/// sleep.
#[test]
fn sleepers_of_a_killed_session_do_not_notice_the_next() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let scratch = Scratch::new();
    let target = plain(&scratch.build("calls/asleep.c"));
    let script = every_call(Engine::Beeline);
    let mut traced = need!(Traced::start(Engine::Beeline, target(), &script));
    assert_eq!(traced.workload.tell("wake"), "done wake");
    for _ in 0..3 {
        wait_asleep(traced.workload.pid(), &WITH_GLIBC);
        let workload = kill(traced);
        traced = need!(Traced::attach(Engine::Beeline, workload, &script));
        assert_eq!(traced.workload.tell("wake"), "done wake");
    }
    wait_asleep(traced.workload.pid(), &WITH_GLIBC);
    let (mut workload, _) = traced.finish_tool();
    assert_eq!(workload.tell("wake"), "done wake");
    workload.finish();
}

#[test]
fn targets_of_a_killed_session_fork_and_run_programs() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let scratch = Scratch::new();
    let target = plain(&scratch.build("calls/children.c"));
    let mut traced = need!(Traced::start(
        Engine::Beeline,
        target(),
        &every_call(Engine::Beeline)
    ));
    assert_eq!(traced.workload.tell("fork"), "done fork");
    let mut workload = kill(traced);
    for scene in [
        "fork",
        "vfork",
        "fork deep",
        "spawn",
        "threads",
        "shell",
        "daemon",
    ] {
        assert_eq!(workload.tell(scene), format!("done {scene}"));
    }
    detach(workload.pid());
    assert_eq!(workload.tell("fork deep"), "done fork deep");
    workload.finish();
}

/// Killed at any moment while a target does nothing but fork, or run programs.
#[test]
fn a_session_may_be_killed_while_targets_fork() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let scratch = Scratch::new();
    let target = plain(&scratch.build("calls/children.c"));
    for (scene, delay) in [
        ("fork quick", 3),
        ("fork quick", 20),
        ("spawn", 2),
        ("shell", 5),
        ("fork deep", 1),
    ] {
        let mut traced = need!(Traced::start(
            Engine::Beeline,
            target(),
            &every_call(Engine::Beeline)
        ));
        traced.workload.send(scene);
        std::thread::sleep(Duration::from_millis(delay));
        let mut workload = kill(traced);
        // A child that is held at that moment, with foreign registers, does not survive, and the
        // scene says so.
        let answer = workload.answer();
        let is_played = answer.ends_with(scene) || answer.starts_with("failed");
        assert!(is_played, "{answer}");
        assert_eq!(workload.tell("fork"), "done fork");
        detach(workload.pid());
        assert_eq!(workload.tell("threads"), "done threads");
        workload.finish();
    }
}
