//! Programs at places that only a kernel has: devices, network namespaces, cgroups, hooks, sockets,
//! iterators. The host's kernel runs them.

use beeline_e2e::{
    Engine, Scratch, Tool, Turn, beeline, beeline_wanted, engines, find_program, has_host_kernel,
    kernel_function, need,
};
use std::path::PathBuf;
use std::process::Command;

/// A cgroup of this test's own.
struct Cgroup(PathBuf);

impl Cgroup {
    fn new() -> Result<Cgroup, String> {
        let mounts = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
        let mount = mounts.lines().find_map(|line| {
            let [_, path, kind, ..] = line.split(' ').collect::<Vec<_>>()[..] else {
                return None;
            };
            (kind == "cgroup2").then_some(path)
        });
        let mount = mount.ok_or("no cgroup2 is mounted")?;
        let path = PathBuf::from(format!("{mount}/beeline-e2e-{}", std::process::id()));
        let made = std::fs::create_dir(&path);
        made.map_err(|error| format!("no cgroup can be made: {error}"))?;
        Ok(Cgroup(path))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0); // The processes in it have ended.
    }
}

/// Returns the command that runs another one in a network namespace of its own.
fn in_new_network(command: &Command) -> Command {
    let mut within = Command::new("unshare");
    within.arg("--net").arg(command.get_program());
    within.args(command.get_args());
    within
}

/// Returns the command that runs a tool on Beeline with these options.
fn beeline_with(options: &[&str], tool: &Command) -> Command {
    let mut command = Command::new(beeline());
    command.arg("run").args(options).arg("--");
    command.arg(tool.get_program()).args(tool.get_args());
    command
}

/// The workload, built.
fn tool(scratch: &Scratch, cgroup: &Cgroup, iterator: u32) -> Command {
    let mut tool = Command::new(scratch.build("kernel_places.c"));
    tool.arg(&cgroup.0).arg(iterator.to_string());
    tool
}

#[test]
fn the_kernel_runs_programs_at_its_places() {
    let _turn = Turn::take();
    need!(has_host_kernel());
    let iterator = need!(kernel_function("bpf_iter_task"));
    let cgroup = need!(Cgroup::new());
    let scratch = Scratch::new();
    let tool = tool(&scratch, &cgroup, iterator);
    let expected = [
        "xdp: type 6, 7, then 0",
        "tcx: type 11, 7, then 0",
        "netfilter: type 10, 7, then 0",
        "sk_lookup: type 5, 7, then 0",
        "cgroup egress: type 3, 7, then 0",
        "cgroup sockets: type 3, 2, then 0",
        "attached to the cgroup: type 0, 7, then 0",
        "iterator: type 4, x",
        "socket: type 0, 7, then 0",
    ];
    for engine in need!(engines()) {
        let command = match engine {
            Engine::Kernel => in_new_network(&tool),
            // The tool is in another network namespace than Beeline.
            Engine::Beeline => beeline_with(&["--unsafe"], &in_new_network(&tool)),
        };
        let ended = Tool::start(command).wait();
        assert_eq!(ended.stdout, expected, "{engine}: {ended:?}");
        assert!(ended.stderr.is_empty(), "{engine}: {ended:?}");
    }
}

/// Each refusal names its reason, and the tool gets an error.
#[test]
fn refusals_say_why() {
    let _turn = Turn::take();
    need!(has_host_kernel());
    need!(beeline_wanted());
    let iterator = need!(kernel_function("bpf_iter_task"));
    let cgroup = need!(Cgroup::new());
    let scratch = Scratch::new();
    let tool = tool(&scratch, &cgroup, iterator);
    let observing = in_new_network(&beeline_with(&[], &tool));
    let in_user_space = in_new_network(&beeline_with(&["--where", "user", "--unsafe"], &tool));
    for (command, reason) in [
        (observing, "without `beeline run --unsafe`"),
        (in_user_space, "`--where user` keeps all programs"),
    ] {
        let ended = Tool::start(command).wait();
        assert_eq!(ended.status.code(), Some(1), "{ended:?}");
        assert!(ended.stdout.is_empty(), "{ended:?}");
        let mut told = ended.stderr.iter();
        let is_told = told.any(|line| line.starts_with("beeline: ") && line.contains(reason));
        assert!(is_told, "{ended:?}");
    }
}

/// `beeline ps` lists the programs of a session in the kernel.
#[test]
fn ps_shows_programs_in_the_kernel() {
    let _turn = Turn::take();
    need!(has_host_kernel());
    need!(beeline_wanted());
    let bpftrace = need!(find_program("bpftrace"));
    let tool = beeline_with(&[], &Command::new(bpftrace));
    let session = Tool::bpftrace(tool, "profile:hz:99 { @ = count(); }");
    session.wait_attached();
    let output = Command::new(beeline()).args(["ps", "--json"]).output();
    let list: serde_json::Value =
        serde_json::from_slice(&output.expect("beeline ps runs").stdout).expect("JSON");
    let mut sessions = list.as_array().expect("a list").iter();
    let of_this = sessions.find(|entry| {
        entry["session"] == session.pid() && entry.get("programs_in_kernel").is_some()
    });
    let programs = of_this.map(|entry| entry["programs_in_kernel"].clone());
    let types: Vec<_> = programs
        .iter()
        .flat_map(|all| all.as_array())
        .flatten()
        .map(|program| program["type"].clone())
        .collect();
    assert_eq!(types, ["BPF_PROG_TYPE_PERF_EVENT"], "{list}");
    session.interrupt();
}
