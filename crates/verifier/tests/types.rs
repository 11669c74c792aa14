//! Pointers by the kernel's BTF: the same answers from the kernel and from here.

mod attached;

use std::fmt::Write as _;
use std::time::Instant;

use attached::*;
use beeline_fuzz::kernel;
use beeline_isa::opcode::*;
use beeline_uapi::flags::SLEEPABLE;
use beeline_uapi::{AttachType, Errno, ProgramType};
use beeline_verifier::program::Kind;
use beeline_verifier::types::{KernelTypes, Member, Refused, Trust};

/// Formats it as the kernel would print it, up to the parenthesis.
fn printed(types: &KernelTypes, member: Member) -> String {
    match member {
        Member::Scalar => "scalar(".to_owned(),
        Member::UntrustedMem => "rdonly_untrusted_mem(".to_owned(),
        Member::Buffer { writable: true } => "buf_or_null(".to_owned(),
        Member::Buffer { writable: false } => "rdonly_buf_or_null(".to_owned(),
        Member::Pointer {
            btf_id,
            trust,
            or_null,
        } => {
            let prefix = match trust {
                Trust::Trusted => "trusted_",
                Trust::Rcu => "rcu_",
                Trust::User => "user_",
                Trust::PerCpu => "percpu_",
                Trust::Plain => "",
                Trust::Untrusted => "untrusted_",
            };
            let null = if or_null { "or_null_" } else { "" };
            format!("{prefix}ptr_{null}{}(", types.name(btf_id))
        }
    }
}

/// Records a difference between the two.
#[derive(Default)]
struct Differences {
    compared: usize,
    text: String,
    count: usize,
}

impl Differences {
    fn compare(
        &mut self,
        types: &KernelTypes,
        what: &str,
        (errno, log): &(i32, String),
        at: usize,
        ours: Result<Member, Refused>,
    ) {
        self.compared += 1;
        let agree = match &ours {
            Ok(member) => {
                *errno == 0
                    && register(log, at).is_some_and(|it| {
                        it.starts_with(&printed(types, *member))
                            // A narrow number has bounds, a pointer that is known to be null none.
                            || *member == Member::Scalar && it.starts_with("scalar")
                    })
            }
            Err((ours, line)) => {
                *errno == ours.0 && (line.is_empty() || log.lines().any(|it| it == line))
            }
        };
        if agree {
            return;
        }
        self.count += 1;
        if self.count <= 40 {
            let theirs = match errno {
                0 => register(log, at).unwrap_or("nothing").to_owned(),
                _ => {
                    let mut last: Vec<_> = log.lines().rev().skip(1).take(2).collect();
                    last.reverse();
                    format!("errno {errno}: {}", last.join(" / "))
                }
            };
            let ours = ours.map(|member| printed(types, member));
            let _ = writeln!(self.text, "{what}: the kernel {theirs}, here {ours:?}");
        }
    }

    fn check(&self) {
        println!("{} compared", self.compared);
        assert!(self.count == 0, "{} differ:\n{}", self.count, self.text);
    }
}

/// Ways to a pointer to a structure: the program, the loads that lead to it, and its type then.
struct Way {
    kind: Kind,
    offsets: Vec<i32>,
}

#[test]
fn accesses_of_members_get_the_kernels_verdicts() {
    let Some(types) = types() else { return };
    let mut differences = Differences::default();
    let on = |name: &str, offsets: &[i32]| Way {
        kind: attached(&types, name),
        offsets: offsets.to_vec(),
    };

    let over = |name: &str, flags: u32, offsets: &[i32]| Way {
        kind: Kind {
            flags,
            ..iterator(&types, name)
        },
        offsets: offsets.to_vec(),
    };
    let mm = offset(&types, "task_struct", "mm");
    let parent = offset(&types, "task_struct", "real_parent");
    let exe = offset(&types, "mm_struct", "exe_file");
    // Iterators load faster than programs on tracepoints, for which the kernel looks up a name.
    let ways = [
        (on("sched_switch", &[8]), 29),
        (on("sched_switch", &[8, parent]), 61),
        (on("sched_switch", &[8, mm]), 17),
        (on("sched_switch", &[8, mm, exe]), 3),
        (on("consume_skb", &[0]), 1),
        (on("cgroup_mkdir", &[0]), 17),
        (on("inet_sk_error_report", &[0]), 5),
        (on("block_rq_insert", &[0]), 3),
        (on("napi_poll", &[0]), 5),
        (on("ext4_mark_inode_dirty", &[0]), 7),
        (over("task", 0, &[8]), 5),
        (over("task", SLEEPABLE, &[8]), 7),
        (over("task", SLEEPABLE, &[0]), 1),
        (over("task_file", 0, &[24]), 1),
        (over("task_vma", 0, &[16]), 1),
        (over("cgroup", 0, &[8]), 3),
        (over("tcp", 0, &[8]), 1),
        (over("unix", 0, &[8]), 3),
        (over("bpf_map", 0, &[8]), 1),
    ];
    for (way, step) in ways {
        compare_members(&types, &way, step, &mut differences);
    }
    differences.check();
}

