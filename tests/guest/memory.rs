//! With the guest's memory in a shared file, tools read it in place: they print the same, and keep
//! nothing of the guest's when it is lost.

use super::*;
use crate::faults::{ATTACHED, ends_soon, nothing_left};
use crate::place::{Place, Setting};
use crate::proxy::{self, Proxy};
use crate::tools::{outputs, script, tool, words};
use crate::wire::{Fault, Wire};
use beeline_e2e::Compare::Exact;
use beeline_e2e::{
    Backing, Ended, PATIENCE, Tool, beeline_wanted, histogram_total, is_alive, until,
};
use std::path::Path;

/// Beeline's message when it is to map the guest's own pages into the tool.
const SHARED: &str = "rings and arrays are read in the guest's memory";

/// Returns the number of mappings of the guest's memory in a process.
fn mappings(pid: u32, guest: &Guest) -> usize {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let file = guest.memory_file();
    let file = file.to_string_lossy();
    maps.lines().filter(|line| line.contains(&*file)).count()
}

/// Returns the process of a tool that Beeline has started.
fn child(running: &Tool) -> u32 {
    let processes = running.processes();
    let found = processes.into_iter().find(|pid| *pid != running.pid());
    found.expect("it has started a tool")
}

#[test]
fn a_script_prints_every_event_by_a_perf_ring_in_shared_memory() {
    let guest = need!(shared());
    let setting = need!(Setting::sharing(&guest));
    script(
        &setting,
        Exact,
        "uprobe:{prog}:wl_add { printf(\"%d %d %s\\n\", arg0, arg1, comm); }",
        "{prog} now >/dev/null; test $? = 7",
        &["0 0 counts", "500 1000 counts", "999 1998 counts"],
    );
}

#[test]
fn opensnoop_in_shared_memory_names_what_was_opened() {
    let guest = need!(shared());
    let setting = need!(Setting::sharing(&guest));
    tool(
        &setting,
        &["opensnoop"],
        "cat /etc/inittab /nothing/there >/dev/null 2>&1; true",
        |line| line.contains(" cat ").then(|| words(line, &[0])),
        &["cat 3 0 /etc/inittab", "cat -1 2 /nothing/there"],
    );
}

/// The histogram is a variable of the tool's program, which the tool maps, and reads when it is
/// interrupted.
#[test]
fn funclatency_in_shared_memory_counts_every_call() {
    let guest = need!(shared());
    let setting = need!(Setting::sharing(&guest));
    let command = ["funclatency", "__x64_sys_sethostname"];
    let work = "for i in $(seq 20); do hostname guest; done";
    for (place, output) in outputs(&setting, &command, work, |_| true) {
        assert_eq!(histogram_total(&output.stdout), 20, "{place}: {output:?}");
        let is_said = output.stderr.iter().any(|line| line.contains(SHARED));
        assert_eq!(is_said, place == Place::Memory, "{place}: {output:?}");
    }
}

/// Starts the small tool with a ring buffer, and waits until it has mapped the buffer in the
/// guest's memory.
fn attached(guest: &Guest, address: &str, tool: &Path) -> Tool {
    let mut command = proxy::sharing_command(address, &guest.qmp(), tool);
    command.arg("stay");
    let running = Tool::start(command);
    running.wait_for_line(|line| line == ATTACHED);
    let tool = child(&running);
    assert!(mappings(tool, guest) >= 3, "{:?}", running.stderr.so_far());
    running
}

#[test]
fn a_ring_buffer_in_shared_memory_has_every_record_in_order() {
    need!(beeline_wanted());
    let guest = need!(shared());
    let proxy = Proxy::start(&guest);
    let scratch = Scratch::new();
    let tool = scratch.build("guest_tool.c");
    let before = proxy.descriptors();
    let running = attached(&guest, proxy.address(), &tool);
    // More than the ring has room for: 64 KiB, with 16 bytes for each.
    const RECORDS: usize = 5000;
    guest.check(&format!(
        "i=0; while [ $i -lt {RECORDS} ]; do hostname guest; i=$((i + 1)); done"
    ));
    let last = format!("record {RECORDS}");
    running.wait_for_line(|line| line == last);
    let lines = running.stdout.so_far();
    let records = lines.iter().filter(|line| line.starts_with("record "));
    for (number, record) in records.enumerate() {
        assert_eq!(*record, format!("record {}", number + 1));
    }
    let ended = running.interrupt();
    assert!(ended.stderr.iter().any(|line| line.contains(SHARED)));
    nothing_left(&guest, &proxy, before, "an interrupted tool");
}

