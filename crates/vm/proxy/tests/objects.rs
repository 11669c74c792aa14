//! Maps and programs of this machine's kernel, over the wire.

mod harness;

use beeline_uapi::fields::u32_at;
use beeline_uapi::{AttachType, Command, HelperId, MapType, ProgramType};
use beeline_vm_protocol::layout::INSIDE;
use beeline_vm_protocol::messages::guest_message::Body as Answer;
use beeline_vm_protocol::messages::host_message::Body as Request;
use beeline_vm_protocol::messages::{Describe, Iterate, LookUp, Read, Release};
use harness::*;

#[test]
fn the_kernel_introduces_itself() {
    let proxy = Proxy::start();
    let host = Host::connect(&proxy);
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    assert_eq!(host.welcome.release, release.trim());
    assert_eq!(host.welcome.page_size, 4096);
    assert!(host.welcome.possible_cpus > 0);
    assert_eq!(host.welcome.boot_id.len(), 36);
}

#[test]
fn elements_are_set_and_read() {
    if !may() {
        return;
    }
    let proxy = Proxy::start();
    let mut host = Host::connect(&proxy);
    let map = host.make_map(MapType::HASH, [4, 8, 100, 0]);
    for key in 0..10_u32 {
        let value = u64::from(key) * 7;
        let done = host.update(map, &key.to_ne_bytes(), &value.to_ne_bytes());
        assert_eq!(done.errno, 0);
    }
    assert_eq!(
        host.look_up(map, &3_u32.to_ne_bytes(), 8),
        Ok(21_u64.to_ne_bytes().to_vec())
    );
    let missing = host.look_up(map, &77_u32.to_ne_bytes(), 8);
    assert_eq!(missing, Err(libc::ENOENT as u32));
    // The kernel's own verdict on flags that it does not know.
    let mut attr = words(&[map], 32);
    attr[24] = 0xff;
    let parts = vec![given(8, vec![0; 4]), given(16, vec![0; 8])];
    let done = host.bpf(Command::MAP_UPDATE_ELEM, attr, parts);
    assert_eq!(done.errno, libc::EINVAL as u32);
    // Keys come in the kernel's order, each with its value.
    let mut keys = Vec::new();
    let mut after = Vec::new();
    loop {
        let request = Iterate {
            handle: map,
            after,
            count: 3,
        };
        let Ok(Answer::Iterated(iterated)) = host.ask(Request::Iterate(request)) else {
            panic!("no answer to an iteration");
        };
        let (found, _) = iterated.keys.as_chunks::<4>();
        for (key, value) in found.iter().zip(iterated.values.as_chunks::<8>().0) {
            let key = u32::from_ne_bytes(*key);
            assert_eq!(u64::from_ne_bytes(*value), u64::from(key) * 7);
            keys.push(key);
        }
        if iterated.end {
            break;
        }
        after = iterated.keys[iterated.keys.len() - 4..].to_vec();
    }
    keys.sort_unstable();
    assert_eq!(keys, (0..10).collect::<Vec<u32>>());
    // By batches, as libbpf's tools do.
    let mut attr = words(&[0; 8], 56);
    attr[32..36].copy_from_slice(&100_u32.to_ne_bytes());
    attr[36..40].copy_from_slice(&map.to_ne_bytes());
    let parts = vec![room(8, 4), room(16, 400), room(24, 800)];
    let done = host.bpf(Command::MAP_LOOKUP_BATCH, attr, parts);
    assert_eq!(done.errno, libc::ENOENT as u32);
    assert_eq!(u32_at(&done.attr, 32), 10);
    let lengths: Vec<_> = done
        .parts
        .iter()
        .map(|part| (part.at, part.data.len()))
        .collect();
    assert_eq!(lengths, [(8, 4), (16, 40), (24, 80)]);
}

