//! Rings, arrays, perf events and files of this machine's kernel, over the wire.

mod harness;

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::Instant;

use beeline_uapi::fields::{put_u32, u32_at, u64_at};
use beeline_uapi::linux::PAGE_SIZE;
use beeline_uapi::{Command, MapType, ProgramType};
use beeline_vm_protocol::content::sum;
use beeline_vm_protocol::layout::INSIDE;
use beeline_vm_protocol::messages::guest_message::Body as Answer;
use beeline_vm_protocol::messages::host_message::Body as Request;
use beeline_vm_protocol::messages::{
    Bpf, Credit, Look, Manner, Pages, Part, Records, Release, Store, Watch,
};
use harness::*;

const MMAPABLE: u32 = 1 << 10;
/// A record of 8 bytes in a ring buffer, with its header.
const RECORD: usize = 16;

fn watch(host: &mut Host, handle: u32, manner: Manner, credit: u64) {
    let watch = Watch {
        handle,
        manner: manner.into(),
        pages: 0,
        credit,
        interval: 5,
    };
    host.ask(Request::Watch(watch)).unwrap();
}

/// Returns the numbers in the next records.
fn records(host: &mut Host) -> Vec<u64> {
    let Answer::Records(Records { data, .. }) = host.next_told() else {
        panic!("something else was told");
    };
    let (records, rest) = data.as_chunks::<RECORD>();
    assert!(rest.is_empty());
    for record in records {
        assert_eq!(u32_at(record, 0), 8);
    }
    records.iter().map(|record| u64_at(record, 8)).collect()
}

/// Makes a ring, the program that writes so many records to it, and its counter.
fn ring(host: &mut Host, bytes: u32, count: i32) -> (u32, u32, u32) {
    let ring = host.make_map(MapType::RINGBUF, [0, 0, bytes, 0]);
    let counter = host.make_map(MapType::ARRAY, [4, 8, 1, 0]);
    let done = host.load(
        ProgramType::RAW_TRACEPOINT,
        &writes_records(ring, counter, count),
    );
    assert_eq!(done.errno, 0, "{done:?}");
    (ring, done.handle, counter)
}

#[test]
fn records_come_once_and_in_order() {
    if !may() {
        return;
    }
    let proxy = Proxy::start();
    let mut host = Host::connect(&proxy);
    let (ring, program, _) = ring(&mut host, 1 << 20, 500);
    // Some are there already.
    host.run(program);
    watch(&mut host, ring, Manner::Records, 1 << 30);
    for _ in 0..19 {
        host.run(program);
    }
    let mut got = Vec::new();
    while got.len() < 10_000 {
        let records = records(&mut host);
        assert!(records.len() * RECORD <= 16 << 10);
        got.extend(records);
    }
    assert!(got.iter().copied().eq(0..10_000));
    // Only one connection may watch it, and none may watch something other than a ring.
    let again = Watch {
        handle: ring,
        ..Watch::default()
    };
    assert_eq!(
        host.refused(Request::Watch(again)).errno,
        libc::EBUSY as u32
    );
    let handle = host.make_map(MapType::ARRAY, [4, 8, 1, 0]);
    let other = Watch {
        handle,
        ..Watch::default()
    };
    assert_eq!(
        host.refused(Request::Watch(other)).errno,
        libc::EINVAL as u32
    );
}

#[test]
fn without_credit_the_ring_fills_and_the_kernel_drops() {
    if !may() {
        return;
    }
    // The kernel leaves at least one byte free.
    const ROOM: u64 = 4096 / RECORD as u64 - 1;
    let proxy = Proxy::start();
    let mut host = Host::connect(&proxy);
    let (ring, program, _) = ring(&mut host, 4096, 1000);
    watch(&mut host, ring, Manner::Records, 10 * RECORD as u64 + 1);
    host.run(program);
    let mut first = Vec::new();
    while first.len() < 10 {
        first.extend(records(&mut host));
    }
    assert!(first.iter().copied().eq(0..10), "{first:?}");
    assert!(host.told.is_empty());
    // The ring's records still come, followed by a gap.
    host.send(Request::Credit(Credit {
        handle: ring,
        bytes: 1 << 20,
    }));
    let mut more = Vec::new();
    while (more.len() as u64) < ROOM - 10 {
        more.extend(records(&mut host));
    }
    assert!(more.is_sorted() && more[0] == 10, "{more:?}");
    assert!((more.len() as u64) < 990, "nothing was dropped");
    host.run(program);
    assert!(records(&mut host)[0] >= 1000);
}

