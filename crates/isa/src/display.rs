//! Instructions as text, in the manner of the kernel verifier's log and `bpftool prog dump xlated`.

use core::fmt;

use crate::op::{Alu, Atomic, Cond, Imm64, Op, Operand, Size, Swap};
use crate::{Insn, opcode};

impl fmt::Display for Insn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.op() {
            Ok(op) => op.fmt(f),
            Err(_) => write!(
                f,
                "undefined (code {:#04x} dst {} src {} off {} imm {})",
                self.code, self.dst, self.src, self.off, self.imm
            ),
        }
    }
}

/// A whole program as text, one instruction a line: `4: (bf) r2 = r10`.
///
/// Shows both slots of 64-bit immediates.
#[derive(Debug, Clone, Copy)]
pub struct Listing<'a>(pub &'a [Insn]);

impl fmt::Display for Listing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut insns = self.0.iter().enumerate();
        while let Some((index, insn)) = insns.next() {
            write!(f, "{index}: ({:02x}) ", insn.code)?;
            match insn.op() {
                Ok(Op::Imm64 { kind, dst, low }) => {
                    let high = insns.next().map_or(0, |(_, second)| second.imm);
                    write_imm64(f, kind, dst, low, Some(high))?;
                }
                _ => insn.fmt(f)?,
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Alu { op, wide, dst, src } => {
                let r = prefix(wide);
                write!(f, "{r}{dst} {} {}", alu_sign(op), Source(src, wide))
            }
            Self::Move { wide, dst, src } => {
                write!(f, "{}{dst} = {}", prefix(wide), Source(src, wide))
            }
            Self::MoveSigned {
                wide,
                dst,
                src,
                from,
            } => {
                let r = prefix(wide);
                write!(f, "{r}{dst} = (s{}){r}{src}", bits(from))
            }
            Self::Neg { wide, dst } => write!(f, "{r}{dst} = -{r}{dst}", r = prefix(wide)),
            Self::Swap { swap, dst, size } => {
                let name = match swap {
                    Swap::Little => "le",
                    Swap::Big => "be",
                    Swap::Reverse => "bswap",
                };
                write!(f, "r{dst} = {name}{} r{dst}", bits(size))
            }
            Self::Load {
                size,
                signed,
                dst,
                src,
                off,
            } => {
                let sign = if signed { 's' } else { 'u' };
                write!(f, "r{dst} = *({sign}{} *)(r{src} {off:+})", bits(size))
            }
            Self::Store {
                size,
                dst,
                src,
                off,
            } => {
                write!(
                    f,
                    "*(u{} *)(r{dst} {off:+}) = {}",
                    bits(size),
                    Source(src, true)
                )
            }
            Self::Atomic {
                op,
                fetch,
                wide,
                dst,
                src,
                off,
            } => write_atomic(f, op, fetch, wide, [dst, src], off),
            Self::LoadAcquire {
                size,
                dst,
                src,
                off,
            } => {
                write!(
                    f,
                    "r{dst} = load_acquire((u{} *)(r{src} {off:+}))",
                    bits(size)
                )
            }
            Self::StoreRelease {
                size,
                dst,
                src,
                off,
            } => {
                write!(
                    f,
                    "store_release((u{} *)(r{dst} {off:+}), r{src})",
                    bits(size)
                )
            }
            Self::Imm64 { kind, dst, low } => write_imm64(f, kind, dst, low, None),
            Self::Jump { off } if i16::try_from(off).is_ok() => write!(f, "goto pc{off:+}"),
            Self::Jump { off } => write!(f, "gotol pc{off:+}"),
            Self::Branch {
                cond,
                wide,
                dst,
                src,
                off,
            } => {
                write!(f, "if {}{dst} {} ", prefix(wide), cond_sign(cond))?;
                match src {
                    Operand::Reg(src) => write!(f, "{}{src}", prefix(wide))?,
                    Operand::Imm(imm) => write!(f, "{imm:#x}")?,
                }
                write!(f, " goto pc{off:+}")
            }
            Self::MayGoto { off } => write!(f, "may_goto pc{off:+}"),
            Self::CallHelper { id } => match id.name() {
                Some(name) => write!(f, "call bpf_{name}#{}", id.0),
                None => write!(f, "call unknown#{}", id.0.cast_signed()),
            },
            Self::CallLocal { off } => write!(f, "call pc{off:+}"),
            Self::CallKernel { btf_id } => write!(f, "call kernel-function#{btf_id}"),
            Self::Poison {
                imm: opcode::POISON_CORE,
            } => f.write_str("call poison <failed CO-RE relocation>"),
            Self::Poison { imm: 0 } => f.write_str("call poison <missing kernel function>"),
            Self::Poison { imm } => write!(
                f,
                "call poison <missing extern #{}>",
                imm - opcode::POISON_EXTERN
            ),
            Self::Exit => f.write_str("exit"),
        }
    }
}

