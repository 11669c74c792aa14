//! Special fields of map values, by BTF: the kernel and Beeline keep the same bytes from programs;
//! and invalid type information.

mod btf;

use std::fs::File;
use std::os::fd::AsRawFd;

use beeline_fuzz::kernel::{self, Trial};
use beeline_isa::{Insn, imm64, opcode::*};
use beeline_uapi::{AttachType, ProgramType};
use beeline_verifier::program::{FieldKind, Kind, MapField};
use beeline_verifier::types::{KernelTypes, Member, ProgramTypes, Trust};
use btf::*;
use proptest::prelude::*;

const R0_IS_0: Insn = insn(ALU64 | K | MOV, 0, 0, 0, 0);
const END: Insn = insn(JMP | EXIT, 0, 0, 0, 0);

const fn insn(code: u8, dst: u8, src: u8, off: i16, imm: i32) -> Insn {
    Insn {
        code,
        dst,
        src,
        off,
        imm,
    }
}

fn kernel_types() -> Option<KernelTypes> {
    KernelTypes::new(std::fs::read("/sys/kernel/btf/vmlinux").ok()?)
}

/// Adds the structures of the fields: as `(name, bytes)`.
fn special(types: &mut Builder, name: &str, bytes: u32) -> u32 {
    let word = types.int("word", 4);
    let array = types.add("", ARRAY, 0, 0, &[word, word, bytes / 4]);
    types.structure(name, bytes, &[("opaque", array, 0)])
}

fn tagged(types: &mut Builder, tag: &str, structure: &str) -> u32 {
    let it = types.structure(structure, 0, &[]);
    let tag = types.add(tag, TYPE_TAG, 0, it, &[]);
    types.refer(PTR, tag)
}

/// A value's type: its number, its bytes.
type Value = fn(&mut Builder) -> (u32, u32);

const VALUES: &[Value] = &[
    |it| {
        let (lock, int) = (special(it, "bpf_spin_lock", 4), it.int("int", 4));
        (
            it.structure("v", 16, &[("a", int, 0), ("lock", lock, 8)]),
            16,
        )
    },
    |it| {
        let (timer, wq) = (special(it, "bpf_timer", 16), special(it, "bpf_wq", 16));
        (it.structure("v", 40, &[("w", wq, 0), ("t", timer, 24)]), 40)
    },
    |it| {
        let timer = special(it, "bpf_timer", 16);
        (
            it.structure("v", 32, &[("a", timer, 0), ("b", timer, 16)]),
            32,
        )
    },
    |it| {
        let timer = special(it, "bpf_timer", 16);
        let inner = it.structure("inner", 24, &[("t", timer, 8)]);
        (it.structure("v", 32, &[("i", inner, 8)]), 32)
    },
    |it| {
        let (owned, seen) = (
            tagged(it, "kptr", "task_struct"),
            tagged(it, "kptr_untrusted", "file"),
        );
        let seen = it.refer(VOLATILE, seen);
        (
            it.structure("v", 24, &[("a", owned, 8), ("b", seen, 16)]),
            24,
        )
    },
    |it| {
        let owned = tagged(it, "kptr", "cgroup");
        let int = it.int("int", 4);
        let array = it.add("", ARRAY, 0, 0, &[owned, int, 3]);
        let inner = it.structure("inner", 32, &[("a", array, 8)]);
        let inners = it.add("", ARRAY, 0, 0, &[inner, int, 2]);
        (it.structure("v", 64, &[("i", inners, 0)]), 64)
    },
    |it| {
        let owned = tagged(it, "kptr", "file");
        (it.structure("v", 8, &[("a", owned, 0)]), 8)
    },
    |it| {
        let owned = tagged(it, "kptr", "task_struct");
        let int = it.int("int", 4);
        let array = it.add("", ARRAY, 0, 0, &[owned, int, 12]);
        (it.structure("v", 96, &[("a", array, 0)]), 96)
    },
    |it| {
        let (node, int) = (special(it, "bpf_list_node", 24), it.int("int", 4));
        it.structure("item", 32, &[("x", int, 0), ("node", node, 8)]);
        let (head, lock) = (
            special(it, "bpf_list_head", 16),
            special(it, "bpf_spin_lock", 4),
        );
        let value = it.structure("v", 24, &[("lock", lock, 0), ("head", head, 8)]);
        it.tag("contains:item:node", value, 1);
        (value, 24)
    },
    |it| {
        let node = special(it, "bpf_rb_node", 32);
        it.structure("item", 32, &[("node", node, 0)]);
        let root = special(it, "bpf_rb_root", 16);
        let value = it.structure("v", 16, &[("root", root, 0)]);
        it.tag("contains:item:node", value, 0);
        (value, 16)
    },
    |it| {
        let (work, count) = (
            special(it, "bpf_task_work", 8),
            special(it, "bpf_refcount", 4),
        );
        (
            it.structure("v", 16, &[("w", work, 0), ("c", count, 8)]),
            16,
        )
    },
];

