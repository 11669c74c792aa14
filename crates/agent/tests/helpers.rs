//! Small helpers against the kernel's.

mod common;

use beeline_uapi::{HelperId, MapType};
use common::maps::kernel::{
    KernelMap, insn, is_missing, map_address, move_imm, try_run, value_address,
};
use common::maps::{Ours, spec};
use common::{Environment, Random};

const DYNPTR_FROM_MEM: u32 = HelperId::DYNPTR_FROM_MEM.0;
const DYNPTR_READ: u32 = HelperId::DYNPTR_READ.0;
const DYNPTR_WRITE: u32 = HelperId::DYNPTR_WRITE.0;
const DYNPTR_DATA: u32 = HelperId::DYNPTR_DATA.0;
const JIFFIES: u32 = HelperId::JIFFIES64.0;
const NUMA_NODE: u32 = HelperId::GET_NUMA_NODE_ID.0;
const NS_PID_TGID: u32 = HelperId::GET_NS_CURRENT_PID_TGID.0;
/// The memory behind a dynptr.
const MEMORY: usize = 64;
/// The bytes to write.
const SOURCE: [u8; 8] = *b"datadata";

/// One way to use a dynptr.
#[derive(Debug, Clone, Copy)]
struct Use {
    size: u32,
    flags: u64,
    write: (u32, u32, u64),
    read: (u32, u32, u64),
    data: (u32, u32),
}

/// Returns the results of the three calls, whether there was an address, the bytes read, and the
/// memory afterwards.
type Outcome = ([i64; 3], bool, [u8; 8], Vec<u8>);

fn array(value: &[u8]) -> KernelMap {
    let map = KernelMap::new(&spec(MapType::ARRAY, 4, value.len() as u32, 1)).unwrap();
    map.update(&[0; 4], value, 0).unwrap();
    map
}

/// dst = a constant of 64 bits
fn wide(dst: u8, value: u64) -> [u64; 2] {
    [
        insn(0x18, dst, 0, 0, value as i32),
        insn(0, 0, 0, 0, (value >> 32) as i32),
    ]
}

/// dst = r10 - at
fn stack(dst: u8, at: i32) -> [u64; 2] {
    [insn(0xbf, dst, 10, 0, 0), insn(0x07, dst, 0, 0, -at)]
}

fn call(helper: u32) -> u64 {
    insn(0x85, 0, 0, 0, helper as i32)
}

/// Runs a program that leaves `len` bytes in r6's map.
fn kernel_bytes(body: &[u64], len: usize) -> Vec<u8> {
    let out = array(&vec![0; len]);
    let mut program = value_address(6, &out, 0).to_vec();
    program.extend(body);
    program.extend([move_imm(0, 0), insn(0x95, 0, 0, 0, 0)]);
    let mut log = vec![0; 1 << 16];
    try_run(&program, &mut log)
        .unwrap_or_else(|error| panic!("{error:?}: {}", String::from_utf8_lossy(&log)));
    let mut bytes = vec![0; len];
    out.lookup(&[0; 4], &mut bytes).unwrap();
    bytes
}

fn kernel(case: Use) -> Outcome {
    let memory = array(&[b'.'; MEMORY]);
    let keep = |at: i16| insn(0x7b, 6, 0, at, 0);
    let mut body = Vec::new();
    body.extend(wide(1, u64::from_le_bytes(SOURCE)));
    body.extend([insn(0x7b, 10, 1, -32, 0), insn(0x7a, 10, 0, -40, 0)]);
    body.extend(value_address(1, &memory, 0));
    body.push(move_imm(2, case.size as i32));
    body.extend(wide(3, case.flags));
    body.extend(stack(4, 16));
    body.extend([call(DYNPTR_FROM_MEM), keep(0)]);
    let (offset, len, flags) = case.write;
    body.extend(stack(1, 16));
    body.push(move_imm(2, offset as i32));
    body.extend(stack(3, 32));
    body.push(move_imm(4, len as i32));
    body.extend(wide(5, flags));
    body.extend([call(DYNPTR_WRITE), keep(8)]);
    let (offset, len, flags) = case.read;
    body.extend(stack(1, 40));
    body.push(move_imm(2, len as i32));
    body.extend(stack(3, 16));
    body.push(move_imm(4, offset as i32));
    body.extend(wide(5, flags));
    body.extend([call(DYNPTR_READ), keep(16)]);
    body.extend([insn(0x79, 1, 10, -40, 0), insn(0x7b, 6, 1, 32, 0)]);
    body.extend(stack(1, 16));
    body.push(move_imm(2, case.data.0 as i32));
    body.push(move_imm(3, case.data.1 as i32));
    body.push(call(DYNPTR_DATA));
    // if r0 != 0: r0 = 1
    body.extend([insn(0x15, 0, 0, 1, 0), move_imm(0, 1), keep(24)]);
    let out = kernel_bytes(&body, 40);
    let word = |i: usize| i64::from_ne_bytes(out[8 * i..8 * i + 8].try_into().unwrap());
    let mut then = vec![0; MEMORY];
    memory.lookup(&[0; 4], &mut then).unwrap();
    let read = out[32..].try_into().unwrap();
    ([word(0), word(1), word(2)], word(3) != 0, read, then)
}

