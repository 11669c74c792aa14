//! Programs and type information, between a real child process and a backend in memory.

#[macro_use]
mod common;

use beeline_uapi::{Command, Errno, MapType, ProgramType};
use common::fake::{BAD_PROGRAM, LOG};
use common::play;
use common::tool::*;

const EBADF: i64 = -(libc::EBADF as i64);
const EINVAL: i64 = -(libc::EINVAL as i64);
const E2BIG: i64 = -(libc::E2BIG as i64);
const ENOTSUPP: i64 = -(Errno::ENOTSUPP.0 as i64);

/// Not a test of its own: the tool's side of all the others.
#[test]
fn helper_that_plays_the_tool() {
    common::play_as_tool(&[
        ("programs", programs),
        ("logs", logs),
        ("type_info", type_info),
    ]);
}

played! {
    a_log_buffer_that_is_too_small_is_enospc: "logs",
    type_information_is_kept: "type_info",
}

#[test]
fn programs_load_with_their_maps() {
    let fake = play("programs");
    // The first object is the map, whatever its descriptor's number.
    for name in ["direct", "indexed"] {
        let start = format!(
            "program_load {} {name} maps [(",
            ProgramType::RAW_TRACEPOINT
        );
        let loaded = fake
            .log()
            .iter()
            .any(|line| line.starts_with(&start) && line.contains(", Id(1))]"));
        assert!(loaded, "{name}: {:#?}", fake.log());
    }
    assert!(fake.saw("test_run"));
    assert!(fake.saw("bind"));
}

fn programs() {
    let map = map_create(MapType::HASH, 4, 8, 10, 0, "m");
    let load = |pseudo: u64, imm: i64| {
        [
            0x18 | 1 << 8 | pseudo << 12 | (imm as u64) << 32,
            0,
            0xb7,
            0x95,
        ]
    };
    assert!(prog_load(ProgramType::RAW_TRACEPOINT, "direct", &load(1, map)) >= 0);
    let fds = [-1, map as i32];
    let insns = load(5, 1);
    let attr =
        prog_attr(ProgramType::RAW_TRACEPOINT, "indexed", &insns).u64(120, fds.as_ptr() as u64);
    let program = bpf(Command::PROG_LOAD, &mut attr.clone());
    assert!(program >= 0);
    assert_eq!(bpf(Command::PROG_LOAD, &mut attr.u64(120, 0)), EINVAL);
    assert_eq!(test_run(program), (0, 42));
    assert_eq!(
        test_run(prog_load(ProgramType::KPROBE, "k", &RETURN_0)).0,
        ENOTSUPP
    );
    let mut bind = Attr::zero(12).u32(0, program as u32).u32(4, map as u32);
    assert_eq!(bpf(Command::PROG_BIND_MAP, &mut bind), 0);

    // The program's maps, by number.
    let (mut info, mut ids) = (Attr::zero(232), [0u32; 4]);
    info = info.u32(52, 4).u64(56, ids.as_mut_ptr() as u64);
    let mut attr = Attr::zero(16)
        .u32(0, program as u32)
        .u32(4, 232)
        .u64(8, info.0.as_mut_ptr() as u64);
    assert_eq!(bpf(Command::OBJ_GET_INFO_BY_FD, &mut attr), 0);
    assert_eq!(
        (info.get_u32(0), info.get_u32(52), ids[0]),
        (ProgramType::RAW_TRACEPOINT.0, 1, id_of(map))
    );
    assert_eq!(&info.0[64..71], b"indexed");
    // None, and too many, instructions.
    assert_eq!(prog_load(ProgramType::SOCKET_FILTER, "p", &[]), E2BIG);
    assert_eq!(
        bpf(
            Command::PROG_LOAD,
            &mut prog_attr(ProgramType::SOCKET_FILTER, "p", &RETURN_0).u32(4, 1_000_001)
        ),
        E2BIG
    );
}

