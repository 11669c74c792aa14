//! Ring buffers and perf rings: a tool reads the records that the kernel would have written.

mod common;

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use beeline_maps::{Layout, perf, ringbuf::Ring};
use beeline_uapi::attr::PerfEvent;
use beeline_uapi::flags::{RINGBUF_BUSY_BIT, RINGBUF_DISCARD_BIT};
use beeline_uapi::perf::{
    PERF_COUNT_SW_BPF_OUTPUT, PERF_FLAG_FD_CLOEXEC, PERF_RECORD_LOST, PERF_SAMPLE_RAW,
    PERF_TYPE_SOFTWARE, mmap_page,
};
use beeline_uapi::{Errno, HelperId, MapType, flags};
use common::{Consumer, Memory, Ours, caller, kernel, kernel::KernelMap, spec};

const SIZE: u64 = 4096;

fn new_ring() -> Ours {
    Ours::new(&spec(MapType::RINGBUF, 0, 0, SIZE as u32), 2).unwrap()
}

#[test]
fn ring_file_is_what_tools_map() {
    let layout = Layout::new(&spec(MapType::RINGBUF, 0, 0, SIZE as u32), 2).unwrap();
    assert_eq!(layout.values, 8192);
    assert!(
        layout.control >= 8192 + 2 * SIZE,
        "our own data is out of the tool's reach"
    );
    assert!(layout.len > layout.control);
    let mmapable = Layout::new(&spec(MapType::ARRAY, 4, 12, 100), 2).unwrap();
    assert_eq!((mmapable.values, mmapable.stride), (0, 16));
}

#[test]
fn ring_gives_records_in_order_and_skips_discarded_ones() {
    let ours = new_ring();
    let ring = Ring::of(&ours.map).unwrap();
    let me = caller(3, 0);
    let mut consumer = Consumer::new(&ours.memory, SIZE);
    let mut got = Vec::new();
    for round in 0..2000u32 {
        let data = vec![round as u8; (round % 300) as usize];
        assert_eq!(
            ring.output(&data, 0, &me),
            Ok(true),
            "the consumer had caught up"
        );
        let kept = ring.reserve(8, 0, &me).unwrap();
        let dropped = ring.reserve(24, 0, &me).unwrap();
        assert!(ring.owns(kept) && ring.owns(dropped));
        ring.commit(dropped, true, 0);
        consumer.consume(&mut |record| got.push(record.to_vec()));
        assert_eq!(
            std::mem::take(&mut got),
            [data],
            "round {round}: stops at a busy record"
        );
        // SAFETY: the record has 8 bytes, 8-aligned.
        unsafe { kept.cast::<u64>().write(u64::from(round)) };
        assert!(
            ring.commit(kept, false, 0),
            "the consumer waits at this record"
        );
        consumer.consume(&mut |record| got.push(record.to_vec()));
        assert_eq!(std::mem::take(&mut got), [u64::from(round).to_ne_bytes()]);
    }
    assert_eq!(ring.dropped(), 0);
    assert!(
        !ring.owns(ours.memory.base.wrapping_add(8192)),
        "no header fits before it"
    );
    assert!(!ring.owns(ours.memory.base));
    assert!(!ring.commit(ours.memory.base, false, flags::RB_FORCE_WAKEUP));
    assert_eq!(ring.reserve(8, 1, &me), Err(Errno::EINVAL));
}

/// A record longer than the ring finds no room, whatever the consumer's position pretends: it would
/// reach into the memory behind the ring.
#[test]
fn ring_takes_no_record_longer_than_itself() {
    let ours = new_ring();
    let ring = Ring::of(&ours.map).unwrap();
    for position in [0, SIZE, 2 * SIZE, 3 * SIZE, u64::MAX << 3] {
        // SAFETY: the consumer's position, in the map's memory.
        unsafe { ours.memory.base.cast::<u64>().write_volatile(position) };
        for size in [SIZE - 8, SIZE, 2 * SIZE, 3 * SIZE - 8, 1 << 20] {
            assert_eq!(ring.reserve(size, 0, &caller(3, 0)), Err(Errno::EAGAIN));
        }
    }
}

