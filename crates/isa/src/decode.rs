//! Decodes the fields of an instruction to an operation. This is the only place that knows the
//! encoding.

use beeline_uapi::HelperId;

use crate::insn::Insn;
use crate::op::{Alu, Atomic, BadInsn, Cond, Imm64, Op, Operand, Size, Swap};
use crate::opcode::*;

impl Insn {
    /// Returns the operation of this instruction.
    ///
    /// The second slot of a 64-bit immediate is not an instruction of its own. The encoding is that
    /// of RFC 9669, with Linux's `may_goto`.
    ///
    /// # Errors
    /// The [`BadInsn`] that the eight bytes are.
    pub fn op(self) -> Result<Op, BadInsn> {
        let op = match self.code & CLASS_MASK {
            LD => self.op_ld(),
            LDX => self.op_ldx(),
            ST => self.op_st(),
            STX => self.op_stx(),
            ALU => self.op_alu(false),
            ALU64 => self.op_alu(true),
            JMP => self.op_jump(true),
            _ => self.op_jump(false),
        }?;
        self.check_registers(&op)?;
        Ok(op)
    }

    fn op_ld(self) -> Result<Op, BadInsn> {
        match self.code & MODE_MASK {
            ABS | IND if self.code & SIZE_MASK != DW => return Err(BadInsn::Packet),
            IMM if self.code == LD_IMM64 => {}
            _ => return Err(BadInsn::Opcode),
        }
        self.require(self.off == 0)?;
        let kind = match self.src {
            0 => Imm64::Number,
            PSEUDO_MAP_FD => Imm64::Map,
            PSEUDO_MAP_VALUE => Imm64::MapValue,
            PSEUDO_BTF_ID => Imm64::KernelVariable,
            PSEUDO_FUNC => Imm64::Function,
            PSEUDO_MAP_IDX => Imm64::MapIndex,
            PSEUDO_MAP_IDX_VALUE => Imm64::MapIndexValue,
            _ => return Err(BadInsn::Reserved),
        };
        Ok(Op::Imm64 {
            kind,
            dst: self.dst,
            low: self.imm,
        })
    }

    fn op_ldx(self) -> Result<Op, BadInsn> {
        let size = Size::of_code(self.code);
        let signed = match self.code & MODE_MASK {
            MEM => false,
            MEMSX if size != Size::B8 => true,
            _ => return Err(BadInsn::Opcode),
        };
        self.require(self.imm == 0)?;
        Ok(Op::Load {
            size,
            signed,
            dst: self.dst,
            src: self.src,
            off: self.off,
        })
    }

    fn op_st(self) -> Result<Op, BadInsn> {
        if self.code & MODE_MASK != MEM {
            return Err(BadInsn::Opcode);
        }
        self.require(self.src == 0)?;
        let size = Size::of_code(self.code);
        Ok(Op::Store {
            size,
            dst: self.dst,
            src: Operand::Imm(self.imm),
            off: self.off,
        })
    }

    fn op_stx(self) -> Result<Op, BadInsn> {
        let Self { dst, src, off, .. } = self;
        let size = Size::of_code(self.code);
        match self.code & MODE_MASK {
            MEM => {
                self.require(self.imm == 0)?;
                Ok(Op::Store {
                    size,
                    dst,
                    src: Operand::Reg(src),
                    off,
                })
            }
            ATOMIC => self.op_atomic(size),
            _ => Err(BadInsn::Opcode),
        }
    }

    fn op_atomic(self, size: Size) -> Result<Op, BadInsn> {
        let Self {
            dst, src, off, imm, ..
        } = self;
        match imm {
            LOAD_ACQ => {
                return Ok(Op::LoadAcquire {
                    size,
                    dst,
                    src,
                    off,
                });
            }
            STORE_REL => {
                return Ok(Op::StoreRelease {
                    size,
                    dst,
                    src,
                    off,
                });
            }
            _ => {}
        }
        let wide = match size {
            Size::B8 => true,
            Size::B4 => false,
            Size::B1 | Size::B2 => return Err(BadInsn::Reserved),
        };
        let op = match imm {
            XCHG => Atomic::Exchange,
            CMPXCHG => Atomic::CompareExchange,
            _ => match imm & !FETCH {
                imm if imm == i32::from(ADD) => Atomic::Add,
                imm if imm == i32::from(OR) => Atomic::Or,
                imm if imm == i32::from(AND) => Atomic::And,
                imm if imm == i32::from(XOR) => Atomic::Xor,
                _ => return Err(BadInsn::Reserved),
            },
        };
        Ok(Op::Atomic {
            op,
            fetch: imm & FETCH != 0,
            wide,
            dst,
            src,
            off,
        })
    }

