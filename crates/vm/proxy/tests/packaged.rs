//! The policies that come with the proxy let hosts observe, and nothing else, or everything; and the
//! packaged unit uses one of them.

mod harness;

use std::path::{Path, PathBuf};
use std::process::{Command as Process, Stdio};

use beeline_uapi::{AttachType, Command, HelperId, MapType, ProgramType};
use beeline_vm_protocol::messages::Refused;
use beeline_vm_protocol::messages::guest_message::Body as Answer;
use beeline_vm_protocol::messages::host_message::Body as Request;
use harness::*;

fn packaged(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../../packaging")
        .join(name)
}

fn proxy() -> Proxy {
    Proxy::with_policy(
        &std::fs::read_to_string(packaged("policies/observe-and-uprobes.toml")).unwrap(),
    )
}

/// A program that calls a helper. The kernel may have its own opinion of the arguments.
fn calls(helper: HelperId) -> [[u8; 8]; 3] {
    [call(helper), mov(0, 0), exit()]
}

/// Fails unless the policy refuses it, by this rule, and names this.
#[track_caller]
fn refused(host: &mut Host, request: Request, rule: &str, names: &str) {
    let refused = match host.ask(request) {
        Err(refused) => refused,
        Ok(answer) => panic!("{names}: {answer:?}"),
    };
    let Refused {
        errno,
        why,
        rule: by,
    } = refused;
    assert_eq!(
        (errno, &by[..]),
        (libc::EPERM as u32, rule),
        "{names}: {why}"
    );
    assert!(why.contains(names), "{names}: {why}");
}

#[test]
fn observing_programs_are_loaded() {
    if !may() {
        return;
    }
    let proxy = proxy();
    let mut host = Host::connect(&proxy);
    assert_eq!(host.welcome.policy, "observe-and-uprobes");
    let types = [
        ProgramType::KPROBE,
        ProgramType::TRACEPOINT,
        ProgramType::RAW_TRACEPOINT,
        ProgramType::PERF_EVENT,
        // What libbpf asks the kernel for its features with.
        ProgramType::SOCKET_FILTER,
    ];
    for kind in types {
        let done = host.load(kind, &[mov(0, 0), exit()]);
        assert_ne!(done.handle, 0, "{kind:?}: {done:?}");
    }
    let ring = host.make_map(MapType::RINGBUF, [0, 0, 4096, 0]);
    let counter = host.make_map(MapType::ARRAY, [4, 8, 1, 0]);
    let insns = writes_records(ring, counter, 3);
    let program = host.load(ProgramType::RAW_TRACEPOINT, &insns).handle;
    let name = vec![given(0, b"sched_switch".to_vec())];
    let attr = words(&[0, 0, program], 24);
    let link = host.bpf(Command::RAW_TRACEPOINT_OPEN, attr, name);
    assert_eq!(link.errno, 0, "{link:?}");
}

#[test]
fn destructive_helpers_are_refused_by_name() {
    let proxy = proxy();
    let mut host = Host::connect(&proxy);
    for (helper, name) in [
        (HelperId::PROBE_WRITE_USER, "probe_write_user"),
        (HelperId::OVERRIDE_RETURN, "override_return"),
        (HelperId::SEND_SIGNAL, "send_signal"),
        (HelperId::SEND_SIGNAL_THREAD, "send_signal_thread"),
        (HelperId::SYS_BPF, "sys_bpf"),
    ] {
        let request = load(ProgramType::KPROBE, &calls(helper));
        refused(&mut host, request, "programs.deny-helpers", name);
    }
    // Those that it does not know are not let through either.
    for (helper, name) in [
        (HelperId(HelperId::COUNT + 1), "helper:"),
        (HelperId::SKB_STORE_BYTES, "skb_store_bytes"),
        (HelperId::REDIRECT, "redirect"),
        (HelperId::SETSOCKOPT, "setsockopt"),
    ] {
        let request = load(ProgramType::KPROBE, &calls(helper));
        refused(&mut host, request, "programs.helpers", name);
    }
}

