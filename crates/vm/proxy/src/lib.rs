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
mod facts;
mod files;
mod fs_roots;
pub mod fuzz_api;
mod glob;
mod handles;
mod holder;
mod info;
mod iterators;
mod lookup_channel;
mod ownership;
mod pages;
mod perf;
pub mod policy;
mod queues;
mod refusal;
mod rings;
mod session;
mod shared;
mod sys;
mod watch;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Context;
use beeline_vm_protocol::address::Address;
use beeline_vm_protocol::listen::{Listener, Waiting};
use beeline_vm_protocol::tls::Tls;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;

use crate::audit::Audit;
use crate::facts::Facts;
use crate::holder::Holder;
use crate::lookup_channel::LookupChannels;
use crate::policy::Policy;
use crate::session::Host;

/// The most connections at once: each has some threads.
const CONNECTIONS: usize = 64 + lookup_channel::MOST_OF_ALL;

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
    /// The owner's policy (TOML); without it hosts may do everything, but not with objects of
    /// others
    #[arg(long, value_name = "FILE")]
    pub policy: Option<PathBuf>,
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
        Some(path) => Policy::read(path)?,
        None => Policy::default(),
    };
    let audit = Audit::new(options.audit.as_deref()).context("the audit log cannot be opened")?;
    let host = Arc::new(Host {
        policy,
        audit,
        facts: Facts::new().context("the kernel does not say how many CPUs it has")?,
        taken: Arc::default(),
        holder,
        digests: Arc::default(),
        lookup_channels: LookupChannels::default(),
    });
    host.digests.prepare();
    raise_limits();
    let tls = options.tls();
    let mut listeners = Vec::new();
    for address in &options.listen {
        listeners.push(Listener::new(address, tls.as_ref())?);
    }
    let present = Arc::new(AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for listener in &listeners {
            scope.spawn(|| listen(listener, &host, &present, say));
            say(&format!("listening to {}", listener.address()));
        }
    });
    Ok(())
}

fn listen(listener: &Listener, host: &Arc<Host>, present: &Arc<AtomicUsize>, say: fn(&str)) {
    // A name for people that look at the threads.
    let _ = rustix::thread::set_name(c"beeline-listen");
    loop {
        match listener.wait() {
            Ok(waiting) => welcome(waiting, host, present),
            Err(error) => {
                // Too many descriptors, or a device that is gone for the moment.
                say(&error.to_string());
                std::thread::sleep(Duration::from_millis(200));
            }
        }
    }
}

/// One of [`CONNECTIONS`], given back when it is dropped.
struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

fn welcome(waiting: Waiting, host: &Arc<Host>, present: &Arc<AtomicUsize>) {
    let peer = waiting.peer().to_owned();
    let others = present.fetch_add(1, Ordering::AcqRel);
    let place = Place(present.clone());
    let refused = |why: &str| host.audit.line(&peer, "", "refused", json!({ "why": why }));
    if others >= CONNECTIONS {
        refused("there are too many connections");
        let why = format!(
            "the proxy in the guest serves {CONNECTIONS} connections already, which is the most; end other sessions with this guest, \
             then try again"
        );
        return waiting.refuse(libc::EMFILE, &why);
    }
    let (host, name) = (host.clone(), peer.clone());
    let serve = move || {
        let _place = place;
        let served = waiting
            .accept()
            .and_then(|channel| session::serve(channel, host.clone()));
        if let Err(error) = served {
            let why = json!({ "why": error.to_string() });
            host.audit.line(&name, "", "refused", why);
        }
    };
    let thread = std::thread::Builder::new().name("beeline-host".into());
    if thread.spawn(serve).is_err() {
        refused("there are too many threads");
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
