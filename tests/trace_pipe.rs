//! Programs' messages come out of the trace pipe, as with the kernel.

use beeline_e2e::{
    Engine, Scratch, Tool, Turn, Workload, beeline_wanted, engines, file_offset, need,
};
use std::path::Path;

/// Starts the tool whose program prints at each of ten calls, and makes these calls.
fn print_ten(engine: Engine, scratch: &Scratch, program: &Path, workload: &mut Workload) -> Tool {
    let offset = file_offset(program, "wl_eight").expect("a symbol of the workload");
    let mut command = engine.command(scratch.build("attach.c"));
    command.arg(workload.pid().to_string()).arg(program);
    command.args(["1", &format!("T:{offset:#x}")]);
    let tool = Tool::start(command);
    tool.wait_for_line(|line| line == "attached");
    workload.go();
    tool
}

/// Returns a line without the parts that differ between runs: the CPU, the context flags, and the
/// time.
fn steady(line: &str) -> String {
    let (task, rest) = line.split_once('[').expect("a CPU");
    let (cpu, rest) = rest.split_once("] ").expect("a CPU's end");
    let (flags, rest) = rest.split_at_checked(5).expect("flags");
    let (time, text) = rest.split_once(": ").expect("a time");
    assert!(
        cpu.len() == 3 && cpu.bytes().all(|byte| byte.is_ascii_digit()),
        "{line}"
    );
    assert!(!flags.contains(' '), "{line}");
    let (seconds, micros) = time.split_once('.').expect("a point");
    assert!(seconds.len() >= 6 && micros.len() == 6, "{line}");
    assert!(time.trim_start().parse::<f64>().is_ok(), "{line}");
    format!("{task}{text}")
}

#[test]
fn lines_are_the_kernels() {
    let _turn = Turn::take();
    let scratch = Scratch::new();
    let program = scratch.build("counts.c");
    let mut workload = Workload::start(&program);
    let expected: Vec<String> = (1..=10)
        .map(|i| {
            let task = format!("counts-{:<7} ", workload.pid());
            format!("{:>10}{task}bpf_trace_printk: hit {i} {:x}", "", 2 * i)
        })
        .collect();
    for engine in need!(engines()) {
        let ended = print_ten(engine, &scratch, &program, &mut workload).wait();
        let hits = ended.stdout.iter().filter(|line| line.contains("hit"));
        let lines: Vec<String> = hits.map(|line| steady(line)).collect();
        assert_eq!(lines, expected, "{engine}: {ended:?}");
    }
    workload.finish();
}

#[test]
fn lines_that_nobody_reads_are_told() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let scratch = Scratch::new();
    let program = scratch.build("counts.c");
    let mut workload = Workload::start(&program);
    let tool = print_ten(Engine::Beeline, &scratch, &program, &mut workload);
    let ended = tool.interrupt();
    let told = "beeline: 10 lines of bpf_trace_printk were not read from trace_pipe";
    assert_eq!(ended.stderr, [told]);
    workload.finish();
}