/// Returns the keys of a map in the kernel's order, by its own calls.
fn keys_in_order(host: &mut Host, map: u32) -> Vec<[u8; 4]> {
    let mut keys: Vec<[u8; 4]> = Vec::new();
    loop {
        let mut parts = vec![room(16, 4)];
        parts.extend(keys.last().map(|key| given(8, key.to_vec())));
        let done = host.bpf(Command::MAP_GET_NEXT_KEY, words(&[map], 32), parts);
        match done.errno as i32 {
            0 => keys.push(done.parts[0].data[..].try_into().unwrap()),
            libc::ENOENT => return keys,
            errno => panic!("{errno}"),
        }
    }
}

/// Holds for pieces of any size, and also if the tool deletes the elements that it has just got.
#[test]
fn iterations_are_in_the_kernels_order() {
    if !may() {
        return;
    }
    let proxy = Proxy::start();
    let mut host = Host::connect(&proxy);
    let cpus = host.welcome.possible_cpus as usize;
    for kind in [
        MapType::HASH,
        MapType::PERCPU_HASH,
        MapType::LRU_HASH,
        MapType::LRU_PERCPU_HASH,
    ] {
        let of_cpus = matches!(kind, MapType::PERCPU_HASH | MapType::LRU_PERCPU_HASH);
        let len = if of_cpus { 8 * cpus } else { 8 };
        let value_of = |key: &[u8]| [key, key].concat().repeat(len / 8);
        // With few CPUs, LRU maps have less room than they say.
        let map = host.make_map(kind, [4, 8, 4000, 0]);
        for key in 0..300_u32 {
            let key = key.to_ne_bytes();
            assert_eq!(host.update(map, &key, &value_of(&key)).errno, 0);
        }
        let expected = keys_in_order(&mut host, map);
        assert_eq!(expected.len(), 300);
        let piece = |host: &mut Host, after: &[u8], count| {
            let after = after.to_vec();
            let handle = map;
            let request = Iterate {
                handle,
                after,
                count,
            };
            let Ok(Answer::Iterated(iterated)) = host.ask(Request::Iterate(request)) else {
                panic!("no answer to an iteration");
            };
            let keys = iterated.keys.as_chunks::<4>().0.to_vec();
            let values = iterated.values.chunks_exact(len);
            assert!(
                values
                    .zip(&keys)
                    .all(|(value, key)| *value == value_of(key))
            );
            assert_eq!(iterated.values.len(), keys.len() * len);
            (keys, iterated.end)
        };
        for count in [1, 3, 16, 4096] {
            let mut keys: Vec<[u8; 4]> = Vec::new();
            loop {
                let last = keys.last().map(|key| key.to_vec());
                let (more, end) = piece(&mut host, &last.unwrap_or_default(), count);
                keys.extend(more);
                if end {
                    break;
                }
            }
            assert_eq!(keys, expected, "{kind} {count}");
        }
        // A key other than the last one continues from there.
        piece(&mut host, &[], 16);
        assert_eq!(piece(&mut host, &expected[7], 16).0[0], expected[8]);
        let (first, _) = piece(&mut host, &[], 16);
        let last = *first.last().unwrap();
        let parts = vec![given(8, last.to_vec())];
        let deleted = host.bpf(Command::MAP_DELETE_ELEM, words(&[map], 32), parts);
        assert_eq!(deleted.errno, 0);
        let (rest, end) = piece(&mut host, &last, 4096);
        assert!(end);
        assert_eq!([first, rest].concat(), expected, "{kind}");
    }
}

