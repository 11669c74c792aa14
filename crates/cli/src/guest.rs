//! `beeline run --guest`: a session whose programs run in a virtual machine.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use anyhow::Context;
use beeline_door::{Connection, Options, Tool};
use beeline_wire::address::Address;
use beeline_wire::channel::Channel;
use beeline_wire::tls::Tls;
use clap::Args;
use rustix::process::{Pid, Signal};

use crate::run::{self, exit_code};
use crate::say;

/// Where the guest is, and how both sides know each other.
#[derive(Debug, Args)]
pub struct Where {
    /// Run the tool's programs in a virtual machine, where `beeline guest` runs: vsock:CID[:PORT], uds:PATH[:PORT] (Firecracker, Cloud
    /// Hypervisor, vhost-device-vsock), unix:PATH, tcp:ADDRESS:PORT, serial:PATH
    #[arg(long, value_name = "ADDRESS")]
    pub guest: Option<Address>,
    #[command(flatten)]
    pub tls: Certificates,
}

/// What TCP needs.
#[derive(Debug, Args)]
pub struct Certificates {
    /// This side's certificate, for tcp: addresses (PEM)
    #[arg(long, value_name = "FILE", requires_all = ["tls_key", "tls_ca"])]
    pub tls_cert: Option<PathBuf>,
    /// Its private key (PEM)
    #[arg(long, value_name = "FILE")]
    pub tls_key: Option<PathBuf>,
    /// The certificates that the other side's has to be signed by (PEM)
    #[arg(long, value_name = "FILE")]
    pub tls_ca: Option<PathBuf>,
    /// The name in the other side's certificate, if it is not its address
    #[arg(long, value_name = "NAME")]
    pub tls_name: Option<String>,
}

impl Certificates {
    /// `None` if none were given.
    pub fn tls(&self) -> Option<Tls> {
        Some(Tls {
            certificate: self.tls_cert.clone()?,
            key: self.tls_key.clone()?,
            authority: self.tls_ca.clone()?,
            name: self.tls_name.clone(),
        })
    }
}

/// Runs the tool to its end; its exit code is ours, unless the guest is lost before.
pub fn run(tool: &[OsString], address: &Address, tls: Option<&Tls>) -> anyhow::Result<ExitCode> {
    run::hand_signals_on();
    let channel = Channel::connect(address, tls)?;
    let words: Vec<_> = tool.iter().map(|word| word.to_string_lossy()).collect();
    let connection = Connection::greet(channel, &words.join(" "), Box::new(say), Box::new(end))?;
    let options = Options {
        pretend_root: !rustix::process::geteuid().is_root(),
        is_for_guest: true,
    };
    let started = match Tool::spawn(tool, &options) {
        Ok(started) => started,
        Err(error) => {
            say(&error.to_string());
            return Ok(ExitCode::from(error.exit_code()));
        }
    };
    let pid = Pid::from_raw(started.pid()).context("the tool has no process")?;
    run::hand_signals_to(pid)?;
    let status = started.serve_in(connection)?;
    match LOST.load(Relaxed) {
        true => Ok(ExitCode::FAILURE),
        false => Ok(exit_code(status)),
    }
}

/// The tool did not end by itself.
static LOST: AtomicBool = AtomicBool::new(false);

/// The guest is lost: the tool gets errors for all it asks, and some would wait for events for ever.
fn end(why: &str) {
    LOST.store(true, Relaxed);
    say(&format!(
        "the guest is lost: {why}; the tool is told to end"
    ));
    run::signal_tool(Signal::TERM);
}
