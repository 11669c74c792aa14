//! Arithmetic: on numbers by [`Scalar`], on pointers here (`check_alu_op`,
//! `adjust_ptr_min_max_vals`).

use beeline_isa::{Alu, Op, Operand, Size};
use beeline_uapi::Errno;
use beeline_uapi::limits::BPF_MAX_VAR_OFF;
use beeline_uapi::verifier::{BPF_ADD_CONST, BPF_ADD_CONST32, BPF_ADD_CONST64};

use super::print::alu_name;
use super::state_text::type_name;
use super::{Check, Explorer, no};
use crate::scalar::Scalar;
use crate::state::{Flags, Reg, Type};

impl Explorer<'_> {
    pub(super) fn arithmetic(&mut self, op: Op) -> Check {
        match op {
            Op::Alu { op, wide, dst, src } => self.binary(op, wide, dst, src),
            Op::Neg { wide, dst } => {
                self.read_reg(dst)?;
                let old = *self.cur.reg(dst);
                let new = if old.is_scalar() {
                    Reg {
                        var: old.var.neg(wide),
                        id: 0,
                        off: 0,
                        ..old
                    }
                } else {
                    Reg::UNKNOWN
                };
                *self.cur.reg_mut(dst) = new;
                Ok(())
            }
            Op::Swap { swap, dst, size } => {
                self.read_reg(dst)?;
                let old = *self.cur.reg(dst);
                let new = if old.is_scalar() {
                    Reg {
                        var: old.var.swap(swap, size),
                        id: 0,
                        off: 0,
                        ..old
                    }
                } else {
                    Reg::UNKNOWN
                };
                *self.cur.reg_mut(dst) = new;
                Ok(())
            }
            Op::Move { wide, dst, src } => self.copy(wide, dst, src),
            Op::MoveSigned {
                wide,
                dst,
                src,
                from,
            } => self.copy_signed(wide, dst, src, from),
            _ => no(Errno::EINVAL, "no arithmetic"),
        }
    }

    fn copy(&mut self, wide: bool, dst: u8, src: Operand) -> Check {
        let src = match src {
            Operand::Imm(imm) => {
                let value = if wide {
                    i64::from(imm).cast_unsigned()
                } else {
                    imm.cast_unsigned().into()
                };
                *self.cur.reg_mut(dst) = Reg::known(value);
                return Ok(());
            }
            Operand::Reg(src) => src,
        };
        let uses_context = self.uses.uses_context;
        self.read_reg(src)?;
        if wide {
            // Only the use of the copy counts.
            self.uses.uses_context = uses_context;
        }
        let fits = self.cur.reg(src).var.wide.umax <= u32::MAX.into();
        if wide || fits {
            self.link(src);
        }
        let mut copy = *self.cur.reg(src);
        if !wide {
            if !copy.is_scalar() {
                copy = Reg::UNKNOWN;
            } else if !fits {
                copy.id = 0;
                copy.off = 0;
            }
            copy.var = copy.var.zero_extended();
        }
        *self.cur.reg_mut(dst) = copy;
        Ok(())
    }

    fn copy_signed(&mut self, wide: bool, dst: u8, src: u8, from: Size) -> Check {
        self.read_reg(src)?;
        let positive = 1 << (u32::from(from.bytes()) * 8 - 1);
        let keeps = self.cur.reg(src).var.wide.umax < positive;
        if keeps {
            self.link(src);
        }
        let mut copy = *self.cur.reg(src);
        if copy.is_scalar() {
            if !keeps {
                copy.id = 0;
                copy.off = 0;
            }
            copy.var = copy.var.sign_extended(from, wide);
        } else {
            copy = Reg::UNKNOWN;
            if !wide {
                copy.var = copy.var.zero_extended();
            }
        }
        *self.cur.reg_mut(dst) = copy;
        Ok(())
    }

    /// Gives a number that is about to be copied an id, so that facts learnt about one copy apply
    /// to all (`assign_scalar_id_before_mov`).
    pub(super) fn link(&mut self, number: u8) {
        let mut reg = *self.cur.reg(number);
        self.give_id(&mut reg);
        *self.cur.reg_mut(number) = reg;
    }

    pub(super) fn give_id(&mut self, reg: &mut Reg) {
        if !reg.is_scalar() {
            return;
        }
        if reg.id & BPF_ADD_CONST != 0 {
            reg.id = 0;
            reg.off = 0;
        }
        if reg.id == 0 && reg.var.constant().is_none() {
            reg.id = self.fresh_id();
        }
    }

    fn binary(&mut self, op: Alu, wide: bool, dst: u8, src: Operand) -> Check {
        if let Operand::Reg(src) = src {
            self.read_reg(src)?;
        }
        self.read_reg(dst)?;
        if let Operand::Imm(imm) = src {
            check_constant(op, wide, imm)?;
        }
        let left = *self.cur.reg(dst);
        if left.kind == Type::Arena {
            return Ok(());
        }
        let right = match src {
            Operand::Imm(imm) => Reg::known(i64::from(imm).cast_unsigned()),
            Operand::Reg(src) => *self.cur.reg(src),
        };
        match (left.is_pointer(), right.is_pointer(), src) {
            (true, true, _) => {
                if op == Alu::Sub {
                    *self.cur.reg_mut(dst) = Reg::UNKNOWN;
                    return Ok(());
                }
                no(
                    Errno::EACCES,
                    format!("R{dst} pointer {} pointer prohibited", alu_name(op)),
                )
            }
            (false, true, _) => {
                self.mark_precise(dst)?;
                self.move_pointer(op, wide, dst, right, left, true)
            }
            (true, false, Operand::Reg(src)) => {
                self.mark_precise(src)?;
                self.move_pointer(op, wide, dst, left, right, false)
            }
            (true, false, Operand::Imm(_)) => self.move_pointer(op, wide, dst, left, right, false),
            (false, false, _) => {
                if let (Operand::Reg(src), true) = (src, left.precise) {
                    self.mark_precise(src)?;
                }
                self.either_way(op, dst, src)?;
                let left = *self.cur.reg(dst);
                *self.cur.reg_mut(dst) = on_numbers(op, wide, left, right);
                Ok(())
            }
        }
    }

    /// Follows both cases of a number that is all ones or all zeros, and so selects
    /// (`maybe_fork_scalars`).
    fn either_way(&mut self, op: Alu, dst: u8, src: Operand) -> Check {
        if !matches!((op, src), (Alu::And | Alu::Or, Operand::Imm(_))) {
            return Ok(());
        }
        let Some([clear, set]) = self.cur.reg(dst).var.split() else {
            return Ok(());
        };
        let insn = self.insn;
        let other = self.put_off(insn)?;
        let reg = other.reg_mut(dst);
        *reg = Reg { var: clear, ..*reg };
        let reg = self.cur.reg_mut(dst);
        *reg = Reg { var: set, ..*reg };
        Ok(())
    }

    /// Computes `pointer op number`, or with `reversed` the other way round.
    fn move_pointer(
        &mut self,
        op: Alu,
        wide: bool,
        dst: u8,
        pointer: Reg,
        number: Reg,
        reversed: bool,
    ) -> Check {
        let by = number.var;
        let known = by.constant();
        let impossible = known.is_some()
            && (by.wide.smin != by.wide.smax || by.wide.umin != by.wide.umax)
            || by.wide.smin > by.wide.smax
            || by.wide.umin > by.wide.umax;
        if impossible {
            *self.cur.reg_mut(dst) = Reg::UNKNOWN;
            return Ok(());
        }
        if !wide {
            if op == Alu::Sub {
                *self.cur.reg_mut(dst) = Reg::UNKNOWN;
                return Ok(());
            }
            return no(
                Errno::EACCES,
                format!("R{dst} 32-bit pointer arithmetic prohibited"),
            );
        }
        let name = type_name(&pointer);
        if pointer.may_be_null() {
            return no(
                Errno::EACCES,
                format!("R{dst} pointer arithmetic on {name} prohibited, null-check it first"),
            );
        }
        if matches!(pointer.kind, Type::Mem(_)) && pointer.flags.has(Flags::UNTRUSTED) {
            return Ok(());
        }
        let may_move = match pointer.kind {
            Type::Context
            | Type::MapValue(_)
            | Type::MapKey(_)
            | Type::Stack(_)
            | Type::PacketMeta
            | Type::Packet
            | Type::TracepointBuffer
            | Type::Btf(_)
            | Type::Mem(_)
            | Type::Buffer
            | Type::Func(_)
            | Type::Dynptr(_) => true,
            Type::FlowKeys if known.is_some() => true,
            Type::FlowKeys | Type::Map(_) | Type::Socket(_) | Type::PacketEnd => {
                matches!(pointer.kind, Type::FlowKeys | Type::Map(_))
                    && known == Some(0)
                    && op == Alu::Add
            }
            _ => false,
        };
        if !may_move {
            return no(
                Errno::EACCES,
                format!("R{dst} pointer arithmetic on {name} prohibited"),
            );
        }
        self.check_sane(&number, name.as_str())?;
        self.check_sane(&pointer, name.as_str())?;
        let mut moved = Reg {
            precise: self.cur.reg(dst).precise,
            ..pointer
        };
        match op {
            Alu::Add => self.add_to(&mut moved, &pointer, &by),
            Alu::Sub => {
                if reversed {
                    return no(
                        Errno::EACCES,
                        format!("R{dst} tried to subtract pointer from scalar"),
                    );
                }
                if matches!(pointer.kind, Type::Stack(_)) {
                    return no(
                        Errno::EACCES,
                        format!("R{dst} subtraction from stack pointer prohibited"),
                    );
                }
                self.subtract_from(&mut moved, &pointer, &by);
            }
            Alu::And | Alu::Or | Alu::Xor => {
                return no(
                    Errno::EACCES,
                    format!(
                        "R{dst} bitwise operator {} on pointer prohibited",
                        alu_name(op)
                    ),
                );
            }
            _ => {
                return no(
                    Errno::EACCES,
                    format!(
                        "R{dst} pointer arithmetic with {} operator prohibited",
                        alu_name(op)
                    ),
                );
            }
        }
        self.check_sane(&moved, name.as_str())?;
        *self.cur.reg_mut(dst) = moved;
        Ok(())
    }

    fn add_to(&mut self, moved: &mut Reg, pointer: &Reg, by: &Scalar) {
        if let Some(off) = fixed(pointer.off, by, 1) {
            moved.off = off;
            return;
        }
        moved.var = pointer.var.moved(*by, false);
        if pointer.is_packet() {
            moved.id = self.fresh_id();
            moved.range = 0;
        }
    }

    fn subtract_from(&mut self, moved: &mut Reg, pointer: &Reg, by: &Scalar) {
        if let Some(off) = fixed(pointer.off, by, -1) {
            moved.off = off;
            return;
        }
        moved.var = pointer.var.moved(*by, true);
        if pointer.is_packet() {
            moved.id = self.fresh_id();
            if by.wide.smin < 0 {
                moved.range = 0;
            }
        }
    }

    /// Checks that offsets stay far from where they would wrap (`check_reg_sane_offset`).
    fn check_sane(&self, reg: &Reg, name: &str) -> Check {
        let outside = |value: i64| value >= BPF_MAX_VAR_OFF || value <= -BPF_MAX_VAR_OFF;
        let why = match reg.var.constant().map(u64::cast_signed) {
            Some(value) if outside(value) => {
                format!("math between {name} pointer and {value} is not allowed")
            }
            _ if outside(reg.off.into()) => {
                format!("{name} pointer offset {} is not allowed", reg.off)
            }
            _ if reg.var.wide.smin == i64::MIN => format!(
                "math between {name} pointer and register with unbounded min value is not allowed"
            ),
            _ if outside(reg.var.wide.smin) => format!(
                "value {} makes {name} pointer be out of bounds",
                reg.var.wide.smin
            ),
            _ => return Ok(()),
        };
        no(Errno::EINVAL, why)
    }
}

