//! Programs that a host injects into a guest: they see the same there as a tool inside.

use crate::proxy::{PORT, Proxy};
use crate::*;
use beeline_e2e::{Ended, PATIENCE, Tool, beeline, beeline_wanted, until};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The result of a command that has nothing to inject.
const UNUSABLE: i32 = 2;
/// The number of calls in the guest, and the length of the name that they set.
const CALLS: usize = 5;
const LENGTH: usize = 5;

/// Programs that count their runs: one for each way to attach.
const WAYS: [&str; 9] = [
    "at_raw_tracepoint",
    "at_typed_tracepoint",
    "at_entry",
    "at_exit",
    "at_kprobe",
    "at_system_call",
    "at_several",
    "at_uprobe",
    "at_sample",
];

fn start(address: &str, file: &Path, words: &[&str]) -> Tool {
    let mut command = Command::new(beeline());
    command.args(["inject", "--guest", address]).args(words);
    command.arg(file);
    Tool::start(command)
}

/// Waits until the command says that its programs are attached.
fn wait_attached(tool: &Tool) {
    let attached = |line: &str| line.contains("attached in the guest");
    let found = tool.stderr.wait_for(0, PATIENCE, attached);
    assert!(found.is_some(), "{}", tool.words("did not attach"));
}

fn set_names(guest: &Guest) {
    guest.check(&format!("for i in $(seq {CALLS}); do hostname guest; done"));
}

fn objects(ended: &Ended) -> Vec<Value> {
    let lines = ended.stdout.iter();
    let objects = lines
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")));
    objects.collect()
}

/// The events of a map.
fn of<'a>(events: &'a [Value], map: &str, event: &str) -> Vec<&'a Value> {
    let is = |it: &&Value| it["map"] == map && it["event"] == event;
    events.iter().filter(is).collect()
}

#[test]
fn an_injected_program_reports_the_same_as_bpftrace_in_the_guest() {
    need!(beeline_wanted());
    let scratch = Scratch::new();
    let file = need!(scratch.build_bpf("injected.bpf.c"));
    let guest = need!(shared());
    let proxy = Proxy::start(&guest);
    let inside = guest.start(
        "bpftrace -e 'tracepoint:syscalls:sys_enter_sethostname { printf(\"call %d %s %d\\n\", tid, comm, args->len); } \
         interval:ms:50 { printf(\"up\\n\"); }'",
    );
    inside.wait_for_line(|line| line == "up");
    let tool = start(
        proxy.address(),
        &file,
        &["--json", "--record", "event", "--interval", "0.1"],
    );
    wait_attached(&tool);
    set_names(&guest);
    let seen = until(PATIENCE, || {
        let lines = tool.stdout.so_far();
        lines
            .iter()
            .filter(|line| line.contains("\"record\""))
            .count()
            >= 2 * CALLS
    });
    assert!(seen, "{}", tool.words("did not see the calls"));
    let ended = tool.interrupt();
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    let inside = inside.interrupt().stdout;
    let inside: Vec<&str> = inside
        .lines()
        .filter(|line| line.starts_with("call "))
        .collect();
    assert_eq!(inside.len(), CALLS, "{inside:?}");

    let events = objects(&ended);
    for map in ["events", "samples"] {
        let records = of(&events, map, "record");
        let records: Vec<String> = records
            .iter()
            .map(|it| &it["decoded"])
            .map(|it| {
                format!(
                    "call {} {} {}",
                    it["tid"],
                    it["comm"].as_str().unwrap_or("?"),
                    it["length"]
                )
            })
            .collect();
        assert_eq!(records, inside, "{map}");
    }
    // The last value of each map is the total of all calls.
    let last = |map: &str| {
        let set = of(&events, map, "set");
        set.last().map_or(Value::Null, |it| it["decoded"].clone())
    };
    assert_eq!(last("lengths")["key"], LENGTH);
    assert_eq!(last("lengths")["value"], CALLS);
    assert_eq!(last("calls")["value"][0], CALLS);
    // A variable of the file that shifts another one.
    assert_eq!(last(".bss")["value"]["returns"], 2 * CALLS);
}

