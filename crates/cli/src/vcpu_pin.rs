//! `beeline vcpu-pin`: pins virtual CPUs to host CPUs if threads in the guest are bound to them.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use anyhow::Context;
use beeline_vm_qmp::Monitor;
use beeline_vm_vcpu::cpus::CpuList;
use beeline_vm_vcpu::{Change, Options, Pinner, Policy, Report};
use clap::{Args, ValueEnum};

use crate::proxy::Proxy;
use crate::{ending, say};

#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    proxy: Proxy,
    /// The Unix socket of QEMU's monitor: -qmp unix:PATH,server=on,wait=off
    #[arg(long, value_name = "SOCKET")]
    qmp: PathBuf,
    /// The host's CPUs that virtual ones may be pinned to, in this order, as 2-5 or 0,2,4 [default:
    /// those that the machine may run on]
    #[arg(long, value_name = "LIST")]
    cpus: Option<CpuList>,
    /// The host CPU that guest CPU n is pinned to when a thread in the guest is bound to it
    #[arg(long, value_enum, default_value_t)]
    policy: PolicyName,
    /// Neighbours in the guest on threads of one core: --policy remap
    #[arg(long, conflicts_with = "policy")]
    map_smt: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum PolicyName {
    /// The n-th CPU of the list
    #[default]
    Mirror,
    /// The same, with the list in such an order that guest CPUs 2n and 2n+1 are threads of one core
    Remap,
    /// None: only report the guest's wishes
    Deny,
}

impl Arguments {
    fn policy(&self) -> Policy {
        match self.policy {
            _ if self.map_smt => Policy::Remap,
            PolicyName::Mirror => Policy::Mirror,
            PolicyName::Remap => Policy::Remap,
            PolicyName::Deny => Policy::Deny,
        }
    }
}

/// Pins virtual CPUs until the user ends it.
///
/// # Errors
///
/// Fails if the monitor or the guest cannot be reached, a thread cannot be pinned, or the
/// connection to the guest is lost.
pub fn pin(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    ending::prepare().context("starting a thread")?;
    // Kept only as long as needed: QEMU serves one client of a monitor at a time.
    let vcpus = Monitor::connect(&arguments.qmp)?.vcpus()?;
    let guest = arguments.proxy.connect("vcpu-pin")?;
    let interrupter = guest.interrupter();
    let over = Arc::new(AtomicBool::new(false));
    let ends = Arc::clone(&over);
    ending::at_end(move || {
        ends.store(true, Relaxed);
        interrupter.interrupt();
    });
    let options = Options {
        policy: arguments.policy(),
        cpus: arguments.cpus.clone(),
    };
    let mut pinner = Pinner::start(guest, &vcpus, &options)?;
    let numbers = vcpus.iter().map(|vcpu| vcpu.index);
    say(&plan(&pinner, numbers));
    while !over.load(Relaxed) {
        for report in pinner.step()? {
            say(&words(&report));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn plan(pinner: &Pinner, vcpus: impl Iterator<Item = u32>) -> String {
    if pinner.plan().policy() == Policy::Deny {
        return "watching, and pinning nothing".into();
    }
    let places = vcpus.map(|vcpu| match pinner.plan().host(vcpu) {
        Some(host) => format!("{vcpu} to {host}"),
        None => format!("{vcpu} to none"),
    });
    let places: Vec<String> = places.collect();
    format!("ready to pin virtual CPU {}", places.join(", "))
}

fn words(report: &Report) -> String {
    match report {
        Report::Wish { thread, vcpus } => {
            let vcpus = CpuList(vcpus.clone());
            format!("thread {thread} of the guest is bound to its CPU {vcpus}")
        }
        Report::Free { thread } => format!("thread {thread} of the guest is bound no more"),
        Report::Done(Change::Pinned { vcpu, thread, host }) => {
            format!("virtual CPU {vcpu} (thread {thread}) is pinned to CPU {host}")
        }
        Report::Done(Change::Released { vcpu, thread }) => {
            format!("virtual CPU {vcpu} (thread {thread}) is free")
        }
        Report::Failed(error) => error.to_string(),
    }
}
