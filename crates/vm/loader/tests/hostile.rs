//! A lying proxy: whatever it says, the host gets an error that names it, and goes on.

use beeline_isa::{Insn, opcode};
use beeline_object::{MapDefinition, Object, ObjectProgram, SectionKind};
use beeline_vm_loader::{Attachment, Error, Event, Guest, Loaded, Selection, Watching};
use beeline_vm_protocol::VERSION;
use beeline_vm_protocol::address::Address;
use beeline_vm_protocol::conversation;
use beeline_vm_protocol::listen::Listener;
use beeline_vm_protocol::messages::guest_message::Body as Said;
use beeline_vm_protocol::messages::host_message::Body as Asked;
use beeline_vm_protocol::messages::{
    BpfDone, Done, File, GuestMessage, HostMessage, Iterated, Opened, Records, Welcome,
};
use std::time::{Duration, Instant};

use beeline_uapi::{Command, MapType};
use tempfile::TempDir;

const RING: u32 = 4096;

/// An object with a ring, a map and a program.
fn object() -> Object {
    let map = |name: &str, map_type, key_size, value_size, max_entries| MapDefinition {
        name: name.into(),
        map_type,
        key_size,
        value_size,
        max_entries,
        ..MapDefinition::default()
    };
    let insn = |code| Insn {
        code,
        ..Insn::default()
    };
    Object {
        programs: vec![ObjectProgram {
            name: "program".into(),
            section: "raw_tp/sys_enter".into(),
            kind: SectionKind::of("raw_tp/sys_enter"),
            autoload: true,
            insns: vec![
                insn(opcode::ALU64 | opcode::MOV),
                insn(opcode::JMP | opcode::EXIT),
            ],
            ..ObjectProgram::default()
        }],
        maps: vec![
            map("ring", MapType::RINGBUF, 0, 0, RING),
            map("map", MapType::HASH, 4, 8, 16),
        ],
        license: "GPL".into(),
        ..Object::default()
    }
}

/// An honest proxy's answer.
fn honest(asked: &Asked, count: u32) -> Said {
    match asked {
        Asked::Bpf(_) => Said::BpfDone(BpfDone {
            handle: count,
            ..BpfDone::default()
        }),
        Asked::PerfEventOpen(_) => Said::Opened(Opened { handle: count }),
        Asked::Iterate(_) => Said::Iterated(Iterated {
            end: true,
            ..Iterated::default()
        }),
        Asked::Look(_) => Said::File(File::default()),
        _ => Said::Done(Done {}),
    }
}

/// A proxy that answers by `says`, followed by messages of its own. `None` closes the connection.
struct Proxy {
    _folder: TempDir,
    address: Address,
}

type Says = fn(&Asked, u32) -> Option<(Said, Vec<Said>)>;

impl Proxy {
    fn start(says: Says) -> Proxy {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("proxy");
        let address = Address::Unix { path };
        let listener = Listener::new(&address, None).expect("it listens");
        std::thread::spawn(move || {
            let channel = listener.wait().expect("a host").accept().expect("a host");
            let (mut receiver, sender) = conversation::begin(channel).expect("a thread");
            let mut count = 0;
            while let Ok(Some(message)) = receiver.receive::<HostMessage>() {
                let Some(asked) = message.body else { break };
                let said = match &asked {
                    Asked::Hello(_) => {
                        let welcome = Welcome {
                            version: VERSION,
                            machine: "x86_64".into(),
                            possible_cpus: 2,
                            page_size: 4096,
                            ..Welcome::default()
                        };
                        Some((Said::Welcome(welcome), Vec::new()))
                    }
                    asked => {
                        count += 1;
                        says(asked, count)
                    }
                };
                let Some((answer, own)) = said else { break };
                let own = own.into_iter().map(|said| (0, said));
                for (id, said) in [(message.id, answer)].into_iter().chain(own) {
                    let body = Some(said);
                    if sender.send(&GuestMessage { id, body }).is_err() {
                        return;
                    }
                }
            }
            sender.end();
        });
        Proxy {
            _folder: folder,
            address,
        }
    }

