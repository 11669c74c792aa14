//! bcc compiles on this machine, for the guest's kernel: its scripts print the same as tools inside
//! the guest.

use super::*;
use crate::proxy::Proxy;
use beeline_e2e::{
    GUEST_PATIENCE, PATIENCE, Tool, beeline_wanted, find_program, until, with_kernel_headers,
    workload,
};
use std::process::Command;

/// Reads of uncached pages, in three sizes.
const WORK: &str = "for n in 1 2 3; do dd if=/dev/vda of=/dev/null bs=$((n * 4096)) count=5 skip=$((n * 1000)) iflag=direct 2>/dev/null; done";
const INSIDE: &str = "tracepoint:block:block_rq_complete { printf(\"%d %s\\n\", args->nr_sector * 512, args->rwbs); } \
     interval:ms:50 { printf(\"up\\n\"); }";

/// Debian's headers of this series belong to the guest's own kernel.
#[test]
fn bcc_scripts_see_what_tools_inside_see() {
    need!(beeline_wanted());
    let bcc = Command::new("/usr/bin/python3")
        .args(["-c", "import bcc"])
        .status();
    need!(match bcc {
        Ok(status) if status.success() => Ok(()),
        _ => Err("there is no bcc for Python (scripts/deps.sh installs bpfcc-tools)"),
    });
    need!(with_kernel_headers(Command::new("true")).map(drop));
    let guest = need!(boot("6.1"));
    let proxy = Proxy::start(&guest);
    disk(&guest, &proxy);
    printing(&guest, &proxy);
}

/// Starts a script, and waits until it is attached.
fn start(proxy: &Proxy<'_>, script: &str) -> Tool {
    let mut python = Command::new("/usr/bin/python3");
    python.arg(workload(script));
    // The guest's version selects it: the wrapper asks uname under Beeline.
    let wrapped = with_kernel_headers(python).expect("they are there");
    let unshare = find_program("unshare").unwrap_or_else(|why| panic!("{why}"));
    let mut command = proxy.command(&unshare);
    command.args(wrapped.get_args());
    let tool = Tool::start(command);
    let attached = tool
        .stdout
        .wait_for(0, GUEST_PATIENCE, |line| line == "attached");
    assert!(attached.is_some(), "{}", tool.words("is not attached"));
    tool
}

/// Requests to the guest's disk.
fn disk(guest: &Guest, proxy: &Proxy<'_>) {
    let tool = start(proxy, "blocks.py");
    let inside = guest.start(&format!("bpftrace -e '{INSIDE}'"));
    inside.wait_for_line(|line| line == "up");
    let start = tool.stdout.so_far().len();

    guest.check(WORK);
    // dd reads this past the cache: other programs' reads go through it.
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

/// Text that programs print by bpf_trace_printk, which a reader inside the guest also gets.
fn printing(guest: &Guest, proxy: &Proxy<'_>) {
    const CALLS: usize = 5;
    const LONGER: &str = "a name of 6 letters";
    let printed = |lines: &[String]| -> Vec<String> {
        let lines = lines.iter().filter(|line| line.contains("a name of "));
        lines.cloned().collect()
    };
    let inside = guest.start("cat /sys/kernel/tracing/trace_pipe");
    let tool = start(proxy, "printing.py");
    // The script opens the pipe after that, and gets everything printed from then on.
    let opened = until(GUEST_PATIENCE, || {
        guest.check("hostname guest");
        !printed(&tool.stdout.so_far()).is_empty()
    });
    assert!(opened, "{}", tool.words("prints nothing"));
    guest.check(&format!(
        "for i in $(seq {CALLS}); do hostname guest$i; done; hostname guest"
    ));
    let all = |lines: &[String]| {
        let longer = lines.iter().filter(|line| line.ends_with(LONGER));
        longer.count() >= CALLS
            && printed(lines)
                .last()
                .is_some_and(|line| !line.ends_with(LONGER))
    };
    let came = until(PATIENCE, || all(&tool.stdout.so_far()));
    assert!(came, "{}", tool.words("lost lines"));
    let came = until(GUEST_PATIENCE, || all(&inside.stdout()));
    assert!(came, "{:?}", inside.stdout());
    let ended = tool.interrupt();
    let seen = printed(&inside.stdout());
    inside.signal("TERM");
    inside.wait();
    let seen: Vec<_> = seen.iter().filter_map(|line| as_script(line)).collect();
    let here = printed(&ended.stdout);
    assert!(
        seen.ends_with(&here),
        "by beeline {here:#?}, inside {seen:#?}"
    );
}

/// Turns "hostname-77  [000] d..31  12.345678: bpf_trace_printk: TEXT", as the script prints it,
/// into "77 0 TEXT".
fn as_script(line: &str) -> Option<String> {
    let (place, text) = line.split_once(": bpf_trace_printk: ")?;
    let (thread, rest) = place.split_once(" [")?;
    let (_, thread) = thread.trim().rsplit_once('-')?;
    let cpu: u32 = rest.split_once(']')?.0.parse().ok()?;
    Some(format!("{thread} {cpu} {text}"))
}
