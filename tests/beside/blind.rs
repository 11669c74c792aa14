//! Sites where a kernel uprobe hides all hits from Beeline, and no thread shows that it is there:
//! Beeline hooks them again when the uprobe has gone.

use std::time::Duration;

use beeline_e2e::{PATIENCE, Turn, need, until};

use crate::setting::{Place, Setting, first_byte};

const CALLS: u64 = 50;
/// The first instruction branches, always or sometimes; or only a breakpoint can hook it.
const FUNCTIONS: [&str; 5] = [
    "b_ret",
    "b_jmp_short",
    "b_jne_short",
    "b_jmp_rip",
    "b_looped",
];

/// The processes that a session asks for: its target, or all. In the latter case it does not look
/// again at the mappings of an old process.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asked {
    ForTarget,
    ForAll,
}

/// Beeline looks around in new processes for somewhat less than this.
const YOUTH: Duration = Duration::from_secs(3);

/// Adds a kernel uprobe to a hooked function and removes it; `is_noticed` says whether Beeline gets
/// the time to see it.
fn seen_again_behind_the_kernel(function: &str, is_noticed: bool, asked: Asked) {
    let mut setting = need!(Setting::new());
    let mut functions = setting.functions.iter();
    let (_, offset) = *functions.find(|(name, _)| name == function).expect("one");
    let pid = setting.target.pid();
    let first = |setting: &Setting| first_byte(pid, &setting.program, offset);
    let original = first(&setting);
    let script = format!("uprobe:{{prog}}:{function} {{ @ = count(); }}");
    let ours = match asked {
        Asked::ForTarget => setting.ours(&script),
        Asked::ForAll => setting.ours_everywhere(&script),
    };
    setting.attach_kernel_at(offset, Place::Entry).expect("one");
    if asked == Asked::ForAll {
        std::thread::sleep(YOUTH);
    }
    if is_noticed {
        let told = |line: &str| line.contains("a kernel uprobe is at");
        let told = ours.stderr.wait_for(0, PATIENCE, told);
        assert!(told.is_some(), "{function}: {:?}", ours.stderr.so_far());
    }
    setting.kernel.tell("off all");
    let is_hooked = until(PATIENCE, || first(&setting) != original);
    assert!(is_hooked, "{function}: hits are lost for ever");
    let calls = setting.calls(CALLS);
    let ended = ours.interrupt();
    let count = format!("@: {calls}");
    assert!(ended.stdout.contains(&count), "{function}: {ended:?}");
    setting.finish();
}

#[test]
fn sites_see_again_when_a_kernel_uprobe_has_gone() {
    let _turn = Turn::take();
    for function in FUNCTIONS {
        seen_again_behind_the_kernel(function, true, Asked::ForTarget);
    }
}

#[test]
fn sites_see_again_when_a_kernel_uprobe_was_there_for_a_moment() {
    let _turn = Turn::take();
    for function in FUNCTIONS {
        seen_again_behind_the_kernel(function, false, Asked::ForTarget);
    }
}

#[test]
fn sessions_over_all_processes_see_again_when_a_kernel_uprobe_has_gone() {
    let _turn = Turn::take();
    for function in FUNCTIONS {
        seen_again_behind_the_kernel(function, true, Asked::ForAll);
    }
}