fn ours(environment: &mut Environment, case: Use) -> Outcome {
    let (mut memory, mut dynptr, mut read) = (vec![b'.'; MEMORY], [u64::MAX; 2], [0u8; 8]);
    let place = (&raw mut dynptr) as u64;
    let (size, data) = (u64::from(case.size), memory.as_mut_ptr() as u64);
    let made = environment.call(DYNPTR_FROM_MEM, [data, size, case.flags, place, 0]);
    let (offset, len, flags) = case.write;
    let source = SOURCE.as_ptr() as u64;
    let args = [place, offset.into(), source, len.into(), flags];
    let written = environment.call(DYNPTR_WRITE, args);
    let (offset, len, flags) = case.read;
    let args = [
        read.as_mut_ptr() as u64,
        len.into(),
        place,
        offset.into(),
        flags,
    ];
    let got = environment.call(DYNPTR_READ, args);
    let (offset, len) = case.data;
    let part = environment.call(DYNPTR_DATA, [place, offset.into(), len.into(), 0, 0]);
    assert!(part == 0 || part == data + u64::from(offset));
    let results = [made, written, got].map(|result| result as i64);
    (results, part != 0, read, memory)
}

#[test]
fn dynptrs_are_checked_as_by_the_kernel() {
    if is_missing() {
        return;
    }
    let mut environment = Environment::new();
    let mut random = Random(7);
    let (mut good, mut bad) = (0, 0);
    for _ in 0..500 {
        let offset = |random: &mut Random| random.one_of(&[0, 1, 7, 16, 56, 63, 64, u32::MAX - 1]);
        let flags = |random: &mut Random| random.one_of(&[0, 0, 0, 0, 1, 1 << 40]);
        let case = Use {
            size: random.one_of(&[1, 8, 24, 64, 64]),
            flags: flags(&mut random),
            write: (
                offset(&mut random),
                1 + random.below(8) as u32,
                flags(&mut random),
            ),
            read: (
                offset(&mut random),
                1 + random.below(8) as u32,
                flags(&mut random),
            ),
            data: (offset(&mut random), random.one_of(&[0, 1, 8, 64])),
        };
        let theirs = kernel(case);
        assert_eq!(ours(&mut environment, case), theirs, "{case:?}");
        good += theirs.0.iter().filter(|result| **result == 0).count();
        bad += theirs.0.iter().filter(|result| **result != 0).count();
    }
    assert!(good > 300 && bad > 300, "{good} {bad}");
}

