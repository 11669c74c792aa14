//! Tests that each form, with many registers and constants, equals the output of GNU as for its
//! text.

use std::fmt::Write as _;
use std::fs;
use std::process::Command;

use super::*;

const AS: &str = "aarch64-linux-gnu-as";
const OBJCOPY: &str = "aarch64-linux-gnu-objcopy";

/// Code, and its text.
struct Both {
    asm: Assembler,
    text: String,
}

impl Both {
    fn new() -> Self {
        Self {
            asm: Assembler::new(false),
            text: String::new(),
        }
    }

    fn line(&mut self, text: &str) {
        writeln!(self.text, "{text}").expect("memory");
    }

    /// Compares; does nothing if there is no assembler.
    fn check(self) {
        let directory = tempfile::tempdir().expect("a directory");
        let [source, object, binary] = ["s", "o", "bin"].map(|name| directory.path().join(name));
        fs::write(&source, &self.text).expect("a file");
        let Ok(assembled) = Command::new(AS).arg("-o").args([&object, &source]).output() else {
            return eprintln!("skipped: no {AS}");
        };
        let errors = String::from_utf8_lossy(&assembled.stderr);
        assert!(assembled.status.success(), "{errors}");
        let copied = Command::new(OBJCOPY)
            .args(["-O", "binary", "-j", ".text"])
            .args([&object, &binary])
            .status()
            .expect("objcopy is where as is");
        assert!(copied.success());
        let expected = fs::read(&binary).expect("a file");
        let found = self.asm.finish().expect("all labels are near");
        let instructions = self.text.lines().filter(|line| !line.ends_with(':'));
        for ((line, expected), found) in instructions.zip(expected.chunks(4)).zip(found.chunks(4)) {
            assert_eq!(found, expected, "{line}");
        }
        assert_eq!(found.len(), expected.len());
    }
}

fn reg(wide: bool, reg: Reg) -> String {
    let letter = if wide { 'x' } else { 'w' };
    match reg {
        ZR => format!("{letter}zr"),
        Reg(number) => format!("{letter}{number}"),
    }
}

fn base(reg: Reg) -> String {
    match reg {
        SP => "sp".to_owned(),
        Reg(number) => format!("x{number}"),
    }
}

/// Returns some sets of three registers that differ in every bit.
fn registers() -> [[Reg; 3]; 4] {
    [[0, 1, 2], [21, 10, 5], [10, 21, 26], [31, 31, 31]].map(|three| three.map(Reg::x))
}

#[test]
fn operations_on_registers() {
    let mut both = Both::new();
    let operations = [
        (Three::Add, "add"),
        (Three::Sub, "sub"),
        (Three::Subs, "subs"),
        (Three::And, "and"),
        (Three::Orr, "orr"),
        (Three::Eor, "eor"),
        (Three::Ands, "ands"),
        (Three::Mul, "mul"),
        (Three::Udiv, "udiv"),
        (Three::Sdiv, "sdiv"),
        (Three::Lsl, "lsl"),
        (Three::Lsr, "lsr"),
        (Three::Asr, "asr"),
    ];
    for wide in [false, true] {
        for [d, n, m] in registers() {
            let [rd, rn, rm] = [d, n, m].map(|one| reg(wide, one));
            for (op, name) in operations {
                both.asm.three(op, wide, d, n, m);
                both.line(&format!("{name} {rd}, {rn}, {rm}"));
            }
            both.asm.msub(wide, d, n, m, Reg::x(13));
            both.line(&format!("msub {rd}, {rn}, {rm}, {}", reg(wide, Reg::x(13))));
            both.asm.mov(wide, d, m);
            both.line(&format!("mov {rd}, {rm}"));
            for (from, last) in [(0, 7), (0, 15), (0, 31), (5, 31), (9, 8), (31, 30)] {
                both.asm.ubfm(wide, d, n, from, last);
                both.line(&format!("ubfm {rd}, {rn}, {from}, {last}"));
                both.asm.sbfm(wide, d, n, from, last);
                both.line(&format!("sbfm {rd}, {rn}, {from}, {last}"));
            }
        }
    }
    for [d, n, m] in registers() {
        let [rd, rn, rm] = [d, n, m].map(|one| reg(true, one));
        both.asm.madd(d, n, m, Reg::x(13));
        both.line(&format!("madd {rd}, {rn}, {rm}, x13"));
        both.asm.three_shifted(Three::Add, d, n, m, 33);
        both.line(&format!("add {rd}, {rn}, {rm}, lsl 33"));
        both.asm.csel(d, n, m, Condition::Lo);
        both.line(&format!("csel {rd}, {rn}, {rm}, lo"));
        for (op, name, wide) in [
            (Reverse::Rev16, "rev16", false),
            (Reverse::Rev32, "rev", false),
            (Reverse::Rev64, "rev", true),
        ] {
            both.asm.reverse(op, d, n);
            both.line(&format!("{name} {}, {}", reg(wide, d), reg(wide, n)));
        }
    }
    both.check();
}

