//! Kernel uprobes that no thread shows: Beeline sees them without stopping the target, through
//! pages that it maps there a second time, and unmaps as it leaves.

use std::process::Command;
use std::time::Duration;

use beeline_e2e::{PATIENCE, Tool, Turn, beeline, need, statuses, until};

use crate::setting::{INT3, Place, Setting, first_byte};

/// Longer than the pause between Beeline's looks.
const SOME_LOOKS: Duration = Duration::from_secs(3);
/// `push rbp; mov rbp, rsp`: the jump covers both, and its byte at the second looks like the
/// kernel's breakpoint.
const FUNCTION: &str = "b_push_rbp";
const INNER: u64 = 1;
const CALLS: u64 = 50;
/// The number of targets to try: where the heap, which the kernel places differently each time,
/// leaves no room for the jump's code, Beeline uses a breakpoint.
const TARGETS: usize = 20;

/// Returns the mappings of files, in order.
fn mapped_files(pid: u32) -> Vec<String> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("it lives");
    let lines = maps.lines().filter(|line| line.contains('/'));
    lines.map(str::to_owned).collect()
}

/// Starts a target with a session's jump in its function and a page of its code mapped a second
/// time; also returns the files that the target had mapped before.
fn settled() -> Result<(Setting, Tool, Vec<String>), String> {
    for _ in 0..TARGETS {
        let setting = Setting::new()?;
        let pid = setting.target.pid();
        let (before, of_program) = (mapped_files(pid), mappings_of_program(&setting));
        let tool = setting.ours(&format!("uprobe:{{prog}}:{FUNCTION} {{ @ = count(); }}"));
        if first_byte(pid, &setting.program, offset_of_function(&setting)) == INT3 {
            tool.interrupt();
            setting.finish();
            continue;
        }
        let is_mapped = || mappings_of_program(&setting) > of_program;
        assert!(until(PATIENCE, is_mapped), "nothing is mapped once more");
        // Beeline maps the page during a stop, and the stop lists it.
        let is_let_go = |status: &String| {
            status.contains("\nState:\tS") && status.contains("\nTracerPid:\t0\n")
        };
        assert!(until(PATIENCE, || statuses(pid).iter().all(is_let_go)));
        return Ok((setting, tool, before));
    }
    panic!("no jump in {TARGETS} targets");
}

fn offset_of_function(setting: &Setting) -> u64 {
    let mut functions = setting.functions.iter();
    let found = functions.find(|(name, _)| name == FUNCTION);
    found.expect("a workload's").1
}

fn mappings_of_program(setting: &Setting) -> usize {
    let program = setting.program.display().to_string();
    let files = mapped_files(setting.target.pid());
    let readable = files.iter().filter(|line| line.contains("r--p"));
    readable.filter(|line| line.ends_with(&program)).count()
}

/// Returns how often its threads have been switched to; each stop adds to that.
fn switches(pid: u32) -> u64 {
    let statuses = statuses(pid);
    let lines = statuses.iter().flat_map(|status| status.lines());
    let counts = lines.filter(|line| line.contains("_ctxt_switches:"));
    let numbers = counts.filter_map(|line| line.split_once(':')?.1.trim().parse::<u64>().ok());
    numbers.sum()
}

#[test]
fn a_kernel_uprobe_inside_a_jump_is_noticed_and_an_idle_target_is_not_stopped() {
    let _turn = Turn::take();
    let (mut setting, ours, before) = need!(settled());
    let pid = setting.target.pid();
    let offset = offset_of_function(&setting);
    let then = switches(pid);
    std::thread::sleep(SOME_LOOKS);
    assert_eq!(switches(pid), then, "it was stopped, and nothing happened");

    let number = setting.attach_kernel_at(offset + INNER, Place::Entry);
    let number = need!(number.ok_or("the kernel refuses the probe")) as usize;
    let is_breakpoint = || first_byte(pid, &setting.program, offset) == INT3;
    assert!(until(PATIENCE, is_breakpoint), "nobody noticed");
    let seen = setting.kernel_counts()[number];
    let calls = setting.calls(CALLS);
    assert_eq!(setting.kernel_counts()[number] - seen, calls);
    let ended = ours.interrupt();
    assert!(ended.stdout.contains(&format!("@: {calls}")), "{ended:?}");
    setting.kernel.tell("off all");
    assert_eq!(mapped_files(pid), before);
    setting.finish();
}

#[test]
fn witnesses_of_a_killed_session_are_unmapped() {
    let _turn = Turn::take();
    let (setting, ours, before) = need!(settled());
    let pid = setting.target.pid();
    ours.signal_group(libc::SIGKILL);
    ours.wait();
    assert_ne!(mapped_files(pid), before);
    let detached = Command::new(beeline()).args(["detach", "--dead"]).output();
    // Remains may still be in other processes.
    detached.expect("cannot run beeline");
    assert_eq!(mapped_files(pid), before);
    setting.finish();
}
