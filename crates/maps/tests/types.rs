//! The types beside hashes, arrays and rings against the kernel's: creation and every operation
//! give the same results.

mod common;

use std::collections::BTreeSet;

use beeline_maps::{Kind, Layout, Spec, TaskStorage};
use beeline_uapi::{HelperId, MapType, flags};
use common::{
    Ours, caller, kernel,
    kernel::KernelMap,
    pair::{CALLS, Command, Name, Op, Pair, Random, soak},
    spec,
};

/// A map of each type, as small as makes sense.
const SAMPLES: [(MapType, u32, u32, u32, u32); 10] = [
    (MapType::PROG_ARRAY, 4, 4, 8, 0),
    (MapType::CGROUP_ARRAY, 4, 4, 8, 0),
    (MapType::LPM_TRIE, 8, 8, 8, flags::NO_PREALLOC),
    (MapType::ARRAY_OF_MAPS, 4, 4, 8, 0),
    (MapType::HASH_OF_MAPS, 8, 4, 8, 0),
    (MapType::QUEUE, 0, 8, 8, 0),
    (MapType::STACK, 0, 8, 8, 0),
    (MapType::TASK_STORAGE, 4, 8, 0, flags::NO_PREALLOC),
    (MapType::BLOOM_FILTER, 0, 8, 8, 0),
    (MapType::USER_RINGBUF, 0, 0, 4096, 0),
];

fn samples() -> impl Iterator<Item = Spec> {
    SAMPLES.into_iter().map(
        |(map_type, key_size, value_size, max_entries, flags)| Spec {
            flags,
            ..spec(map_type, key_size, value_size, max_entries)
        },
    )
}

/// The most bytes to ask the kernel for.
const MUCH: u64 = 64 << 20;

fn judge(spec: Spec) {
    let theirs = KernelMap::new(&spec).map(drop);
    assert_eq!(Layout::new(&spec, 2).map(drop), theirs, "{spec:?}");
}

/// Creation: every combination gets the kernel's verdict.
#[test]
fn creation_is_judged_as_by_the_kernel() {
    if kernel::is_missing() {
        return;
    }
    for sample in samples() {
        assert_eq!(sample.check(), Ok(sample.kind().unwrap()), "{sample:?}");
        for key_size in [0, 1, 4, 5, 7, 8, 260, 261, 600] {
            for value_size in [0, 1, 4, 8, 12, 4096, 65407, 65408, 1 << 22, (1 << 22) + 1] {
                for max_entries in [0, 1, 3, 4096, 12288] {
                    if u64::from(value_size) * u64::from(max_entries) > MUCH {
                        continue;
                    }
                    judge(Spec {
                        key_size,
                        value_size,
                        max_entries,
                        ..sample
                    });
                }
            }
        }
        for first in 0..20 {
            for second in first..20 {
                let flags = 1 << first | 1 << second;
                judge(Spec { flags, ..sample });
                let flags = flags | flags::NO_PREALLOC;
                judge(Spec { flags, ..sample });
            }
        }
        for map_extra in [1, 3, 15, 16, 1 << 32, u64::MAX] {
            judge(Spec {
                map_extra,
                ..sample
            });
        }
        let largest = match sample.kind() {
            Some(Kind::LpmTrie) => (4 << 20) - 256 - 24,
            Some(Kind::TaskStorage) => 65407,
            _ => 4 << 20,
        };
        for value_size in largest - 9..largest + 9 {
            judge(Spec {
                value_size,
                ..sample
            });
        }
    }
}

/// Runs a random sequence of operations on both maps, with keys and values from `key` and `value`.
fn compare(
    random: &mut Random,
    pair: &Pair,
    commands: &[Command],
    key: impl Fn(&mut Random) -> Vec<u8>,
    value: impl Fn(&mut Random) -> Vec<u8>,
) {
    let seed = random.seed;
    for step in 0..random.below(80) {
        let op = any_op(random, commands, &key, &value);
        let [ours, theirs] = pair.both(&op);
        assert_eq!(
            ours,
            theirs,
            "seed {seed} step {step}: {op:?} on {:?}",
            pair.ours.map.spec()
        );
    }
}

fn any_op(
    random: &mut Random,
    commands: &[Command],
    key: impl Fn(&mut Random) -> Vec<u8>,
    value: impl Fn(&mut Random) -> Vec<u8>,
) -> Op {
    Op {
        command: random.pick(commands),
        key: key(random),
        value: value(random),
        flags: random.pick(&[0, 0, 0, 0, 1, 2, 3, 4, 1 << 20]),
    }
}