#[test]
fn records_leave_at_once() {
    if !may() {
        return;
    }
    let proxy = Proxy::start();
    let mut host = Host::connect(&proxy);
    let (ring, program, _) = ring(&mut host, 1 << 16, 1);
    watch(&mut host, ring, Manner::Records, 1 << 20);
    let mut times = Vec::new();
    for number in 0..100 {
        let start = Instant::now();
        host.run(program);
        while host.told.is_empty() {
            let message = host.receive().unwrap();
            host.told.push_back(message.body.unwrap());
        }
        times.push(start.elapsed());
        assert_eq!(records(&mut host), [number]);
    }
    times.sort_unstable();
    println!(
        "test run and record: median {:?}, longest {:?}",
        times[50], times[99]
    );
}

#[test]
fn readers_of_mapped_memory_are_woken() {
    if !may() {
        return;
    }
    let proxy = Proxy::start();
    let mut host = Host::connect(&proxy);
    let (ring, program, _) = ring(&mut host, 1 << 16, 3);
    watch(&mut host, ring, Manner::Readable, 0);
    host.run(program);
    assert!(matches!(host.next_told(), Answer::Readable(told) if told.handle == ring));
}

/// Maps a map into this process, by its id.
fn mapped(id: u32, offset: i64, len: usize) -> (OwnedFd, *const u8) {
    let mut attr = [id, 0, 0, 0];
    // SAFETY: the command reads numbers; the descriptor is ours.
    let fd = unsafe {
        let number = Command::MAP_GET_FD_BY_ID.0;
        let fd = libc::syscall(libc::SYS_bpf, number, attr.as_mut_ptr(), 12);
        assert!(fd >= 0);
        OwnedFd::from_raw_fd(fd as i32)
    };
    // SAFETY: at a place that the kernel chooses; it stays mapped.
    let memory = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            len,
            libc::PROT_READ,
            libc::MAP_SHARED,
            fd.as_raw_fd(),
            offset,
        )
    };
    assert_ne!(memory, libc::MAP_FAILED);
    (fd, memory.cast())
}

#[test]
fn pages_are_where_the_guest_says() {
    if !may() {
        return;
    }
    const BYTES: usize = 1 << 16;
    const PAGE: usize = PAGE_SIZE as usize;
    let proxy = Proxy::start();
    let mut host = Host::connect(&proxy);
    let ring = host.make_map(MapType::RINGBUF, [0, 0, BYTES as u32, 0]);
    let pages = Pages {
        handle: ring,
        pages: 0,
    };
    let runs = match host.ask(Request::Pages(pages)) {
        Ok(Answer::PageRuns(runs)) => runs.runs,
        Err(refused) => {
            assert_eq!(refused.errno, libc::ENOTSUP as u32);
            println!("skipped: {}", refused.why);
            return;
        }
        other => panic!("{other:?}"),
    };
    let frames: Vec<u64> = runs
        .iter()
        .flat_map(|run| run.first..run.first + run.count)
        .collect();
    // Another mapping of the same memory has the same frames.
    let (_fd, memory) = mapped(host.id(ring), 0, 2 * PAGE + BYTES);
    let pagemap = std::fs::File::open("/proc/self/pagemap").unwrap();
    let own: Vec<u64> = (0..2 + BYTES / PAGE)
        .map(|page| {
            // SAFETY: inside the mapping.
            let touched = unsafe { memory.add(page * PAGE).read_volatile() };
            let mut entry = [touched; 8];
            let at = (memory.addr() / PAGE + page) * 8;
            pagemap.read_exact_at(&mut entry, at as u64).unwrap();
            u64::from_ne_bytes(entry) & ((1 << 55) - 1)
        })
        .collect();
    assert_eq!(frames, own);
}

