//! USDT probes with semaphores: the target's counters say how many places are probed, as on the
//! kernel, and are zero at the end, however it comes.

use beeline_e2e::{
    Engine, Scratch, Tool, Turn, Workload, beeline, engines, file_offset, find_program, map_counts,
    need, until,
};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The time within which semaphores follow the end of a tool.
const SOON: Duration = Duration::from_secs(10);

/// bpftrace for both probes of the workload, once it has attached.
fn probing(engine: Engine, bpftrace: &Path, program: &Path, pid: u32, probes: &[&str]) -> Tool {
    let mut command = engine.command(bpftrace);
    command.args(["-p", &pid.to_string()]);
    let on = |probe: &&str| {
        let program = program.display();
        format!("usdt:{program}:workload:{probe} {{ @{probe} = count(); @sum = sum(arg0); }} ")
    };
    let tool = Tool::bpftrace(command, &probes.iter().map(on).collect::<String>());
    tool.wait_attached();
    tool
}

/// Asserts that the workload comes to answer so: the kernel takes its time to detach.
fn comes_to(workload: &mut Workload, answer: &str) {
    let mut last = String::new();
    until(SOON, || {
        last = workload.go();
        last == answer
    });
    assert_eq!(last, answer);
}

#[test]
fn semaphores_count_probed_places() {
    let _turn = Turn::take();
    let scratch = Scratch::new();
    let bpftrace = need!(find_program("bpftrace"));
    for engine in need!(engines()) {
        let program = scratch.build("semaphores.c");
        let mut workload = Workload::start(&program);
        assert_eq!(workload.go(), "0 0, raised 0", "{engine}");
        let probes = ["counted", "alone"];
        let tool = probing(engine, &bpftrace, &program, workload.pid(), &probes);
        // One of the places begins with a nop of one byte, the other with one of five.
        assert_eq!(workload.go(), "2 1, raised 10", "{engine}");
        tool.settle();
        let counts = map_counts(&tool.interrupt().stdout);
        assert_eq!(counts["@counted"], 20, "{engine}");
        assert_eq!(counts["@alone"], 10, "{engine}");
        assert_eq!(counts["@sum"], 3 * 45, "{engine}");
        comes_to(&mut workload, "0 0, raised 0");
        workload.finish();
    }
}

#[test]
fn several_tools_share_a_semaphore() {
    let _turn = Turn::take();
    let scratch = Scratch::new();
    let bpftrace = need!(find_program("bpftrace"));
    let program = scratch.build("semaphores.c");
    let mut workload = Workload::start(&program);
    let mut tools = Vec::new();
    for before in 0..2 {
        let pid = workload.pid();
        let probes = &["counted"];
        tools.push(probing(Engine::Beeline, &bpftrace, &program, pid, probes));
        let count = 2 * (before + 1);
        assert_eq!(workload.go(), format!("{count} 0, raised 10"));
    }
    for left in (0..tools.len()).rev() {
        tools.remove(0).interrupt();
        let raised = if left > 0 { 10 } else { 0 };
        comes_to(&mut workload, &format!("{} 0, raised {raised}", 2 * left));
    }
    workload.finish();
}

/// Starts a process that forks while its semaphores are raised. The child has a copy of them, and
/// nobody traces it.
fn forked(scratch: &Scratch, bpftrace: &Path) -> (Workload, Tool) {
    let program = scratch.build("semaphores.c");
    let mut workload = Workload::start(&program);
    let probes = ["counted"];
    let tool = probing(Engine::Beeline, bpftrace, &program, workload.pid(), &probes);
    assert_eq!(workload.tell("fork"), "2, child 2");
    (workload, tool)
}

#[test]
fn a_killed_session_is_taken_out_of_semaphores() {
    let _turn = Turn::take();
    let scratch = Scratch::new();
    let bpftrace = need!(find_program("bpftrace"));
    let (mut workload, tool) = forked(&scratch, &bpftrace);
    tool.signal_group(libc::SIGKILL);
    until(SOON, || tool.processes().is_empty());
    assert_eq!(workload.go(), "2, child 2");
    let cleared = Command::new(beeline()).args(["detach", "--dead"]).output();
    let cleared = cleared.expect("beeline runs");
    assert!(cleared.status.success(), "{cleared:?}");
    assert_eq!(workload.go(), "0, child 0");
    workload.finish();
}

#[test]
fn a_child_gets_its_semaphores_back_with_its_parent() {
    let _turn = Turn::take();
    let scratch = Scratch::new();
    let bpftrace = need!(find_program("bpftrace"));
    let (mut workload, tool) = forked(&scratch, &bpftrace);
    tool.interrupt();
    comes_to(&mut workload, "0, child 0");
    workload.finish();
}

#[test]
fn a_library_that_is_loaded_later_has_its_semaphore_raised() {
    let _turn = Turn::take();
    let scratch = Scratch::new();
    let tool = scratch.build("uprobe_links.c");
    for engine in need!(engines()) {
        let program = scratch.build("semaphores.c");
        let library = scratch.path().join("libsemaphores.so");
        let options = ["-DLIBRARY", "-shared", "-fPIC", "-o"];
        let built = library.display().to_string();
        scratch.build_with("semaphores.c", &[&options[..], &[&built]].concat());
        let at = |symbol| file_offset(&library, symbol).expect("a symbol of the library");
        let place = format!("{}:{}:7", at("loaded_work"), at("loaded_semaphore"));
        for way in ["multi", "events"] {
            let mut workload = Workload::start(&program);
            let mut command = engine.command(&tool);
            command.args([way, "entry", &built, &workload.pid().to_string(), &place]);
            let mut tool = Tool::start(command);
            tool.wait_for_line(|line| line == "attached");
            let loaded = workload.tell(&format!("load {built}"));
            assert_eq!(loaded, "1 0, raised 0", "{engine}, {way}");
            tool.send("done");
            let ended = tool.wait();
            let count = ended.stdout.last().expect("a count");
            assert!(
                count.starts_with("cookie 7: 10 at"),
                "{engine}, {way}: {ended:?}"
            );
            comes_to(&mut workload, "0 0, raised 0");
            workload.finish();
        }
    }
}

#[test]
fn a_semaphore_that_is_nowhere_is_let_pass() {
    let _turn = Turn::take();
    let scratch = Scratch::new();
    let tool = scratch.build("uprobe_links.c");
    for engine in need!(engines()) {
        let program = scratch.build("semaphores.c");
        let mut workload = Workload::start(&program);
        let place = file_offset(&program, "alone").expect("a function");
        let mut command = engine.command(&tool);
        // What bcc passes.
        let place = format!("{place}:6:1");
        command.arg("events").arg("entry").arg(&program);
        command.args([&workload.pid().to_string(), &place]);
        let mut tool = Tool::start(command);
        tool.wait_for_line(|line| line == "attached");
        assert_eq!(workload.go(), "0 0, raised 0", "{engine}");
        tool.send("done");
        let ended = tool.wait();
        let count = ended.stdout.last().expect("a count");
        assert!(count.starts_with("cookie 1: 10 at"), "{engine}: {ended:?}");
        workload.finish();
    }
}
