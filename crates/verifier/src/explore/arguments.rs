//! Checks the arguments of helpers (`check_func_arg`, `check_reg_type`, `check_helper_mem_access`).

mod types;

use beeline_uapi::limits::BPF_MAX_VAR_OFF;
use beeline_uapi::{Errno, HelperId, MapType};

use super::helper::Meta;
use super::memory::By;
use super::stack::Range;
use super::state_text::type_name;
use super::{Check, Explorer, no};
use crate::helpers::{Arg, Helper};
use crate::program::Map;
use crate::state::{Byte, Flags, Reg, Type, place};
use types::{accepts_null, expected, is_release, suits};

impl Explorer<'_> {
    pub(super) fn check_argument(
        &mut self,
        number: u8,
        arg: Arg,
        helper: &Helper,
        meta: &mut Meta,
    ) -> Check {
        self.read_reg(number)?;
        let reg = *self.cur.reg(number);
        if arg == Arg::Any {
            return Ok(());
        }
        if reg.is_packet()
            && !crate::context::packet::may_pass(&self.program.kind, meta.packet_access)
        {
            return no(Errno::EACCES, "helper access to the packet is not allowed");
        }
        let arg = self.resolved(arg, meta);
        let null = reg.is_null() && accepts_null(arg);
        if !null {
            self.check_type(number, &reg, arg, meta)?;
            self.check_offset(number, &reg, arg)?;
        }
        self.note_release(number, &reg, arg, meta)?;
        if reg.ref_id != 0 && arg != Arg::KptrXchgDest {
            if meta.ref_id != 0 {
                return no(
                    Errno::EACCES,
                    format!(
                        "more than one arg with ref_obj_id R{number} {} {}",
                        reg.ref_id, meta.ref_id
                    ),
                );
            }
            meta.ref_id = reg.ref_id;
        }
        self.check_content(number, &reg, arg, helper, meta)
    }

    /// Returns the argument with its map's rules: a value of a map of sockets is a socket
    /// (`resolve_map_arg_type`).
    fn resolved(&self, arg: Arg, meta: &Meta) -> Arg {
        let is_value = matches!(arg, Arg::Value | Arg::ValueOrNull | Arg::UninitValue);
        let map_type = meta.map.map(|map| self.program.map(map).map_type);
        match map_type {
            Some(MapType::SOCKMAP | MapType::SOCKHASH) if is_value => Arg::BtfSockCommon {
                release: false,
                or_null: false,
            },
            Some(MapType::BLOOM_FILTER) if is_value && meta.id == HelperId::MAP_PEEK_ELEM => {
                Arg::Value
            }
            _ => arg,
        }
    }

    /// Checks the memory or object behind the argument.
    fn check_content(
        &mut self,
        number: u8,
        reg: &Reg,
        arg: Arg,
        helper: &Helper,
        meta: &mut Meta,
    ) -> Check {
        match arg {
            Arg::Map => return self.note_map(reg, meta),
            Arg::Key => {
                let map = self.known_map(meta)?;
                let (bytes, is_array) = (
                    map.key_size,
                    matches!(map.map_type, MapType::ARRAY | MapType::PERCPU_ARRAY),
                );
                self.helper_memory(number, bytes, false, false, false)?;
                if is_array {
                    meta.key = self.constant_key(reg, bytes)?;
                }
            }
            Arg::Value | Arg::ValueOrNull if reg.is_null() => {}
            Arg::Value | Arg::ValueOrNull => {
                let bytes = self.known_map(meta)?.value_size;
                self.helper_memory(number, bytes, false, false, false)?;
            }
            Arg::UninitValue => {
                let bytes = self.known_map(meta)?.value_size;
                if self.helper_memory(number, bytes, true, false, true)? {
                    meta.raw = Some((number, 0, bytes as i32));
                }
            }
            Arg::Mem {
                write,
                uninit,
                fixed: Some(bytes),
                aligned,
                ..
            } => {
                if self.helper_memory(number, bytes, write, false, uninit)? {
                    meta.raw = Some((number, 0, bytes as i32));
                }
                if aligned {
                    self.check_aligned(number, reg, bytes)?;
                }
            }
            Arg::Size | Arg::SizeOrZero => {
                let memory = helper.args.get(usize::from(number) - 2).copied();
                let (write, uninit) = match memory {
                    Some(Arg::Mem { write, uninit, .. }) => (write, uninit),
                    _ => (false, false),
                };
                return self.check_size(number, write, arg == Arg::SizeOrZero, uninit, meta);
            }
            Arg::AllocSizeOrZero => {
                let Some(bytes) = reg.constant() else {
                    return no(Errno::EACCES, format!("R{number} is not a known constant'"));
                };
                meta.bytes = bytes as u32;
                self.mark_precise(number)?;
            }
            Arg::SpinLock => self.spin_lock(number, meta.id)?,
            Arg::Timer => self.check_timer(number, reg, meta)?,
            Arg::Func => {
                if let Type::Func(function) = reg.kind {
                    meta.function = Some(function as usize);
                }
            }
            Arg::ConstStr => self.constant_text(number, reg).map(|_| ())?,
            Arg::Dynptr(wanted) => self.dynptr_argument(number, reg, wanted, meta)?,
            Arg::KptrXchgDest => self.exchanged_field(number, reg, meta)?,
            Arg::PerCpuBtf => {
                if let Type::Btf(btf_id) = reg.kind {
                    meta.btf_id = btf_id;
                    meta.of_program = reg.flags.has(Flags::RCU);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn known_map(&self, meta: &Meta) -> Check<&Map> {
        match meta.map {
            Some(map) => Ok(self.program.map(map)),
            None => no(Errno::EACCES, "invalid map_ptr to access map->key"),
        }
    }

    fn note_map(&self, reg: &Reg, meta: &mut Meta) -> Check {
        let Type::Map(map) = reg.kind else {
            return Ok(());
        };
        if let Some(timer) = meta.map
            && timer != map
        {
            return no(
                Errno::EINVAL,
                format!(
                    "timer pointer in R1 map_uid={} doesn't match map pointer in R2 map_uid={}",
                    timer.unique, map.unique
                ),
            );
        }
        meta.map = Some(map);
        Ok(())
    }

    /// Implements `check_mem_size_reg`: checks the memory before it for the largest possible size.
    pub(super) fn check_size(
        &mut self,
        number: u8,
        write: bool,
        zero_allowed: bool,
        uninit: bool,
        meta: &mut Meta,
    ) -> Check {
        let var = self.cur.reg(number).var;
        meta.most = var.wide.umax;
        if var.wide.smin < 0 {
            return no(
                Errno::EACCES,
                format!("R{number} min value is negative, either use unsigned or 'var &= const'"),
            );
        }
        if var.wide.umin == 0 && !zero_allowed {
            return no(
                Errno::EACCES,
                format!(
                    "R{number} invalid zero-sized read: u64=[{},{}]",
                    var.wide.umin, var.wide.umax
                ),
            );
        }
        if var.wide.umax >= BPF_MAX_VAR_OFF as u64 {
            return no(
                Errno::EACCES,
                format!(
                    "R{number} unbounded memory access, use 'var &= const' or 'if (var < const)'"
                ),
            );
        }
        // Only a part may be written if the size is not known.
        let uninit = uninit && var.constant().is_some();
        let bytes = var.wide.umax as u32;
        let memory = number - 1;
        if self.helper_memory(memory, bytes, write, zero_allowed, uninit)? {
            meta.raw = Some((memory, 0, bytes as i32));
        }
        self.mark_precise(number)
    }

    /// Implements `check_helper_mem_access`. Returns `true` if the bytes must be marked as written
    /// when the helper is done.
    pub(super) fn helper_memory(
        &mut self,
        number: u8,
        bytes: u32,
        write: bool,
        zero_allowed: bool,
        uninit: bool,
    ) -> Check<bool> {
        let reg = *self.cur.reg(number);
        let size = i32::try_from(bytes).unwrap_or(i32::MAX);
        match reg.kind {
            Type::Packet | Type::PacketMeta => {
                self.check_packet(number, 0, size, zero_allowed)?;
            }
            Type::MapKey(map) => {
                if write {
                    return self.refuse_write(number, &reg);
                }
                let limit = self.program.map(map).key_size;
                self.check_region(number, reg.off, size, limit, false, "map key, key_size")?;
            }
            Type::MapValue(map) => {
                self.uses.per_cpu |= self.program.map(map).map_type.is_per_cpu();
                self.check_map_rights(&reg, number, reg.off, size, write)?;
                self.check_value(number, reg.off, size, zero_allowed, By::Helper)?;
            }
            Type::Mem(limit) => {
                if write && reg.flags.has(Flags::RDONLY) {
                    return self.refuse_write(number, &reg);
                }
                self.check_region(
                    number,
                    reg.off,
                    size,
                    limit,
                    zero_allowed,
                    "memory, mem_size",
                )?;
            }
            Type::Buffer => {
                if write && reg.flags.has(Flags::RDONLY) {
                    return self.refuse_write(number, &reg);
                }
                self.check_buffer(&reg, number, reg.off, size, "rdwr")?;
            }
            Type::Stack(_) => {
                return self.check_stack_range(Range {
                    base: number,
                    off: reg.off,
                    size,
                    zero_allowed,
                    write,
                    raw: uninit,
                });
            }
            Type::Btf(_) => self.check_structure_read(number, &reg, size)?,
            _ if zero_allowed && bytes == 0 && reg.is_null() => {}
            _ => {
                let name = type_name(&reg);
                return no(Errno::EACCES, format!("R{number} type={name} expected=fp"));
            }
        }
        Ok(false)
    }

    /// Implements `check_reg_type`.
    fn check_type(&mut self, number: u8, reg: &Reg, arg: Arg, meta: &mut Meta) -> Check {
        if !suits(reg, arg, number, meta.id) {
            let have = type_name(reg);
            let wanted = expected(arg);
            return no(
                Errno::EACCES,
                format!("R{number} type={have} expected={wanted}"),
            );
        }
        let Type::Btf(_) = reg.kind else {
            return Ok(());
        };
        match arg {
            Arg::Btf { name, or_null } => {
                self.check_not_null(number, reg, or_null)?;
                let kernel = self.program.kernel;
                let Some(wanted) = kernel.and_then(|kernel| kernel.structure(name)) else {
                    return no(Errno::EACCES, format!("in-kernel BTF has no struct {name}"));
                };
                self.check_structure(number, reg, wanted, false)
            }
            Arg::BtfSockCommon { or_null, .. } => {
                self.check_not_null(number, reg, or_null)?;
                let kernel = self.program.kernel;
                let Some(wanted) = kernel.and_then(|kernel| kernel.structure("sock_common")) else {
                    return no(Errno::EACCES, "in-kernel BTF has no struct sock_common");
                };
                self.check_structure(number, reg, wanted, false)
            }
            Arg::KptrXchgSource => self.check_exchange(number, reg, meta),
            _ => Ok(()),
        }
    }

    fn check_not_null(&self, number: u8, reg: &Reg, or_null: bool) -> Check {
        if reg.may_be_null() && !or_null {
            return no(
                Errno::EACCES,
                format!("Possibly NULL pointer passed to helper arg{number}"),
            );
        }
        Ok(())
    }

    /// Checks that a pointer to a structure of the kernel is one to `wanted`.
    pub(super) fn check_structure(
        &self,
        number: u8,
        reg: &Reg,
        wanted: u32,
        strict: bool,
    ) -> Check {
        let (Type::Btf(have), Some(kernel)) = (reg.kind, self.program.kernel) else {
            return Ok(());
        };
        if kernel.matches(have, reg.off, wanted, strict) {
            return Ok(());
        }
        no(
            Errno::EACCES,
            format!(
                "R{number} is of type {} but {} is expected",
                kernel.name(have),
                kernel.name(wanted)
            ),
        )
    }

    /// Implements `check_func_arg_reg_off`.
    fn check_offset(&self, number: u8, reg: &Reg, arg: Arg) -> Check {
        if is_release(arg) {
            let is_dynptr = matches!(arg, Arg::Dynptr(_)) && matches!(reg.kind, Type::Stack(_));
            if is_dynptr {
                return Ok(());
            }
            if reg.off != 0 {
                return no(
                    Errno::EINVAL,
                    format!(
                        "R{number} must have zero offset when passed to release func or trusted arg to kfunc"
                    ),
                );
            }
            return self.check_no_offset(reg, number, false);
        }
        match reg.kind {
            Type::Stack(_)
            | Type::Packet
            | Type::PacketMeta
            | Type::MapKey(_)
            | Type::MapValue(_)
            | Type::Mem(_)
            | Type::Buffer
            | Type::Arena
            | Type::Scalar => Ok(()),
            Type::Btf(_) => self.check_no_offset(reg, number, true),
            _ => self.check_no_offset(reg, number, false),
        }
    }

    /// Implements `__check_ptr_off_reg`.
    pub(super) fn check_no_offset(&self, reg: &Reg, number: u8, fixed_allowed: bool) -> Check {
        let name = type_name(reg);
        if reg.off < 0 {
            return no(
                Errno::EACCES,
                format!(
                    "negative offset {name} ptr R{number} off={} disallowed",
                    reg.off
                ),
            );
        }
        if !fixed_allowed && reg.off != 0 {
            return no(
                Errno::EACCES,
                format!(
                    "dereference of modified {name} ptr R{number} off={} disallowed",
                    reg.off
                ),
            );
        }
        if reg.var.constant() != Some(0) {
            return no(
                Errno::EACCES,
                format!("variable {name} access var_off={} disallowed", reg.var.bits),
            );
        }
        Ok(())
    }

    fn note_release(&mut self, number: u8, reg: &Reg, arg: Arg, meta: &mut Meta) -> Check {
        if !is_release(arg) {
            return Ok(());
        }
        if let Arg::Dynptr(_) = arg {
            if !matches!(reg.kind, Type::Stack(_)) {
                return no(Errno::EINVAL, "cannot release unowned const bpf_dynptr");
            }
            let acquired = self
                .dynptr_slot(reg)
                .and_then(|(frame, slot)| self.cur.frames[frame].stack.get(slot))
                .is_some_and(|slot| slot.reg.ref_id != 0);
            if !acquired {
                return no(
                    Errno::EINVAL,
                    format!("arg {number} is an unacquired reference"),
                );
            }
        } else if reg.ref_id == 0 && !reg.is_null() {
            return no(
                Errno::EINVAL,
                format!("R{number} must be referenced when passed to release function"),
            );
        }
        meta.release = Some(number);
        Ok(())
    }

    /// Returns the key's number, if it is a constant on the stack (`get_constant_map_key`).
    fn constant_key(&mut self, reg: &Reg, bytes: u32) -> Check<Option<u64>> {
        let (Type::Stack(_), Some(variable)) = (reg.kind, reg.var.constant()) else {
            return Ok(None);
        };
        let at = reg.off.wrapping_add(variable as i32);
        if bytes == 0 || bytes > 8 || at >= 0 {
            return Ok(None);
        }
        let frame = Self::frame_of(reg);
        let (slot, first) = place(at);
        let Some(content) = self.cur.frames[frame].stack.get(slot).copied() else {
            return Ok(None);
        };
        let zeros = (0..bytes as i32)
            .all(|byte| self.cur.frames[frame].byte(at + byte) == Some(Byte::Zero));
        if zeros {
            return Ok(Some(0));
        }
        let spilled = content
            .bytes
            .iter()
            .filter(|&&byte| byte == Byte::Spill)
            .count();
        if first != 0 || !content.is_spilled_scalar() || spilled != bytes as usize {
            return Ok(None);
        }
        let Some(key) = content.reg.var.constant() else {
            return Ok(None);
        };
        self.mark_slot_precise(frame, slot);
        Ok(Some(key))
    }

    fn check_aligned(&self, number: u8, reg: &Reg, bytes: u32) -> Check {
        let at = reg.var.bits.add(crate::scalar::Tnum::known(
            i64::from(reg.off).cast_unsigned(),
        ));
        if at.is_aligned(bytes.into()) {
            return Ok(());
        }
        no(
            Errno::EACCES,
            format!(
                "misaligned access off {}+{}+0 size {bytes} (R{number})",
                reg.var.bits, reg.off
            ),
        )
    }
}
