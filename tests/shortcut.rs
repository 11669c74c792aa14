//! A tool's own map operations, answered in its process: the same as the kernel's, whatever the tool does.

use beeline_e2e::{
    Engine, Scratch, Tool, Turn, beeline_wanted, find_program, kernel_available, need,
};

#[test]
fn operations_are_answered_as_by_the_kernel() {
    need!(beeline_wanted());
    need!(kernel_available());
    let _turn = Turn::take();
    let scratch = Scratch::new();
    let program = scratch.build("shortcut.c");
    let [kernel, beeline] = [Engine::Kernel, Engine::Beeline].map(|engine| {
        let ended = Tool::start(engine.command(&program)).wait();
        assert!(ended.status.success(), "{engine}: {ended:?}");
        ended
    });
    assert!(kernel.stdout.len() > 40, "{kernel:?}");
    assert_eq!(kernel.stdout, beeline.stdout, "{:?}", beeline.stderr);
    // Else this test tells nothing.
    assert!(
        beeline.stderr.contains(&"shortcut: yes".to_owned()),
        "{:?}",
        beeline.stderr
    );
}

/// An operation takes more stack than a goroutine may have left.
#[test]
fn a_tool_in_go_is_left_alone() {
    need!(beeline_wanted());
    let go = need!(find_program("go"));
    let _turn = Turn::take();
    let scratch = Scratch::new();
    let program = scratch.build_go(&go, "operations.go");
    let ended = Tool::start(Engine::Beeline.command(&program)).wait();
    assert!(ended.status.success(), "{ended:?}");
    assert_eq!(ended.stdout, ["shortcut: false"], "{ended:?}");
}
