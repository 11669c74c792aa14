//! Programs of every kind survive probes unharmed, and every call is seen.

mod nginx;

use beeline_e2e::Compare::{Exact, Sorted};
use beeline_e2e::{
    Case, Engine, PATIENCE, Scratch, Tool, Turn, Workload, altered_text, beeline, beeline_wanted,
    engines, file_offset, find_program, map_counts, need, until, with_tracefs,
};
use std::process::Command;
use std::time::Duration;

/// Runs a script on `workloads/harden.c`, which checks itself.
fn harden(options: &[&str], script: &str, known: &[&str]) {
    let _turn = Turn::take();
    let case = Case {
        options,
        script,
        compare: Sorted, // equal counts stand in an order by chance
        known,
    };
    need!(case.check("harden.c"));
}

#[test]
fn registers_survive_an_entry_probe_on_every_first_instruction() {
    harden(
        &[],
        "uprobe:{prog}:k_* { @[probe] = count(); @all = count(); }",
        &["@all: 1800"],
    );
}

#[test]
fn registers_survive_a_return_probe_on_every_first_instruction() {
    harden(
        &[],
        "uretprobe:{prog}:k_* { @[probe] = count(); @all = count(); }",
        &["@all: 1800"],
    );
}

#[test]
fn registers_survive_both_probes_with_maps_strings_and_stacks() {
    let script = "uprobe:{prog}:k_* { @[probe, comm, tid] = count(); @s[ustack(2)] = count(); @n[tid] = nsecs; } \
        uretprobe:{prog}:k_* { @r[probe] = count(); } END { clear(@s); clear(@n); }";
    harden(&[], script, &[]);
}

#[test]
fn flags_and_red_zone_survive_a_probe_inside_a_function() {
    let script = "uprobe:{prog}:{at k_redzone+40} { @red[tid] = count(); } \
        uprobe:{prog}:{at k_flags+16} { @flags[tid] = count(); }";
    harden(
        &["--unsafe"],
        script,
        &["@red[PID]: 100", "@flags[PID]: 100"],
    );
}

#[test]
fn longjmp_out_of_a_return_probed_function_is_survived() {
    let script = "uprobe:{prog}:h_escapes { @escapes = count(); } uretprobe:{prog}:h_escapes { @never = count(); } \
        uretprobe:{prog}:h_around { @returns = count(); }";
    harden(&[], script, &["@escapes: 100", "@returns: 200"]);
}

#[test]
fn threads_may_exit_inside_a_probed_function() {
    let script =
        "uprobe:{prog}:h_exits { @in = count(); } uretprobe:{prog}:h_exits { @never = count(); }";
    harden(&[], script, &["@in: 8"]);
}

#[test]
fn signal_handlers_inside_probed_functions_are_probed_too() {
    let script = "uprobe:{prog}:h_interrupted { @in = count(); } uretprobe:{prog}:h_interrupted { @out = sum(retval); } \
        uprobe:{prog}:h_handler { @h = count(); } uretprobe:{prog}:h_handler { @signal = sum(retval); }";
    harden(
        &[],
        script,
        &["@in: 50", "@out: 1225", "@h: 50", "@signal: 500"],
    );
}

/// A handler that interrupts a program takes a slot of another CPU, and misses if that is taken.
#[test]
fn signal_handlers_on_one_alternate_stack_keep_their_frames() {
    let _turn = Turn::take();
    let bpftrace = need!(find_program("bpftrace"));
    let scratch = Scratch::new();
    let program = scratch.build("calls/alternate.c");
    let place = format!("{}:al_handled", program.display());
    let script = format!(
        "uprobe:{place} {{ @in[arg0] = count(); }} uretprobe:{place} {{ @out[retval] = count(); }}"
    );
    for engine in need!(engines()) {
        let mut workload = Workload::start(&program);
        let mut command = engine.command(&bpftrace);
        command.args(["-p", &workload.pid().to_string()]);
        let tool = Tool::bpftrace(command, &script);
        tool.wait_attached();
        assert_eq!(workload.go(), "done go", "{engine}");
        tool.settle();
        let ended = tool.interrupt();
        // Each of the 8,000 handlers calls it four times, with the signal's number.
        let calls = 4 * 4_000;
        ended.assert_counted(&[
            ("@in[10]", calls),
            ("@out[11]", calls),
            ("@in[14]", calls),
            ("@out[15]", calls),
        ]);
        workload.finish();
    }
}

