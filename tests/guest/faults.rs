//! Whatever happens to a guest, its proxy or the line to it, the tool on this machine ends soon,
//! and nothing is left behind.

use super::*;
use crate::place::attached;
use crate::proxy::{self, Proxy};
use crate::wire::{Fault, Wire};
use beeline_e2e::{Ended, PATIENCE, Tool, beeline_wanted, is_alive, seed, until};
use beeline_vm_protocol::frame::framed;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

/// The time within which a tool that has lost its guest has to end. Twice that on a busy machine.
const SOON: Duration = Duration::from_secs(10);
/// The time promised to users. It is only reported here: times fail no test.
const PROMISED: Duration = Duration::from_millis(5_500);

/// The small tool's output when it is attached.
pub const ATTACHED: &str = "attached";

/// Starts the small tool at an address.
fn start(address: &str, tool: &Path) -> Tool {
    let mut command = proxy::command(address, tool);
    command.arg("stay");
    Tool::start(command)
}

/// Waits for a tool that has lost its guest, and for everything that it started.
pub fn ends_soon(tool: Tool, what: &str) -> Ended {
    let (group, begin) = (tool.pid(), Instant::now());
    let has_ended = until(SOON, || !is_alive(group));
    let said = tool.stderr.so_far();
    assert!(has_ended, "{what}: the tool does not end; it says {said:?}");
    let ended = tool.wait();
    let took = begin.elapsed();
    assert!(!ended.status.success(), "{what}: {ended:?}");
    if took > PROMISED {
        beeline_e2e::remark(&format!("{what}: the tool took {took:?} to end"));
    }
    // A process of Beeline's in the group ends when Beeline has.
    let left = || beeline_e2e::members_of_group(group);
    let are_gone = until(SOON, || left().is_empty());
    assert!(are_gone, "{what}: processes are left: {:?}", left());
    ended
}

/// Asserts that a tool leaves nothing in the guest once the proxy knows that it is gone.
pub fn nothing_left(guest: &Guest, proxy: &Proxy, before: u32, what: &str) {
    let clean = || attached(guest) == 0 && probes(guest) == 0 && proxy.descriptors() == before;
    let given_back = until(PATIENCE, clean);
    assert!(
        given_back,
        "{what}: the guest keeps {} attached, {} kprobes, {} descriptors of {before}",
        attached(guest),
        probes(guest),
        proxy.descriptors()
    );
}

fn probes(guest: &Guest) -> u32 {
    let count = guest.check("wc -l </sys/kernel/debug/kprobes/list");
    count.trim().parse().expect("a number")
}

/// Asserts that the small tool works: it reports each of three calls in the guest.
fn works(guest: &Guest, address: &str, tool: &Path) {
    let running = start(address, tool);
    running.wait_for_line(|line| line == ATTACHED);
    guest.check("for i in 1 2 3; do hostname guest; done");
    for line in ["record 1", "record 2", "record 3"] {
        running.wait_for_line(|found| found == line);
    }
    running.interrupt();
}

#[test]
fn a_tool_sees_what_happens_in_the_guest_and_leaves_nothing_in_it() {
    need!(beeline_wanted());
    let guest = need!(shared());
    let proxy = Proxy::start(&guest);
    let scratch = Scratch::new();
    let tool = scratch.build("guest_tool.c");
    let before = proxy.descriptors();
    for _ in 0..3 {
        works(&guest, proxy.address(), &tool);
        nothing_left(&guest, &proxy, before, "an interrupted tool");
    }
    let running = start(proxy.address(), &tool);
    running.wait_for_line(|line| line == ATTACHED);
    running.signal_group(libc::SIGKILL);
    drop(running);
    nothing_left(&guest, &proxy, before, "a killed tool");
}

#[test]
fn a_line_that_breaks_anywhere_ends_the_tool_and_leaves_nothing() {
    need!(beeline_wanted());
    let guest = need!(shared());
    let proxy = Proxy::start(&guest);
    let scratch = Scratch::new();
    let tool = scratch.build("guest_tool.c");
    let before = proxy.descriptors();
    let wire = |fault| Wire::new(fault, proxy.connect());

    // The bytes that go over a line that does not break.
    let whole = wire(Fault::None);
    works(&guest, &whole.address(), &tool);
    let all = whole.carried();

    let mut random = seed();
    for turn in 0..16 {
        let at = next(&mut random) % all;
        let fault = match turn % 4 {
            3 => Fault::Silence(at),
            _ => Fault::Cut(at),
        };
        let what = format!("{fault:?} of {all} bytes");
        let broken = wire(fault);
        let running = start(&broken.address(), &tool);
        // Past the fault, if it comes after everything is attached.
        until(Duration::from_secs(1), || broken.carried() > at);
        guest.check("for i in 1 2 3 4 5; do hostname guest; done");
        ends_soon(running, &what);
        nothing_left(&guest, &proxy, before, &what);
    }
    works(&guest, proxy.address(), &tool);
}