    fn op_alu(self, wide: bool) -> Result<Op, BadInsn> {
        let Self { dst, off, .. } = self;
        let alu = match (self.code & OP_MASK, off) {
            (NEG, _) => {
                if self.code & SOURCE_MASK != K {
                    return Err(BadInsn::Opcode);
                }
                self.require(self.src == 0 && off == 0 && self.imm == 0)?;
                return Ok(Op::Neg { wide, dst });
            }
            (END, _) => return self.op_swap(wide),
            (MOV, _) => return self.op_move(wide),
            (DIV, 1) => Alu::SignedDiv,
            (MOD, 1) => Alu::SignedMod,
            (ADD, 0) => Alu::Add,
            (SUB, 0) => Alu::Sub,
            (MUL, 0) => Alu::Mul,
            (DIV, 0) => Alu::Div,
            (MOD, 0) => Alu::Mod,
            (OR, 0) => Alu::Or,
            (AND, 0) => Alu::And,
            (XOR, 0) => Alu::Xor,
            (LSH, 0) => Alu::Lsh,
            (RSH, 0) => Alu::Rsh,
            (ARSH, 0) => Alu::Arsh,
            (..=ARSH, _) => return Err(BadInsn::Reserved),
            _ => return Err(BadInsn::Opcode),
        };
        Ok(Op::Alu {
            op: alu,
            wide,
            dst,
            src: self.operand()?,
        })
    }

    fn op_swap(self, wide: bool) -> Result<Op, BadInsn> {
        let swap = match (wide, self.code & SOURCE_MASK) {
            (false, K) => Swap::Little,
            (false, _) => Swap::Big,
            (true, K) => Swap::Reverse,
            (true, _) => return Err(BadInsn::Opcode),
        };
        self.require(self.src == 0 && self.off == 0)?;
        match Size::of_bits(self.imm) {
            Some(size) if size != Size::B1 => Ok(Op::Swap {
                swap,
                dst: self.dst,
                size,
            }),
            _ => Err(BadInsn::Reserved),
        }
    }

    fn op_move(self, wide: bool) -> Result<Op, BadInsn> {
        let src = self.operand()?;
        match (src, Size::of_bits(self.off.into())) {
            _ if self.off == 0 => Ok(Op::Move {
                wide,
                dst: self.dst,
                src,
            }),
            (Operand::Reg(src), Some(from)) if from < Size::B4 || (from == Size::B4 && wide) => {
                Ok(Op::MoveSigned {
                    wide,
                    dst: self.dst,
                    src,
                    from,
                })
            }
            _ => Err(BadInsn::Reserved),
        }
    }

    fn op_jump(self, wide: bool) -> Result<Op, BadInsn> {
        let Self { dst, off, .. } = self;
        let register_source = self.code & SOURCE_MASK != K;
        let cond = match self.code & OP_MASK {
            JA if register_source => return Err(BadInsn::Opcode),
            JA => {
                self.require(
                    dst == 0 && self.src == 0 && (if wide { self.imm == 0 } else { off == 0 }),
                )?;
                return Ok(Op::Jump {
                    off: if wide { off.into() } else { self.imm },
                });
            }
            CALL | EXIT if !wide || register_source => return Err(BadInsn::Opcode),
            CALL => return self.op_call(),
            EXIT => {
                // The kernel lets the offset be anything.
                self.require(dst == 0 && self.src == 0 && self.imm == 0)?;
                return Ok(Op::Exit);
            }
            JCOND if wide && !register_source => {
                if dst != 0 || self.src != 0 || self.imm != 0 {
                    return Err(BadInsn::MayGoto);
                }
                return Ok(Op::MayGoto { off });
            }
            JEQ => Cond::Equal,
            JNE => Cond::NotEqual,
            JGT => Cond::Greater,
            JGE => Cond::GreaterEqual,
            JLT => Cond::Less,
            JLE => Cond::LessEqual,
            JSGT => Cond::SignedGreater,
            JSGE => Cond::SignedGreaterEqual,
            JSLT => Cond::SignedLess,
            JSLE => Cond::SignedLessEqual,
            JSET => Cond::AnySet,
            _ => return Err(BadInsn::Opcode),
        };
        Ok(Op::Branch {
            cond,
            wide,
            dst,
            src: self.operand()?,
            off,
        })
    }

