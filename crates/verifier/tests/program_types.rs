//! A program's own BTF on its functions and lines: the same answers from the kernel and from here.

mod btf;

use beeline_fuzz::kernel::{self, Trial};
use beeline_isa::{Insn, opcode::*};
use beeline_uapi::{Errno, ProgramType, flags};
use beeline_verifier::program::Kind;
use beeline_verifier::types::{FunctionArg, KernelTypes, ProgramTypes, Refused, Returns};
use btf::*;

const SOCKET_FILTER: ProgramType = ProgramType::SOCKET_FILTER;
const KPROBE: ProgramType = ProgramType::KPROBE;
const SYSCALL: ProgramType = ProgramType::SYSCALL;
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

/// A program that calls a function, described.
struct Described {
    btf: Vec<u8>,
    prog_type: ProgramType,
    func_info: Vec<[u32; 2]>,
    line_info: Vec<[u32; 4]>,
    insns: Vec<Insn>,
}

impl Described {
    fn ours(&self, kernel: Option<&KernelTypes>) -> Result<ProgramTypes, Refused> {
        let kind = Kind {
            prog_type: self.prog_type,
            ..Kind::default()
        };
        let call = self.insns.iter().position(|insn| insn.code == JMP | CALL);
        let starts = [0, call.map_or(0, |at| at + 2)];
        let (functions, lines) = (&self.func_info, &self.line_info);
        ProgramTypes::new(
            &self.btf,
            functions,
            lines,
            &kind,
            &self.insns,
            &starts,
            kernel,
        )
    }

    fn theirs(&self) -> (i32, String) {
        let btf = kernel::load_btf(&self.btf).expect("BTF that the kernel takes");
        let trial = Trial {
            prog_type: self.prog_type,
            flags: if self.prog_type == SYSCALL {
                flags::SLEEPABLE
            } else {
                0
            },
            insns: &self.insns,
            btf: Some(&btf),
            func_info: &self.func_info,
            line_info: &self.line_info,
            ..Trial::default()
        };
        kernel::verdict(&trial, 2)
    }

    /// `int main(void *)` that calls `f(ARG)` with a valid argument.
    fn calling(mut types: Builder, prog_type: ProgramType, f: u32, pass: &[Insn]) -> Self {
        let int = types.int("result", 4);
        let main = types.function("main", 1, int, &[]);
        let mut insns = pass.to_vec();
        insns.extend([insn(JMP | CALL, 0, PSEUDO_CALL, 0, 1), END, R0_IS_0, END]);
        Self {
            btf: types.bytes(),
            prog_type,
            func_info: vec![[0, main], [pass.len() as u32 + 2, f]],
            line_info: Vec::new(),
            insns,
        }
    }
}

/// Makes a parameter's type.
type Param = fn(&mut Builder) -> u32;

fn pointer_to(types: &mut Builder, name: &str) -> u32 {
    let it = types.structure(name, 0, &[]);
    types.refer(PTR, it)
}

