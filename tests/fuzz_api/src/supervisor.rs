//! A tool's system calls: attributes, and the memory that they point to.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, LazyLock};

use beeline_bpf_syscall::fuzz_api::Tool;
use beeline_uapi::perf::ioc;
use beeline_uapi::{AttachType, Command, Errno, MapType, ProgramType, nr};
use parking_lot::Mutex;
use rustix::io::fcntl_dupfd_cloexec;

use crate::backend::Pretended;

/// The first of the tool's descriptors, above this process's own.
const FIRST: i32 = 600;
/// The tool's descriptors: maps of several types, types, programs, events and a link.
const DESCRIPTORS: u64 = 14;
/// The indices of types, a program for probes, an event that it is attached to, and an event
/// without a program.
const BTF: u64 = 7;
const PROBE: u64 = 8;
const EVENT: u64 = 10;
const FREE_EVENT: u64 = 13;
/// Calls that one input makes.
const MOST_CALLS: usize = 4;
/// Bytes of a call: its kind, its number or command, the size of its attribute, and where that is,
/// in words.
const CALL: usize = 4;

const BPF: i64 = nr::BPF as i64;
const PERF_EVENT_OPEN: i64 = nr::PERF_EVENT_OPEN as i64;
const IOCTL: i64 = nr::IOCTL as i64;
const POLL: i64 = nr::POLL as i64;
const SELECT: i64 = nr::SELECT as i64;
const MMAP: i64 = nr::MMAP as i64;

/// A tool that has descriptors of all kinds of objects.
struct World {
    tool: Tool,
    _descriptors: Vec<OwnedFd>,
}

/// One for all threads, as descriptors belong to a process.
static WORLD: LazyLock<Mutex<World>> =
    LazyLock::new(|| Mutex::new(World::new().expect("a tool with descriptors")));

/// Calls of a tool: how many, then each (`CALL`), then its memory.
pub fn tool_calls(data: &[u8]) {
    tool_answers(data);
}

/// Does the same, and returns the answers.
pub fn tool_answers(data: &[u8]) -> Vec<Result<(), Errno>> {
    let calls = data.split_first().and_then(|(&count, data)| {
        let count = 1 + usize::from(count) % MOST_CALLS;
        data.split_at_checked(count * CALL)
    });
    let Some((calls, memory)) = calls else {
        return Vec::new();
    };
    let mut world = WORLD.lock();
    let calls = calls.as_chunks().0.iter();
    let answers = calls.map(|call| world.call(*call, memory)).collect();
    world.tool.unpin_all();
    answers
}

impl World {
    fn new() -> io::Result<Self> {
        let tool = Tool::new(Arc::new(Pretended::default()))?;
        let mut world = Self {
            tool,
            _descriptors: Vec::new(),
        };
        for (number, arguments, memory) in openings() {
            let file = world.tool.open(number, arguments, &memory);
            let file = file.map_err(|errno| {
                let error = io::Error::from_raw_os_error(errno.0);
                io::Error::other(format!("descriptor {}: {error}", world._descriptors.len()))
            })?;
            // So the numbers are the same in every run.
            let file = fcntl_dupfd_cloexec(file, FIRST)?;
            world._descriptors.push(file);
        }
        debug_assert_eq!(world._descriptors.len() as u64, DESCRIPTORS);
        Ok(world)
    }

    fn call(&self, [kind, number, size, place]: [u8; CALL], memory: &[u8]) -> Result<(), Errno> {
        let address = Tool::MEMORY + 8 * u64::from(place);
        let word = |at: usize| {
            let from = 8 * (usize::from(place) + at);
            let bytes = memory.get(from..from + 8).unwrap_or_default();
            u64::from_le_bytes(bytes.try_into().unwrap_or_default())
        };
        let fd = fd(u64::from(number) % DESCRIPTORS);
        let (number, arguments) = match kind % 8 {
            0..=2 => (BPF, [u64::from(number), address, u64::from(size), 0, 0, 0]),
            3 => {
                // A process and a CPU, and that it is closed on exec.
                let (pid, cpu) = (i64::from(size as i8) as u64, i64::from(number as i8) as u64);
                (PERF_EVENT_OPEN, [address, pid, cpu, u64::MAX, 8, 0])
            }
            4 => (IOCTL, [fd, word(0), word(1), 0, 0, 0]),
            5 => (POLL, [address, u64::from(size), 0, 0, 0, 0]),
            6 => (SELECT, [8 * u64::from(size), address, 0, 0, 0, 0]),
            _ => (MMAP, [0, word(0), word(1), 1, fd, word(2)]),
        };
        self.tool.call(number, arguments, memory)
    }
}

/// The size of `struct perf_event_attr`, in the upper half of its first word.
const EVENT_SIZE: u64 = 112 << 32;

