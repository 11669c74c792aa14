//! Loads and stores (`check_mem_access`).

use beeline_uapi::Errno;
use beeline_uapi::flags::{ANY_ALIGNMENT, RDONLY_PROG, STRICT_ALIGNMENT, WRONLY_PROG};
use beeline_uapi::limits::{BPF_MAX_VAR_OFF, NET_IP_ALIGN};

use super::state_text::type_name;
use super::{Check, Explorer, no};
use crate::program::FieldKind;
use crate::scalar::{Scalar, Tnum};
use crate::state::{Flags, Reg, Type};

/// A load or a store of up to eight bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Access {
    /// The register that points there.
    pub base: u8,
    pub off: i32,
    pub size: i32,
    pub write: bool,
    /// The register that is stored, or loaded into.
    pub value: Option<u8>,
    /// The constant that is stored.
    pub constant: Option<i32>,
    /// True for a load that is sign-extended.
    pub signed: bool,
    /// True if it must be aligned, regardless of the program's flags.
    pub strict: bool,
}

/// The code that accesses memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    Program,
    Helper,
}

impl Explorer<'_> {
    pub(super) fn access(&mut self, access: Access) -> Check {
        let reg = *self.cur.reg(access.base);
        self.check_alignment(&reg, &access)?;
        let at = access.off + reg.off;
        let loaded = self.access_by_type(&reg, access, at)?;
        if let (false, Some(number), Some(loaded)) = (access.write, access.value, loaded) {
            *self.cur.reg_mut(number) = loaded;
        }
        if access.size < 8
            && let (false, Some(number)) = (access.write, access.value)
            && self.cur.reg(number).is_scalar()
        {
            let size = width(access.size);
            let reg = self.cur.reg_mut(number);
            reg.var = if access.signed {
                reg.var.sign_extended(size, true)
            } else {
                reg.var.truncated(size)
            };
        }
        Ok(())
    }

    /// Returns the loaded register, unless the stack's rules have set it already.
    fn access_by_type(&mut self, reg: &Reg, access: Access, at: i32) -> Check<Option<Reg>> {
        let Access {
            base, size, write, ..
        } = access;
        let unknown = Ok(Some(Reg::UNKNOWN));
        if reg.may_be_null() && !matches!(reg.kind, Type::Stack(_) | Type::Context) {
            return self.refuse_access(base, reg);
        }
        match reg.kind {
            Type::MapKey(id) => {
                if write {
                    return no(
                        Errno::EACCES,
                        format!("write to change key R{base} not allowed"),
                    );
                }
                let bytes = self.program.map(id).key_size;
                self.check_region(base, at, size, bytes, false, "map key, key_size")?;
                unknown
            }
            Type::MapValue(_) => self.access_value(reg, access, at).map(Some),
            Type::Mem(bytes) => {
                let read_only = reg.flags.has(Flags::RDONLY);
                if write && read_only {
                    return self.refuse_write(base, reg);
                }
                if !(read_only && reg.flags.has(Flags::UNTRUSTED)) {
                    self.check_region(base, at, size, bytes, false, "memory, mem_size")?;
                }
                unknown
            }
            Type::Context => self.access_context(reg, access, at).map(Some),
            Type::Stack(_) => {
                self.check_stack_bounds(base, at, size, stack_verb(write))?;
                if write {
                    self.write_stack(reg, access, at)?;
                } else {
                    self.read_stack(reg, access, at)?;
                }
                Ok(None)
            }
            Type::Packet | Type::PacketMeta => {
                if write && !crate::context::packet::may_store(&self.program.kind) {
                    return no(Errno::EACCES, "cannot write into packet");
                }
                self.check_packet(base, access.off, size, false)?;
                unknown
            }
            Type::FlowKeys => self.access_flow_keys(access, at).map(Some),
            Type::Socket(kind) => self.access_socket(reg, kind, access, at).map(Some),
            Type::TracepointBuffer => {
                self.check_buffer(reg, base, access.off, size, "tracepoint")?;
                unknown
            }
            Type::Buffer => {
                if write && reg.flags.has(Flags::RDONLY) {
                    return self.refuse_write(base, reg);
                }
                let what = if reg.flags.has(Flags::RDONLY) {
                    "rdonly"
                } else {
                    "rdwr"
                };
                self.check_buffer(reg, base, access.off, size, what)?;
                unknown
            }
            Type::Btf(_) => self.access_structure(reg, access).map(Some),
            Type::Map(_) => self.access_map_itself(reg, access).map(Some),
            Type::Arena => unknown,
            Type::Uninit | Type::Scalar | Type::PacketEnd | Type::Func(_) | Type::Dynptr(_) => {
                self.refuse_access(base, reg)
            }
        }
    }

    pub(super) fn refuse_access<T>(&self, number: u8, reg: &Reg) -> Check<T> {
        let name = type_name(reg);
        no(
            Errno::EACCES,
            format!("R{number} invalid mem access '{name}'"),
        )
    }

    pub(super) fn refuse_write<T>(&self, number: u8, reg: &Reg) -> Check<T> {
        let name = type_name(reg);
        no(Errno::EACCES, format!("R{number} cannot write into {name}"))
    }

    fn access_value(&mut self, reg: &Reg, access: Access, at: i32) -> Check<Reg> {
        let Type::MapValue(id) = reg.kind else {
            return Ok(Reg::UNKNOWN);
        };
        let Access {
            base, size, write, ..
        } = access;
        self.check_map_rights(reg, base, at, size, write)?;
        self.check_value(base, at, size, false, By::Program)?;
        let constant = reg.var.constant();
        let place = constant.map(|off| i64::from(at) + off.cast_signed());
        if let Some(place) = place
            && let Some(field) = self.pointer_field(reg, place)
        {
            return self.access_pointer_field(field, access);
        }
        let map = self.program.map(id);
        self.uses.per_cpu |= map.map_type.is_per_cpu();
        let constant = map.constant.as_ref().zip(place).and_then(|(bytes, place)| {
            let start = usize::try_from(place).ok()?;
            let part = bytes.get(start..start + size as usize)?;
            let mut value = [0; 8];
            value[..part.len()].copy_from_slice(part);
            Some(u64::from_le_bytes(value))
        });
        if let Some(value) = constant.filter(|_| !write) {
            let known = Scalar::known(value);
            let value = if access.signed {
                known.sign_extended(width(size), true)
            } else {
                known
            };
            return Ok(Reg::scalar(value));
        }
        Ok(Reg::UNKNOWN)
    }

    /// Implements `check_map_access_type`.
    pub(super) fn check_map_rights(
        &self,
        reg: &Reg,
        _number: u8,
        off: i32,
        size: i32,
        write: bool,
    ) -> Check {
        let Type::MapValue(id) = reg.kind else {
            return Ok(());
        };
        let map = self.program.map(id);
        let what = match write {
            true if map.flags & RDONLY_PROG != 0 => "write into",
            false if map.flags & WRONLY_PROG != 0 => "read from",
            _ => return Ok(()),
        };
        no(
            Errno::EACCES,
            format!(
                "{what} map forbidden, value_size={} off={off} size={size}",
                map.value_size
            ),
        )
    }

    /// Checks an access to a map's value: within it, and not to its special fields
    /// (`check_map_access`).
    pub(super) fn check_value(&self, number: u8, off: i32, size: i32, zero: bool, by: By) -> Check {
        let reg = *self.cur.reg(number);
        let Type::MapValue(id) = reg.kind else {
            return Ok(());
        };
        let map = self.program.map(id);
        self.check_region(
            number,
            off,
            size,
            map.value_size,
            zero,
            "map value, value_size",
        )?;
        for field in &map.fields {
            let (start, end) = (
                i64::from(field.offset),
                i64::from(field.offset + field.size),
            );
            let first = reg.var.wide.smin.saturating_add(off.into());
            let last =
                (reg.var.wide.umax.cast_signed()).saturating_add(i64::from(off) + i64::from(size));
            if first >= end || start >= last {
                continue;
            }
            let name = field.kind.name();
            let is_pointer = matches!(
                field.kind,
                FieldKind::UntrustedPointer(_)
                    | FieldKind::OwnedPointer { .. }
                    | FieldKind::PerCpuPointer(_)
                    | FieldKind::UserPointer(_)
            );
            if !is_pointer {
                return no(
                    Errno::EACCES,
                    format!("{name} cannot be accessed directly by load/store"),
                );
            }
            if by == By::Helper {
                return no(
                    Errno::EACCES,
                    format!("{name} cannot be accessed indirectly by helper"),
                );
            }
            let Some(variable) = reg.var.constant() else {
                return no(
                    Errno::EACCES,
                    format!("{name} access cannot have variable offset"),
                );
            };
            let place = i64::from(off) + variable.cast_signed();
            if place != start {
                return no(
                    Errno::EACCES,
                    format!("{name} access misaligned expected={start} off={place}"),
                );
            }
            if size != 8 {
                return no(Errno::EACCES, format!("{name} access size must be BPF_DW"));
            }
        }
        Ok(())
    }

    /// Implements `check_mem_region_access`: every possible offset of the register must be inside.
    pub(super) fn check_region(
        &self,
        number: u8,
        off: i32,
        size: i32,
        bytes: u32,
        zero: bool,
        what: &str,
    ) -> Check {
        let var = self.cur.reg(number).var;
        let off = i64::from(off);
        if var.wide.smin < 0
            && (var.wide.smin == i64::MIN
                || i32::try_from(off + var.wide.smin).is_err()
                || var.wide.smin + off < 0)
        {
            return no(
                Errno::EACCES,
                format!(
                    "R{number} min value is negative, either use unsigned index or do a if (index >=0) check."
                ),
            );
        }
        let inside = |at: i64| {
            let size_is_good = size > 0 || (size == 0 && zero);
            if size_is_good && at >= 0 && at + i64::from(size) <= bytes.into() {
                Ok(())
            } else {
                Err(format!(
                    "invalid access to {what}={bytes} off={at} size={size}"
                ))
            }
        };
        if let Err(why) = inside(var.wide.smin + off) {
            return no(
                Errno::EACCES,
                format!("{why}\nR{number} min value is outside of the allowed memory range"),
            );
        }
        if var.wide.umax >= BPF_MAX_VAR_OFF as u64 {
            return no(
                Errno::EACCES,
                format!(
                    "R{number} unbounded memory access, make sure to bounds check any such access"
                ),
            );
        }
        if let Err(why) = inside(var.wide.umax as i64 + off) {
            return no(
                Errno::EACCES,
                format!("{why}\nR{number} max value is outside of the allowed memory range"),
            );
        }
        Ok(())
    }

    /// Implements `check_packet_access`; `off` does not include the register's own offset.
    pub(super) fn check_packet(&self, number: u8, off: i32, size: i32, zero: bool) -> Check {
        let reg = self.cur.reg(number);
        let off = off + reg.off;
        if reg.var.wide.smin < 0 {
            return no(
                Errno::EACCES,
                format!(
                    "R{number} min value is negative, either use unsigned index or do a if (index >=0) check."
                ),
            );
        }
        let size_is_good = size > 0 || (size == 0 && zero);
        if reg.range < 0 {
            return no(
                Errno::EINVAL,
                format!("R{number} offset is outside of the packet"),
            );
        }
        if size_is_good && off >= 0 && i64::from(off) + i64::from(size) <= i64::from(reg.range) {
            return Ok(());
        }
        no(
            Errno::EACCES,
            format!(
                "invalid access to packet, off={off} size={size}, R{number}(id={},off={off},r={})\nR{number} offset is outside of the packet",
                reg.id, reg.range
            ),
        )
    }

    /// Implements `__check_buffer_access`: records the access; the buffer is checked against it
    /// when it is known.
    pub(super) fn check_buffer(
        &self,
        reg: &Reg,
        number: u8,
        off: i32,
        size: i32,
        what: &str,
    ) -> Check {
        if off < 0 {
            return no(
                Errno::EACCES,
                format!("R{number} invalid {what} buffer access: off={off}, size={size}"),
            );
        }
        match reg.var.constant() {
            Some(0) => Ok(()),
            _ => no(
                Errno::EACCES,
                format!(
                    "R{number} invalid variable buffer offset: off={off}, var_off={}",
                    reg.var.bits
                ),
            ),
        }
    }

    /// Implements `check_ptr_alignment`.
    fn check_alignment(&self, reg: &Reg, access: &Access) -> Check {
        let flags = self.program.kind.flags;
        let (what, always) = match reg.kind {
            Type::Stack(_) => ("stack ", true),
            Type::Packet | Type::PacketMeta => return self.check_packet_alignment(reg, access),
            Type::FlowKeys => ("flow keys ", false),
            Type::MapKey(_) => ("key ", false),
            Type::MapValue(_) => ("value ", false),
            Type::Context => ("context ", false),
            Type::Socket(kind) => (super::context::socket_description(kind), false),
            Type::Arena => return Ok(()),
            _ => ("", false),
        };
        let strict = always || access.strict || is_strict(flags);
        if !strict || access.size == 1 {
            return Ok(());
        }
        let at = reg.var.bits.add(Tnum::known(
            (i64::from(reg.off) + i64::from(access.off)).cast_unsigned(),
        ));
        if at.is_aligned(access.size as u64) {
            return Ok(());
        }
        no(
            Errno::EACCES,
            format!(
                "misaligned {what}access off {}+{}+{} size {}",
                reg.var.bits, reg.off, access.off, access.size
            ),
        )
    }

    /// Checks the alignment in packets, which begin two bytes past a multiple of four
    /// (`check_pkt_ptr_alignment`).
    fn check_packet_alignment(&self, reg: &Reg, access: &Access) -> Check {
        let flags = self.program.kind.flags;
        let strict = access.strict || is_strict(flags);
        if !strict || access.size == 1 {
            return Ok(());
        }
        let fixed = NET_IP_ALIGN + i64::from(reg.off) + i64::from(access.off);
        let at = reg.var.bits.add(Tnum::known(fixed.cast_unsigned()));
        if at.is_aligned(access.size as u64) {
            return Ok(());
        }
        no(
            Errno::EACCES,
            format!(
                "misaligned packet access off {NET_IP_ALIGN}+{}+{}+{} size {}",
                reg.var.bits, reg.off, access.off, access.size
            ),
        )
    }
}

/// Returns the log's name for a direction on the stack.
pub(super) fn stack_verb(write: bool) -> &'static str {
    if write { " write to" } else { " read from" }
}

pub(super) fn width(size: i32) -> beeline_isa::Size {
    use beeline_isa::Size;
    match size {
        1 => Size::B1,
        2 => Size::B2,
        4 => Size::B4,
        _ => Size::B8,
    }
}

/// Returns whether accesses must be aligned on a machine that does not need it. If a program sets
/// both flags, the laxer one counts.
fn is_strict(flags: u32) -> bool {
    flags & (STRICT_ALIGNMENT | ANY_ALIGNMENT) == STRICT_ALIGNMENT
}
