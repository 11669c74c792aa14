//! The stack, byte by byte (`check_stack_read`, `check_stack_write`,
//! `check_stack_range_initialized`).

use beeline_isa::STACK_BYTES;
use beeline_uapi::Errno;
use beeline_uapi::limits::BPF_MAX_VAR_OFF;
use beeline_uapi::verifier::BPF_REG_SIZE;

use super::memory::Access;
use super::{Check, Explorer, no};
use crate::state::{Byte, Object, Reg, Slot, Type, place};

/// `MAX_BPF_STACK`.
pub(super) const MOST_STACK: i64 = STACK_BYTES as i64;

/// Memory on the stack that is passed to a helper.
#[derive(Debug, Clone, Copy)]
pub(super) struct Range {
    /// The register that points there.
    pub base: u8,
    pub off: i32,
    pub size: i32,
    pub zero_allowed: bool,
    /// True if the helper writes there.
    pub write: bool,
    /// True if it need not be initialised, and is afterwards.
    pub raw: bool,
}

impl Explorer<'_> {
    /// Returns the frame that a stack pointer points into.
    pub(super) fn frame_of(reg: &Reg) -> usize {
        match reg.kind {
            Type::Stack(frame) => frame.into(),
            _ => 0,
        }
    }

    /// Implements `check_stack_access_within_bounds`; makes room for the accessed bytes.
    pub(super) fn check_stack_bounds(
        &mut self,
        number: u8,
        off: i32,
        size: i32,
        verb: &str,
    ) -> Check {
        let reg = *self.cur.reg(number);
        let off = i64::from(off);
        let (first, end) = match reg.var.constant() {
            Some(variable) => {
                let first = variable.cast_signed().wrapping_add(off);
                (first, first.wrapping_add(size.into()))
            }
            None if reg.var.wide.smax >= BPF_MAX_VAR_OFF
                || reg.var.wide.smin <= -BPF_MAX_VAR_OFF =>
            {
                return no(
                    Errno::EACCES,
                    format!("invalid unbounded variable-offset{verb} stack R{number}"),
                );
            }
            None => (
                reg.var.wide.smin + off,
                reg.var.wide.smax + off + i64::from(size),
            ),
        };
        let inside = (-MOST_STACK..0).contains(&first) && end <= 0 && size >= 0;
        if !inside {
            let why = match reg.var.constant() {
                Some(_) => format!("invalid{verb} stack R{number} off={first} size={size}"),
                None => format!(
                    "invalid variable-offset{verb} stack R{number} var_off={} off={off} size={size}",
                    reg.var.bits
                ),
            };
            let begins_inside = (-MOST_STACK..0).contains(&first);
            return no(
                if begins_inside {
                    Errno::EINVAL
                } else {
                    Errno::EACCES
                },
                why,
            );
        }
        let frame = Self::frame_of(&reg);
        let function = self.cur.frames[frame].function;
        let depth = &mut self.stack_bytes[function];
        *depth = (*depth).max((first.unsigned_abs() as u32).next_multiple_of(BPF_REG_SIZE as u32));
        self.cur.frames[frame].grow(first as i32);
        Ok(())
    }

    /// Does a load and sets its register.
    pub(super) fn read_stack(&mut self, reg: &Reg, access: Access, at: i32) -> Check {
        let frame = Self::frame_of(reg);
        match (reg.var.constant(), access.value) {
            (Some(variable), _) => {
                let at = at.wrapping_add(variable.cast_signed() as i32);
                self.read_fixed(frame, at, access)
            }
            (None, Some(number)) => {
                self.check_stack_range(Range {
                    base: access.base,
                    off: at,
                    size: access.size,
                    zero_allowed: false,
                    write: false,
                    raw: false,
                })?;
                let first = i64::from(at) + reg.var.wide.smin;
                let end = i64::from(at) + reg.var.wide.smax + i64::from(access.size);
                let loaded = self.loaded_bytes(frame, first as i32, end as i32);
                *self.cur.reg_mut(number) = loaded;
                Ok(())
            }
            (None, None) => no(
                Errno::EACCES,
                format!(
                    "variable offset stack pointer cannot be passed into helper function; var_off={} off={at} size={}",
                    reg.var.bits, access.size
                ),
            ),
        }
    }

    fn read_fixed(&mut self, frame: usize, at: i32, access: Access) -> Check {
        let Access { size, value, .. } = access;
        let (slot, first) = place(at);
        let content = self.cur.frames[frame].stack[slot];
        self.stack_liveness.read(frame, slot);
        self.log.touch_slot(slot);
        let bytes = &content.bytes[first..first + size as usize];
        if content.is_spill() {
            let spilled = content
                .bytes
                .iter()
                .take_while(|&&byte| byte == Byte::Spill)
                .count() as i32;
            if size == BPF_REG_SIZE && spilled == BPF_REG_SIZE {
                if let Some(number) = value {
                    let mut reg = content.reg;
                    self.give_id(&mut reg);
                    self.cur.frames[frame].stack[slot].reg = reg;
                    *self.cur.reg_mut(number) = reg;
                }
                self.remember_stack(frame, slot);
                return Ok(());
            }
            if !content.reg.is_scalar() {
                return no(Errno::EACCES, "invalid size of register fill");
            }
            let Some(number) = value else {
                return Ok(());
            };
            if size <= spilled && first == 0 {
                let mut reg = content.reg;
                // The kernel keeps the link when a fill extends the sign. So it believes of the
                // spilled number what it learns of another one (`check_stack_read_fixed_off`, Linux
                // 6.18). A number without the sign bit set stays the same.
                let bits = size as u32 * 8 - u32::from(access.signed);
                if bits_of(&reg) > bits {
                    reg.id = 0;
                    reg.off = 0;
                }
                *self.cur.reg_mut(number) = reg;
                self.remember_stack(frame, slot);
                return Ok(());
            }
            let is_zero = content.reg.var.constant() == Some(0);
            if is_zero && bytes.iter().all(|&byte| byte == Byte::Spill) {
                *self.cur.reg_mut(number) = Reg::known(0);
                self.remember_stack(frame, slot);
                return Ok(());
            }
            self.check_readable(bytes, at, size)?;
            let zeros = bytes.iter().all(|&byte| byte == Byte::Zero);
            *self.cur.reg_mut(number) = if zeros { Reg::known(0) } else { Reg::UNKNOWN };
            return Ok(());
        }
        self.check_readable(bytes, at, size)?;
        if let Some(number) = value {
            let loaded = self.loaded_bytes(frame, at, at + size);
            *self.cur.reg_mut(number) = loaded;
        }
        Ok(())
    }

    /// Checks that dynptrs and iterators are not read as bytes.
    fn check_readable(&self, bytes: &[Byte], at: i32, size: i32) -> Check {
        let bad = bytes
            .iter()
            .position(|byte| matches!(byte, Byte::Dynptr | Byte::Iter | Byte::IrqFlag));
        match bad {
            Some(index) => no(
                Errno::EACCES,
                format!("invalid read from stack off {at}+{index} size {size}"),
            ),
            None => Ok(()),
        }
    }

    /// Implements `mark_reg_stack_read`.
    fn loaded_bytes(&mut self, frame: usize, first: i32, end: i32) -> Reg {
        let frame = &self.cur.frames[frame];
        let log = &mut self.log;
        let zeros = (first..end).all(|at| {
            log.touch_slot(place(at).0);
            frame.byte(at) == Some(Byte::Zero)
        });
        if zeros { Reg::known(0) } else { Reg::UNKNOWN }
    }

    fn remember_stack(&mut self, frame: usize, slot: usize) {
        self.remember(|step| step.stack = Some((frame as u8, slot as u8)));
    }

    pub(super) fn write_stack(&mut self, reg: &Reg, access: Access, at: i32) -> Check {
        let frame = Self::frame_of(reg);
        match reg.var.constant() {
            Some(variable) => {
                let at = at.wrapping_add(variable.cast_signed() as i32);
                self.write_fixed(frame, at, access)
            }
            None => self.write_variable(frame, reg, access, at),
        }
    }

    fn write_fixed(&mut self, frame: usize, at: i32, access: Access) -> Check {
        let Access {
            size,
            value,
            constant,
            ..
        } = access;
        let (slot, first) = place(at);
        self.destroy_dynptr(frame, slot)?;
        self.log.touch_slot(slot);
        if size == BPF_REG_SIZE {
            self.stack_liveness.write(frame, slot);
        }
        let mut reg = value.map(|number| *self.cur.reg(number));
        let at_start = first == 0;
        if let (Some(number), Some(stored), true) = (value, &mut reg, at_start)
            && stored.is_scalar()
        {
            let fits = bits_of(stored) <= size as u32 * 8;
            if fits {
                self.link(number);
                *stored = *self.cur.reg(number);
            } else {
                stored.id = 0;
                stored.off = 0;
            }
            self.spill(frame, slot, *stored, size);
        } else if let (None, Some(constant), true) = (value, constant, at_start) {
            let stored = Reg::known(i64::from(constant).cast_unsigned());
            self.spill(frame, slot, stored, size);
        } else if let Some(stored) = reg.filter(is_spillable) {
            if size != BPF_REG_SIZE {
                return no(Errno::EACCES, "invalid size of register spill");
            }
            if frame != self.cur.depth() && matches!(stored.kind, Type::Stack(_)) {
                return no(
                    Errno::EINVAL,
                    "cannot spill pointers to stack into stack frame of the caller",
                );
            }
            self.spill(frame, slot, stored, size);
        } else {
            let zero =
                reg.is_some_and(|reg| reg.is_null()) || value.is_none() && constant == Some(0);
            if let (true, Some(number)) = (zero, value) {
                self.mark_precise(number)?;
            }
            let content = &mut self.cur.frames[frame].stack[slot];
            scrub(content);
            let kind = if zero { Byte::Zero } else { Byte::Misc };
            content.bytes[first..first + size as usize].fill(kind);
            return Ok(());
        }
        self.remember_stack(frame, slot);
        Ok(())
    }

    /// Implements `save_register_state`.
    fn spill(&mut self, frame: usize, slot: usize, reg: Reg, size: i32) {
        let content = &mut self.cur.frames[frame].stack[slot];
        content.object = Object::None;
        content.reg = reg;
        let (spilled, rest) = content.bytes.split_at_mut(size as usize);
        spilled.fill(Byte::Spill);
        for byte in rest {
            if !matches!(byte, Byte::Zero | Byte::Invalid) {
                *byte = Byte::Misc;
            }
        }
    }

    fn write_variable(&mut self, frame: usize, reg: &Reg, access: Access, at: i32) -> Check {
        let Access {
            size,
            value,
            constant,
            ..
        } = access;
        let first = (i64::from(at) + reg.var.wide.smin) as i32;
        let end = (i64::from(at) + reg.var.wide.smax + i64::from(size)) as i32;
        let zero = match value {
            Some(number) => self.cur.reg(number).is_null(),
            None => constant == Some(0),
        };
        for at in first..end {
            self.destroy_dynptr(frame, place(at).0)?;
        }
        let mut relied_on_zero = false;
        for at in first..end {
            let (slot, byte) = place(at);
            self.log.touch_slot(slot);
            let content = &mut self.cur.frames[frame].stack[slot];
            let old = content.bytes[byte];
            let spilled_zero = content.is_spilled_scalar() && content.reg.is_null();
            if zero && (old == Byte::Zero || old == Byte::Spill && spilled_zero) {
                relied_on_zero = true;
                continue;
            }
            content.reg = Reg::UNINIT;
            for kind in &mut content.bytes {
                if *kind == Byte::Spill {
                    *kind = Byte::Misc;
                }
            }
            content.bytes[byte] = Byte::Misc;
        }
        if let (true, Some(number)) = (relied_on_zero, value) {
            self.mark_precise(number)?;
        }
        Ok(())
    }

    /// Checks memory that a helper reads or writes (`check_stack_range_initialized`). Returns
    /// `true` if it must be marked as written afterwards.
    pub(super) fn check_stack_range(&mut self, range: Range) -> Check<bool> {
        let Range {
            base,
            off,
            size,
            zero_allowed,
            write,
            mut raw,
        } = range;
        if size == 0 && !zero_allowed {
            return no(Errno::EACCES, "invalid zero-sized read");
        }
        self.check_stack_bounds(base, off, size, super::memory::stack_verb(write))?;
        let reg = *self.cur.reg(base);
        let (first, last) = match reg.var.constant() {
            Some(variable) => {
                let at = off.wrapping_add(variable.cast_signed() as i32);
                (at, at)
            }
            None => {
                raw = false;
                let at = i64::from(off);
                (
                    (at + reg.var.wide.smin) as i32,
                    (at + reg.var.wide.smax) as i32,
                )
            }
        };
        let frame = Self::frame_of(&reg);
        for at in first..last + size {
            let (slot, byte) = place(at);
            let content = &self.cur.frames[frame].stack[slot];
            let kind = content.bytes[byte];
            if raw {
                if kind == Byte::Dynptr {
                    return no(
                        Errno::EACCES,
                        format!("potential write to dynptr at off={at} disallowed"),
                    );
                }
                continue;
            }
            if matches!(kind, Byte::Dynptr | Byte::Iter | Byte::IrqFlag) {
                return no(
                    Errno::EACCES,
                    uninitialised(&reg, base, first, at, size, write),
                );
            }
            self.stack_liveness.read(frame, slot);
            if write {
                let content = &mut self.cur.frames[frame].stack[slot];
                if content.is_spill() {
                    scrub(content);
                }
                content.bytes[byte] = Byte::Misc;
            }
        }
        Ok(raw)
    }

    /// Marks bytes that a helper has written (`check_mem_access` of each byte).
    pub(super) fn mark_written(&mut self, base: u8, off: i32, size: i32) -> Check {
        for at in 0..size {
            self.access(Access {
                base,
                off: off + at,
                size: 1,
                write: true,
                value: None,
                constant: None,
                signed: false,
                strict: false,
            })?;
        }
        Ok(())
    }
}

