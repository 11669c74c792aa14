//! Tools on this machine print the same for a guest as inside it, with the same work done there.

use super::place::{Output, Place, Setting};
use super::*;
use crate::proxy::{self, Proxy};
use crate::wire::{Fault, Wire};
use beeline_e2e::Compare::{self, Exact, Shape, Sorted};
use beeline_e2e::{
    PATIENCE, Tool, beeline_wanted, find_program, histogram_total, shape, tidy, until,
};
use std::path::{Path, PathBuf};

/// A program for uprobes, at the same path on both sides.
struct Program {
    path: String,
    _scratch: Scratch,
}

impl Program {
    fn new(guest: &Guest) -> Program {
        let scratch = Scratch::new();
        let path = scratch.build("counts.c");
        let content = std::fs::read(&path).expect("it was built");
        let path = path.display().to_string();
        guest.check(&format!("mkdir -p {}", scratch.path().display()));
        guest.put(&content, &path);
        Program {
            path,
            _scratch: scratch,
        }
    }
}

/// Runs a script in both places of a setting while a shell script works in the guest, and compares.
pub fn script(setting: &Setting<'_>, compare: Compare, script: &str, work: &str, known: &[&str]) {
    let guest = setting.guest;
    let program = Program::new(guest);
    let script = script.replace("{prog}", &program.path);
    let work = work.replace("{prog}", &program.path);
    let outputs: Vec<Vec<String>> = setting
        .places
        .iter()
        .map(|&place| {
            let tool = setting.bpftrace(place, &script);
            guest.check(&work);
            tool.settle();
            let output = tool.interrupt();
            assert_eq!(output.code, Some(0), "{place}: {script}: {output:?}");
            let lines = tidy(&output.stdout, None);
            for line in known {
                let found = lines.iter().any(|found| found.trim() == *line);
                assert!(found, "{place}: no line {line:?} from {script}: {output:?}");
            }
            match compare {
                Exact => lines,
                Sorted => {
                    let mut lines = lines;
                    lines.sort();
                    lines
                }
                Shape => shape(&lines),
            }
        })
        .collect();
    if let [inside, host] = outputs.as_slice() {
        assert_eq!(
            host, inside,
            "by beeline (left) and inside (right): {script}"
        );
    }
}

/// Each test reads `name: compare, "script", "work", ["line that must be there", ...];`.
macro_rules! scripts {
    ($($name:ident: $compare:expr, $script:expr, $work:expr, [$($known:expr),*];)*) => {$(
        #[test]
        fn $name() {
            let guest = need!(shared());
            let setting = need!(Setting::new(&guest));
            script(&setting, $compare, $script, $work, &[$($known),*]);
        }
    )*};
}

const READS: &str = "dd if=/dev/zero of=/dev/null bs=1 count=100 2>/dev/null";
const COUNTS: &str = "{prog} now >/dev/null; test $? = 7";

