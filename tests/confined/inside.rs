//! Beeline inside a container, as a user without capabilities. It cannot read filters there, and
//! traces what is under the same ones.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use beeline_e2e::{Tool, Turn, Workload, altered_text, beeline_wanted, find_program, need, send};

use super::rules::{ALLOW, KILL, Rules, error};
use super::{World, assert_counts};

/// Runs a program as a user who may do nothing.
const NOBODY: [&str; 7] = [
    "setpriv",
    "--reuid=65534",
    "--regid=65534",
    "--clear-groups",
    "--bounding-set=-all",
    "--inh-caps=-all",
    "--",
];

/// A container in the sense that matters: namespaces, a filter on all that is started there, and a
/// user without capabilities.
struct Container {
    world: World,
    filtered: PathBuf,
    beeline: PathBuf,
    rules: PathBuf,
}

impl Container {
    /// `rules` are those of the container's filter.
    fn new(rules: &Rules) -> Container {
        let world = World::build();
        let scratch = &world.scratch;
        let filtered = scratch.build_with("calls/filtered.c", &["-l:libseccomp.so.2"]);
        // The build's directory may be closed to others.
        let beeline = scratch.path().join("beeline");
        std::fs::copy(beeline_e2e::beeline(), &beeline).expect("room for Beeline");
        let everybody = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&beeline, everybody).expect("it is ours");
        let rules = rules.write(scratch.path(), "container");
        Container {
            filtered,
            beeline,
            rules,
            world,
        }
    }

    /// Starts the container with the workload as its first process, with a further filter.
    fn start(&self, own: Option<&Rules>) -> (Workload, u32) {
        let mut command = Command::new("unshare");
        command.args(["--pid", "--mount", "--fork", "--mount-proc", "--kill-child"]);
        command.arg(&self.filtered).arg(&self.rules).args(NOBODY);
        command.arg(&self.world.program);
        if let Some(own) = own {
            command.arg(own.write(self.world.scratch.path(), "own"));
        }
        let workload = Workload::start_command(command);
        let outer = workload.pid();
        let children = format!("/proc/{outer}/task/{outer}/children");
        let children = std::fs::read_to_string(children).expect("unshare is there");
        let pid = children.trim().parse().expect("it has one child");
        (workload, pid)
    }

    /// Returns a command that runs Beeline's bpftrace on the container's first process from inside,
    /// as `docker exec` would, under a filter or none.
    fn enter(&self, pid: u32, rules: Option<&PathBuf>) -> Result<Command, String> {
        let bpftrace = find_program("bpftrace")?;
        let mut command = Command::new("nsenter");
        command.args(["--target", &pid.to_string(), "--pid", "--mount"]);
        if let Some(rules) = rules {
            command.arg(&self.filtered).arg(rules);
        }
        command.args(NOBODY).arg(&self.beeline).args(["run", "--"]);
        command.arg(bpftrace).args(["-p", "1"]);
        command.env("BEELINE_CACHE", "").env("HOME", "/nonexistent");
        Ok(command)
    }
}

/// The profile of containers, with the tool's own calls allowed besides.
fn rules_for_tools() -> Result<Rules, String> {
    let rules = Rules::of_containers(Some(error(libc::ENOSYS)))?;
    Ok(rules.with(ALLOW, "bpf").with(ALLOW, "perf_event_open"))
}

/// Interrupts the tool itself, which Beeline runs and `nsenter` has started.
fn interrupt(tool: &Tool) {
    for pid in tool.processes() {
        let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        if comm.trim_end() == "bpftrace" {
            send(pid, libc::SIGINT);
        }
    }
}

#[test]
fn a_container_traces_itself() {
    traces_itself(&need!(rules_for_tools()));
}

/// As a container is without anybody's leave: the tool's own calls fail by an errno, which comes
/// before what a supervisor would be told.
#[test]
fn a_container_whose_filter_forbids_ebpf_traces_itself() {
    traces_itself(&need!(Rules::of_containers(Some(error(libc::EPERM)))));
}

fn traces_itself(rules: &Rules) {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let container = Container::new(rules);
    let (mut workload, pid) = container.start(None);
    let command = need!(container.enter(pid, Some(&container.rules)));
    let tool = Tool::bpftrace(command, &container.world.script());
    tool.wait_attached();
    for _ in 0..2 {
        assert_eq!(workload.go(), "done go", "{}", tool.words("the target"));
    }
    tool.settle();
    interrupt(&tool);
    assert_counts(&tool.wait(), 2);
    assert_eq!(altered_text(pid), [""; 0]);
    assert_eq!(workload.go(), "done go");
    workload.finish();
}

/// Each of these could be under another filter than Beeline, or has one that forbids a call.
#[test]
fn others_are_refused_and_go_on() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let rules = need!(rules_for_tools());
    let container = Container::new(&rules);
    let (mut confined, more) = container.start(Some(&Rules::new(ALLOW).with(KILL, "madvise")));
    let (mut plain, pid) = container.start(None);
    let cases = [
        (more, Some(&container.rules), "not under as many filters"),
        (pid, None, "it is under no filter itself"),
    ];
    for (pid, rules, words) in cases {
        let command = need!(container.enter(pid, rules));
        let ended = Tool::bpftrace(command, &container.world.script()).wait();
        assert!(!ended.status.success(), "{words}: {ended:?}");
        let told = ended.stderr.join("\n");
        assert!(told.contains("confined by seccomp"), "{words}: {told}");
        assert!(told.contains(words), "{words}: {told}");
        assert_eq!(altered_text(pid), [""; 0], "{words}");
    }
    for workload in [&mut confined, &mut plain] {
        assert_eq!(workload.go(), "done go");
    }
    confined.finish();
    plain.finish();
}

/// Beeline tries the calls in a child of its own before.
#[test]
fn a_container_that_forbids_a_call_names_it() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    for (action, words) in [
        (KILL, "would kill it for clock_getres"),
        (error(libc::EPERM), "clock_getres"),
    ] {
        let mut rules = Rules::new(ALLOW);
        rules = rules.with(action, "clock_getres");
        let container = Container::new(&rules);
        let (mut workload, pid) = container.start(None);
        let command = need!(container.enter(pid, Some(&container.rules)));
        let ended = Tool::bpftrace(command, &container.world.script()).wait();
        assert!(!ended.status.success(), "{ended:?}");
        let told = ended.stderr.join("\n");
        assert!(
            told.contains("confined by seccomp") && told.contains(words),
            "{told}"
        );
        assert_eq!(altered_text(pid), [""; 0]);
        assert_eq!(workload.go(), "done go");
        workload.finish();
    }
}