/// Parameters of global functions, with their tags and the type of the program.
const PARAMS: &[(&str, ProgramType, &[&str], Param)] = &[
    ("int", SOCKET_FILTER, &[], |it| it.int("int", 4)),
    ("const long", SOCKET_FILTER, &[], |it| {
        let long = it.int("long", 8);
        it.refer(CONST, long)
    }),
    ("nonnull int", SOCKET_FILTER, &["nonnull"], |it| {
        it.int("int", 4)
    }),
    ("float", SOCKET_FILTER, &[], |it| {
        it.add("float", FLOAT, 0, 4, &[])
    }),
    ("struct", SOCKET_FILTER, &[], |it| {
        let int = it.int("int", 4);
        it.structure("s", 4, &[("a", int, 0)])
    }),
    ("int *", SOCKET_FILTER, &[], |it| {
        let int = it.int("int", 4);
        it.refer(PTR, int)
    }),
    ("nonnull long *", SOCKET_FILTER, &["nonnull"], |it| {
        let long = it.int("long", 8);
        it.refer(PTR, long)
    }),
    ("nullable int *", SOCKET_FILTER, &["nullable"], |it| {
        let int = it.int("int", 4);
        it.refer(PTR, int)
    }),
    ("array *", SOCKET_FILTER, &[], |it| {
        let int = it.int("int", 4);
        let array = it.add("", ARRAY, 0, 0, &[int, int, 7]);
        it.refer(PTR, array)
    }),
    ("void *", SOCKET_FILTER, &[], |it| it.refer(PTR, 0)),
    ("forward *", SOCKET_FILTER, &[], |it| {
        let forward = it.add("unknown", FWD, 0, 0, &[]);
        it.refer(PTR, forward)
    }),
    ("__sk_buff *", SOCKET_FILTER, &[], |it| {
        pointer_to(it, "__sk_buff")
    }),
    ("sk_buff *", SOCKET_FILTER, &[], |it| {
        pointer_to(it, "sk_buff")
    }),
    ("ctx void *", SOCKET_FILTER, &["ctx"], |it| it.refer(PTR, 0)),
    ("ctx __sk_buff *", SOCKET_FILTER, &["ctx"], |it| {
        pointer_to(it, "__sk_buff")
    }),
    ("ctx xdp_md *", SOCKET_FILTER, &["ctx"], |it| {
        pointer_to(it, "xdp_md")
    }),
    ("ctx nonnull", SOCKET_FILTER, &["ctx", "nonnull"], |it| {
        pointer_to(it, "__sk_buff")
    }),
    ("ctx int", SOCKET_FILTER, &["ctx"], |it| it.int("int", 4)),
    ("xdp_md *", SOCKET_FILTER, &[], |it| {
        pointer_to(it, "xdp_md")
    }),
    ("pt_regs *", KPROBE, &[], |it| pointer_to(it, "pt_regs")),
    ("bpf_user_pt_regs_t *", KPROBE, &[], |it| {
        let regs = it.structure("any", 0, &[]);
        let named = it.add("bpf_user_pt_regs_t", TYPEDEF, 0, regs, &[]);
        let constant = it.refer(CONST, named);
        it.refer(PTR, constant)
    }),
    ("ctx pt_regs *", KPROBE, &["ctx"], |it| {
        pointer_to(it, "pt_regs")
    }),
    ("ctx __sk_buff * of a probe", KPROBE, &["ctx"], |it| {
        pointer_to(it, "__sk_buff")
    }),
    ("ctx anything *", SYSCALL, &["ctx"], |it| {
        pointer_to(it, "anything")
    }),
    ("ctx long *", ProgramType::RAW_TRACEPOINT, &["ctx"], |it| {
        let long = it.int("long", 8);
        it.refer(PTR, long)
    }),
    (
        "trusted task_struct *",
        KPROBE,
        &["trusted", "nullable"],
        |it| pointer_to(it, "task_struct"),
    ),
    (
        "trusted task_struct___mine *",
        KPROBE,
        &["trusted", "nullable"],
        |it| pointer_to(it, "task_struct___mine"),
    ),
    ("trusted nowhere *", KPROBE, &["trusted"], |it| {
        pointer_to(it, "nowhere")
    }),
    ("trusted nonnull", KPROBE, &["trusted", "nonnull"], |it| {
        pointer_to(it, "task_struct")
    }),
    ("untrusted task_struct *", KPROBE, &["untrusted"], |it| {
        pointer_to(it, "task_struct")
    }),
    ("untrusted int *", KPROBE, &["untrusted"], |it| {
        let int = it.int("int", 4);
        it.refer(PTR, int)
    }),
    ("untrusted void *", KPROBE, &["untrusted"], |it| {
        it.refer(PTR, 0)
    }),
    (
        "untrusted nonnull",
        KPROBE,
        &["untrusted", "nonnull"],
        |it| it.refer(PTR, 0),
    ),
    ("arena nonnull", KPROBE, &["arena", "nonnull"], |it| {
        it.refer(PTR, 0)
    }),
    ("unknown tag", KPROBE, &["else"], |it| it.refer(PTR, 0)),
    ("dynptr nonnull", KPROBE, &["nonnull"], |it| {
        pointer_to(it, "bpf_dynptr")
    }),
];

/// Returns instructions that make r1 valid for an argument.
fn pass(arg: &Result<Vec<FunctionArg>, Refused>) -> Vec<Insn> {
    let Some(arg) = arg.as_ref().ok().and_then(|args| args.first()) else {
        return vec![];
    };
    match arg {
        FunctionArg::Context => vec![],
        FunctionArg::Mem { or_null: false, .. } => vec![
            insn(ST | MEM | DW, 10, 0, -8, 0),
            insn(ALU64 | X | MOV, 1, 10, 0, 0),
            insn(ALU64 | K | ADD, 1, 0, 0, -8),
        ],
        _ => vec![insn(ALU64 | K | MOV, 1, 0, 0, 0)],
    }
}

