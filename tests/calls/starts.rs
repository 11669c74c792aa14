//! Programs that the tool starts itself: their calls are seen from the loader's first on.

use std::collections::BTreeSet;
use std::path::Path;

use beeline_e2e::{
    Engine, Scratch, Turn, beeline_wanted, compile_anew, engines, find_program, need, with_tracefs,
};

/// The calls that the program makes, with how often each is made and returns.
const EVERY_CALL: &str = r#"tracepoint:raw_syscalls:sys_enter /comm == "leaf"/ { @in[args->id] = count(); }
    tracepoint:raw_syscalls:sys_exit /comm == "leaf"/ { @out[args->id] = count(); }"#;

/// Compares the maps that `bpftrace -c` prints on each engine; only those whose name begins so.
fn same_maps(program: &Path, script: &str, compared: &str) {
    let bpftrace = need!(find_program("bpftrace"));
    let mut all = Vec::new();
    for engine in need!(engines()) {
        let mut command = match engine {
            Engine::Kernel => with_tracefs(&bpftrace),
            Engine::Beeline => engine.command(&bpftrace),
        };
        compile_anew(&mut command);
        let started = format!("{} 3", program.display());
        command.args(["-c", &started, "-e", script]);
        let output = command.output().expect("bpftrace starts");
        assert!(output.status.success(), "{engine}: {output:?}");
        let lines = String::from_utf8_lossy(&output.stdout).into_owned();
        let maps = lines.lines().filter(|line| line.starts_with(compared));
        let maps: BTreeSet<_> = maps.map(str::to_owned).collect();
        assert!(!maps.is_empty(), "{engine}: {lines}");
        all.push(maps);
    }
    if let [kernel, beeline] = all.as_slice() {
        assert_eq!(beeline, kernel, "beeline (left), the kernel (right)");
    }
}

#[test]
fn the_loaders_calls_are_seen() {
    let _turn = Turn::take();
    let scratch = Scratch::new();
    same_maps(&scratch.build("calls/leaf.c"), EVERY_CALL, "@");
}

#[test]
fn a_static_programs_calls_are_seen() {
    let _turn = Turn::take();
    let scratch = Scratch::new();
    let program = scratch.build_with("calls/leaf.c", &["-static"]);
    same_maps(&program, EVERY_CALL, "@");
}

/// A probe in a library is set before the library's first instruction, as on the kernel.
#[test]
fn the_loaders_calls_are_seen_beside_probes_in_libraries() {
    let _turn = Turn::take();
    let scratch = Scratch::new();
    let program = scratch.build("calls/leaf.c");
    let script = format!(
        "{EVERY_CALL} uprobe:/lib/x86_64-linux-gnu/libc.so.6:atoi /comm == \"leaf\"/ {{ @probed = count(); }}"
    );
    same_maps(&program, &script, "@probed");
    // Calls that the loader makes the C library run before it reports that everything is mapped are
    // not seen then.
    same_maps(&program, &script, "@in[257]");
}

/// Beeline does not hold a program until it has searched all of its code: the program runs on,
/// Beeline says so, and hooks it then.
#[test]
fn a_program_that_takes_long_to_look_through_runs_meanwhile() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let bpftrace = need!(find_program("bpftrace"));
    let scratch = Scratch::new();
    let program = scratch.build("calls/vast.c");
    let mut command = Engine::Beeline.command(&bpftrace);
    compile_anew(&mut command);
    let script = "tracepoint:syscalls:sys_enter_getppid { @ = count(); }";
    command.arg("-c").arg(&program).args(["-e", script]);
    let output = command.output().expect("bpftrace starts");
    assert!(output.status.success(), "{output:?}");
    let lines = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<_> = lines.lines().filter(|line| !line.is_empty()).collect();
    assert_eq!(
        lines,
        ["Attaching 1 probe...", "begins", "done", "@: 100"],
        "{output:?}"
    );
    let told = String::from_utf8_lossy(&output.stderr);
    let late = told.lines().filter(|line| line.contains("is much code"));
    let late: Vec<_> = late.collect();
    assert!(
        matches!(late[..], [line] if line.contains("/vast is")),
        "{told}"
    );
}
