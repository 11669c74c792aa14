//! Inlined code in place of a helper's call gives the helper's result.

mod common;

use std::cell::Cell;

use beeline_agent::abi::{Site, TID_UNKNOWN};
use beeline_codegen::{Baseline, Bytecode, Compiler, Executable, Machine, MapShape};
use beeline_isa::Insn;
use beeline_uapi::{HelperId, MapType};

use common::maps::kernel::insn;
use common::maps::{Ours, caller, spec};
use common::{Environment, Random};

const PER_CPU_ARRAY: MapType = MapType::PERCPU_ARRAY;
const CPUS: u32 = 3;

const LOOKUP: HelperId = HelperId::MAP_LOOKUP_ELEM;
const CPU: HelperId = HelperId::GET_SMP_PROCESSOR_ID;
const PID_TGID: HelperId = HelperId::GET_CURRENT_PID_TGID;
const FUNC_IP: HelperId = HelperId::GET_FUNC_IP;
const COOKIE: HelperId = HelperId::GET_ATTACH_COOKIE;
const LOOKUP_OF_CPU: HelperId = HelperId::MAP_LOOKUP_PERCPU_ELEM;

fn call(helper: HelperId) -> u64 {
    insn(0x85, 0, 0, 0, helper.0.cast_signed())
}

const EXIT: u64 = 0x95;

/// Looks an element up, by a key that the compiler knows or by one that it cannot know.
fn look_up(key: u32, is_known: bool) -> Vec<u64> {
    let key = key.cast_signed();
    let stored = if is_known {
        vec![insn(0x62, 10, 0, -4, key)]
    } else {
        vec![
            insn(0xb4, 3, 0, 0, key),
            insn(0x4c, 3, 3, 0, 0),
            insn(0x63, 10, 3, -4, 0),
        ]
    };
    let map = [insn(0x18, 1, 1, 0, 0), 0];
    let key_address = [insn(0xbf, 2, 10, 0, 0), insn(0x07, 2, 0, 0, -4)];
    [&stored[..], &map, &key_address, &[call(LOOKUP), EXIT]].concat()
}

/// Returns the program's result with the helper called, and with the inlined code.
fn both(environment: &mut Environment, program: &[u64], shape: MapShape) -> [u64; 2] {
    let bytes: Vec<u8> = program.iter().flat_map(|word| word.to_le_bytes()).collect();
    let insns: Vec<Insn> = Insn::decode_all(&bytes).expect("whole insns").collect();
    let called = Bytecode::new(&insns);
    let inlined = Bytecode {
        maps: &[shape],
        in_agent: true,
        ..called
    };
    [called, inlined].map(|program| {
        let code = Baseline.compile(&program, Machine::X86_64);
        let code = Executable::of(code.expect("a good program"));
        environment.run(&code.expect("executable memory"))
    })
}

#[test]
fn elements_are_those_that_the_helper_finds() {
    for (kind, value_size) in [MapType::ARRAY, PER_CPU_ARRAY]
        .into_iter()
        .flat_map(|kind| [1, 4, 8, 12, 24, 64, 5000].map(|size| (kind, size)))
    {
        let ours = Ours::new(&spec(kind, 4, value_size, 7), CPUS).expect("a map");
        let layout = *ours.map.layout();
        let (entries, stride) = (7, layout.stride as u32);
        let shape = match kind {
            MapType::ARRAY => MapShape::Array { entries, stride },
            _ => MapShape::PerCpuArray {
                entries,
                stride,
                cpu_stride: layout.cpu_stride as u32,
                cpus: CPUS,
            },
        };
        let mut environment = Environment::new();
        environment.add_map(ours.map);
        for cpu in 0..CPUS {
            environment.set_cpu(cpu, CPUS);
            for key in [0, 1, 5, 6, 7, 8, 1 << 31, u32::MAX] {
                for is_known in [false, true] {
                    let [called, inlined] = both(&mut environment, &look_up(key, is_known), shape);
                    assert_eq!(called, inlined, "{shape:?}, CPU {cpu}, key {key}");
                    assert_eq!(called == 0, key >= entries);
                }
            }
        }
        // The CPUs' values are their own.
        let marked = ours.set(
            &1_u32.to_ne_bytes(),
            &vec![1; value_size as usize],
            0,
            &caller(2, 1),
        );
        marked.expect("an update");
        environment.set_cpu(1, CPUS);
        let [value, _] = both(&mut environment, &look_up(1, true), shape);
        // SAFETY: the address of a value in the map's memory.
        assert_eq!(unsafe { *(value as *const u8) }, 1);
    }
}

#[test]
fn elements_of_any_cpu_are_those_that_the_helper_finds() {
    for value_size in [8, 12, 5000] {
        let ours = Ours::new(&spec(PER_CPU_ARRAY, 4, value_size, 7), CPUS).expect("a map");
        let layout = *ours.map.layout();
        let shape = MapShape::PerCpuArray {
            entries: 7,
            stride: layout.stride as u32,
            cpu_stride: layout.cpu_stride as u32,
            cpus: CPUS,
        };
        let mut environment = Environment::new();
        environment.add_map(ours.map);
        environment.set_cpu(1, CPUS);
        for key in [0, 1, 6, 7, u32::MAX] {
            for cpu in [0, 1, CPUS - 1, CPUS, 1 << 31, u32::MAX] {
                let mut program = look_up(key, false);
                let call_at = program.len() - 2;
                // Only the low half of r3 counts.
                let cpu_number = [
                    insn(0x18, 3, 0, 0, cpu.cast_signed()),
                    insn(0, 0, 0, 0, 1),
                    call(LOOKUP_OF_CPU),
                ];
                program.splice(call_at..=call_at, cpu_number);
                let [called, inlined] = both(&mut environment, &program, shape);
                assert_eq!(called, inlined, "{shape:?}, CPU {cpu}, key {key}");
                assert_eq!(called == 0, key >= 7 || cpu >= CPUS);
            }
        }
    }
}