/// Does the same, with occasional commands of programs, which take longer.
fn with_programs(random: &mut Random, commands: &[Command]) -> Vec<Command> {
    let mut all = CALLS.to_vec();
    if random.below(16) == 0 {
        all.extend(commands);
    }
    all
}

fn bytes(random: &mut Random, len: usize) -> Vec<u8> {
    (0..len).map(|_| random.next() as u8).collect()
}

#[test]
fn queues_and_stacks() {
    if kernel::is_missing() {
        return;
    }
    soak(1500, |random| {
        let (map_type, len, max) = (
            random.pick(&[MapType::QUEUE, MapType::STACK]),
            random.pick(&[2, 4, 7, 8, 24]),
            random.pick(&[1, 2, 5]),
        );
        let pair = Pair::new(&spec(map_type, 0, len, max));
        let mut commands = with_programs(
            random,
            &[Command::Push, Command::Push, Command::Pop, Command::Peek],
        );
        commands.extend([Command::Update; 3]);
        compare(
            random,
            &pair,
            &commands,
            |_| Vec::new(),
            |random| bytes(random, len as usize),
        );
        for _ in 0..=max {
            let op = Op {
                command: Command::LookupAndDelete,
                key: Vec::new(),
                value: vec![0; len as usize],
                flags: 0,
            };
            let [ours, theirs] = pair.both(&op);
            assert_eq!(ours, theirs, "seed {}", random.seed);
        }
    });
}

/// Every added value is found. For other values each side errs in its own way, as their hashes
/// differ.
#[test]
fn bloom_filters_find_every_added_value() {
    if kernel::is_missing() {
        return;
    }
    soak(1500, |random| {
        let len = random.pick(&[4, 8, 13]);
        let pair = Pair::new(&Spec {
            map_extra: random.below(16),
            ..spec(
                MapType::BLOOM_FILTER,
                0,
                len,
                random.pick(&[1, 40, 1 << 14]),
            )
        });
        let mut commands = with_programs(random, &[Command::Push, Command::Peek]);
        commands.extend([Command::Update, Command::Lookup]);
        // The first byte alone differs.
        let value = |random: &mut Random| {
            (0..len)
                .map(|at| if at == 0 { random.below(30) as u8 } else { 7 })
                .collect()
        };
        let mut members = BTreeSet::new();
        for step in 0..random.below(80) {
            let op = any_op(random, &commands, |_| Vec::new(), value);
            let [ours, theirs] = pair.both(&op);
            let asks = matches!(op.command, Command::Lookup | Command::Peek);
            if asks && !members.contains(&op.value) {
                let said = [ours.0, theirs.0];
                let may_say = |code: &i32| matches!(*code, 0 | libc::ENOENT);
                assert!(said.iter().all(may_say), "seed {}: {said:?}", random.seed);
                continue;
            }
            let seed = random.seed;
            assert_eq!(ours, theirs, "seed {seed} step {step}: {op:?}");
            if asks {
                assert_eq!(ours.0, 0, "seed {seed} step {step}: {op:?} was forgotten");
            }
            if matches!(op.command, Command::Update | Command::Push) && ours.0 == 0 {
                members.insert(op.value);
            }
        }
    });
}

/// A full filter is about as good as the kernel's.
#[test]
fn bloom_filters_err_as_seldom_as_the_kernels() {
    if kernel::is_missing() {
        return;
    }
    for (map_extra, max) in [(0, 4000), (1, 4000), (3, 20000), (15, 3000)] {
        let pair = Pair::new(&Spec {
            map_extra,
            ..spec(MapType::BLOOM_FILTER, 0, 8, max)
        });
        let mut random = Random::new(u64::from(max));
        let ask = |command, value: u64| {
            let value = value.to_ne_bytes().to_vec();
            let [ours, theirs] = pair.both(&Op {
                command,
                key: Vec::new(),
                value,
                flags: 0,
            });
            [ours.0 == 0, theirs.0 == 0]
        };
        for value in 0..max {
            assert_eq!(ask(Command::Update, value.into()), [true, true]);
        }
        for value in 0..max {
            assert_eq!(ask(Command::Lookup, value.into()), [true, true]);
        }
        let mut wrong = [0u32; 2];
        for _ in 0..10_000 {
            let said = ask(Command::Lookup, random.next() | 1 << 63);
            wrong[0] += u32::from(said[0]);
            wrong[1] += u32::from(said[1]);
        }
        // Twice the spread of such counts, and the possible error of a rare count.
        let spread = 4.0 * f64::from(wrong[1]).sqrt() + 20.0;
        assert!(
            f64::from(wrong[0]) < f64::from(wrong[1]) + spread,
            "{wrong:?}"
        );
    }
}

