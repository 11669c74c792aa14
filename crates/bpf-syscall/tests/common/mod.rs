//! A backend in memory that records its requests, the raw system calls of a tool, and the way to
//! bring the two together: a test runs its own program again under the supervisor, as the tool.
//! There the test `tool` plays the scene named in the environment, and its assertions are the
//! child's exit code.

#![allow(dead_code, unused_macros)] // Each test file uses its part.

pub mod fake;
pub mod tool;

use std::ffi::OsString;
use std::process::{Command, ExitStatus};
use std::sync::Arc;

use beeline_bpf_syscall::serve;
use beeline_supervisor::{Error, Options, Tool};
use parking_lot::Mutex;

use fake::Fake;

const SCENE: &str = "BEELINE_SCENE";

/// Runs a tool to its end, with its calls answered from a backend.
pub fn run(words: &[OsString], options: &Options, backend: Arc<Fake>) -> Result<ExitStatus, Error> {
    serve(Tool::spawn(words, options)?, backend)
}

pub fn command(words: &[&str]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}

/// One test at a time starts processes: a process forked while the supervisor of another makes a
/// descriptor has a copy of it until it runs its own program, and only then is the tool's closing
/// of it noticed.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Plays a scene under the supervisor; its assertions must hold, and everything must be released at
/// the end.
pub fn play(scene: &str) -> Arc<Fake> {
    let _alone = ONE_AT_A_TIME.lock();
    let exe = std::env::current_exe().unwrap();
    let scene = format!("{SCENE}={scene}");
    // Its report does not belong in this run's; failures are printed on stderr.
    let mut words = command(&["sh", "-c", "exec env \"$@\" >/dev/null", "sh", &scene]);
    words.push(exe.into());
    words.extend(command(&[
        "--exact",
        "helper_that_plays_the_tool",
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

const ON_KERNEL: &str = "BEELINE_DOOR_ON_KERNEL";

/// Plays a scene without a supervisor, so that the kernel answers: its assertions must hold there
/// as well. Skipped where it cannot be: without root.
pub fn on_kernel(scene: &str) {
    let _alone = ONE_AT_A_TIME.lock();
    let script = "test -e /sys/kernel/tracing/events || mount -t tracefs nodev /sys/kernel/tracing 2>&1 || exit 77; \
                  exec \"$0\" --exact helper_that_plays_the_tool --nocapture --quiet --test-threads=1 2>&1";
    let played = Command::new("unshare")
        .args(["-m", "sh", "-c", script])
        .arg(std::env::current_exe().unwrap())
        .env(SCENE, scene)
        .env(ON_KERNEL, "1")
        .output();
    let played = match played {
        Ok(played) if played.status.code() != Some(77) && !played.stdout.is_empty() => played,
        _ => return eprintln!("skipped: the kernel's tracefs cannot be mounted here"),
    };
    assert!(
        played.status.success(),
        "on the kernel: {}",
        String::from_utf8_lossy(&played.stdout)
    );
}

/// Runs some of this program's tests again where no tracefs is mounted; they must pass there as
/// well. Skipped without root.
pub fn again_without_tracefs(tests: &[&str]) {
    let _alone = ONE_AT_A_TIME.lock();
    let script = "umount -l /sys/kernel/debug/tracing /sys/kernel/tracing /sys/kernel/debug; \
                  test -e /sys/kernel/tracing/events && exit 77; \
                  exec \"$0\" --exact \"$@\" 2>&1";
    let run = Command::new("unshare")
        .args(["-m", "sh", "-c", script])
        .arg(std::env::current_exe().unwrap())
        .args(tests)
        .output();
    let run = match run {
        Ok(run) if run.status.code() != Some(77) && !run.stdout.is_empty() => run,
        _ => return eprintln!("skipped: tracefs cannot be unmounted here"),
    };
    let said = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success(), "without tracefs: {said}");
    let passed = format!("{} passed", tests.len());
    assert!(said.contains(&passed), "{said}");
}

/// Returns whether the kernel plays this scene.
pub fn is_on_kernel() -> bool {
    std::env::var_os(ON_KERNEL).is_some()
}

/// Tests whose scenes make all assertions themselves.
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
