//! Maps and other objects, between a real child process and a backend in memory.

#[macro_use]
mod common;

use std::time::Duration;

use beeline_uapi::{Command, Errno, MapType, ProgramType};
use common::play;
use common::tool::*;

const EBADF: i64 = -(libc::EBADF as i64);
const EINVAL: i64 = -(libc::EINVAL as i64);
const E2BIG: i64 = -(libc::E2BIG as i64);
const ENOENT: i64 = -(libc::ENOENT as i64);
const EFAULT: i64 = -(libc::EFAULT as i64);
const EPERM: i64 = -(libc::EPERM as i64);
const ENOTSUPP: i64 = -(Errno::ENOTSUPP.0 as i64);

/// Not a test of its own: the tool's side of all the others.
#[test]
fn helper_that_plays_the_tool() {
    common::play_as_tool(&[
        ("maps", maps),
        ("map_errors", map_errors),
        ("mapping", mapping),
        ("lifetimes", lifetimes),
        ("forks", forks),
        ("batches", batches),
        ("many_maps", many_maps),
        ("inner_maps", inner_maps),
        ("program_arrays", program_arrays),
        ("garbage", garbage),
        ("files", files),
        ("limits", limits),
        ("names", names),
    ]);
}

played! {
    elements_of_maps: "maps",
    errors_of_maps_are_the_kernels: "map_errors",
    arrays_are_mapped_and_frozen: "mapping",
    an_object_lives_until_its_last_descriptor: "lifetimes",
    children_use_inherited_descriptors: "forks",
    batched_commands: "batches",
    closed_maps_are_found_and_released: "many_maps",
    an_inner_map_lives_as_long_as_its_element: "inner_maps",
    a_program_array_is_emptied_with_its_last_descriptor: "program_arrays",
    garbage_gets_an_error: "garbage",
    files_of_probes: "files",
    memlock_can_be_raised: "limits",
    names_lead_to_objects_whatever_they_are_relative_to: "names",
}

fn maps() {
    let map = map_create(MapType::HASH, 4, 8, 10, 0, "counts");
    assert!(map >= 0, "{map}");
    let mut value = 0u64;
    assert_eq!(
        element(Command::MAP_LOOKUP_ELEM, map, &7, &mut value),
        ENOENT
    );
    assert_eq!(element(Command::MAP_UPDATE_ELEM, map, &7, &mut 99u64), 0);
    assert_eq!(element(Command::MAP_LOOKUP_ELEM, map, &7, &mut value), 0);
    assert_eq!(value, 99);
    let mut next = 0u32;
    assert_eq!(
        element(Command::MAP_GET_NEXT_KEY, map, &7, &mut next),
        ENOENT
    );
    let mut first = Attr::zero(24)
        .u32(0, map as u32)
        .u64(16, &raw mut next as u64);
    assert_eq!(bpf(Command::MAP_GET_NEXT_KEY, &mut first), 0);
    assert_eq!(next, 7);
    assert_eq!(element(Command::MAP_DELETE_ELEM, map, &7, &mut ()), 0);
    assert_eq!(element(Command::MAP_DELETE_ELEM, map, &7, &mut ()), ENOENT);
}

fn map_errors() {
    let map = map_create(MapType::HASH, 4, 8, 10, 0, "m");
    let program = prog_load(ProgramType::SOCKET_FILTER, "p", &RETURN_0);
    assert_eq!(map_create(MapType::HASH, 4, 8, 0, 0, "m"), EINVAL);
    assert_eq!(element(Command::MAP_LOOKUP_ELEM, 77, &0, &mut 0u64), EBADF);
    assert_eq!(element(Command::MAP_LOOKUP_ELEM, -1, &0, &mut 0u64), EBADF);
    assert_eq!(element(Command::MAP_LOOKUP_ELEM, 0, &0, &mut 0u64), EINVAL);
    assert_eq!(
        element(Command::MAP_LOOKUP_ELEM, program, &0, &mut 0u64),
        EINVAL
    );
    assert_eq!(
        bpf(
            Command::MAP_LOOKUP_ELEM,
            &mut Attr::zero(32).u32(0, map as u32)
        ),
        EFAULT
    );
    assert_eq!(map_create(MapType::HASH, 4, 8, 10, 0, "two words"), EINVAL);
    // A map that the tool may only read, and one that it may only write.
    let (read_only, write_only) = (
        map_create(MapType::HASH, 4, 8, 10, 8, "r"),
        map_create(MapType::HASH, 4, 8, 10, 16, "w"),
    );
    assert_eq!(
        element(Command::MAP_UPDATE_ELEM, read_only, &0, &mut 0u64),
        EPERM
    );
    assert_eq!(
        element(Command::MAP_LOOKUP_ELEM, write_only, &0, &mut 0u64),
        EPERM
    );
}

