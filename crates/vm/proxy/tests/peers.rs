//! One peer can neither stop another one nor make use of what it has, whatever it sends or does not
//! send.

mod harness;

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::spawn;
use std::time::{Duration, Instant};

use beeline_uapi::{Command, MapType};
use beeline_vm_protocol::VERSION;
use beeline_vm_protocol::address::Address;
use beeline_vm_protocol::frame;
use beeline_vm_protocol::messages::guest_message::Body as Answer;
use beeline_vm_protocol::messages::host_message::Body as Request;
use beeline_vm_protocol::messages::{GuestMessage, Hello, HostMessage, Join, Look, LookUp, Part};
use harness::*;

/// More than the proxy has places of any kind.
const MANY: usize = 300;

/// A proxy that other peers reach: with the addresses of this machine for them.
fn open_to_all() -> Proxy {
    Proxy::listening("", &["tcp+insecure:127.0.0.1:0"])
}

/// Connects as a peer of its own, which has a number.
fn connect_as(number: u8, proxy: &Proxy) -> std::io::Result<TcpStream> {
    let Address::Tcp { at, .. } = proxy.tcp() else {
        panic!("no TCP");
    };
    let from = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 0, 0, number)), 0);
    // SAFETY: makes a socket, which nobody else has.
    let socket = unsafe { OwnedFd::from_raw_fd(libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0)) };
    let bind = rustix::net::bind(&socket, &from);
    bind.and_then(|()| rustix::net::connect(&socket, &at))?;
    Ok(socket.into())
}

fn framed(id: u64, body: Request) -> Vec<u8> {
    let mut bytes = Vec::new();
    let body = Some(body);
    frame::write(&mut bytes, &HostMessage { id, body }).unwrap();
    bytes
}

fn hello() -> Vec<u8> {
    let (version, tool) = (VERSION, "an attack".into());
    framed(
        1,
        Request::Hello(Hello {
            version,
            tool,
            ..Hello::default()
        }),
    )
}

fn receive(mut stream: &TcpStream) -> Option<Answer> {
    loop {
        let message = frame::read::<GuestMessage>(&mut stream).ok()??;
        if let Some(body) = message.body {
            return Some(body);
        }
    }
}

/// Asserts that another peer than the one that a token is for cannot join by it.
#[track_caller]
fn assert_cannot_join(proxy: &Proxy, token: Vec<u8>) {
    let mut stream = connect_as(2, proxy).unwrap();
    let join = framed(1, Request::Join(Join { token }));
    stream.write_all(&join).unwrap();
    let joined = receive(&stream);
    assert!(
        matches!(&joined, Some(Answer::Refused(refused)) if refused.errno == libc::ENOENT as u32),
        "{joined:?}"
    );
}

/// A host that greets at the first attempt, and makes a request.
#[track_caller]
fn works(proxy: &Proxy) -> Duration {
    let start = Instant::now();
    let mut host = Host::connect(proxy);
    let refused = host.refused(bpf(Command(12345), vec![], vec![]));
    assert_eq!(refused.errno, libc::EOPNOTSUPP as u32);
    start.elapsed()
}

/// The same, of another peer than the attacker.
#[track_caller]
fn another_works(proxy: &Proxy) -> Duration {
    let start = Instant::now();
    let mut stream = connect_as(1, proxy).unwrap();
    stream.write_all(&hello()).unwrap();
    let welcome = receive(&stream);
    assert!(matches!(welcome, Some(Answer::Welcome(_))), "{welcome:?}");
    start.elapsed()
}

#[test]
fn silent_connections_lock_nobody_out() {
    let proxy = open_to_all();
    let hello = hello();
    let beginnings = [
        &[][..],
        &hello[..3],
        &hello[..20],
        &hello[..hello.len() - 1],
    ];
    for beginning in beginnings {
        let connections: Vec<TcpStream> = (0..MANY)
            .map(|_| {
                let mut stream = connect_as(2, &proxy).unwrap();
                // The proxy may have ended it already.
                let _ = stream.write_all(beginning);
                stream
            })
            .collect();
        println!(
            "{} bytes: {:?} {:?}",
            beginning.len(),
            works(&proxy),
            another_works(&proxy)
        );
        drop(connections);
    }
}