/// `r1`, `w1` or `-5`.
struct Source(Operand, bool);

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Operand::Reg(register) => write!(f, "{}{register}", prefix(self.1)),
            Operand::Imm(imm) => write!(f, "{imm}"),
        }
    }
}

fn prefix(wide: bool) -> char {
    if wide { 'r' } else { 'w' }
}

fn bits(size: Size) -> u32 {
    u32::from(size.bytes()) * 8
}

fn write_imm64(
    f: &mut fmt::Formatter<'_>,
    kind: Imm64,
    dst: u8,
    low: i32,
    high: Option<i32>,
) -> fmt::Result {
    write!(f, "r{dst} = ")?;
    let high_bits = high.unwrap_or(0).cast_unsigned();
    match kind {
        Imm64::Number => {
            write!(
                f,
                "{:#x}",
                u64::from(high_bits) << 32 | u64::from(low.cast_unsigned())
            )?;
            f.write_str(if high.is_none() { " ..." } else { "" })
        }
        Imm64::Map => write!(f, "map[fd:{low}]"),
        Imm64::MapValue => write!(f, "map[fd:{low}][0]+{high_bits}"),
        Imm64::KernelVariable => write!(f, "ksym#{low}"),
        Imm64::Function => write!(f, "subprog[{low:+}]"),
        Imm64::MapIndex => write!(f, "map[idx:{low}]"),
        Imm64::MapIndexValue => write!(f, "map[idx:{low}]+{high_bits}"),
    }
}

fn write_atomic(
    f: &mut fmt::Formatter<'_>,
    op: Atomic,
    fetch: bool,
    wide: bool,
    [dst, src]: [u8; 2],
    off: i16,
) -> fmt::Result {
    let (width, suffix) = if wide { (64, "64") } else { (32, "") };
    let (sign, name) = match op {
        Atomic::Add => ("+=", "fetch_add"),
        Atomic::Or => ("|=", "fetch_or"),
        Atomic::And => ("&=", "fetch_and"),
        Atomic::Xor => ("^=", "fetch_xor"),
        Atomic::Exchange => ("=", "xchg"),
        Atomic::CompareExchange => {
            return write!(
                f,
                "r0 = atomic{suffix}_cmpxchg((u{width} *)(r{dst} {off:+}), r0, r{src})"
            );
        }
    };
    if fetch {
        write!(
            f,
            "r{src} = atomic{suffix}_{name}((u{width} *)(r{dst} {off:+}), r{src})"
        )
    } else {
        write!(f, "lock *(u{width} *)(r{dst} {off:+}) {sign} r{src}")
    }
}

fn alu_sign(op: Alu) -> &'static str {
    match op {
        Alu::Add => "+=",
        Alu::Sub => "-=",
        Alu::Mul => "*=",
        Alu::Div => "/=",
        Alu::SignedDiv => "s/=",
        Alu::Mod => "%=",
        Alu::SignedMod => "s%=",
        Alu::Or => "|=",
        Alu::And => "&=",
        Alu::Xor => "^=",
        Alu::Lsh => "<<=",
        Alu::Rsh => ">>=",
        Alu::Arsh => "s>>=",
    }
}

