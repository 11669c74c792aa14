//! Accesses to contexts, and to the memory that they lead to: sockets, flow keys, structures of the
//! kernel (`check_ctx_access`, `check_sock_access`, `check_ptr_to_btf_access`).

use beeline_uapi::{Errno, MapType, ProgramType};

use super::memory::Access;
use super::{Check, Explorer, no};
use crate::context::{self, Field, SocketKind, flow_keys_access, socket_access};
use crate::state::{Flags, Reg, Type};
use crate::types::{Member, Trust};

impl Explorer<'_> {
    pub(super) fn access_context(&mut self, reg: &Reg, access: Access, at: i32) -> Check<Reg> {
        let Access {
            base, size, write, ..
        } = access;
        self.check_no_offset(reg, base, false)?;
        let bad = || {
            no(
                Errno::EACCES,
                format!("invalid bpf_context access off={at} size={size}"),
            )
        };
        let by_btf = matches!(
            self.program.kind.prog_type,
            ProgramType::TRACING | ProgramType::LSM | ProgramType::STRUCT_OPS
        );
        let loaded = if by_btf {
            if write {
                return bad();
            }
            self.load_described(at, size)?
        } else {
            let field = context::access(&self.program.kind, at, size as u32, write);
            let field = field.filter(|field| !access.signed || field.may_be_sign_extended());
            match field {
                Some(field) => self.field(field),
                None => return bad(),
            }
        };
        self.uses
            .context
            .insert((at.cast_unsigned(), size.cast_unsigned(), write));
        if write {
            let store = (self.insn, at.cast_unsigned());
            self.uses.context_stores.insert(store);
        }
        Ok(loaded)
    }

    /// Loads from a context that the kernel's BTF describes.
    fn load_described(&mut self, at: i32, size: i32) -> Check<Reg> {
        let bad = |why: String| {
            let line = format!("invalid bpf_context access off={at} size={size}");
            no(
                Errno::EACCES,
                if why.is_empty() {
                    line
                } else {
                    format!("{why}\n{line}")
                },
            )
        };
        let Some(kernel) = self.program.kernel else {
            return bad(String::new());
        };
        match kernel.context(&self.program.kind, at, size as u32) {
            Ok(Member::Scalar) if kernel.is_hook_result(&self.program.kind, at) => {
                Ok(self.hook_result_read())
            }
            Ok(member) => {
                let loaded = self.member(member);
                self.owned_argument(loaded, at)
            }
            Err(why) => bad(why),
        }
    }

    /// Adds the program's reference to an object loaded from the context.
    fn owned_argument(&self, loaded: Reg, at: i32) -> Check<Reg> {
        let mut owned = self.owned_arguments.iter();
        let Some((_, id)) = owned.find(|(offset, _)| offset.cast_signed() == at) else {
            return Ok(loaded);
        };
        if !self.cur.held.iter().any(|held| held.id == *id) {
            return no(
                Errno::EACCES,
                format!("invalid bpf_context access off={at}. Reference may already be released"),
            );
        }
        Ok(Reg {
            ref_id: *id,
            ..loaded
        })
    }

    /// Returns the hook's own result, which an LSM program sees: it is within the range of the hook
    /// (`get_func_retval_range`, `__mark_reg_s32_range`).
    fn hook_result_read(&self) -> Reg {
        let mut reg = Reg::UNKNOWN;
        if let Some(range) = self.hook_returns() {
            (reg.var.narrow.smin, reg.var.narrow.smax) = (*range.start(), *range.end());
            (reg.var.wide.smin, reg.var.wide.smax) =
                ((*range.start()).into(), (*range.end()).into());
            reg.var.sync();
        }
        reg
    }

    fn field(&mut self, field: Field) -> Reg {
        let pointer = |kind: Type, or_null: bool| {
            let flags = if or_null {
                Flags::MAYBE_NULL
            } else {
                Flags::NONE
            };
            Reg::pointer(kind).flagged(flags)
        };
        let mut reg = match field {
            Field::Scalar { .. } => return Reg::UNKNOWN,
            Field::PacketMeta => Reg::pointer(Type::PacketMeta),
            Field::Packet => Reg::pointer(Type::Packet),
            Field::PacketEnd => Reg::pointer(Type::PacketEnd),
            Field::FlowKeys => Reg::pointer(Type::FlowKeys),
            Field::Socket { or_null } => pointer(Type::Socket(SocketKind::Socket), or_null),
            Field::SockCommon { or_null } => pointer(Type::Socket(SocketKind::Common), or_null),
            Field::Btf { name, or_null } => {
                let kernel = self.program.kernel;
                let btf_id = kernel.and_then(|kernel| kernel.structure(name));
                pointer(Type::Btf(btf_id.unwrap_or(0)), or_null).flagged(Flags::TRUSTED)
            }
            Field::TracepointBuffer => Reg::pointer(Type::TracepointBuffer),
        };
        if reg.may_be_null() {
            reg.id = self.fresh_id();
        }
        reg
    }

    /// Returns the result of a load from a structure of the kernel.
    fn member(&mut self, member: Member) -> Reg {
        let mut reg = match member {
            Member::Scalar => return Reg::UNKNOWN,
            Member::UntrustedMem => Reg::pointer(Type::Mem(0))
                .flagged(Flags::RDONLY)
                .flagged(Flags::UNTRUSTED),
            Member::Pointer {
                btf_id,
                trust,
                or_null,
            } => {
                let reg = Reg::pointer(Type::Btf(btf_id)).flagged(flags_of(trust));
                if or_null {
                    reg.flagged(Flags::MAYBE_NULL)
                } else {
                    reg
                }
            }
            Member::Buffer { writable } => {
                let flags = if writable { Flags::NONE } else { Flags::RDONLY };
                Reg::pointer(Type::Buffer).flagged(flags.with(Flags::MAYBE_NULL))
            }
        };
        if reg.may_be_null() {
            reg.id = self.fresh_id();
        }
        reg
    }

    pub(super) fn access_socket(
        &mut self,
        reg: &Reg,
        kind: SocketKind,
        access: Access,
        at: i32,
    ) -> Check<Reg> {
        let Access {
            base, size, write, ..
        } = access;
        if write {
            return self.refuse_write(base, reg);
        }
        if reg.var.wide.smin < 0 {
            return no(
                Errno::EACCES,
                format!(
                    "R{base} min value is negative, either use unsigned index or do a if (index >=0) check."
                ),
            );
        }
        let fixed = reg.var.constant() == Some(0);
        match socket_access(kind, at, size as u32).filter(|_| fixed) {
            Some(field) => Ok(self.field(field)),
            None => {
                let name = super::state_text::type_name(reg);
                no(
                    Errno::EACCES,
                    format!("R{base} invalid {name} access off={at} size={size}"),
                )
            }
        }
    }

    pub(super) fn access_flow_keys(&mut self, access: Access, at: i32) -> Check<Reg> {
        if flow_keys_access(at, access.size as u32) {
            return Ok(Reg::UNKNOWN);
        }
        no(
            Errno::EACCES,
            format!("invalid access to flow keys off={at} size={}", access.size),
        )
    }

    /// Implements `check_ptr_to_btf_access`.
    pub(super) fn access_structure(&mut self, reg: &Reg, access: Access) -> Check<Reg> {
        let Type::Btf(btf_id) = reg.kind else {
            return Ok(Reg::UNKNOWN);
        };
        let Access {
            base, size, write, ..
        } = access;
        let at = reg.off + access.off;
        let name = self.text().structure(reg, btf_id);
        if at < 0 {
            return no(
                Errno::EACCES,
                format!("R{base} is ptr_{name} invalid negative access: off={at}"),
            );
        }
        if reg.var.constant() != Some(0) {
            return no(
                Errno::EACCES,
                format!(
                    "R{base} is ptr_{name} invalid variable offset: off={at}, var_off={}",
                    reg.var.bits
                ),
            );
        }
        for (flag, what) in [(Flags::USER, "user"), (Flags::PERCPU, "percpu")] {
            if reg.flags.has(flag) && !reg.flags.has(Flags::ALLOC) {
                return no(
                    Errno::EACCES,
                    format!("R{base} is ptr_{name} access {what} memory: off={at}"),
                );
            }
        }
        if reg.flags.has(Flags::ALLOC) {
            return self.access_object(reg, btf_id, access, at);
        }
        let Some(kernel) = self.program.kernel else {
            return no(Errno::EACCES, "no kernel BTF");
        };
        if write {
            let kind = &self.program.kind;
            return match kernel.may_write(kind, btf_id, at, size as u32) {
                Ok(()) => Ok(Reg::UNKNOWN),
                Err((errno, why)) => no(errno, why),
            };
        }
        let rcu = self.in_rcu();
        match kernel.member(btf_id, at, size as u32, trust_of(reg), rcu) {
            Ok(member) => Ok(self.member(member)),
            Err((errno, why)) => no(errno, why),
        }
    }

    /// Accesses an object that the program has allocated.
    fn access_object(&mut self, reg: &Reg, btf_id: u32, access: Access, at: i32) -> Check<Reg> {
        let Some(types) = self.program.types else {
            return no(Errno::EACCES, "no BTF");
        };
        if access.write && reg.flags.has(Flags::UNTRUSTED) {
            return no(Errno::EACCES, "only read is supported");
        }
        match types.member(
            btf_id,
            at.cast_unsigned(),
            access.size as u32,
            self.program.kernel,
        ) {
            Ok(_) => Ok(Reg::UNKNOWN),
            Err((errno, why)) => no(errno, why),
        }
    }

    /// Checks that a helper may read so many bytes of a structure.
    pub(super) fn check_structure_read(&mut self, number: u8, reg: &Reg, size: i32) -> Check {
        let access = Access {
            base: number,
            off: 0,
            size,
            write: false,
            value: None,
            constant: None,
            signed: false,
            strict: false,
        };
        self.access_structure(reg, access).map(|_| ())
    }

    /// Implements `check_ptr_to_map_access`: accesses the kernel's own structure of a map.
    pub(super) fn access_map_itself(&mut self, reg: &Reg, access: Access) -> Check<Reg> {
        let Type::Map(id) = reg.kind else {
            return Ok(Reg::UNKNOWN);
        };
        let Access {
            base, size, write, ..
        } = access;
        let at = reg.off + access.off;
        let map_type = self.program.map(id).map_type;
        let name = map_structure(map_type);
        if at < 0 {
            return no(
                Errno::EACCES,
                format!("R{base} is {name} invalid negative access: off={at}"),
            );
        }
        if write {
            return no(Errno::EACCES, format!("only read from {name} is supported"));
        }
        let kernel = self.program.kernel;
        let structure = kernel.and_then(|kernel| kernel.structure(name));
        let (Some(kernel), Some(structure)) = (kernel, structure) else {
            return no(
                Errno::ENOTSUPP,
                format!("map_ptr access not supported for map type {}", map_type.0),
            );
        };
        self.uses.map_structure.get_or_insert(self.insn);
        match kernel.member(structure, at, size as u32, Trust::Plain, false) {
            Ok(member) => Ok(self.member(member)),
            Err((errno, why)) => no(errno, why),
        }
    }
}

