//! Programs with callbacks give the same results under Beeline as on the kernel.

use beeline_e2e::{Scratch, Tool, Turn, Workload, engines, file_offset, need};

/// Runs a tool on every engine: each prints the known lines, and all print the same.
fn agree(tool: &str, known: &[&str]) -> Result<(), String> {
    let engines = engines()?;
    let scratch = Scratch::new();
    let program = scratch.build(tool);
    let outputs: Vec<_> = engines
        .iter()
        .map(|engine| {
            let ended = Tool::start(engine.command(&program)).wait();
            assert!(ended.status.success(), "{engine}: {ended:?}");
            for line in known {
                assert!(
                    ended.stdout.iter().any(|said| said == line),
                    "{engine}: no {line:?} in {ended:?}"
                );
            }
            ended.stdout
        })
        .collect();
    if let [kernel, beeline] = outputs.as_slice() {
        assert_eq!(kernel, beeline);
    }
    Ok(())
}

#[test]
fn callbacks_do_what_they_do_on_the_kernel() {
    let _turn = Turn::take();
    let known = [
        "loop 1000 flags 0 stop 0: returned 1000 sum 1498500 calls 1000",
        "loop 1000 flags 0 stop 1: returned 1 sum 0 calls 1",
        "loop 1000 flags 1 stop 0: returned -22 sum 0 calls 0",
        "loop 8388608 flags 0 stop 0: returned 8388608 sum 105553103683584 calls 8388608",
        "for_each type 1 of 64 flags 0 stop 0 deletes 1: returned 64 sum 2016020224 calls 64",
        "  then 32 elements, keys 10912, changes 160",
    ];
    need!(agree("callbacks.c", &known));
}

#[test]
fn user_ring_buffers_are_drained_as_on_the_kernel() {
    let _turn = Turn::take();
    let known = [
        "ten: returned 10 sum 55 calls 10, read to 160 of 160",
        "some discarded: returned 7 sum 37 calls 7, read to 320 of 320",
        "longer than written: returned -22 sum 0 calls 0, read to 496 of 512",
        "room is told 1",
    ];
    need!(agree("user_ring.c", &known));
}

#[test]
fn callbacks_run_in_the_traced_process() {
    let _turn = Turn::take();
    let scratch = Scratch::new();
    let program = scratch.build("counts.c");
    let attach = scratch.build("attach.c");
    let offset = file_offset(&program, "wl_add").expect("a symbol of the workload");
    for engine in need!(engines()) {
        let mut workload = Workload::start(&program);
        let honest = workload.go();
        let mut command = engine.command(&attach);
        command
            .arg(workload.pid().to_string())
            .arg(&program)
            .arg("1")
            .arg(format!("L:{offset:#x}"));
        let tool = Tool::start(command);
        tool.wait_for_line(|line| line == "attached");
        assert_eq!(workload.go(), honest, "{engine}");
        // Three for each of a thousand calls.
        assert_eq!(tool.wait().stdout, ["attached", "count 3000"], "{engine}");
        workload.finish();
    }
}