scripts! {
    kprobes_count_by_key: Sorted,
        "kprobe:ksys_read /comm == \"dd\" && arg2 == 1/ { @reads[comm] = count(); @bytes = sum(arg2); } \
         kretprobe:ksys_read /comm == \"dd\" && retval == 1/ { @returned[retval] = count(); }",
        READS, ["@reads[dd]: 100", "@bytes: 100", "@returned[1]: 100"];
    tracepoints_give_their_fields: Exact,
        "tracepoint:syscalls:sys_enter_openat /comm == \"cat\"/ { printf(\"%s %d\\n\", str(args->filename), args->flags); } \
         tracepoint:syscalls:sys_exit_openat /comm == \"cat\"/ { printf(\"%d\\n\", args->ret); }",
        "cat /etc/inittab /nothing/there >/dev/null 2>&1; true", ["/etc/inittab 0", "3", "/nothing/there 0", "-2"];
    fentry_programs_and_types_of_the_guests_kernel: Exact,
        "kfunc:vmlinux:vfs_open /comm == \"cat\"/ { \
         printf(\"%s %s\\n\", str(args->path->dentry->d_name.name), curtask->comm); @ = count(); } \
         kretfunc:vmlinux:vfs_open /comm == \"cat\"/ { @last = retval; }",
        "cat /etc/inittab >/dev/null", ["inittab cat", "@: 1", "@last: 0"];
    stacks_have_the_guests_symbols: Exact,
        "kprobe:ksys_read /comm == \"dd\" && arg2 == 1/ { @[kstack(4)] = count(); @in = ksym(reg(\"ip\")); }",
        READS, ["]: 100"];
    wildcards_attach_to_every_match: Sorted,
        "kprobe:ksys_rea*, kprobe:ksys_writ* /comm == \"dd\" && arg2 == 1/ { @[func] = count(); }",
        READS, ["@[ksys_read]: 100", "@[ksys_write]: 100"];
    uprobes_in_the_guest: Exact,
        "uprobe:{prog}:wl_add { @ = count(); @sum = sum(arg0); } uretprobe:{prog}:wl_square { @squares = sum(retval); \
         @hist = hist(retval); }",
        COUNTS, ["@: 1000", "@sum: 499500", "@squares: 328350"];
    every_event_is_printed: Exact,
        "uprobe:{prog}:wl_add { printf(\"%d %d %s\\n\", arg0, arg1, comm); }",
        COUNTS, ["0 0 counts", "500 1000 counts", "999 1998 counts"];
    a_thousand_keys: Sorted,
        "uprobe:{prog}:wl_add { @[arg0] = sum(arg1); @strings[str(arg0), comm] = count(); }",
        COUNTS, ["@[0]: 0", "@[999]: 1998", "@strings[, counts]: 1000"];
    intervals_and_the_language: Exact,
        "BEGIN { printf(\"first\\n\"); @n = 40; } kprobe:ksys_read /comm == \"dd\" && arg2 == 1/ { @n++; } \
         interval:ms:20 { @beats++; } END { printf(\"last %d\\n\", @n); if (@beats > 1) { printf(\"beating\\n\"); } clear(@beats); \
         clear(@n); }",
        READS, ["first", "last 140", "beating"];
    sampling_by_the_clock: Shape,
        "profile:hz:99 { @all = count(); } software:cpu-clock:1000000 { @clock = count(); }",
        "dd if=/dev/zero of=/dev/null bs=1M count=1000 2>/dev/null", [];
}

/// Runs one of the libbpf tools in both places of a setting while a shell script works in the
/// guest, waits for the `known` lines among those that `compared` makes of its lines (None leaves
/// one out), and compares all of them.
pub fn tool(
    setting: &Setting<'_>,
    command: &[&str],
    work: &str,
    compared: impl Fn(&str) -> Option<String>,
    known: &[&str],
) {
    let pick = |lines: &[String]| -> Vec<String> {
        let picked = lines.iter().filter_map(|line| compared(line));
        picked.collect()
    };
    let settled = |lines: &[String]| {
        let lines = pick(lines);
        known
            .iter()
            .all(|line| lines.iter().any(|found| found == line))
    };
    let outputs = outputs(setting, command, work, settled);
    for (place, output) in &outputs {
        assert!(
            settled(&output.stdout),
            "{place}: not all of {known:?} from {command:?}: {output:?}"
        );
    }
    if let [(_, inside), (_, host)] = outputs.as_slice() {
        assert_eq!(
            pick(&host.stdout),
            pick(&inside.stdout),
            "by beeline (left) and inside (right): {command:?}"
        );
    }
}

/// Runs a tool in both places of a setting while a shell script works in the guest, and until
/// `settled` accepts its lines so far as complete, if that happens.
pub fn outputs(
    setting: &Setting<'_>,
    command: &[&str],
    work: &str,
    settled: impl Fn(&[String]) -> bool,
) -> Vec<(Place, Output)> {
    let run = |&place: &Place| {
        let tool = setting.start(place, command);
        setting.guest.check(work);
        until(PATIENCE, || settled(&tool.stdout()));
        let output = tool.interrupt();
        assert_eq!(output.code, Some(0), "{place}: {command:?}: {output:?}");
        (place, output)
    };
    setting.places.iter().map(run).collect()
}

