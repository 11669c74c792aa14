//! Targets that live under seccomp filters, as in containers and services: traced if the filters let
//! Beeline do its work, and else refused by the name of the call, unharmed.

mod inside;
mod rules;

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use beeline_e2e::{
    Ended, Engine, Footprint, PATIENCE, Scratch, TICK, Tool, Turn, Workload, altered_text,
    beeline_wanted, engines, find_program, map_counts, need,
};
use rules::{ALLOW, KILL, Rules, TRAP, error};

/// A workload under filters, and its files.
pub struct World {
    /// The directory of both.
    pub scratch: Scratch,
    program: PathBuf,
}

impl World {
    /// Builds the workload.
    pub fn build() -> World {
        let scratch = Scratch::new();
        let program = scratch.build_with("calls/inside.c", &["-l:libseccomp.so.2"]);
        World { scratch, program }
    }

    /// Starts the workload under a filter, which it installs itself once it has its libraries.
    fn start(&self, rules: &Rules) -> Workload {
        Workload::start_command(self.command(&[rules]))
    }

    fn command(&self, rules: &[&Rules]) -> Command {
        let mut command = Command::new(&self.program);
        for (at, rules) in rules.iter().enumerate() {
            command.arg(rules.write(self.scratch.path(), &format!("rules{at}")));
        }
        command
    }

    /// A script that counts what a round does.
    pub fn script(&self) -> String {
        let program = self.program.display();
        format!(
            "uprobe:{program}:inside_item {{ @items[str(arg0)] = count(); }}
            uretprobe:{program}:inside_item {{ @returns = count(); }}
            tracepoint:syscalls:sys_enter_openat /comm == \"inside\"/ {{ @opens[str(args->filename)] = count(); }}"
        )
    }
}

/// Asserts that a tool has counted what so many rounds do.
pub fn assert_counts(ended: &Ended, rounds: u64) {
    assert!(ended.status.success(), "{ended:?}");
    let counts = map_counts(&ended.stdout);
    let count = |key: &str| counts.get(key).copied();
    assert_eq!(count("@items[item]"), Some(1000 * rounds), "{ended:?}");
    assert_eq!(count("@returns"), Some(1000 * rounds), "{ended:?}");
    assert_eq!(
        count("@opens[/etc/hostname]"),
        Some(40 * rounds),
        "{ended:?}"
    );
}

fn on_pid(engine: Engine, pid: u32) -> Result<Command, String> {
    let bpftrace = find_program("bpftrace")?;
    let mut command = match engine {
        Engine::Kernel => beeline_e2e::with_tracefs(bpftrace),
        Engine::Beeline => engine.command(bpftrace),
    };
    command.args(["-p", &pid.to_string()]);
    Ok(command)
}

/// Traces a workload for two rounds, and checks what was counted and what is left.
fn trace(world: &World, engine: Engine, workload: &mut Workload) -> Result<(), String> {
    let before = Footprint::of(workload.pid());
    let tool = Tool::bpftrace(on_pid(engine, workload.pid())?, &world.script());
    tool.wait_attached();
    for _ in 0..2 {
        assert_eq!(workload.go(), "done go", "{}", tool.words("the target"));
    }
    tool.settle();
    assert_counts(&tool.interrupt(), 2);
    if engine == Engine::Beeline {
        assert_eq!(altered_text(workload.pid()), [""; 0]);
        assert_eq!(Footprint::of(workload.pid()), before);
    }
    assert_eq!(workload.go(), "done go");
    Ok(())
}

#[test]
fn a_process_under_the_default_profile_of_containers() {
    let _turn = Turn::take();
    let world = World::build();
    let rules = need!(Rules::of_containers(None));
    for engine in need!(engines()) {
        let mut workload = world.start(&rules);
        need!(trace(&world, engine, &mut workload));
        workload.finish();
    }
}

/// The filter kills for what it does not allow.
#[test]
fn a_service_of_systemd() {
    let _turn = Turn::take();
    let world = World::build();
    let rules = need!(Rules::of_services());
    for engine in need!(engines()) {
        let mut workload = world.start(&rules);
        need!(trace(&world, engine, &mut workload));
        workload.finish();
    }
}

/// The calls of the workload itself, which ends by `exit_group`.
const OWN: [&str; 7] = [
    "read",
    "write",
    "openat",
    "close",
    "clock_nanosleep",
    "futex",
    "exit_group",
];