/// Outputs the same records, of sizes that wrap around and fill the ring, to the kernel's ring and
/// to Beeline's.
#[test]
fn ring_is_filled_as_by_the_kernel() {
    if kernel::is_missing() {
        return;
    }
    let theirs = KernelMap::new(&spec(MapType::RINGBUF, 0, 0, SIZE as u32)).unwrap();
    let positions =
        common::map(&theirs.fd, 0, 4096, libc::PROT_READ | libc::PROT_WRITE).cast::<u64>();
    let produced = common::map(&theirs.fd, 4096, 4096 + 2 * SIZE as usize, libc::PROT_READ);
    let ours = new_ring();
    let ring = Ring::of(&ours.map).unwrap();
    for step in 0..150u64 {
        let data = vec![step as u8; [8, 500, 33, 480, 0, 256, 511, 7][(step % 8) as usize].max(1)];
        let flags = [0, 0, 1, 2, 4][(step % 5) as usize];
        let a = ring
            .output(&data, flags, &caller(3, 0))
            .map_or_else(|error| -error.0, |_| 0);
        let mut insns = kernel::stack_bytes(512, &data);
        insns.truncate(data.len());
        insns.extend(kernel::map_address(1, &theirs));
        insns.extend(kernel::stack_address(2, 512));
        insns.push(kernel::move_imm(3, data.len() as i32));
        insns.push(kernel::move_imm(4, flags as i32));
        insns.extend(kernel::call(HelperId::RINGBUF_OUTPUT));
        assert_eq!(a, kernel::run(&insns), "step {step}");
        // SAFETY: the first word of the kernel's producer page.
        let end = unsafe { produced.cast::<u64>().read_volatile() };
        assert_eq!(ring.query(3), end, "step {step}");
        if step % 20 == 19 {
            // SAFETY: the kernel maps the data twice after the producer's page.
            let data = unsafe { std::slice::from_raw_parts(produced.add(4096), 2 * SIZE as usize) };
            assert_eq!(
                records(data, ring.query(2), ring.query(3)),
                records(&ours.memory.bytes()[8192..], ring.query(2), ring.query(3))
            );
            let consumed = ring.query(3);
            // SAFETY: the consumer's positions of both.
            unsafe {
                positions.write_volatile(consumed);
                ours.memory.base.cast::<u64>().write_volatile(consumed);
            }
        }
    }
    assert!(ring.dropped() > 0, "the ring was never full");
}

/// Returns the records between two positions, with their length words.
fn records(data: &[u8], mut from: u64, to: u64) -> Vec<(u32, Vec<u8>)> {
    let mut all = Vec::new();
    while from < to {
        let at = (from & (SIZE - 1)) as usize;
        let len = u32::from_ne_bytes(data[at..at + 4].try_into().unwrap());
        assert_eq!(len & (RINGBUF_BUSY_BIT | RINGBUF_DISCARD_BIT), 0);
        all.push((len, data[at + 8..at + 8 + len as usize].to_vec()));
        from += (u64::from(len) + 8 + 7) & !7;
    }
    all
}

/// A perf ring of Beeline's with one data page.
fn new_perf() -> (Memory, perf::Ring) {
    let memory = Memory::new(perf::Ring::file_len(1).unwrap());
    // SAFETY: mapped for the length of a ring of one page, and kept beside the handle.
    let ring = unsafe { perf::Ring::attach(1, memory.base).unwrap() };
    ring.init(55, 1);
    (memory, ring)
}

fn perf_word(base: *mut u8, at: usize) -> *mut u64 {
    base.wrapping_add(at).cast()
}