fn mapping() {
    let array = map_create(MapType::ARRAY, 4, 8, 100, 1 << 10, "a.bss");
    let memory = mmap(array, 1, libc::PROT_READ | libc::PROT_WRITE).unwrap();
    assert_eq!(element(Command::MAP_UPDATE_ELEM, array, &3, &mut 5u64), 0);
    // SAFETY: within the mapped page, and nobody else writes.
    assert_eq!(unsafe { memory.add(3).read_volatile() }, 5);
    let freeze = || bpf(Command::MAP_FREEZE, &mut Attr::zero(4).u32(0, array as u32));
    assert_eq!(freeze(), -i64::from(libc::EBUSY));
    // SAFETY: the page mapped above, of which nothing is used any more.
    assert_eq!(unsafe { libc::munmap(memory.cast(), 4096) }, 0);
    assert_eq!(freeze(), 0);
    assert_eq!(freeze(), EPERM);
    assert_eq!(
        element(Command::MAP_UPDATE_ELEM, array, &3, &mut 5u64),
        EPERM
    );
    assert_eq!(mmap(array, 1, libc::PROT_WRITE), Err(EPERM));
    assert!(mmap(array, 1, libc::PROT_READ).is_ok());
    assert_eq!(
        mmap(
            map_create(MapType::ARRAY, 4, 8, 1, 0, "a"),
            1,
            libc::PROT_READ
        ),
        Err(EINVAL)
    );
    assert_eq!(
        mmap(
            map_create(MapType::HASH, 4, 8, 1, 0, "h"),
            1,
            libc::PROT_READ
        ),
        Err(ENOTSUPP)
    );
    // Somebody else's file.
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    assert!(
        mmap(
            std::os::fd::AsRawFd::as_raw_fd(&file).into(),
            1,
            libc::PROT_READ
        )
        .is_ok()
    );
}

fn lifetimes() {
    let program = prog_load(ProgramType::RAW_TRACEPOINT, "p", &RETURN_0);
    let id = id_of(program);
    let copy = dup(program);
    close(program);
    assert_eq!(id_of(copy), id);
    assert_eq!(test_run(copy), (0, 42));
    let again = bpf(Command::PROG_GET_FD_BY_ID, &mut Attr::zero(12).u32(0, id));
    assert!(again >= 0);
    close(copy);
    assert_eq!(id_of(again), id);
    close(again);
    wait_until_gone(Command::PROG_GET_FD_BY_ID, id);
}

fn forks() {
    let map = map_create(MapType::HASH, 4, 8, 10, 0, "shared");
    let link_holder = prog_load(ProgramType::SOCKET_FILTER, "p", &RETURN_0);
    let id = id_of(link_holder);
    // SAFETY: the child makes system calls only and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let updated = element(Command::MAP_UPDATE_ELEM, map, &1, &mut 11u64) == 0;
        let created = map_create(MapType::HASH, 4, 8, 10, 0, "child") >= 0;
        std::thread::sleep(Duration::from_millis(200));
        let ok = updated && created && id_of(link_holder) == id;
        // SAFETY: ends the child without running the test harness's clean-up.
        unsafe { libc::_exit(if ok { 0 } else { 1 }) };
    }
    close(link_holder);
    let mut status = 0;
    // SAFETY: waits for the child above.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    let mut value = 0u64;
    assert_eq!(element(Command::MAP_LOOKUP_ELEM, map, &1, &mut value), 0);
    assert_eq!(value, 11);
    wait_until_gone(Command::PROG_GET_FD_BY_ID, id);
}