#[test]
fn forked_children_run_on_and_are_not_taken_for_the_parent() {
    let script = "uprobe:{prog}:h_forks /pid == {pid}/ { @in = count(); } \
        uretprobe:{prog}:h_forks /pid == {pid}/ { @out = sum(retval); }";
    harden(&[], script, &["@in: 10", "@out: 375"]);
}

#[test]
fn vector_arguments_and_results_survive() {
    let script =
        "uprobe:{prog}:h_float { @in = count(); } uretprobe:{prog}:h_float { @out = count(); }";
    harden(&[], script, &["@in: 500", "@out: 500"]);
}

/// Builds counts.c with other options and counts in it.
fn count_in_build(options: &[&str]) {
    let _turn = Turn::take();
    let scratch = Scratch::new();
    let program = scratch.build_with("counts.c", options);
    let case = Case {
        options: &[],
        script: "uprobe:{prog}:wl_add { @in = count(); } uretprobe:{prog}:wl_square { @out = sum(retval); } \
                 uprobe:{prog}:wl_threaded { @threaded = count(); }",
        compare: Exact,
        known: &["@in: 1000", "@out: 328350", "@threaded: 1000"],
    };
    need!(case.check_on(&program, || Command::new(&program)));
}

#[test]
fn programs_at_fixed_addresses_are_traced() {
    count_in_build(&["-no-pie", "-fno-pie"]);
}

#[test]
fn static_programs_are_traced() {
    count_in_build(&["-static"]);
}

#[test]
fn optimized_programs_without_frame_pointers_are_traced() {
    count_in_build(&["-O3", "-fomit-frame-pointer", "-fcf-protection=none"]);
}

#[test]
fn programs_with_patchable_entries_are_traced() {
    count_in_build(&["-fpatchable-function-entry=5", "-fcf-protection=none"]);
}

#[test]
fn programs_with_no_room_for_a_jump_are_traced() {
    count_in_build(&["-DNO_ROOM"]);
}

#[test]
fn libraries_loaded_by_dlopen_are_traced() {
    let _turn = Turn::take();
    let scratch = Scratch::new();
    let plugin = scratch.build_with("plugin.c", &["-shared", "-fPIC"]);
    let host = scratch.build("host.c");
    let case = Case {
        options: &[],
        script: "uprobe:{prog}:plugin_work { @in = count(); } uretprobe:{prog}:plugin_work { @out = sum(retval); }",
        compare: Exact,
        known: &["@in: 300", "@out: 224250"],
    };
    let target = || {
        let mut command = Command::new(&host);
        command.arg(&plugin);
        command
    };
    need!(case.check_on(&plugin, target));
}

/// Calls getppid 1,000 times and formats 500 strings in a round.
const PYTHON: &str = "import os, sys
print('ready', flush=True)
for line in sys.stdin:
    text = ''
    for i in range(1000): os.getppid()
    for i in range(500): text = '%d %s' % (i, text[:8])
    print('done', text, flush=True)
sys.exit(7)";

