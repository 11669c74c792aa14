use super::*;
use crate::domain::{Credentials, Domains};

#[test]
fn unions_are_one_map() {
    let kinds = [MapType::HASH, MapType::PERCPU_HASH, MapType::LRU_HASH];
    for (kind, seed) in kinds.into_iter().zip(1..) {
        let pair = Pair::new(&spec(kind, 8), View::Union { id: None });
        let mut random = Random(seed * 0x9e37_79b9);
        for step in 0..4000 {
            let key = random.below(KEYS);
            let domain = key % DOMAINS;
            let cpu = random.below(CPUS);
            match random.below(4) {
                0 => {
                    let amounts = [random.next()];
                    add(&pair.of_domain(domain), key, cpu, &amounts);
                    add(pair.whole.here(), key, cpu, &amounts);
                }
                1 => {
                    let key = key.to_ne_bytes();
                    let deleted = pair.of_domain(domain).delete_key(&key, &program(cpu));
                    assert_eq!(deleted, pair.whole.here().delete_key(&key, &program(cpu)));
                }
                2 => {
                    // A key of the tool's making would be the first domain's.
                    let value = value_of(&pair.whole, |_, _| random.next());
                    let flags = if domain == 0 { 0 } else { flags::EXIST };
                    let key = key.to_ne_bytes();
                    pair.compare(0, |map, _| map.update(&key, &value, flags));
                }
                _ => pair.operate(&mut random, key - domain),
            }
            if step % 16 == 0 {
                pair.compare_all(&mut random);
            }
            if step % 64 == 0 {
                pair.read_all(&mut random, true);
                assert!(keys_of(&pair.divided).is_empty());
            }
        }
    }
}

#[test]
fn keys_that_a_process_has_overwritten_do_not_lead_astray() {
    let mut spec = spec(MapType::HASH, 8);
    spec.key_size = 8;
    let pair = Pair::new(&spec, View::Union { id: None });
    let (keys, forged) = ([[0xa1; 8], [0xb2; 8], [0xc3; 8]], [0xd4; 8]);
    for (domain, key) in (0..).zip(&keys) {
        let map = pair.of_domain(domain);
        map.update_copy(key, &[1; 8], 0, &program(0)).unwrap();
    }
    // Many keys, so that some are of earlier and some of later buckets than the one they are in.
    for n in 0..40 {
        let shard = pair.divided.shard_of(&Domain::for_test(1)).unwrap();
        let words = shard.memory.base().cast::<u64>();
        let (old, new) = match n {
            0 => (keys[1], forged),
            _ => (
                forged.map(|byte: u8| byte.wrapping_add(n - 1)),
                forged.map(|byte| byte.wrapping_add(n)),
            ),
        };
        for at in 0..shard.memory.len() / 8 {
            // SAFETY: in the shard's mapping, 8-aligned, and nothing else uses it.
            unsafe {
                if words.add(at).read() == u64::from_ne_bytes(old) {
                    words.add(at).write(u64::from_ne_bytes(new));
                }
            }
        }
        let (mut met, mut last) = (Vec::new(), None::<[u8; 8]>);
        let mut next = [0; 8];
        while pair
            .divided
            .next_key(last.as_ref().map(|key| &key[..]), &mut next)
            == Ok(())
        {
            met.push(next);
            last = Some(next);
            assert!(met.len() <= 3, "it goes round");
        }
        met.retain(|key| keys.contains(key));
        met.sort_unstable();
        assert_eq!(met, [keys[0], keys[2]]);
    }
}

#[test]
fn queues_are_emptied_one_after_the_other() {
    let mut spec = spec(MapType::QUEUE, 8);
    spec.key_size = 0;
    let pair = Pair::new(&spec, View::Union { id: None });
    for domain in (0..DOMAINS).rev() {
        for n in 0..2u8 {
            let value = [domain as u8 * 10 + n; 8];
            let map = pair.of_domain(domain);
            map.update_copy(&[], &value, 0, &program(0)).unwrap();
        }
    }
    pair.divided.update(&[], &[5; 8], 0).unwrap();
    let mut value = [0; 8];
    for wanted in [0, 1, 5, 10, 11, 20, 21] {
        pair.divided.lookup(&[], &mut value, 0).unwrap();
        assert_eq!(value, [wanted; 8]);
        pair.divided.lookup_and_delete(&[], &mut value, 0).unwrap();
        assert_eq!(value, [wanted; 8]);
    }
    let end = pair.divided.lookup_and_delete(&[], &mut value, 0);
    assert_eq!(end, Err(Errno::ENOENT));
}

