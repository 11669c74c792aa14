//! The part that runs in a virtual machine, so that eBPF tools on its host can use its kernel:
//! `beeline guest`.
//!
//! It takes connections from hosts ([`beeline_vm_protocol::listen`]), and carries out the requests
//! in their messages on the guest's kernel, as far as the guest's owner allows it ([`policy`]). It
//! needs a kernel with eBPF and nothing else. It changes nothing of the guest except for what a
//! tool asks for, and gives everything back when a tool's connection ends.
//!
//! Hosts are not trusted with this process: whatever bytes come, the worst outcome is that their
//! connection is closed. See `docs/guests.md`.
//!
//! Its terms are in docs/glossary.md.

mod attach_points;
pub mod audit;
mod bpf;
mod build_id;
mod call;
mod digests;
mod elements;
mod executed;
mod facts;
mod files;
mod fs_roots;
pub mod fuzz_api;
mod glob;
mod greeting;
mod handles;
mod holder;
mod host;
mod info;
mod iterators;
mod limits;
mod lookup_channel;
mod memory;
mod ownership;
mod pages;
mod perf;
pub mod policies;
pub mod policy;
mod queues;
mod refusal;
mod rings;
mod session;
mod shared;
mod sys;
mod waiting_room;
mod watch;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use beeline_vm_protocol::address::Address;
use beeline_vm_protocol::listen::Listener;
use beeline_vm_protocol::tls::Tls;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::audit::Audit;
use crate::facts::Facts;
use crate::holder::Holder;
use crate::host::Host;
use crate::policy::Policy;
use crate::waiting_room::WaitingRoom;

/// The options of the proxy.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// An address that hosts connect to (may be repeated): vsock:any[:PORT], unix:PATH,
    /// tcp:ADDRESS:PORT, serial:DEVICE
    #[arg(long, value_name = "ADDRESS", default_value = "vsock:any:8790")]
    #[allow(
        rustdoc::broken_intra_doc_links,
        reason = "clap prints the text as it stands"
    )]
    pub listen: Vec<Address>,
    /// The owner's policy: observe (the kernel), observe-and-uprobes (also its users' programs),
    /// everything, or a file (TOML); without it hosts may do everything, but not with objects of
    /// others
    #[arg(long, value_name = "NAME|FILE")]
    pub policy: Option<PathBuf>,
    /// Say that no policy is meant: there is no warning then
    #[arg(long, conflicts_with = "policy")]
    pub allow_all: bool,
    /// The log of what hosts do, a line of JSON for each action (the default is stderr)
    #[arg(long, value_name = "FILE")]
    pub audit: Option<PathBuf>,
    /// The guest's certificate for tcp: (PEM)
    #[arg(long, value_name = "FILE", requires_all = ["tls_key", "tls_ca"])]
    pub tls_cert: Option<PathBuf>,
    /// Its key (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// The authority that hosts' certificates have to be signed by (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_ca: Option<PathBuf>,
}

impl Options {
    fn tls(&self) -> Option<Tls> {
        Some(Tls {
            certificate: self.tls_cert.clone()?,
            key: self.tls_key.clone()?,
            authority: self.tls_ca.clone()?,
            name: None,
        })
    }
}

/// Serves hosts forever. `say` is for lines to the user. Call it while there is one thread.
///
/// # Errors
///
/// An option is of no use.
pub fn serve(options: &Options, say: fn(&str)) -> anyhow::Result<()> {
    let holder = Holder::start().context("no process can be made")?;
    let policy = match &options.policy {
        Some(name) => policies::find(name)?,
        None => Policy::default(),
    };
    let path = options.policy.as_deref();
    let is_meant = options.allow_all || path == Some(Path::new(policies::EVERYTHING));
    if policy.is_unlimited() && !is_meant {
        say(&unlimited(path));
    }
    for hindrance in policies::hindrances(&policy) {
        say(&format!(
            "the policy does not allow {hindrance}: libbpf tries the kernel's features with them, and its tools \
             will take this kernel for an old one"
        ));
    }
    let audit = Audit::new(options.audit.as_deref()).context("the audit log cannot be opened")?;
    raise_limits();
    let facts = Facts::new().context("the kernel does not say how many CPUs it has")?;
    let host = Arc::new(Host::new(policy, audit, facts, holder));
    host.digests.prepare();
    let tls = options.tls();
    let mut listeners = Vec::new();
    for address in &options.listen {
        listeners.push(Listener::new(address, tls.as_ref())?);
    }
    let room = Arc::new(WaitingRoom::default());
    std::thread::scope(|scope| {
        scope.spawn(|| room.keep_time());
        for listener in &listeners {
            scope.spawn(|| listen(listener, &host, &room, say));
            say(&format!("listening to {}", listener.address()));
        }
    });
    Ok(())
}

/// The warning of an owner whose policy has no rules, or who has none.
fn unlimited(policy: Option<&Path>) -> String {
    let why = match policy {
        Some(path) => format!("the policy {} has no rules", path.display()),
        None => "there is no --policy".to_owned(),
    };
    format!(
        "{why}: hosts may do everything that root may do here; give --policy FILE to limit them (--policy observe \
         lets them look at the kernel only), or --allow-all if that is meant"
    )
}

fn listen(listener: &Listener, host: &Arc<Host>, room: &Arc<WaitingRoom>, say: fn(&str)) {
    // A name for people that look at the threads.
    let _ = rustix::thread::set_name(c"beeline-listen");
    loop {
        match listener.wait() {
            Ok(waiting) => greeting::take(waiting, host, room),
            // That one only.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                // Too many descriptors, or a device that is gone for the moment.
                say(&error.to_string());
                std::thread::sleep(Duration::from_millis(200));
            }
        }
    }
}

/// Raises limits: each object of a tool is a descriptor, and old kernels count maps as locked
/// memory.
fn raise_limits() {
    let files = getrlimit(Resource::Nofile);
    let all = Rlimit {
        current: files.maximum,
        ..files
    };
    let unlimited = Rlimit {
        current: None,
        maximum: None,
    };
    // It also works with lower limits, for fewer objects.
    let _ = setrlimit(Resource::Nofile, all);
    let _ = setrlimit(Resource::Memlock, unlimited);
}
