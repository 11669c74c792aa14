//! Limits of a host: it cannot exceed the policy, take the proxy down, or stay when it is gone.

mod harness;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process;
use std::time::{Duration, Instant};

use beeline_uapi::{Command, HelperId, MapType, ProgramType};
use beeline_vm_protocol::VERSION;
use beeline_vm_protocol::address::Address;
use beeline_vm_protocol::channel::Channel;
use beeline_vm_protocol::client::Client;
use beeline_vm_protocol::frame;
use beeline_vm_protocol::messages::guest_message::Body as Answer;
use beeline_vm_protocol::messages::host_message::Body as Request;
use beeline_vm_protocol::messages::{Bpf, GuestMessage, Hello, HostMessage};
use harness::*;
use ring::signature::{Ed25519KeyPair, KeyPair};

const POLICY: &str = r#"
    name = "tests"
    [programs]
    types = ["raw_tracepoint"]
    deny-helpers = ["trace_printk"]
    [attach]
    allow = ["raw_tracepoint:sys_*"]
    [maps]
    bytes = 100000
    total-bytes = 150000
"#;

#[test]
fn the_guests_owner_decides() {
    if !may() {
        return;
    }
    let proxy = Proxy::with_policy(POLICY);
    let mut host = Host::connect(&proxy);
    assert_eq!(host.welcome.policy, "tests");
    let plain = [mov(0, 0), exit()];
    let program = host.load(ProgramType::RAW_TRACEPOINT, &plain).handle;
    let attach = |name: &str| {
        let name = vec![given(0, name.as_bytes().to_vec())];
        bpf(
            Command::RAW_TRACEPOINT_OPEN,
            words(&[0, 0, program], 24),
            name,
        )
    };
    let create = |entries| {
        bpf(
            Command::MAP_CREATE,
            words(&[MapType::ARRAY.0, 4, 8, entries], 80),
            vec![],
        )
    };
    let prints = [
        mov(1, 0),
        mov(2, 0),
        call(HelperId::TRACE_PRINTK),
        mov(0, 0),
        exit(),
    ];
    for (request, rule) in [
        (load(ProgramType::SOCKET_FILTER, &plain), "programs.types"),
        (
            load(ProgramType::RAW_TRACEPOINT, &prints),
            "programs.deny-helpers",
        ),
        (attach("sched_switch"), "attach.allow"),
        (create(20_000), "maps.bytes"),
    ] {
        let refused = host.refused(request);
        assert_eq!(
            (refused.errno, &refused.rule[..]),
            (libc::EPERM as u32, rule)
        );
    }
    let allowed = host.ask(attach("sys_exit"));
    assert!(matches!(allowed, Ok(Answer::BpfDone(done)) if done.errno == 0));
    // The limit is for all hosts together, as long as they are connected.
    let mut other = Host::connect(&proxy);
    assert!(matches!(host.ask(create(10_000)), Ok(Answer::BpfDone(done)) if done.errno == 0));
    assert_eq!(other.refused(create(10_000)).rule, "maps.total-bytes");
    drop(host);
    eventually(
        || matches!(other.ask(create(10_000)), Ok(Answer::BpfDone(done)) if done.errno == 0),
    );
    // And everything is logged.
    let audit = proxy.audit();
    let rules: Vec<_> = audit
        .iter()
        .filter_map(|line| line["rule"].as_str())
        .collect();
    assert_eq!(
        rules[..4],
        [
            "programs.types",
            "programs.deny-helpers",
            "attach.allow",
            "maps.bytes"
        ]
    );
    let count = |event: &str| audit.iter().filter(|line| line["event"] == event).count();
    assert_eq!((count("load"), count("attach")), (1, 1));
}

