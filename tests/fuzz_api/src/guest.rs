//! Messages between hosts and guests, and files by the guest's owner.

use beeline_agent::fast_path::lookup_channel;
use beeline_uapi::fields::put_u32;
use beeline_uapi::{AttachType, Command, ProgramType};
use beeline_vm_memory::tree;
use beeline_vm_protocol::address::Address;
use beeline_vm_protocol::frame;
use beeline_vm_protocol::info::{self, Kind};
use beeline_vm_protocol::messages::guest_message::Body as Said;
use beeline_vm_protocol::messages::host_message::Body as Asked;
use beeline_vm_protocol::messages::{
    Bpf, BpfDone, Content, GuestMessage, HostMessage, Look, LookUp, Part, PerfEventOpen, Records,
    Refused,
};
use prost::Message;

pub use beeline_vm_proxy::fuzz_api::{host_message, policy};

/// Reads a guest's bytes as a host does: frames, and in them messages, with structures of the
/// kernel's.
pub fn guest_message(data: &[u8]) {
    channel_answer(data);
    first_frame(data);
    let mut stream = data;
    while let Ok(Some(message)) = frame::read::<GuestMessage>(&mut stream) {
        if let Some(Said::BpfDone(done)) = message.body {
            for part in done.parts {
                for kind in [Kind::Map, Kind::Program, Kind::Btf, Kind::Link] {
                    for buffer in info::buffers(kind, &part.data) {
                        let _ = buffer.len.bytes(&part.data, None);
                    }
                }
            }
        }
    }
}

/// A frame accepted as whole on arrival is a valid frame.
fn first_frame(data: &[u8]) {
    if let Ok(Some(message)) = frame::first(frame::LONGEST, data) {
        let wanted = GuestMessage::decode(message).ok();
        let read = frame::read::<GuestMessage>(&mut &*data);
        assert_eq!(read.ok().flatten(), wanted);
    }
}

/// The id of the request that the answers on a look-up channel are for.
const CHANNEL_ID: u32 = 7;

/// A message accepted as an answer on a look-up channel is an answer.
fn channel_answer(data: &[u8]) {
    for len in [1, 8, 300] {
        let said = match lookup_channel::answer(data, CHANNEL_ID, len) {
            Some(lookup_channel::Answer::Value(value)) => Said::Content(Content {
                data: value.to_vec(),
                end: false,
            }),
            Some(lookup_channel::Answer::Refused(errno)) => Said::Refused(Refused {
                errno: errno as u32,
                ..Refused::default()
            }),
            Some(lookup_channel::Answer::Explained) | None => continue,
        };
        let message = frame::read::<GuestMessage>(&mut &*data);
        let id = CHANNEL_ID.into();
        let body = Some(said);
        assert_eq!(message.ok().flatten(), Some(GuestMessage { id, body }));
    }
}

/// Parses a guest's address: an accepted one is printed, and the print parses to the same.
pub fn address(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    if let Ok(address) = text.parse::<Address>() {
        assert_eq!(address.to_string().parse(), Ok(address));
    }
}

/// Parses QEMU's description of a machine's memory, and a user's.
pub fn memory_tree(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for range in tree::memory(&text) {
        assert!(range.start() <= range.end());
    }
    tree::host_address(&text);
    for line in text.lines() {
        if let Ok(part) = line.parse::<beeline_vm_memory::Part>() {
            assert_eq!(part.to_string().parse(), Ok(part));
        }
    }
}

/// In QEMU's print format.
pub fn memory_seeds() -> Vec<(String, Vec<u8>)> {
    let directory = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../crates/vm/memory/tests/qemu"
    );
    let mut seeds = crate::seeds::files(std::path::Path::new(directory));
    let parts = b"/dev/shm/m@0x100000000,0x80000000,0\nm@0\na@b\n".to_vec();
    seeds.push(("parts".to_owned(), parts));
    let address = b"Host virtual address for 0x0 (mem0) is 0x7fa463fff000".to_vec();
    seeds.push(("address".to_owned(), address));
    seeds
}

fn part(at: u32, data: &[u8], room: u32) -> Part {
    Part {
        at,
        data: data.to_vec(),
        room,
    }
}

fn named(name: &str, body: Asked) -> (String, Vec<u8>) {
    let message = HostMessage {
        id: 1,
        body: Some(body),
    };
    (name.to_owned(), message.encode_to_vec())
}

fn bpf(command: Command, words: &[u32], len: usize, parts: Vec<Part>) -> Asked {
    let mut attr = vec![0; len];
    for (number, word) in words.iter().enumerate() {
        put_u32(&mut attr, number * 4, *word);
    }
    Asked::Bpf(Bpf {
        command: command.0,
        attr,
        parts,
        ..Bpf::default()
    })
}

