//! A breakpoint would kill a thread that blocks SIGTRAP. Threads and handlers do not block it while
//! Beeline needs it.

use beeline_e2e::{
    Ended, Engine, PATIENCE, Scratch, Tool, Turn, Workload, beeline_wanted, file_offset,
    find_program, need, statuses, until,
};

use crate::setting::{INT3, JUMP, Setting, first_byte};

/// A function that only a breakpoint can hook.
const FUNCTION: &str = "b_looped";
const CALLS: u64 = 50;
const SIGTRAP: u64 = 1 << (libc::SIGTRAP - 1);

/// Returns the number of threads that block SIGTRAP.
fn blocking(pid: u32) -> usize {
    let blocks = |status: &String| {
        let mut lines = status.lines();
        let mask = lines.find_map(|line| line.strip_prefix("SigBlk:"));
        let mask = u64::from_str_radix(mask.expect("each has one").trim(), 16);
        mask.expect("a number") & SIGTRAP != 0
    };
    let statuses = statuses(pid);
    statuses.iter().filter(|status| blocks(status)).count()
}

#[test]
fn a_breakpoint_serves_a_process_with_a_thread_that_blocks_all_signals() {
    let _turn = Turn::take();
    for is_late in [false, true] {
        let mut setting = need!(Setting::new());
        let pid = setting.target.pid();
        if !is_late {
            setting.block();
            assert_eq!(blocking(pid), 1);
        }
        let ours = setting.ours(&format!("uprobe:{{prog}}:{FUNCTION} {{ @ = count(); }}"));
        let mut functions = setting.functions.iter();
        let (_, offset) = *functions.find(|(name, _)| name == FUNCTION).expect("one");
        assert_eq!(first_byte(pid, &setting.program, offset), INT3);
        if is_late {
            setting.block();
        }
        assert!(until(PATIENCE, || blocking(pid) == 0), "late: {is_late}");
        let calls = setting.calls(CALLS);
        let ended = ours.interrupt();
        let count = format!("@: {calls}");
        assert!(ended.stdout.contains(&count), "{ended:?}");
        assert_eq!(blocking(pid), 1, "as it was before");
        setting.finish();
    }
}

/// Starts the target, tells it something, and starts a tool that counts its calls of a function.
fn counting(
    engine: Engine,
    function: &str,
    first: Option<&str>,
) -> Result<(Scratch, Workload, Tool), String> {
    let bpftrace = find_program("bpftrace")?;
    let scratch = Scratch::new();
    let program = scratch.build("masks.c");
    let mut target = Workload::start(&program);
    if let Some(first) = first {
        assert_eq!(target.tell(first), "done 0");
    }
    let mut command = engine.command(&bpftrace);
    command.args(["-p", &target.pid().to_string()]);
    let script = format!("uprobe:{}:{function} {{ @ = count(); }}", program.display());
    let tool = Tool::bpftrace(command, &script);
    tool.wait_attached();
    Ok((scratch, target, tool))
}

fn counts(ended: Ended) -> Vec<String> {
    let lines = ended.stdout.into_iter();
    lines.filter(|line| line.starts_with('@')).collect()
}

/// Calls the probed function in handlers that block all signals, one of them installed behind the
/// tool's back, in a thread that has just blocked them, and in calls that block them as they wait.
/// Returns what the tool has counted.
fn hits_with_signals_blocked(engine: Engine) -> Result<Vec<String>, String> {
    let (_scratch, mut target, tool) = counting(engine, "probed", None)?;
    let (first, second) = (libc::SIGUSR1, libc::SIGUSR2);
    assert_eq!(target.tell(&format!("handler {first}")), "done 1");
    for signal in [first, libc::SIGTRAP] {
        assert_eq!(target.tell(&format!("mask {signal}")), "blocks");
    }
    assert_eq!(target.tell("install"), "blocks");
    assert_eq!(target.tell(&format!("handler {second}")), "done 2");
    // More threads than Beeline notes at a time.
    for calls in 3..=80 {
        assert_eq!(target.tell("thread"), format!("done {calls}"));
    }
    for (calls, kind) in (81..).zip(0..4) {
        assert_eq!(
            target.tell(&format!("wait {kind}")),
            format!("done {calls}")
        );
    }
    for (calls, kind) in (85..).zip(0..4) {
        assert_eq!(target.tell(&format!("far {kind}")), format!("done {calls}"));
    }
    let ended = tool.interrupt();
    for signal in [first, second, libc::SIGTRAP] {
        assert_eq!(target.tell(&format!("mask {signal}")), "blocks");
    }
    assert_eq!(target.tell("handler 10"), "done 89");
    target.finish();
    Ok(counts(ended))
}