#[test]
fn programs_can_have_to_be_signed() {
    if !may() {
        return;
    }
    let pair = Ed25519KeyPair::from_seed_unchecked(&[3; 32]).unwrap();
    let digits: String = pair
        .public_key()
        .as_ref()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let proxy = Proxy::with_policy(&format!("[programs]\nsigned-by = [\"{digits}\"]"));
    let mut host = Host::connect(&proxy);
    let map = host.make_map(MapType::ARRAY, [4, 8, 1, 0]);
    let mut insns: Vec<[u8; 8]> = harness::map(1, map).to_vec();
    insns.extend([mov(0, 0), exit()]);
    let mut signed = match load(ProgramType::RAW_TRACEPOINT, &insns) {
        Request::Bpf(bpf) => bpf,
        other => panic!("{other:?}"),
    };
    let refused = host.refused(Request::Bpf(signed.clone()));
    assert_eq!(refused.rule, "programs.signed-by");
    // For any handle of the map.
    let digest = beeline_vm_protocol::instructions::digest(&signed.parts[0].data);
    signed.signature = pair.sign(&digest).as_ref().to_vec();
    let done = host.ask(Request::Bpf(signed));
    assert!(matches!(done, Ok(Answer::BpfDone(done)) if done.errno == 0));
}

/// Returns the time until the other side has ended it.
fn ended(mut stream: UnixStream) -> Duration {
    let start = Instant::now();
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let mut rest = Vec::new();
    // A reset is an end as well; a timeout is not.
    let read = stream.read_to_end(&mut rest);
    let timed_out = read.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
    assert!(!timed_out, "it is still there");
    start.elapsed()
}

fn framed(message: &HostMessage) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame::write(&mut bytes, message).unwrap();
    bytes
}

#[test]
fn bytes_that_are_no_messages_end_their_connection_only() {
    let mut proxy = Proxy::start();
    let mut host = Host::connect(&proxy);
    let hello = framed(&HostMessage {
        id: 1,
        body: Some(Request::Hello(Hello {
            version: VERSION,
            tool: "x".repeat(100_000),
            ..Hello::default()
        })),
    });
    let old = framed(&HostMessage {
        id: 1,
        body: Some(Request::Hello(Hello {
            version: 9999,
            tool: String::new(),
            ..Hello::default()
        })),
    });
    let request = framed(&HostMessage {
        id: 2,
        body: Some(Request::Bpf(Bpf::default())),
    });
    let half = [hello.clone(), request[..3].to_vec()].concat();
    let twice = [hello.clone(), hello.clone()].concat();
    for bytes in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        &[255; 100],
        &request,
        &old,
        &twice,
        // Silence, and a frame that does not continue.
        &[],
        &half,
    ] {
        let mut stream = UnixStream::connect(proxy.path()).unwrap();
        stream.write_all(bytes).unwrap();
        println!("ended after {:?}", ended(stream));
        // Meanwhile another host is served.
        assert!(host.ask(bpf(Command(12345), vec![], vec![])).is_err());
    }
    assert!(proxy.running());
}

