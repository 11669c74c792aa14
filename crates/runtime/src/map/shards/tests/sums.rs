use super::*;

const KINDS: [MapType; 6] = [
    MapType::HASH,
    MapType::PERCPU_HASH,
    MapType::LRU_HASH,
    MapType::LRU_PERCPU_HASH,
    MapType::ARRAY,
    MapType::PERCPU_ARRAY,
];

fn sums() -> View {
    View::Sums {
        halves: Box::default(),
    }
}

#[test]
fn sums_are_those_of_one_map() {
    for (kind, seed) in KINDS.into_iter().zip(1..) {
        let mut pair = Pair::new(&spec(kind, 16), sums());
        let mut random = Random(seed * 0x9e37_79b9);
        for step in 0..4000 {
            if step % 250 == 249 {
                pair.retire(1 + random.below(DOMAINS - 1));
            }
            let key = random.below(KEYS);
            if random.below(2) == 0 {
                let cpu = random.below(CPUS);
                let amounts = [random.next(), 1];
                add(&pair.of_domain(random.below(DOMAINS)), key, cpu, &amounts);
                add(pair.whole.here(), key, cpu, &amounts);
            } else {
                pair.operate(&mut random, key);
            }
            if step % 16 == 0 {
                pair.compare_all(&mut random);
            }
            if step % 64 == 0 && !pair.is_array() {
                pair.read_all(&mut random, true);
                assert!(keys_of(&pair.divided).is_empty());
            }
        }
    }
}

#[test]
fn arguments_that_make_no_sense_have_the_errors_of_one_map() {
    for kind in KINDS {
        let pair = Pair::new(&spec(kind, 8), sums());
        let len = pair.whole.here().value_len();
        let value = vec![1; len];
        for domain in 1..DOMAINS {
            add(&pair.of_domain(domain), 1, 0, &[1]);
            add(pair.whole.here(), 1, 0, &[1]);
        }
        for key in [&[1, 0, 0, 0][..], &[200, 0, 0, 0], &[1], &[]] {
            for flags in [0, 1, 2, 3, flags::LOCK, u64::MAX] {
                pair.compare(len, |map, out| map.lookup(key, out, flags));
                pair.compare(len + 1, |map, out| map.lookup(key, out, flags));
                pair.compare(len, |map, out| map.lookup_and_delete(key, out, flags | 8));
                pair.compare(0, |map, _| map.update(key, &value[1..], flags));
            }
            pair.compare(3, |map, out| map.next_key(Some(key), out));
            pair.compare(1, |map, out| map.next_key(None, out));
        }
        pair.compare(0, |map, _| map.delete(&[]));
        assert_eq!(
            read(&pair.divided, 0, 0, false),
            read(&pair.whole, 0, 0, false)
        );
        assert_eq!(
            read(&pair.divided, u32::MAX, 1, false),
            read(&pair.whole, u32::MAX, 1, false)
        );
        if pair.is_array() {
            assert_eq!(read(&pair.divided, 0, 9, true), Err(Errno::ENOTSUPP));
        }
    }
}

#[test]
fn halves_of_words_do_not_carry_into_each_other() {
    let halves = Box::from([true]);
    let pair = Pair::new(&spec(MapType::ARRAY, 20), View::Sums { halves });
    let value = |words: [u32; 5]| words.map(u32::to_le_bytes).concat();
    for domain in 0..DOMAINS {
        let one = value([u32::MAX, 5, u32::MAX, 5, u32::MAX]);
        let map = pair.of_domain(domain);
        map.update_copy(&[0; 4], &one, 0, &program(0)).unwrap();
    }
    let mut sum = vec![0; 20];
    pair.divided.lookup(&[0; 4], &mut sum, 0).unwrap();
    // The second pair is one word of 64 bits.
    assert_eq!(
        sum,
        value([u32::MAX - 2, 15, u32::MAX - 2, 17, u32::MAX - 2])
    );
}

#[test]
fn a_sum_that_the_first_shard_has_no_room_for_is_set_in_another() {
    let mut spec = spec(MapType::HASH, 8);
    spec.max_entries = 1;
    let pair = Pair::new(&spec, sums());
    for domain in 0..DOMAINS {
        add(&pair.of_domain(domain), domain.min(1), 0, &[5]);
    }
    let key = 1u32.to_ne_bytes();
    pair.divided.update(&key, &[1; 8], flags::EXIST).unwrap();
    let mut value = [0; 8];
    pair.divided.lookup(&key, &mut value, 0).unwrap();
    assert_eq!(value, [1; 8]);
    let new = pair.divided.update(&[9; 4], &[1; 8], flags::ANY);
    assert_eq!(new, Err(Errno::E2BIG));
}

#[test]
fn keys_that_stay_are_met_once_while_others_come_and_go() {
    let mut random = Random(77);
    for round in 0..200 {
        let mut spec = spec(MapType::HASH, 8);
        spec.max_entries = 64;
        let pair = Pair::new(&spec, sums());
        for key in 0..40 {
            add(&pair.of_domain(random.below(DOMAINS)), key, 0, &[1]);
        }
        let (mut seen, mut last) = (Vec::new(), None::<[u8; 4]>);
        loop {
            let mut next = [0; 4];
            if pair
                .divided
                .next_key(last.as_ref().map(|key| &key[..]), &mut next)
                .is_err()
            {
                break;
            }
            let key = u32::from_ne_bytes(next);
            // Even rounds delete what they have met, as tools do: once the next key is known.
            if let Some(last) = last.filter(|_| round % 2 == 0) {
                pair.divided.delete(&last).unwrap();
            }
            last = Some(next);
            seen.push(key);
            // Keys that stay come into other shards, and further keys come and go.
            add(&pair.of_domain(random.below(DOMAINS)), key, 0, &[1]);
            let other = pair.of_domain(random.below(DOMAINS));
            let further = 40 + random.below(15);
            match random.below(2) {
                0 => add(&other, further, 0, &[1]),
                _ if u32::from_ne_bytes(next) != further => {
                    let _ = other.delete_key(&further.to_ne_bytes(), &program(0));
                }
                _ => {}
            }
        }
        seen.retain(|key| *key < 40);
        seen.sort_unstable();
        assert_eq!(seen, (0..40).collect::<Vec<_>>());
    }
}

#[test]
fn deleting_the_first_key_until_there_is_none_ends() {
    let pair = Pair::new(&spec(MapType::PERCPU_HASH, 8), sums());
    for key in 0..KEYS {
        add(&pair.of_domain(key % DOMAINS), key, 0, &[1]);
        add(&pair.of_domain((key + 1) % DOMAINS), key, 1, &[1]);
    }
    let (mut next, mut count) = ([0; 4], 0);
    while pair.divided.next_key(None, &mut next).is_ok() {
        pair.divided.delete(&next).unwrap();
        count += 1;
    }
    assert_eq!(count, KEYS);
    // A key that is gone begins again.
    assert_eq!(
        pair.divided.next_key(Some(&next), &mut [0; 4]),
        Err(Errno::ENOENT)
    );
}
