//! Messages over each kind of channel, in both directions.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread::{JoinHandle, spawn};
use std::time::{Duration, Instant};

use beeline_vm_protocol::address::Address;
use beeline_vm_protocol::channel::Channel;
use beeline_vm_protocol::conversation;
use beeline_vm_protocol::listen::Listener;
use beeline_vm_protocol::messages::host_message::Body;
use beeline_vm_protocol::messages::{Bpf, HostMessage};
use beeline_vm_protocol::tls::Tls;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

fn message(id: u64, bytes: usize) -> HostMessage {
    let attr = (0..bytes).map(|at| (at * 7) as u8).collect();
    let body = Some(Body::Bpf(Bpf {
        attr,
        ..Bpf::default()
    }));
    HostMessage { id, body }
}

/// Serves connections: sends each message back.
fn echo(listener: Listener, connections: usize) -> JoinHandle<Vec<std::io::Result<()>>> {
    spawn(move || {
        let serve = |_| {
            let channel = listener.wait().unwrap().accept()?;
            let (mut receiver, sender) = conversation::begin(channel)?;
            while let Ok(Some(message)) = receiver.receive::<HostMessage>() {
                sender.send(&message)?;
            }
            sender.end();
            Ok(())
        };
        (0..connections).map(serve).collect()
    })
}

/// Sends requests short and long, before the answers are read.
fn ask(address: &Address, tls: Option<&Tls>) {
    let channel = Channel::connect(address, tls).unwrap();
    let (mut receiver, sender) = conversation::begin(channel).unwrap();
    const LENGTHS: [usize; 6] = [0, 1, 20_000, 3_000_000, 5, 100_000];
    let asking = spawn({
        let sender = sender.clone();
        move || {
            for (id, bytes) in LENGTHS.into_iter().enumerate() {
                sender.send(&message(id as u64 + 1, bytes)).unwrap();
            }
        }
    });
    for (id, bytes) in LENGTHS.into_iter().enumerate() {
        let answer = receiver.receive().unwrap();
        assert!(
            answer == Some(message(id as u64 + 1, bytes)),
            "{bytes} bytes are not those that were sent"
        );
    }
    asking.join().unwrap();
    sender.end();
}

#[test]
fn unix_sockets_carry_messages() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let address = Address::Unix { path: path.clone() };
    // Remains of an earlier process are no obstacle; an address in use is.
    drop(UnixListener::bind(&path).unwrap());
    let listener = Listener::new(&address, None).unwrap();
    assert!(Listener::new(&address, None).is_err());
    // One of them was the other listener's, which has checked for a listener here.
    let served = echo(listener, 3);
    ask(&address, None);
    ask(&address, None);
    served.join().unwrap();
    assert!(!path.exists());
    let error = Channel::connect(&address, None).unwrap_err().to_string();
    assert!(error.contains("beeline guest"), "{error}");
}

#[test]
fn tcp_is_insecure_only_if_it_is_said() {
    let address = |text: &str| text.parse::<Address>().unwrap();
    let listener = Listener::new(&address("tcp+insecure:127.0.0.1:0"), None).unwrap();
    let place = listener.address();
    let served = echo(listener, 1);
    ask(&place, None);
    served.join().unwrap();
    for text in ["tcp:127.0.0.1:1", "tcp:[::1]:1"] {
        let error = Channel::connect(&address(text), None)
            .unwrap_err()
            .to_string();
        assert!(error.contains("--tls-cert"), "{error}");
        assert!(Listener::new(&address(text), None).is_err());
    }
}

/// An authority that signs certificates.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// A certificate for a name, in files.
    fn tls(&self, dir: &Path, name: &str, other: &Authority) -> Tls {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        let file = |kind: &str, text: String| {
            let number = std::fs::read_dir(dir).unwrap().count();
            let path = dir.join(format!("{number}.{kind}"));
            std::fs::write(&path, text).unwrap();
            path
        };
        Tls {
            certificate: file("cert", certificate.pem()),
            key: file("key", key.serialize_pem()),
            authority: file("ca", other.0.as_ref().pem()),
            name: None,
        }
    }
}

#[test]
fn both_sides_of_tls_show_certificates() {
    let dir = tempfile::tempdir().unwrap();
    let (good, other) = (Authority::new(), Authority::new());
    let guest = good.tls(dir.path(), "127.0.0.1", &good);
    let listener = Listener::new(&"tcp:127.0.0.1:0".parse().unwrap(), Some(&guest)).unwrap();
    let place = listener.address();
    let served = echo(listener, 5);
    ask(&place, Some(&good.tls(dir.path(), "host", &good)));
    // A host that the guest does not trust learns it at the first read.
    let stranger = other.tls(dir.path(), "host", &good);
    let heard = Channel::connect(&place, Some(&stranger))
        .map_err(|error| error.to_string())
        .and_then(|channel| {
            let (mut receiver, _sender) = conversation::begin(channel).unwrap();
            let received = receiver.receive::<HostMessage>();
            received.map_err(|error| error.to_string())
        });
    assert!(
        heard.clone().unwrap_err().contains("fatal alert"),
        "{heard:?}"
    );
    // A guest that the host does not trust, or with another name.
    let doubter = good.tls(dir.path(), "host", &other);
    let error = Channel::connect(&place, Some(&doubter))
        .unwrap_err()
        .to_string();
    assert!(error.contains("certificate"), "{error}");
    let mut elsewhere = good.tls(dir.path(), "host", &good);
    elsewhere.name = Some("another.example".into());
    let error = Channel::connect(&place, Some(&elsewhere))
        .unwrap_err()
        .to_string();
    assert!(error.contains("certificate"), "{error}");
    // A peer without TLS.
    let mut plain =
        std::net::TcpStream::connect(place.to_string().trim_start_matches("tcp:")).unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let mut rest = Vec::new();
    // Reset or ended: it is over.
    let _ = plain.read_to_end(&mut rest);
    let served = served.join().unwrap();
    let good: Vec<bool> = served.iter().map(Result::is_ok).collect();
    assert_eq!(good, [true, false, false, false, false], "{served:?}");
}