#[test]
fn values_are_as_long_as_the_map_says() {
    if !may() {
        return;
    }
    let proxy = Proxy::start();
    let mut host = Host::connect(&proxy);
    let cpus = host.welcome.possible_cpus;
    let map = host.make_map(MapType::PERCPU_ARRAY, [4, 4, 2, 0]);
    let len = 8 * cpus;
    let value = host.look_up(map, &[0; 4], len).unwrap();
    assert_eq!(value.len(), len as usize);
    for (key, value) in [(3, 8), (5, 8), (4, 7), (4, 9)] {
        let parts = vec![given(8, vec![0; key]), given(16, vec![0; value])];
        let request = bpf(Command::MAP_UPDATE_ELEM, words(&[map], 32), parts);
        if (key, value) != (4, 8 * cpus as usize) {
            assert_eq!(host.refused(request).errno, libc::EINVAL as u32);
        }
    }
    // A Bloom filter is asked about a value.
    let filter = host.make_map(MapType::BLOOM_FILTER, [0, 4, 100, 0]);
    let parts = vec![given(16, vec![7; 4])];
    let set = host.bpf(Command::MAP_UPDATE_ELEM, words(&[filter], 32), parts);
    assert_eq!(set.errno, 0);
    for (value, errno) in [([7; 4], 0), ([9; 4], libc::ENOENT as u32)] {
        let mut part = given(16, value.to_vec());
        part.room = 4;
        let asked = host.bpf(Command::MAP_LOOKUP_ELEM, words(&[filter], 32), vec![part]);
        assert_eq!(asked.errno, errno);
    }
}

#[test]
fn programs_are_loaded_run_and_described() {
    if !may() {
        return;
    }
    let proxy = Proxy::start();
    let mut host = Host::connect(&proxy);
    let counter = host.make_map(MapType::ARRAY, [4, 8, 1, 0]);
    let mut insns = vec![
        insn(0x62, 10, 0, -4, 0),
        insn(0xbf, 2, 10, 0, 0),
        insn(0x07, 2, 0, 0, -4),
    ];
    insns.extend(map(1, counter));
    insns.extend([
        call(HelperId::MAP_LOOKUP_ELEM),
        insn(0x15, 0, 0, 2, 0),
        mov(1, 1),
        insn(0xdb, 0, 1, 0, 0),
        mov(0, 0),
        exit(),
    ]);
    let loaded = host.load(ProgramType::RAW_TRACEPOINT, &insns);
    assert_eq!(loaded.errno, 0, "{loaded:?}");
    for _ in 0..3 {
        host.run(loaded.handle);
    }
    let value = host.look_up(counter, &[0; 4], 8).unwrap();
    assert_eq!(value, 3_u64.to_ne_bytes());
    // Its maps and its translated instructions, through pointers in the structure.
    let map_id = host.id(counter);
    let mut structure = vec![0; 128];
    structure[20..24].copy_from_slice(&4096_u32.to_ne_bytes());
    structure[52..56].copy_from_slice(&2_u32.to_ne_bytes());
    let parts = vec![
        given(8, structure),
        room(INSIDE | 32, 4096),
        room(INSIDE | 56, 8),
    ];
    let attr = words(&[loaded.handle, 128], 16);
    let done = host.bpf(Command::OBJ_GET_INFO_BY_FD, attr, parts);
    assert_eq!(done.errno, 0);
    let info = &done.parts[0].data;
    assert_eq!(u32_at(info, 0), ProgramType::RAW_TRACEPOINT.0);
    assert_eq!(u32_at(info, 52), 1);
    assert_eq!(info[32..40], [0; 8]);
    assert_eq!(u32_at(&done.parts[2].data, 0), map_id);
    assert_ne!(done.parts[1].data[..8], [0; 8]);
}

#[test]
fn the_verifiers_words_come_over() {
    if !may() {
        return;
    }
    let proxy = Proxy::start();
    let mut host = Host::connect(&proxy);
    let done = host.load(ProgramType::RAW_TRACEPOINT, &[exit()]);
    assert_eq!(done.errno, libc::EACCES as u32);
    let log = String::from_utf8(done.parts[0].data.clone()).unwrap();
    assert!(log.contains("R0 !read_ok"), "{log}");
    assert!(log.len() < 1000 && log.ends_with('\0'));
}

