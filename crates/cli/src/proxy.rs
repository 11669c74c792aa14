//! The proxy in a virtual machine's guest: its address, and the certificates for it.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use beeline_vm_loader::Guest;
use beeline_vm_protocol::address::Address;
use beeline_vm_protocol::channel::Channel;
use beeline_vm_protocol::messages::Welcome;
use beeline_vm_protocol::stream::{MOST_PATIENCE, PATIENCE};
use beeline_vm_protocol::text::printable_line;
use beeline_vm_protocol::tls::Tls;
use clap::Args;

use crate::say;

/// A guest's proxy.
#[derive(Debug, Args)]
pub struct Proxy {
    /// The address of `beeline guest`: vsock:CID[:PORT], uds:PATH[:PORT], unix:PATH,
    /// tcp:ADDRESS:PORT, serial:PATH
    #[arg(long, value_name = "ADDRESS")]
    #[allow(
        rustdoc::broken_intra_doc_links,
        reason = "clap prints the text as it stands"
    )]
    guest: Address,
    #[command(flatten)]
    silence: Silence,
    #[command(flatten)]
    tls: Certificates,
}

impl Proxy {
    /// Connects to it. `tool` is the name that the guest knows this side by.
    ///
    /// # Errors
    ///
    /// Fails if the guest cannot be reached, or refuses the connection.
    pub fn connect(&self, tool: &str) -> anyhow::Result<Guest> {
        let channel = Channel::connect(&self.guest, self.tls.tls().as_ref())?;
        channel.set_patience(self.silence.patience())?;
        let guest = Guest::greet(channel, tool)?;
        say(&connected_to(guest.welcome(), &self.guest));
        Ok(guest)
    }
}

/// Returns the line that tells the user what the connection leads to.
pub fn connected_to(welcome: &Welcome, address: &Address) -> String {
    let Welcome {
        nodename, release, ..
    } = welcome;
    let policy = match welcome.policy.as_str() {
        "" => "none, everything is allowed".to_owned(),
        name => name.to_owned(),
    };
    let line = format!("guest {nodename} (Linux {release}), policy {policy}, by {address}");
    printable_line(&line).into_owned()
}

/// The time that a guest may be silent.
#[derive(Debug, Args)]
pub struct Silence {
    /// Seconds of silence, or in which it takes nothing, after which the guest is lost: more than
    /// it may be paused for
    #[arg(long, value_name = "SECONDS", default_value_t = PATIENCE.as_secs(), value_parser = clap::value_parser!(u64).range(SECONDS))]
    guest_timeout: u64,
}

/// The least is twice the time between two signs of life.
const SECONDS: RangeInclusive<u64> = 2..=MOST_PATIENCE.as_secs();

impl Silence {
    pub fn patience(&self) -> Duration {
        Duration::from_secs(self.guest_timeout)
    }
}

/// The certificates for TCP.
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
    /// Returns the certificates for TCP; `None` if none were given.
    pub fn tls(&self) -> Option<Tls> {
        Some(Tls {
            certificate: self.tls_cert.clone()?,
            key: self.tls_key.clone()?,
            authority: self.tls_ca.clone()?,
            name: self.tls_name.clone(),
        })
    }
}