/// Returns requests of each kind that is composed.
pub fn host_seeds() -> Vec<(String, Vec<u8>)> {
    // r1 = the map with handle 1; bpf_map_lookup_elem; exit
    const INSNS: [u8; 32] = [
        0x18, 0x11, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x85, 0, 0, 0, 1, 0, 0, 0, 0x95, 0,
        0, 0, 0, 0, 0, 0,
    ];
    let load = vec![part(8, &INSNS, 0), part(16, b"GPL", 0), part(32, &[], 64)];
    let batch = [0, 0, 0, 0, 0, 0, 0, 0, 3, 1];
    let multi = [5, 0, AttachType::TRACE_KPROBE_MULTI.0, 0, 0, 2];
    vec![
        named(
            "look_up",
            bpf(
                Command::MAP_LOOKUP_ELEM,
                &[1],
                32,
                vec![part(8, &[0; 4], 0), part(16, &[], 8)],
            ),
        ),
        named(
            "per_cpu",
            bpf(
                Command::MAP_UPDATE_ELEM,
                &[2],
                32,
                vec![part(8, &[0; 4], 0), part(16, &[0; 32], 0)],
            ),
        ),
        named(
            "element",
            bpf(
                Command::MAP_UPDATE_ELEM,
                &[3],
                32,
                vec![part(8, &[0; 4], 0), part(16, &[5, 0, 0, 0], 0)],
            ),
        ),
        named(
            "load",
            bpf(
                Command::PROG_LOAD,
                &[ProgramType::KPROBE.0, 4, 0, 0, 0, 0, 1, 64],
                152,
                load,
            ),
        ),
        named(
            "batch",
            bpf(
                Command::MAP_LOOKUP_BATCH,
                &batch,
                56,
                vec![part(8, &[], 4), part(16, &[], 12), part(24, &[], 24)],
            ),
        ),
        named(
            "multi",
            bpf(
                Command::LINK_CREATE,
                &multi,
                64,
                vec![part(24, b"vfs_read\0vfs_write\0", 0)],
            ),
        ),
        named(
            "tracepoint",
            bpf(
                Command::RAW_TRACEPOINT_OPEN,
                &[0, 0, 5],
                24,
                vec![part(0, b"sys_enter", 0)],
            ),
        ),
        named(
            "event",
            Asked::PerfEventOpen(PerfEventOpen {
                attr: [1, 0, 0, 0, 112, 0, 0, 0]
                    .into_iter()
                    .chain([0; 104])
                    .collect(),
                pid: -1,
                ..PerfEventOpen::default()
            }),
        ),
        named(
            "short_look_up",
            Asked::LookUp(LookUp {
                handle: 1,
                key: vec![0; 4],
            }),
        ),
        named(
            "look",
            Asked::Look(Look {
                path: "/sys/kernel/tracing/events/sched/sched_switch/id".into(),
                content: true,
                from: 0,
                held: vec![7; 32],
            }),
        ),
    ]
}

/// Returns frames with answers.
pub fn guest_seeds() -> Vec<(String, Vec<u8>)> {
    let bodies = [
        (
            "records",
            Said::Records(Records {
                handle: 1,
                data: vec![8; 16],
            }),
        ),
        (
            "done",
            Said::BpfDone(BpfDone {
                attr: vec![0; 16],
                parts: vec![part(8, &[3; 232], 0)],
                ..BpfDone::default()
            }),
        ),
        (
            "content",
            Said::Content(Content {
                data: vec![5; 8],
                end: false,
            }),
        ),
        (
            "refused",
            Said::Refused(Refused {
                errno: 2,
                ..Refused::default()
            }),
        ),
    ];
    let seed = |(name, body): (&str, Said)| {
        let message = GuestMessage {
            id: CHANNEL_ID.into(),
            body: Some(body),
        };
        let mut bytes = Vec::new();
        // A vector accepts every write, and the message is short.
        let _ = frame::write(&mut bytes, &message);
        (name.to_owned(), bytes)
    };
    bodies.into_iter().map(seed).collect()
}

/// Returns one of each kind.
pub fn address_seeds() -> Vec<(String, Vec<u8>)> {
    let texts = [
        "vsock:any:8790",
        "uds:/run/vm.sock:52",
        "unix:/run/x",
        "tcp:[fd00::7]:8790",
        "tcp+insecure:10.0.0.7:1",
        "serial:/dev/vport0p1",
    ];
    let seed = |text: &str| (text.replace(['/', ':'], "-"), text.as_bytes().to_vec());
    texts.into_iter().map(seed).collect()
}

/// A policy with every key, and a pattern.
pub fn policy_seeds() -> Vec<(String, Vec<u8>)> {
    const ALL: &str = "name = \"x\"\n[programs]\ntypes = [\"kprobe\"]\nhelpers = [\"map_*\"]\ndeny-helpers = [\"probe_*\"]\nsigned-by = []\n\
        [attach]\nallow = [\"kprobe:vfs_*\"]\ndeny = [\"**\"]\n[maps]\nbytes = 1\ntotal-bytes = 2\n[objects]\nforeign = true\n";
    vec![
        ("all".to_owned(), ALL.into()),
        (
            "pattern".to_owned(),
            b"uprobe:/usr/**/a?*:*\nuprobe:/usr/lib/x/abc:0x12".to_vec(),
        ),
    ]
}