#[test]
fn an_old_process_that_runs_its_program_anew_is_traced() {
    let _turn = Turn::take();
    let scratch = Scratch::new();
    let program = scratch.build("again.c");
    let script = format!(
        "uprobe:{}:f_work {{ printf(\"hit\\n\"); }}",
        program.display()
    );
    let bpftrace = need!(find_program("bpftrace"));
    for engine in need!(engines()) {
        let command = match engine {
            Engine::Kernel => with_tracefs(&bpftrace),
            Engine::Beeline => engine.command(&bpftrace),
        };
        let mut workload = Workload::start(&program);
        let tool = Tool::bpftrace(command, &script);
        tool.wait_attached();
        let hits = || {
            tool.stdout
                .so_far()
                .iter()
                .filter(|line| *line == "hit")
                .count()
        };
        assert_eq!(workload.go(), "done", "{engine}");
        tool.settle();
        assert_eq!(hits(), 1, "{engine}");
        // It is no longer watched all the time.
        std::thread::sleep(Duration::from_secs(3));
        assert_eq!(workload.tell("exec"), "ready", "{engine}");
        let is_traced = until(PATIENCE, || {
            workload.go();
            tool.settle();
            hits() > 1
        });
        assert!(is_traced, "{engine}");
        workload.finish();
        tool.interrupt();
    }
}

#[test]
fn processes_left_out_for_want_of_descriptors_are_reported() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let scratch = Scratch::new();
    let program = scratch.build("many_processes.c");
    let mut command = Command::new(&program);
    command.arg("100");
    let processes = Workload::start_command(command);
    let bpftrace = need!(find_program("bpftrace"));
    let mut command = Command::new("prlimit");
    command.arg("--nofile=300:300").arg(beeline());
    command.args(["run", "--"]).arg(bpftrace);
    let script = format!("uprobe:{}:main {{ }}", program.display());
    let tool = Tool::bpftrace(command, &script);
    tool.wait_attached();
    tool.wait_to_be_told(|line| line.contains("not traced; let Beeline have more files open"));
    assert!(tool.interrupt().status.success());
    processes.finish();
}

#[test]
fn python_is_traced_in_itself_and_in_libc() {
    let _turn = Turn::take();
    let python = need!(std::fs::canonicalize("/usr/bin/python3"));
    let case = Case {
        options: &[],
        script: "uprobe:{libc}:getppid /pid == {pid}/ { @calls = count(); } \
                 uretprobe:{libc}:getppid /pid == {pid}/ { @same[retval] = count(); } \
                 uprobe:{prog}:PyUnicode_Format /pid == {pid}/ { @formats = count(); } END { clear(@same); }",
        compare: Exact,
        known: &["@calls: 1000", "@formats: 500"],
    };
    let target = || {
        let mut command = Command::new(&python);
        command.args(["-c", PYTHON]);
        command
    };
    need!(case.check_on(&python, target));
}

#[test]
fn a_command_given_with_c_is_traced_from_its_start() {
    let _turn = Turn::take();
    let bpftrace = need!(find_program("bpftrace"));
    let scratch = Scratch::new();
    let program = scratch.build("counts.c");
    for engine in need!(engines()) {
        let mut command = engine.command(&bpftrace);
        command.args(["-c", &format!("{} now", program.display())]);
        command.arg("-e");
        command.arg(format!(
            "uprobe:{0}:wl_add {{ @in = count(); }} uretprobe:{0}:wl_square {{ @out = sum(retval); }}",
            program.display()
        ));
        let ended = Tool::start(command).wait();
        let counts = map_counts(&ended.stdout);
        assert_eq!(counts.get("@in"), Some(&1000), "{engine}: {ended:?}");
        assert_eq!(counts.get("@out"), Some(&328350), "{engine}: {ended:?}");
        let answer = ended
            .stdout
            .iter()
            .filter(|line| line.starts_with("done "))
            .count();
        assert_eq!(
            answer, 1,
            "{engine}: the command's own output is lost: {ended:?}"
        );
    }
}