/// Returns the bytes of an attribute: numbers at their offsets.
fn attribute(words: &[(usize, u64)]) -> Vec<u8> {
    let mut bytes = vec![0; 168];
    for &(at, number) in words {
        let wide = number.to_le_bytes();
        let len = if number > u64::from(u32::MAX) { 8 } else { 4 };
        bytes[at..at + len].copy_from_slice(&wide[..len]);
    }
    bytes
}

fn fd(number: u64) -> u64 {
    FIRST as u64 + number
}

type Opening = (i64, [u64; 6], Vec<u8>);

/// Returns calls that make the tool's objects, in the order of their descriptors.
fn openings() -> Vec<Opening> {
    let bpf = |command: Command, memory: Vec<u8>| {
        let arguments = [command.0.into(), Tool::MEMORY, 168, 0, 0, 0];
        (BPF, arguments, memory)
    };
    let map = |kind: MapType, key, value, entries, more: &[(usize, u64)]| {
        let mut words = vec![(0, kind.0.into()), (4, key), (8, value), (12, entries)];
        words.extend(more);
        bpf(Command::MAP_CREATE, attribute(&words))
    };
    let maps = [
        map(MapType::HASH, 4, 8, 16, &[]),
        // A large value, of which batches read many.
        map(MapType::ARRAY, 4, 1 << 20, 1 << 16, &[]),
        map(MapType::PERCPU_HASH, 40, 3, 1 << 30, &[]),
        map(MapType::PROG_ARRAY, 4, 4, 16, &[]),
        map(MapType::ARRAY_OF_MAPS, 4, 4, 16, &[(20, fd(0))]),
        map(MapType::RINGBUF, 0, 0, 4096, &[]),
        map(MapType::PERF_EVENT_ARRAY, 4, 4, 2, &[]),
    ];
    let mut all = maps.to_vec();
    let memory = [
        attribute(&[(0, behind(0)), (16, TYPES.len() as u64)]),
        TYPES.to_vec(),
    ]
    .concat();
    all.push(bpf(Command::BTF_LOAD, memory));
    for kind in [ProgramType::KPROBE, ProgramType::RAW_TRACEPOINT] {
        all.push(bpf(Command::PROG_LOAD, load(kind, &END)));
    }
    all.push(event());
    let ring = [(0, 1 | EVENT_SIZE), (8, 10)];
    all.push((
        PERF_EVENT_OPEN,
        [Tool::MEMORY, u64::MAX, 0, u64::MAX, 8, 0],
        attribute(&ring),
    ));
    let link = [
        (0, fd(PROBE)),
        (4, fd(EVENT)),
        (8, AttachType::PERF_EVENT.0.into()),
    ];
    all.push(bpf(Command::LINK_CREATE, attribute(&link)));
    all.push(event());
    all
}

/// r0 = 0; exit
const END: [u8; 16] = [0xb7, 0, 0, 0, 0, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0];
/// Types with only an integer.
const TYPES: [u8; 45] = [
    0x9f, 0xeb, 1, 0, 24, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 16, 0, 0, 0, 5, 0, 0, 0, // header
    1, 0, 0, 0, 0, 0, 0, 1, 4, 0, 0, 0, 32, 0, 0, 1, // int
    0, b'i', b'n', b't', 0,
];

/// Returns the address of data after an attribute at the beginning of memory.
fn behind(offset: usize) -> u64 {
    Tool::MEMORY + 168 + offset as u64
}

/// Returns an attribute of `BPF_PROG_LOAD` with the data that it points to.
fn load(kind: ProgramType, insns: &[u8]) -> Vec<u8> {
    let license = insns.len();
    let attribute = attribute(&[
        (0, kind.0.into()),
        (4, insns.len() as u64 / 8),
        (8, behind(0)),
        (16, behind(license)),
    ]);
    [&attribute, insns, b"GPL\0"].concat()
}

/// Returns an event at an address of a program.
fn event() -> Opening {
    let kind = std::fs::read_to_string("/sys/bus/event_source/devices/uprobe/type");
    let uprobe: u64 = kind.map_or(9, |it| it.trim().parse().unwrap_or(9));
    let memory = [
        attribute(&[(0, uprobe | EVENT_SIZE), (56, behind(0)), (64, 0x1000)]),
        b"/bin/true\0".to_vec(),
    ];
    let arguments = [Tool::MEMORY, u64::MAX, 0, u64::MAX, 8, 0];
    (PERF_EVENT_OPEN, arguments, memory.concat())
}