fn offset(types: &KernelTypes, structure: &str, member: &str) -> i32 {
    types.offset_of(structure, member).expect("a member") as i32
}

fn compare_members(types: &KernelTypes, way: &Way, step: usize, differences: &mut Differences) {
    let mut at = types
        .context(&way.kind, way.offsets[0], 8)
        .expect("a pointer");
    let rcu = !way.kind.is_sleepable();
    let mut insns = vec![load(1, 1, way.offsets[0], 8)];
    for &off in &way.offsets[1..] {
        let Member::Pointer { btf_id, trust, .. } = at else {
            panic!("no pointer");
        };
        at = types.member(btf_id, off, 8, trust, rcu).expect("a pointer");
        insns.push(load(1, 1, off, 8));
    }
    let Member::Pointer {
        btf_id,
        trust,
        or_null,
    } = at
    else {
        panic!("no pointer");
    };
    if or_null {
        insns.push(insn(JMP | K | JEQ, 1, 0, 1, 0));
    }
    let place = insns.len();
    insns.extend([R0_IS_0; 3]);
    insns[place + 2] = END_PROGRAM;
    let bytes = types.size(btf_id).expect("a size");
    for off in (0..bytes as i32 + 16).step_by(step) {
        for size in [1, 2, 4, 8] {
            insns[place] = load(2, 1, off, size);
            let theirs = kernel::verdict(&trial(way.kind, &insns), 2);
            let ours = types.member(btf_id, off, size, trust, rcu);
            let what = format!(
                "{size} bytes at {off} of {} ({trust:?})",
                types.name(btf_id)
            );
            differences.compare(types, &what, &theirs, place, ours);
        }
    }
}

/// Iterators that later kernels of 6.18 (seen in 6.18.44) refuse with EPERM and without a word.
const FORBIDDEN: [&str; 3] = [
    "bpf_iter_bpf_map_elem",
    "bpf_iter_bpf_sk_storage_map",
    "bpf_iter_sockmap",
];

#[test]
fn accesses_of_typed_contexts_get_the_kernels_verdicts() {
    let Some(types) = types() else { return };
    let mut differences = Differences::default();
    let kind = |prog_type, attach_type, attach_btf_id| Kind {
        prog_type,
        attach_type,
        attach_btf_id,
        ..Kind::default()
    };
    let mut kinds = Vec::new();
    for id in types.named_with("btf_trace_") {
        kinds.push(kind(ProgramType::TRACING, AttachType::TRACE_RAW_TP, id));
    }
    for id in types.named_with("bpf_iter_") {
        kinds.push(kind(ProgramType::TRACING, AttachType::TRACE_ITER, id));
    }
    for name in ["tcp_congestion_ops", "bpf_dummy_ops"] {
        let Some(id) = types.structure(name) else {
            continue;
        };
        kinds.extend((0..24).map(|member| kind(ProgramType::STRUCT_OPS, AttachType(member), id)));
        kinds.extend((0..24).map(|member| Kind {
            flags: SLEEPABLE,
            ..kind(ProgramType::STRUCT_OPS, AttachType(member), id)
        }));
    }
    let mut attached = 0;
    for kind in kinds {
        let theirs = kernel::verdict(&trial(kind, &[R0_IS_0, END_PROGRAM]), 2);
        let ours = types.check_attach(&kind);
        let refused = ours.as_ref().err().map_or(0, |(errno, _)| errno.0);
        // A function without a result has to be left without one.
        let expected = if theirs.1.contains("R0") { 0 } else { theirs.0 };
        let name = types.name(kind.attach_btf_id);
        if FORBIDDEN.contains(&name) && expected == libc::EPERM {
            continue;
        }
        assert_eq!(expected, refused, "{kind:?} {name}: {ours:?}\n{}", theirs.1);
        if let Err((_, line)) = &ours {
            assert!(
                line.is_empty() || theirs.1.lines().any(|it| it == line),
                "{line}\n{}",
                theirs.1
            );
        }
        if ours.is_err() {
            continue;
        }
        attached += 1;
        let sizes: &[u32] = if attached % 128 == 0 {
            &[1, 2, 4, 8]
        } else {
            &[8]
        };
        for &size in sizes {
            let end = if attached % 8 == 0 { 104 } else { 24 };
            for off in (0..end).step_by(size as usize) {
                compare_context(&types, kind, off, size, &mut differences);
            }
        }
        compare_context(&types, kind, 4, 8, &mut differences);
    }
    println!("{attached} attached");
    assert!(attached > 100);
    differences.check();
}

