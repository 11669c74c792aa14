//! A backend in memory that remembers what was asked of it, the raw system calls of a tool, and the
//! way to bring the two together: a test runs its own program again under the door, as the tool.
//! There the test
//! `tool` plays the scene that is named in the environment, and its assertions are the child's exit code.

#![allow(dead_code, unused_macros)] // Each test file uses its part.

pub mod fake;
pub mod tool;

use std::ffi::OsString;
use std::sync::Arc;

use beeline_door::{Options, run};

use fake::Fake;

const SCENE: &str = "BEELINE_DOOR_SCENE";

pub fn command(words: &[&str]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}

/// Plays a scene under the door; its assertions must hold, and everything must be released at the
/// end.
pub fn play(scene: &str) -> Arc<Fake> {
    let exe = std::env::current_exe().unwrap();
    let scene = format!("{SCENE}={scene}");
    // Its report is not for the one who counts this run's tests; what fails is said on stderr.
    let mut words = command(&["sh", "-c", "exec env \"$@\" >/dev/null", "sh", &scene]);
    words.push(exe.into());
    words.extend(command(&[
        "--exact",
        "tool",
        "--nocapture",
        "--quiet",
        "--test-threads=1",
    ]));
    let fake = Arc::new(Fake::default());
    let status = run(&words, &Options::default(), fake.clone()).unwrap();
    assert!(
        status.success(),
        "{status}; the backend saw {:#?}",
        fake.log()
    );
    assert_eq!(
        fake.alive(),
        0,
        "not released; the backend saw {:#?}",
        fake.log()
    );
    fake
}

/// Tests of scenes that say all themselves.
macro_rules! played {
    ($($test:ident: $scene:literal),* $(,)?) => {
        $(#[test] fn $test() { play($scene); })*
    };
}

/// The tool's side: plays the scene of the environment, if there is one.
pub fn play_as_tool(scenes: &[(&str, fn())]) {
    let Ok(scene) = std::env::var(SCENE) else {
        return;
    };
    let (_, play) = scenes
        .iter()
        .find(|(name, _)| *name == scene)
        .expect("a known scene");
    play();
}