/// Runs one batched command; returns its result, the count, and the cursor.
fn batch(
    command: Command,
    map: i64,
    from: Option<u32>,
    keys: &mut [u32],
    values: &mut [u64],
) -> (i64, u32, u32) {
    let (mut input, mut output) = (from.unwrap_or(0), 0u32);
    let mut attr = Attr::zero(56)
        .u64(16, keys.as_mut_ptr() as u64)
        .u64(24, values.as_mut_ptr() as u64)
        .u32(32, keys.len() as u32)
        .u32(36, map as u32);
    if matches!(
        command,
        Command::MAP_LOOKUP_BATCH | Command::MAP_LOOKUP_AND_DELETE_BATCH
    ) {
        attr = attr.u64(8, &raw mut output as u64);
        if from.is_some() {
            attr = attr.u64(0, &raw mut input as u64);
        }
    }
    let result = bpf(command, &mut attr);
    (result, attr.get_u32(32), output)
}

fn batches() {
    let map = map_create(MapType::HASH, 4, 8, 10, 0, "m");
    let (mut keys, mut values) = ([1, 2, 3, 4, 5], [10, 20, 30, 40, 50]);
    assert_eq!(
        batch(Command::MAP_UPDATE_BATCH, map, None, &mut keys, &mut values).0,
        0
    );

    let (mut keys, mut values) = ([0; 3], [0; 3]);
    let (result, count, cursor) =
        batch(Command::MAP_LOOKUP_BATCH, map, None, &mut keys, &mut values);
    assert_eq!(
        (result, count, keys, values),
        (0, 3, [1, 2, 3], [10, 20, 30])
    );
    let (result, count, _) = batch(
        Command::MAP_LOOKUP_BATCH,
        map,
        Some(cursor),
        &mut keys,
        &mut values,
    );
    assert_eq!(
        (result, count, &keys[..2], &values[..2]),
        (ENOENT, 2, &[4, 5][..], &[40, 50][..])
    );

    let (result, count, cursor) = batch(
        Command::MAP_LOOKUP_AND_DELETE_BATCH,
        map,
        None,
        &mut keys,
        &mut values,
    );
    assert_eq!((result, count, keys), (0, 3, [1, 2, 3]));
    let (result, count, _) = batch(
        Command::MAP_LOOKUP_AND_DELETE_BATCH,
        map,
        Some(cursor),
        &mut keys,
        &mut values,
    );
    assert_eq!((result, count, &keys[..2]), (ENOENT, 2, &[4, 5][..]));
    assert_eq!(
        element(Command::MAP_LOOKUP_ELEM, map, &5, &mut 0u64),
        ENOENT
    );
}

fn many_maps() {
    let (kept, mapped) = (
        map_create(MapType::HASH, 4, 8, 1, 0, "kept"),
        map_create(MapType::ARRAY, 4, 8, 1, 1 << 10, "mapped"),
    );
    let (kept_id, mapped_id) = (id_of(kept), id_of(mapped));
    let memory = mmap(mapped, 1, libc::PROT_READ).unwrap();
    close(mapped);
    let first = map_create(MapType::HASH, 4, 8, 1, 0, "m");
    let first_id = id_of(first);
    close(first);
    // Enough for a search, which takes a moment.
    for _ in 0..70 {
        close(map_create(MapType::HASH, 4, 8, 1, 0, "m"));
    }
    std::thread::sleep(Duration::from_millis(500));
    wait_until_gone(Command::MAP_GET_FD_BY_ID, first_id);
    assert_eq!(id_of(kept), kept_id);
    let again = bpf(
        Command::MAP_GET_FD_BY_ID,
        &mut Attr::zero(12).u32(0, mapped_id),
    );
    assert!(again >= 0, "a mapped map is in use");
    // SAFETY: still mapped.
    assert_eq!(unsafe { memory.read_volatile() }, 0);
}

