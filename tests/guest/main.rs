//! Tools on this machine give the same results for a guest as inside it; and the test guests are as
//! described.
//!
//! A boot takes seconds, so most tests share one guest, one test at a time; tests that break their
//! guest have one of their own.

mod bcc;
mod channels;
mod clocks;
mod clockwork;
mod descriptors;
mod everything;
mod faults;
mod found;
mod guests;
mod inject;
mod losses;
mod memory;
mod pins;
mod place;
mod policies;
mod processes;
mod proxy;
mod stacks;
mod tools;
mod trace;
mod transports;
mod vcpus;
mod wire;

use beeline_e2e::{Guest, Job, Options, Scratch, need};
use std::ops::Deref;
use std::sync::OnceLock;

use parking_lot::{Mutex, MutexGuard};

/// The guest that tests share, held by one of them.
struct Shared(MutexGuard<'static, Guest>);

impl Deref for Shared {
    type Target = Guest;

    fn deref(&self) -> &Guest {
        &self.0
    }
}

/// Boots the shared guest, the first time, and waits until no other test has it.
fn shared() -> Result<Shared, String> {
    static GUEST: OnceLock<Result<Mutex<Guest>, String>> = OnceLock::new();
    let guest = GUEST.get_or_init(|| Ok(Mutex::new(boot("6.12")?)));
    let guest = guest.as_ref().map_err(String::clone)?;
    // A test that failed while it had the guest does not make the next one fail.
    Ok(Shared(guest.lock()))
}

/// Boots a guest with the programs that these tests run in it.
fn boot(kernel: &str) -> Result<Guest, String> {
    boot_with(Options {
        kernel,
        ..Options::default()
    })
}

/// Does the same, with further options.
fn boot_with(options: Options) -> Result<Guest, String> {
    let scratch = Scratch::new();
    let program = |name: &str, place: &str| (scratch.build(name), place.to_owned());
    let mut files = vec![
        program("echo.c", "/test/echo"),
        program("terminal.c", place::TERMINAL),
    ];
    // Tests that need it ask for it by [`proxy::Proxy`].
    files.extend(proxy::built().map(|file| (file, proxy::PLACE.to_owned())));
    Guest::boot(&Options { files, ..options })
}

/// Sends a signal to a tool's process on this machine.
fn signal(pid: u32, signal: i32) {
    // SAFETY: sends a signal to a child of a process that we have started.
    assert_eq!(unsafe { libc::kill(pid as i32, signal) }, 0);
}