fn flags_of(trust: Trust) -> Flags {
    match trust {
        Trust::Trusted => Flags::TRUSTED,
        Trust::Rcu => Flags::RCU,
        Trust::User => Flags::USER,
        Trust::PerCpu => Flags::PERCPU,
        Trust::Plain => Flags::NONE,
        Trust::Untrusted => Flags::UNTRUSTED,
    }
}

fn trust_of(reg: &Reg) -> Trust {
    if reg.flags.has(Flags::UNTRUSTED) {
        Trust::Untrusted
    } else if reg.is_trusted() {
        Trust::Trusted
    } else if reg.flags.has(Flags::RCU) {
        Trust::Rcu
    } else {
        Trust::Plain
    }
}

/// Returns the kernel's structure for maps of a type (`map_btf_id`).
fn map_structure(map_type: MapType) -> &'static str {
    match map_type {
        MapType::HASH
        | MapType::PERCPU_HASH
        | MapType::LRU_HASH
        | MapType::LRU_PERCPU_HASH
        | MapType::HASH_OF_MAPS => "bpf_htab",
        MapType::ARRAY
        | MapType::PROG_ARRAY
        | MapType::PERF_EVENT_ARRAY
        | MapType::PERCPU_ARRAY
        | MapType::CGROUP_ARRAY
        | MapType::ARRAY_OF_MAPS => "bpf_array",
        MapType::STACK_TRACE => "bpf_stack_map",
        MapType::LPM_TRIE => "lpm_trie",
        MapType::DEVMAP | MapType::DEVMAP_HASH => "bpf_dtab",
        MapType::CPUMAP => "bpf_cpu_map",
        MapType::SOCKMAP => "bpf_stab",
        MapType::XSKMAP => "xsk_map",
        MapType::SOCKHASH => "bpf_shtab",
        MapType::CGROUP_STORAGE | MapType::PERCPU_CGROUP_STORAGE => "bpf_cgroup_storage_map",
        MapType::REUSEPORT_SOCKARRAY => "reuseport_array",
        MapType::QUEUE | MapType::STACK => "bpf_queue_stack",
        MapType::SK_STORAGE
        | MapType::INODE_STORAGE
        | MapType::TASK_STORAGE
        | MapType::CGRP_STORAGE => "bpf_local_storage_map",
        MapType::RINGBUF | MapType::USER_RINGBUF => "bpf_ringbuf_map",
        MapType::BLOOM_FILTER => "bpf_bloom_filter",
        MapType::ARENA => "bpf_arena",
        _ => "bpf_map",
    }
}

/// Returns the log's name for accesses to sockets.
pub(super) fn socket_description(kind: SocketKind) -> &'static str {
    match kind {
        SocketKind::Common => "sock_common ",
        SocketKind::Socket => "sock ",
        SocketKind::Tcp => "tcp_sock ",
        SocketKind::Xdp => "xdp_sock ",
    }
}
