//! Targets at the limit of some resource.

use std::process::Command;

use beeline_e2e::{
    Engine, Footprint, Scratch, Tool, Turn, Workload, altered_text, beeline_wanted, find_program,
    map_counts, need,
};

/// The three standard descriptors.
const OPEN: u32 = 3;

#[test]
fn a_target_at_its_limit_of_open_files_is_traced_or_the_limit_is_told() {
    let _turn = Turn::take();
    let bpftrace = need!(find_program("bpftrace"));
    let prlimit = need!(find_program("prlimit"));
    need!(beeline_wanted());
    let scratch = Scratch::new();
    let program = scratch.build("counts.c");
    let script = format!("uprobe:{}:wl_add {{ @ = count(); }}", program.display());
    // Limits that may be raised again, and those that take a privilege to raise.
    for (limit, is_its_own) in [
        (format!("{OPEN}:"), true),
        (format!("{OPEN}:{OPEN}"), false),
    ] {
        let mut workload = Workload::start(&program);
        let pid = workload.pid();
        let honest = workload.go();
        let mut command = Command::new(&prlimit);
        command.args(["--pid", &pid.to_string(), &format!("--nofile={limit}")]);
        assert!(command.status().expect("prlimit runs").success());
        let limits = || std::fs::read_to_string(format!("/proc/{pid}/limits")).ok();
        let before = (Footprint::of(pid), limits());
        let mut command = Engine::Beeline.command(&bpftrace);
        command.args(["-p", &pid.to_string()]);
        let tool = Tool::bpftrace(command, &script);
        match tool.expect_line(|line| line == beeline_e2e::TICK || line.contains("ERROR")) {
            Ok(line) if line == beeline_e2e::TICK => {
                assert_eq!(workload.go(), honest);
                tool.settle();
                let ended = tool.interrupt();
                assert_eq!(map_counts(&ended.stdout).get("@"), Some(&1000), "{ended:?}");
            }
            _ => {
                let ended = tool.wait();
                let said = ended.stderr.join("\n");
                assert!(!is_its_own && !ended.status.success(), "{ended:?}");
                assert!(
                    said.contains(&format!("prlimit --pid {pid} --nofile=")),
                    "{ended:?}"
                );
            }
        }
        assert_eq!(altered_text(pid), [""; 0]);
        assert_eq!((Footprint::of(pid), limits()), before);
        assert_eq!(workload.go(), honest);
        workload.finish();
    }
}
