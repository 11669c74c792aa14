//! `beeline guests` finds the guest, and tells what answers there.

use super::*;
use crate::proxy::Proxy;
use beeline_e2e::{Ended, PATIENCE, Tool, beeline, beeline_wanted, until};
use serde_json::Value;
use std::process::Command;

fn ask(words: &[&str]) -> Ended {
    let mut command = Command::new(beeline());
    command.arg("guests").args(words);
    let ended = Tool::start(command).wait();
    assert!(ended.status.success(), "{ended:?}");
    ended
}

/// A process that stands still until this is dropped.
struct Still(u32);

impl Still {
    fn new(pid: u32) -> Self {
        signal(pid, libc::SIGSTOP);
        let still = Self(pid);
        let is_still = until(PATIENCE, || {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
            status.is_ok_and(|status| status.contains("State:\tT"))
        });
        assert!(is_still, "process {pid} does not stop");
        still
    }
}

impl Drop for Still {
    fn drop(&mut self) {
        signal(self.0, libc::SIGCONT);
    }
}

/// Returns what is listed of this guest's machine.
fn listed(guest: &Guest) -> Value {
    let ended = ask(&["--json"]);
    let list: Value = serde_json::from_str(&ended.stdout.join("\n")).expect("a list in JSON");
    let mut machines = list.as_array().expect("a list").iter();
    let found = machines.find(|machine| machine["pid"] == guest.pid());
    found.unwrap_or_else(|| panic!("{list}")).clone()
}

/// Returns what is said of an address that begins so.
fn state_of(machine: &Value, kind: &str) -> Value {
    let mut places = machine["guests"].as_array().expect("a list").iter();
    let is_it = |place: &&Value| {
        place["address"]
            .as_str()
            .is_some_and(|it| it.starts_with(kind))
    };
    places
        .find(is_it)
        .unwrap_or_else(|| panic!("{machine}"))
        .clone()
}

#[test]
fn a_guest_is_found_with_what_answers_there() {
    need!(beeline_wanted());
    let guest = need!(shared());
    let nobody = listed(&guest);
    assert_eq!(nobody["monitor"], "QEMU");
    assert_eq!(
        state_of(&nobody, "uds:")["state"],
        "unreachable",
        "{nobody}"
    );
    let qmp = guest.qmp().display().to_string();
    let monitors = nobody["qmp"].as_array().expect("a list");
    let monitor = monitors
        .iter()
        .find(|monitor| monitor["path"] == qmp.as_str());
    assert_eq!(
        monitor.map(|it| &it["state"]),
        Some(&"free".into()),
        "{nobody}"
    );
    // The port of another program's is not connected to.
    let ports = nobody["guests"].as_array().expect("a list");
    assert!(
        !ports
            .iter()
            .any(|port| port["address"].to_string().contains("control"))
    );

    let options = ["--policy".to_owned(), "observe".to_owned()];
    let address = format!("uds:{}:{}", guest.vsock().display(), proxy::PORT);
    let proxy = Proxy::listen(&guest, "vsock:any:8790", address.clone(), &options);
    let serves = state_of(&listed(&guest), "uds:");
    assert_eq!(serves["address"], address.as_str());
    assert_eq!(serves["state"], "serves", "{serves}");
    assert_eq!(serves["policy"], "observe");
    assert_eq!(serves["node"], "guest");
    assert_eq!(serves["protocol"], beeline_vm_protocol::VERSION);
    // One that stands still is not asked, which its vsock would not survive.
    let stopped = Still::new(guest.pid());
    let still = state_of(&listed(&guest), "uds:");
    drop(stopped);
    assert_eq!(still["state"], "stopped", "{still}");
    let text = ask(&[]).stdout.join("\n");
    let line = format!("{address}  serves guest (Linux 6.12");
    assert!(text.contains(&line), "{text}");

    drop(proxy);
}