/// Few different bits, so that prefixes lie within each other; some are too long.
fn prefix(random: &mut Random, key_size: u32) -> Vec<u8> {
    let data = key_size as usize - 4;
    let mut key = (random.below(data as u64 * 8 + 3) as u32)
        .to_ne_bytes()
        .to_vec();
    key.extend((0..data).map(|_| random.pick(&[0u8, 0, 0x80, 0xc0, 0xff, 1])));
    key
}

#[test]
fn tries_agree_with_the_kernels() {
    if kernel::is_missing() {
        return;
    }
    soak(1500, |random| {
        let (key_size, len, max) = (
            random.pick(&[5, 6, 8, 12, 20, 36]),
            random.pick(&[4, 5, 8, 24]),
            random.pick(&[1, 3, 8, 50]),
        );
        let pair = Pair::new(&Spec {
            flags: flags::NO_PREALLOC,
            ..spec(MapType::LPM_TRIE, key_size, len, max)
        });
        let mut commands = with_programs(
            random,
            &[
                Command::ProgramLookup,
                Command::ProgramUpdate,
                Command::ProgramDelete,
            ],
        );
        commands.extend([Command::Update; 4]);
        let key = |random: &mut Random| prefix(random, key_size);
        compare(random, &pair, &commands, key, |random| {
            bytes(random, len as usize)
        });
        // All contents, in order.
        let ours = pair.ours.keys();
        let theirs = common::walk(key_size as usize, |key, out| pair.theirs.next_key(key, out));
        assert_eq!(ours, theirs, "seed {}", random.seed);
    });
}

/// An element of a map of maps.
fn inner_map(ours: u32) -> Name {
    let taken = KernelMap::new(&spec(MapType::ARRAY, 4, 4, 1)).unwrap().fd;
    let given = kernel::id(&taken);
    Name { ours, taken, given }
}

#[test]
fn program_arrays_agree_with_the_kernels() {
    let program = |ours| {
        let taken = kernel::load(&[kernel::move_imm(0, 0), kernel::call(HelperId::UNSPEC)[1]]);
        let given = kernel::id(&taken);
        Name { ours, taken, given }
    };
    maps_of_objects(&[MapType::PROG_ARRAY], 1500, program);
}

/// Fewer times, as the kernel waits for all its programs after each change.
#[test]
fn maps_of_maps() {
    maps_of_objects(
        &[MapType::ARRAY_OF_MAPS, MapType::HASH_OF_MAPS],
        40,
        inner_map,
    );
}

fn maps_of_objects(types: &[MapType], times: u64, name: impl Fn(u32) -> Name) {
    if kernel::is_missing() {
        return;
    }
    let mut names: Vec<Name> = (1001..1004).map(name).collect();
    soak(times, |random| {
        let map_type = random.pick(types);
        let mut pair = Pair::new(&spec(map_type, 4, 4, 6));
        pair.values.append(&mut names);
        let mut commands = CALLS.to_vec();
        commands.extend([Command::Update; 3]);
        if map_type == MapType::HASH_OF_MAPS {
            // A hash has an order of its own.
            commands.retain(|command| !matches!(command, Command::FirstKey | Command::NextKey));
        }
        let key = |random: &mut Random| (random.below(8) as u32).to_ne_bytes().to_vec();
        let value = |random: &mut Random| (1001 + random.below(3) as u32).to_ne_bytes().to_vec();
        compare(random, &pair, &commands, key, value);
        let mut ours = pair.ours.keys();
        let mut theirs = common::walk(4, |key, out| pair.theirs.next_key(key, out));
        ours.sort();
        theirs.sort();
        assert_eq!(ours, theirs, "seed {}", random.seed);
        for key in ours {
            // SAFETY: keys have 4 bytes.
            let object = unsafe { pair.ours.map.object(key.as_ptr()) };
            let mut out = [0; 4];
            let read = pair.ours.map.lookup_copy(&key, &mut out, 0, &caller(7, 0));
            assert_eq!(object, read.is_ok().then_some(u32::from_ne_bytes(out)));
        }
        names.append(&mut pair.values);
    });
}

