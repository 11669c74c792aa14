//! Contexts, and the structures behind pointers in them: the same answers from the running kernel
//! and from here.

mod oracle;

use std::os::fd::AsRawFd;

use beeline_isa::{Insn, imm64, opcode::*};
use beeline_uapi::{AttachType, HelperId, MapType, ProgramType};
use beeline_verifier::context::{
    Field, SocketKind, access, flow_keys_access, is_plain_memory, socket_access,
};
use beeline_verifier::program::Kind;
use oracle::*;
use proptest::prelude::*;

/// A few cases that hold where no kernel can be asked.
#[test]
fn known_fields_of_contexts_are_found_without_a_kernel() {
    let scalar = |whole| Some(Field::Scalar { whole });
    let filter = kind(ProgramType::SOCKET_FILTER, AttachType::UNSPECIFIED);
    // __sk_buff::len, whole, in parts, and across its end.
    assert_eq!(access(&filter, 0, 4, false), scalar(0));
    assert_eq!(access(&filter, 2, 2, false), scalar(4));
    assert_eq!(access(&filter, 3, 1, false), scalar(4));
    assert_eq!(access(&filter, 2, 4, false), None);
    assert_eq!(access(&filter, 0, 8, false), None);
    assert_eq!(access(&filter, 0, 4, true), None);
    // __sk_buff::data is for programs that may look into packets.
    assert_eq!(access(&filter, 76, 4, false), None);
    let classifier = kind(ProgramType::SCHED_CLS, AttachType::UNSPECIFIED);
    assert_eq!(access(&classifier, 76, 4, false), Some(Field::Packet));
    assert!(!Field::Packet.may_be_sign_extended());
    // Registers, up to the last one.
    let probe = kind(ProgramType::KPROBE, AttachType::UNSPECIFIED);
    assert_eq!(access(&probe, 160, 8, false), scalar(0));
    assert_eq!(access(&probe, 168, 1, false), None);
    assert_eq!(access(&probe, -8, 8, false), None);
    // Data before a tracepoint's record is refused, though the kernel lets it pass.
    let tracepoint = kind(ProgramType::TRACEPOINT, AttachType::UNSPECIFIED);
    assert_eq!(access(&tracepoint, 8, 8, false), scalar(0));
    assert_eq!(access(&tracepoint, 0, 8, false), None);
    assert_eq!(access(&tracepoint, -8, 8, false), None);
}

proptest! {
    #[test]
    fn any_access_outside_a_context_is_refused(
        prog_type in 0..40_u32,
        attach_type in 0..60_u32,
        off: i32,
        near in -300..300_i32,
        size: u32,
        write: bool,
    ) {
        for (off, size) in [(off, size), (near, size), (off, 1 << (size % 32)), (near, 1 << (size % 32))] {
            let is_inside = (0..0x10000).contains(&off) && size <= 8;
            let kind = kind(ProgramType(prog_type), AttachType(attach_type));
            let found = access(&kind, off, size, write);
            prop_assert!(is_inside || found.is_none());
        }
    }
}

