//! `BPF_PROG_LOAD` gives the same as on the kernel: the error number, the log, its length, and the
//! program's result.
//!
//! `workloads/loads.c` loads good and bad programs with logs of all kinds; this test compares its
//! transcripts.

use beeline_e2e::{Engine, Scratch, Tool, Turn, engines, need};

/// Returns one line for each load, with the lines of its log after it.
fn transcript(engine: Engine, program: &std::path::Path) -> Vec<String> {
    let ended = Tool::start(engine.command(program)).wait();
    assert!(ended.status.success(), "under {engine}: {ended:?}");
    ended.stdout
}

#[test]
fn every_load_ends_as_on_the_kernel() {
    let _turn = Turn::take();
    let engines = need!(engines());
    let both = if engines.len() == 2 {
        Ok(())
    } else {
        Err("it takes the kernel and Beeline to compare them")
    };
    need!(both);
    let scratch = Scratch::new();
    let program = scratch.build("loads.c");
    let [kernel, beeline] =
        [Engine::Kernel, Engine::Beeline].map(|engine| transcript(engine, &program));
    let mut load = "";
    for (theirs, ours) in kernel.iter().zip(&beeline) {
        if theirs.starts_with("== ") {
            load = theirs;
        }
        assert_eq!(theirs, ours, "in {load}");
    }
    assert_eq!(kernel.len(), beeline.len());
}