/// Nothing of the guest's is mapped soon after the line is cut; the tool is told to end, and its
/// reads do not kill it.
#[test]
fn a_tool_that_loses_its_guest_loses_the_guests_memory() {
    need!(beeline_wanted());
    let guest = need!(shared());
    let proxy = Proxy::start(&guest);
    let scratch = Scratch::new();
    let tool = scratch.build("guest_tool.c");
    let before = proxy.descriptors();
    let whole = Wire::new(Fault::None, proxy.connect());
    let running = attached(&guest, &whole.address(), &tool);
    let all = whole.carried();
    running.interrupt();
    for (what, fault) in [
        ("a cut line", Fault::Cut(all + 200)),
        ("a silent line", Fault::Silence(all + 200)),
    ] {
        let wire = Wire::new(fault, proxy.connect());
        let running = attached(&guest, &wire.address(), &tool);
        let process = child(&running);
        // Stopped, so that it does not end by itself before the check.
        signal(process, libc::SIGSTOP);
        let has_left = until(PATIENCE, || mappings(process, &guest) == 0);
        signal(process, libc::SIGCONT);
        assert!(has_left, "{what}: the tool keeps the guest's memory");
        ends_without_a_fault(running, what);
        nothing_left(&guest, &proxy, before, what);
    }
}

/// A tool does not read memory that is not there either.
fn ends_without_a_fault(running: Tool, what: &str) {
    let ended = ends_soon(running, what);
    let is_fault = |line: &String| line == "SIGSEGV" || line == "SIGBUS";
    assert!(!ended.stderr.iter().any(is_fault), "{what}: {ended:?}");
}

/// QEMU reports a reset before the guest's next kernel has put anything where the ring was.
#[test]
fn a_guest_or_a_proxy_that_dies_ends_a_tool_in_its_memory() {
    need!(beeline_wanted());
    let guest = need!(boot("6.12"));
    let scratch = Scratch::new();
    let tool = scratch.build("guest_tool.c");

    let proxy = Proxy::start(&guest);
    let running = attached(&guest, proxy.address(), &tool);
    proxy.kill();
    ends_without_a_fault(running, "a killed proxy");

    let proxy = Proxy::start(&guest);
    let running = attached(&guest, proxy.address(), &tool);
    let process = child(&running);
    signal(process, libc::SIGSTOP);
    guest.reset();
    let has_left = until(PATIENCE, || mappings(process, &guest) == 0);
    signal(process, libc::SIGCONT);
    assert!(has_left, "a reset: the tool keeps the guest's memory");
    let ended = ends_soon(running, "a reset guest");
    let is_told = |line: &String| line.contains("QEMU says RESET");
    assert!(ended.stderr.iter().any(is_told), "{ended:?}");
    proxy.forget();

    // The vsock device here does not survive a reboot with an open connection.
    drop(guest);
    let guest = need!(boot("6.12"));
    let proxy = Proxy::start(&guest);
    let running = attached(&guest, proxy.address(), &tool);
    guest.kill();
    ends_without_a_fault(running, "a killed guest");
    proxy.forget();
}

/// Starts the small tool with these words, and waits until it prints `said`.
fn tool_that_says(mut command: std::process::Command, words: &[&str], said: &str) -> Tool {
    command.args(words);
    let running = Tool::start(command);
    running.wait_for_line(|line| line == said);
    running
}

/// Waits until the proxy has this many descriptors, while the tool runs on.
fn comes_to(proxy: &Proxy, descriptors: u32, running: &Tool, what: &str) {
    let comes = until(PATIENCE, || proxy.descriptors() == descriptors);
    let now = proxy.descriptors();
    assert!(comes, "{what}: {now} descriptors in place of {descriptors}");
    assert!(is_alive(running.pid()), "{what}");
}

/// Returns the number of descriptors that the proxy has for a tool that holds nothing.
fn for_an_idle_tool(guest: &Guest, proxy: &Proxy, command: std::process::Command) -> u32 {
    let before = proxy.descriptors();
    let idle = tool_that_says(command, &["turns", "0"], "turned");
    let descriptors = proxy.descriptors();
    idle.interrupt();
    nothing_left(guest, proxy, before, "an idle tool");
    descriptors
}