#[test]
fn perf_ring_says_what_it_is() {
    let (memory, ring) = new_perf();
    // SAFETY: words of the control page.
    unsafe {
        assert_eq!(perf_word(memory.base, 1040).read(), 4096);
        assert_eq!(perf_word(memory.base, 1048).read(), 4096);
    }
    assert_eq!(
        ring.output(b"x", &caller(1, 0)),
        Err(Errno::EOPNOTSUPP),
        "not enabled"
    );
    ring.enable(true);
    assert_eq!(ring.output(b"x", &caller(1, 0)), Ok(true));
    assert_eq!(ring.output(&[0; 70_000], &caller(1, 0)), Err(Errno::E2BIG));
    assert_eq!(perf::Ring::file_len(3), Err(Errno::EINVAL));
    assert_eq!(perf::Ring::file_len(0), Err(Errno::EINVAL));
}

#[test]
fn perf_ring_wakes_after_so_many_events_or_half_full() {
    let (_memory, ring) = new_perf();
    ring.enable(true);
    ring.init(1, 3);
    let wakes: Vec<_> = (0..6)
        .map(|_| ring.output(b"abc", &caller(1, 0)).unwrap())
        .collect();
    assert_eq!(wakes, [false, false, true, false, false, true]);
    ring.init(1, 0);
    let wakes = (0..20)
        .filter(|_| ring.output(&[0; 140], &caller(1, 0)).unwrap())
        .count();
    assert_eq!(wakes, 1);
}

#[test]
fn perf_ring_believes_no_tail() {
    let (memory, ring) = new_perf();
    ring.enable(true);
    for tail in [u64::MAX, 1, 4096, 1 << 63, 12345] {
        // SAFETY: a word of the control page.
        unsafe { perf_word(memory.base, mmap_page::DATA_TAIL).write(tail) };
        for _ in 0..100 {
            let _ = ring.output(&[7; 100], &caller(1, 0));
        }
    }
}

/// Outputs the same samples to the kernel's ring and to Beeline's, until it is full, and after the
/// tool has read.
#[test]
fn perf_ring_is_filled_as_by_the_kernel() {
    if kernel::is_missing() {
        return;
    }
    kernel::stay_on(0);
    let event = kernel_event(0);
    let theirs = common::map(&event, 0, 8192, libc::PROT_READ | libc::PROT_WRITE);
    let array = KernelMap::new(&spec(MapType::PERF_EVENT_ARRAY, 4, 4, 8)).unwrap();
    array
        .update(&[0; 4], &event.as_raw_fd().to_ne_bytes(), 0)
        .unwrap();
    let (memory, ours) = new_perf();
    ours.enable(true);
    let mut lost = 0;
    for step in 0..200usize {
        let data: Vec<u8> = (0..[1, 8, 13, 500, 4, 200, 12, 333, 512][step % 9])
            .map(|i| (i + step) as u8)
            .collect();
        let a = ours
            .output(&data, &caller(3, 0))
            .map_or_else(|error| -error.0, |_| 0);
        let mut insns = vec![kernel::insn(0xbf, 6, 1, 0, 0)];
        insns.extend(kernel::stack_bytes(512, &data));
        insns.push(kernel::insn(0xbf, 1, 6, 0, 0));
        insns.extend(kernel::map_address(2, &array));
        insns.extend([kernel::insn(0x18, 3, 0, 0, -1), 0]); // BPF_F_CURRENT_CPU
        insns.extend(kernel::stack_address(4, 512));
        insns.push(kernel::move_imm(5, data.len() as i32));
        insns.extend(kernel::call(HelperId::PERF_EVENT_OUTPUT));
        assert_eq!(a, kernel::run(&insns), "step {step}");
        lost += i32::from(a != 0);
        // SAFETY: words of the control pages.
        let (head, tail) = unsafe {
            assert_eq!(
                perf_word(memory.base, mmap_page::DATA_HEAD).read_volatile(),
                perf_word(theirs, mmap_page::DATA_HEAD).read_volatile()
            );
            (
                perf_word(theirs, mmap_page::DATA_HEAD).read_volatile(),
                perf_word(theirs, mmap_page::DATA_TAIL).read_volatile(),
            )
        };
        if step % 33 == 32 {
            assert_eq!(
                perf_records(memory.base, tail, head),
                perf_records(theirs, tail, head)
            );
            // SAFETY: the tool's word of the control pages.
            unsafe {
                perf_word(memory.base, mmap_page::DATA_TAIL).write_volatile(head);
                perf_word(theirs, mmap_page::DATA_TAIL).write_volatile(head);
            }
        }
    }
    assert!(lost > 0, "the ring was never full");
    assert_eq!(ours.lost(), lost as u64);
}