    /// Loads, watches, attaches, and takes the first event or waits a moment for it.
    fn visit(&self) -> Result<(Loaded, Option<Event>), Error> {
        let guest = Guest::connect(&self.address, None, "test")?;
        let mut loaded = guest.load(&object(), &Selection::default())?;
        loaded.watch(&Watching {
            interval: Duration::from_millis(10),
            ..Watching::default()
        })?;
        loaded.attach(&Attachment::default())?;
        let event = loaded.next_event(Some(Instant::now() + Duration::from_secs(1)))?;
        Ok((loaded, event))
    }
}

fn records(handle: u32, data: Vec<u8>) -> Said {
    Said::Records(Records { handle, data })
}

/// The ring is the first object created.
const RING_HANDLE: u32 = 1;

/// Sends messages of its own when it is asked to watch a ring.
fn at_watch(asked: &Asked, count: u32, own: Vec<Said>) -> Option<(Said, Vec<Said>)> {
    let own = if matches!(asked, Asked::Watch(_)) {
        own
    } else {
        Vec::new()
    };
    Some((honest(asked, count), own))
}

#[test]
fn an_honest_proxys_records_are_events() {
    let proxy = Proxy::start(|asked, count| {
        let data = vec![3, 0, 0, 0, 0, 0, 0, 0, 7, 8, 9, 0, 0, 0, 0, 0];
        at_watch(
            asked,
            count,
            vec![records(99, vec![1]), records(RING_HANDLE, data)],
        )
    });
    let (loaded, event) = proxy.visit().expect("it is honest");
    let expected = Event::Record {
        map: 0,
        cpu: None,
        data: vec![7, 8, 9],
    };
    assert_eq!(event, Some(expected));
    assert_eq!(loaded.attached().len(), 1);
}

#[test]
fn lies_are_named() {
    let lies: [(&str, Says); 8] = [
        ("object without a handle", |asked, _| {
            Some((honest(asked, 0), Vec::new()))
        }),
        ("answer to another question", |_, _| {
            Some((Said::Opened(Opened { handle: 1 }), Vec::new()))
        }),
        ("answer to another question", |_, _| {
            Some((Said::Done(Done {}), Vec::new()))
        }),
        ("do not end where they should", |asked, count| {
            at_watch(asked, count, vec![records(RING_HANDLE, vec![0xff; 16])])
        }),
        ("more records than it was allowed", |asked, count| {
            let flood = vec![0; RING as usize + 8];
            at_watch(asked, count, vec![records(RING_HANDLE, flood)])
        }),
        ("other lengths", |asked, count| {
            let mut said = honest(asked, count);
            if let Said::Iterated(iterated) = &mut said {
                iterated.keys = vec![0; 7];
            }
            Some((said, Vec::new()))
        }),
        ("more elements than it was asked for", |asked, count| {
            let mut said = honest(asked, count);
            if let Said::Iterated(iterated) = &mut said {
                iterated.keys = vec![0; 4 * 100_000];
                iterated.values = vec![0; 8 * 100_000];
            }
            Some((said, Vec::new()))
        }),
        ("the guest is lost", |asked, count| match asked {
            Asked::Bpf(bpf) if bpf.command == Command::PROG_LOAD.0 => None,
            asked => Some((honest(asked, count), Vec::new())),
        }),
    ];
    for (expected, says) in lies {
        let proxy = Proxy::start(says);
        let error = proxy.visit().map(|(_, event)| event).expect_err(expected);
        let said = error.to_string();
        assert!(said.contains(expected), "{expected}: {said}");
    }
}

/// An iteration through a map that never ends is aborted, and the wait goes on.
#[test]
fn a_map_without_an_end_is_left() {
    let proxy = Proxy::start(|asked, count| {
        let said = match asked {
            Asked::Iterate(_) => Said::Iterated(Iterated {
                keys: count.to_ne_bytes().to_vec(),
                values: vec![0; 8],
                end: false,
            }),
            asked => honest(asked, count),
        };
        Some((said, Vec::new()))
    });
    let (_, event) = proxy.visit().expect("that is no reason to end");
    let of_map = |event: &Event| {
        matches!(
            event,
            Event::Set { map: 1, .. } | Event::Deleted { map: 1, .. }
        )
    };
    assert!(event.as_ref().is_some_and(of_map), "{event:?}");
}