#[test]
fn handlers_and_threads_that_block_all_signals_come_to_a_breakpoint() {
    let _turn = Turn::take();
    let kernel = need!(hits_with_signals_blocked(Engine::Kernel));
    let ours = need!(hits_with_signals_blocked(Engine::Beeline));
    assert_eq!(kernel, ["@: 88"]);
    assert_eq!(ours, kernel);
}

/// Calls the probed function in children that share the memory and have reset their handlers, and
/// in a thread. Returns what the tool has counted.
fn hits_beside_children(engine: Engine) -> Result<Vec<String>, String> {
    let (_scratch, mut target, tool) = counting(engine, "probed", None)?;
    for calls in 1..=10 {
        assert_eq!(target.tell("vfork"), format!("done {calls}"));
    }
    assert_eq!(target.tell("thread"), "done 11");
    let ended = tool.interrupt();
    assert_eq!(target.tell("vfork"), "done 12");
    target.finish();
    Ok(counts(ended))
}

#[test]
fn children_of_vfork_that_reset_their_handlers_come_to_a_breakpoint() {
    let _turn = Turn::take();
    let kernel = need!(hits_beside_children(Engine::Kernel));
    let ours = need!(hits_beside_children(Engine::Beeline));
    assert!(!kernel.is_empty());
    assert_eq!(ours, kernel);
}

/// A thread traps in the jump behind the first instruction, which the kernel's uprobe has executed
/// elsewhere.
#[test]
fn a_kernel_uprobe_may_come_where_threads_and_handlers_block_all_signals() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let scratch = Scratch::new();
    let mut kernel = Workload::start(&scratch.build("kernel_probes.c"));
    for word in [
        "thread",
        "handler 10",
        "handler 5",
        "vfork",
        "wait 0",
        "wait 1",
        "wait 2",
        "wait 3",
        "main",
    ] {
        let first = (word == "main").then_some("block");
        let (scratch, mut target, tool) = need!(counting(Engine::Beeline, "plain", first));
        let program = scratch.path().join("masks");
        let offset = file_offset(&program, "plain").expect("a function of the workload");
        assert_eq!(first_byte(target.pid(), &program, offset), JUMP);
        let probe = kernel.tell(&format!("on {} {offset} entry", program.display()));
        let number = probe.parse::<u64>();
        need!(number.map_err(|_| format!("the kernel has no uprobes here: {probe}")));
        // Beeline does not know of the uprobe yet.
        assert_eq!(target.tell(word), "done 1", "{word}");
        assert_eq!(counts(tool.interrupt()), ["@: 1"], "{word}");
        target.finish();
    }
    kernel.finish();
}

/// The main thread is the one that makes calls for Beeline.
#[test]
fn a_main_thread_that_blocks_all_signals_comes_to_probes() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    for function in ["probed", "plain"] {
        let (_scratch, mut target, tool) =
            need!(counting(Engine::Beeline, function, Some("block")));
        assert_eq!(blocking(target.pid()), 0, "{function}");
        assert_eq!(target.tell("main"), "done 1", "{function}");
        assert_eq!(counts(tool.interrupt()), ["@: 1"], "{function}");
        assert_eq!(blocking(target.pid()), 1, "as it was before: {function}");
        assert_eq!(target.tell("main"), "done 2", "{function}");
        target.finish();
    }
}