fn compare_context(types: &KernelTypes, kind: Kind, off: i32, size: u32, to: &mut Differences) {
    let insns = [load(2, 1, off, size), R0_IS_0, END_PROGRAM];
    let theirs = kernel::verdict(&trial(kind, &insns), 2);
    let ours = types
        .context(&kind, off, size)
        .map_err(|line| (Errno::EACCES, line));
    let name = types.name(kind.attach_btf_id);
    let what = format!("{size} bytes at {off} of {name}'s context");
    to.compare(types, &what, &theirs, 0, ours);
    if let Some(note) = types
        .context_note(&kind, off)
        .filter(|_| theirs.0 == 0 && size == 8)
    {
        assert!(
            theirs.1.lines().any(|line| line == note),
            "{note}\n{}",
            theirs.1
        );
    }
}

/// Programs on functions and LSM hooks, which not every kernel lets us load: the sources' answers.
#[test]
fn functions_and_hooks() {
    let Ok(btf) = std::fs::read("/sys/kernel/btf/vmlinux") else {
        eprintln!("skipped: the kernel has no BTF");
        return;
    };
    let types = KernelTypes::new(btf).expect("good BTF");
    let kind = |prog_type, attach_type, flags, name: &str| Kind {
        prog_type,
        attach_type,
        flags,
        attach_btf_id: types.function(name).unwrap_or(0),
        ..Kind::default()
    };
    let tracing = |attach_type, flags, name| kind(ProgramType::TRACING, attach_type, flags, name);
    let [entry, exit] =
        [AttachType::TRACE_FENTRY, AttachType::TRACE_FEXIT].map(|it| tracing(it, 0, "vfs_read"));
    if entry.attach_btf_id == 0 {
        eprintln!("skipped: the kernel has no vfs_read");
        return;
    }
    let pointer = |name: &str, trust| Member::Pointer {
        btf_id: types.structure(name).expect("a structure"),
        trust,
        or_null: false,
    };
    assert_eq!(types.check_attach(&entry), Ok(()));
    assert_eq!(
        types.context(&entry, 0, 8),
        Ok(pointer("file", Trust::Plain))
    );
    assert_eq!(types.context(&entry, 8, 8), Ok(Member::Scalar));
    assert_eq!(types.context(&exit, 32, 8), Ok(Member::Scalar));
    let missing = "func 'vfs_read' doesn't have 5-th argument";
    assert_eq!(types.context(&entry, 32, 8), Err(missing.to_owned()));

    let hook = |flags, name| kind(ProgramType::LSM, AttachType::LSM_MAC, flags, name);
    let (open, freed) = ("bpf_lsm_file_open", "bpf_lsm_task_free");
    let file = pointer("file", Trust::Trusted);
    let task = pointer("task_struct", Trust::Plain);
    assert_eq!(types.context(&hook(0, open), 0, 8), Ok(file));
    assert_eq!(types.context(&hook(0, open), 8, 8), Ok(Member::Scalar));
    assert_eq!(types.context(&hook(0, freed), 0, 8), Ok(task));

    let refused = |kind| types.check_attach(&kind).map_err(|(_, line)| line);
    assert_eq!(refused(hook(SLEEPABLE, open)), Ok(()));
    let line = "bpf_lsm_task_free is not sleepable".to_owned();
    assert_eq!(refused(hook(SLEEPABLE, freed)), Err(line));
    // Two that not all kernels have, and one that is not in the sources' list.
    for name in ["bpf_lsm_path_unlink", "bpf_lsm_inode_removexattr"] {
        let hook = hook(SLEEPABLE, name);
        assert!(hook.attach_btf_id == 0 || refused(hook) == Ok(()), "{name}");
    }
    let unlisted = hook(SLEEPABLE, "bpf_lsm_inode_setintegrity");
    let line = "bpf_lsm_inode_setintegrity is not sleepable".to_owned();
    assert!(unlisted.attach_btf_id == 0 || refused(unlisted) == Err(line));
    let line = "vfs_read() is not modifiable".to_owned();
    assert_eq!(
        refused(tracing(AttachType::MODIFY_RETURN, 0, "vfs_read")),
        Err(line)
    );
    let line = "vfs_read is not sleepable".to_owned();
    assert_eq!(
        refused(tracing(AttachType::TRACE_FENTRY, SLEEPABLE, "vfs_read")),
        Err(line)
    );
    let line = "Tracing programs must provide btf_id".to_owned();
    assert_eq!(
        refused(tracing(AttachType::TRACE_FENTRY, 0, "nowhere")),
        Err(line)
    );
    let denied = "Attaching tracing programs to function 'migrate_enable' is rejected.";
    let kind = tracing(AttachType::TRACE_FENTRY, 0, "migrate_enable");
    assert!(kind.attach_btf_id == 0 || refused(kind) == Err(denied.to_owned()));
}

