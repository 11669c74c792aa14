//! `beeline guests`: lists the virtual machines of this host, and which of them serve their kernel.
//!
//! Nothing is changed: command lines and lists of sockets are read, and each proxy that is found is
//! greeted, which its audit log notes. Every wait has an end, so that a stopped machine or a stuck
//! socket costs a second and is reported.

mod command_line;
mod machines;
mod probe;
mod sockets;

use std::process::ExitCode;
use std::time::Duration;

use beeline_vm_protocol::text::printable_line;
use serde_json::{Value, json};

use crate::say;
use machines::{Machine, NotAsked};
use probe::{Probed, State};
use sockets::{Sockets, Use};

/// The time for one proxy to answer. All are asked at once.
const PATIENCE: Duration = Duration::from_secs(1);

/// Lists every virtual machine that is found.
///
/// # Errors
///
/// Fails if the processes of this machine cannot be listed, or the list cannot be written as JSON.
pub fn guests(as_json: bool) -> anyhow::Result<ExitCode> {
    let (found, is_whole) = machines::find()?;
    if !is_whole {
        say("not all processes and sockets could be looked at in time: the list may lack machines");
    }
    let sockets = Sockets::read();
    let asked: Vec<_> = found.iter().flat_map(|machine| &machine.places).collect();
    let (answers, pending) = probe::all(&asked, &sockets, PATIENCE);
    let mut answers = answers.into_iter();
    let listed: Vec<_> = found
        .iter()
        .map(|machine| {
            let probed = answers.by_ref().take(machine.places.len()).collect();
            Listed { machine, probed }
        })
        .collect();
    if as_json {
        let list: Vec<_> = listed.iter().map(|one| one.as_value(&sockets)).collect();
        println!("{}", serde_json::to_string_pretty(&list)?);
    } else if listed.is_empty() {
        println!(
            "No virtual machine is found among the processes that you may look at (QEMU, Cloud Hypervisor, Firecracker, \
             libvirt's). One that is reached by TCP has to be named: beeline run --guest tcp:ADDRESS:PORT"
        );
    } else {
        listed.iter().for_each(|one| one.print(&sockets));
    }
    pending.wait();
    Ok(ExitCode::SUCCESS)
}

/// A machine with the answers from its places.
struct Listed<'a> {
    machine: &'a Machine,
    probed: Vec<Probed>,
}

impl Listed<'_> {
    fn print(&self, sockets: &Sockets) {
        let Machine {
            pid, monitor, name, ..
        } = self.machine;
        let name = name.as_deref().unwrap_or("(no name)");
        let process = pid.map_or(String::new(), |pid| format!(", process {pid}"));
        line(&format!("{name}: {monitor}{process}"));
        for probed in &self.probed {
            line(&format!("  {}  {}", probed.address, words(&probed.state)));
        }
        if self.probed.is_empty() {
            println!(
                "  no way to a proxy is on its command line: a vsock, or a serial port that beeline's name is in"
            );
        }
        for path in &self.machine.qmp {
            let state = match sockets.use_of(path) {
                Use::Free => "",
                Use::Taken => "  in use by another client",
                Use::Unknown => "  nothing listens there for this user",
            };
            line(&format!("  --qmp {}{state}", path.display()));
        }
    }

    fn as_value(&self, sockets: &Sockets) -> Value {
        let qmp = self.machine.qmp.iter().map(|path| {
            let state = match sockets.use_of(path) {
                Use::Free => "free",
                Use::Taken => "in use",
                Use::Unknown => "unknown",
            };
            json!({ "path": path.to_string_lossy(), "state": state })
        });
        json!({
            "pid": self.machine.pid,
            "monitor": self.machine.monitor,
            "name": self.machine.name,
            "guests": self.probed.iter().map(as_value).collect::<Vec<_>>(),
            "qmp": qmp.collect::<Vec<_>>(),
        })
    }
}

/// Prints a line, in which are words of others.
fn line(text: &str) {
    println!("{}", printable_line(text));
}

fn words(state: &State) -> String {
    match state {
        State::Serves(welcome) => {
            let policy = match welcome.policy.as_str() {
                "" => "none, everything is allowed",
                name => name,
            };
            format!(
                "serves {} (Linux {}), policy {policy}, protocol {}",
                welcome.nodename, welcome.release, welcome.version
            )
        }
        State::Refuses(why) => format!("refuses: {why}"),
        State::Unreachable(why) => format!("not reached: {why}"),
        State::Silent => format!("does not answer within {} s", PATIENCE.as_secs()),
        State::Taken => "in use: another client has the line".into(),
        State::NotAsked(NotAsked::Foreign) => {
            "not asked: the socket belongs to another user than the process that names it".into()
        }
        State::NotAsked(NotAsked::Stopped) => "not asked: the machine's process is stopped".into(),
    }
}

fn as_value(probed: &Probed) -> Value {
    let mut value = json!({ "address": probed.address.to_string() });
    let (state, why) = match &probed.state {
        State::Serves(welcome) => {
            value["node"] = welcome.nodename.as_str().into();
            value["kernel"] = welcome.release.as_str().into();
            value["policy"] = welcome.policy.as_str().into();
            value["protocol"] = welcome.version.into();
            ("serves", None)
        }
        State::Refuses(why) => ("refuses", Some(why)),
        State::Unreachable(why) => ("unreachable", Some(why)),
        State::Silent => ("silent", None),
        State::Taken => ("in use", None),
        State::NotAsked(NotAsked::Foreign) => ("foreign", None),
        State::NotAsked(NotAsked::Stopped) => ("stopped", None),
    };
    value["state"] = state.into();
    if let Some(why) = why {
        value["why"] = why.as_str().into();
    }
    value
}