#[test]
fn changes_of_arrays_go_both_ways() {
    if !may() {
        return;
    }
    let proxy = Proxy::start();
    let mut host = Host::connect(&proxy);
    let array = host.make_map(MapType::ARRAY, [4, 8, 1000, MMAPABLE]);
    host.update(array, &5_u32.to_ne_bytes(), &77_u64.to_ne_bytes());
    let watch = Watch {
        handle: array,
        manner: Manner::Changes.into(),
        interval: 5,
        ..Watch::default()
    };
    let Ok(Answer::Changed(now)) = host.ask(Request::Watch(watch)) else {
        panic!("the content is not told");
    };
    assert_eq!((now.offset, now.data.len()), (0, 8192));
    assert_eq!(u64_at(&now.data, 40), 77);
    host.update(array, &900_u32.to_ne_bytes(), &78_u64.to_ne_bytes());
    let Answer::Changed(changed) = host.next_told() else {
        panic!("no change is told");
    };
    assert_eq!(
        (changed.offset, changed.data),
        (7200, 78_u64.to_ne_bytes().to_vec())
    );
    let store = |offset| {
        Request::Store(Store {
            handle: array,
            offset,
            data: 79_u64.to_ne_bytes().to_vec(),
        })
    };
    host.ask(store(16)).unwrap();
    let value = host.look_up(array, &2_u32.to_ne_bytes(), 8);
    assert_eq!(value, Ok(79_u64.to_ne_bytes().to_vec()));
    for offset in [8185, u64::MAX] {
        assert_eq!(host.refused(store(offset)).errno, libc::EINVAL as u32);
    }
    // As long as nothing stores to it, the array is not mapped for writing, and can be frozen.
    let frozen = host.bpf(Command::MAP_FREEZE, words(&[array], 4), vec![]);
    assert_eq!(frozen.errno, 0);
    assert_eq!(host.refused(store(16)).errno, libc::EPERM as u32);
    // A map that is no longer watched is at rest.
    let handles = vec![array];
    host.ask(Request::Release(Release { handles })).unwrap();
}

#[test]
fn files_are_those_of_the_kernel() {
    let proxy = Proxy::start();
    let mut host = Host::connect(&proxy);
    for path in ["/proc/version", "/sys/devices/system/cpu/possible"] {
        let file = look(&mut host, path, true).unwrap();
        assert_eq!(file.content, std::fs::read(path).unwrap());
        assert_eq!(file.mode & libc::S_IFMT, libc::S_IFREG);
    }
    for (path, errno) in [
        ("/etc/passwd", libc::ENOENT),
        ("/proc/self/environ", libc::ENOENT),
        ("/proc/../etc/passwd", libc::ENOENT),
        ("/sys/kernel/tracing/trace_pipe", libc::EOPNOTSUPP),
        ("/sys/kernel/btf/none", libc::ENOENT),
    ] {
        assert_eq!(look(&mut host, path, true), Err(errno as u32), "{path}");
    }
    let types = look(&mut host, "/sys/kernel/btf/vmlinux", false).unwrap();
    let local = std::fs::read("/sys/kernel/btf/vmlinux");
    if let Ok(local) = local {
        assert_eq!(types.size, local.len() as u64);
        assert!(types.content.is_empty());
        let types = look(&mut host, "/sys/kernel/btf/vmlinux", true).unwrap();
        assert!(types.content == local && !types.more);
    }
}

#[test]
fn directories_show_what_is_served() {
    if !may() {
        return;
    }
    let proxy = Proxy::start();
    let mut host = Host::connect(&proxy);
    let root = look(&mut host, "/proc", true).unwrap();
    let names: Vec<_> = root.entries.iter().map(|entry| &entry.name[..]).collect();
    assert!(names.contains(&"version") && names.contains(&"sys"));
    assert!(!names.contains(&"self") && !names.contains(&"1"));
    // Also where it is not mounted.
    let events = look(&mut host, "/sys/kernel/debug/tracing/events/sched", true).unwrap();
    assert!(
        events
            .entries
            .iter()
            .any(|entry| entry.name == "sched_switch" && entry.is_directory)
    );
    let sources = look(&mut host, "/sys/bus/event_source/devices", true).unwrap();
    assert!(
        sources
            .entries
            .iter()
            .any(|entry| entry.name == "software" && entry.is_directory)
    );
    let kind = look(
        &mut host,
        "/sys/bus/event_source/devices/software/type",
        true,
    )
    .unwrap();
    assert_eq!(kind.content, b"1\n");
}

