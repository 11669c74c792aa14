//! Programs other than the usual C with glibc: C++ and its exceptions, Go, and no library at all.

use beeline_e2e::Compare::Exact;
use beeline_e2e::{
    Case, Engine, Scratch, Tool, Turn, Workload, beeline_wanted, find_program, need,
};
use std::path::Path;
use std::process::Command;

#[test]
fn exceptions_pass_through_functions_with_an_entry_probe() {
    let _turn = Turn::take();
    let case = Case {
        options: &[],
        script: "uprobe:{prog}:t_throws { @throws = count(); } uprobe:{prog}:t_passes { @passes = count(); } \
                 uprobe:{prog}:t_catches { @catches = count(); }",
        compare: Exact,
        known: &["@throws: 50", "@passes: 50", "@catches: 50"],
    };
    need!(case.check("throws.cpp"));
}

#[test]
fn exceptions_end_below_a_function_with_a_return_probe() {
    let _turn = Turn::take();
    let case = Case {
        options: &[],
        script: "uprobe:{prog}:t_throws { @throws = count(); } \
                 uretprobe:{prog}:t_catches { @catches = count(); @sum = sum((int64)retval); }",
        compare: Exact,
        known: &["@throws: 50", "@catches: 50", "@sum: -25"],
    };
    need!(case.check("throws.cpp"));
}

/// A kernel's return probe replaces the return address, and the C++ unwinder, which goes by return
/// addresses, finds no frame there that would catch: the program ends by `std::terminate`. On
/// Beeline the exception arrives.
#[test]
fn an_exception_through_a_return_probe_arrives() {
    let _turn = Turn::take();
    let case = Case {
        options: &[],
        script: "uretprobe:{prog}:t_passes { @passes = count(); } uprobe:{prog}:t_passes { @in = count(); } \
                 uretprobe:{prog}:t_catches { @catches = count(); }",
        compare: Exact,
        known: &["@passes: 25", "@in: 50", "@catches: 50"],
    };
    let scratch = Scratch::new();
    let program = scratch.build("throws.cpp");
    need!(case.check_beeline(&program, || Command::new(&program)));
}

#[test]
fn go_programs_are_traced_in_their_goroutines() {
    let _turn = Turn::take();
    let go = need!(find_program("go"));
    let scratch = Scratch::new();
    let program = scratch.build_go(&go, "counts.go");
    let case = Case {
        options: &[],
        script: "uprobe:{prog}:main.Work { @calls = count(); @sum = sum(reg(\"ax\")); @by[reg(\"bx\")] = count(); }",
        compare: beeline_e2e::Compare::Sorted,
        known: &["@calls: 1000", "@sum: 49500", "@by[0]: 100", "@by[9]: 100"],
    };
    need!(case.check_on(&program, || Command::new(&program)));
}

/// Go moves its stacks, and with them the return addresses: a kernel's return probe ends the
/// program.
#[test]
fn go_functions_return_on_stacks_that_move() {
    let _turn = Turn::take();
    let go = need!(find_program("go"));
    let scratch = Scratch::new();
    let program = scratch.build_go(&go, "returns.go");
    let case = Case {
        options: &[],
        script: "uretprobe:{prog}:main.Deep { @deep = count(); } \
                 uretprobe:{prog}:main.Parity { @parity = count(); @odd[reg(\"bx\") & 1] = count(); @got = sum(reg(\"ax\")); } \
                 uretprobe:{prog}:main.Recovers { @recovers = count(); @result = sum((int64)reg(\"ax\")); } \
                 uprobe:{prog}:main.Gets { @sp[tid] = reg(\"sp\"); } \
                 uretprobe:{prog}:main.Gets { @above[reg(\"sp\") - @sp[tid]] = count(); delete(@sp[tid]); }",
        compare: Exact,
        // 64 goroutines with 2,001 calls; the odd results are three times the argument.
        known: &[
            "@deep: 128064",
            "@parity: 128000",
            "@odd[0]: 64000",
            "@odd[1]: 64000",
            "@got: 256064000",
            "@recovers: 64",
            "@result: -32",
            "@above[8]: 64",
        ],
    };
    need!(case.check_beeline(&program, || Command::new(&program)));
}

/// A function may end by a jump: another one returns in its stead.
#[test]
fn a_go_function_that_ends_by_a_jump_is_told_and_runs_on() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let bpftrace = need!(find_program("bpftrace"));
    let go = need!(find_program("go"));
    let scratch = Scratch::new();
    let program = scratch.build_go(&go, "returns.go");
    let mut workload = Workload::start(&program);
    let mut command = Engine::Beeline.command(&bpftrace);
    command.args(["-p", &workload.pid().to_string()]);
    let place = program.display();
    let script = format!(
        r#"uretprobe:{place}:"main.(*Outer).Get" {{ @jumps = count(); }}
           uretprobe:{place}:"main.(*Inner).Get" {{ @returns = count(); }}"#
    );
    let tool = Tool::bpftrace(command, &script);
    tool.wait_attached();
    assert_eq!(workload.go(), "done 257026528");
    tool.settle();
    let ended = tool.interrupt();
    ended.assert_counted(&[("@returns", 64)]);
    let told = |line: &String| line.contains("ends by a jump to another one");
    assert!(ended.stderr.iter().any(told), "{ended:?}");
    workload.finish();
}

/// Has a tool start a program and count the calls of a function. Returns what both have printed.
fn counted_from_the_start(
    engine: Engine,
    program: &Path,
    function: &str,
) -> Result<Vec<String>, String> {
    let bpftrace = find_program("bpftrace")?;
    let program = program.display();
    let script = format!("uprobe:{program}:{function} {{ @ = count(); }}");
    let mut command = engine.command(&bpftrace);
    command.args(["-c", &program.to_string(), "-e", &script]);
    let ended = command.output().map_err(|error| error.to_string())?;
    assert!(ended.status.success(), "{engine:?}: {ended:?}");
    let text = String::from_utf8_lossy(&ended.stdout);
    let lines = text.lines().filter(|line| !line.is_empty());
    Ok(lines.map(str::to_owned).collect())
}

/// Programs that call the kernel themselves (Go's do) take no handler of Beeline's away, and see
/// their own.
#[test]
fn programs_that_install_handlers_by_raw_calls_come_to_breakpoints() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let go = need!(find_program("go"));
    let scratch = Scratch::new();
    let programs = [
        (scratch.build_go(&go, "signals.go"), "main.Work", "@: 40"),
        (scratch.build("own_handlers.c"), "probed", "@: 5"),
        (
            scratch.build_with("own_handlers.c", &["-static"]),
            "probed",
            "@: 5",
        ),
    ];
    for (program, function, count) in programs {
        let kernel = need!(counted_from_the_start(Engine::Kernel, &program, function));
        assert!(kernel.iter().any(|line| line == count), "{kernel:?}");
        let ours = need!(counted_from_the_start(Engine::Beeline, &program, function));
        assert_eq!(ours, kernel);
    }
}

#[test]
fn a_static_program_without_any_library_is_traced() {
    let _turn = Turn::take();
    let scratch = Scratch::new();
    let program = scratch.build_with("bare.c", &["-static", "-nostdlib", "-fno-stack-protector"]);
    let case = Case {
        options: &[],
        script: "uprobe:{prog}:bare_work { @in = count(); @sum = sum(arg0); } \
                 uretprobe:{prog}:bare_work { @out = sum(retval); }",
        compare: Exact,
        known: &["@in: 300", "@sum: 44850", "@out: 45450"],
    };
    need!(case.check_on(&program, || Command::new(&program)));
}