#[test]
fn all_types_that_do_more_than_observe_are_refused_by_name() {
    const MAY: [ProgramType; 6] = [
        ProgramType::KPROBE,
        ProgramType::TRACEPOINT,
        ProgramType::RAW_TRACEPOINT,
        ProgramType::PERF_EVENT,
        ProgramType::TRACING,
        ProgramType::SOCKET_FILTER,
    ];
    let proxy = proxy();
    let mut host = Host::connect(&proxy);
    let mut count = 0;
    for kind in ProgramType::ALL
        .iter()
        .copied()
        .filter(|kind| !MAY.contains(kind))
    {
        let name = kind
            .name()
            .unwrap()
            .trim_start_matches("BPF_PROG_TYPE_")
            .to_lowercase();
        let request = load(kind, &[mov(0, 0), exit()]);
        refused(&mut host, request, "programs.types", &name);
        count += 1;
    }
    assert!(count > 20, "{count}");
}

#[test]
fn places_that_decide_for_the_kernel_are_refused_by_name() {
    let proxy = proxy();
    let mut host = Host::connect(&proxy);
    let mut request = match load(ProgramType::TRACING, &[mov(0, 0), exit()]) {
        Request::Bpf(bpf) => bpf,
        other => panic!("{other:?}"),
    };
    let at = std::mem::offset_of!(beeline_uapi::attr::ProgLoad, expected_attach_type);
    beeline_uapi::fields::put_u32(&mut request.attr, at, AttachType::MODIFY_RETURN.0);
    refused(&mut host, Request::Bpf(request), "attach.deny", "fmod_ret:");
}

#[test]
fn memory_and_others_objects_are_limited() {
    if !may() {
        return;
    }
    let proxy = proxy();
    let (mut host, mut other) = (Host::connect(&proxy), Host::connect(&proxy));
    /// `BPF_F_NO_PREALLOC`: the kernel takes no memory until there are elements.
    const LATER: u32 = 1;
    let hash = |entries: u32| {
        let map = words(&[MapType::HASH.0, 4, 4096, entries, LATER], 80);
        bpf(Command::MAP_CREATE, map, vec![])
    };
    refused(&mut host, hash(70_000), "maps.bytes", "only of 268435456");
    let is_made = |answer| matches!(answer, Ok(Answer::BpfDone(done)) if done.errno == 0);
    let map = host.make_map(MapType::HASH, [4, 8, 1, 0]);
    let id = host.id(map);
    for _ in 0..4 {
        assert!(is_made(host.ask(hash(60_000))));
    }
    // For all sessions of the peer.
    refused(&mut other, hash(60_000), "maps.peer-bytes", "the user ");
    let by_id = bpf(Command::MAP_GET_FD_BY_ID, words(&[id], 12), vec![]);
    refused(&mut other, by_id, "objects.foreign", "foreign = true");
    // There is no way to a file of the guest's.
    let pin = bpf(Command::OBJ_PIN, words(&[0, 0, map], 16), vec![]);
    assert_eq!(host.refused(pin).errno, libc::EOPNOTSUPP as u32);
}

/// Returns the options that the packaged unit starts the proxy with.
fn unit_options() -> Vec<String> {
    let unit = std::fs::read_to_string(packaged("beeline-guest.service")).unwrap();
    let unit = unit.replace("\\\n", " ");
    let start = unit
        .lines()
        .find_map(|line| line.strip_prefix("ExecStart="));
    start
        .unwrap()
        .split_whitespace()
        .skip(1)
        .map(str::to_owned)
        .collect()
}