/// A virtual machine monitor's socket: answers the first line with `answer`, and then sends
/// everything back.
fn monitor(path: &Path, answer: &'static str) -> JoinHandle<String> {
    let listener = UnixListener::bind(path).unwrap();
    spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        (&stream).write_all(answer.as_bytes()).unwrap();
        if answer.starts_with("OK") {
            let _ = std::io::copy(&mut reader, &mut &stream);
        }
        line
    })
}

#[test]
fn monitors_are_asked_for_the_port() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("vm.vsock");
    let address = Address::Uds {
        path: path.clone(),
        port: 77,
    };
    let asked = monitor(&path, "OK 1073741824\n");
    ask(&address, None);
    assert_eq!(asked.join().unwrap(), "CONNECT 77\n");
    for (answer, said) in [("", "beeline guest"), ("ERROR no\n", "ERROR no")] {
        std::fs::remove_file(&path).unwrap();
        let asked = monitor(&path, answer);
        let error = Channel::connect(&address, None).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
        asked.join().unwrap();
    }
    assert!(Listener::new(&address, None).is_err());
}

/// A serial line: a terminal for the guest, whose other end goes over a socket, one connection
/// after the other.
fn line(path: &Path) -> String {
    // SAFETY: makes a descriptor that is ours alone; the others work on that one, with a buffer as
    // long as they are told.
    let (master, name) = unsafe {
        let master = libc::posix_openpt(libc::O_RDWR | libc::O_NOCTTY);
        assert!(master >= 0);
        let master = OwnedFd::from_raw_fd(master);
        assert_eq!(libc::grantpt(master.as_raw_fd()), 0);
        assert_eq!(libc::unlockpt(master.as_raw_fd()), 0);
        let mut name = [0_u8; 64];
        let named = libc::ptsname_r(master.as_raw_fd(), name.as_mut_ptr().cast(), name.len());
        assert_eq!(named, 0);
        let end = name.iter().position(|byte| *byte == 0).unwrap();
        (master, String::from_utf8(name[..end].to_vec()).unwrap())
    };
    let master = File::from(master);
    let listener = UnixListener::bind(path).unwrap();
    spawn(move || {
        let current: std::sync::Arc<parking_lot::Mutex<Option<UnixStream>>> = Default::default();
        let back = current.clone();
        let mut from = master.try_clone().unwrap();
        spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count) = from.read(&mut buffer) {
                if let Some(stream) = &mut *back.lock() {
                    // A host that has gone gets nothing.
                    let _ = stream.write_all(&buffer[..count]);
                }
            }
        });
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            *current.lock() = Some(stream.try_clone().unwrap());
            let mut to = &master;
            let _ = std::io::copy(&mut stream, &mut to);
        }
    });
    name
}

#[test]
fn serial_lines_find_their_feet_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("line");
    let device = line(&path);
    // The terminal stays open, and raw, whichever hosts come and go.
    let guest: Address = format!("serial:{device}").parse().unwrap();
    let listener = Listener::new(&guest, None).unwrap();
    echo(listener, 4);
    let host = Address::Serial { path: path.clone() };
    ask(&host, None);
    // Stray bytes, and a host that dies in the middle of a message.
    let mut noise = UnixStream::connect(&path).unwrap();
    noise.write_all(&[0x55; 5000]).unwrap();
    drop(noise);
    let start = Instant::now();
    let channel = Channel::connect(&host, None).unwrap();
    let (_, mut writer) = channel.split();
    writer.write_all(&[0, 0, 1, 0, 1, 2, 3]).unwrap();
    writer.cutter().cut();
    drop(writer);
    ask(&host, None);
    println!("after noise: {:?}", start.elapsed());
}

#[test]
fn a_cut_reaches_both_sides_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let address = Address::Unix {
        path: dir.path().join("socket"),
    };
    let listener = Listener::new(&address, None).unwrap();
    let served = echo(listener, 1);
    let channel = Channel::connect(&address, None).unwrap();
    let (mut receiver, sender) = conversation::begin(channel).unwrap();
    let start = Instant::now();
    let waiting = spawn(move || receiver.receive::<HostMessage>().ok().flatten());
    std::thread::sleep(Duration::from_millis(50));
    sender.end();
    assert_eq!(waiting.join().unwrap(), None);
    served.join().unwrap();
    println!("after the cut: {:?}", start.elapsed());
}

#[test]
fn a_side_that_is_silent_for_longer_than_it_may_be_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let address = Address::Unix { path };
    let listener = Listener::new(&address, None).unwrap();
    let channel = Channel::connect(&address, None).unwrap();
    channel.set_patience(Duration::from_millis(100)).unwrap();
    let silent = listener.wait().unwrap().accept().unwrap();
    let begin = Instant::now();
    let (mut receiver, _sender) = conversation::open(channel);
    let error = receiver.receive::<HostMessage>().unwrap_err().to_string();
    assert!(
        error.contains("nothing has been heard for 0.1 s"),
        "{error}"
    );
    assert!(begin.elapsed() >= Duration::from_millis(100));
    drop(silent);
}