    fn op_call(self) -> Result<Op, BadInsn> {
        let Self { imm, .. } = self;
        self.require(self.dst == 0)?;
        match self.src {
            HELPER_CALL | PSEUDO_CALL => self.require(self.off == 0)?,
            // A weak function that is missing: the kernel accepts it in dead code.
            PSEUDO_KFUNC_CALL if imm == 0 && self.off == 0 => return Ok(Op::Poison { imm }),
            PSEUDO_KFUNC_CALL => return Ok(Op::CallKernel { btf_id: imm }),
            _ => return Err(BadInsn::Reserved),
        }
        Ok(match imm {
            _ if self.src == PSEUDO_CALL => Op::CallLocal { off: imm },
            POISON_CORE | POISON_EXTERN.. => Op::Poison { imm },
            _ => Op::CallHelper {
                id: HelperId(imm as u32),
            },
        })
    }

    /// Returns the second operand of arithmetic and branches; the field of the other kind must be
    /// 0.
    fn operand(self) -> Result<Operand, BadInsn> {
        if self.code & SOURCE_MASK == X {
            self.require(self.imm == 0)?;
            Ok(Operand::Reg(self.src))
        } else {
            self.require(self.src == 0)?;
            Ok(Operand::Imm(self.imm))
        }
    }

    fn require(self, holds: bool) -> Result<(), BadInsn> {
        if holds {
            Ok(())
        } else {
            Err(BadInsn::Reserved)
        }
    }