#[test]
fn constants_are_encoded_as_the_assembler_does() {
    let mut both = Both::new();
    for wide in [false, true] {
        for [d, n, _] in &registers()[..3] {
            let [rd, rn] = [d, n].map(|&one| reg(wide, one));
            for (imm, shifted) in [
                (0, false),
                (1, false),
                (4095, false),
                (7, true),
                (4095, true),
            ] {
                for (op, name) in [
                    (Sum::Add, "add"),
                    (Sum::Adds, "adds"),
                    (Sum::Sub, "sub"),
                    (Sum::Subs, "subs"),
                ] {
                    both.asm.sum(op, wide, *d, *n, imm, shifted);
                    let shift = if shifted { ", lsl 12" } else { "" };
                    both.line(&format!("{name} {rd}, {rn}, {imm}{shift}"));
                }
            }
        }
    }
    both.asm.sum(Sum::Sub, true, SP, SP, 48, false);
    both.line("sub sp, sp, 48");
    both.asm.sum(Sum::Add, true, FP, SP, 0, false);
    both.line("mov x29, sp");
    both.asm.sum(Sum::Subs, true, ZR, Reg::x(3), 9, false);
    both.line("cmp x3, 9");
    for (op, name) in [
        (Part::Movn, "movn"),
        (Part::Movz, "movz"),
        (Part::Movk, "movk"),
    ] {
        for (imm, part) in [(0, 0), (1, 1), (0x8001, 2), (0xffff, 3)] {
            both.asm.part(op, Reg::x(21), imm, part);
            both.line(&format!("{name} x21, {imm}, lsl {}", part * 16));
        }
    }
    both.check();
}

/// Finds every constant that a bitwise instruction can have, and only those.
#[test]
fn exactly_the_bitwise_constants_are_found() {
    let mut both = Both::new();
    let mut all = std::collections::BTreeSet::new();
    for element in [2, 4, 8, 16, 32, 64_u32] {
        for ones in 1..element {
            for rotation in 0..element {
                let run = u64::MAX >> (64 - ones);
                let mask = u64::MAX >> (64 - element);
                let turned = (run >> rotation | run << ((element - rotation) % element)) & mask;
                let copies = (0..64 / element).fold(0, |all, at| all | turned << (at * element));
                all.insert(copies);
            }
        }
    }
    assert_eq!(all.len(), 5334, "as the architecture has it");
    let operations = [
        (Logic::And, "and"),
        (Logic::Orr, "orr"),
        (Logic::Eor, "eor"),
        (Logic::Ands, "ands"),
    ];
    for (&value, (op, name)) in all.iter().zip(operations.into_iter().cycle()) {
        let [d, n] = [9, 22].map(Reg::x);
        assert!(both.asm.logic(op, true, d, n, value), "{value:#x}");
        both.line(&format!("{name} x9, x22, {value:#x}"));
        if value >> 32 == value & 0xffff_ffff {
            let low = value & 0xffff_ffff;
            assert!(both.asm.logic(op, false, d, n, low), "{low:#x}");
            both.line(&format!("{name} w9, w22, {low:#x}"));
        }
        for other in [value ^ 1 << 40, value ^ 1 << 63, value.wrapping_add(4)] {
            assert_eq!(bit_mask(other, true).is_some(), all.contains(&other));
        }
    }
    for wide in [false, true] {
        assert_eq!([0, u64::MAX].map(|one| bit_mask(one, wide)), [None; 2]);
    }
    both.check();
}

#[test]
fn loads_and_stores_are_encoded_as_the_assembler_does() {
    let mut both = Both::new();
    for [t, n, m] in registers() {
        let m = if m == ZR { Reg::x(9) } else { m };
        for size in 0..4 {
            let suffix = ["b", "h", "", ""][size as usize];
            let rt = reg(size == 3, t);
            for (op, name) in [(Access::Store, "str"), (Access::Load, "ldr")] {
                access(&mut both, op, &format!("{name}{suffix} {rt}"), size, t, n);
                both.asm.access_indexed(op, size, t, n, m);
                both.line(&format!("{name}{suffix} {rt}, [{}, {}]", base(n), base(m)));
            }
            if size != 3 {
                let text = format!("ldrs{} {}", ["b", "h", "w"][size as usize], reg(true, t));
                access(&mut both, Access::LoadSigned, &text, size, t, n);
            }
            for (op, name) in [
                (Ordered::Ldxr, "ldxr"),
                (Ordered::Ldar, "ldar"),
                (Ordered::Stlr, "stlr"),
            ] {
                both.asm.ordered(op, size, t, n);
                both.line(&format!("{name}{suffix} {rt}, [{}]", base(n)));
            }
            for (release, name) in [(false, "stxr"), (true, "stlxr")] {
                both.asm.stxr(release, size, m, t, n);
                let status = reg(false, m);
                both.line(&format!("{name}{suffix} {status}, {rt}, [{}]", base(n)));
            }
        }
    }
    both.asm.barrier();
    both.line("dmb ish");
    let [t, u, n] = [19, 22, 10].map(Reg::x);
    for off in [0, 8, -8, 504, -512] {
        for (op, text) in [
            (Pair::Stp, format!("stp x19, x22, [x10, {off}]")),
            (Pair::Ldp, format!("ldp x19, x22, [x10, {off}]")),
            (Pair::StpBefore, format!("stp x19, x22, [x10, {off}]!")),
            (Pair::LdpAfter, format!("ldp x19, x22, [x10], {off}")),
        ] {
            both.asm.pair(op, [t, u], n, off);
            both.line(&text);
        }
    }
    both.asm.word_access(Access::Load, t, SP, 32_760);
    both.line("ldr x19, [sp, 32760]");
    both.check();
}