fn inner_maps() {
    let (inner, other) = (
        map_create(MapType::HASH, 4, 8, 1, 0, "inner"),
        map_create(MapType::HASH, 4, 8, 1, 0, "m"),
    );
    let (inner_id, other_id) = (id_of(inner), id_of(other));
    let outer = Attr::zero(72)
        .u32(0, MapType::HASH_OF_MAPS.0)
        .u32(4, 4)
        .u32(8, 4)
        .u32(12, 1)
        .u32(20, inner as u32);
    assert_eq!(
        bpf(Command::MAP_CREATE, &mut outer.clone().u32(20, 999)),
        EBADF
    );
    let outer = bpf(Command::MAP_CREATE, &mut outer.clone());
    assert!(outer >= 0, "{outer}");
    assert_eq!(
        element(Command::MAP_UPDATE_ELEM, outer, &1, &mut 999u32),
        EBADF
    );
    assert_eq!(element(Command::MAP_UPDATE_ELEM, inner, &5, &mut 55u64), 0);
    assert_eq!(
        element(Command::MAP_UPDATE_ELEM, outer, &1, &mut (inner as u32)),
        0
    );
    close(inner);
    close(other);
    // Enough for a search, which finds the one and would find the other.
    for _ in 0..70 {
        close(map_create(MapType::HASH, 4, 8, 1, 0, "m"));
    }
    wait_until_gone(Command::MAP_GET_FD_BY_ID, other_id);
    let mut value = 0u32;
    assert_eq!(element(Command::MAP_LOOKUP_ELEM, outer, &1, &mut value), 0);
    assert_eq!(value, inner_id);
    let inner = bpf(
        Command::MAP_GET_FD_BY_ID,
        &mut Attr::zero(12).u32(0, inner_id),
    );
    let mut value = 0u64;
    assert_eq!(element(Command::MAP_LOOKUP_ELEM, inner, &5, &mut value), 0);
    assert_eq!(value, 55);
    close(inner);
    assert_eq!(element(Command::MAP_DELETE_ELEM, outer, &1, &mut ()), 0);
    wait_until_gone(Command::MAP_GET_FD_BY_ID, inner_id);
}

fn program_arrays() {
    let array = map_create(MapType::PROG_ARRAY, 4, 4, 4, 0, "programs");
    let program = prog_load(ProgramType::KPROBE, "p", &RETURN_0);
    let id = id_of(program);
    assert_eq!(
        element(Command::MAP_UPDATE_ELEM, array, &9, &mut (program as u32)),
        E2BIG
    );
    assert_eq!(
        element(Command::MAP_UPDATE_ELEM, array, &2, &mut (array as u32)),
        EINVAL
    );
    assert_eq!(
        element(Command::MAP_UPDATE_ELEM, array, &2, &mut (program as u32)),
        0
    );
    close(program);
    let again = dup(array);
    close(array);
    let program = bpf(Command::PROG_GET_FD_BY_ID, &mut Attr::zero(12).u32(0, id));
    assert!(program >= 0, "{program}");
    close(program);
    close(again);
    wait_until_gone(Command::PROG_GET_FD_BY_ID, id);
}

