//! `beeline-llvm`: compiles the programs that arrive on its standard input, for
//! `beeline_codegen::Worker`. Users do not run it.

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

/// Closes inherited descriptors: files that the parent had open at the moment must not stay open as
/// long as this process runs.
fn close_inherited() {
    // SAFETY: nothing here uses any descriptor but the standard ones.
    unsafe { libc::close_range(3, libc::c_uint::MAX, 0) };
}

/// Ends the process once the other end of the input is closed: then nothing waits for the program
/// in progress.
fn end_with_parent() {
    let input = stdin();
    // Asks for no events, so it only returns at the end.
    while poll(&mut [PollFd::new(&input, PollFlags::empty())], None).is_err() {}
    exit(0);
}