fn logs() {
    let mut buffer = [b'x'; 64];
    let mut load = |name, size: u32| {
        let attr = prog_attr(ProgramType::SOCKET_FILTER, name, &RETURN_0)
            .u32(24, 1)
            .u32(28, size)
            .u64(32, buffer.as_mut_ptr() as u64);
        let mut attr = attr;
        let result = bpf(Command::PROG_LOAD, &mut attr);
        let text = buffer.split(|&byte| byte == 0).next().unwrap().to_vec();
        (
            result,
            String::from_utf8(text).unwrap(),
            attr.get_u32(140) as usize,
        )
    };
    let whole = LOG.len() + 1;
    assert_eq!(
        load(BAD_PROGRAM, 64),
        (-i64::from(libc::EACCES), LOG.into(), whole)
    );
    assert_eq!(
        load(BAD_PROGRAM, 10),
        (-i64::from(libc::ENOSPC), LOG[LOG.len() - 9..].into(), whole)
    );
    assert_eq!(
        load(BAD_PROGRAM, 1),
        (-i64::from(libc::ENOSPC), String::new(), whole)
    );
    let (good, text, len) = load("good", 64);
    assert!(good >= 0);
    assert_eq!((text.as_str(), len), ("", 0));
    assert_eq!(
        bpf(
            Command::PROG_LOAD,
            &mut prog_attr(ProgramType::SOCKET_FILTER, "p", &RETURN_0).u32(28, 10)
        ),
        EINVAL
    );
}

fn type_info() {
    // Two integers, of four bytes and of eight.
    let types = [0u32, 1 << 24, 4, 32, 0, 1 << 24, 8, 64];
    let len = size_of_val(&types) as u32;
    let mut data = vec![0x9f, 0xeb, 1, 0];
    for field in [24, 0, len, len, 1].into_iter().chain(types) {
        data.extend(field.to_ne_bytes());
    }
    data.push(0);
    let mut attr = Attr::zero(28)
        .u64(0, data.as_ptr() as u64)
        .u32(16, data.len() as u32);
    let btf = bpf(Command::BTF_LOAD, &mut attr);
    assert!(btf >= 0);
    let with_types = |map_type: MapType, fd: i64, value_type: u32| {
        let attr = Attr::zero(72)
            .u32(0, map_type.0)
            .u32(4, 4)
            .u32(8, 8)
            .u32(12, 1);
        bpf(
            Command::MAP_CREATE,
            &mut attr.u32(48, fd as u32).u32(52, 1).u32(56, value_type),
        )
    };
    let with_btf = |map_type, fd| with_types(map_type, fd, 2);
    assert!(with_btf(MapType::HASH, btf) >= 0);
    assert_eq!(
        with_types(MapType::HASH, btf, 1),
        EINVAL,
        "a value of another size"
    );
    assert_eq!(with_types(MapType::HASH, btf, 3), EINVAL, "no such type");
    assert_eq!(with_btf(MapType::HASH, 99), EBADF);
    assert_eq!(with_btf(MapType::STACK_TRACE, btf), ENOTSUPP);
    assert_eq!(with_btf(MapType::RINGBUF, btf), EINVAL);
    assert_eq!(with_btf(MapType::PERF_EVENT_ARRAY, btf), EINVAL);
    // A program with line information needs its BTF.
    let lines = [0u32; 4];
    let attr = prog_attr(ProgramType::SOCKET_FILTER, "p", &RETURN_0)
        .u32(72, u32::MAX)
        .u32(92, 16)
        .u64(96, lines.as_ptr() as u64)
        .u32(104, 1);
    assert_eq!(bpf(Command::PROG_LOAD, &mut attr.clone()), EBADF);
    assert!(bpf(Command::PROG_LOAD, &mut attr.u32(72, btf as u32)) >= 0);

    let mut copy = vec![0u8; data.len()];
    let mut info = Attr::zero(32)
        .u64(0, copy.as_mut_ptr() as u64)
        .u32(8, copy.len() as u32);
    let mut attr = Attr::zero(16)
        .u32(0, btf as u32)
        .u32(4, 32)
        .u64(8, info.0.as_mut_ptr() as u64);
    assert_eq!(bpf(Command::OBJ_GET_INFO_BY_FD, &mut attr), 0);
    assert_eq!(copy, data);
    data[0] = 0;
    let mut attr = Attr::zero(28)
        .u64(0, data.as_ptr() as u64)
        .u32(16, data.len() as u32);
    assert_eq!(bpf(Command::BTF_LOAD, &mut attr), EINVAL);
}
