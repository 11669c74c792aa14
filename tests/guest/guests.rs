//! The guests themselves: they boot, run tools, answer, reboot and can be killed.

use super::*;
use beeline_e2e::{GUEST_PATIENCE, is_alive, until};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

#[test]
fn a_guest_with_the_old_kernel_runs_bpftrace() {
    let guest = need!(boot("6.1"));
    assert!(guest.check("uname -r").starts_with("6.1."));
    counts_reads(&guest);
}

#[test]
fn a_guest_with_the_new_kernel_runs_bpftrace() {
    let guest = need!(shared());
    assert!(guest.check("uname -r").starts_with("6.12."));
    counts_reads(&guest);
}

/// A kprobe sees a program's reads: 100 of one byte.
fn counts_reads(guest: &Guest) {
    let script = "kprobe:ksys_read /comm == \"dd\" && arg2 == 1/ { @reads = count(); } \
                  interval:ms:50 { printf(\"up\\n\"); }";
    let tool = guest.start(&format!("bpftrace -e '{script}'"));
    tool.wait_for_line(|line| line == "up");
    guest.check("dd if=/dev/zero of=/dev/null bs=1 count=100 2>/dev/null");
    let answer = tool.interrupt();
    assert!(answer.stdout.contains("@reads: 100"), "{answer:?}");
}

#[test]
fn opensnoop_in_a_guest_names_the_file_that_was_opened() {
    let guest = need!(shared());
    let tool = guest.start("opensnoop");
    tool.wait_for_line(|line| line.starts_with("PID"));
    // It buffers its output to a file, so it runs long enough to fill the buffer.
    let found = until(GUEST_PATIENCE, || {
        guest.check("for i in $(seq 100); do cat /etc/inittab; done");
        let lines = tool.stdout();
        lines.iter().any(|line| line.contains("/etc/inittab"))
    });
    assert!(found, "{:?}", tool.interrupt());
}

#[test]
fn a_commands_output_code_and_input_are_its_own() {
    let guest = need!(shared());
    let answer = guest.run("echo out; echo complaint >&2; exit 3");
    assert_eq!(
        (answer.code, &*answer.stdout, &*answer.stderr),
        (3, "out\n", "complaint\n")
    );
    // Lengths around a page and the port's buffer, and all bytes that could pass for the protocol's
    // own.
    for length in [0, 1, 4095, 4096, 4097, 300_000] {
        let text = "12 34\n-\n\\ $x `y` é".repeat(length / 19 + 1)[..].to_owned();
        assert_eq!(
            guest.run_with("cat", text.as_bytes()).stdout,
            text,
            "{length}"
        );
    }
    assert_eq!(guest.run("kill -9 $$").code, 128 + 9);
}

#[test]
fn commands_run_beside_each_other() {
    let guest = need!(shared());
    let waiting = guest.start("sh -c 'until [ -s /tmp/go ]; do sleep 0.01; done; cat /tmp/go'");
    guest.put(b"gone", "/tmp/go");
    let answer = waiting.wait();
    assert_eq!((answer.code, &*answer.stdout), (0, "gone"));
    guest.check("rm /tmp/go");
}

#[test]
fn the_memory_file_holds_what_the_guest_writes() {
    let guest = need!(shared());
    // Not spelled out here, or the shell's own text would be found.
    guest.check("printf 'needle-%s-%s' $((7 * 11)) in-the-guest >/tmp/needle");
    let memory = std::fs::read(guest.memory_file()).unwrap();
    assert_eq!(memory.len(), 256 << 20);
    let needle = b"needle-77-in-the-guest";
    let mut pages = memory.chunks(4096);
    assert!(pages.any(|page| page.starts_with(needle)));
    guest.check("rm /tmp/needle");
}

#[test]
fn the_monitor_answers() {
    let guest = need!(shared());
    let mut monitor = BufReader::new(UnixStream::connect(guest.qmp()).unwrap());
    let mut line = String::new();
    monitor.read_line(&mut line).unwrap();
    assert!(line.contains("QMP"), "{line}");
    for (command, answer) in [
        ("qmp_capabilities", "return"),
        ("query-cpus-fast", "thread-id"),
    ] {
        let request = format!("{{\"execute\": \"{command}\"}}\n");
        monitor.get_mut().write_all(request.as_bytes()).unwrap();
        line.clear();
        monitor.read_line(&mut line).unwrap();
        assert!(line.contains(answer), "{line}");
    }
}

#[test]
fn a_guest_is_rebooted_and_killed_and_leaves_nothing() {
    let guest = need!(boot("6.12"));
    guest.check("touch /tmp/from-before");
    for _ in 0..2 {
        guest.reboot();
        assert_eq!(guest.run("ls /tmp").stdout, "");
        channels::echoes_by_vsock(&guest);
    }
    let (pid, folder) = (guest.pid(), guest.folder().to_owned());
    assert!(is_alive(pid) && folder.is_dir());
    guest.kill();
    assert!(!is_alive(pid) && !folder.exists());
}
