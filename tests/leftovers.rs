//! Tracing leaves nothing behind, neither in the target nor on the machine, however it ends.

use beeline_e2e::{
    Ended, Engine, Footprint, PATIENCE, Scratch, Tool, Turn, Workload, altered_text, beeline,
    beeline_wanted, engines, find_program, is_alive, need, skipped, until,
};
use std::path::Path;
use std::process::{Command, Output};

/// A target, its original state, and a tool that counts its calls.
struct Session {
    workload: Workload,
    before: Footprint,
    honest: String,
    tool: Tool,
    _scratch: Scratch,
}

/// Entry and return probes in the program and in libc.
const SCRIPT: &str = "uprobe:{prog}:wl_add { @in = count(); } uretprobe:{prog}:wl_add { @out = count(); } \
    uprobe:/lib/x86_64-linux-gnu/libc.so.6:nanosleep { @naps = count(); }";

impl Session {
    fn start(engine: Engine) -> Result<Session, String> {
        let bpftrace = find_program("bpftrace")?;
        let scratch = Scratch::new();
        let program = scratch.build("counts.c");
        let mut workload = Workload::start(&program);
        // One round first: the C library maps and allocates at first use.
        let honest = workload.go();
        let before = Footprint::of(workload.pid());
        let tool = start_tool(engine, &bpftrace, &program, workload.pid());
        Ok(Session {
            workload,
            before,
            honest,
            tool,
            _scratch: scratch,
        })
    }

    fn pid(&self) -> u32 {
        self.workload.pid()
    }

    /// Returns the session's processes that belong to the tool, not to Beeline.
    fn tool_processes(&self) -> Vec<u32> {
        let is_tool = |pid: &u32| {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
            name.is_ok_and(|name| name.trim() == "bpftrace")
        };
        self.tool.processes().into_iter().filter(is_tool).collect()
    }
}

fn start_tool(engine: Engine, bpftrace: &Path, program: &Path, pid: u32) -> Tool {
    let mut command = engine.command(bpftrace);
    command.args(["-p", &pid.to_string()]);
    let tool = Tool::bpftrace(
        command,
        &SCRIPT.replace("{prog}", &program.display().to_string()),
    );
    tool.wait_attached();
    tool
}

/// Asserts that a target works, is unchanged, and ends as it should.
fn assert_untouched(mut workload: Workload, before: &Footprint, honest: &str) {
    let pid = workload.pid();
    assert!(
        until(PATIENCE, || altered_text(pid).is_empty()),
        "patched still: {:?}",
        altered_text(pid)
    );
    until(PATIENCE, || Footprint::of(pid) == *before);
    assert_eq!(
        Footprint::of(pid),
        *before,
        "left behind in the target (left), before (right)"
    );
    assert_eq!(workload.go(), honest, "wrong results after detaching");
    workload.finish();
}

fn ask_beeline(arguments: &[&str]) -> Output {
    Command::new(beeline())
        .args(arguments)
        .output()
        .expect("cannot run beeline")
}

/// Returns whether `beeline ps` lists a process.
fn listed(pid: u32) -> bool {
    let output = ask_beeline(&["ps"]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.split_whitespace().any(|word| word == pid.to_string())
}

#[test]
fn nothing_is_left_after_the_tool_ends() {
    let _turn = Turn::take();
    for engine in need!(engines()) {
        let mut session = need!(Session::start(engine));
        assert_eq!(session.workload.go(), session.honest, "{engine}");
        assert!(session.tool.interrupt().status.success(), "{engine}");
        assert_untouched(session.workload, &session.before, &session.honest);
    }
}

#[test]
fn no_thread_descriptor_or_library_is_added_while_tracing() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let session = need!(Session::start(Engine::Beeline));
    let during = Footprint::of(session.pid());
    assert_eq!(during.threads, session.before.threads);
    assert_eq!(during.descriptors, session.before.descriptors);
    assert_eq!(
        during.tracer, 0,
        "the target is not held by ptrace while it is traced"
    );
    let libraries = |footprint: &Footprint| -> Vec<String> {
        footprint
            .mappings
            .iter()
            .filter(|m| m.contains(".so"))
            .cloned()
            .collect()
    };
    assert_eq!(libraries(&during), libraries(&session.before));
}

#[test]
fn killing_the_tool_detaches() {
    let _turn = Turn::take();
    for engine in need!(engines()) {
        let mut session = need!(Session::start(engine));
        assert_eq!(session.workload.go(), session.honest, "{engine}");
        let victims = session.tool_processes();
        assert!(
            !victims.is_empty(),
            "{engine}: no bpftrace among {:?}",
            session.tool.processes()
        );
        for pid in victims {
            // SAFETY: kill touches no memory; the process is of a group that we started.
            unsafe { libc::kill(pid as i32, libc::SIGKILL) };
        }
        let status = session.tool.wait().status;
        assert!(
            !status.success(),
            "{engine} says {status} for a killed tool"
        );
        assert_untouched(session.workload, &session.before, &session.honest);
    }
}

#[test]
fn a_killed_beeline_leaves_the_target_running_and_detach_cleans_it() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let mut session = need!(Session::start(Engine::Beeline));
    session.tool.signal_group(libc::SIGKILL);
    let pid = session.pid();
    let group = session.tool.pid();
    let _ = session.tool.wait();
    assert!(until(PATIENCE, || beeline_e2e::members_of_group(group).is_empty()));
    assert_eq!(
        session.workload.go(),
        session.honest,
        "the orphaned target gives wrong results"
    );
    if !altered_text(pid).is_empty() {
        assert!(
            listed(pid),
            "beeline ps does not show the orphan: {:?}",
            ask_beeline(&["ps"])
        );
        let detached = ask_beeline(&["detach", &pid.to_string()]);
        assert!(detached.status.success(), "{detached:?}");
    }
    assert_untouched(session.workload, &session.before, &session.honest);
    assert!(!listed(pid));
}