#[test]
fn programs_and_maps_are_chosen_and_nothing_is_left() {
    need!(beeline_wanted());
    let scratch = Scratch::new();
    let file = need!(scratch.build_bpf("injected.bpf.c"));
    let guest = need!(shared());
    let proxy = Proxy::start(&guest);
    let before = (place::attached(&guest), proxy.descriptors());
    let words = ["--program", "leave", "--map", ".bss", "--interval", "0.05"];
    let tool = start(proxy.address(), &file, &words);
    wait_attached(&tool);
    set_names(&guest);
    let line = tool.wait_for_line(|line| line.contains(&format!("\"returns\":{}", 2 * CALLS)));
    assert!(
        line.starts_with(".bss set key 00000000 value 0a00000000000000"),
        "{line}"
    );
    let ended = tool.interrupt();
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    assert!(
        ended.stdout.iter().all(|line| line.starts_with(".bss ")),
        "{ended:?}"
    );
    assert_eq!(place::attached(&guest), before.0, "attached behind it");
    let after = || (place::attached(&guest), proxy.descriptors());
    assert!(
        until(PATIENCE, || after() == before),
        "{:?} is left of {before:?}",
        after()
    );

    // The command ends by itself, after a time; a killed one leaves nothing either.
    let ended = start(proxy.address(), &file, &["--duration", "0.2"]).wait();
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    let tool = start(proxy.address(), &file, &[]);
    wait_attached(&tool);
    tool.signal_group(libc::SIGKILL);
    drop(tool);
    assert!(
        until(PATIENCE, || after() == before),
        "{:?} is left of {before:?}",
        after()
    );
}

#[test]
fn every_way_to_attach_is_one() {
    need!(beeline_wanted());
    let scratch = Scratch::new();
    let file = need!(scratch.build_bpf("injected.bpf.c"));
    let guest = need!(shared());
    let proxy = Proxy::start(&guest);
    let mut words = vec!["--json", "--map", ".bss", "--interval", "0.1"];
    for way in WAYS {
        words.extend(["--program", way]);
    }
    let tool = start(proxy.address(), &file, &words);
    wait_attached(&tool);
    set_names(&guest);
    // A program linked with the C library.
    guest.check("bpftrace --version");
    let all_ran = until(PATIENCE, || {
        let lines = tool.stdout.so_far();
        let last = lines
            .last()
            .and_then(|line| serde_json::from_str::<Value>(line).ok());
        let seen = last.map(|last| last["decoded"]["value"]["seen"].clone());
        let seen = seen.as_ref().and_then(Value::as_array);
        seen.is_some_and(|seen| seen.len() == WAYS.len() && !seen.contains(&Value::from(0)))
    });
    assert!(all_ran, "{WAYS:?}: {}", tool.words("did not see all"));
    let ended = tool.interrupt();
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
}

#[test]
fn programs_that_cannot_be_injected_are_named() {
    need!(beeline_wanted());
    let scratch = Scratch::new();
    let file = need!(scratch.build_bpf("injected.bpf.c"));
    let text = scratch.path().join("text");
    std::fs::write(&text, "no object").expect("a file");
    let endless = PathBuf::from("/dev/zero");
    let guest = need!(shared());
    let proxy = Proxy::start(&guest);
    for (file, words, code, expected) in [
        (
            &file,
            &["--program", "nothing"][..],
            UNUSABLE,
            "no program nothing; it has enter, leave",
        ),
        (
            &file,
            &["--map", "nothing"],
            UNUSABLE,
            "no map to watch nothing; it has events, samples",
        ),
        (
            &file,
            &["--program", "nowhere"],
            1,
            "no tracepoint syscalls:sys_enter_no_such_call",
        ),
        (&file, &["--program", "packets"], 1, "packets (xdp)"),
        (
            &file,
            &["--program", "refused"],
            1,
            "invalid bpf_context access",
        ),
        (
            &file,
            &["--record", "nothing"],
            UNUSABLE,
            "its types have no nothing",
        ),
        (&file, &["--interval", "0"], UNUSABLE, "0.001"),
        (&text, &[], UNUSABLE, "no ELF file"),
        (&endless, &[], UNUSABLE, "longer than 64 MiB"),
    ] {
        let ended = start(proxy.address(), file, words).wait();
        let said = ended.stderr.join("\n");
        assert_eq!(ended.status.code(), Some(code), "{words:?}: {said}");
        assert!(said.contains(expected), "{words:?}: {said}");
        assert!(ended.stdout.is_empty(), "{ended:?}");
    }
    let nobody = format!("uds:{}:{}", guest.vsock().display(), PORT + 1);
    let ended = start(&nobody, &file, &[]).wait();
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    assert!(
        ended.stderr.join("\n").contains("does `beeline guest` run"),
        "{ended:?}"
    );
}

#[test]
fn a_proxy_that_dies_ends_it() {
    need!(beeline_wanted());
    let scratch = Scratch::new();
    let file = need!(scratch.build_bpf("injected.bpf.c"));
    let guest = need!(shared());
    let proxy = Proxy::start(&guest);
    let tool = start(proxy.address(), &file, &[]);
    wait_attached(&tool);
    proxy.kill();
    let ended = tool.wait();
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    assert!(
        ended.stderr.join("\n").contains("the guest is lost"),
        "{ended:?}"
    );
}