#[test]
fn records_are_reserved_as_by_the_kernel() {
    const RESERVE: u32 = HelperId::RINGBUF_RESERVE_DYNPTR.0;
    const SUBMIT: u32 = HelperId::RINGBUF_SUBMIT_DYNPTR.0;
    const DISCARD: u32 = HelperId::RINGBUF_DISCARD_DYNPTR.0;
    const QUERY: u32 = HelperId::RINGBUF_QUERY.0;
    const BYTES: u32 = 4096;
    if is_missing() {
        return;
    }
    for (size, flags, end) in [
        (8, 0, SUBMIT),
        (0, 0, SUBMIT),
        (100, 0, DISCARD),
        (BYTES - 16, 0, SUBMIT),
        (BYTES, 0, SUBMIT),
        (8, 1, DISCARD),
        (1 << 24, 0, SUBMIT),
        (1 << 24, 1, SUBMIT),
    ] {
        let ring = spec(MapType::RINGBUF, 0, 0, BYTES);
        let theirs = {
            let map = KernelMap::new(&ring).unwrap();
            let mut body = map_address(1, &map).to_vec();
            body.extend([move_imm(2, size as i32), move_imm(3, flags)]);
            body.extend(stack(4, 16));
            body.extend([call(RESERVE), insn(0x7b, 6, 0, 0, 0)]);
            body.extend(stack(1, 16));
            body.extend([move_imm(2, 0), call(end)]);
            body.extend(map_address(1, &map));
            body.extend([move_imm(2, 0), call(QUERY), insn(0x7b, 6, 0, 8, 0)]);
            kernel_bytes(&body, 16)
        };
        let mut environment = Environment::new();
        let own = Ours::new(&ring, 1).unwrap();
        let handle = environment.add_map(own.map);
        let mut dynptr = [0u64; 2];
        let place = (&raw mut dynptr) as u64;
        let reserved = environment.call(RESERVE, [handle, size.into(), flags as u64, place, 0]);
        environment.call(end, [place, 0, 0, 0, 0]);
        assert_eq!(dynptr, [0; 2]);
        let waiting = environment.call(QUERY, [handle, 0, 0, 0, 0]);
        let ours = [reserved.to_ne_bytes(), waiting.to_ne_bytes()].concat();
        assert_eq!(ours, theirs, "{size} {flags} {end}");
    }
}

/// Compares a helper without arguments with the kernel's.
fn kernel_word(helper: u32) -> u64 {
    let body = [call(helper), insn(0x7b, 6, 0, 0, 0)];
    u64::from_ne_bytes(kernel_bytes(&body, 8).try_into().unwrap())
}

#[test]
fn jiffies_and_nodes_are_the_kernels() {
    if is_missing() {
        return;
    }
    let mut environment = Environment::new();
    // The kernel counts ticks by the same clock that Beeline reads, from some time in its boot on.
    const SLACK: u64 = 10_000;
    let before = kernel_word(JIFFIES);
    let now = environment.call(JIFFIES, [0; 5]);
    let after = kernel_word(JIFFIES);
    assert!(
        (before - SLACK..=after + SLACK).contains(&now),
        "{before} {now} {after}"
    );
    common::maps::kernel::stay_on(0);
    assert_eq!(environment.call(NUMA_NODE, [0; 5]), kernel_word(NUMA_NODE));
}

#[test]
fn ids_of_a_namespace_are_the_kernels() {
    use std::os::unix::fs::MetadataExt;
    if is_missing() {
        return;
    }
    let mut environment = Environment::new();
    let namespace = std::fs::metadata("/proc/self/ns/pid").unwrap();
    let (dev, ino) = (namespace.dev(), namespace.ino());
    environment.set_pid_namespace([dev, ino]);
    for (dev, ino, size) in [
        (dev, ino, 8),
        (dev + 1, ino, 8),
        (dev, ino + 1, 8),
        (dev, ino, 7),
        (dev | 1 << 40, ino, 8),
    ] {
        let mut body = vec![insn(0x7a, 10, 0, -8, -1)];
        body.extend(wide(1, dev));
        body.extend(wide(2, ino));
        body.extend(stack(3, 8));
        body.extend([move_imm(4, size), call(NS_PID_TGID)]);
        body.extend([insn(0x7b, 6, 0, 0, 0), insn(0x79, 1, 10, -8, 0)]);
        body.push(insn(0x7b, 6, 1, 8, 0));
        let theirs = kernel_bytes(&body, 16);
        let mut ids = u64::MAX;
        let place = (&raw mut ids) as u64;
        let result = environment.call(NS_PID_TGID, [dev, ino, place, size as u64, 0]);
        let ours = [result.to_ne_bytes(), ids.to_ne_bytes()].concat();
        assert_eq!(ours, theirs, "{dev} {ino} {size}");
    }
}