#[test]
fn elements_of_program_arrays_are_handles() {
    if !may() {
        return;
    }
    let proxy = Proxy::start();
    let mut host = Host::connect(&proxy);
    let array = host.make_map(MapType::PROG_ARRAY, [4, 4, 4, 0]);
    let loaded = host.load(ProgramType::RAW_TRACEPOINT, &[mov(0, 0), exit()]);
    let done = host.update(array, &[0; 4], &loaded.handle.to_ne_bytes());
    assert_eq!(done.errno, 0);
    let id = host.look_up(array, &[0; 4], 4).unwrap();
    assert_eq!(u32_at(&id, 0), host.id(loaded.handle));
    // A map is no program.
    let done = host.update(array, &[0; 4], &array.to_ne_bytes());
    assert_eq!(done.errno, libc::EINVAL as u32);
    let request = |handle: u32| {
        let parts = vec![
            given(8, vec![0; 4]),
            given(16, handle.to_ne_bytes().to_vec()),
        ];
        bpf(Command::MAP_UPDATE_ELEM, words(&[array], 32), parts)
    };
    assert_eq!(host.refused(request(4242)).errno, libc::EBADF as u32);
}

/// The shorter message returns the same value as the call, and is refused for any other use.
#[test]
fn values_are_looked_up_in_few_words() {
    if !may() {
        return;
    }
    let proxy = Proxy::start();
    let mut host = Host::connect(&proxy);
    let cpus = host.welcome.possible_cpus;
    let short = |host: &mut Host, handle, key: &[u8]| {
        let key = key.to_vec();
        match host.ask(Request::LookUp(LookUp { handle, key })) {
            Ok(Answer::Content(found)) => Ok(found.data),
            Err(refused) => Err(refused.errno),
            other => panic!("{other:?}"),
        }
    };
    for (kind, len) in [
        (MapType::HASH, 12),
        (MapType::ARRAY, 12),
        (MapType::PERCPU_HASH, 16 * cpus),
        (MapType::PERCPU_ARRAY, 16 * cpus),
        (MapType::LRU_HASH, 12),
        (MapType::LRU_PERCPU_HASH, 16 * cpus),
    ] {
        let map = host.make_map(kind, [4, 12, 10, 0]);
        let value: Vec<u8> = (1..=len as u8).collect();
        assert_eq!(host.update(map, &[1, 0, 0, 0], &value).errno, 0);
        for key in [1_u32, 2, 77] {
            let key = key.to_ne_bytes();
            let long = host.look_up(map, &key, len);
            assert_eq!(short(&mut host, map, &key), long, "{kind} {key:?}");
        }
        assert!(short(&mut host, map, &[1, 0, 0, 0]).is_ok());
        for key in [&[][..], &[1], &[0; 5], &[0; 4096]] {
            let answer = short(&mut host, map, key);
            assert_eq!(answer, Err(libc::EINVAL as u32), "{kind} {key:?}");
        }
    }
    for kind in [MapType::PROG_ARRAY, MapType::BLOOM_FILTER, MapType::RINGBUF] {
        let shape = match kind {
            MapType::PROG_ARRAY => [4, 4, 1, 0],
            MapType::BLOOM_FILTER => [0, 4, 1, 0],
            _ => [0, 0, 4096, 0],
        };
        let map = host.make_map(kind, shape);
        let answer = short(&mut host, map, &[0; 4]);
        assert_eq!(answer, Err(libc::EOPNOTSUPP as u32), "{kind}");
    }
    let program = host
        .load(ProgramType::RAW_TRACEPOINT, &[mov(0, 0), exit()])
        .handle;
    assert_eq!(short(&mut host, program, &[0; 4]), Err(libc::EINVAL as u32));
    assert_eq!(short(&mut host, 4242, &[0; 4]), Err(libc::EBADF as u32));
}