fn cond_sign(cond: Cond) -> &'static str {
    match cond {
        Cond::Equal => "==",
        Cond::NotEqual => "!=",
        Cond::Greater => ">",
        Cond::GreaterEqual => ">=",
        Cond::Less => "<",
        Cond::LessEqual => "<=",
        Cond::SignedGreater => "s>",
        Cond::SignedGreaterEqual => "s>=",
        Cond::SignedLess => "s<",
        Cond::SignedLessEqual => "s<=",
        Cond::AnySet => "&",
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::string::ToString;

    use super::*;

    fn text(code: u8, dst: u8, src: u8, off: i16, imm: i32) -> std::string::String {
        Insn {
            code,
            dst,
            src,
            off,
            imm,
        }
        .to_string()
    }

    #[test]
    fn instructions_read_as_in_the_kernels_log() {
        assert_eq!(text(0xb7, 0, 0, 0, 0), "r0 = 0");
        assert_eq!(text(0x1c, 1, 2, 0, 0), "w1 -= w2");
        assert_eq!(text(0x9f, 1, 2, 1, 0), "r1 s%= r2");
        assert_eq!(text(0xbf, 1, 2, 16, 0), "r1 = (s16)r2");
        assert_eq!(text(0xdc, 3, 0, 0, 32), "r3 = be32 r3");
        assert_eq!(text(0x79, 1, 10, -8, 0), "r1 = *(u64 *)(r10 -8)");
        assert_eq!(text(0x72, 1, 0, 4, 7), "*(u8 *)(r1 +4) = 7");
        assert_eq!(text(0xdb, 1, 2, 0, 0), "lock *(u64 *)(r1 +0) += r2");
        assert_eq!(
            text(0xdb, 1, 2, 0, 1),
            "r2 = atomic64_fetch_add((u64 *)(r1 +0), r2)"
        );
        assert_eq!(
            text(0xc3, 1, 2, 0, 0xf1),
            "r0 = atomic_cmpxchg((u32 *)(r1 +0), r0, r2)"
        );
        assert_eq!(text(0x25, 1, 0, 2, 3), "if r1 > 0x3 goto pc+2");
        assert_eq!(text(0x6e, 1, 2, -2, 0), "if w1 s> w2 goto pc-2");
        assert_eq!(text(0x05, 0, 0, 2, 0), "goto pc+2");
        assert_eq!(text(0xe5, 0, 0, -5, 0), "may_goto pc-5");
        assert_eq!(text(0x85, 0, 0, 0, 14), "call bpf_get_current_pid_tgid#14");
        assert_eq!(text(0x85, 0, 0, 0, -1), "call unknown#-1");
        assert_eq!(text(0x85, 0, 1, 0, 5), "call pc+5");
        assert_eq!(text(0x95, 0, 0, 0, 0), "exit");
        assert_eq!(
            text(0xff, 1, 2, 3, 4),
            "undefined (code 0xff dst 1 src 2 off 3 imm 4)"
        );
    }

    #[test]
    fn a_listing_joins_the_two_slots_of_an_immediate() {
        let [first, second] = crate::imm64(1, 0, 0x1122_3344_5566_7788);
        let [map, offset] = crate::imm64(2, opcode::PSEUDO_MAP_VALUE, 16 << 32 | 5);
        let exit = Insn {
            code: 0x95,
            ..Insn::default()
        };
        let text = Listing(&[first, second, map, offset, exit]).to_string();
        assert_eq!(
            text,
            "0: (18) r1 = 0x1122334455667788\n2: (18) r2 = map[fd:5][0]+16\n4: (95) exit\n"
        );
    }
}