#[test]
fn a_peer_that_connects_all_the_time_locks_nobody_out() {
    let proxy = Arc::new(open_to_all());
    let before = proxy.size();
    let is_over = Arc::new(AtomicBool::new(false));
    let count = Arc::new(AtomicUsize::new(0));
    let attackers: Vec<_> = (2..6)
        .map(|number| {
            let (proxy, is_over, count) = (proxy.clone(), is_over.clone(), count.clone());
            spawn(move || {
                let mut kept = VecDeque::new();
                while !is_over.load(Ordering::Relaxed) {
                    kept.extend(connect_as(number, &proxy));
                    kept.drain(..kept.len().saturating_sub(100));
                    count.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    let mut largest = (0, 0);
    while count.load(Ordering::Relaxed) < 3000 {
        let took = (works(&proxy), another_works(&proxy));
        let (fds, threads) = proxy.size();
        largest = (largest.0.max(fds), largest.1.max(threads));
        println!("{took:?}");
    }
    is_over.store(true, Ordering::Relaxed);
    attackers
        .into_iter()
        .for_each(|attacker| attacker.join().unwrap());
    // No connection leaves anything behind.
    eventually(|| proxy.size() == before);
    println!("at most {largest:?} descriptors and threads, {before:?} before");
    assert!(largest.1 < before.1 + 150, "{largest:?} threads");
}

#[test]
fn greetings_that_come_byte_by_byte_have_an_end() {
    let proxy = open_to_all();
    let start = Instant::now();
    let stream = connect_as(2, &proxy).unwrap();
    let mut writes = stream.try_clone().unwrap();
    spawn(move || {
        for byte in hello() {
            if writes.write_all(&[byte]).is_err() {
                return;
            }
            std::thread::sleep(Duration::from_secs(1));
        }
    });
    assert_eq!((&stream).read(&mut [0]).unwrap_or(0), 0);
    println!("ended after {:?}", start.elapsed());
    let late = "it has not greeted for 5 s";
    eventually(|| proxy.audit().iter().any(|line| line["why"] == late));
}

#[test]
fn messages_that_come_byte_by_byte_have_an_end() {
    let proxy = open_to_all();
    let mut stream = connect_as(2, &proxy).unwrap();
    stream.write_all(&hello()).unwrap();
    assert!(matches!(receive(&stream), Some(Answer::Welcome(_))));
    let request = framed(2, bpf(Command(12345), vec![0; 4000], vec![]));
    let mut writes = stream.try_clone().unwrap();
    spawn(move || {
        for byte in request {
            if writes.write_all(&[byte]).is_err() {
                return;
            }
            std::thread::sleep(Duration::from_millis(500));
        }
    });
    // Only signs of life come, and then the end.
    assert_eq!(receive(&stream), None);
    let slow = "a message is sent too slowly";
    eventually(|| proxy.audit().iter().any(|line| line["why"] == slow));
}

/// Returns the proxy's memory in bytes.
fn memory(proxy: &Proxy) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", proxy.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.unwrap().trim().trim_end_matches(" kB");
    number.parse::<usize>().unwrap() << 10
}

#[test]
fn long_messages_of_one_peer_take_limited_memory() {
    let proxy = open_to_all();
    let before = memory(&proxy);
    // Each announces 32 MiB, and sends all but the last byte.
    let long = framed(2, bpf(Command(12345), vec![0; (32 << 20) - 64], vec![]));
    let long: Arc<[u8]> = long[..long.len() - 1].into();
    let senders: Vec<_> = (0..24)
        .map(|_| {
            let (mut stream, long) = (connect_as(2, &proxy).unwrap(), long.clone());
            spawn(move || {
                stream.write_all(&hello()).unwrap();
                // It may be ended meanwhile.
                let _ = stream.write_all(&long);
                stream
            })
        })
        .collect();
    let mut most = 0;
    while !senders.iter().all(|sender| sender.is_finished()) {
        most = most.max(memory(&proxy));
        std::thread::sleep(Duration::from_millis(20));
    }
    println!("{:?} {:?}", works(&proxy), another_works(&proxy));
    println!("{} MiB, {} before", most >> 20, before >> 20);
    assert!(most < before + (400 << 20), "{} MiB", most >> 20);
}

/// Returns the most memory that the proxy has taken until something is done.
fn most_memory<T>(proxy: &Proxy, does: impl FnOnce() -> T) -> (usize, T) {
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let looks = scope.spawn(|| {
            let mut most = 0;
            while !is_done.load(Ordering::Relaxed) {
                most = most.max(memory(proxy));
                std::thread::sleep(Duration::from_millis(1));
            }
            most
        });
        let done = does();
        is_done.store(true, Ordering::Relaxed);
        (looks.join().unwrap(), done)
    })
}

/// Two bytes of a message become dozens.
#[test]
fn lists_of_nothing_take_limited_memory() {
    let proxy = open_to_all();
    let mut stream = connect_as(2, &proxy).unwrap();
    let before = memory(&proxy);
    let parts = vec![Part::default(); 14 << 20];
    stream.write_all(&hello()).unwrap();
    assert!(matches!(receive(&stream), Some(Answer::Welcome(_))));
    let long = framed(2, bpf(Command(12345), vec![], parts));
    let (most, answer) = most_memory(&proxy, || {
        stream.write_all(&long).unwrap();
        receive(&stream)
    });
    println!("{} MiB, {} before", most >> 20, before >> 20);
    assert!(most < before + (200 << 20), "{} MiB", most >> 20);
    assert_eq!(answer, None);
    println!("{:?}", another_works(&proxy));
}

#[test]
fn a_peer_that_reads_no_answers_blocks_nobody() {
    let proxy = open_to_all();
    let before = memory(&proxy);
    let look = Look {
        path: "/sys/kernel/btf/vmlinux".into(),
        content: true,
        ..Look::default()
    };
    let (most, attacks) = most_memory(&proxy, || {
        let attacks: Vec<TcpStream> = (0..60)
            .map(|_| {
                let mut stream = connect_as(2, &proxy).unwrap();
                stream.write_all(&hello()).unwrap();
                for id in 2..20 {
                    let look = Request::Look(look.clone());
                    stream.write_all(&framed(id, look)).unwrap();
                }
                stream
            })
            .collect();
        for _ in 0..20 {
            println!("{:?} {:?}", works(&proxy), another_works(&proxy));
        }
        // Each is ended, without having read anything.
        let is_end =
            |line: &serde_json::Value| line["event"] == "disconnect" && line["tool"] == "an attack";
        let ended = || proxy.audit().iter().filter(|line| is_end(line)).count();
        eventually(|| ended() >= attacks.len());
        attacks
    });
    println!("{} MiB, {} before", most >> 20, before >> 20);
    assert!(most < before + (300 << 20), "{} MiB", most >> 20);
    drop(attacks);
}

#[test]
fn a_peer_leaves_sessions_to_others() {
    let proxy = open_to_all();
    let mut sessions = Vec::new();
    let mut had = Vec::new();
    for number in 2..8 {
        let mut count = 0;
        loop {
            let mut stream = connect_as(number, &proxy).unwrap();
            stream.write_all(&hello()).unwrap();
            match receive(&stream) {
                Some(Answer::Welcome(_)) => sessions.push(stream),
                Some(Answer::Refused(refused)) => {
                    let peer = format!("{count} sessions of 127.0.0.{number} already");
                    assert!(refused.why.contains(&peer), "{}", refused.why);
                    break;
                }
                other => panic!("{other:?}"),
            }
            count += 1;
        }
        had.push(count);
    }
    assert_eq!(had, [64, 32, 16, 8, 4, 2]);
    println!("{:?}", works(&proxy));
}

#[test]
fn sessions_and_objects_of_others_are_out_of_reach() {
    if !may() {
        return;
    }
    let proxy = open_to_all();
    let mut victim = Host::connect(&proxy);
    let map = victim.make_map(MapType::HASH, [4, 8, 10, 0]);
    let token = victim.welcome.token.clone();
    // Even with the token, which it cannot know.
    assert_cannot_join(&proxy, token);
    // Handles are each session's own.
    let mut stream = connect_as(2, &proxy).unwrap();
    stream.write_all(&hello()).unwrap();
    assert!(matches!(receive(&stream), Some(Answer::Welcome(_))));
    let key = vec![0; 4];
    let look_up = Request::LookUp(LookUp { handle: map, key });
    stream.write_all(&framed(2, look_up)).unwrap();
    let found = receive(&stream);
    assert!(
        matches!(&found, Some(Answer::Refused(refused)) if refused.errno == libc::EBADF as u32),
        "{found:?}"
    );
}

#[test]
fn a_recorded_conversation_is_of_no_use() {
    if !may() {
        return;
    }
    let proxy = open_to_all();
    let recorded = hello();
    let greet = || {
        let mut stream = connect_as(2, &proxy).unwrap();
        stream.write_all(&recorded).unwrap();
        match receive(&stream) {
            Some(Answer::Welcome(welcome)) => (stream, welcome.token),
            other => panic!("{other:?}"),
        }
    };
    let (first, token) = greet();
    let (second, other) = greet();
    assert_ne!(token, other);
    // Once more on the same connection.
    (&second).write_all(&recorded).unwrap();
    assert_eq!(receive(&second), None);
    // The token of a session that is over.
    drop(first);
    let of_first = |line: &serde_json::Value| line["event"] == "disconnect";
    eventually(|| proxy.audit().iter().filter(|line| of_first(line)).count() == 2);
    assert_cannot_join(&proxy, token);
}
