//! A tool's own map operations, answered in its process: the same as the kernel's, whatever the tool does. As a guest's these are steps
//! through maps.

use beeline_e2e::{Engine, Scratch, Tool, Turn, engines, find_program, need};

fn both_wanted() -> Result<(), String> {
    match engines()?[..] {
        [Engine::Kernel, Engine::Beeline] => Ok(()),
        _ => Err("not both engines are there and asked for".to_owned()),
    }
}

/// Runs a program on both engines, and asserts that it says the same, and found a shortcut.
fn same_answers(program: &str) -> Result<(), String> {
    both_wanted()?;
    let _turn = Turn::take();
    let scratch = Scratch::new();
    let program = scratch.build_with(program, &["-O1", "-pthread"]);
    let [kernel, beeline] = [Engine::Kernel, Engine::Beeline].map(|engine| {
        let ended = Tool::start(engine.command(&program)).wait();
        assert!(ended.status.success(), "{engine}: {ended:?}");
        ended
    });
    assert!(kernel.stdout.len() > 20, "{kernel:?}");
    assert_eq!(kernel.stdout, beeline.stdout, "{:?}", beeline.stderr);
    // Else this test tells nothing.
    assert!(
        beeline.stderr.contains(&"shortcut: yes".to_owned()),
        "{:?}",
        beeline.stderr
    );
    Ok(())
}

#[test]
fn operations_are_answered_as_by_the_kernel() {
    need!(same_answers("shortcut.c"));
}

#[test]
fn walks_are_answered_as_by_the_kernel() {
    need!(same_answers("walks.c"));
}

/// An operation takes more stack than a goroutine may have left.
#[test]
fn a_tool_in_go_is_left_alone() {
    need!(both_wanted());
    let go = need!(find_program("go"));
    let _turn = Turn::take();
    let scratch = Scratch::new();
    let program = scratch.build_go(&go, "operations.go");
    let ended = Tool::start(Engine::Beeline.command(&program)).wait();
    assert!(ended.status.success(), "{ended:?}");
    assert_eq!(ended.stdout, ["shortcut: false"], "{ended:?}");
}