/// A changed byte may do no harm, for example in a value; but the tool can be ended then.
#[test]
fn a_byte_that_changes_on_the_way_hangs_nobody() {
    need!(beeline_wanted());
    let guest = need!(shared());
    let proxy = Proxy::start(&guest);
    let scratch = Scratch::new();
    let tool = scratch.build("guest_tool.c");
    let before = proxy.descriptors();
    let whole = Wire::new(Fault::None, proxy.connect());
    works(&guest, &whole.address(), &tool);
    let mut random = seed();
    for _ in 0..12 {
        let fault = Fault::Garbage(next(&mut random) % whole.carried());
        let what = format!("{fault:?} of {} bytes", whole.carried());
        let wire = Wire::new(fault, proxy.connect());
        let running = start(&wire.address(), &tool);
        until(Duration::from_secs(2), || !is_alive(running.pid()));
        running.signal_group(libc::SIGTERM);
        ends_soon(running, &what);
        nothing_left(&guest, &proxy, before, &what);
    }
}

#[test]
fn a_slow_line_is_only_slow() {
    need!(beeline_wanted());
    let guest = need!(shared());
    let proxy = Proxy::start(&guest);
    let scratch = Scratch::new();
    let tool = scratch.build("guest_tool.c");
    let slow = Fault::Slow(Duration::from_millis(2), 1 << 20);
    let wire = Wire::new(slow, proxy.connect());
    works(&guest, &wire.address(), &tool);
}

#[test]
fn the_proxy_outlives_bytes_that_are_no_messages() {
    need!(beeline_wanted());
    let guest = need!(shared());
    let proxy = Proxy::start(&guest);
    let scratch = Scratch::new();
    let tool = scratch.build("guest_tool.c");
    let before = proxy.descriptors();
    let connect = proxy.connect();
    let mut random = seed();
    for turn in 0..50 {
        let mut stream = connect().expect("the proxy listens");
        let length = next(&mut random) % 3000;
        let mut bytes: Vec<u8> = (0..length).map(|_| next(&mut random) as u8).collect();
        if turn % 2 == 0 {
            // A valid frame, so that its content is examined.
            bytes = framed(&bytes);
        }
        // It may have closed the connection before it has read everything.
        let _ = stream.write_all(&bytes);
    }
    nothing_left(&guest, &proxy, before, "fifty bad connections");
    works(&guest, proxy.address(), &tool);
}

#[test]
fn whoever_answers_with_no_messages_ends_the_tool() {
    need!(beeline_wanted());
    let scratch = Scratch::new();
    let tool = scratch.build("guest_tool.c");
    let path = scratch.path().join("impostor");
    let listener = UnixListener::bind(&path).expect("cannot listen");
    let mut random = seed();
    std::thread::spawn(move || {
        for (turn, stream) in listener.incoming().flatten().enumerate() {
            let answer: Vec<u8> = (0..100).map(|_| next(&mut random) as u8).collect();
            std::thread::spawn(move || impostor(stream, turn, &answer));
        }
    });
    for turn in 0..4 {
        let running = start(&format!("unix:{}", path.display()), &tool);
        ends_soon(running, &format!("impostor {turn}"));
    }
    let nobody = start(&format!("unix:{}/nobody", scratch.path().display()), &tool);
    ends_soon(nobody, "nobody there");
}

/// Serves connections that close at once, stay silent, or answer something.
fn impostor(mut stream: UnixStream, turn: usize, answer: &[u8]) {
    match turn {
        0 => return,
        1 => {}
        2 => drop(stream.write_all(answer)),
        _ => {
            let _ = stream.write_all(&framed(answer));
        }
    }
    let _ = stream.read_to_end(&mut Vec::new());
}

#[test]
fn a_guest_or_a_proxy_that_dies_ends_the_tool() {
    need!(beeline_wanted());
    let guest = need!(boot("6.12"));
    let scratch = Scratch::new();
    let tool = scratch.build("guest_tool.c");
    let attach = |proxy: &Proxy| {
        let running = start(proxy.address(), &tool);
        running.wait_for_line(|line| line == ATTACHED);
        running
    };

    let proxy = Proxy::start(&guest);
    let running = attach(&proxy);
    proxy.kill();
    ends_soon(running, "a killed proxy");
    assert_eq!((attached(&guest), probes(&guest)), (0, 0));

    let proxy = Proxy::start(&guest);
    works(&guest, proxy.address(), &tool);
    let running = attach(&proxy);
    guest.reboot();
    ends_soon(running, "a rebooted guest");
    proxy.forget();

    // The vsock device here does not survive a reboot with an open connection.
    drop(guest);
    let guest = need!(boot("6.12"));
    let proxy = Proxy::start(&guest);
    let running = attach(&proxy);
    guest.kill();
    ends_soon(running, "a killed guest");
    proxy.forget();
}

#[test]
fn a_thread_that_waits_for_the_guest_blocks_no_other() {
    need!(beeline_wanted());
    let guest = need!(shared());
    let proxy = Proxy::start(&guest);
    let scratch = Scratch::new();
    let tool = scratch.build("waits.c");
    for asked in ["look-up", "next-key", "delete"] {
        let mut command = proxy.command(&tool);
        command.arg(asked);
        let running = Tool::start(command);
        let ready = running.wait_for_line(|line| line.starts_with("ready "));
        let (_, pid) = ready.split_once(' ').expect("its number");
        proxy.signal("STOP");
        signal(pid.parse().expect("a number"), libc::SIGUSR1);
        running.wait_for_line(|line| line == "others go on");
        proxy.signal("CONT");
        running.wait_for_line(|line| line == "done 0");
        assert!(running.wait().status.success(), "{asked}");
    }
}

/// xorshift of 64 bits (G. Marsaglia, "Xorshift RNGs").
fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}