fn uninitialised(reg: &Reg, number: u8, first: i32, at: i32, size: i32, write: bool) -> String {
    let verb = super::memory::stack_verb(write);
    match reg.var.constant() {
        Some(_) => format!(
            "invalid{verb} stack R{number} off {first}+{} size {size}",
            at - first
        ),
        None => format!(
            "invalid{verb} stack R{number} var_off {}+{} size {size}",
            reg.var.bits,
            at - first
        ),
    }
}

/// Forgets a spilled register: the bytes stay, as any bytes.
pub(super) fn scrub(content: &mut Slot) {
    let special = content.bytes[0] == Byte::Spill
        || matches!(content.bytes[7], Byte::Dynptr | Byte::Iter | Byte::IrqFlag)
        || content.bytes.contains(&Byte::Spill);
    content.reg = Reg::UNINIT;
    content.object = Object::None;
    if special {
        for byte in &mut content.bytes {
            if *byte != Byte::Invalid {
                *byte = Byte::Misc;
            }
        }
    }
}

/// Returns the number of bits that a number takes (`get_reg_width`).
fn bits_of(reg: &Reg) -> u32 {
    64 - reg.var.wide.umax.leading_zeros()
}

/// Implements `is_spillable_regtype`.
fn is_spillable(reg: &Reg) -> bool {
    !matches!(
        reg.kind,
        Type::Uninit | Type::Scalar | Type::TracepointBuffer | Type::Dynptr(_)
    )
}
