use super::*;

fn trie() -> MapSpec {
    let mut spec = spec(MapType::LPM_TRIE, 8);
    (spec.key_size, spec.flags) = (8, flags::NO_PREALLOC);
    spec
}

/// The key of a number, which for a trie is a prefix.
fn key_of(spec: &MapSpec, n: u32) -> Vec<u8> {
    match spec.key_size {
        8 => [(8 * (n % 5)).to_ne_bytes(), [n as u8 / 5, 1, 2, 3]].concat(),
        _ => n.to_ne_bytes().to_vec(),
    }
}

/// Compares a shard with the map by itself.
#[track_caller]
fn compare_shard(shard: &Map, whole: &MapObject) {
    let caller = program(0);
    for n in 0..KEYS {
        let key = key_of(&whole.spec, n);
        let (mut one, mut other) = (vec![0; shard.value_len()], vec![0; shard.value_len()]);
        let found = shard.lookup_copy(&key, &mut one, 0, &caller);
        assert_eq!(found, whole.lookup(&key, &mut other, 0));
        assert_eq!(one, other);
    }
}

#[test]
fn copies_have_what_the_tool_writes_before_and_after_they_are_made() {
    let tables = [
        MapType::HASH,
        MapType::PERCPU_HASH,
        MapType::LRU_HASH,
        MapType::ARRAY,
        MapType::PERCPU_ARRAY,
    ];
    let specs = tables
        .map(|kind| spec(kind, 24))
        .into_iter()
        .chain([trie()]);
    for (spec, seed) in specs.zip(1..) {
        let mut random = Random(seed * 0x9e37_79b9);
        let (divided, whole) = (map(&spec), map(&spec));
        divided.see_as(&View::Copies).unwrap();
        let pair = Pair {
            divided,
            whole,
            domains: Vec::new(),
        };
        let mut shards: Vec<Map> = Vec::new();
        for step in 0..600 {
            if step % 200 == 199 {
                let shard = pair.divided.shard_of(&Domain::for_test(step)).unwrap();
                shards.push(*shard.here());
            }
            let key = key_of(&spec, random.below(KEYS));
            let value = value_of(&pair.whole, |_, _| random.next());
            match random.below(8) {
                0 => pair.compare(0, |map, _| map.delete(&key)),
                1 => pair.compare(value.len(), |map, out| map.lookup_and_delete(&key, out, 0)),
                2 if spec.key_size == 4 && random.below(9) == 0 && !pair.is_array() => {
                    pair.read_all(&mut random, true);
                }
                _ => {
                    let flags = random.below(4).into();
                    pair.compare(0, |map, _| map.update(&key, &value, flags));
                }
            }
            for shard in &shards {
                compare_shard(shard, &pair.whole);
            }
        }
        assert_eq!(shards.len(), 3);
    }
}

#[test]
fn a_copy_that_its_processes_have_filled_keeps_nobody_else_from_changes() {
    let pair = Pair::new(&spec(MapType::HASH, 8), View::Copies);
    let key = |n: u32| n.to_ne_bytes();
    pair.divided.update(&key(0), &[1; 8], 0).unwrap();
    let full = pair.of_domain(2);
    full.delete_key(&key(0), &program(0)).unwrap();
    for n in 1..=KEYS {
        full.update_copy(&key(n + 100), &[9; 8], 0, &program(0))
            .unwrap();
    }
    for n in [0, 1] {
        assert_eq!(pair.divided.update(&key(n), &[2; 8], 0), Ok(()));
    }
    let mut value = [0; 8];
    for (domain, key) in [0, 1].into_iter().zip([key(0), key(1)]) {
        let map = pair.of_domain(domain);
        map.lookup_copy(&key, &mut value, 0, &program(0)).unwrap();
        assert_eq!(value, [2; 8]);
    }
    let notes = pair.domains[1].notes();
    let note = notes.first().expect("the user is told");
    assert!(note.contains("part of map test,"), "{note}");
    assert!(pair.domains[0].notes().is_empty());
    assert_eq!(pair.divided.delete(&key(0)), Ok(()));
    assert_eq!(pair.divided.delete(&key(0)), Err(Errno::ENOENT));
}

#[test]
fn copies_of_arrays_of_objects_name_the_same_ones() {
    let map = map(&spec(MapType::PROG_ARRAY, 4));
    map.see_as(&View::Copies).unwrap();
    map.update(&[2, 0, 0, 0], &[7, 0, 0, 0], 0).unwrap();
    let shard = map.shard_of(&Domain::for_test(1)).unwrap();
    map.update(&[3, 0, 0, 0], &[8, 0, 0, 0], 0).unwrap();
    map.delete(&[2, 0, 0, 0]).unwrap();
    let named = |map: &Map| {
        (0..KEYS)
            // SAFETY: keys have 4 bytes.
            .map(|n| unsafe { map.object(n.to_ne_bytes().as_ptr()) })
            .collect::<Vec<_>>()
    };
    assert_eq!(named(shard.here()), named(map.here()));
    assert_eq!(named(shard.here())[3], Some(8));
}