fn garbage() {
    // A fixed sequence, so that a failure can be repeated.
    let mut state = 0x2545_f491_4f6c_dd1du64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for command in (0..60).chain([u32::MAX, 1 << 31]) {
        for size in [0, 1, 4, 64, 120, 168, 200, 4096] {
            let mut attr = Attr::zero(size);
            for byte in attr.0.iter_mut().take(168) {
                let noise = random();
                *byte = if noise.is_multiple_of(3) {
                    (noise >> 8) as u8
                } else {
                    0
                };
            }
            let fd = bpf(Command(command), &mut attr);
            if fd > 2 {
                close(fd);
            }
        }
    }
    assert_eq!(bpf(Command(99), &mut Attr::zero(16)), EINVAL);
    assert_eq!(
        bpf(Command::MAP_CREATE, &mut Attr::zero(200).u32(196, 1)),
        E2BIG
    );
    assert_eq!(bpf(Command::MAP_CREATE, &mut Attr::zero(5000)), E2BIG);
    // SAFETY: a bad address, read by the supervisor only.
    let bad = unsafe { libc::syscall(libc::SYS_bpf, Command::MAP_CREATE.0, 8, 64) };
    assert_eq!(result(bad), EFAULT);
    for _ in 0..200 {
        let mut attr = Attr::zero(136);
        for byte in &mut attr.0 {
            *byte = random() as u8;
        }
        attr = attr.u32(4, 136).u32(0, (random() % 12) as u32);
        let fd = perf_event_open(&mut attr, -1, 0);
        if fd > 2 {
            close(fd);
        }
    }
}

fn files() {
    for path in [
        "/sys/kernel/tracing/uprobe_events",
        "/sys/kernel/debug/tracing/uprobe_events",
    ] {
        assert_eq!(std::fs::read(path).unwrap(), b"");
        let mut file = std::fs::OpenOptions::new().append(true).open(path).unwrap();
        std::io::Write::write_all(&mut file, b"-:uprobes/p_x\n").unwrap();
    }
    assert!(std::fs::read_to_string("/sys/bus/event_source/devices/uprobe/type").is_ok());
    assert!(std::fs::read("/sys/kernel/tracing/no_such_file").is_err());
}

fn limits() {
    let limit = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: one limit, read only.
    let raised = unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) };
    assert_eq!(raised, 0);
}

fn names() {
    const DIRECTORY: &std::ffi::CStr = c"/sys/fs/bpf/names";
    let map = map_create(MapType::ARRAY, 4, 8, 1, 0, "m");
    // SAFETY: paths that end in a NUL, here and below.
    assert_eq!(unsafe { libc::mkdir(DIRECTORY.as_ptr(), 0o700) }, 0);
    let path = c"/sys/fs/bpf/names/m";
    let mut pin = Attr::zero(16)
        .u64(0, path.as_ptr() as u64)
        .u32(8, map as u32);
    assert_eq!(bpf(Command::OBJ_PIN, &mut pin), 0);
    let flags = libc::O_RDONLY | libc::O_DIRECTORY;
    // SAFETY: likewise.
    let directory = unsafe { libc::open(DIRECTORY.as_ptr(), flags) };
    assert!(directory >= 0);
    let open = |at: i32, name: &std::ffi::CStr, flags: i32| {
        // SAFETY: likewise.
        result(unsafe { libc::syscall(libc::SYS_openat, at, name.as_ptr(), flags, 0o600) })
    };
    let (read, create) = (libc::O_RDONLY, libc::O_RDWR | libc::O_CREAT);
    for (at, object, other) in [
        (libc::AT_FDCWD, path, c"/sys/fs/bpf/names/n"),
        (directory, c"m", c"n"),
        (directory, c"../names/m", c"./n"),
    ] {
        // Objects are not for reading, files are not made, and missing names stay missing.
        assert_eq!(open(at, object, read), -i64::from(libc::EIO), "{object:?}");
        assert_eq!(open(at, other, read), ENOENT, "{other:?}");
        assert_eq!(
            open(at, other, create),
            -i64::from(libc::EACCES),
            "{other:?}"
        );
        let access = |name: &std::ffi::CStr| {
            // SAFETY: likewise.
            result(unsafe { libc::faccessat(at, name.as_ptr(), libc::R_OK, 0) }.into())
        };
        assert_eq!((access(object), access(other)), (0, ENOENT));
    }
    let listed = open(directory, c".", flags);
    assert!(listed >= 0, "{listed}");
    close(listed);
    assert!(std::fs::remove_dir_all("/sys/fs/bpf/names").is_ok());
    close(directory.into());
    close(map);
}