/// The kernel holds Beeline's list of calls against those that are made: the filter allows no
/// others.
#[test]
fn beeline_makes_no_calls_but_those_that_it_foresees() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let world = World::build();
    let mut workload = world.start(&Rules::of_foreseen(&OWN));
    need!(trace(&world, Engine::Beeline, &mut workload));
    let program = world.program.display();
    let script = format!(
        "uprobe:{program}:inside_item {{ @[ustack, comm, uid, gid, pid, tid, cpu] = count(); @t = hist(nsecs); @e = elapsed; }}
        uprobe:{program}:inside_item /arg1 == 7/ {{ printf(\"%s %d\\n\", str(arg0), arg1); @b = buf(arg0, 4); @n = *(uint8*)arg1; }}
        uretprobe:{program}:inside_item {{ @r[retval] = count(); @s = strftime(\"%H\", nsecs); }}
        tracepoint:raw_syscalls:sys_enter {{ @enter[args->id] = count(); @since[tid] = nsecs; }}
        tracepoint:raw_syscalls:sys_exit /@since[tid]/ {{ @took = stats(nsecs - @since[tid]); delete(@since[tid]); }}"
    );
    let command = need!(on_pid(Engine::Beeline, workload.pid()));
    let tool = Tool::bpftrace(command, &script);
    tool.wait_attached();
    for _ in 0..20 {
        assert_eq!(workload.go(), "done go", "{}", tool.words("the target"));
    }
    let ended = tool.interrupt();
    assert!(ended.status.success(), "{ended:?}");
    assert_eq!(workload.go(), "done go");
    assert_eq!(altered_text(workload.pid()), [""; 0]);
    workload.finish();
}

/// Filters may answer by an error what is done while root suspends them.
#[test]
fn a_process_that_may_not_map_code() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let world = World::build();
    let rules = Rules::new(ALLOW).about_code(error(libc::EPERM));
    let mut workload = world.start(&rules.with(error(libc::ENOSYS), "close_range"));
    need!(trace(&world, Engine::Beeline, &mut workload));
    workload.finish();
}

#[test]
fn filters_that_forbid_what_is_needed_are_refused_by_its_name() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let world = World::build();
    let forbid = |action: u32, name: &str| Rules::new(ALLOW).with(action, name);
    for (rules, words) in [
        (
            forbid(KILL, "process_vm_readv"),
            "would kill it for process_vm_readv",
        ),
        (
            forbid(error(libc::EPERM), "process_vm_readv"),
            "forbids (Operation not permitted (os error 1)) process_vm_readv",
        ),
        (
            forbid(TRAP, "sigaltstack"),
            "would send it SIGSYS for sigaltstack",
        ),
        (forbid(KILL, "socketpair"), "would kill it for socketpair"),
        (
            forbid(KILL, "restart_syscall"),
            "would kill it for restart_syscall",
        ),
        (
            Rules::new(ALLOW).about_code(KILL),
            "would kill it for mmap with PROT_EXEC",
        ),
        (
            Rules::new(KILL)
                .with(ALLOW, "read")
                .with(ALLOW, "write")
                .with(ALLOW, "futex")
                .with(ALLOW, "openat")
                .with(ALLOW, "close")
                .with(ALLOW, "clock_nanosleep")
                .with(ALLOW, "exit_group"),
            "would kill it for restart_syscall",
        ),
    ] {
        let mut workload = world.start(&rules);
        let before = Footprint::of(workload.pid());
        // In the middle of short sleeps.
        assert_eq!(workload.tell("storm"), "done storm", "{words}");
        for _ in 0..10 {
            let command = need!(on_pid(Engine::Beeline, workload.pid()));
            let ended = Tool::bpftrace(command, &world.script()).wait();
            assert!(!ended.status.success(), "{words}: {ended:?}");
            let told = ended.stderr.join("\n");
            assert!(told.contains("confined by seccomp"), "{words}: {told}");
            assert!(told.contains(words), "{words}: {told}");
        }
        assert_eq!(workload.tell("calm"), "done calm", "{words}");
        assert_eq!(altered_text(workload.pid()), [""; 0], "{words}");
        assert_eq!(Footprint::of(workload.pid()), before, "{words}");
        workload.finish();
    }
}

#[test]
fn a_target_that_comes_under_a_filter_is_traced_on() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let world = World::build();
    let docker = need!(Rules::of_containers(None));
    let further = Rules::new(ALLOW).with(KILL, "getpgrp");
    for before in [&docker, &Rules::new(ALLOW)] {
        let mut workload = Workload::start_command(world.command(&[before, &further]));
        let tool = Tool::bpftrace(
            need!(on_pid(Engine::Beeline, workload.pid())),
            &world.script(),
        );
        tool.wait_attached();
        assert_eq!(workload.go(), "done go");
        assert_eq!(workload.tell("further"), "done further");
        assert_eq!(workload.go(), "done go");
        tool.settle();
        let ended = tool.interrupt();
        assert!(
            !ended.stderr.iter().any(|line| line.contains("seccomp")),
            "{ended:?}"
        );
        let counts = map_counts(&ended.stdout);
        assert_eq!(counts.get("@items[item]"), Some(&2000), "{ended:?}");
        assert_eq!(altered_text(workload.pid()), [""; 0]);
        need!(trace(&world, Engine::Beeline, &mut workload));
        workload.finish();
    }
}

#[test]
fn a_target_that_comes_under_a_forbidding_filter_is_let_go() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let world = World::build();
    let further = Rules::new(ALLOW).with(KILL, "process_vm_readv");
    let docker = need!(Rules::of_containers(None));
    let mut workload = Workload::start_command(world.command(&[&docker, &further]));
    let tool = Tool::bpftrace(
        need!(on_pid(Engine::Beeline, workload.pid())),
        &world.script(),
    );
    tool.wait_attached();
    assert_eq!(workload.go(), "done go");
    assert_eq!(workload.tell("further"), "done further");
    tool.wait_to_be_told(|line| line.contains("would kill it for process_vm_readv"));
    assert_eq!(altered_text(workload.pid()), [""; 0]);
    assert_eq!(workload.go(), "done go");
    assert_counts(&tool.interrupt(), 1);
    workload.finish();
}

/// A program that the tool starts comes under a filter of its own beside the supervisor's.
#[test]
fn children_of_the_tool_that_confine_themselves() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let bpftrace = need!(find_program("bpftrace"));
    let scratch = Scratch::new();
    let filtered = scratch.build_with("calls/filtered.c", &["-l:libseccomp.so.2"]);
    let rules = need!(Rules::of_containers(None)).write(scratch.path(), "rules");
    let child = scratch.path().join("child");
    let lines = "#!/bin/sh\n/bin/cat /etc/hostname\n/bin/cat /etc/hostname\n";
    std::fs::write(&child, lines).expect("room for a script");
    let everybody = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&child, everybody).expect("it is ours");
    let words = [&filtered, &rules, &child].map(|path| path.display().to_string());
    let mut command = Engine::Beeline.command(bpftrace);
    command.args(["-c", &words.join(" ")]);
    let script = "tracepoint:syscalls:sys_enter_openat /comm == \"cat\"/ { @[str(args->filename)] = count(); }";
    let ended = Tool::bpftrace(command, script).wait();
    assert!(ended.status.success(), "{ended:?}");
    let counts = map_counts(&ended.stdout);
    assert_eq!(counts.get("@[/etc/hostname]"), Some(&2), "{ended:?}");
}