/// The values of three processes.
#[test]
fn task_storages_agree_with_the_kernels() {
    if kernel::is_missing() {
        return;
    }
    let children: Vec<_> = (0..3).map(|_| common::Sleeper::new()).collect();
    let pids: Vec<i32> = children.iter().map(|child| child.pid).collect();
    soak(1500, |random| {
        let len = random.pick(&[1, 8, 13]);
        let mut pair = Pair::new(&Spec {
            flags: flags::NO_PREALLOC,
            ..spec(MapType::TASK_STORAGE, 4, len, 0)
        });
        pair.keys = children
            .iter()
            .map(|child| Name {
                ours: child.pid as u32,
                taken: child.pidfd(),
                given: 0,
            })
            .collect();
        let key = |random: &mut Random| (random.pick(&pids) as u32).to_ne_bytes().to_vec();
        compare(random, &pair, &CALLS, key, |random| {
            bytes(random, len as usize)
        });
    });
}

/// The runtime says which threads are gone; the others keep their values.
#[test]
fn task_storages_forget_ended_tasks() {
    let spec = Spec {
        flags: flags::NO_PREALLOC,
        ..spec(MapType::TASK_STORAGE, 4, 8, 0)
    };
    let ours = Ours::new(&spec, 2).unwrap();
    let me = caller(7, 0);
    for tid in 1..=500u32 {
        ours.set(&tid.to_ne_bytes(), &[tid as u8; 8], 0, &me)
            .unwrap();
    }
    let is_odd = |tid: u32| tid % 2 == 1;
    let storage = TaskStorage::of(&ours.map).unwrap();
    assert_eq!(storage.forget(&is_odd, &me), Ok(250));
    assert_eq!(storage.forget(&is_odd, &me), Ok(0));
    for tid in 1..=500u32 {
        let value = (!is_odd(tid)).then(|| vec![tid as u8; 8]);
        assert_eq!(ours.get(&tid.to_ne_bytes(), 0), value);
    }
    let array = Ours::new(&common::spec(MapType::ARRAY, 4, 8, 4), 2).unwrap();
    assert!(TaskStorage::of(&array.map).is_none());
}

/// A thread that has its id in a wrong place, because memory was overwritten, does not make the
/// runtime go round.
#[test]
fn overwritten_task_storages_are_looked_at_once() {
    let spec = Spec {
        flags: flags::NO_PREALLOC,
        ..spec(MapType::TASK_STORAGE, 4, 8, 0)
    };
    let ours = Ours::new(&spec, 2).unwrap();
    let me = caller(7, 0);
    ours.set(&[1, 0, 0, 0], &[1; 8], 0, &me).unwrap();
    let mut bytes = ours.memory.bytes();
    let nodes = ours.map.layout().nodes as usize;
    let key = bytes[nodes..]
        .windows(4)
        .position(|word| word == [1, 0, 0, 0]);
    let key = nodes + key.expect("the first node has the key");
    // Some keys are in another bucket than the first.
    for other in 2..10u32 {
        bytes[key..key + 4].copy_from_slice(&other.to_ne_bytes());
        // SAFETY: the file is mapped for its length, and nobody else uses it.
        unsafe { std::ptr::copy(bytes.as_ptr(), ours.memory.base, bytes.len()) };
        let asked = std::cell::Cell::new(0);
        let is_gone = |_| {
            asked.set(asked.get() + 1);
            false
        };
        let storage = TaskStorage::of(&ours.map).unwrap();
        assert_eq!(storage.forget(&is_gone, &me), Ok(0));
        assert!(asked.get() <= 1, "{} times", asked.get());
    }
}

/// Reads another CPU's value, by a program.
#[test]
fn values_of_other_cpus() {
    for map_type in [MapType::PERCPU_HASH, MapType::PERCPU_ARRAY] {
        let ours = Ours::new(&spec(map_type, 4, 8, 4), 2).unwrap();
        ours.set(&[1, 0, 0, 0], &[9; 8], 0, &caller(7, 1)).unwrap();
        // SAFETY: the key has 4 bytes, and what is found 8.
        let value = |cpu| unsafe {
            let at = ours.map.lookup_percpu([1u8, 0, 0, 0].as_ptr(), cpu);
            (!at.is_null()).then(|| at.cast::<[u8; 8]>().read())
        };
        assert_eq!([0, 1, 2].map(value), [Some([0; 8]), Some([9; 8]), None]);
    }
    let shared = Ours::new(&spec(MapType::ARRAY, 4, 8, 4), 2).unwrap();
    // SAFETY: the key has 4 bytes.
    assert!(unsafe { shared.map.lookup_percpu([0; 4].as_ptr(), 0) }.is_null());
}