#[test]
fn exit_ends_the_tool_from_a_probe() {
    let _turn = Turn::take();
    let bpftrace = need!(find_program("bpftrace"));
    let scratch = Scratch::new();
    let program = scratch.build("counts.c");
    for engine in need!(engines()) {
        let mut workload = Workload::start(&program);
        let mut command = engine.command(&bpftrace);
        command.args(["-p", &workload.pid().to_string()]);
        let script = format!(
            "uprobe:{}:wl_wild_one {{ printf(\"seen\\n\"); exit(); }}",
            program.display()
        );
        let tool = Tool::bpftrace(command, &script);
        tool.wait_attached();
        let honest = workload.go();
        let ended = tool.wait();
        assert!(ended.status.success(), "{engine}: {ended:?}");
        assert!(
            ended.stdout.iter().any(|line| line == "seen"),
            "{engine}: {ended:?}"
        );
        assert_eq!(workload.go(), honest);
        workload.finish();
    }
}

#[test]
fn a_plain_tool_of_bare_system_calls_counts_inside_functions_too() {
    let _turn = Turn::take();
    let scratch = Scratch::new();
    let program = scratch.build("counts.c");
    let attach = scratch.build("attach.c");
    let offset = |name| file_offset(&program, name).expect("a symbol of the workload");
    // 8 calls of the function, at three places in it; 100 returns; 1,000 calls that nothing counts.
    let inside = [0, 4, 11].map(|step| format!("P:{:#x}", offset("wl_offset") + step));
    let others = [
        format!("R:{:#x}", offset("wl_square")),
        format!("p:{:#x}", offset("wl_add")),
    ];
    for engine in need!(engines()) {
        let mut workload = Workload::start(&program);
        let honest = workload.go();
        let mut command = engine.command(&attach);
        command
            .arg(workload.pid().to_string())
            .arg(&program)
            .arg("1")
            .args(&inside)
            .args(&others);
        let tool = Tool::start(command);
        tool.wait_for_line(|line| line == "attached");
        assert_eq!(workload.go(), honest, "{engine}");
        assert_eq!(tool.wait().stdout, ["attached", "count 124"], "{engine}");
        workload.finish();
    }
}

#[test]
fn a_program_sends_its_target_signals() {
    let _turn = Turn::take();
    let bpftrace = need!(find_program("bpftrace"));
    let scratch = Scratch::new();
    let program = scratch.build("signals.c");
    for engine in need!(engines()) {
        let mut workload = Workload::start(&program);
        assert_eq!(workload.go(), "done 285 0 0 0 0 0 0 0 0 0 0 0");
        let mut command = engine.command(&bpftrace);
        command.args(["--unsafe", "-p", &workload.pid().to_string()]);
        let place = format!("{}:wl_signalled", program.display());
        let tool = Tool::bpftrace(
            command,
            &format!("uprobe:{place} /arg0 % 3 == 1/ {{ signal(\"USR1\"); }}"),
        );
        tool.wait_attached();
        // 0x80: from the kernel. Each was taken before its call returned.
        let answer = workload.go();
        assert_eq!(answer, "done 285 0x80 0 1 1 1 2 2 2 3 3 3", "{engine}");
        let ended = tool.interrupt();
        assert!(ended.status.success(), "{engine}: {ended:?}");
        workload.finish();
    }
}

/// Attaching and detaching takes the kernel a quarter of a second, so it runs less often.
fn cycles(engine: Engine) -> &'static str {
    match engine {
        Engine::Kernel => "10",
        Engine::Beeline => "1000",
    }
}

/// Returns the functions to attach to. The kernel refuses a uprobe at an instruction with a lock
/// prefix.
fn hammered(engine: Engine) -> &'static [&'static str] {
    match engine {
        Engine::Kernel => &["hm_leaf", "hm_outer", "hm_tight"],
        Engine::Beeline => &["hm_leaf", "hm_outer", "hm_tight", "hm_locked"],
    }
}

