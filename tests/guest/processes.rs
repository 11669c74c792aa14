//! The processes that a tool on this machine reads of are the guest's, as far as the policy lets it.

use super::*;
use crate::proxy::{PORT, Proxy};
use beeline_e2e::{Ended, Tool, beeline_wanted, find_program};
use std::path::Path;

/// Reads process 1, which has another name here, and what the shell itself is.
const SCRIPT: &str = "cat /proc/1/comm; tr '\\0' ' ' </proc/1/cmdline; echo; head -n 1 /proc/1/maps; \
    ls /proc/1/mem /proc/1/root/etc/passwd /proc/1/environ 2>&1 | grep -c 'No such file'; \
    cat /proc/self/comm /proc/$$/comm";

fn run(proxy: &Proxy, shell: &Path) -> Ended {
    let mut command = proxy.command(shell);
    command.args(["-c", SCRIPT]);
    Tool::start(command).wait()
}

#[test]
fn the_guests_processes_have_their_own_names() {
    need!(beeline_wanted());
    let guest = need!(shared());
    let shell = need!(find_program("sh"));
    let inside = "cat /proc/1/comm; tr '\\0' ' ' </proc/1/cmdline; echo; head -n 1 /proc/1/maps";
    let inside = guest.check(inside);
    // The host's file of that path is another.
    let inside = inside.replace(" /bin/", " /proc/1/root/bin/");
    assert!(inside.contains("/proc/1/root/"), "{inside}");
    let policies = ["everything", "observe", "observe-and-uprobes"];
    for policy in policies {
        let options = ["--policy".to_owned(), policy.to_owned()];
        let address = format!("uds:{}:{PORT}", guest.vsock().display());
        let proxy = Proxy::listen(&guest, "vsock:any:8790", address, &options);
        let ended = run(&proxy, &shell);
        assert_eq!(ended.stdout.len(), 6, "{policy}: {ended:?}");
        let (guests, own) = ended.stdout.split_at(3);
        assert_eq!(
            guests,
            inside.lines().collect::<Vec<_>>(),
            "{policy}: {ended:?}"
        );
        assert_eq!(own, ["3", "cat", "sh"], "{policy}: {ended:?}");
    }
    // A policy of the owner's own that does not mention them.
    guest.put(
        b"[programs]\ntypes = [\"kprobe\", \"socket_filter\"]\n",
        "/tmp/narrow.toml",
    );
    let options = ["--policy", "/tmp/narrow.toml"].map(str::to_owned);
    let address = format!("uds:{}:{PORT}", guest.vsock().display());
    let proxy = Proxy::listen(&guest, "vsock:any:8790", address, &options);
    let ended = run(&proxy, &shell);
    assert_eq!(
        ended.stdout.last().map(String::as_str),
        Some("sh"),
        "{ended:?}"
    );
    let said = ended.stderr.join("\n");
    assert!(said.contains("processes.visible"), "{said}");
    assert!(
        !ended.stdout.iter().any(|line| line.contains("r--p")),
        "{ended:?}"
    );
}
