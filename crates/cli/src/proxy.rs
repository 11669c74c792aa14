//! The proxy in a virtual machine's guest: its address, and the certificates for it.

use std::path::PathBuf;

use beeline_vm_loader::Guest;
use beeline_vm_protocol::address::Address;
use beeline_vm_protocol::tls::Tls;
use clap::Args;

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
    tls: Certificates,
}

impl Proxy {
    /// Connects to it. `tool` is the name that the guest knows this side by.
    ///
    /// # Errors
    ///
    /// Fails if the guest cannot be reached, or refuses the connection.
    pub fn connect(&self, tool: &str) -> anyhow::Result<Guest> {
        Ok(Guest::connect(&self.guest, self.tls.tls().as_ref(), tool)?)
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