/// Holds however long the tool runs.
#[test]
fn memory_that_a_tool_unmaps_and_closes_is_returned() {
    const TURNS: &str = "60";
    need!(beeline_wanted());
    let guest = need!(shared());
    let proxy = Proxy::start(&guest);
    let scratch = Scratch::new();
    let tool = scratch.build("guest_tool.c");
    let before = proxy.descriptors();
    for shares in [false, true] {
        let command = || match shares {
            true => proxy.sharing_command(&tool),
            false => proxy.command(&tool),
        };
        let descriptors = for_an_idle_tool(&guest, &proxy, command());
        let running = tool_that_says(command(), &["turns", TURNS], "turned");
        comes_to(&proxy, descriptors, &running, &format!("shared {shares}"));
        running.interrupt();
        nothing_left(&guest, &proxy, before, "an interrupted tool");
    }
}

/// Returns the tool's process that has the guest's memory mapped.
fn holder_of_memory(running: &Tool, guest: &Guest) -> u32 {
    let processes = running.processes().into_iter();
    // Beeline itself looks at positions.
    let mut processes = processes.filter(|pid| *pid != running.pid());
    let found = processes.find(|pid| mappings(*pid, guest) > 0);
    found.unwrap_or_else(|| panic!("nobody has: {:?}", running.stderr.so_far()))
}

#[test]
fn memory_that_a_child_has_mapped_is_kept() {
    const TURNS: usize = 3;
    need!(beeline_wanted());
    let guest = need!(shared());
    let proxy = Proxy::start(&guest);
    let scratch = Scratch::new();
    let tool = scratch.build("guest_tool.c");
    let descriptors = for_an_idle_tool(&guest, &proxy, proxy.sharing_command(&tool));
    let running = tool_that_says(proxy.sharing_command(&tool), &["kept"], "kept");
    let child = holder_of_memory(&running, &guest);
    let processes = running.processes().into_iter();
    let parent = processes.filter(|pid| ![running.pid(), child].contains(pid));
    let parent: Vec<u32> = parent.collect();
    // Others come and go meanwhile, so it has been looked at as often.
    for turn in 1..=TURNS {
        signal(parent[0], libc::SIGUSR1);
        let said = || {
            running
                .stdout
                .so_far()
                .iter()
                .filter(|line| *line == "let go")
                .count()
        };
        assert!(
            until(PATIENCE, || said() == turn),
            "{:?}",
            running.stderr.so_far()
        );
        comes_to(&proxy, descriptors + 1, &running, "a child has it");
    }
    signal(child, libc::SIGKILL);
    comes_to(&proxy, descriptors, &running, "nobody has it");
    running.interrupt();
}

#[test]
fn a_child_whose_parent_has_ended_loses_the_guests_memory_too() {
    need!(beeline_wanted());
    let guest = need!(shared());
    let proxy = Proxy::start(&guest);
    let scratch = Scratch::new();
    let tool = scratch.build("guest_tool.c");
    let before = proxy.descriptors();
    let whole = Wire::new(Fault::None, proxy.connect());
    let start = |address: &str| {
        let command = proxy::sharing_command(address, &guest.qmp(), &tool);
        tool_that_says(command, &["kept"], "kept")
    };
    let running = start(&whole.address());
    let all = whole.carried();
    running.interrupt();
    let wire = Wire::new(Fault::Cut(all + 200), proxy.connect());
    let running = start(&wire.address());
    let child = holder_of_memory(&running, &guest);
    let has_left = until(PATIENCE, || mappings(child, &guest) == 0);
    assert!(has_left, "the child keeps the guest's memory");
    assert!(is_alive(child), "it is not for its end that it has none");
    signal(child, libc::SIGKILL);
    ends_soon(running, "a cut line");
    nothing_left(&guest, &proxy, before, "a cut line");
}

/// Returns the file offsets, in bytes, of a process's mappings of files below a path.
fn offsets(pid: u32, file: &Path) -> Vec<u64> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let file = file.to_string_lossy();
    let mapped = maps.lines().filter(|line| line.ends_with(&*file));
    let offset = |line: &str| u64::from_str_radix(line.split(' ').nth(2)?, 16).ok();
    mapped.filter_map(offset).collect()
}