/// Returns r1 as the kernel sees it at the start of the function.
fn first_state(arg: FunctionArg, kernel: &KernelTypes) -> String {
    match arg {
        FunctionArg::Scalar => "R1=scalar(".to_owned(),
        FunctionArg::Context => "R1=ctx(".to_owned(),
        FunctionArg::Mem {
            bytes,
            or_null: true,
        } => format!("R1=mem_or_null(id=1,sz={bytes})"),
        FunctionArg::Mem { bytes, .. } => format!("R1=mem(sz={bytes})"),
        FunctionArg::UntrustedMem => "R1=rdonly_untrusted_mem(sz=0)".to_owned(),
        FunctionArg::Dynptr => "R1=dynptr".to_owned(),
        FunctionArg::Arena => "R1=arena".to_owned(),
        FunctionArg::Btf {
            btf_id,
            or_null,
            trusted,
        } => {
            let prefix = if trusted { "trusted_" } else { "untrusted_" };
            let null = if or_null { "or_null_" } else { "" };
            format!("R1={prefix}ptr_{null}{}(", kernel.name(btf_id))
        }
    }
}

#[test]
fn arguments_of_global_functions_get_the_kernels_verdicts() {
    let Some(kernel) = kernel_types().filter(|_| kernel::is_usable()) else {
        eprintln!("skipped: no kernel to ask");
        return;
    };
    for (what, prog_type, tags, param) in PARAMS {
        let describe = |pass: &[Insn]| {
            let mut types = Builder::new();
            let param = param(&mut types);
            let int = types.int("int", 4);
            let f = types.function("f", 1, int, &[param]);
            for tag in *tags {
                types.tag(&format!("arg:{tag}"), f, 0);
            }
            Described::calling(types, *prog_type, f, pass)
        };
        let first = describe(&[]).ours(Some(&kernel)).expect("good types");
        let args = first.function(2).expect("the function").args.clone();
        let described = describe(&pass(&args));
        let (errno, log) = described.theirs();
        match args {
            Ok(args) => {
                let expected = first_state(args[0], &kernel);
                assert!(
                    log.contains(&expected),
                    "{what}: here {expected}\n{errno} {log}"
                );
            }
            Err((ours, line)) => {
                assert!(
                    log.lines().any(|it| it == line),
                    "{what}: here {line}\n{log}"
                );
                // If the caller detects it, it says so in its own words.
                assert!(
                    Errno(errno) == ours || errno == libc::EINVAL,
                    "{what}: {errno}, here {ours:?}\n{log}"
                );
            }
        }
    }
}

#[test]
fn results_and_linkage() {
    let describe = |linkage: u32, result: Param| {
        let mut types = Builder::new();
        let result = result(&mut types);
        let f = types.function("f", linkage, result, &[]);
        Described::calling(types, SOCKET_FILTER, f, &[])
    };
    let results: [(Returns, Param); 4] = [
        (Returns::Scalar, |it| it.int("int", 4)),
        (Returns::Scalar, |it| it.add("e", 6, 0, 4, &[])),
        (Returns::Void, |_| 0),
        (Returns::Other, |it| it.refer(PTR, 0)),
    ];
    for (returns, result) in results {
        for linkage in [0, 1] {
            let described = describe(linkage, result);
            let ours = described.ours(None).expect("good types");
            let f = ours.function(2).expect("the function");
            assert_eq!(
                (f.name.as_str(), f.global, f.returns),
                ("f", linkage == 1, returns)
            );
            if !kernel::is_usable() {
                continue;
            }
            let (errno, log) = described.theirs();
            let refused = f.global && f.args.is_err();
            assert_eq!(refused, errno != 0, "{returns:?} {linkage}: {log}");
            if let (true, Err((_, line))) = (refused, &f.args) {
                assert!(log.lines().any(|it| it == line), "{line}\n{log}");
            }
        }
    }
}

