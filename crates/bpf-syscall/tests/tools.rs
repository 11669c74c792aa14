//! Debian's own tools under the supervisor, up to the attachment of their programs: every call gets
//! the answer that they expect, and they take no detour to the kernel.

mod common;

use std::path::Path;
use std::process::ExitStatus;
use std::sync::Arc;

use beeline_supervisor::Options;
use common::fake::Fake;
use common::{command, run};

/// Runs a tool, sends it SIGINT after `seconds`, and returns the backend's requests; `None` if it
/// is not installed.
fn attach(tool: &str, seconds: &str, arguments: &[&str]) -> Option<(ExitStatus, Arc<Fake>)> {
    if !Path::new(tool).exists() {
        eprintln!("skipped: {tool} is not installed");
        return None;
    }
    let mut words = vec!["timeout", "--foreground", "-s", "INT", seconds, tool];
    words.extend(arguments);
    let fake = Arc::new(Fake::default());
    let status = run(&command(&words), &Options::default(), fake.clone()).unwrap();
    assert_eq!(fake.alive(), 0, "not released: {:#?}", fake.log());
    Some((status, fake))
}

/// Returns the attachments of entry and of return probes.
fn probes(fake: &Fake) -> (usize, usize) {
    let of = |retprobe: &str| {
        fake.log()
            .iter()
            .filter(|line| line.starts_with("attach ") && line.contains(retprobe))
            .count()
    };
    (of("retprobe: false"), of("retprobe: true"))
}

const LIBC: &str = "/lib/x86_64-linux-gnu/libc.so.6";

#[test]
fn bpftrace_begins_counts_and_ends() {
    let program = format!(
        "BEGIN {{ printf(\"x\\n\"); }} uprobe:{LIBC}:malloc {{ @ = count(); }} uretprobe:{LIBC}:malloc {{ @s[ustack] = count(); }} \
         interval:s:1 {{ printf(\"tick\\n\"); }}"
    );
    let Some((status, fake)) = attach("/usr/bin/bpftrace", "3", &["-e", &program]) else {
        return;
    };
    assert!(status.code().is_some(), "{status}");
    assert_eq!(probes(&fake), (1, 1), "{:#?}", fake.log());
    assert!(
        fake.log()
            .iter()
            .any(|line| line.contains("Timer { period: 1s }")),
        "{:#?}",
        fake.log()
    );
    assert!(
        fake.log()
            .iter()
            .filter(|line| line.starts_with("test_run"))
            .count()
            >= 1
    );
    assert!(fake.saw("perf_array_set"));
}

#[test]
fn funclatency_attaches_both_ends() {
    let pid = std::process::id().to_string();
    let Some((_, fake)) = attach("/usr/sbin/funclatency", "2", &["-p", &pid, "c:malloc"]) else {
        return;
    };
    assert_eq!(probes(&fake), (1, 1), "{:#?}", fake.log());
}

#[test]
fn bashreadline_attaches_one_return_probe() {
    let Some((_, fake)) = attach("/usr/sbin/bashreadline", "2", &[]) else {
        return;
    };
    assert_eq!(probes(&fake), (0, 1), "{:#?}", fake.log());
}

#[test]
fn gethostlatency_attaches_three_probes_and_three_return_probes() {
    let Some((_, fake)) = attach("/usr/sbin/gethostlatency", "2", &[]) else {
        return;
    };
    assert_eq!(probes(&fake), (3, 3), "{:#?}", fake.log());
}