#[test]
fn commands_outside_the_table_are_refused() {
    if !may() {
        return;
    }
    let proxy = Proxy::start();
    let mut host = Host::connect(&proxy);
    let map = host.make_map(MapType::ARRAY, [4, 8, 1, 0]);
    // A pointer where none belongs, an unknown command, fields after the known ones.
    let parts = vec![given(24, vec![0; 8])];
    let request = bpf(Command::MAP_LOOKUP_ELEM, words(&[map], 32), parts);
    assert_eq!(host.refused(request).errno, libc::EINVAL as u32);
    let pinned = bpf(Command::OBJ_PIN, words(&[0, 0, map], 16), vec![]);
    assert_eq!(host.refused(pinned).errno, libc::EOPNOTSUPP as u32);
    // Links to cgroups and network devices, and attaching to them: a place that no policy names, by
    // a number from another machine.
    for attach_type in [
        AttachType::CGROUP_INET_INGRESS,
        AttachType::XDP,
        AttachType::TCX_INGRESS,
    ] {
        let link = bpf(
            Command::LINK_CREATE,
            words(&[map, 1, attach_type.0], 64),
            vec![],
        );
        assert_eq!(host.refused(link).errno, libc::EOPNOTSUPP as u32);
        let attach = bpf(
            Command::PROG_ATTACH,
            words(&[1, map, attach_type.0], 32),
            vec![],
        );
        assert_eq!(host.refused(attach).errno, libc::EOPNOTSUPP as u32);
    }
    let long = bpf(Command::MAP_LOOKUP_ELEM, vec![1; 100], vec![]);
    assert_eq!(host.refused(long).errno, libc::E2BIG as u32);
    // Addresses in the attribute are not used: null is there.
    let attr = longs(&[(8, 0x1000), (16, 0x1000)], words(&[map], 32));
    let done = host.bpf(Command::MAP_LOOKUP_ELEM, attr, vec![]);
    assert_eq!(done.errno, libc::EFAULT as u32);
    // The connection is as good as before.
    assert!(host.look_up(map, &[0; 4], 8).is_ok());
}

#[test]
fn others_objects_are_not_seen() {
    if !may() {
        return;
    }
    let proxy = Proxy::start();
    let (mut one, mut two) = (Host::connect(&proxy), Host::connect(&proxy));
    let (map, other) = (
        one.make_map(MapType::ARRAY, [4, 8, 1, 0]),
        two.make_map(MapType::ARRAY, [4, 8, 1, 0]),
    );
    // Handles belong to one connection.
    assert_eq!(map, other);
    let (id, other_id) = (one.id(map), two.id(other));
    assert_ne!(id, other_id);
    let by_id = |id| bpf(Command::MAP_GET_FD_BY_ID, words(&[id], 12), vec![]);
    assert_eq!(two.refused(by_id(id)).rule, "objects.foreign");
    assert!(matches!(one.ask(by_id(id)), Ok(Answer::BpfDone(done)) if done.handle != 0));
    // And a list contains only these.
    let mut listed = Vec::new();
    let mut last = 0;
    loop {
        let done = two.bpf(Command::MAP_GET_NEXT_ID, words(&[last], 12), vec![]);
        if done.errno != 0 {
            assert_eq!(done.errno, libc::ENOENT as u32);
            break;
        }
        last = u32_at(&done.attr, 4);
        listed.push(last);
    }
    assert_eq!(listed, [other_id]);
    // The kernel's own types are open to all connections.
    let done = two.bpf(Command::BTF_GET_NEXT_ID, words(&[0], 12), vec![]);
    let types = u32_at(&done.attr, 4);
    let done = two.bpf(Command::BTF_GET_FD_BY_ID, words(&[types], 12), vec![]);
    assert_eq!(done.errno, 0);
}