#[test]
fn nothing_has_to_be_mounted() {
    if !may() {
        return;
    }
    let proxy = Proxy::in_a_bare_place();
    let mut host = Host::connect(&proxy);
    for path in ["/proc/version", "/sys/devices/system/cpu/possible"] {
        let file = look(&mut host, path, true).unwrap();
        assert_eq!(file.content, std::fs::read(path).unwrap());
    }
    let path = "/sys/kernel/tracing/events/sched/sched_switch/id";
    assert!(look(&mut host, path, true).is_ok());
    let handle = host.make_map(MapType::RINGBUF, [0, 0, 1 << 16, 0]);
    let pages = host.ask(Request::Pages(Pages { handle, pages: 0 }));
    let told = match pages {
        Ok(Answer::PageRuns(_)) => true,
        Err(refused) => refused.why.contains("CAP_SYS_ADMIN"),
        _ => false,
    };
    assert!(told);
    // And nothing is mounted now.
    let mounts = std::fs::read_to_string(format!("/proc/{}/mounts", proxy.pid())).unwrap();
    let mounted = |kind| {
        mounts
            .lines()
            .any(|line| line.split(' ').nth(2) == Some(kind))
    };
    assert!(
        !["proc", "sysfs", "tracefs"].into_iter().any(mounted),
        "{mounts}"
    );
}

#[test]
fn files_that_the_host_holds_are_left_out() {
    const TYPES: &str = "/sys/kernel/btf/vmlinux";
    let Ok(local) = std::fs::read(TYPES) else {
        return;
    };
    let proxy = Proxy::start();
    let mut host = Host::connect(&proxy);
    let mut ask = |held: &[u8]| {
        let look = Look {
            path: TYPES.into(),
            content: true,
            held: held.into(),
            ..Look::default()
        };
        match host.ask(Request::Look(look)) {
            Ok(Answer::File(file)) => file,
            other => panic!("{other:?}"),
        }
    };
    for held in [&[][..], &[7; 32], &[7; 3], &sum(b"another kernel's")] {
        let file = ask(held);
        assert!(!file.same && file.content == local, "{held:?}");
    }
    let file = ask(&sum(&local));
    assert!(file.same && file.content.is_empty() && !file.more);
    assert_eq!(file.size, local.len() as u64);
}

#[test]
fn types_that_the_host_holds_are_left_out() {
    if !may() {
        return;
    }
    const STRUCTURE: usize = 32;
    let Ok(local) = std::fs::read("/sys/kernel/btf/vmlinux") else {
        return;
    };
    let proxy = Proxy::start();
    let mut host = Host::connect(&proxy);
    // Its sum is known from then on.
    look(&mut host, "/sys/kernel/btf/vmlinux", true).unwrap();
    let done = host.bpf(Command::BTF_GET_NEXT_ID, words(&[0], 12), vec![]);
    let first = u32_at(&done.attr, 4);
    let types = host
        .bpf(Command::BTF_GET_FD_BY_ID, words(&[first], 12), vec![])
        .handle;
    let mut ask = |held: &[u8]| {
        let mut structure = vec![0; STRUCTURE];
        put_u32(&mut structure, 8, local.len() as u32);
        let room = |at, room| Part {
            at,
            room,
            data: vec![],
        };
        let mut parts = vec![room(8, STRUCTURE as u32), room(INSIDE, local.len() as u32)];
        parts[0].data = structure;
        let request = Bpf {
            command: Command::OBJ_GET_INFO_BY_FD.0,
            attr: words(&[types, STRUCTURE as u32], 16),
            parts,
            held: held.into(),
            ..Bpf::default()
        };
        match host.ask(Request::Bpf(request)) {
            Ok(Answer::BpfDone(done)) => done,
            other => panic!("{other:?}"),
        }
    };
    let whole = ask(&[]);
    assert_eq!(whole.errno, 0, "{whole:?}");
    assert!(!whole.same && whole.parts[1].data == local);
    let other = ask(&sum(b"another kernel's"));
    assert!(!other.same && other.parts == whole.parts);
    let same = ask(&sum(&local));
    assert!(same.same && same.errno == 0);
    // All but the types.
    assert_eq!(same.parts, whole.parts[..1]);
    assert_eq!(same.attr, whole.attr);
}