#[test]
fn killing_beeline_alone_harms_nobody() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let mut session = need!(Session::start(Engine::Beeline));
    let pid = session.pid();
    // SAFETY: kill touches no memory; this is our own child, not yet waited for.
    unsafe { libc::kill(session.tool.pid() as i32, libc::SIGKILL) };
    assert_eq!(session.workload.go(), session.honest);
    drop(session.tool);
    assert!(is_alive(pid));
    let _ = ask_beeline(&["detach", &pid.to_string()]);
    assert_untouched(session.workload, &session.before, &session.honest);
}

#[test]
fn detach_ends_a_live_session() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let mut session = need!(Session::start(Engine::Beeline));
    assert_eq!(session.workload.go(), session.honest);
    let detached = ask_beeline(&["detach", &session.pid().to_string()]);
    assert!(detached.status.success(), "{detached:?}");
    let pid = session.pid();
    assert!(
        until(PATIENCE, || altered_text(pid).is_empty()),
        "{:?}",
        altered_text(pid)
    );
    let is_told = format!("process {pid} (counts) is not traced any more");
    session.tool.wait_to_be_told(|line| line.contains(&is_told));
    session.tool.settle();
    assert_eq!(session.workload.go(), session.honest);
    assert!(!listed(pid), "the session has come back");
    // The tool lives on and keeps its counts, unless Beeline ended it.
    let ended: Ended = session.tool.interrupt();
    assert!(
        ended.stdout.iter().any(|line| line == "@in: 1000"),
        "{ended:?}"
    );
    assert_untouched(session.workload, &session.before, &session.honest);
}

#[test]
fn ps_shows_what_is_traced_and_nothing_else() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let session = need!(Session::start(Engine::Beeline));
    let pid = session.pid();
    assert!(listed(pid), "{:?}", ask_beeline(&["ps"]));
    let json = ask_beeline(&["ps", "--json"]);
    let list: serde_json::Value = serde_json::from_slice(&json.stdout).expect("JSON");
    let entries = list.as_array().map(Vec::as_slice).unwrap_or_default();
    let entry = entries.iter().find(|entry| entry["pid"] == pid);
    let entry = entry.unwrap_or_else(|| panic!("no entry for {pid}: {list}"));
    assert_eq!(entry["live"], true, "{entry}");
    // Also the hooks that Beeline itself needs to track returns: they have no program of the
    // tool's.
    let sites = entry["sites"].as_array().expect("a list");
    let is_of_tool = |site: &&serde_json::Value| site["programs"] != serde_json::json!([]);
    assert_eq!(sites.iter().filter(is_of_tool).count(), 2, "{entry}");
    assert!(!listed(std::process::id()));
    session.tool.interrupt();
    assert!(
        until(PATIENCE, || !listed(pid)),
        "{:?}",
        ask_beeline(&["ps"])
    );
}

#[test]
fn two_tools_on_one_target_count_each_for_itself() {
    let _turn = Turn::take();
    for engine in need!(engines()) {
        let bpftrace = need!(find_program("bpftrace"));
        let mut session = need!(Session::start(engine));
        let program =
            std::fs::read_link(format!("/proc/{}/exe", session.pid())).expect("the target runs");
        let second = start_tool(engine, &bpftrace, &program, session.pid());
        assert_eq!(session.workload.go(), session.honest, "{engine}");
        let first = session.tool.interrupt();
        assert!(
            first.stdout.iter().any(|line| line == "@in: 1000"),
            "{engine}: {first:?}"
        );
        assert_eq!(session.workload.go(), session.honest, "{engine}");
        let second = second.interrupt();
        assert!(
            second.stdout.iter().any(|line| line == "@in: 2000"),
            "{engine}: {second:?}"
        );
        assert!(
            second.stdout.iter().any(|line| line == "@out: 2000"),
            "{engine}: {second:?}"
        );
        assert_untouched(session.workload, &session.before, &session.honest);
    }
}

#[test]
fn a_target_that_ends_keeps_its_exit_code_and_ends_the_tool() {
    let _turn = Turn::take();
    for engine in need!(engines()) {
        let mut session = need!(Session::start(engine));
        assert_eq!(session.workload.go(), session.honest, "{engine}");
        session.workload.finish();
        let ended = session.tool.wait();
        assert!(
            ended.stdout.iter().any(|line| line == "@in: 1000"),
            "{engine}: {ended:?}"
        );
    }
}

#[test]
fn a_target_that_is_killed_ends_the_tool() {
    let _turn = Turn::take();
    for engine in need!(engines()) {
        let mut session = need!(Session::start(engine));
        assert_eq!(session.workload.go(), session.honest, "{engine}");
        session.workload.kill();
        drop(session.workload);
        let ended = session.tool.wait();
        assert!(
            ended.stdout.iter().any(|line| line == "@out: 1000"),
            "{engine}: {ended:?}"
        );
    }
}

#[test]
fn the_tools_exit_code_is_handed_on() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    for code in [0, 1, 5, 77] {
        let mut command = Engine::Beeline.command("sh");
        command.args(["-c", &format!("exit {code}")]);
        assert_eq!(Tool::start(command).wait().status.code(), Some(code));
    }
    if !Path::new("/bin/cat").exists() {
        return skipped("no cat");
    }
    let mut cat = Engine::Beeline.command("cat");
    cat.arg("/proc/self/comm");
    assert_eq!(Tool::start(cat).wait().stdout, ["cat"]);
}
