//! `beeline-llvm`: compiles what comes in on its standard input, for `beeline_codegen::Worker`. People do not run it.

use std::io::{IsTerminal, stdin, stdout};
use std::process::{ExitCode, exit};

use beeline_codegen::worker::serve;
use beeline_codegen_llvm::Llvm;
use rustix::event::{PollFd, PollFlags, poll};

fn main() -> ExitCode {
    if stdin().is_terminal() {
        eprintln!("beeline-llvm: beeline runs this program by itself");
        return ExitCode::from(2);
    }
    close_inherited();
    std::thread::spawn(end_with_parent);
    match serve(&Llvm, stdin().lock(), stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("beeline-llvm: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What the parent had open at the moment must not stay open as long as this process runs.
fn close_inherited() {
    // SAFETY: nothing here uses a descriptor but the standard ones.
    unsafe { libc::close_range(3, libc::c_uint::MAX, 0) };
}

/// Nobody waits for the program that is just compiled once the other end of the input is closed.
fn end_with_parent() {
    let input = stdin();
    // Asks for nothing, and so is told of the end only.
    while poll(&mut [PollFd::new(&input, PollFlags::empty())], None).is_err() {}
    exit(0);
}
