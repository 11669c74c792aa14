//! A tool and its programs see each other's writes to an array that the tool has mapped at once,
//! however far apart the two are.

use beeline_e2e::{Scratch, Tool, Turn, engines, need};

#[test]
fn both_sides_of_a_mapped_array_see_each_other() {
    let _turn = Turn::take();
    let scratch = Scratch::new();
    let tool = scratch.build("mapped.c");
    for engine in need!(engines()) {
        let ended = Tool::start(engine.command(&tool)).wait();
        assert!(ended.status.success(), "{engine}: {ended:?}");
        assert_eq!(ended.stdout, ["sum 1275"], "{engine}: {ended:?}");
    }
}

#[test]
fn an_array_is_the_same_in_memory_and_by_calls() {
    let _turn = Turn::take();
    let scratch = Scratch::new();
    let tool = scratch.build("stores.c");
    for engine in need!(engines()) {
        let ended = Tool::start(engine.command(&tool)).wait();
        assert!(ended.status.success(), "{engine}: {ended:?}");
        let found = [
            "stale by call: 0, in memory: 0, by both: 0",
            "stored behind an update: 222, 222",
            "by children: 0 wrong",
            "beside: 51200 400 400 200, 51200 400 400 200",
            "often: 0 wrong",
        ];
        assert_eq!(ended.stdout, found, "{engine}: {ended:?}");
    }
}