/// Returns the words of a line without those that differ between two runs.
pub fn words(line: &str, leave_out: &[usize]) -> String {
    let words = line.split_whitespace().enumerate();
    let kept = words.filter(|(at, _)| !leave_out.contains(at));
    kept.map(|(_, word)| word).collect::<Vec<_>>().join(" ")
}

#[test]
fn opensnoop_names_what_was_opened() {
    let guest = need!(shared());
    opensnoop(&need!(Setting::new(&guest)));
}

fn opensnoop(setting: &Setting<'_>) {
    tool(
        setting,
        &["opensnoop"],
        "cat /etc/inittab /nothing/there >/dev/null 2>&1; true",
        |line| line.contains(" cat ").then(|| words(line, &[0])),
        &["cat 3 0 /etc/inittab", "cat -1 2 /nothing/there"],
    );
}

#[test]
fn execsnoop_names_what_was_run() {
    let guest = need!(shared());
    execsnoop(&need!(Setting::new(&guest)));
}

fn execsnoop(setting: &Setting<'_>) {
    tool(
        setting,
        &["execsnoop"],
        "/bin/true needle one; /bin/sh -c '/bin/true needle two'; true",
        |line| line.contains("needle").then(|| words(line, &[1, 2])),
        &["true 0 /bin/true needle one", "true 0 /bin/true needle two"],
    );
}

#[test]
fn tcpconnect_names_the_peer() {
    let guest = need!(shared());
    tcpconnect(&need!(Setting::new(&guest)));
}

fn tcpconnect(setting: &Setting<'_>) {
    tool(
        setting,
        &["tcpconnect"],
        "/test/echo tcp 701 >/dev/null & echo=$!; sleep 0.5; echo hi | nc 127.0.0.1 701; kill $echo",
        |line| line.contains(" nc ").then(|| words(line, &[0])),
        &["nc 4 127.0.0.1 127.0.0.1 701"],
    );
}

/// Reads the disk past all caches.
const DISK: &str = "dd if=/dev/vda of=/dev/null bs=8192 count=20 skip=100 iflag=direct 2>/dev/null";

#[test]
fn biolatency_counts_every_read_of_the_disk() {
    let guest = need!(shared());
    biolatency(&need!(Setting::new(&guest)));
}

/// Histograms of times: the figures differ, but not their number.
fn biolatency(setting: &Setting<'_>) {
    for (place, output) in outputs(setting, &["biolatency"], DISK, |_| true) {
        assert_eq!(histogram_total(&output.stdout), 20, "{place}: {output:?}");
    }
}

#[test]
fn runqlat_has_a_histogram() {
    let guest = need!(shared());
    runqlat(&need!(Setting::new(&guest)));
}

fn runqlat(setting: &Setting<'_>) {
    let work = "for i in $(seq 100); do /bin/true; done";
    // It prints when it ends.
    for (place, output) in outputs(setting, &["runqlat"], work, |_| true) {
        let total = histogram_total(&output.stdout);
        assert!(total >= 100, "{place}: {total} in {output:?}");
        assert!(
            output.stdout.iter().any(|line| line.contains("usecs")),
            "{place}: {output:?}"
        );
    }
}

#[test]
fn tools_find_in_the_old_kernel_what_they_find_inside_it() {
    let guest = need!(boot("6.1"));
    let setting = need!(Setting::new(&guest));
    for (compare, text, work, known) in [
        (
            Exact,
            "kprobe:ksys_read /comm == \"dd\" && arg2 == 1/ { @reads = count(); }",
            READS,
            "@reads: 100",
        ),
        (
            Exact,
            "tracepoint:syscalls:sys_enter_openat /comm == \"cat\"/ { printf(\"%s\\n\", str(args->filename)); }",
            "cat /etc/inittab >/dev/null",
            "/etc/inittab",
        ),
        (
            Exact,
            "uprobe:{prog}:wl_add { @ = count(); @sum = sum(arg0); }",
            COUNTS,
            "@sum: 499500",
        ),
    ] {
        script(&setting, compare, text, work, &[known]);
    }
    for tool in [opensnoop, execsnoop, tcpconnect, biolatency, runqlat] {
        tool(&setting);
    }
}