/// Runs the small tool while a guest makes records, and looks at its process when it has all of
/// them.
fn records_of(guest: &Guest, mut command: std::process::Command, look: impl FnOnce(u32)) -> Ended {
    const RECORDS: usize = 50;
    command.arg("stay");
    let running = Tool::start(command);
    running.wait_for_line(|line| line == ATTACHED);
    guest.check(&format!(
        "for i in $(seq {RECORDS}); do hostname guest; done"
    ));
    let last = format!("record {RECORDS}");
    running.wait_for_line(|line| line == last);
    look(child(&running));
    running.interrupt()
}

/// A tool that reads in place gets the same as one that is sent its data; `look` gets the process
/// of the first.
fn same_in_place(guest: &Guest, look: impl FnOnce(u32)) {
    let proxy = Proxy::start(guest);
    let scratch = Scratch::new();
    let tool = scratch.build("guest_tool.c");
    let sent = records_of(guest, proxy.command(&tool), |_| ());
    let read = records_of(guest, proxy.sharing_command(&tool), look);
    assert_eq!(read.stdout, sent.stdout);
    let is_said = |line: &String| line.contains(SHARED);
    assert!(read.stderr.iter().any(is_said), "{read:?}");
    assert!(!sent.stderr.iter().any(is_said), "{sent:?}");
}

/// A kernel uses the memory above the gap for devices first.
#[test]
fn a_ring_above_the_gap_for_devices_is_read_in_place() {
    /// The gap of q35 with this much memory: at 2 GiB, so the rest of the file is at 4 GiB for the
    /// guest.
    const GAP: u64 = 2 << 30;
    need!(beeline_wanted());
    let guest = need!(boot_with(Options {
        memory: 5 << 10,
        ..Options::default()
    }));
    same_in_place(&guest, |tool| {
        let offsets = offsets(tool, &guest.memory_file());
        let above = offsets.iter().filter(|offset| **offset >= GAP);
        assert!(above.count() > 0, "none lies there: {offsets:x?}");
    });
}

#[test]
fn a_ring_in_a_second_nodes_memory_is_read_in_place() {
    need!(beeline_wanted());
    let guest = need!(boot_with(Options {
        memory: 512,
        backing: Backing::Nodes,
        ..Options::default()
    }));
    same_in_place(&guest, |tool| {
        let second = offsets(tool, &guest.second_memory_file());
        assert!(second.len() >= 3, "{second:x?}");
    });
}

/// Allows programs this many huge pages for as long as the value lives. Nothing is reserved.
struct HugePages {
    before: String,
}

impl HugePages {
    const LIMIT: &str = "/proc/sys/vm/nr_overcommit_hugepages";

    fn allow(count: u32) -> Result<HugePages, String> {
        let failed = |error| format!("no huge pages here: {}: {error}", HugePages::LIMIT);
        let before = std::fs::read_to_string(HugePages::LIMIT).map_err(failed)?;
        let allowed: u32 = before.trim().parse().unwrap_or(0);
        std::fs::write(HugePages::LIMIT, (allowed + count).to_string()).map_err(failed)?;
        Ok(HugePages { before })
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        let _ = std::fs::write(HugePages::LIMIT, &self.before);
    }
}

/// Part of a huge page cannot be mapped.
#[test]
fn a_ring_in_huge_pages_is_sent() {
    const MEMORY: u32 = 256;
    need!(beeline_wanted());
    // Each is 2 MiB.
    let _allowed = need!(HugePages::allow(MEMORY / 2));
    let guest = need!(boot_with(Options {
        memory: MEMORY,
        backing: Backing::HugePages,
        ..Options::default()
    }));
    let proxy = Proxy::start(&guest);
    let scratch = Scratch::new();
    let tool = scratch.build("guest_tool.c");
    let ended = records_of(&guest, proxy.sharing_command(&tool), |_| ());
    let records = ended
        .stdout
        .iter()
        .filter(|line| line.starts_with("record "));
    for (number, record) in records.enumerate() {
        assert_eq!(*record, format!("record {}", number + 1));
    }
    let is_said = |line: &String| line.contains("huge pages") && line.contains("are sent instead");
    assert!(ended.stderr.iter().any(is_said), "{ended:?}");
    assert!(!ended.stderr.iter().any(|line| line.contains(SHARED)));
}