#[test]
fn objects_of_a_program_belong_to_its_host() {
    if !may() {
        return;
    }
    let proxy = Proxy::start();
    let (mut one, mut two) = (Host::connect(&proxy), Host::connect(&proxy));
    let array = one.make_map(MapType::ARRAY, [4, 8, 1, 0]);
    let id = one.id(array);
    let mut insns = map(1, array).to_vec();
    insns.extend([mov(0, 0), exit()]);
    let program = one.load(ProgramType::RAW_TRACEPOINT, &insns).handle;
    assert_ne!(program, 0);
    let release = |handle| {
        Request::Release(Release {
            handles: vec![handle],
        })
    };
    assert!(one.ask(release(array)).is_ok());
    let by_id = |id| bpf(Command::MAP_GET_FD_BY_ID, words(&[id], 12), vec![]);
    assert!(matches!(one.ask(by_id(id)), Ok(Answer::BpfDone(done)) if done.handle != 0));
    assert_eq!(two.refused(by_id(id)).rule, "objects.foreign");
    let listed = one.bpf(Command::MAP_GET_NEXT_ID, words(&[0], 12), vec![]);
    assert_eq!(u32_at(&listed.attr, 4), id);
    let listed = two.bpf(Command::MAP_GET_NEXT_ID, words(&[0], 12), vec![]);
    assert_eq!(listed.errno, libc::ENOENT as u32);
}

#[test]
fn an_object_is_described_and_what_is_no_iterator_is_not_read() {
    if !may() {
        return;
    }
    let proxy = Proxy::start();
    let mut host = Host::connect(&proxy);
    let handle = host.make_map(MapType::ARRAY, [4, 8, 3, 0]);
    match host.ask(Request::Describe(Describe { handle })) {
        Ok(Answer::Described(said)) => {
            assert!(said.text.contains("max_entries:\t3\n"), "{said:?}");
            assert!(!said.text.contains("flags:\t02"), "{said:?}");
        }
        other => panic!("{other:?}"),
    }
    let refused = host.refused(Request::Read(Read { handle, room: 8 }));
    assert_eq!(refused.errno, libc::EINVAL as u32);
    let refused = host.refused(Request::Describe(Describe { handle: 4242 }));
    assert_eq!(refused.errno, libc::EBADF as u32);
}

#[test]
fn everything_ends_with_the_connection() {
    if !may() {
        return;
    }
    let mut proxy = Proxy::start();
    let before = proxy.size();
    let ids = |host: &mut Host| {
        let map = host.make_map(MapType::HASH, [4, 8, 10, 0]);
        let program = host
            .load(ProgramType::RAW_TRACEPOINT, &[mov(0, 0), exit()])
            .handle;
        let name = vec![given(0, b"sys_enter".to_vec())];
        let attr = words(&[0, 0, program], 24);
        let link = host.bpf(Command::RAW_TRACEPOINT_OPEN, attr, name);
        assert_eq!(link.errno, 0, "{link:?}");
        [
            (Command::MAP_GET_FD_BY_ID, host.id(map)),
            (Command::PROG_GET_FD_BY_ID, host.id(program)),
            (Command::LINK_GET_FD_BY_ID, host.id(link.handle)),
        ]
    };
    let mut host = Host::connect(&proxy);
    let mut stays = Host::connect(&proxy);
    let (its, others) = (ids(&mut host), ids(&mut stays));
    assert!(
        its.iter()
            .chain(&others)
            .all(|(kind, id)| is_there(*kind, *id))
    );
    drop(host);
    eventually(|| its.iter().all(|(kind, id)| !is_there(*kind, *id)));
    assert!(others.iter().all(|(kind, id)| is_there(*kind, *id)));
    // One by one, by the tool.
    let map = stays.make_map(MapType::HASH, [4, 8, 10, 0]);
    let id = stays.id(map);
    let handles = vec![map];
    stays.ask(Request::Release(Release { handles })).unwrap();
    eventually(|| !is_there(Command::MAP_GET_FD_BY_ID, id));
    drop(stays);
    eventually(|| others.iter().all(|(kind, id)| !is_there(*kind, *id)));
    eventually(|| proxy.size() == before);
    // And with the proxy, however it ends.
    let mut host = Host::connect(&proxy);
    let its = ids(&mut host);
    proxy.kill();
    eventually(|| its.iter().all(|(kind, id)| !is_there(*kind, *id)));
    assert!(host.receive().is_none());
}