/// Hashes: the kernel's number, and if it is per CPU and LRU.
const HASHES: [(MapType, bool, bool); 4] = [
    (MapType::HASH, false, false),
    (MapType::PERCPU_HASH, true, false),
    (MapType::LRU_HASH, false, true),
    (MapType::LRU_PERCPU_HASH, true, true),
];

/// Looks up the key that lies in a context of so many bytes.
fn look_up_context() -> Vec<u64> {
    let map = [insn(0xbf, 2, 1, 0, 0), insn(0x18, 1, 1, 0, 0), 0];
    [&map[..], &[call(LOOKUP), EXIT]].concat()
}

#[test]
fn special_look_ups_find_what_the_general_one_finds() {
    let sizes = [1, 3, 4, 5, 8, 12, 16, 24];
    for (kind, per_cpu, lru) in HASHES {
        for key_size in sizes {
            check_hash(kind, key_size, per_cpu, lru);
        }
    }
}

/// Half of the keys are there, in a map with as many as it can hold; so chains have several nodes.
fn check_hash(kind: MapType, key_size: u32, per_cpu: bool, lru: bool) {
    const KEYS: u8 = 200;
    let ours = Ours::new(&spec(kind, key_size, 20, u32::from(KEYS) / 2), CPUS).expect("a map");
    let key = |number: u8| {
        let mut key = vec![0; key_size as usize];
        // All bytes of a key count.
        key[number as usize % key_size as usize] = number;
        key
    };
    let mut random = Random(u64::from(kind.0 * 100 + key_size));
    for _ in 0..KEYS {
        let key = key(random.below(KEYS.into()) as u8);
        // A full map takes no more, unless it is an LRU one.
        let _ = ours.set(&key, &[7; 20], 0, &caller(2, 1));
    }
    let mut environment = Environment::new();
    environment.add_map(ours.map);
    let shape = MapShape::Hash {
        key_size,
        per_cpu,
        lru,
    };
    let mut found = 0;
    for number in 0..KEYS {
        environment.set_cpu(u32::from(number) % CPUS, CPUS);
        let mut key = key(number);
        environment.set_argument(key.as_mut_ptr());
        let [called, inlined] = both(&mut environment, &look_up_context(), shape);
        assert_eq!(called, inlined, "{shape:?}, key {key:?}");
        found += u32::from(called != 0);
    }
    assert!(found > 10, "{shape:?}");
    assert!(key_size == 1 || found < KEYS.into(), "{shape:?}");
}

#[test]
fn cpu_cookie_and_place_are_those_that_the_helpers_give() {
    let mut environment = Environment::new();
    // SAFETY: integers, pointers and atomics, for which zero is good.
    let mut site: Site = unsafe { std::mem::zeroed() };
    site.address = 0x7fff_1234_5678;
    let site: &Site = Box::leak(Box::new(site));
    expect(&mut environment, FUNC_IP, 0);
    expect(&mut environment, COOKIE, 0);
    environment.set_cpu(2, CPUS);
    environment.set_attachment(u64::MAX - 1, Some(site));
    expect(&mut environment, FUNC_IP, site.address);
    expect(&mut environment, COOKIE, u64::MAX - 1);
    expect(&mut environment, CPU, 2);
}

/// Asserts that the helper and the inlined code both give this.
fn expect(environment: &mut Environment, helper: HelperId, expected: u64) {
    let results = both(environment, &[call(helper), EXIT], MapShape::Opaque);
    assert_eq!(results, [expected; 2], "helper {helper}");
}

thread_local! {
    static TID: Cell<u32> = const { Cell::new(0) };
}

/// Returns the offset from the thread pointer to this thread's [`TID`]: the same in all threads, as
/// the test is no shared library.
fn tid_offset() -> i32 {
    let pointer: usize;
    // SAFETY: the first word at the thread pointer is the thread pointer.
    unsafe { std::arch::asm!("mov {}, fs:[0]", out(reg) pointer, options(nostack, readonly)) };
    TID.with(|tid| (tid.as_ptr() as isize - pointer as isize) as i32)
}

#[test]
fn each_thread_has_its_own_id() {
    let offset = tid_offset();
    let mut environment = Environment::new();
    // SAFETY: only returns a number.
    let asked = u64::from(unsafe { libc::gettid() }.cast_unsigned());
    environment.set_ids(7, TID_UNKNOWN);
    expect(&mut environment, PID_TGID, 7 << 32 | asked);
    environment.set_ids(u32::MAX, offset);
    for tid in [1, u32::MAX, 4_000_000] {
        TID.set(tid);
        let expected = u64::from(u32::MAX) << 32 | u64::from(tid);
        expect(&mut environment, PID_TGID, expected);
    }
    // A forked child has no process id.
    environment.set_ids(0, offset);
    expect(&mut environment, PID_TGID, 4_000_000);
    let other = std::thread::spawn(move || {
        let mut environment = Environment::new();
        environment.set_ids(9, tid_offset());
        TID.set(5);
        let insns = [call(PID_TGID), EXIT];
        (
            tid_offset(),
            both(&mut environment, &insns, MapShape::Opaque),
        )
    });
    let other = other.join().expect("a thread that ends");
    assert_eq!(other, (offset, [9 << 32 | 5; 2]));
}
