//! `beeline-guest`: the guest's part of Beeline in a file of its own, which is linked statically
//! and needs only a kernel. It also takes `guest` as its first argument, so that it can be
//! installed as `beeline` in a guest.

use std::process::ExitCode;

use beeline_vm_protocol::text::printable;
use clap::Parser;

/// Serve eBPF tools on the host with this machine's kernel.
#[derive(Debug, Parser)]
#[command(name = "beeline guest", version)]
struct Arguments {
    #[command(flatten)]
    options: beeline_vm_proxy::Options,
}

fn main() -> ExitCode {
    let mut arguments: Vec<_> = std::env::args_os().collect();
    if arguments.get(1).is_some_and(|first| first == "guest") {
        arguments.remove(1);
    }
    let options = Arguments::parse_from(arguments).options;
    if let Err(error) = beeline_vm_proxy::serve(&options, say) {
        say(&format!("{error:#}"));
    }
    // It serves forever, or not at all.
    ExitCode::FAILURE
}

/// Prints a line. Words in it may be a host's: they cannot control the terminal.
fn say(line: &str) {
    eprintln!("beeline: {}", printable(line));
}
