//! Several sessions' signal handlers in one target, installed and removed in every order.

use beeline_e2e::{
    Ended, Engine, Footprint, Scratch, Tool, Turn, Workload, beeline_wanted, file_offset,
    find_program, map_counts, need,
};

use crate::orders::{assert_all, assert_ours_saw};
use crate::setting::{BREAKPOINTS, LEAVING, Place, Setting, counted};

/// Calls of each function by each thread.
const CALLS: u64 = 50;
const PHASE: u64 = 2;

/// A session whose handler runs after another one's attaches to more functions, over that one's
/// patches. Returns which of them ends first.
fn attach_over_a_later_session(beside_kernel: bool, first_goes: bool) {
    let _turn = Turn::take();
    let mut setting = need!(Setting::new());
    let mut first = start_first(&setting);
    first.wait_for_line(|line| line == "waiting");
    setting.run();
    let second = setting.ours(&setting.counting(Place::Entry));
    setting.go_on();
    setting.stop();
    first.send("on");
    first.wait_for_line(|line| line == "attached");
    if beside_kernel {
        setting.attach_kernel(Place::Entry);
    }
    setting.phase(PHASE);
    let calls = setting.calls(CALLS);
    setting.phase(PHASE + 1);
    let (first, second) = if first_goes {
        let first = first.wait();
        setting.run();
        setting.go_on();
        (first, second.interrupt())
    } else {
        let second = second.interrupt();
        (first.wait(), second)
    };
    setting.kernel.tell("off all");
    assert_first_saw(&setting, &first, calls, beside_kernel);
    let counts = counted(&second, PHASE);
    match beside_kernel {
        true => assert_ours_saw(&setting, &counts, calls, second.missed(), &second.stderr),
        false => assert_all(&setting, &counts, calls, &second.stderr),
    }
    if first_goes {
        setting.stop();
    }
    setting.finish();
}

/// A tool that attaches to one function, prints "waiting", and after a line of input attaches to
/// all others.
fn start_first(setting: &Setting) -> Tool {
    let mut command = Engine::Beeline.command(setting.scratch.build("attach.c"));
    let offset = file_offset(&setting.program, "b_phase").expect("a symbol of the workload");
    let others = setting.functions.iter().map(|(_, at)| format!("P:{at:#x}"));
    command
        .arg(setting.target.pid().to_string())
        .arg(&setting.program)
        .arg("1")
        .args([format!("p:{offset:#x}"), "-".into()])
        .args(others);
    Tool::start(command)
}

/// Asserts that the first session's one counter holds the calls of all functions; beside the
/// kernel's probes, at least of those whose hits are visible then.
fn assert_first_saw(setting: &Setting, ended: &Ended, calls: u64, beside_kernel: bool) {
    let count = ended.stdout.iter().find_map(|line| {
        let count = line.strip_prefix("count ")?;
        count.parse::<u64>().ok()
    });
    let count = count.unwrap_or_else(|| panic!("{ended:?}"));
    let all = setting.functions.len() as u64;
    let unseen = LEAVING.len() + BREAKPOINTS.len();
    let least = match beside_kernel {
        true => (all - unseen as u64) * calls - ended.missed(),
        false => all * calls,
    };
    assert!(
        (least..=all * calls).contains(&count),
        "{count}, not {least} to {}: {ended:?}",
        all * calls
    );
}

#[test]
fn the_first_session_attaches_again_and_goes_first() {
    attach_over_a_later_session(false, true);
}

#[test]
fn the_first_session_attaches_again_and_goes_last() {
    attach_over_a_later_session(false, false);
}

#[test]
fn the_first_session_attaches_again_beside_the_kernel_and_goes_first() {
    attach_over_a_later_session(true, true);
}

#[test]
fn the_first_session_attaches_again_beside_the_kernel_and_goes_last() {
    attach_over_a_later_session(true, false);
}

/// The target's own faults reach its own handler, on its own stack; the faults of Beeline's reads
/// never do.
#[test]
fn a_target_installs_a_handler_under_two_sessions() {
    const LOOKS: u64 = 20_000;
    let _turn = Turn::take();
    need!(beeline_wanted());
    let bpftrace = need!(find_program("bpftrace"));
    let scratch = Scratch::new();
    let program = scratch.build("handlers.c");
    let script = format!(
        "uprobe:{}:wl_look {{ @[str(arg0)] = count(); }}",
        program.display()
    );
    for first_goes in [true, false] {
        let mut target = Workload::start(&program);
        let before = Footprint::of(target.pid());
        let start = || {
            let mut command = Engine::Beeline.command(&bpftrace);
            command.args(["-p", &target.pid().to_string()]);
            let tool = Tool::bpftrace(command, &script);
            tool.wait_attached();
            tool
        };
        let (first, second) = (start(), start());
        assert_eq!(target.tell("install"), "installed over default");
        assert_eq!(target.tell("fault"), "handled on its stack");
        assert_eq!(target.tell(&format!("look {LOOKS}")), "strays 0");
        assert_eq!(target.tell("install"), "installed over own");
        let (gone, left) = match first_goes {
            true => (first, second),
            false => (second, first),
        };
        let gone = gone.interrupt();
        assert_eq!(target.tell("fault"), "handled on its stack");
        assert_eq!(target.tell(&format!("look {LOOKS}")), "strays 0");
        let left = left.interrupt();
        assert_eq!(target.tell("fault"), "handled on its stack");
        assert_eq!(target.tell("install"), "installed over own");
        for (ended, looks) in [(gone, LOOKS), (left, 2 * LOOKS)] {
            let counts = map_counts(&ended.stdout);
            assert_eq!(counts.get("@[there]"), Some(&looks), "{ended:?}");
            assert_eq!(counts.get("@[]"), Some(&looks), "{ended:?}");
        }
        assert_eq!(Footprint::of(target.pid()), before);
        target.finish();
    }
}
