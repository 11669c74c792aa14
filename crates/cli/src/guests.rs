//! `beeline guests`: lists the virtual machines of this host, and which of them serve their kernel.
//!
//! Nothing is changed: command lines and lists of sockets are read, and each proxy that is found is
//! greeted, which its audit log notes. Nothing but sockets is connected to. Every wait has an end, so
//! that a stopped machine or a stuck socket costs two seconds and is reported.

mod command_line;
mod libvirt;
mod machines;
mod probe;
mod sockets;

use std::process::ExitCode;
use std::time::Duration;

use beeline_vm_protocol::text::{printable, printable_line};
use serde_json::{Value, json};

use crate::say;
use machines::{Machine, NotAsked};
use probe::{MOST, MOST_OF_ONE, Probed, State};
use sockets::{Sockets, Use};

/// The time for one proxy to answer, from the connection on. All are asked at once.
const PATIENCE: Duration = Duration::from_secs(2);

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
        let list = listed.iter().map(|one| one.as_value(&sockets)).collect();
        println!("{}", as_text(&list)?);
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

/// Returns JSON for a terminal: words of others are in it.
fn as_text(list: &Value) -> serde_json::Result<String> {
    let text = serde_json::to_string_pretty(list)?;
    Ok(printable(&text).into_owned())
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
        State::NotAsked(why) => format!("not asked: {}", reason(*why)),
    }
}

fn reason(why: NotAsked) -> String {
    match why {
        NotAsked::Foreign => "the socket belongs to another user than the process that names it",
        NotAsked::SeveralUsers => "the process that names it acts for several users",
        NotAsked::Stopped => "the machine's process is stopped",
        NotAsked::Missing => "nothing is there",
        NotAsked::NoSocket => "it is no socket",
        NotAsked::Unknown => "it cannot be told if the port is free",
        NotAsked::Incomplete => "the search was not complete",
        NotAsked::TooMany => return format!("{MOST_OF_ONE} of a process are, and {MOST} in all"),
    }
    .into()
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
        State::NotAsked(why) => (word(*why), None),
    };
    value["state"] = state.into();
    if let Some(why) = why {
        value["why"] = why.as_str().into();
    }
    value
}

/// Returns the state of a place that was not asked, for scripts.
fn word(why: NotAsked) -> &'static str {
    match why {
        NotAsked::Foreign => "foreign",
        NotAsked::SeveralUsers => "several users",
        NotAsked::Stopped => "stopped",
        NotAsked::Missing => "missing",
        NotAsked::NoSocket => "no socket",
        NotAsked::Unknown => "unknown",
        NotAsked::Incomplete => "search incomplete",
        NotAsked::TooMany => "too many",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_does_not_control_a_terminal() {
        let name = "a\u{1b}[31m\u{9b}A\u{202e}\n\"b";
        let list = json!([{ "name": name }]);
        let text = as_text(&list).unwrap();
        assert!(text.contains("\\u009bA\\u202e"), "{text}");
        assert!(
            text.chars()
                .all(|letter| letter == '\n' || letter.is_ascii_graphic() || letter == ' ')
        );
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), list);
    }
}