#[test]
fn accesses_of_contexts_get_the_kernels_verdicts() {
    let mut wrong = Vec::new();
    for (kind, bytes) in kinds() {
        for off in offsets(bytes) {
            for (bits, size) in SIZES {
                let load = [insn(LDX | MEM | bits, 2, 1, off, 0), R0_IS_1, END_PROGRAM];
                let store = [
                    R2_IS_0,
                    insn(STX | MEM | bits, 1, 2, off, 0),
                    R0_IS_1,
                    END_PROGRAM,
                ];
                let signed = [insn(LDX | MEMSX | bits, 2, 1, off, 0), R0_IS_1, END_PROGRAM];
                compare(&kind, &load, (off, size, false), &mut wrong);
                if size < 8 {
                    compare(&kind, &signed, (off, size, false), &mut wrong);
                }
                compare(&kind, &store, (off, size, true), &mut wrong);
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn compare(
    kind: &Kind,
    insns: &[Insn],
    (off, size, write): (i16, u32, bool),
    wrong: &mut Vec<String>,
) {
    if kind.prog_type == ProgramType::TRACEPOINT && off < 0 {
        // The only access that is refused here and not there.
        return;
    }
    let ours = access(kind, off.into(), size, write);
    let is_signed = insns[0].code & 0xe0 == MEMSX;
    let field = ours.filter(|field| !is_signed || field.may_be_sign_extended());
    let refusal = format!("invalid bpf_context access off={off} size={size}");
    let kernel = load(kind, insns);
    let same = match (field, &kernel) {
        (None, Err(why)) => why.last_words() == refusal,
        (Some(field), Ok(log)) => write || register(log, 2) == Some(name(field)),
        _ => false,
    };
    if !same {
        wrong.push(format!(
            "{kind:?} off={off} size={size} write={write}: ours {ours:?}, kernel {}",
            words(&kernel)
        ));
    }
}

fn words(kernel: &Result<String, Refusal>) -> String {
    match kernel {
        Ok(log) => format!("gives {:?}", register(log, 2)),
        Err(refusal) => refusal.to_string(),
    }
}

fn offsets(bytes: i32) -> Vec<i16> {
    let last = i16::try_from(bytes + 15).unwrap_or(i16::MAX);
    // Long ones are all alike in the middle.
    (-16..=last)
        .filter(|&off| off < 256 || i32::from(off) > bytes - 32)
        .collect()
}

/// A context's address can only be used unmodified.
#[test]
fn the_kernel_refuses_changed_pointers_to_contexts() {
    for (kind, bytes) in kinds() {
        let (off, bits) = readable(&kind, bytes);
        let by = |change: &[Insn]| {
            [
                change,
                &[
                    insn(LDX | MEM | bits, 2, 1, off - 8, 0),
                    R0_IS_1,
                    END_PROGRAM,
                ],
            ]
            .concat()
        };
        let constant = by(&[insn(ALU64 | K | ADD, 1, 0, 0, 8)]);
        let refusal = expect_refusal(&kind, &constant);
        assert_eq!(
            refusal.last_words(),
            "dereference of modified ctx ptr R1 off=8 disallowed"
        );
        let variable = by(&[
            insn(ALU64 | X | MOV, 6, 1, 0, 0),
            call(HelperId::GET_PRANDOM_U32),
            insn(ALU64 | K | AND, 0, 0, 0, 8),
            insn(ALU64 | X | MOV, 1, 6, 0, 0),
            insn(ALU64 | X | ADD, 1, 0, 0, 0),
        ]);
        let refusal = expect_refusal(&kind, &variable);
        assert_eq!(
            refusal.last_words(),
            "variable ctx access var_off=(0x0; 0x8) disallowed"
        );
    }
}

/// Accesses that read a number.
fn readable(kind: &Kind, bytes: i32) -> (i16, u8) {
    (0..bytes)
        .flat_map(|off| [(off, 4, W), (off, 8, DW)])
        .find(|&(off, size, _)| access(kind, off, size, false).is_some())
        .map(|(off, _, bits)| (off as i16, bits))
        .expect("something to read")
}

/// A kernel function that takes memory, to be read and written, gets the context of some.
#[test]
fn contexts_as_memory() {
    let Some(slice) = btf_id(beeline_btf::kind::FUNC, "bpf_dynptr_slice") else {
        return eprintln!("skipped: the kernel has no bpf_dynptr_slice, or does not say so");
    };
    let map = is_usable().then(|| beeline_fuzz::kernel::array(8, 1).expect("an array"));
    for (kind, bytes) in kinds() {
        let [low, high] = imm64(
            1,
            PSEUDO_MAP_VALUE,
            map.as_ref().map_or(0, |map| map.as_raw_fd() as u64),
        );
        let pointer = |register| {
            [
                insn(ALU64 | X | MOV, register, 10, 0, 0),
                insn(ALU64 | K | ADD, register, 0, 0, -16),
            ]
        };
        let set = |register, value| insn(ALU64 | K | MOV, register, 0, 0, value);
        let dynptr = [
            &[
                insn(ALU64 | X | MOV, 6, 1, 0, 0),
                low,
                high,
                set(2, 8),
                set(3, 0),
            ][..],
            &pointer(4),
            &[call(HelperId::DYNPTR_FROM_MEM)],
        ]
        .concat();
        for size in [1, 4, 8, 9, 12, 16, bytes, bytes + 1, 0xffff, 0x10000] {
            let call = [
                set(2, 0),
                insn(ALU64 | X | MOV, 3, 6, 0, 0),
                set(4, size),
                insn(JMP | CALL, 0, PSEUDO_KFUNC_CALL, 0, slice as i32),
            ];
            let insns = [&dynptr[..], &pointer(1), &call, &[R0_IS_1, END_PROGRAM]].concat();
            let missing = [false, true]
                .into_iter()
                .find(|&write| access(&kind, size - 1, 1, write).is_none());
            let ours = if !is_plain_memory(&kind) {
                Err("R3 type=ctx expected=".to_owned())
            } else if missing.is_some() {
                Err(format!(
                    "invalid bpf_context access off={} size=1",
                    size - 1
                ))
            } else {
                Ok(())
            };
            match (ours, load(&kind, &insns)) {
                (Ok(()), Ok(_)) => {}
                (Err(ours), Err(kernel)) if kernel.log.contains(&ours) => {}
                (ours, kernel) => {
                    panic!("{kind:?} {size}: ours {ours:?}, kernel {}", words(&kernel))
                }
            }
        }
    }
}

#[test]
fn accesses_of_sockets_get_the_kernels_verdicts() {
    if !is_usable() {
        return;
    }
    let end_if_null = |register| insn(JMP | K | JNE, register, 0, 2, 0);
    let or_end = |register| vec![end_if_null(register), R0_IS_1, END_PROGRAM];
    let common = [vec![insn(LDX | MEM | DW, 2, 1, 168, 0)], or_end(2)].concat();
    let full = vec![insn(LDX | MEM | DW, 2, 1, 72, 0)];
    let tcp = [
        vec![insn(LDX | MEM | DW, 1, 1, 168, 0)],
        or_end(1),
        vec![call(HelperId::TCP_SOCK)],
        or_end(0),
        vec![insn(ALU64 | X | MOV, 2, 0, 0, 0)],
    ]
    .concat();
    structure(
        SocketKind::Common,
        "sock_common",
        ProgramType::SOCKET_FILTER,
        &common,
    );
    structure(SocketKind::Socket, "sock", ProgramType::SK_MSG, &full);
    structure(SocketKind::Tcp, "tcp_sock", ProgramType::CGROUP_SKB, &tcp);
    match beeline_fuzz::kernel::map(MapType::XSKMAP, 4, 4, 1) {
        Ok(map) => {
            let [low, high] = imm64(1, PSEUDO_MAP_FD, map.as_raw_fd() as u64);
            let xdp = [
                vec![
                    insn(ST | MEM | W, 10, 0, -4, 0),
                    insn(ALU64 | X | MOV, 2, 10, 0, 0),
                    insn(ALU64 | K | ADD, 2, 0, 0, -4),
                ],
                vec![low, high, call(HelperId::MAP_LOOKUP_ELEM)],
                or_end(0),
                vec![insn(ALU64 | X | MOV, 2, 0, 0, 0)],
            ]
            .concat();
            structure(SocketKind::Xdp, "xdp_sock", ProgramType::XDP, &xdp);
        }
        Err(error) => eprintln!("skipped: no map of XDP sockets: {error}"),
    }
}

/// Goes through the structure that r2 points to after `before`.
fn structure(socket: SocketKind, name: &str, prog_type: ProgramType, before: &[Insn]) {
    let kind = kind(prog_type, AttachType::UNSPECIFIED);
    for off in -8..128 {
        for (bits, size) in SIZES {
            let rest = [insn(LDX | MEM | bits, 2, 2, off, 0), R0_IS_1, END_PROGRAM];
            if socket == SocketKind::Tcp && [84, 92].contains(&off) && size == 4 {
                // Also refused there, but by a complaint about the kernel itself, with a warning in
                // its log.
                assert_eq!(socket_access(socket, off.into(), size), None);
                continue;
            }
            let kernel = load(&kind, &[before, &rest].concat());
            let ours = socket_access(socket, off.into(), size);
            assert_eq!(
                ours.is_some(),
                kernel.is_ok(),
                "{socket:?} {off} {size}: {}",
                words(&kernel)
            );
            if let Err(refusal) = kernel {
                assert_eq!(
                    refusal.last_words(),
                    format!("R2 invalid {name} access off={off} size={size}")
                );
            }
        }
    }
    let rest = [insn(ST | MEM | W, 2, 0, 4, 0), R0_IS_1, END_PROGRAM];
    let refusal = expect_refusal(&kind, &[before, &rest].concat());
    assert_eq!(refusal.last_words(), format!("R2 cannot write into {name}"));
}

#[test]
fn accesses_of_flow_keys_get_the_kernels_verdicts() {
    if !is_usable() {
        return;
    }
    let kind = kind(ProgramType::FLOW_DISSECTOR, AttachType::UNSPECIFIED);
    for off in -8..64 {
        for (bits, size) in SIZES {
            for access in [
                insn(LDX | MEM | bits, 3, 2, off, 0),
                insn(ST | MEM | bits, 2, 0, off, 0),
            ] {
                let kernel = load(
                    &kind,
                    &[
                        insn(LDX | MEM | DW, 2, 1, 144, 0),
                        access,
                        R0_IS_1,
                        END_PROGRAM,
                    ],
                );
                assert_eq!(
                    flow_keys_access(off.into(), size),
                    kernel.is_ok(),
                    "{off} {size}: {}",
                    words(&kernel)
                );
                if let Err(refusal) = kernel {
                    assert_eq!(
                        refusal.last_words(),
                        format!("invalid access to flow keys off={off} size={size}")
                    );
                }
            }
        }
    }
}

/// Returns the kernel log's name for a field's contents.
fn name(field: Field) -> &'static str {
    match field {
        Field::Scalar { .. } => "scalar",
        Field::PacketMeta => "pkt_meta",
        Field::Packet => "pkt",
        Field::PacketEnd => "pkt_end",
        Field::FlowKeys => "flow_keys",
        Field::Socket { or_null: false } => "sock",
        Field::Socket { or_null: true } => "sock_or_null",
        Field::SockCommon { or_null: false } => "sock_common",
        Field::SockCommon { or_null: true } => "sock_common_or_null",
        Field::Btf {
            name: "sk_buff",
            or_null: false,
        } => "trusted_ptr_sk_buff",
        Field::Btf {
            name: "nf_hook_state",
            or_null: false,
        } => "trusted_ptr_nf_hook_state",
        Field::Btf { .. } => "?",
        Field::TracepointBuffer => "tp_buffer",
    }
}