/// Programs may read the same bytes of a value.
#[test]
fn fields_of_map_values_are_those_that_the_kernel_finds() {
    let Some(kernel) = kernel_types().filter(|_| kernel::is_usable()) else {
        eprintln!("skipped: no kernel to ask");
        return;
    };
    for (index, value) in VALUES.iter().enumerate() {
        let mut types = Builder::new();
        let key = types.int("int", 4);
        let (value, bytes) = value(&mut types);
        let btf = types.bytes();
        let ours = ProgramTypes::map_fields(&btf, value, Some(&kernel));
        let Ok(loaded) = kernel::load_btf(&btf) else {
            // The kernel checks the types that programs may allocate when it takes the BTF.
            assert_eq!(ours, [], "{index}");
            continue;
        };
        let map = kernel::typed_array(&loaded, (key, value), bytes).expect("a map");
        for off in 0..bytes {
            let log = read_value(&map, off as i16);
            let theirs = log.lines().any(|line| {
                line.contains("cannot be accessed directly by load/store")
                    || line.contains("kptr access")
            });
            let inside =
                |field: &MapField| (field.offset..field.offset + field.size).contains(&off);
            assert_eq!(
                theirs,
                ours.iter().any(inside),
                "{index} at {off}: {ours:?}\n{log}"
            );
        }
    }
}

/// The log of a program that reads a byte of a map's value.
fn read_value(map: &File, off: i16) -> String {
    let [low, high] = imm64(1, PSEUDO_MAP_FD, map.as_raw_fd() as u64);
    let insns = [
        insn(ST | MEM | W, 10, 0, -4, 0),
        low,
        high,
        insn(ALU64 | X | MOV, 2, 10, 0, 0),
        insn(ALU64 | K | ADD, 2, 0, 0, -4),
        insn(JMP | CALL, 0, 0, 0, 1),
        insn(JMP | K | JEQ, 0, 0, 1, 0),
        insn(LDX | MEM | B, 0, 0, off, 0),
        R0_IS_0,
        END,
    ];
    let trial = Trial {
        prog_type: ProgramType::SCHED_CLS,
        insns: &insns,
        ..Trial::default()
    };
    kernel::verdict(&trial, 1).1
}

#[test]
fn list_nodes_are_checked() {
    let mut types = Builder::new();
    let (value, _) = VALUES[8](&mut types);
    let fields = ProgramTypes::map_fields(&types.bytes(), value, None);
    let kinds: Vec<_> = fields.iter().map(|it| (it.offset, it.kind)).collect();
    let FieldKind::ListHead { btf_id, node } = kinds[1].1 else {
        panic!("{kinds:?}");
    };
    assert_eq!(kinds[0], (0, FieldKind::SpinLock));
    assert_eq!((kinds[1].0, node), (8, 8));
    assert!(btf_id != 0);
}

