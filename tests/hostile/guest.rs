//! The packaged policy of a guest's proxy lets tools observe, and refuses those that do more. This
//! machine's own kernel is the guest's.

use std::process::Command;

use beeline_e2e::{
    Ended, Tool, Turn, beeline, beeline_wanted, find_program, kernel_available, need, proxy,
    with_tracefs,
};

/// Returns a tool whose programs the proxy loads.
fn in_guest(tool: &str) -> Result<Command, String> {
    let mut command = Command::new(beeline());
    command.args(["run", "--guest", proxy(), "--"]);
    command.arg(find_program(tool)?);
    Ok(command)
}

fn bpftrace(mut command: Command, script: &str) -> Ended {
    command.args(["--unsafe", "-e", script]);
    Tool::start(command).wait()
}

#[test]
fn scripts_that_observe_run() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    need!(kernel_available());
    let mut ran = 0;
    for script in [
        "BEGIN { exit() }",
        "tracepoint:sched:sched_switch { @[comm, kstack(3), ustack(3)] = count(); exit() }",
        "kprobe:vfs_read { @[probe] = hist(nsecs); exit() }",
        "kretprobe:vfs_read { printf(\"%d %s\\n\", retval, comm); exit() }",
        "kfunc:vfs_read { @ = args.file; exit() }",
        "tracepoint:raw_syscalls:sys_enter { @s[tid] = nsecs; delete(@s[tid]); exit() }",
        "profile:hz:99 { @[strftime(\"%H\", nsecs)] = avg(cpu); exit() }",
        "software:cpu-clock:1000000 { @[pid] = max(elapsed); exit() }",
        "uprobe:/bin/bash:main { print(str(arg1)); } interval:ms:10 { exit() }",
    ] {
        let kernel = bpftrace(with_tracefs(need!(find_program("bpftrace"))), script);
        let guest = bpftrace(need!(in_guest("bpftrace")), script);
        println!("{script}: {:?}", kernel.status);
        let [ours, theirs] = [&guest, &kernel].map(|ended| ended.status.success());
        assert_eq!(ours, theirs, "{script}: {guest:?}");
        ran += usize::from(theirs);
    }
    assert!(ran > 4, "{ran} scripts ran");
}

#[test]
fn scripts_that_do_more_are_told_what_is_refused() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    need!(kernel_available());
    for (script, refused) in [
        (
            "kprobe:vfs_read { signal(\"KILL\"); }",
            "send_signal is not allowed",
        ),
        (
            "kprobe:__x64_sys_getpgid { override(1); }",
            "override_return is not allowed",
        ),
    ] {
        let ended = bpftrace(need!(in_guest("bpftrace")), script);
        assert!(!ended.status.success(), "{script}: {ended:?}");
        let said = ended.stderr.join("\n");
        let rule = format!("the guest's policy (programs.deny-helpers): {refused}");
        assert!(said.contains(&rule), "{script}: {said}");
    }
}

/// Debian's libbpf tools that only look, each with what makes some of them end.
const TOOLS: &[&[&str]] = &[
    &["bindsnoop"],
    &["biolatency", "1", "1"],
    &["biopattern", "1", "1"],
    &["cpudist", "1", "1"],
    &["drsnoop", "-d", "1"],
    &["execsnoop"],
    &["exitsnoop"],
    &["filelife"],
    &["hardirqs", "1", "1"],
    &["killsnoop"],
    &["opensnoop", "-d", "1"],
    &["runqlat", "1", "1"],
    &["runqslower"],
    &["softirqs", "1", "1"],
    &["syscount", "-d", "1"],
    &["tcpconnect"],
    &["tcpconnlat"],
    &["vfsstat", "1", "1"],
];

/// Returns how a tool's run ended, after a few seconds at the most; 124 if it would go on.
fn run(mut command: Command, tool: &[&str]) -> (Option<i32>, String) {
    let program = command.get_program().to_owned();
    let arguments: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
    command = Command::new("timeout");
    command
        .args(["--signal=INT", "2"])
        .arg(program)
        .args(arguments);
    command.args(&tool[1..]);
    let ended = Tool::start(command).wait();
    // The line that says what Beeline is connected to names the policy, too.
    let is_refusal = |line: &&String| !line.contains(", policy observe-and-uprobes, by ");
    let said: Vec<&str> = ended
        .stderr
        .iter()
        .filter(is_refusal)
        .map(String::as_str)
        .collect();
    (ended.status.code(), said.join("\n"))
}

/// A guest without some kinds of probes may not run all that the machine itself runs, but not for
/// reasons of the policy.
#[test]
fn libbpf_tools_run() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let (mut on_kernel, mut in_guests) = (0, 0);
    for tool in TOOLS {
        let Ok(path) = find_program(tool[0]) else {
            continue;
        };
        let (kernel, _) = run(with_tracefs(path), tool);
        let (guest, said) = run(need!(in_guest(tool[0])), tool);
        println!(
            "{}: {kernel:?} on the kernel, {guest:?} in a guest",
            tool[0]
        );
        assert!(!said.contains("policy"), "{}: {said}", tool[0]);
        let [kernel, guest] = [kernel, guest].map(|code| matches!(code, Some(0 | 124)));
        on_kernel += u32::from(kernel);
        in_guests += u32::from(guest);
    }
    assert!(2 * in_guests >= on_kernel, "{in_guests} of {on_kernel}");
}