/// The bytes of the kernel's structures that operations may write.
#[test]
fn writes_of_operations_get_the_kernels_verdicts() {
    let Some(types) = types() else { return };
    let ways = [
        ("tcp_congestion_ops", "tcp_sock", 0),
        ("bpf_dummy_ops", "bpf_dummy_ops_state", 0),
    ];
    let mut compared = 0;
    for (operations, structure, member) in ways {
        let (Some(id), Some(structure)) = (types.structure(operations), types.structure(structure))
        else {
            continue;
        };
        let kind = Kind {
            prog_type: ProgramType::STRUCT_OPS,
            attach_type: AttachType(member),
            attach_btf_id: id,
            ..Kind::default()
        };
        let bytes = types.size(structure).expect("a size") as i32;
        for off in 0..bytes + 8 {
            for size in [1, 4, 8] {
                let width = [B, W, DW][size as usize / 4];
                let store = insn(STX | MEM | width, 1, 0, off as i16, 0);
                let is_null = insn(JMP | K | JEQ, 1, 0, 1, 0);
                let insns = [load(1, 1, 0, 8), R0_IS_0, is_null, store, END_PROGRAM];
                let (errno, log) = kernel::verdict(&trial(kind, &insns), 1);
                let ours = types.may_write(&kind, structure, off, size);
                let line = ours.as_ref().err().map_or("", |(_, line)| line.as_str());
                let agree = match ours {
                    Ok(()) => errno == 0,
                    Err((ours, _)) => errno == ours.0 && log.contains(line),
                };
                assert!(
                    agree,
                    "{size} bytes at {off} of {operations}: {ours:?}\n{log}"
                );
                compared += 1;
            }
        }
    }
    println!("{compared} compared");
}

/// The kernel's own context, for programs that request it.
#[test]
fn accesses_of_the_kernels_own_context_get_its_verdicts() {
    let Some(types) = types() else { return };
    let cast = types
        .function("bpf_cast_to_kern_ctx")
        .expect("the function");
    for (prog_type, attach_type) in PLAIN_KINDS {
        let kind = Kind {
            prog_type,
            attach_type,
            flags: if prog_type == ProgramType::SYSCALL {
                SLEEPABLE
            } else {
                0
            },
            ..Kind::default()
        };
        let call = insn(JMP | CALL, 0, PSEUDO_KFUNC_CALL, 0, cast as i32);
        let insns = [
            call,
            insn(ALU64 | X | MOV, 2, 0, 0, 0),
            R0_IS_0,
            END_PROGRAM,
        ];
        let (_, log) = kernel::verdict(&trial(kind, &insns), 2);
        match types.kernel_context(prog_type) {
            Ok(id) => {
                let expected = format!("trusted_ptr_{}()", types.name(id));
                assert_eq!(
                    register(&log, 1),
                    Some(expected.as_str()),
                    "{prog_type}: {log}"
                );
            }
            Err((_, line)) => assert!(log.contains(&line), "{prog_type}: {line}\n{log}"),
        }
    }
}

/// Reading the kernel's BTF costs every start; names are looked up only by programs that need them.
#[test]
fn indexing_is_quick() {
    let Ok(btf) = std::fs::read("/sys/kernel/btf/vmlinux") else {
        eprintln!("skipped: the kernel has no BTF");
        return;
    };
    let start = Instant::now();
    let types = KernelTypes::new(btf).expect("good BTF");
    let read = start.elapsed();
    let timed = |find: &dyn Fn() -> Option<u32>| {
        let start = Instant::now();
        find().map(|_| start.elapsed())
    };
    let first = timed(&|| types.structure("task_struct"));
    let next = timed(&|| types.structure("cgroup"));
    let function = timed(&|| types.function("bpf_iter_task"));
    println!("read {read:?}, first name {first:?}, next {next:?}, first function {function:?}");
}