/// Some compilers mark the target of a kernel pointer by tags.
#[test]
fn tags_of_pointers() {
    let mut types = Builder::new();
    let target = types.structure("target", 8, &[]);
    let mut pointer = |tag: &str| {
        let tag = types.add(tag, TYPE_TAG, 0, target, &[]);
        types.refer(PTR, tag)
    };
    let (user, percpu, rcu) = (pointer("user"), pointer("percpu"), pointer("rcu"));
    let plain = types.refer(PTR, target);
    let members = [
        ("u", user, 0),
        ("p", percpu, 8),
        ("r", rcu, 16),
        ("n", plain, 24),
    ];
    let parent = types.structure("parent", 32, &members);
    types.structure("parent__safe_trusted", 8, &[("n", plain, 0)]);
    let kernel = KernelTypes::new(types.bytes()).expect("good BTF");
    let at = |off, base, rcu| match kernel.member(parent, off, 8, base, rcu) {
        Ok(Member::Pointer { trust, or_null, .. }) => (trust, or_null),
        other => panic!("{other:?}"),
    };
    for base in [Trust::Trusted, Trust::Rcu] {
        assert_eq!(at(0, base, true), (Trust::User, false));
        assert_eq!(at(8, base, true), (Trust::PerCpu, false));
        assert_eq!(at(16, base, true), (Trust::Rcu, true));
        assert_eq!(at(16, base, false), (Trust::Untrusted, false));
        assert_eq!(at(24, base, false), (Trust::Trusted, false));
    }
    assert_eq!(at(16, Trust::Plain, true), (Trust::Plain, false));
    assert_eq!(at(0, Trust::Plain, false), (Trust::User, false));
    assert_eq!(at(24, Trust::Untrusted, true), (Trust::Untrusted, false));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

    /// BTF is untrusted: nothing panics or goes on for ever, whatever is in it.
    #[test]
    fn no_data_makes_it_panic(
        which in 0..VALUES.len(),
        flips in proptest::collection::vec((24usize..900, any::<u8>()), 0..12),
    ) {
        let mut types = Builder::new();
        let (value, _) = VALUES[which](&mut types);
        let task = types.structure("task_struct", 0, &[]);
        let param = types.refer(PTR, task);
        let f = types.function("f", 1, param, &[param, value]);
        types.tag("arg:trusted", f, 1);
        let mut btf = types.bytes();
        for (at, byte) in flips {
            if let Some(place) = btf.get_mut(at) {
                *place = byte;
            }
        }
        let _ = ProgramTypes::map_fields(&btf, value, None);
        let kernel = KernelTypes::new(btf.clone());
        if let Some(kernel) = &kernel {
            for id in 0..32 {
                let _ = (kernel.size(id), kernel.prototype(id), kernel.variable(id));
                let _ = kernel.matches(id, 8, value, false);
                for off in [0, 1, 8, 40, -8] {
                    let trust = Trust::Trusted;
                    let _ = kernel.member(id, off, 8, trust, true);
                }
                for (prog_type, attach_type) in [
                    (ProgramType::TRACING, AttachType::TRACE_RAW_TP),
                    (ProgramType::TRACING, AttachType::TRACE_FEXIT),
                    (ProgramType::TRACING, AttachType::TRACE_ITER),
                    (ProgramType::STRUCT_OPS, AttachType(1)),
                    (ProgramType::LSM, AttachType::LSM_MAC),
                ] {
                    let kind = Kind { prog_type, attach_type, attach_btf_id: id, ..Kind::default() };
                    let _ = (kernel.context(&kind, 8, 8), kernel.check_attach(&kind));
                }
            }
            let _ = (kernel.structure("v"), kernel.kernel_functions());
        }
        let kind = Kind { prog_type: ProgramType::KPROBE, ..Kind::default() };
        let insns = [R0_IS_0, END];
        let lines = [[0, 1, 1, 1]];
        if let Ok(types) =
            ProgramTypes::new(&btf, &[[0, f]], &lines, &kind, &insns, &[0], kernel.as_ref())
        {
            let _ = (types.line(1), types.function(0), types.object_fields(value, None));
            let _ = types.member(value, 8, 8, None);
        }
    }
}
