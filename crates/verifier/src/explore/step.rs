//! One instruction (`do_check_insn`).

use beeline_isa::{Atomic, FRAME_POINTER, Imm64, Op, Operand, Size};
use beeline_uapi::{Errno, MapType};

use super::memory::Access;
use super::{Check, Explorer, Next, PointerKind, no};
use crate::flow::{Odd, undefined};
use crate::program::Map;
use crate::state::{Flags, MapId, Reg, Type};

impl Explorer<'_> {
    pub(super) fn instruction(&mut self, op: Op) -> Check<Next> {
        let next = Next::Insn(self.insn + 1);
        match op {
            Op::Alu { .. }
            | Op::Neg { .. }
            | Op::Swap { .. }
            | Op::Move { .. }
            | Op::MoveSigned { .. } => self.arithmetic(op)?,
            Op::Load {
                size,
                signed,
                dst,
                src,
                off,
            } => self.load(size, signed, dst, src, off, false)?,
            Op::LoadAcquire {
                size,
                dst,
                src,
                off,
            } => {
                self.check_atomic_pointer(src, "loads from")?;
                self.load(size, false, dst, src, off, true)?;
            }
            Op::Store {
                size,
                dst,
                src,
                off,
            } => self.store(size, dst, src, off, false)?,
            Op::StoreRelease {
                size,
                dst,
                src,
                off,
            } => {
                self.read_reg(src)?;
                self.read_reg(dst)?;
                self.check_atomic_pointer(dst, "stores into")?;
                self.store(size, dst, Operand::Reg(src), off, true)?;
            }
            Op::Atomic {
                op,
                fetch,
                wide,
                dst,
                src,
                off,
            } => self.atomic(op, fetch, wide, dst, src, off)?,
            Op::Imm64 { kind, dst, low } => {
                self.immediate(kind, dst, low)?;
                return Ok(Next::Insn(self.insn + 2));
            }
            Op::Jump { off } => {
                self.jumps += 1;
                return Ok(Next::Insn(super::shape::target(self.insn, off)));
            }
            Op::Branch {
                cond,
                wide,
                dst,
                src,
                off,
            } => return self.branch(cond, wide, dst, src, off),
            Op::MayGoto { off } => return self.may_goto(off),
            Op::CallHelper { id } => {
                self.jumps += 1;
                return self.call_helper(id);
            }
            Op::CallLocal { .. } => {
                self.jumps += 1;
                return self.call_local();
            }
            Op::CallKernel { btf_id } => {
                self.jumps += 1;
                return self.call_kernel(btf_id);
            }
            Op::Poison { imm } => {
                self.jumps += 1;
                return no(Errno::EINVAL, poison(imm));
            }
            Op::Exit => {
                self.jumps += 1;
                return self.exit("BPF_EXIT instruction in main prog");
            }
        }
        Ok(next)
    }

    /// Handles an instruction that only the verifier knows: an undefined one is refused when a path
    /// reaches it.
    pub(super) fn odd_instruction(&mut self, odd: Odd) -> Check<Next> {
        let index = match odd {
            Odd::PacketLoad { index } => index,
            Odd::Cast { dst, src, inward } => {
                self.change_space(dst, src, inward)?;
                return Ok(Next::Insn(self.insn + 1));
            }
            Odd::Bad(bad) => {
                let reject = undefined(self.insn, self.insn_at(self.insn), bad);
                let why = reject
                    .log
                    .trim_end()
                    .lines()
                    .next_back()
                    .unwrap_or_default();
                return no(reject.errno, why);
            }
        };
        if !crate::context::packet::may_load_classic(&self.program.kind) {
            return no(Errno::EINVAL, beeline_isa::BadInsn::Packet.to_string());
        }
        self.read_reg(6)?;
        self.check_nothing_is_held(true, "BPF_LD_[ABS|IND]")?;
        let context = *self.cur.reg(6);
        if context.kind != Type::Context {
            return no(
                Errno::EINVAL,
                "at the time of BPF_LD_ABS|IND R6 != pointer to skb",
            );
        }
        if let Some(index) = index {
            self.read_reg(index)?;
        }
        self.check_no_offset(&context, 6, false)?;
        let depth = self.cur.depth();
        self.forget_caller_saved(depth);
        *self.cur.reg_mut(0) = Reg::UNKNOWN;
        // If the packet is too short, the function returns.
        self.return_early(Reg::known(0), false)
    }

    /// Copies from one address space into the other: nothing is known of the result.
    fn change_space(&mut self, dst: u8, src: u8, inward: bool) -> Check {
        if !self.has_arena() {
            return no(
                Errno::EINVAL,
                "addr_space_cast insn can only be used in a program that has an associated arena",
            );
        }
        self.read_reg(src)?;
        *self.cur.reg_mut(dst) = if inward {
            Reg {
                var: crate::scalar::Scalar::UNKNOWN,
                ..Reg::pointer(Type::Arena)
            }
        } else {
            Reg::UNKNOWN
        };
        Ok(())
    }

    /// Returns whether any instruction names an arena.
    fn has_arena(&self) -> bool {
        *self.has_arena.get_or_init(|| {
            let arenas = self.program.maps.iter().filter(|(_, map)| map.map_type == MapType::ARENA);
            let mut arenas = arenas.map(|(fd, _)| *fd);
            arenas.any(|arena| {
                let mut ops = (0..self.flow.len()).filter_map(|index| self.flow.op(index));
                ops.any(|op| {
                    matches!(op, Op::Imm64 { kind: Imm64::Map | Imm64::MapValue, low, .. } if low == arena)
                })
            })
        })
    }

    /// Checks a register that is about to be read (`check_reg_arg`).
    pub(super) fn read_reg(&mut self, number: u8) -> Check {
        if number > FRAME_POINTER {
            // Only loads from a packet name a register that decoding has not checked.
            return no(Errno::EINVAL, format!("R{number} is invalid"));
        }
        let reg = self.cur.reg(number);
        if reg.kind == Type::Uninit {
            return no(Errno::EACCES, format!("R{number} !read_ok"));
        }
        self.uses.uses_context |= reg.kind == Type::Context;
        Ok(())
    }

    /// Does a load; `aligned` means an atomic access, which must be aligned (`check_atomic_load`).
    fn load(
        &mut self,
        size: Size,
        signed: bool,
        dst: u8,
        src: u8,
        off: i16,
        aligned: bool,
    ) -> Check {
        self.read_reg(src)?;
        self.same_kind_as_before(src, true)?;
        self.access(Access {
            base: src,
            off: off.into(),
            size: size.bytes().into(),
            write: false,
            value: Some(dst),
            constant: None,
            signed,
            strict: aligned,
        })
    }

    /// Does a store; `aligned` means an atomic access, which must be aligned
    /// (`check_atomic_store`).
    fn store(&mut self, size: Size, dst: u8, src: Operand, off: i16, aligned: bool) -> Check {
        let (value, constant) = match src {
            Operand::Reg(src) => {
                self.read_reg(src)?;
                (Some(src), None)
            }
            Operand::Imm(imm) => (None, Some(imm)),
        };
        self.read_reg(dst)?;
        self.same_kind_as_before(dst, false)?;
        self.access(Access {
            base: dst,
            off: off.into(),
            size: size.bytes().into(),
            write: true,
            value,
            constant,
            signed: false,
            strict: aligned,
        })
    }

    fn atomic(&mut self, op: Atomic, fetch: bool, wide: bool, dst: u8, src: u8, off: i16) -> Check {
        self.read_reg(src)?;
        self.read_reg(dst)?;
        let exchange = op == Atomic::CompareExchange;
        if exchange {
            self.read_reg(0)?;
        }
        self.check_atomic_pointer(dst, "stores into")?;
        let fetched = match (exchange, fetch) {
            (true, _) => Some(0),
            (false, true) => Some(src),
            (false, false) => None,
        };
        if fetched == Some(FRAME_POINTER) {
            return no(Errno::EACCES, "frame pointer is read only");
        }
        let access = Access {
            base: dst,
            off: off.into(),
            size: if wide { 8 } else { 4 },
            write: false,
            value: None,
            constant: None,
            signed: false,
            strict: true,
        };
        // A read without a destination register, so that pointers on the stack do not count as
        // numbers.
        self.access(access)?;
        if let Some(register) = fetched {
            self.access(Access {
                value: Some(register),
                ..access
            })?;
        }
        self.access(Access {
            write: true,
            ..access
        })
    }

    /// Implements `atomic_ptr_type_ok`.
    fn check_atomic_pointer(&mut self, number: u8, what: &str) -> Check {
        self.read_reg(number)?;
        let reg = *self.cur.reg(number);
        match reg.kind {
            Type::Context | Type::Packet | Type::PacketMeta | Type::FlowKeys | Type::Socket(_) => {
                let name = super::state_text::type_name(&reg);
                no(
                    Errno::EACCES,
                    format!("BPF_ATOMIC {what} R{number} {name} is not allowed"),
                )
            }
            _ => Ok(()),
        }
    }

    /// Checks that an instruction accesses one kind of memory: it is compiled once, so it may not
    /// access different kinds on different paths (`save_aux_ptr_type`).
    fn same_kind_as_before(&mut self, number: u8, load: bool) -> Check {
        let reg = self.cur.reg(number);
        let kind = match reg.kind {
            Type::Context => PointerKind::Context,
            Type::Socket(kind) => PointerKind::Socket(kind),
            Type::Btf(_) if !reg.flags.has(Flags::ALLOC) => {
                PointerKind::Btf(reg.flags.without(Flags::MAYBE_NULL))
            }
            Type::Arena => PointerKind::Arena,
            _ => PointerKind::Plain,
        };
        let seen = &mut self.seen[self.insn];
        let before = *seen.pointer.get_or_insert(kind);
        let both_structures =
            load && matches!(kind, PointerKind::Btf(_)) && matches!(before, PointerKind::Btf(_));
        if before == kind || both_structures {
            return Ok(());
        }
        no(
            Errno::EINVAL,
            "same insn cannot be used with different pointers",
        )
    }

    fn immediate(&mut self, kind: Imm64, dst: u8, low: i32) -> Check {
        let high = self.insn_at(self.insn + 1).imm;
        let reg = match kind {
            Imm64::Number => {
                let low = u64::from(low.cast_unsigned());
                Reg::known(u64::from(high.cast_unsigned()) << 32 | low)
            }
            Imm64::Map => Reg::pointer(Type::Map(self.map_of(low)?.0)),
            Imm64::MapValue => {
                let (id, map) = self.map_of(low)?;
                if map.map_type == MapType::ARENA {
                    Reg {
                        var: crate::scalar::Scalar::UNKNOWN,
                        ..Reg::pointer(Type::Arena)
                    }
                } else {
                    Reg {
                        off: high,
                        ..Reg::pointer(Type::MapValue(id))
                    }
                }
            }
            Imm64::Function => {
                let types = self.program.types;
                if !types.is_some_and(|types| types.describes_functions()) {
                    return no(Errno::EINVAL, "missing btf func_info");
                }
                let callee = self.flow.callee(self.insn).unwrap_or(0);
                let number = self.flow.function_at(callee).unwrap_or(0);
                if self.is_global(number) {
                    return no(Errno::EINVAL, "callback function not static");
                }
                Reg::pointer(Type::Func(number as u32))
            }
            Imm64::KernelVariable => self.kernel_variable(low)?,
            Imm64::MapIndex | Imm64::MapIndexValue => {
                return no(Errno::EPROTO, "fd_idx without fd_array is invalid");
            }
        };
        *self.cur.reg_mut(dst) = reg;
        Ok(())
    }

    fn map_of(&self, fd: i32) -> Check<(MapId, &Map)> {
        let maps = self.program.maps;
        let Some(named) = maps.iter().find(|(known, _)| *known == fd) else {
            return no(
                Errno::EBADF,
                format!("fd {fd} is not pointing to valid bpf_map"),
            );
        };
        // Two descriptors of one map count as one map.
        let index = maps
            .iter()
            .position(|(_, map)| map.id == named.1.id)
            .unwrap_or(0);
        let id = MapId {
            index: index as u16,
            inner: false,
            unique: 0,
        };
        Ok((id, named.1))
    }

    fn kernel_variable(&self, btf_id: i32) -> Check<Reg> {
        let kernel = self.program.kernel;
        let id = btf_id.cast_unsigned();
        if kernel.is_some_and(|kernel| kernel.function_name(id).is_some()) {
            return Ok(Reg::pointer(Type::Mem(0)).flagged(Flags::RDONLY));
        }
        let variable = kernel.and_then(|kernel| kernel.variable(id));
        let (Some(kernel), Some((type_id, bytes, per_cpu))) = (kernel, variable) else {
            return no(
                Errno::EINVAL,
                format!("ldimm64 insn specifies invalid btf_id {btf_id}."),
            );
        };
        let flags = if per_cpu { Flags::PERCPU } else { Flags::NONE };
        Ok(if per_cpu || kernel.is_structure(type_id) == Some(true) {
            Reg::pointer(Type::Btf(type_id)).flagged(flags)
        } else {
            Reg::pointer(Type::Mem(bytes)).flagged(Flags::RDONLY)
        })
    }
}

/// Returns the message for the instruction that libbpf leaves where something could not be
/// relocated.
fn poison(imm: i32) -> String {
    match imm {
        0 => "invalid kernel function call not eliminated in verifier pass".to_owned(),
        _ => format!("invalid func unknown#{imm}"),
    }
}