/// Returns the new fixed offset after adding a constant, if it can hold that.
fn fixed(off: i32, by: &Scalar, sign: i64) -> Option<i32> {
    let by = by.constant()?.cast_signed();
    let off = i64::from(off).wrapping_add(by.wrapping_mul(sign));
    i32::try_from(off).ok()
}

fn on_numbers(op: Alu, wide: bool, left: Reg, right: Reg) -> Reg {
    let mut result = Reg {
        var: left.var.alu(op, wide, right.var),
        ..left
    };
    if result.var.contradiction().is_some() {
        result.var.forget_bounds();
    }
    match linked_by(op, wide, &left, &right) {
        Some(off) => {
            result.id |= if wide {
                BPF_ADD_CONST64
            } else {
                BPF_ADD_CONST32
            };
            result.off = off;
        }
        None => {
            result.id = 0;
            result.off = 0;
        }
    }
    result
}

/// Returns the difference after an operation between a number and those that it was linked to, if
/// that can be recorded: once, and in 32 bits only if the number has no more bits.
fn linked_by(op: Alu, wide: bool, left: &Reg, right: &Reg) -> Option<i32> {
    if left.id == 0 || left.id & BPF_ADD_CONST != 0 {
        return None;
    }
    let by = if wide {
        i32::try_from(right.var.constant()?.cast_signed()).ok()?
    } else {
        right.var.constant32()?.cast_signed()
    };
    if !wide && left.var.wide.umax > u32::MAX.into() {
        return None;
    }
    match op {
        Alu::Add => Some(by),
        Alu::Sub => by.checked_neg(),
        _ => None,
    }
}

fn check_constant(op: Alu, wide: bool, imm: i32) -> Check {
    let width = if wide { 64 } else { 32 };
    match op {
        Alu::Div | Alu::Mod | Alu::SignedDiv | Alu::SignedMod if imm == 0 => {
            no(Errno::EINVAL, "div by zero")
        }
        Alu::Lsh | Alu::Rsh | Alu::Arsh if !(0..width).contains(&imm) => {
            no(Errno::EINVAL, format!("invalid shift {imm}"))
        }
        _ => Ok(()),
    }
}