#[test]
fn stacks_are_found_in_all_shards() {
    let mut spec = spec(MapType::STACK_TRACE, 8 * 4);
    spec.max_entries = 64;
    let mut pair = Pair::new(&spec, View::Union { id: None });
    let mut stacks = BTreeMap::new();
    for n in 0..60 {
        let stack = [n % 20 + 1, 2, 3, 0];
        let map = pair.of_domain(n as u32 % DOMAINS);
        let view = beeline_maps::StackTraces::of(&map).unwrap();
        let Ok(id) = view.id_of(&stack[..3], 0, &program(0)) else {
            continue;
        };
        // The same stack has the same id in one domain, and others in others.
        let old = stacks.insert(id, stack);
        assert_eq!(old.unwrap_or(stack), stack);
        if n == 40 {
            pair.retire(1);
        }
    }
    assert!(stacks.len() > 40, "{}", stacks.len());
    let ids = stacks.keys().map(|id| id.to_ne_bytes().to_vec());
    assert_eq!(keys_of(&pair.divided), ids.collect());
    let mut value = [0; 32];
    for (id, stack) in stacks {
        let key = id.to_ne_bytes();
        pair.divided.lookup(&key, &mut value, 0).unwrap();
        assert_eq!(value[..], stack.map(u64::to_ne_bytes).concat());
        pair.divided.delete(&key).unwrap();
        assert_eq!(pair.divided.delete(&key), Err(Errno::ENOENT));
    }
    assert!(keys_of(&pair.divided).is_empty());
}

#[test]
fn elements_behind_a_lock_that_is_kept_are_left_out() {
    let mut spec = spec(MapType::HASH, 16);
    spec.fields.spin_lock = Some(0);
    let pair = Pair::new(&spec, View::Union { id: None });
    let (key, mut value) = ([1, 0, 0, 0], [0; 16]);
    let take = |domain: u32, key: [u8; 4]| {
        let shard = pair.of_domain(domain);
        shard.update_copy(&key, &[0; 16], 0, &program(0)).unwrap();
        // SAFETY: keys have 4 bytes, and the value begins with its lock.
        let is_taken = unsafe {
            let lock = shard.lookup(key.as_ptr(), 0);
            beeline_maps::spin_lock(lock, &program(0))
        };
        assert!(is_taken);
    };
    let mut look = |key: [u8; 4]| pair.divided.lookup(&key, &mut value, flags::LOCK);
    // A tag that is nobody's.
    take(1, [2, 0, 0, 0]);
    assert_eq!(look([2, 0, 0, 0]), Ok(()));
    let domain = &pair.domains[1];
    assert!(domain.admit(program(0).owner));
    take(2, key);
    assert_eq!(look(key), Err(Errno::ENOENT));
    assert_eq!(domain.notes().len(), 1);
    let release = |at: usize| {
        let domain = &pair.domains[at];
        pair.divided.release_owner(program(0).owner, domain)
    };
    assert_eq!(release(0), Ok(false));
    assert_eq!(
        look(key),
        Err(Errno::ENOENT),
        "the lock is in another shard"
    );
    assert_eq!(release(1), Ok(false));
    assert_eq!(look(key), Ok(()));
    // At home it is an error.
    take(0, [3, 0, 0, 0]);
    assert_eq!(look([3, 0, 0, 0]), Err(Errno::EBUSY));
}

#[test]
fn elements_of_retired_domains_stay() {
    let mut pair = Pair::new(&spec(MapType::HASH, 8), View::Union { id: None });
    for round in 0..3 {
        let [key, other] = [u32::from(round), 8].map(u32::to_ne_bytes);
        let old = pair.of_domain(1);
        old.update_copy(&key, &[round; 8], 0, &program(0)).unwrap();
        old.update_copy(&other, &[round; 8], 0, &program(0))
            .unwrap();
        pair.retire(1);
        let mut value = [0; 8];
        pair.divided.lookup(&other, &mut value, 0).unwrap();
        assert_eq!(value, [round; 8], "the last that had the id");
        let found = pair
            .of_domain(1)
            .lookup_copy(&key, &mut value, 0, &program(0));
        assert_eq!(found, Err(Errno::ENOENT), "others see nothing of it");
    }
    let keys = [0, 1, 2, 8].map(|key: u32| key.to_ne_bytes().to_vec());
    assert_eq!(keys_of(&pair.divided), keys.into());
}

