//! Known results for files that Debian's libbpf refuses, as it is too old or too new for them.

use std::path::Path;
use std::process::Command;

use beeline_isa::{Imm64, Insn, Op};
use beeline_object::{AttachTarget, Contents, Object, ObjectProgram, RunningKernel, SectionKind};
use beeline_uapi::flags::{MMAPABLE, NO_PREALLOC, SLEEPABLE};
use beeline_uapi::{AttachType, MapType, ProgramType};

/// A program's source in `programs/`, compiled and read.
fn object(source: &str) -> Object {
    compiled(source, "-O2")
}

fn compiled(source: &str, flag: &str) -> Object {
    let name = source.replace('/', "-");
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("known-{name}{flag}.o"));
    let done = Command::new("clang-19")
        .args(["-target", "bpf", "-mcpu=v3", "-g", "-O2", flag, "-c", "-o"])
        .arg(&file)
        .arg(format!(
            "{}/tests/programs/{source}.c",
            env!("CARGO_MANIFEST_DIR")
        ))
        .arg("-I/usr/include/x86_64-linux-gnu")
        .status()
        .unwrap();
    assert!(done.success());
    Object::parse(&std::fs::read(file).unwrap(), &RunningKernel::default()).unwrap()
}

fn program<'a>(object: &'a Object, name: &str) -> &'a ObjectProgram {
    let found = object.programs.iter().find(|it| it.name == name);
    found.unwrap_or_else(|| panic!("no program {name}"))
}

fn place(object: &Object, map: &str) -> usize {
    let found = object.maps.iter().position(|it| it.name == map);
    found.unwrap_or_else(|| panic!("no map {map}"))
}

/// Returns the maps that a program refers to, in its order, with the offset for a variable.
fn references(program: &ObjectProgram) -> Vec<(usize, Option<i32>)> {
    let reference = |insn: &Insn, next: Option<&Insn>| match insn.op() {
        Ok(Op::Imm64 {
            kind: Imm64::Map,
            low,
            ..
        }) => Some((low as usize, None)),
        Ok(Op::Imm64 {
            kind: Imm64::MapValue,
            low,
            ..
        }) => Some((low as usize, Some(next?.imm))),
        _ => None,
    };
    let insns = program.insns.iter().enumerate();
    insns
        .filter_map(|(at, insn)| reference(insn, program.insns.get(at + 1)))
        .collect()
}

/// Returns the kernel functions that a program calls; `None` for a missing one.
fn calls(program: &ObjectProgram) -> Vec<Option<i32>> {
    let called = |insn: &Insn| match insn.op() {
        Ok(Op::CallKernel { btf_id, .. }) => Some(Some(btf_id)),
        Ok(Op::Poison { .. }) => Some(None),
        _ => None,
    };
    program.insns.iter().filter_map(called).collect()
}

#[test]
fn maps_without_types_are_read_from_their_sections() {
    let object = object("old/maps");
    let found: Vec<_> = object
        .maps
        .iter()
        .map(|it| {
            let sizes = (it.key_size, it.value_size, it.max_entries);
            (it.name.as_str(), it.map_type, sizes, it.flags)
        })
        .collect();
    let wanted = [
        ("counts", MapType::HASH, (4, 8, 100), NO_PREALLOC),
        ("totals", MapType::PERCPU_ARRAY, (4, 16, 2), 0),
        ("events", MapType::PERF_EVENT_ARRAY, (4, 4, 0), 0),
        ("stacks", MapType::STACK_TRACE, (4, 80, 64), 0),
    ];
    let sorted = |mut maps: Vec<_>| {
        maps.sort_unstable();
        maps
    };
    assert_eq!(sorted(found), sorted(wanted.to_vec()));
    assert!(object.maps.iter().all(|it| it.contents == Contents::Empty));
    let order = ["counts", "totals", "stacks", "events"].map(|it| (place(&object, it), None));
    assert_eq!(references(program(&object, "old")), order);
}