/// Returns one of each command that reads more than its attribute.
pub fn seeds() -> Vec<(String, Vec<u8>)> {
    let one = |name: &str, command: Command, words: &[(usize, u64)], behind: &[u8]| {
        let call = [0, 0, command.0 as u8, 168, 0];
        let bytes = [&call[..], &attribute(words), behind].concat();
        (name.to_owned(), bytes)
    };
    let mut seeds = vec![
        one(
            "look_up",
            Command::MAP_LOOKUP_ELEM,
            &[(0, fd(0)), (8, behind(0)), (16, behind(8))],
            &[0; 16],
        ),
        one(
            "update",
            Command::MAP_UPDATE_ELEM,
            &[(0, fd(3)), (8, behind(0)), (16, behind(8))],
            &[[0; 8], fd(PROBE).to_le_bytes()].concat(),
        ),
        one(
            "large",
            Command::MAP_LOOKUP_ELEM,
            &[(0, fd(1)), (8, behind(0)), (16, behind(8))],
            &[0; 16],
        ),
        one(
            "next_key",
            Command::MAP_GET_NEXT_KEY,
            &[(0, fd(2)), (8, behind(0)), (16, behind(40))],
            &[0; 80],
        ),
        one(
            "batch",
            Command::MAP_LOOKUP_BATCH,
            &[
                (8, behind(0)),
                (16, behind(8)),
                (24, behind(24)),
                (32, 2),
                (36, fd(0)),
            ],
            &[0; 64],
        ),
        one(
            "put_batch",
            Command::MAP_UPDATE_BATCH,
            &[(16, behind(8)), (24, behind(24)), (32, 2), (36, fd(0))],
            &[0; 64],
        ),
        one(
            "types",
            Command::BTF_LOAD,
            &[(0, behind(0)), (16, TYPES.len() as u64)],
            &TYPES,
        ),
        one(
            "map",
            Command::MAP_CREATE,
            &[
                (0, MapType::HASH.0.into()),
                (4, 4),
                (8, 4),
                (12, 9),
                (28, u64::from(u32::from_le_bytes(*b"name"))),
                (48, fd(BTF)),
                (52, 1),
                (56, 1),
            ],
            &[],
        ),
        one(
            "run",
            Command::PROG_TEST_RUN,
            &[(0, fd(PROBE + 1)), (40, 16), (48, behind(0))],
            &[0; 16],
        ),
        one(
            "about_map",
            Command::OBJ_GET_INFO_BY_FD,
            &[(0, fd(0)), (4, 88), (8, behind(0))],
            &[0; 88],
        ),
        one(
            "about_program",
            Command::OBJ_GET_INFO_BY_FD,
            &[(0, fd(PROBE)), (4, 232), (8, behind(0))],
            &[0; 232],
        ),
        one(
            "about_types",
            Command::OBJ_GET_INFO_BY_FD,
            &[(0, fd(BTF)), (4, 32), (8, behind(0))],
            &[0; 32],
        ),
        one(
            "pin",
            Command::OBJ_PIN,
            &[(0, behind(0)), (8, fd(0))],
            b"/sys/fs/bpf/name\0",
        ),
        one(
            "tracepoint",
            Command::RAW_TRACEPOINT_OPEN,
            &[(0, behind(0)), (8, fd(PROBE + 1))],
            b"sys_enter\0",
        ),
        one(
            "link",
            Command::LINK_CREATE,
            &[
                (0, fd(PROBE)),
                (4, fd(FREE_EVENT)),
                (8, AttachType::PERF_EVENT.0.into()),
            ],
            &[],
        ),
        one("next_id", Command::MAP_GET_NEXT_ID, &[], &[]),
    ];
    // r1 = map; r2 = a variable in one; exit. With a log, lines and functions.
    let insns = [
        [0x18, 0x11, 0, 0, 0x58, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        [0x18, 0x22, 0, 0, 0x59, 2, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0],
        END,
    ];
    let records = [0u8; 24];
    let more = [
        insns.concat(),
        b"GPL\0\0\0\0\0".to_vec(),
        records.to_vec(),
        vec![0; 64],
    ]
    .concat();
    let words = [
        (0, ProgramType::KPROBE.0.into()),
        (4, 6),
        (8, behind(0)),
        (16, behind(48)),
        (24, 1),
        (28, 64),
        (32, behind(80)),
        (72, fd(BTF)),
        (76, 8),
        (80, behind(56)),
        (88, 1),
        (92, 16),
        (96, behind(64)),
        (104, 1),
    ];
    seeds.push(one("load", Command::PROG_LOAD, &words, &more));
    for (number, _, memory) in openings() {
        if number == PERF_EVENT_OPEN {
            let call = [0, 3, 0, u8::MAX, 0];
            seeds.push((
                format!("event-{}", seeds.len()),
                [&call[..], &memory].concat(),
            ));
        }
    }
    // Requests by descriptor or by count, with their words.
    let others = [
        ("enable", 4, EVENT, [ioc::ENABLE.into(), 0, 0]),
        ("poll", 5, 0, [fd(11), fd(5), 0]),
        ("select", 6, 0, [0, 0, 0]),
        ("map_ring", 7, 11, [2 << 12, 3, 0]),
    ];
    let others = others.map(|(name, kind, which, words)| {
        let call = [0, kind, which as u8, 2, 0];
        let memory = words.map(u64::to_le_bytes).concat();
        (name.to_owned(), [&call[..], &memory].concat())
    });
    seeds.extend(others);
    seeds
}