#[test]
fn elements_of_the_tools_go_to_the_domain_of_their_process() {
    let domains = Domains::new().unwrap();
    let own = std::process::id();
    let credentials = Credentials::of(own as i32).unwrap();
    let domain = domains.enter(&credentials, (own as i32, 7), |_| {});
    let domain = domain.unwrap();
    let map = map(&spec(MapType::HASH, 8));
    map.see_as(&View::Union { id: Some(0) }).unwrap();
    // No process has the second.
    let keys = [own, i32::MAX as u32].map(u32::to_ne_bytes);
    for key in keys {
        map.update(&key, &[1; 8], 0).unwrap();
    }
    let shard = map.shard_of(&domain).unwrap();
    let has = |map: &Map, key: [u8; 4]| map.lookup_copy(&key, &mut [0; 8], 0, &program(0)).is_ok();
    assert!(has(shard.here(), keys[0]) && !has(map.here(), keys[0]));
    assert!(has(map.here(), keys[1]) && !has(shard.here(), keys[1]));
    for key in keys {
        map.delete(&key).unwrap();
        map.update(&key, &[2; 8], 0).unwrap();
    }
    assert!(has(shard.here(), keys[0]) && !has(map.here(), keys[0]));
    assert!(has(map.here(), keys[1]) && !has(shard.here(), keys[1]));
}

#[test]
fn threads_that_are_gone_are_forgotten_in_all_shards() {
    let mut spec = spec(MapType::TASK_STORAGE, 8);
    (spec.max_entries, spec.flags) = (0, flags::NO_PREALLOC);
    let pair = Pair::new(&spec, View::Union { id: None });
    let mut value = [0; 8];
    for domain in 0..DOMAINS {
        let map = pair.of_domain(domain);
        for thread in [10 * domain + 1, 10 * domain + 2] {
            let key = thread.to_ne_bytes();
            map.update_copy(&key, &[thread as u8; 8], 0, &program(0))
                .unwrap();
            pair.divided.lookup(&key, &mut value, 0).unwrap();
            assert_eq!(value, [thread as u8; 8]);
        }
    }
    pair.divided.forget_threads(&|thread| thread % 10 == 1);
    for domain in 0..DOMAINS {
        for (n, wanted) in [(1, Err(Errno::ENOENT)), (2, Ok(()))] {
            let key = (10 * domain + n).to_ne_bytes();
            assert_eq!(pair.divided.lookup(&key, &mut value, 0), wanted);
        }
    }
}

#[test]
fn shards_are_charged_and_only_where_a_map_can_have_some() {
    let spec = spec(MapType::HASH, 8);
    let budget = Budget::new(100 << 10);
    let map = MapObject::new(Id(1), &spec, None, CPUS, &budget).unwrap();
    let refused = |result: Result<_, _>| result.map(|_: std::sync::Arc<_>| ()).unwrap_err();
    assert_eq!(
        refused(map.shard_of(&Domain::for_test(1))),
        Errno::EOPNOTSUPP
    );
    map.see_as(&View::Union { id: None }).unwrap();
    budget.set_limit(0);
    assert_eq!(refused(map.shard_of(&Domain::for_test(1))), Errno::ENOMEM);
    budget.set_limit(100 << 10);
    let shard = map.shard_of(&Domain::for_test(1)).unwrap();
    let again = map.shard_of(&Domain::for_test(1)).unwrap();
    assert!(Arc::ptr_eq(&shard, &again));
    assert_eq!(map.see_as(&View::Copies), Err(Errno::EBUSY));
    let array = super::map(&super::spec(MapType::ARRAY, 8));
    assert_eq!(
        array.see_as(&View::Union { id: None }),
        Err(Errno::EOPNOTSUPP)
    );
}
