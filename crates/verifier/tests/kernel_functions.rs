//! Kernel functions that programs call: their permitted callers, arguments and results, the same
//! from the kernel and from here.

mod attached;

use std::fmt::Write as _;

use attached::*;
use beeline_fuzz::kernel;
use beeline_isa::opcode::*;
use beeline_uapi::flags::SLEEPABLE;
use beeline_uapi::{AttachType, ProgramType};
use beeline_verifier::program::Kind;
use beeline_verifier::types::kernel_functions::{KernelFunction, flags};
use beeline_verifier::types::{Annotation, KernelTypes, ParamType};

/// Programs against the kernel functions that they may call.
#[test]
fn callers_of_kernel_functions() {
    let Some(types) = types() else { return };
    let kinds = every_kind(&types);
    let functions = types.kernel_functions();
    assert!(functions.len() > 100, "{}", functions.len());
    let mut wrong = String::new();
    let mut compared = 0;
    for id in functions {
        let name = types.function_name(id).expect("a function");
        let ours = KernelFunction::named(name);
        for kind in &kinds {
            let call = insn(JMP | CALL, 0, PSEUDO_KFUNC_CALL, 0, id as i32);
            let (_, log) =
                kernel::verdict(&trial(*kind, &[R0_IS_0, call, R0_IS_0, END_PROGRAM]), 1);
            let theirs = !log.contains("is not allowed") && !log.contains("device-bound");
            let may = ours.is_some_and(|it| it.may_be_called_by(kind) && !it.needs_device());
            compared += 1;
            if theirs != may {
                let _ = writeln!(
                    wrong,
                    "{name} by {kind:?}: the kernel {theirs}, here {may}: {log}"
                );
            }
            let sleeps = log.contains("program must be sleepable to call sleepable kfunc");
            if may && !kind.is_sleepable() {
                let ours = ours.is_some_and(|it| it.has(flags::SLEEPABLE));
                if sleeps != ours {
                    let _ = writeln!(
                        wrong,
                        "{name} by {kind:?}: sleeps: the kernel {sleeps}, here {ours}: {log}"
                    );
                }
            }
        }
    }
    println!("{compared} compared");
    assert!(wrong.is_empty(), "{wrong}");
}

/// Programs of every kind that load without attaching anywhere, and some that do.
fn every_kind(types: &KernelTypes) -> Vec<Kind> {
    let tcp = types.structure("tcp_congestion_ops").unwrap_or(0);
    let mut kinds = vec![attached(types, "sched_switch"), iterator(types, "task")];
    kinds.extend(PLAIN_KINDS.map(|(prog_type, attach_type)| Kind {
        prog_type,
        attach_type,
        flags: if prog_type == ProgramType::SYSCALL {
            SLEEPABLE
        } else {
            0
        },
        ..Kind::default()
    }));
    kinds.push(Kind {
        prog_type: ProgramType::STRUCT_OPS,
        // The number of a member.
        attach_type: AttachType(6),
        attach_btf_id: tcp,
        ..Kind::default()
    });
    kinds
}

/// The requirements of kernel functions on their first pointer: trusted, protected, or none.
#[test]
fn trust_that_kernel_functions_ask_for() {
    let Some(types) = types() else { return };
    let kind = Kind {
        flags: SLEEPABLE,
        ..iterator(&types, "task")
    };
    // Later kernels of 6.18 ask all their functions' arguments to be trusted. Beeline follows the
    // earlier ones.
    let cast = types
        .function("bpf_cast_to_kern_ctx")
        .expect("the function");
    let asks_all = call_with(&types, kind, cast, 0, None).contains(NULL_REFUSED);
    let mut wrong = String::new();
    let mut compared = 0;
    for id in types.kernel_functions() {
        let name = types.function_name(id).expect("a function");
        let Some(function) = KernelFunction::named(name) else {
            continue;
        };
        let params = types.prototype(id).expect("a prototype").params;
        let first = params.iter().position(|param| {
            let skipped = [Some(Annotation::Ignored), Some(Annotation::Program)];
            !skipped.contains(&param.annotation) && !matches!(param.is, ParamType::Number { .. })
        });
        let Some(first) = first.filter(|_| function.may_be_called_by(&kind)) else {
            continue;
        };
        if params[first].annotation == Some(Annotation::Nullable) {
            continue;
        }
        let ours = function.has(flags::TRUSTED_ARGS | flags::RCU | flags::RELEASE);
        let log = call_with(&types, kind, id, first, None);
        let theirs = log.contains(NULL_REFUSED);
        compared += 1;
        if theirs != (ours || asks_all) {
            let _ = writeln!(
                wrong,
                "{name} of null: the kernel {theirs}, here {ours}: {log}"
            );
        }
        let ParamType::Structure {
            btf_id,
            only_numbers: false,
            ..
        } = params[first].is
        else {
            continue;
        };
        let log = call_with(&types, kind, id, first, Some(btf_id));
        let theirs = (
            log.contains("must be referenced or trusted"),
            log.contains("must be a rcu pointer"),
        );
        let rcu = function.has(flags::RCU) && !function.has(flags::RELEASE);
        compared += 1;
        if theirs != ((ours || asks_all) && !rcu, rcu) {
            let _ = writeln!(
                wrong,
                "{name}: the kernel {theirs:?}, here {ours} {rcu}: {log}"
            );
        }
    }
    println!("{compared} compared");
    assert!(wrong.is_empty(), "{wrong}");
}