/// Attaches and leaves again and again while the workload's threads are at work.
fn storm(world: &World, workload: &mut Workload, times: u32) -> Result<(), String> {
    let before = Footprint::of(workload.pid());
    assert_eq!(workload.tell("storm"), "done storm");
    for _ in 0..times {
        let tool = Tool::bpftrace(on_pid(Engine::Beeline, workload.pid())?, &world.script());
        let attached = tool.stdout.wait_for(0, PATIENCE, |line| line == TICK);
        assert!(attached.is_some(), "{}", tool.words("did not attach"));
        std::thread::sleep(Duration::from_millis(20));
        let ended = tool.interrupt();
        assert!(ended.status.success(), "{ended:?}");
    }
    assert_eq!(workload.tell("calm"), "done calm");
    assert_eq!(altered_text(workload.pid()), [""; 0]);
    assert_eq!(Footprint::of(workload.pid()), before);
    Ok(())
}

#[test]
fn storms_of_attaching_to_a_process_under_a_killing_filter() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let world = World::build();
    let rules = need!(Rules::of_containers(Some(KILL)));
    let mut workload = world.start(&rules);
    need!(storm(&world, &mut workload, 50));
    assert_eq!(workload.go(), "done go");
    workload.finish();
}

/// Suspended filters let Beeline's calls pass, and none of the target's.
#[test]
fn no_forbidden_call_of_a_target_passes() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let world = World::build();
    let mut workload = world.start(&Rules::new(ALLOW).with(error(libc::EPERM), "getpgrp"));
    assert_eq!(workload.tell("forbidden"), "done forbidden");
    need!(storm(&world, &mut workload, 20));
    workload.finish();
}