#[test]
fn arenas_hold_variables_and_pointers_are_cast() {
    let object = object("newer/arena");
    let memory = place(&object, "memory");
    let map = &object.maps[memory];
    assert_eq!(
        (map.map_type, map.max_entries, map.flags),
        (MapType::ARENA, 16, MMAPABLE)
    );
    assert_eq!((map.key_size, map.value_size), (0, 0));
    assert_eq!(map.map_extra, 0x1000_0000_0000);

    // `head` and `total`; variables outside the arena are in a map of their own.
    let walk = references(program(&object, "walk"));
    let mut in_arena: Vec<_> = walk.iter().filter(|it| it.0 == memory).collect();
    in_arena.sort_unstable();
    in_arena.dedup();
    assert_eq!(in_arena, [&(memory, Some(0)), &(memory, Some(16))]);
    let data = place(&object, ".data");
    assert!(walk.contains(&(data, Some(0))), "{walk:?}");

    let grow = program(&object, "grow");
    let all = references(grow);
    assert!(all.contains(&(memory, None)) && all.contains(&(memory, Some(0))));
    // rX = addr_space_cast(rX, 0, 1), the kernel's view, and the user's again.
    let casts: Vec<i32> = grow
        .insns
        .iter()
        .filter(|insn| insn.code == 0xbf && insn.off == 1)
        .map(|insn| insn.imm)
        .collect();
    assert!(casts.contains(&1) && casts.contains(&0x10000), "{casts:x?}");
}

#[test]
fn functions_of_another_type_count_as_absent() {
    let object = object("newer/unlike");
    let chosen = calls(program(&object, "chosen"));
    // ___then, ___now, ___other, and the required one.
    assert!(
        matches!(chosen[..], [None, Some(_), None, Some(_)]),
        "{chosen:?}"
    );
    assert!(object.absent.is_empty(), "{:?}", object.absent);
    let dummy = program(&object, "linked");
    let asleep = program(&object, "asleep");
    assert!(matches!(dummy.target, AttachTarget::Found(_)));
    assert_eq!(dummy.target, asleep.target);
    assert_eq!((dummy.autoload, asleep.autoload), (true, false));
    assert_eq!((dummy.kind.flags, asleep.kind.flags), (0, SLEEPABLE));
}

#[test]
fn missing_requirements_are_reported_for_the_programs_that_need_them() {
    let object = object("old/absent");
    let why = |name: &str| {
        let insns = program(&object, name).insns.iter();
        let poisoned = insns.filter_map(|insn| match insn.op() {
            Ok(Op::Poison { imm }) => Some(imm),
            _ => None,
        });
        let mut whys = poisoned.map(|imm| object.why_absent(imm).unwrap());
        whys.next()
    };
    let wanted = [
        (
            "option",
            "extern CONFIG_NO_SUCH_OPTION: the kernel's configuration does not have it",
        ),
        (
            "option_of_another_type",
            "extern CONFIG_CC_VERSION_TEXT: its value in the kernel's configuration is not of its type",
        ),
        (
            "symbol",
            "extern no_such_symbol: the kernel has no such symbol",
        ),
        (
            "function",
            "extern no_such_function: neither the kernel's BTF nor a module's has it",
        ),
        (
            "function_of_another_type",
            "extern bpf_rcu_read_lock: the kernel has it with another type",
        ),
    ];
    for (name, wanted) in wanted {
        assert_eq!(why(name), Some(wanted), "{name}");
    }
    assert_eq!(object.absent.len(), wanted.len());
    assert_eq!(why("without"), None);

    let missing = |name: &str, wanted: &str| {
        let target = &program(&object, name).target;
        assert_eq!(*target, AttachTarget::Missing(wanted.to_owned()));
    };
    missing("of_no_struct", "the kernel's BTF has no struct no_such_ops");
    missing(
        "of_no_member",
        "the kernel's BTF has no bpf_dummy_ops.no_such_member",
    );
}

#[test]
fn types_that_the_kernel_lacks_are_named() {
    let object = object("old/fields");
    let lacks = |name: &str| {
        let program = program(&object, name);
        for (insn, _) in &program.unrelocated {
            let op = program.insns[*insn].op();
            assert!(matches!(op, Ok(Op::Poison { .. })), "{op:?}");
        }
        let whats = program.unrelocated.iter().map(|(_, what)| what.as_str());
        whats.collect::<Vec<_>>()
    };
    assert_eq!(lacks("field"), ["struct task_struct.no_such_field"]);
    assert_eq!(lacks("inside"), ["struct task_struct.se.no_such[1].field"]);
    assert_eq!(lacks("called"), ["struct no_such_type.field"]);
    assert_eq!(lacks("enumerator"), ["enum pid_type, PIDTYPE_NO_SUCH"]);
    assert_eq!(lacks("without"), [""; 0]);
}

