//! The client against servers that answer well, slowly, in pieces, or not at all.

use beeline_vm_qmp::{Error, Monitor};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread::JoinHandle;
use std::time::Duration;
use tempfile::TempDir;

const GREETING: &str = r#"{"QMP": {"version": {"qemu": {"micro": 0, "minor": 0, "major": 10}}, "capabilities": ["oob"]}}"#;
const EVENT: &str = r#"{"timestamp": {"seconds": 1, "microseconds": 2}, "event": "NIC_RX_FILTER_CHANGED", "data": {"path": "x"}}"#;
/// For servers that answer, and for those that do not.
const LONG: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(300);

/// A server that follows its script on the one connection that it takes.
struct Server {
    folder: TempDir,
    thread: JoinHandle<()>,
}

impl Server {
    fn start(serve: impl FnOnce(UnixStream) + Send + 'static) -> Server {
        let folder = tempfile::tempdir().expect("a folder");
        let listener = UnixListener::bind(folder.path().join("qmp")).expect("a socket");
        let thread = std::thread::spawn(move || {
            let (stream, _) = listener.accept().expect("a client");
            serve(stream);
        });
        Server { folder, thread }
    }

    /// Greets, and answers each line with the result of `answer`, written in pieces of so many
    /// bytes.
    fn answering(piece: usize, answer: impl Fn(&Value) -> String + Send + 'static) -> Server {
        Server::start(move |mut stream| {
            write(&mut stream, &format!("{GREETING}\r\n"), piece);
            let lines = BufReader::new(stream.try_clone().expect("a copy")).lines();
            for line in lines.map_while(Result::ok) {
                let line = serde_json::from_str(&line).expect("clients write JSON");
                write(&mut stream, &answer(&line), piece);
            }
        })
    }

    fn connect(&self) -> Result<Monitor, Error> {
        self.connect_for(LONG)
    }

    fn connect_for(&self, patience: Duration) -> Result<Monitor, Error> {
        Monitor::connect_with(&self.folder.path().join("qmp"), patience)
    }
}

fn write(stream: &mut UnixStream, text: &str, piece: usize) {
    for piece in text.as_bytes().chunks(piece) {
        // The client may have gone.
        let _ = stream.write_all(piece);
        std::thread::yield_now();
    }
}

/// Returns QEMU's answer to a command.
fn returns(line: &Value, value: &Value) -> String {
    format!("{}\r\n", json!({ "return": value, "id": line["id"] }))
}

fn cpus() -> Value {
    json!([
        { "cpu-index": 0, "thread-id": 101, "target": "x86_64" },
        { "cpu-index": 1, "thread-id": 102, "target": "x86_64" },
    ])
}

#[test]
fn answers_are_found_between_events_however_the_bytes_come() {
    for piece in [1, 3, 64, 4096] {
        let server = Server::answering(piece, |line| {
            let answer = match line["execute"].as_str() {
                Some("query-cpus-fast") => returns(line, &cpus()),
                _ => returns(line, &json!({})),
            };
            format!("{EVENT}\r\n\r\n{EVENT}\r\n{answer}{EVENT}\r\n")
        });
        let mut monitor = server.connect().expect("it greets");
        for _ in 0..3 {
            let vcpus = monitor.vcpus().expect("it answers");
            let threads: Vec<_> = vcpus.iter().map(|vcpu| vcpu.thread).collect();
            assert_eq!(threads, [101, 102], "{piece}");
        }
        drop(monitor);
        server.thread.join().expect("clients write JSON");
    }
}