/// Starts a proxy that cannot listen, and returns what it says before.
fn says(options: &[&str]) -> String {
    let ended = Process::new(env!("CARGO_BIN_EXE_guest"))
        .args(options)
        .args(["--listen", "unix:/nowhere/socket"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    String::from_utf8(ended.stderr).unwrap()
}

const WARNING: &str = "hosts may do everything that root may do here";

#[test]
fn a_proxy_without_rules_says_so_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let empty = dir.path().join("empty");
    std::fs::write(&empty, "name = \"x\"\n[objects]\nforeign = true\n").unwrap();
    let empty = empty.to_str().unwrap();
    for options in [&[][..], &["--policy", empty]] {
        let said = says(options);
        let lines: Vec<_> = said.lines().filter(|line| line.contains(WARNING)).collect();
        assert_eq!(lines.len(), 1, "{said}");
        assert!(lines[0].contains("--policy FILE"), "{said}");
    }
    for options in [
        &["--allow-all"][..],
        &["--policy", "observe"],
        &["--policy", "observe-and-uprobes"],
        &["--policy", "everything"],
        &[
            "--policy",
            packaged("policies/observe.toml").to_str().unwrap(),
        ],
    ] {
        let said = says(options);
        assert!(!said.contains(WARNING), "{said}");
        assert!(said.contains("/nowhere/socket"), "{said}");
    }
    let both = says(&["--allow-all", "--policy", empty]);
    assert!(both.contains("cannot be used with"), "{both}");
}

/// The needs of a libbpf tool that names no policy: a refused trial would make it take the kernel for
/// an old one.
#[test]
fn a_policy_that_stops_libbpf_is_told_of() {
    let dir = tempfile::tempdir().unwrap();
    let narrow = dir.path().join("narrow");
    std::fs::write(&narrow, "[programs]\ntypes = [\"kprobe\"]\n").unwrap();
    let said = says(&["--policy", narrow.to_str().unwrap()]);
    assert!(said.contains("socket_filter"), "{said}");
    for (name, _) in beeline_vm_proxy::policies::ALL {
        let said = says(&["--policy", name]);
        assert!(!said.contains("libbpf"), "{said}");
    }
}

#[test]
fn a_tool_that_finds_no_objects_is_told_that_there_are_others() {
    if !may() {
        return;
    }
    let proxy = proxy();
    let (mut host, mut other) = (Host::connect(&proxy), Host::connect(&proxy));
    let map = host.make_map(MapType::HASH, [4, 8, 1, 0]);
    let next = |host: &mut Host| host.bpf(Command::MAP_GET_NEXT_ID, words(&[0, 0, 0], 12), vec![]);
    let done = next(&mut other);
    assert_eq!(done.errno, libc::ENOENT as u32, "{done:?}");
    assert!(done.why.contains("foreign = true"), "{done:?}");
    let done = next(&mut host);
    assert_eq!((done.errno, &done.why[..]), (0, ""), "{done:?}");
    let id = host.id(map);
    let behind = host.bpf(Command::MAP_GET_NEXT_ID, words(&[id, 0, 0], 12), vec![]);
    assert_eq!((behind.errno, &behind.why[..]), (libc::ENOENT as u32, ""));
}

#[test]
fn the_unit_uses_a_policy_of_the_proxys() {
    let options = unit_options();
    let value = |name: &str| {
        let at = options.iter().position(|option| option == name);
        options[at.unwrap_or_else(|| panic!("no {name}: {options:?}")) + 1].clone()
    };
    assert_eq!(value("--policy"), "observe-and-uprobes");
    assert!(value("--audit").starts_with("/var/log/beeline/"));
    assert!(!options.iter().any(|option| option == "--allow-all"));
    // The words of it are those of the proxy.
    let dir = tempfile::tempdir().unwrap();
    let audit = dir.path().join("audit");
    let given = options.iter().map(|option| match option.as_str() {
        path if path.starts_with("/var/log/") => audit.clone(),
        "vsock:any:8790" => "unix:/nowhere/other".into(),
        other => other.into(),
    });
    let given: Vec<_> = given
        .map(|path| path.to_str().unwrap().to_owned())
        .collect();
    let given: Vec<&str> = given.iter().map(String::as_str).collect();
    let said = says(&given);
    assert!(said.contains("/nowhere/other"), "{said}");
    assert!(!said.contains(WARNING), "{said}");
}