/// Good records and bad ones.
#[test]
fn records_of_functions_and_lines_get_the_kernels_verdicts() {
    if !kernel::is_usable() {
        return;
    }
    let mut types = Builder::new();
    let (file, line) = (types.string("a.c"), types.string("\treturn f();"));
    let int = types.int("int", 4);
    let f = types.function("f", 0, int, &[]);
    let good = Described::calling(types, SOCKET_FILTER, f, &[]);
    let (main, last) = (good.func_info[0][1], good.btf.len() as u32);
    let functions: Vec<Vec<[u32; 2]>> = vec![
        vec![],
        good.func_info.clone(),
        vec![[1, main], [2, f]],
        vec![[0, main], [0, f]],
        vec![[0, main], [3, f], [2, f]],
        vec![[0, main], [2, int]],
        vec![[0, main], [2, 900]],
        vec![[0, main], [2, 0]],
        vec![[0, main]],
        vec![[0, main], [1, f]],
        vec![[0, main], [2, f], [3, f]],
    ];
    let place = |line: u32| line << 10 | 9;
    let lines: Vec<Vec<[u32; 4]>> = vec![
        vec![],
        vec![[0, file, line, place(7)], [2, file, line, place(9)]],
        vec![
            [0, file, line, place(7)],
            [1, 0, 0, 0],
            [2, file, line, place(9)],
        ],
        vec![[0, file, line, 0], [2, file, line, 0], [2, file, line, 0]],
        vec![[0, file, line, 0], [2, file, line, 0], [9, file, line, 0]],
        vec![[0, file, line, 0], [2, last, line, 0]],
        vec![[0, file, last, 0], [2, file, line, 0]],
        vec![[1, file, line, 0], [2, file, line, 0]],
        vec![[0, file, line, 0], [3, file, line, 0]],
        vec![[0, file, line, 0]],
        vec![[4, file, line, 0]],
    ];
    for func_info in &functions {
        for line_info in &lines {
            let described = Described {
                btf: good.btf.clone(),
                prog_type: SOCKET_FILTER,
                func_info: func_info.clone(),
                line_info: line_info.clone(),
                insns: good.insns.clone(),
            };
            let (errno, log) = described.theirs();
            let ours = described.ours(None);
            match &ours {
                Ok(_) => assert_eq!(errno, 0, "{func_info:?} {line_info:?}: {log}"),
                Err((ours, line)) => {
                    assert_eq!(
                        Errno(errno),
                        *ours,
                        "{func_info:?} {line_info:?}: {line}\n{log}"
                    );
                    // Some of the kernel's lines end in no newline.
                    assert!(log.contains(line.as_str()), "{line}\n{log}");
                }
            }
        }
    }
}

#[test]
fn lines_are_found_by_their_instructions() {
    let mut types = Builder::new();
    let (file, line) = (types.string("a.c"), types.string("\treturn f();"));
    let int = types.int("int", 4);
    let f = types.function("f", 0, int, &[]);
    let mut described = Described::calling(types, SOCKET_FILTER, f, &[]);
    described.line_info = vec![[0, file, line, 7 << 10 | 9], [2, file, 0, 8 << 10 | 1]];
    let ours = described.ours(None).expect("good types");
    let at = |insn| {
        let it = ours.line(insn).expect("a line");
        (it.file, it.text, it.line, it.column)
    };
    assert_eq!(at(0), ("a.c", "\treturn f();", 7, 9));
    assert_eq!(at(1), at(0));
    assert_eq!(at(3), ("a.c", "", 8, 1));
}

/// The choice of the function that runs when the program throws.
#[test]
fn exception_callbacks_are_chosen_as_the_kernel_does() {
    let describe = |linkage: u32, tags: &[&str], second: bool| {
        let mut types = Builder::new();
        let (int, long) = (types.int("int", 4), types.int("long", 8));
        let main = types.function("main", 1, int, &[]);
        let caught = types.function("caught", linkage, int, &[long]);
        for tag in tags {
            types.tag(&format!("exception_callback:{tag}"), main, -1);
        }
        let other = types.function("other", 1, int, &[long]);
        Described {
            btf: types.bytes(),
            prog_type: ProgramType::SCHED_CLS,
            func_info: vec![[0, main], [2, if second { caught } else { other }]],
            line_info: Vec::new(),
            insns: vec![R0_IS_0, END, R0_IS_0, END],
        }
    };
    let cases: [(u32, &[&str], bool, Option<usize>); 5] = [
        (1, &["caught"], true, Some(2)),
        (1, &["nowhere"], true, None),
        (0, &["caught"], true, None),
        (1, &["caught", "other"], true, None),
        (1, &["caught"], false, None),
    ];
    for (linkage, tags, second, expected) in cases {
        let described = describe(linkage, tags, second);
        let ours = ProgramTypes::exception_callback(&described.btf, &described.func_info);
        assert_eq!(ours.clone().ok().flatten(), expected, "{ours:?}");
        if !kernel::is_usable() {
            continue;
        }
        let (errno, log) = described.theirs();
        let (refused, line) = ours.err().unwrap_or((Errno(0), String::new()));
        assert_eq!(Errno(errno), refused, "{line}\n{log}");
        assert!(log.contains(&line), "{line}\n{log}");
    }
    let none = describe(1, &[], true);
    let ours = ProgramTypes::exception_callback(&none.btf, &none.func_info);
    assert_eq!(ours, Ok(None));
}
