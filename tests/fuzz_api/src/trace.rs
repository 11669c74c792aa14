//! The trace buffer as hostile processes write it: a tool reads lines, and they end.

use std::mem::offset_of;

use beeline_agent::abi::TraceLine;
use beeline_maps::PAGE;
use beeline_runtime::fuzz_api::TraceBuffer;
use beeline_uapi::flags::{RINGBUF_BUSY_BIT, RINGBUF_DISCARD_BIT};

/// The offset of the producer's position. The consumer's is 0.
const PRODUCER: usize = PAGE as usize;
/// The offset of the records.
const RECORDS: usize = 2 * PAGE as usize;
/// The most writes.
const MOST: usize = 64;
/// The longest line that a pipe takes whole.
const LONGEST: usize = libc::PIPE_BUF;

/// Writes to the buffer: where and how much, then the bytes. Lines are read after each eighth, and at
/// the end.
pub fn trace_ring(data: &[u8]) {
    lines_read(data);
}

/// Does the same, and returns the number of bytes that a tool reads.
pub fn lines_read(mut data: &[u8]) -> usize {
    let mut trace = TraceBuffer::new().expect("there is memory");
    let (base, len) = trace.memory();
    let mut count = 0;
    for number in 1..=MOST {
        let Some(([where_to, low, high, more], rest)) = data.split_first_chunk() else {
            break;
        };
        let offset = 8 * usize::from(u16::from_le_bytes([*low, *high]));
        let at = match where_to % 4 {
            0 => 0,
            1 => PRODUCER,
            2 => RECORDS + offset,
            _ => len - 8 - offset % len,
        };
        let bytes = &rest[..usize::from(*more).min(rest.len())];
        data = &rest[bytes.len()..];
        let bytes = &bytes[..bytes.len().min(len.saturating_sub(at))];
        // SAFETY: within the buffer's memory, which nothing here refers to.
        unsafe { std::ptr::copy(bytes.as_ptr(), base.add(at), bytes.len()) };
        if number % 8 == 0 {
            count += read(&mut trace);
        }
    }
    count += read(&mut trace);
    // Nobody reads the rest.
    trace.close();
    count
}

fn read(trace: &mut TraceBuffer) -> usize {
    let lines = trace.lines();
    assert!(lines.is_empty() || lines.ends_with(b"\n"));
    let longest = lines.split(|byte| *byte == b'\n').map(<[u8]>::len).max();
    assert!(longest.is_none_or(|longest| longest < LONGEST));
    lines.len()
}

/// Returns a write.
fn write(where_to: u8, offset: usize, bytes: &[u8]) -> Vec<u8> {
    let [low, high] = (offset as u16 / 8).to_le_bytes();
    [&[where_to, low, high, bytes.len() as u8], bytes].concat()
}

/// Returns buffers with records of each state.
pub fn trace_seeds() -> Vec<(String, Vec<u8>)> {
    let record = |state: u32, text: &[u8]| {
        let mut line = [0; size_of::<TraceLine>()];
        line[offset_of!(TraceLine, tid)] = 7;
        line[offset_of!(TraceLine, comm)..][..4].copy_from_slice(b"task");
        let len = (line.len() + text.len()) as u32;
        let mut bytes = [&(len | state).to_le_bytes()[..], &[1, 0, 0, 0], &line, text].concat();
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        bytes
    };
    let seed = |records: &[Vec<u8>]| {
        let mut writes = Vec::new();
        let mut at = 0;
        for record in records {
            writes.extend(write(2, at, record));
            at += record.len();
        }
        writes.extend(write(1, 0, &(at as u64).to_le_bytes()));
        writes
    };
    let good = record(0, b"hello\n\0");
    let ahead = [
        seed(std::slice::from_ref(&good)),
        write(1, 0, &u64::MAX.to_le_bytes()),
    ]
    .concat();
    let seeds = [
        ("lines", seed(&[good.clone(), record(0, b"more\0")])),
        (
            "discarded",
            seed(&[record(RINGBUF_DISCARD_BIT, b"no\0"), good.clone()]),
        ),
        (
            "busy",
            seed(&[good.clone(), record(RINGBUF_BUSY_BIT, b"yet\0")]),
        ),
        (
            "short",
            seed(&[vec![3, 0, 0, 0, 1, 0, 0, 0, 1, 2, 3, 0, 0, 0, 0, 0], good]),
        ),
        ("ahead", ahead),
    ];
    seeds.map(|(name, bytes)| (name.to_owned(), bytes)).into()
}
