//! bcc compiles on this machine, for the guest's kernel: a script sees the requests to the guest's disk that a tool inside sees.

use super::*;
use crate::proxy::Proxy;
use beeline_e2e::{
    GUEST_PATIENCE, PATIENCE, Tool, beeline_wanted, find_program, until, with_kernel_headers,
    workload,
};
use std::process::Command;

/// Reads of pages that nobody has read before, of three sizes.
const WORK: &str = "for n in 1 2 3; do dd if=/dev/vda of=/dev/null bs=$((n * 4096)) count=5 skip=$((n * 1000)) iflag=direct 2>/dev/null; done";
const INSIDE: &str = "tracepoint:block:block_rq_complete { printf(\"%d %s\\n\", args->nr_sector * 512, args->rwbs); } \
     interval:ms:50 { printf(\"up\\n\"); }";

/// Debian's headers of this series are of the guest's own kernel.
#[test]
fn a_bcc_script_sees_the_guests_disk() {
    need!(beeline_wanted());
    let bcc = Command::new("/usr/bin/python3")
        .args(["-c", "import bcc"])
        .status();
    need!(match bcc {
        Ok(status) if status.success() => Ok(()),
        _ => Err("there is no bcc for Python (scripts/deps.sh installs bpfcc-tools)"),
    });
    let mut python = Command::new("/usr/bin/python3");
    python.arg(workload("blocks.py"));
    // Chosen by the guest's version: the wrapper asks uname under Beeline.
    let wrapped = need!(with_kernel_headers(python));
    let guest = need!(boot("6.1"));
    let proxy = Proxy::start(&guest);
    let mut command = proxy.command(&need!(find_program("unshare")));
    command.args(wrapped.get_args());
    let tool = Tool::start(command);
    let attached = tool
        .stdout
        .wait_for(0, GUEST_PATIENCE, |line| line == "attached");
    assert!(attached.is_some(), "{}", tool.words("is not attached"));
    let inside = guest.start(&format!("bpftrace -e '{INSIDE}'"));
    inside.wait_for_line(|line| line == "up");
    let start = tool.stdout.so_far().len();

    guest.check(WORK);
    // What dd reads past the cache: other programs' reads go through it.
    let requests = |lines: &[String]| -> Vec<String> {
        let lines = lines.iter().filter(|line| line.ends_with(" RS"));
        lines.cloned().collect()
    };
    until(PATIENCE, || {
        requests(&tool.stdout.so_far()[start..]).len() >= 15
    });
    let seen = inside.interrupt();
    let seen: Vec<String> = seen.stdout.lines().map(str::to_owned).collect();
    let ended = tool.interrupt();
    let inside = requests(&seen);
    for bytes in [4096, 8192, 12288] {
        let line = format!("{bytes} RS");
        let count = inside.iter().filter(|found| **found == line).count();
        assert_eq!(count, 5, "{line}: {inside:?}");
    }
    assert_eq!(
        requests(&ended.stdout[start..]),
        inside,
        "by beeline (left) and inside (right): {ended:?}"
    );
    let last = ended.stdout.last().expect("it says how many");
    let total: usize = last
        .trim_start_matches("latency ")
        .parse()
        .expect("a number");
    assert!(total >= inside.len(), "{ended:?}");
}