#[test]
fn threads_run_through_a_thousand_attaches_and_detaches() {
    let _turn = Turn::take();
    let scratch = Scratch::new();
    let program = scratch.build("hammer.c");
    let attach = scratch.build("attach.c");
    for engine in need!(engines()) {
        let places = hammered(engine)
            .iter()
            .map(|name| file_offset(&program, name).expect("a symbol of the workload"))
            .flat_map(|offset| [format!("p:{offset:#x}"), format!("r:{offset:#x}")]);
        let mut workload = Workload::start(&program);
        assert_eq!(workload.tell("go"), "running");
        let mut command = engine.command(&attach);
        command
            .arg(workload.pid().to_string())
            .arg(&program)
            .arg(cycles(engine))
            .args(places);
        let tool = Tool::start(command);
        let patience = std::time::Duration::from_secs(180);
        let attached = tool.stdout.wait_for(0, patience, |line| line == "attached");
        assert!(attached.is_some(), "{engine}: {:?}", tool.stderr.so_far());
        assert!(tool.wait().status.success(), "{engine}");
        let answer = workload.tell("stop");
        assert!(
            answer.starts_with("done 0 "),
            "{engine}: wrong results: {answer}"
        );
        assert_eq!(altered_text(workload.pid()), [""; 0], "{engine}");
        workload.finish();
    }
}

/// A process that is hooked while it is held at its beginning goes on as it would have: with its
/// signals, and all its probes.
#[test]
fn a_tools_child_starts_as_it_would_without_beeline() {
    const PROBES: &str = "uprobe:{prog}:begun_short { @short = count(); } uprobe:{prog}:begun_long { @long = count(); }";
    const CALLS: &str =
        "tracepoint:syscalls:sys_enter_getppid /comm == \"begun\"/ { @calls = count(); }";
    let _turn = Turn::take();
    let scratch = Scratch::new();
    let program = scratch.build("begun.c").display().to_string();
    let bpftrace = need!(find_program("bpftrace"));
    for engine in need!(engines()) {
        for (script, counted) in [
            (PROBES.to_owned(), 2),
            (CALLS.to_owned(), 1),
            (format!("{PROBES} {CALLS}"), 3),
            (format!("{CALLS} {PROBES}"), 3),
        ] {
            let mut command = match engine {
                Engine::Kernel => with_tracefs(&bpftrace),
                Engine::Beeline => engine.command(&bpftrace),
            };
            let script = script.replace("{prog}", &program);
            command.args(["-e", &script, "-c", &program]);
            let ended = Tool::start(command).wait();
            assert!(ended.status.success(), "{engine}: {script}: {ended:?}");
            let said = |line: &str| ended.stdout.iter().filter(|said| *said == line).count();
            assert_eq!(
                said("blocked: 0000000000000000"),
                1,
                "{engine}: {script}: {ended:?}"
            );
            assert_eq!(
                said("its child is ended by 15"),
                1,
                "{engine}: {script}: {ended:?}"
            );
            let counts = ended.stdout.iter().filter(|line| line.ends_with(": 10"));
            assert_eq!(counts.count(), counted, "{engine}: {script}: {ended:?}");
        }
    }
}

#[test]
fn nothing_is_written_below_a_small_signal_stack() {
    let _turn = Turn::take();
    need!(find_program("bpftrace"));
    need!(beeline_wanted());
    let scratch = Scratch::new();
    let program = scratch.build("small_stack.c");
    let mut workload = Workload::start(&program);
    let mut command = Engine::Beeline.command("bpftrace");
    command.args(["-p", &workload.pid().to_string()]);
    let script = format!(
        "uprobe:{}:wl_small {{ @[comm] = count(); @all = count(); @s[ustack(8)] = count(); }} \
         END {{ clear(@); clear(@s); }}",
        program.display()
    );
    let tool = Tool::bpftrace(command, &script);
    tool.wait_attached();
    assert_eq!(
        workload.go(),
        "done 21 0",
        "calls, and bytes changed below the stack"
    );
    tool.settle();
    let ended = tool.interrupt();
    let counts = map_counts(&ended.stdout);
    assert!(
        counts.get("@all") >= Some(&1),
        "the one with room counts: {ended:?}"
    );
    ended.assert_counted(&[("@all", 21)]);
    workload.finish();
}