    fn check_registers(self, op: &Op) -> Result<(), BadInsn> {
        // In these `src` is no register; `dst` is one, or 0.
        let src = if matches!(
            op,
            Op::Imm64 { .. } | Op::CallLocal { .. } | Op::CallKernel { .. } | Op::Poison { .. }
        ) {
            0
        } else {
            self.src
        };
        for register in [self.dst, src] {
            if register >= crate::REGISTERS {
                return Err(BadInsn::Register(register));
            }
        }
        if op.written() == Some(crate::FRAME_POINTER) {
            Err(BadInsn::FramePointer)
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn insn(code: u8, dst: u8, src: u8, off: i16, imm: i32) -> Insn {
        Insn {
            code,
            dst,
            src,
            off,
            imm,
        }
    }

    #[test]
    fn one_of_each_kind() {
        let (dst, src, off) = (1, 2, -8);
        let reg = Operand::Reg(2);
        let expected = [
            (
                insn(0x0f, 1, 2, 0, 0),
                Op::Alu {
                    op: Alu::Add,
                    wide: true,
                    dst,
                    src: reg,
                },
            ),
            (
                insn(0x34, 1, 0, 1, 7),
                Op::Alu {
                    op: Alu::SignedDiv,
                    wide: false,
                    dst,
                    src: Operand::Imm(7),
                },
            ),
            (
                insn(0xb7, 1, 0, 0, -1),
                Op::Move {
                    wide: true,
                    dst,
                    src: Operand::Imm(-1),
                },
            ),
            (
                insn(0xbf, 1, 2, 32, 0),
                Op::MoveSigned {
                    wide: true,
                    dst,
                    src,
                    from: Size::B4,
                },
            ),
            (insn(0x84, 1, 0, 0, 0), Op::Neg { wide: false, dst }),
            (
                insn(0xdc, 1, 0, 0, 16),
                Op::Swap {
                    swap: Swap::Big,
                    dst,
                    size: Size::B2,
                },
            ),
            (
                insn(0xd7, 1, 0, 0, 64),
                Op::Swap {
                    swap: Swap::Reverse,
                    dst,
                    size: Size::B8,
                },
            ),
            (
                insn(0x91, 1, 2, -8, 0),
                Op::Load {
                    size: Size::B1,
                    signed: true,
                    dst,
                    src,
                    off,
                },
            ),
            (
                insn(0x62, 1, 0, -8, 5),
                Op::Store {
                    size: Size::B4,
                    dst,
                    src: Operand::Imm(5),
                    off,
                },
            ),
            (
                insn(0xdb, 1, 2, -8, 0xf1),
                Op::Atomic {
                    op: Atomic::CompareExchange,
                    fetch: true,
                    wide: true,
                    dst,
                    src,
                    off,
                },
            ),
            (
                insn(0xc3, 1, 2, -8, 0x40),
                Op::Atomic {
                    op: Atomic::Or,
                    fetch: false,
                    wide: false,
                    dst,
                    src,
                    off,
                },
            ),
            (
                insn(0xd3, 1, 2, -8, 0x100),
                Op::LoadAcquire {
                    size: Size::B1,
                    dst,
                    src,
                    off,
                },
            ),
            (
                insn(0x18, 1, 1, 0, 9),
                Op::Imm64 {
                    kind: Imm64::Map,
                    dst,
                    low: 9,
                },
            ),
            (insn(0x06, 0, 0, 0, 70_000), Op::Jump { off: 70_000 }),
            (
                insn(0xce, 1, 2, -8, 0),
                Op::Branch {
                    cond: Cond::SignedLess,
                    wide: false,
                    dst,
                    src: reg,
                    off,
                },
            ),
            (insn(0xe5, 0, 0, -3, 0), Op::MayGoto { off: -3 }),
            (
                insn(0x85, 0, 0, 0, 14),
                Op::CallHelper {
                    id: HelperId::GET_CURRENT_PID_TGID,
                },
            ),
            (insn(0x85, 0, 1, 0, -3), Op::CallLocal { off: -3 }),
            (
                insn(0x85, 0, 0, 0, 2_001_000_003),
                Op::Poison { imm: 2_001_000_003 },
            ),
            (insn(0x85, 0, 2, 0, 7), Op::CallKernel { btf_id: 7 }),
            (insn(0x85, 0, 2, 0, 0), Op::Poison { imm: 0 }),
            (insn(0x95, 0, 0, 0, 0), Op::Exit),
        ];
        for (insn, op) in expected {
            assert_eq!(insn.op(), Ok(op), "{insn:?}");
        }
    }

    #[test]
    fn undefined_encodings_are_refused() {
        let refused = [
            (insn(0x8d, 0, 1, 0, 0), BadInsn::Opcode),
            (insn(0x00, 0, 0, 0, 0), BadInsn::Opcode),
            (insn(0x99, 1, 2, 0, 0), BadInsn::Opcode),
            (insn(0x0f, 1, 2, 0, 1), BadInsn::Reserved),
            (insn(0xbc, 1, 2, 32, 0), BadInsn::Reserved),
            (insn(0xcb, 1, 2, 0, 0), BadInsn::Reserved),
            (insn(0xdb, 1, 2, 0, 0x10), BadInsn::Reserved),
            (insn(0x95, 0, 0, 0, 1), BadInsn::Reserved),
            (insn(0xbf, 1, 11, 0, 0), BadInsn::Register(11)),
            (insn(0xb7, 10, 0, 0, 0), BadInsn::FramePointer),
            (insn(0xdb, 1, 10, -8, 1), BadInsn::FramePointer),
            (insn(0x20, 0, 0, 0, 0), BadInsn::Packet),
            (insn(0xe5, 0, 0, 3, 1), BadInsn::MayGoto),
            (insn(0xe5, 1, 0, 3, 0), BadInsn::MayGoto),
            (insn(0xed, 0, 0, 3, 0), BadInsn::Opcode),
        ];
        for (insn, bad) in refused {
            assert_eq!(insn.op(), Err(bad), "{insn:?}");
        }
    }

    #[test]
    fn every_register_of_an_operation_exists() {
        for code in 0..=u8::MAX {
            for registers in 0..=u8::MAX {
                for (off, imm) in [
                    (0, 0),
                    (1, 0),
                    (8, 0),
                    (0, 16),
                    (0, 0xe1),
                    (0, 0xf1),
                    (0, 0x100),
                ] {
                    let Ok(op) = insn(code, registers & 15, registers >> 4, off, imm).op() else {
                        continue;
                    };
                    assert!(op.read().all(|register| register <= 10), "{op:?}");
                    assert!(op.written().is_none_or(|register| register < 10), "{op:?}");
                }
            }
        }
    }
}