/// In the form of Rust's compiler.
#[test]
fn functions_in_sections_of_their_own_are_no_programs() {
    let (one, many) = (object("linked"), compiled("linked", "-ffunction-sections"));
    assert_eq!(one.programs.len(), many.programs.len());
    for (one, many) in one.programs.iter().zip(&many.programs) {
        assert_eq!(one.name, many.name);
        assert_eq!(one.insns, many.insns, "{}", one.name);
        assert!(one.functions.len() > 1 || one.name == "third");
    }
}

/// Section, and program type, attach type and flags of newer libbpf's table.
#[test]
fn newer_sections_are_known() {
    let known = [
        (
            "kprobe.session/vfs_*",
            (ProgramType::KPROBE, AttachType::TRACE_KPROBE_SESSION, 0),
        ),
        (
            "uprobe.multi//bin/true:main",
            (ProgramType::KPROBE, AttachType::TRACE_UPROBE_MULTI, 0),
        ),
        (
            "uretprobe.multi",
            (ProgramType::KPROBE, AttachType::TRACE_UPROBE_MULTI, 0),
        ),
        (
            "uprobe.session",
            (ProgramType::KPROBE, AttachType::TRACE_UPROBE_SESSION, 0),
        ),
        (
            "uprobe.multi.s//bin/true:main",
            (
                ProgramType::KPROBE,
                AttachType::TRACE_UPROBE_MULTI,
                SLEEPABLE,
            ),
        ),
        (
            "uretprobe.multi.s",
            (
                ProgramType::KPROBE,
                AttachType::TRACE_UPROBE_MULTI,
                SLEEPABLE,
            ),
        ),
        (
            "uprobe.session.s",
            (
                ProgramType::KPROBE,
                AttachType::TRACE_UPROBE_SESSION,
                SLEEPABLE,
            ),
        ),
        (
            "usdt.s/a:b:c",
            (ProgramType::KPROBE, AttachType::UNSPECIFIED, SLEEPABLE),
        ),
        (
            "tc/ingress",
            (ProgramType::SCHED_CLS, AttachType::TCX_INGRESS, 0),
        ),
        (
            "tc/egress",
            (ProgramType::SCHED_CLS, AttachType::TCX_EGRESS, 0),
        ),
        (
            "tcx/ingress",
            (ProgramType::SCHED_CLS, AttachType::TCX_INGRESS, 0),
        ),
        (
            "tcx/egress",
            (ProgramType::SCHED_CLS, AttachType::TCX_EGRESS, 0),
        ),
        (
            "netkit/primary",
            (ProgramType::SCHED_CLS, AttachType::NETKIT_PRIMARY, 0),
        ),
        (
            "netkit/peer",
            (ProgramType::SCHED_CLS, AttachType::NETKIT_PEER, 0),
        ),
        (
            "cgroup/connect_unix",
            (
                ProgramType::CGROUP_SOCK_ADDR,
                AttachType::CGROUP_UNIX_CONNECT,
                0,
            ),
        ),
        (
            "cgroup/sendmsg_unix",
            (
                ProgramType::CGROUP_SOCK_ADDR,
                AttachType::CGROUP_UNIX_SENDMSG,
                0,
            ),
        ),
        (
            "cgroup/recvmsg_unix",
            (
                ProgramType::CGROUP_SOCK_ADDR,
                AttachType::CGROUP_UNIX_RECVMSG,
                0,
            ),
        ),
        (
            "cgroup/getpeername_unix",
            (
                ProgramType::CGROUP_SOCK_ADDR,
                AttachType::CGROUP_UNIX_GETPEERNAME,
                0,
            ),
        ),
        (
            "cgroup/getsockname_unix",
            (
                ProgramType::CGROUP_SOCK_ADDR,
                AttachType::CGROUP_UNIX_GETSOCKNAME,
                0,
            ),
        ),
        (
            "struct_ops.s/member",
            (ProgramType::STRUCT_OPS, AttachType::UNSPECIFIED, SLEEPABLE),
        ),
        (
            "netfilter",
            (ProgramType::NETFILTER, AttachType::NETFILTER, 0),
        ),
    ];
    for (name, wanted) in known {
        let kind = SectionKind::of(name);
        let found = (kind.prog_type, kind.expected_attach_type, kind.flags);
        assert_eq!(found, wanted, "{name}");
    }
}
