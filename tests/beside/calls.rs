//! Kernel uprobes at functions whose first instruction is hooked because they make a system call.

use std::path::Path;

use beeline_e2e::{
    Engine, PATIENCE, Scratch, Tool, Turn, Workload, altered_text, beeline_wanted, file_offset,
    find_program, need, until,
};

use crate::setting::{JUMP, first_byte};

const LIBC: &str = "/usr/lib/x86_64-linux-gnu/libc.so.6";
/// The functions that the target calls and the session counts.
const FUNCTIONS: [&str; 4] = ["kill", "listen", "dup2", "read"];
const CALLS: u64 = 1_000;
/// A prime, to tell these calls from the others.
const BESIDE: u64 = 101;

#[test]
fn calls_are_made_rightly_at_functions_that_the_kernel_probes_too() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let bpftrace = need!(find_program("bpftrace"));
    let scratch = Scratch::new();
    let mut kernel = Workload::start(&scratch.build("kernel_probes.c"));
    let mut target = Workload::start(&scratch.build("wrappers.c"));
    let pid = target.pid();
    let right = |target: &mut Workload, calls: u64| {
        assert_eq!(target.tell(&format!("calls {calls}")), "0");
    };
    right(&mut target, 1);

    let mut command = Engine::Beeline.command(&bpftrace);
    command.args(["-p", &pid.to_string()]);
    let probes = FUNCTIONS.map(|name| {
        let call = format!("tracepoint:syscalls:sys_enter_{name}");
        format!("{call} /pid == {pid}/ {{ @{name} = count(); }}")
    });
    let ours = Tool::bpftrace(command, &probes.join(" "));
    ours.wait_attached();
    right(&mut target, CALLS);
    for name in FUNCTIONS {
        let offset = need!(file_offset(Path::new(LIBC), name));
        let number = kernel.tell(&format!("on {LIBC} {offset} entry"));
        need!(number.parse::<u64>().map_err(|_| number));
    }
    right(&mut target, BESIDE);
    ours.wait_to_be_told(|line| line.contains("a kernel uprobe is at"));
    kernel.tell("off all");
    // Before the jumps are whole again, and after.
    right(&mut target, CALLS);
    let kill = need!(file_offset(Path::new(LIBC), "kill"));
    let is_whole = || first_byte(pid, Path::new(LIBC), kill) == JUMP;
    assert!(until(PATIENCE, is_whole), "the jump is not whole again");
    right(&mut target, CALLS);
    let ended = ours.interrupt();
    let reads_of_commands = 5;
    for name in FUNCTIONS {
        let count: u64 = ended
            .stdout
            .iter()
            .find_map(|line| line.strip_prefix(&format!("@{name}: "))?.parse().ok())
            .unwrap_or(0);
        let most = 3 * CALLS + BESIDE + if name == "read" { reads_of_commands } else { 0 };
        assert!((3 * CALLS..=most).contains(&count), "{name}: {count}");
    }
    assert!(altered_text(pid).is_empty(), "{:?}", altered_text(pid));
    right(&mut target, 10);
    target.finish();
    kernel.finish();
}
