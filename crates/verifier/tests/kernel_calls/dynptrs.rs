//! Dynptrs: their addresses, sizes and write permissions.

use beeline_isa::opcode::{ALU64, AND, B, DW, JEQ, K};
use beeline_uapi::{HelperId, ProgramType};

use crate::asm::{add, copy, helper, insn, load, set, skip_if, stack, store};
use crate::oracle::{Oracle, plain};

#[test]
fn dynptrs_get_the_kernels_verdicts() {
    let Some(mut oracle) = Oracle::new() else {
        return;
    };
    let [
        from_skb,
        from_xdp,
        slice,
        slice_rw,
        adjust,
        clone,
        size,
        is_null,
    ] = [
        "bpf_dynptr_from_skb",
        "bpf_dynptr_from_xdp",
        "bpf_dynptr_slice",
        "bpf_dynptr_slice_rdwr",
        "bpf_dynptr_adjust",
        "bpf_dynptr_clone",
        "bpf_dynptr_size",
        "bpf_dynptr_is_null",
    ]
    .map(|it| oracle.call(it));
    let pull = oracle.call("bpf_xdp_pull_data");
    let [a, b] = stack(3, 16);
    let [c, d] = stack(1, 16);
    let [e, f] = stack(3, 64);
    for (kind, make) in [
        (plain(ProgramType::SCHED_CLS), from_skb),
        (plain(ProgramType::SOCKET_FILTER), from_skb),
        (plain(ProgramType::CGROUP_SKB), from_skb),
        (plain(ProgramType::XDP), from_xdp),
        (plain(ProgramType::XDP), from_skb),
        (oracle.tracepoint("kfree_skb"), from_skb),
    ] {
        let tracing = kind.prog_type == ProgramType::TRACING;
        let first = if tracing {
            load(DW, 1, 1, 0)
        } else {
            copy(6, 1)
        };
        let new = [copy(6, 1), first, set(2, 0), a, b, make];
        let view = |it| [c, d, set(2, 0), e, f, set(4, 20), it];
        let buffer = [
            store(DW, 10, -64, 0),
            store(DW, 10, -56, 0),
            store(DW, 10, -48, 0),
        ];
        let checked = [skip_if(JEQ, 0, 0, 1), load(B, 1, 0, 19)];
        oracle.try_one("made", kind, &[&new]);
        oracle.try_one("made twice", kind, &[&new, &[copy(1, 6)], &new[1..]]);
        oracle.try_one("asked", kind, &[&new, &[c, d, size, c, d, is_null]]);
        oracle.try_one("never made", kind, &[&[c, d, size]]);
        oracle.try_one(
            "adjusted",
            kind,
            &[&new, &[c, d, set(2, 4), set(3, 40), adjust]],
        );
        for (name, it) in [("slice", slice), ("writable slice", slice_rw)] {
            let view = view(it);
            oracle.try_one(name, kind, &[&new, &buffer, &view, &checked]);
            oracle.try_one(
                &format!("{name}, buffer not written"),
                kind,
                &[&new, &view, &checked],
            );
            oracle.try_one(
                &format!("{name}, unchecked"),
                kind,
                &[&new, &buffer, &view, &checked[1..]],
            );
            oracle.try_one(
                &format!("{name}, beyond"),
                kind,
                &[&new, &buffer, &view, &[checked[0], load(B, 1, 0, 20)]],
            );
            oracle.try_one(
                &format!("{name}, written"),
                kind,
                &[&new, &buffer, &view, &[checked[0], store(B, 0, 0, 1)]],
            );
            oracle.try_one(
                &format!("{name}, without a buffer"),
                kind,
                &[
                    &new,
                    &[c, d, set(2, 0), set(3, 0), set(4, 20), it],
                    &checked,
                ],
            );
            oracle.try_one(
                &format!("{name}, with a number"),
                kind,
                &[
                    &new,
                    &[c, d, set(2, 0), set(3, 9), set(4, 20), it],
                    &checked,
                ],
            );
            oracle.try_one(
                &format!("{name}, a buffer too small"),
                kind,
                &[
                    &new,
                    &[c, d, set(2, 0), a, b, add(3, 12), set(4, 20), it],
                    &checked,
                ],
            );
            oracle.try_one(
                &format!("{name} of unknown size"),
                kind,
                &[
                    &new,
                    &buffer,
                    &[
                        helper(HelperId::GET_PRANDOM_U32),
                        copy(4, 0),
                        insn(ALU64 | K | AND, 4, 0, 0, 15),
                        c,
                        d,
                        set(2, 0),
                        e,
                        f,
                        it,
                    ],
                ],
            );
            oracle.try_one(
                &format!("{name} of one that is no more"),
                kind,
                &[
                    &new,
                    &buffer,
                    &view,
                    &[
                        copy(7, 0),
                        store(DW, 10, -16, 0),
                        skip_if(JEQ, 7, 0, 1),
                        load(B, 1, 7, 0),
                    ],
                ],
            );
            oracle.try_one(
                &format!("{name}, then the packet moves"),
                kind,
                &[
                    &new,
                    &buffer,
                    &view,
                    &[
                        copy(7, 0),
                        copy(1, 6),
                        set(2, 20),
                        if kind.prog_type == ProgramType::XDP {
                            pull
                        } else {
                            helper(HelperId::SKB_PULL_DATA)
                        },
                        skip_if(JEQ, 7, 0, 1),
                        load(B, 1, 7, 0),
                    ],
                ],
            );
        }
        let [g, h] = stack(2, 32);
        oracle.try_one(
            "copied",
            kind,
            &[&new, &[c, d, g, h, clone, c, add(1, -32), size]],
        );
        oracle.try_one(
            "copied onto itself",
            kind,
            &[&new, &[c, d, copy(2, 1), clone]],
        );
        oracle.try_one(
            "part of it copied onto",
            kind,
            &[&new, &[c, d, g, h, add(2, 8), clone, c, d, size]],
        );
    }
    // A record of a ring buffer cannot be had without a map; a dynptr on memory neither.
    oracle.check();
}