/// Tries all offsets around the limits; those that have no instruction are refused.
fn access(both: &mut Both, op: Access, text: &str, size: u32, t: Reg, n: Reg) {
    let limit = 4096 << size;
    let near = [-257, -256, -255, -1, 0, 1, 4, 8, 255, 256, 257, 264];
    for off in near.into_iter().chain([limit - (1 << size), limit]) {
        let aligned = off >= 0 && off % (1 << size) == 0 && off < limit;
        let possible = aligned || (-256..256).contains(&off);
        assert_eq!(both.asm.access(op, size, t, n, off), possible);
        if possible {
            both.line(&format!("{text}, [{}, {off}]", base(n)));
        }
    }
}

#[test]
fn jumps_and_addresses() {
    let mut both = Both::new();
    let [back, ahead] = [both.asm.label(), both.asm.label()];
    both.asm.bind(back);
    both.line("back:");
    for (label, name) in [(back, "back"), (ahead, "ahead")] {
        both.asm.b(label);
        both.line(&format!("b {name}"));
        both.asm.bl(label);
        both.line(&format!("bl {name}"));
        both.asm.entry_address(Reg::x(21), label);
        both.line(&format!("adr x21, {name}"));
        for wide in [false, true] {
            both.asm.cbz(wide, Reg::x(7), label);
            both.line(&format!("cbz {}, {name}", reg(wide, Reg::x(7))));
            both.asm.cbnz(wide, Reg::x(20), label);
            both.line(&format!("cbnz {}, {name}", reg(wide, Reg::x(20))));
        }
        for (condition, suffix) in [
            (Condition::Eq, "eq"),
            (Condition::Ne, "ne"),
            (Condition::Hs, "hs"),
            (Condition::Lo, "lo"),
            (Condition::Mi, "mi"),
            (Condition::Hi, "hi"),
            (Condition::Ls, "ls"),
            (Condition::Ge, "ge"),
            (Condition::Lt, "lt"),
            (Condition::Gt, "gt"),
            (Condition::Le, "le"),
        ] {
            both.asm.b_if(condition, label);
            both.line(&format!("b.{suffix} {name}"));
        }
    }
    both.asm.bind(ahead);
    both.line("ahead:");
    both.asm.indirect(Indirect::Br, Reg::x(10));
    both.line("br x10");
    both.asm.indirect(Indirect::Blr, Reg::x(21));
    both.line("blr x21");
    both.asm.ret();
    both.line("ret");
    both.check();
}

#[test]
fn far_branches_lead_over_a_jump() {
    let mut both = Both {
        asm: Assembler::new(true),
        text: String::new(),
    };
    let here = both.asm.label();
    both.asm.bind(here);
    both.line("here:");
    both.asm.cbz(true, Reg::x(7), here);
    both.line("cbnz x7, .+8\nb here");
    both.asm.cbnz(false, Reg::x(7), here);
    both.line("cbz w7, .+8\nb here");
    both.asm.b_if(Condition::Hi, here);
    both.line("b.ls .+8\nb here");
    both.asm.entry_address(Reg::x(3), here);
    both.line("adr x3, .+8\nb .+8\nb here");
    both.check();
}

#[test]
fn unreachable_and_unbound_labels_are_errors() {
    let mut asm = Assembler::new(false);
    let nowhere = asm.label();
    asm.b(nowhere);
    assert_eq!(asm.finish(), Err(TooFar));
    for (words, result) in [(1 << 18, Err(TooFar)), ((1 << 18) - 1, Ok(()))] {
        let mut asm = Assembler::new(false);
        let end = asm.label();
        asm.cbz(true, ZR, end);
        for _ in 1..words {
            asm.barrier();
        }
        asm.bind(end);
        assert_eq!(asm.finish().map(|_| ()), result);
    }
}
