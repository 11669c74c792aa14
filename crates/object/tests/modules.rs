//! Programs' references to kernel modules are resolved in the modules' types. The test needs clang
//! 19.

mod compiled;

use beeline_btf::{Btf, kind};
use beeline_isa::opcode::{CALL, JMP, LD_IMM64, PSEUDO_BTF_ID, PSEUDO_KFUNC_CALL};
use beeline_object::{AttachTarget, Kernel, Object};
use compiled::compiled;

const SOURCE: &str = r#"
#define SEC(name) __attribute__((section(name), used))
extern int of_module(int) SEC(".ksyms");
extern int of_kernel(int) SEC(".ksyms");
extern const int variable SEC(".ksyms");
struct moved { int b, a; } __attribute__((preserve_access_index));
SEC("tc") int calls(void *ctx) { return of_module(1) + of_kernel(2); }
SEC("tc") int reads(void *ctx) { return variable; }
SEC("tc") int relocated(struct moved *it) { return it->a; }
SEC("fentry/of_module") int any(void *ctx) { return 0; }
SEC("fentry/second:of_module") int named(void *ctx) { return 0; }
SEC("fentry/first:of_module") int missing(void *ctx) { return 0; }
char _license[] SEC("license") = "GPL";
"#;

/// A kernel with two invented modules.
struct Made {
    btf: Vec<u8>,
    modules: Vec<(String, Vec<u8>)>,
}

impl Kernel for Made {
    fn btf(&self) -> Option<&[u8]> {
        Some(&self.btf)
    }

    fn modules(&self) -> &[(String, Vec<u8>)] {
        &self.modules
    }

    fn version(&self) -> u32 {
        0x6_1200
    }

    fn config(&self, _: &str) -> Option<String> {
        None
    }

    fn symbol(&self, _: &str) -> Option<u64> {
        None
    }
}

fn btf(types: &[u32], strings: &[u8]) -> Vec<u8> {
    let types: Vec<u8> = types.iter().flat_map(|word| word.to_le_bytes()).collect();
    beeline_btf::to_bytes(&types, strings)
}

fn info(kind: u8, count: u32) -> u32 {
    u32::from(kind) << 24 | count
}

/// `int` 1, `int (int)` 2, `of_kernel` 3; the first module has nothing but another `int` 4; the
/// second one `of_module` 4, `variable` 5 and `struct moved { int a, b; }` 6.
fn made() -> Made {
    let strings = b"\0int\0of_kernel\0";
    let of_kernel = [
        &[1, info(kind::INT, 0), 4, 1 << 24 | 32][..],
        &[0, info(kind::FUNC_PROTO, 1), 1, 0, 1],
        &[5, info(kind::FUNC, 1), 2],
    ];
    let base = strings.len() as u32;
    let of_second = [
        &[base, info(kind::FUNC, 1), 2][..],
        &[base + 10, info(kind::VAR, 0), 1, 1],
        &[base + 19, info(kind::STRUCT, 2), 8],
        &[base + 25, 1, 0, base + 27, 1, 32],
    ];
    let first = btf(&[base, info(kind::INT, 0), 4, 32], b"other\0");
    let second = btf(&of_second.concat(), b"of_module\0variable\0moved\0a\0b\0");
    Made {
        btf: btf(&of_kernel.concat(), strings),
        modules: vec![("first".into(), first), ("second".into(), second)],
    }
}

#[test]
fn functions_variables_fields_and_targets_of_modules() {
    let Some(object) = compiled("modules", SOURCE) else {
        return;
    };
    let kernel = made();
    assert!(Btf::parse(&kernel.btf).is_some());
    let object = Object::parse(&object, &kernel).expect("a good file");
    assert_eq!(object.modules, ["second"]);
    let program = |name: &str| {
        let found = object.programs.iter().find(|it| it.name == name);
        found.expect("it is in the file")
    };
    let calls = program("calls").insns.iter();
    let calls = calls.filter(|insn| insn.code == JMP | CALL && insn.src == PSEUDO_KFUNC_CALL);
    let calls: Vec<_> = calls.map(|insn| (insn.off, insn.imm)).collect();
    assert_eq!(calls, [(1, 4), (0, 3)]);
    let reads = program("reads").insns.windows(2);
    let mut reads = reads.filter(|it| it[0].code == LD_IMM64 && it[0].src == PSEUDO_BTF_ID);
    let read = reads.next().expect("its address");
    assert_eq!((read[0].imm, read[1].imm), (5, 1));
    let load = program("relocated").insns[0];
    assert_eq!(load.off, 0, "where the module has it");
    let target = |name| &program(name).target;
    let found = AttachTarget::InModule { module: 0, id: 4 };
    assert_eq!([target("any"), target("named")], [&found, &found]);
    assert!(matches!(target("missing"), AttachTarget::Missing(_)));
}