/// Opens a `PERF_COUNT_SW_BPF_OUTPUT` event, enabled.
fn kernel_event(cpu: i32) -> OwnedFd {
    let attr = PerfEvent {
        r#type: PERF_TYPE_SOFTWARE,
        size: size_of::<PerfEvent>() as u32,
        config: PERF_COUNT_SW_BPF_OUTPUT,
        sample_period: 1,
        sample_type: PERF_SAMPLE_RAW,
        wakeup_events: 1,
        ..PerfEvent::default()
    };
    let flags = PERF_FLAG_FD_CLOEXEC;
    // SAFETY: the attributes are readable, and as long as they say.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw const attr,
            -1,
            cpu,
            -1,
            flags,
        )
    };
    assert!(
        fd >= 0,
        "perf_event_open: {}",
        std::io::Error::last_os_error()
    );
    // SAFETY: a descriptor that nobody else owns.
    unsafe { OwnedFd::from_raw_fd(fd as i32) }
}

/// Returns records: type, length, and the comparable part of the rest (neither the event's id nor
/// the padding, which the kernel does not write).
fn perf_records(base: *mut u8, mut from: u64, to: u64) -> Vec<(u32, u16, Vec<u8>)> {
    let mut all = Vec::new();
    // SAFETY: a data page after the control page; masked.
    let byte = |at: u64| unsafe { base.add(4096 + (at & 4095) as usize).read_volatile() };
    let bytes = |at: u64, len: u64| (at..at + len).map(byte).collect::<Vec<u8>>();
    while from < to {
        let kind = u32::from_ne_bytes(bytes(from, 4).try_into().unwrap());
        let len = u16::from_ne_bytes(bytes(from + 6, 2).try_into().unwrap());
        let body = match kind {
            PERF_RECORD_LOST => bytes(from + 16, 8),
            _ => bytes(from + 8, u64::from(len) - 8),
        };
        assert_ne!(len, 0);
        all.push((kind, len, body));
        from += u64::from(len);
    }
    // The samples make padding recognisable: the output is a prefix.
    all.iter_mut()
        .filter(|(kind, ..)| *kind == 9)
        .for_each(|(_, _, body)| {
            let first = body[4];
            let run = body[4..]
                .iter()
                .enumerate()
                .take_while(|(i, byte)| **byte == first.wrapping_add(*i as u8))
                .count();
            body.truncate(4 + run);
        });
    all
}

/// A position that no producer has reached neither leads the runtime's own reader astray nor keeps
/// it busy for ever.
#[test]
fn overwritten_positions_are_given_up() {
    let ours = Ours::new(&spec(MapType::RINGBUF, 0, 0, 4096), 1).unwrap();
    let reader = Ring::of(&ours.map).unwrap();
    let me = caller(7, 0);
    let (data, page) = (ours.map.layout().values as usize, 4096);
    for header in [0, RINGBUF_DISCARD_BIT] {
        // SAFETY: the producer's position and the data, in the map's memory.
        unsafe {
            let base = ours.memory.base;
            for at in (data..data + page).step_by(8) {
                base.add(at).cast::<u32>().write_volatile(header);
            }
            base.add(page).cast::<u64>().write_volatile(u64::MAX << 20);
        }
        let mut read = 0;
        while let Some(record) = reader.next_record() {
            reader.consumed(&record);
            read += 1;
            assert!(read < 1000, "the reader goes round and round");
        }
        assert_eq!(reader.query(0), 0);
        reader.output(&[5; 8], 0, &me).unwrap();
        let record = reader.next_record().unwrap();
        assert_eq!(record.len, 8);
        reader.consumed(&record);
    }
}