/// The line of a kernel that refuses a null pointer because the argument must be trusted.
const NULL_REFUSED: &str = "Possibly NULL pointer passed to trusted arg";

/// Returns the log of a program that calls a function with zeros, and one untrusted pointer.
fn call_with(
    types: &KernelTypes,
    kind: Kind,
    function: u32,
    place: usize,
    untrusted: Option<u32>,
) -> String {
    let call = |id: u32| insn(JMP | CALL, 0, PSEUDO_KFUNC_CALL, 0, id as i32);
    let zero = |register: u8| insn(ALU64 | K | MOV, register, 0, 0, 0);
    let mut insns = vec![zero(6)];
    if let Some(structure) = untrusted {
        let cast = types.function("bpf_rdonly_cast").expect("the function");
        insns.push(insn(ALU64 | K | MOV, 2, 0, 0, structure as i32));
        insns.extend([call(cast), insn(ALU64 | X | MOV, 6, 0, 0, 0)]);
    }
    insns.extend((1..=5).map(zero));
    insns.push(insn(ALU64 | X | MOV, place as u8 + 1, 6, 0, 0));
    insns.extend([call(function), R0_IS_0, END_PROGRAM]);
    kernel::verdict(&trial(kind, &insns), 1).1
}

/// The results of kernel functions: owned or not, null or not.
#[test]
fn results_of_kernel_functions() {
    let Some(types) = types() else { return };
    let mut compared = 0;
    for id in types.kernel_functions() {
        let name = types.function_name(id).expect("a function");
        let prototype = types.prototype(id).expect("a prototype");
        let Some(function) = KernelFunction::named(name) else {
            continue;
        };
        let (ParamType::Structure { .. } | ParamType::Anything, false) =
            (prototype.result, function.has(flags::SLEEPABLE))
        else {
            continue;
        };
        // A task from one tracepoint, a cgroup from another.
        let first = prototype.params.first().map(|param| param.is);
        let (kind, from) = match first {
            Some(ParamType::Structure { btf_id, .. }) => match types.name(btf_id) {
                "task_struct" => (attached(&types, "sched_switch"), 8),
                "cgroup" => (attached(&types, "cgroup_mkdir"), 0),
                _ => continue,
            },
            Some(ParamType::Number { .. }) | None => (attached(&types, "sched_switch"), 0),
            _ => continue,
        };
        let rest = prototype.params.iter().skip(1);
        let constant = Some(Annotation::Constant);
        let plain = rest
            .into_iter()
            .all(|it| matches!(it.is, ParamType::Number { .. }));
        if !plain
            || !function.may_be_called_by(&kind)
            || prototype.params.iter().any(|it| it.annotation == constant)
        {
            continue;
        }
        let mut insns = vec![load(1, 1, from, 8)];
        if first.is_none_or(|it| matches!(it, ParamType::Number { .. })) {
            insns.push(insn(ALU64 | K | MOV, 1, 0, 0, 1));
        }
        insns.extend((2..=5).map(|register| insn(ALU64 | K | MOV, register, 0, 0, 0)));
        insns.push(insn(JMP | CALL, 0, PSEUDO_KFUNC_CALL, 0, id as i32));
        insns.extend([insn(ALU64 | X | MOV, 2, 0, 0, 0), R0_IS_0, END_PROGRAM]);
        let (_, log) = kernel::verdict(&trial(kind, &insns), 2);
        let result = register(&log, insns.len() - 3).unwrap_or_else(|| panic!("{name}: {log}"));
        assert_eq!(
            result.contains("or_null"),
            function.has(flags::RET_NULL),
            "{name}: {result}"
        );
        assert_eq!(
            result.contains("ref_obj_id"),
            function.has(flags::ACQUIRE),
            "{name}: {result}"
        );
        compared += 1;
    }
    println!("{compared} compared");
}

#[test]
fn parameters_of_kernel_functions_are_checked() {
    let Ok(btf) = std::fs::read("/sys/kernel/btf/vmlinux") else {
        eprintln!("skipped: the kernel has no BTF");
        return;
    };
    let types = KernelTypes::new(btf).expect("good BTF");
    let params = |name: &str| {
        let id = types.function(name)?;
        Some(types.prototype(id)?.params)
    };
    let number = |bytes| ParamType::Number { bytes };
    if let Some(params) = params("bpf_dynptr_slice") {
        let all: Vec<_> = params
            .iter()
            .map(|it| (it.name, it.annotation, it.is))
            .collect();
        assert_eq!(all[1], ("offset", None, number(4)));
        assert_eq!(
            all[2],
            (
                "buffer__opt",
                Some(Annotation::Optional),
                ParamType::Anything
            )
        );
        assert_eq!(
            all[3],
            ("buffer__szk", Some(Annotation::ConstantSize), number(4))
        );
    }
    if let Some(params) = params("bpf_rbtree_add_impl") {
        assert_eq!(params[2].is, ParamType::Callback);
    }
    if let Some(params) = params("bpf_xdp_metadata_rx_timestamp") {
        assert!(matches!(params[1].is, ParamType::Numbers { bytes: 8, .. }));
    }
    if let Some(params) = params("bpf_crypto_ctx_create") {
        let only_numbers = matches!(
            params[0].is,
            ParamType::Structure {
                only_numbers: true,
                ..
            }
        );
        assert!(only_numbers, "{:?}", params[0]);
    }
}