#[test]
fn messages_with_random_changes_do_no_harm() {
    if !may() {
        return;
    }
    let mut proxy = Proxy::start();
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random as usize
    };
    let hello = HostMessage {
        id: 1,
        body: Some(Request::Hello(Hello {
            version: VERSION,
            tool: String::new(),
            ..Hello::default()
        })),
    };
    let map = bpf(
        Command::MAP_CREATE,
        words(&[MapType::ARRAY.0, 4, 8, 4], 80),
        vec![],
    );
    let parts = vec![given(8, vec![0; 4]), given(16, vec![0; 8])];
    let update = bpf(Command::MAP_UPDATE_ELEM, words(&[1], 32), parts);
    let insns = [harness::map(1, 1)[0], [0; 8], mov(0, 0), exit()];
    let program = load(ProgramType::RAW_TRACEPOINT, &insns);
    let insns = insns.concat();
    let batch = bpf(
        Command::MAP_LOOKUP_BATCH,
        words(&[0, 0, 0, 0, 0, 0, 0, 0, 4, 1], 56),
        vec![room(8, 4), room(16, 16), room(24, 32)],
    );
    let good = [map, update, program, batch].map(|body| HostMessage {
        id: 2,
        body: Some(body),
    });
    for _ in 0..300 {
        let mut bytes = framed(&hello);
        for message in &good {
            let mut framed = framed(message);
            // Not the instructions: random ones would test the kernel's verifier, which is not
            // safe.
            let start = framed
                .windows(insns.len())
                .position(|window| window == insns);
            let kept = start.map_or(0..0, |start| start..start + insns.len());
            for _ in 0..next() % 3 {
                let at = 4 + next() % (framed.len() - 4);
                if !kept.contains(&at) {
                    framed[at] = next() as u8;
                }
            }
            bytes.extend(framed);
        }
        let mut stream = UnixStream::connect(proxy.path()).unwrap();
        // It may have ended already.
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answers = Vec::new();
        let _ = stream.read_to_end(&mut answers);
        let mut answers = &answers[..];
        let welcome = frame::read::<GuestMessage>(&mut answers);
        assert!(matches!(
            welcome,
            Ok(Some(GuestMessage {
                body: Some(Answer::Welcome(_)),
                ..
            }))
        ));
    }
    assert!(proxy.running());
    let size = proxy.size();
    eventually(|| proxy.size() <= size);
    Host::connect(&proxy);
}

#[test]
fn a_killed_hosts_objects_are_given_back() {
    if !may() {
        return;
    }
    // This very test, as a process of its own that is killed, prints the map that it has made.
    if let Ok(path) = std::env::var("BEELINE_TEST_HOST") {
        let stream = std::path::PathBuf::from(path);
        let address = beeline_vm_protocol::address::Address::Unix { path: stream };
        let mut host = Host::connect_to(&address);
        let map = host.make_map(MapType::ARRAY, [4, 8, 4, 0]);
        println!("\nmap {}", host.id(map));
        std::thread::sleep(Duration::from_secs(60));
        return;
    }
    let proxy = Proxy::start();
    let mut child = process::Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "a_killed_hosts_objects_are_given_back",
            "--nocapture",
        ])
        .env("BEELINE_TEST_HOST", proxy.path())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let stdout = std::io::BufReader::new(child.stdout.take().unwrap());
    let lines = std::io::BufRead::lines(stdout).map_while(Result::ok);
    let id = lines
        .filter_map(|line| line.strip_prefix("map ")?.parse().ok())
        .next();
    let id = id.expect("the other process has made no map");
    assert!(is_there(Command::MAP_GET_FD_BY_ID, id));
    child.kill().unwrap();
    child.wait().unwrap();
    let start = Instant::now();
    eventually(|| !is_there(Command::MAP_GET_FD_BY_ID, id));
    println!("given back after {:?}", start.elapsed());
}

#[test]
fn a_connection_lives_on_as_long_as_both_sides_do() {
    let proxy = Proxy::start();
    let mut host = Host::connect(&proxy);
    // Longer than either side's patience.
    std::thread::sleep(Duration::from_secs(7));
    assert_eq!(
        host.refused(bpf(Command(12345), vec![], vec![])).errno,
        libc::EOPNOTSUPP as u32
    );
}

#[test]
fn sessions_of_a_peer_that_has_many_are_refused_with_a_reason() {
    /// The most of one peer, if there is no other.
    const SESSIONS: usize = 64;
    let proxy = Proxy::start();
    let others: Vec<Host> = (0..SESSIONS).map(|_| Host::connect(&proxy)).collect();
    let address = Address::Unix { path: proxy.path() };
    let channel = Channel::connect(&address, None).unwrap();
    let error = Client::greet(channel, "a test", Box::new(|_| ())).unwrap_err();
    let words = error.to_string();
    assert!(words.contains("64 sessions of the user"), "{words}");
    drop(others);
    eventually(|| {
        let channel = Channel::connect(&address, None).unwrap();
        Client::greet(channel, "a test", Box::new(|_| ())).is_ok()
    });
}