/// Runs bpftrace on this machine, a tool that reads the guest's types and functions, with a folder
/// that caches contents; returns the bytes transferred.
fn kprobe_through(wire: &Wire, bpftrace: &Path, cache: &Path) -> u64 {
    let before = wire.carried();
    let mut command = proxy::command(&wire.address(), bpftrace);
    let script = "kprobe:ksys_read { @ = count(); } interval:ms:1 { exit(); }";
    command.args(["-e", script]).env("BEELINE_CACHE", cache);
    let ended = Tool::start(command).wait();
    assert!(ended.status.success(), "{ended:?}");
    wire.carried() - before
}

/// bpftrace asks for the types of the guest's kernel twice. They are most of what it reads.
#[test]
fn the_types_of_the_guests_kernel_cross_the_wire_once() {
    need!(beeline_wanted());
    let guest = need!(shared());
    let proxy = Proxy::start(&guest);
    let size = guest.check("cat /sys/kernel/btf/vmlinux | wc -c");
    let size: u64 = size.trim().parse().expect("a number");
    let wire = Wire::new(Fault::None, proxy.connect());
    let bpftrace = need!(find_program("bpftrace"));
    let carried = kprobe_through(&wire, &bpftrace, Path::new(""));
    assert!(
        (size..2 * size).contains(&carried),
        "{carried} bytes, and the types are {size}"
    );
}

/// Contents that one tool has read need not be sent to the next, unless they differ from the
/// guest's.
#[test]
fn large_contents_are_kept_for_the_next_tool() {
    need!(beeline_wanted());
    let guest = need!(shared());
    let proxy = Proxy::start(&guest);
    let size = guest.check("cat /sys/kernel/btf/vmlinux | wc -c");
    let size: u64 = size.trim().parse().expect("a number");
    let functions = guest.check("cat /sys/kernel/tracing/available_filter_functions");
    let wire = Wire::new(Fault::None, proxy.connect());
    let bpftrace = need!(find_program("bpftrace"));
    let cache = Scratch::new();
    let start = || kprobe_through(&wire, &bpftrace, cache.path());
    let kept = || -> Vec<PathBuf> {
        let files = std::fs::read_dir(cache.path().join("guests")).expect("contents are kept");
        files.map(|file| file.expect("a file").path()).collect()
    };
    let is_intact = |file: &PathBuf| {
        let content = std::fs::read(file).expect("a content");
        content.len() as u64 == size || content == functions.as_bytes()
    };
    let first = start();
    assert!(first > size, "{first} bytes");
    assert!(kept().len() == 2 && kept().iter().all(is_intact));
    // The proxy computes sums when it has nothing else to do.
    let mut next = 0;
    let is_little = until(PATIENCE, || {
        next = start();
        next < size / 10
    });
    assert!(is_little, "{next} bytes");
    for file in kept() {
        let mut content = std::fs::read(&file).expect("a content");
        content[1000] ^= 1;
        std::fs::write(&file, content).expect("a content is written");
    }
    let spoilt = start();
    assert!(spoilt > size, "{spoilt} bytes");
    let mended = start();
    assert!(mended < size / 10, "{mended} bytes");
    assert!(kept().iter().all(is_intact));
}

/// Debian's biosnoop works neither with Linux 6.12, whose verifier says why, nor with a 6.1 without
/// its function.
#[test]
fn a_refusal_comes_with_the_log_of_the_guests_verifier() {
    let guest = need!(shared());
    let setting = need!(Setting::new(&guest));
    let ends: Vec<_> = setting
        .places
        .iter()
        .map(|&place| {
            let output = setting.run(place, &["biosnoop"]);
            let said = tidy(&output.stderr, None);
            let reason = "R1 invalid mem access 'scalar'";
            assert!(said.iter().any(|line| line == reason), "{place}: {said:?}");
            (output.code, said)
        })
        .collect();
    if let [inside, host] = ends.as_slice() {
        assert_eq!(host, inside, "by beeline (left) and inside (right)");
    }
}