#[test]
fn a_refusal_is_told_in_qemus_words_and_the_next_command_works() {
    let server = Server::answering(64, |line| match line["execute"].as_str() {
        Some("qmp_capabilities" | "query-status") => returns(line, &json!({ "running": true })),
        _ => format!(
            "{}\r\n",
            json!({ "id": line["id"], "error": { "class": "CommandNotFound", "desc": "The command is not known" } })
        ),
    });
    let mut monitor = server.connect().expect("it greets");
    let error = monitor
        .execute("nonsense", &json!({}))
        .expect_err("it is refused");
    assert_eq!(
        error.to_string(),
        "QEMU refuses nonsense: The command is not known (CommandNotFound)"
    );
    let status = monitor
        .execute("query-status", &json!({}))
        .expect("it answers");
    assert_eq!(status["running"], true);
}

#[test]
fn an_answer_to_another_command_is_not_taken() {
    let server = Server::answering(64, |line| {
        let late = json!({ "return": "late", "id": line["id"].as_u64().map(|id| id - 1) });
        format!("{late}\n{}", returns(line, &json!("mine")))
    });
    let mut monitor = server.connect().expect("it greets");
    let answer = monitor.execute("second", &json!({}));
    assert_eq!(answer.expect("it answers"), "mine");
}

#[test]
fn a_server_that_does_not_answer_is_given_up() {
    let drips = Server::start(|mut stream| {
        while stream.write_all(b" ").is_ok() {
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    assert!(matches!(drips.connect_for(SHORT), Err(Error::Busy)));

    let greets = Server::start(|mut stream| {
        while stream
            .write_all(format!("{GREETING}\n{EVENT}\n").as_bytes())
            .is_ok()
        {
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    let error = greets.connect_for(SHORT).expect_err("it answers nothing");
    // Busy where this machine is.
    assert!(matches!(error, Error::Timeout(_) | Error::Busy), "{error}");
}

#[test]
fn a_peer_that_is_no_monitor_is_named() {
    type Is = fn(&Error) -> bool;
    let cases: [(&str, Is); 5] = [
        ("", |error| matches!(error, Error::Closed)),
        (
            "QEMU 10.0 monitor - type 'help'\n",
            |error| matches!(error, Error::NotQmp(said) if said.starts_with("QEMU 10.0")),
        ),
        ("\u{fffd}\n", |error| matches!(error, Error::NotQmp(_))),
        ("{\"return\": {}}\n", |error| {
            matches!(error, Error::NotQmp(_))
        }),
        ("{\"QMP\": {}}\n][\n", |error| {
            matches!(error, Error::Garbage(_))
        }),
    ];
    for (said, is_right) in cases {
        let server = Server::start(move |mut stream| {
            stream.write_all(said.as_bytes()).expect("the client reads");
            if !said.is_empty() {
                // So that the bytes are read before the end.
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        let error = server.connect().expect_err("that is no monitor");
        assert!(is_right(&error), "{said:?}: {error}");
    }
    let nobody = Monitor::connect("/nonexistent/qmp".as_ref()).expect_err("nobody is there");
    assert!(
        nobody.to_string().contains("-qmp unix:/nonexistent/qmp"),
        "{nobody}"
    );
}

#[test]
fn a_line_without_an_end_is_given_up() {
    let server = Server::start(|mut stream| {
        let _ = stream.write_all(format!("{GREETING}\n\"").as_bytes());
        let piece = [b'x'; 1 << 16];
        while stream.write_all(&piece).is_ok() {}
    });
    let error = server.connect().expect_err("the line has no end");
    assert!(
        matches!(error, Error::Garbage(ref what) if what.contains("bytes")),
        "{error}"
    );
    server.thread.join().expect("the client hangs up");
}

#[test]
fn a_monitor_that_closes_is_told_from_one_that_is_silent() {
    let server = Server::answering(64, |line| returns(line, &json!({})));
    let mut monitor = server.connect().expect("it greets");
    assert!(monitor.execute("query-status", &json!({})).is_ok());

    let server = Server::start(|mut stream| {
        let _ = stream.write_all(format!("{GREETING}\n").as_bytes());
        let mut line = String::new();
        let _ = BufReader::new(stream).read_line(&mut line);
    });
    assert!(matches!(server.connect(), Err(Error::Closed)));
}
