//! Calls of helpers (`check_helper_call`).

use beeline_uapi::flags::RDONLY_PROG;
use beeline_uapi::{Errno, HelperId, MapType};

use super::{Check, Explorer, Next, no};
use crate::context::SocketKind;
use crate::helpers::{Helper, Missing, Ret, helper};
use crate::scalar::Scalar;
use crate::state::{DynptrKind, Flags, HeldKind, LockPlace, MapId, Reg, Type};

/// The facts that a call's arguments tell (`struct bpf_call_arg_meta`).
#[derive(Debug, Default)]
pub(super) struct Meta {
    pub id: HelperId,
    pub packet_access: bool,
    pub map: Option<MapId>,
    /// The key, if it is a constant.
    pub key: Option<u64>,
    /// Memory that the helper initialises: register, offset and bytes.
    pub raw: Option<(u8, i32, i32)>,
    /// The bound of the last size.
    pub most: u64,
    /// The bytes of memory that is reserved.
    pub bytes: u32,
    /// The reference among the arguments.
    pub ref_id: u32,
    /// The register that is given back.
    pub release: Option<u8>,
    pub function: Option<usize>,
    /// The structure of the result, by BTF id.
    pub btf_id: u32,
    /// True if it is one of the program's own types: an object with an instance for each CPU.
    pub of_program: bool,
    /// The dynptr that the data belongs to.
    pub dynptr_id: u32,
    pub dynptr: Option<DynptrKind>,
    /// The field that `kptr_xchg` exchanges.
    pub field: Option<crate::program::FieldKind>,
}

impl Explorer<'_> {
    pub(super) fn call_helper(&mut self, number: HelperId) -> Check<Next> {
        let helper = self.find_helper(number)?;
        let mut meta = Meta {
            id: number,
            packet_access: helper.packet_access,
            ..Meta::default()
        };
        for (register, arg) in (1_u8..).zip(helper.args) {
            self.check_argument(register, *arg, helper, &mut meta)?;
        }
        if let Some(map) = meta.map {
            self.check_may_change(map, number)?;
            self.check_map_suits(map, number)?;
            if number == HelperId::TAIL_CALL {
                self.note_constant_index(map)?;
            }
        }
        if let Some((register, off, bytes)) = meta.raw {
            self.mark_written(register, off, bytes)?;
        }
        self.release_argument(helper, &meta)?;
        let changes_packet = self.special_rules(&mut meta)? || helper.changes_packet;
        let depth = self.cur.depth();
        self.forget_caller_saved(depth);
        self.set_result(helper, &meta)?;
        self.uses.helpers.insert(number);
        if number == HelperId::TAIL_CALL {
            // If the call fails, nothing has changed; otherwise everything may have, and the called
            // program's end is this function's.
            return self.return_early(Reg::UNKNOWN, true);
        }
        if changes_packet {
            self.forget_packet_pointers();
        }
        Ok(Next::Insn(self.insn + 1))
    }

    /// Checks that helpers do not change a map that programs may only read (`record_func_map`).
    fn check_may_change(&self, map: MapId, number: HelperId) -> Check {
        let changes = [
            HelperId::MAP_UPDATE_ELEM,
            HelperId::MAP_DELETE_ELEM,
            HelperId::MAP_PUSH_ELEM,
            HelperId::MAP_POP_ELEM,
        ];
        if changes.contains(&number) && self.program.map(map).flags & RDONLY_PROG != 0 {
            return no(Errno::EACCES, "write into map forbidden");
        }
        Ok(())
    }

    /// Records the index of a tail call. A constant one becomes a jump, so other numbers no longer
    /// count as the same (`record_func_key`).
    fn note_constant_index(&mut self, map: MapId) -> Check {
        let index = self.cur.reg(3).var.constant();
        let is_element = |index: u64| index < u64::from(self.program.map(map).max_entries);
        if index.is_some_and(is_element) {
            self.mark_precise(3)?;
        }
        Ok(())
    }

    fn find_helper(&self, id: HelperId) -> Check<&'static Helper> {
        let (number, name) = (id.0, id.name().unwrap_or("unknown"));
        let served = self.program.helpers.is_none_or(|serves| serves(id));
        let found = match helper(id, &self.program.kind, self.target_name()) {
            Ok(found) if served => found,
            Err(Missing::Unknown) => {
                return no(
                    Errno::EINVAL,
                    format!("invalid func unknown#{}", number.cast_signed()),
                );
            }
            Err(Missing::NotAtThisTarget) => {
                return no(Errno::EINVAL, "helper call is not allowed in probe");
            }
            Ok(_) | Err(Missing::NotForThisType) => {
                return no(
                    Errno::EINVAL,
                    format!("program of this type cannot use helper bpf_{name}#{number}"),
                );
            }
        };
        if found.gpl_only && !self.program.gpl {
            return no(
                Errno::EINVAL,
                "cannot call GPL-restricted function from non-GPL compatible program",
            );
        }
        if found.might_sleep {
            let state = &self.cur;
            let why = if !state.in_sleepable {
                "helper call might sleep in a non-sleepable prog".to_owned()
            } else if state.rcu > 0 {
                format!("sleepable helper bpf_{name}#{number} in rcu_read_lock region")
            } else if state.preempt > 0 {
                format!("sleepable helper bpf_{name}#{number} in non-preemptible region")
            } else if state.irq_id != 0 {
                format!("sleepable helper bpf_{name}#{number} in IRQ-disabled region")
            } else {
                return self.allowed_under_lock(found);
            };
            return no(Errno::EINVAL, why);
        }
        self.allowed_under_lock(found)
    }

    /// Returns the function or structure that the program attaches to.
    pub(super) fn target_name(&self) -> Option<&str> {
        let target = self.program.kind.attach_btf_id;
        let kernel = self.program.kernel.filter(|_| target != 0)?;
        kernel
            .function_name(target)
            .or_else(|| Some(kernel.name(target)))
    }

    /// Releases an argument that is no longer the program's.
    fn release_argument(&mut self, helper: &Helper, meta: &Meta) -> Check {
        let Some(register) = meta.release else {
            return Ok(());
        };
        let is_dynptr = matches!(
            helper.args.get(usize::from(register) - 1),
            Some(crate::helpers::Arg::Dynptr(_))
        );
        let reg = *self.cur.reg(register);
        let released = if is_dynptr {
            self.release_dynptr(&reg)?;
            true
        } else if meta.id == HelperId::KPTR_XCHG && meta.ref_id != 0 {
            self.hand_over(meta.ref_id)
        } else if meta.ref_id != 0 {
            self.release(meta.ref_id)
        } else {
            reg.is_null()
        };
        if released {
            return Ok(());
        }
        no(
            Errno::EINVAL,
            format!(
                "func {}#{} reference has not been acquired before",
                helper.id, helper.id.0
            ),
        )
    }

    /// Applies the rules and effects of single helpers. Returns `true` if packet pointers are void
    /// afterwards.
    fn special_rules(&mut self, meta: &mut Meta) -> Check<bool> {
        match meta.id {
            HelperId::TAIL_CALL => self.check_nothing_is_held(true, "tail_call")?,
            HelperId::GET_FUNC_IP => self.check_func_ip()?,
            HelperId::GET_LOCAL_STORAGE if !self.cur.reg(2).is_null() => {
                return no(
                    Errno::EINVAL,
                    "get_local_storage() doesn't support non-zero flags",
                );
            }
            HelperId::FOR_EACH_MAP_ELEM
            | HelperId::FIND_VMA
            | HelperId::LOOP
            | HelperId::USER_RINGBUF_DRAIN
            | HelperId::TIMER_SET_CALLBACK => {
                let function = meta.function.unwrap_or(0);
                self.call_back(meta.id, function, meta.map)?;
            }
            HelperId::SNPRINTF => self.check_format()?,
            HelperId::DYNPTR_FROM_MEM => {
                let reg = *self.cur.reg(1);
                if !matches!(reg.kind, Type::MapValue(_)) {
                    let name = super::state_text::type_name(&reg);
                    return no(
                        Errno::EACCES,
                        format!("Unsupported reg type {name} for bpf_dynptr_from_mem data"),
                    );
                }
            }
            HelperId::DYNPTR_WRITE => {
                return Ok(matches!(
                    meta.dynptr,
                    Some(DynptrKind::Skb | DynptrKind::SkbMeta)
                ));
            }
            _ => {}
        }
        Ok(false)
    }

    fn check_func_ip(&self) -> Check {
        use beeline_uapi::{AttachType, ProgramType};
        let kind = &self.program.kind;
        let why = match kind.prog_type {
            ProgramType::KPROBE => return Ok(()),
            ProgramType::TRACING => match kind.attach_type {
                AttachType::TRACE_FENTRY | AttachType::TRACE_FEXIT | AttachType::MODIFY_RETURN => {
                    return Ok(());
                }
                _ => "func bpf_get_func_ip#173 supported only for fentry/fexit/fmod_ret programs"
                    .to_owned(),
            },
            other => format!("func bpf_get_func_ip#173 not supported for program type {other}"),
        };
        no(Errno::ENOTSUPP, why)
    }

    fn set_result(&mut self, helper: &Helper, meta: &Meta) -> Check {
        let flagged = |kind: Type, or_null: bool| {
            Reg::pointer(kind).flagged(if or_null {
                Flags::MAYBE_NULL
            } else {
                Flags::NONE
            })
        };
        let mut result = match helper.ret {
            Ret::Integer => Reg::UNKNOWN,
            Ret::Void => Reg::UNINIT,
            Ret::Value { or_null } => self.value_result(meta, or_null),
            Ret::SocketOrNull => flagged(Type::Socket(SocketKind::Socket), true),
            Ret::SockCommonOrNull => flagged(Type::Socket(SocketKind::Common), true),
            Ret::TcpSockOrNull => flagged(Type::Socket(SocketKind::Tcp), true),
            Ret::RingbufMemOrNull => flagged(Type::Mem(meta.bytes), true).flagged(Flags::RINGBUF),
            Ret::DynptrMemOrNull => flagged(Type::Mem(meta.bytes), true),
            Ret::Btf {
                name,
                or_null,
                trusted,
            } => {
                let kernel = self.program.kernel;
                let Some(btf_id) = kernel.and_then(|kernel| kernel.structure(name)) else {
                    return no(Errno::EINVAL, format!("in-kernel BTF has no struct {name}"));
                };
                let reg = flagged(Type::Btf(btf_id), or_null);
                if trusted {
                    reg.flagged(Flags::TRUSTED)
                } else {
                    reg
                }
            }
            Ret::MemOrBtf { or_null } => self.per_cpu_result(meta, or_null)?,
            Ret::KptrOrNull => self.exchanged_result(meta),
        };
        if result.may_be_null() {
            result.id = self.fresh_id();
        }
        if matches!(meta.id, HelperId::DYNPTR_DATA) {
            result.ref_id = meta.ref_id;
            // Slices end with their dynptr, which this identifies.
            result.range = meta.dynptr_id.cast_signed();
        } else if is_cast(meta.id) {
            result.ref_id = meta.ref_id;
        } else if self.acquires(meta) {
            let id = self.fresh_id();
            self.cur
                .hold(HeldKind::Object, id, self.insn, LockPlace::None);
            result.id = id;
            result.ref_id = id;
        }
        if helper.ret == Ret::Integer {
            refine_result(&mut result, meta);
        }
        *self.cur.reg_mut(0) = result;
        Ok(())
    }

    fn value_result(&mut self, meta: &Meta, or_null: bool) -> Reg {
        let Some(id) = meta.map else {
            return Reg::UNKNOWN;
        };
        let map = self.program.map(id);
        let is_array = matches!(map.map_type, MapType::ARRAY | MapType::PERCPU_ARRAY);
        let is_there = meta.id == HelperId::MAP_LOOKUP_ELEM
            && is_array
            && meta.key.is_some_and(|key| key < map.max_entries.into());
        let or_null = or_null && !is_there;
        let mut reg = Reg::pointer(Type::MapValue(id));
        if or_null {
            reg = reg.flagged(Flags::MAYBE_NULL);
        } else if super::locks::has_lock(map) {
            reg.id = self.fresh_id();
        }
        reg
    }

    fn per_cpu_result(&mut self, meta: &Meta, or_null: bool) -> Check<Reg> {
        let flags = if or_null {
            Flags::MAYBE_NULL
        } else {
            Flags::NONE
        };
        if meta.of_program {
            let own = Flags::ALLOC.with(Flags::RCU);
            return Ok(Reg::pointer(Type::Btf(meta.btf_id)).flagged(own));
        }
        let Some(kernel) = self.program.kernel else {
            return no(Errno::EINVAL, "Helper has invalid btf_id in R1");
        };
        let is_structure = kernel.structure(kernel.name(meta.btf_id)) == Some(meta.btf_id);
        Ok(match kernel.size(meta.btf_id) {
            _ if is_structure => Reg::pointer(Type::Btf(meta.btf_id)).flagged(flags),
            Some(bytes) => Reg::pointer(Type::Mem(bytes)).flagged(flags.with(Flags::RDONLY)),
            None => return no(Errno::EINVAL, "unable to resolve the size of type"),
        })
    }

    fn exchanged_result(&mut self, meta: &Meta) -> Reg {
        use crate::program::FieldKind;
        let (btf_id, flags) = match meta.field {
            Some(FieldKind::OwnedPointer { btf_id, local }) => {
                (btf_id, if local { Flags::ALLOC } else { Flags::TRUSTED })
            }
            Some(FieldKind::PerCpuPointer(btf_id)) => (btf_id, Flags::ALLOC.with(Flags::PERCPU)),
            _ => (0, Flags::NONE),
        };
        Reg::pointer(Type::Btf(btf_id)).flagged(flags.with(Flags::MAYBE_NULL))
    }

    /// Implements `is_acquire_function`.
    fn acquires(&self, meta: &Meta) -> bool {
        match meta.id {
            HelperId::SK_LOOKUP_TCP
            | HelperId::SK_LOOKUP_UDP
            | HelperId::SKC_LOOKUP_TCP
            | HelperId::RINGBUF_RESERVE
            | HelperId::KPTR_XCHG => true,
            HelperId::MAP_LOOKUP_ELEM => meta.map.is_some_and(|map| {
                matches!(
                    self.program.map(map).map_type,
                    MapType::SOCKMAP | MapType::SOCKHASH
                )
            }),
            _ => false,
        }
    }
}

/// Implements `is_ptr_cast_function`: the result is the argument, under another name.
fn is_cast(helper: HelperId) -> bool {
    matches!(
        helper,
        HelperId::TCP_SOCK
            | HelperId::SK_FULLSOCK
            | HelperId::SKC_TO_TCP_SOCK
            | HelperId::SKC_TO_TCP6_SOCK
            | HelperId::SKC_TO_UDP6_SOCK
            | HelperId::SKC_TO_MPTCP_SOCK
            | HelperId::SKC_TO_TCP_TIMEWAIT_SOCK
            | HelperId::SKC_TO_TCP_REQUEST_SOCK
            | HelperId::SKC_TO_UNIX_SOCK
    )
}

/// Sets bounds of results that follow from the arguments (`do_refine_retval_range`).
fn refine_result(result: &mut Reg, meta: &Meta) {
    let var: &mut Scalar = &mut result.var;
    match meta.id {
        HelperId::GET_STACK
        | HelperId::GET_TASK_STACK
        | HelperId::PROBE_READ_STR
        | HelperId::PROBE_READ_KERNEL_STR
        | HelperId::PROBE_READ_USER_STR => {
            var.wide.smax = meta.most.cast_signed();
            var.narrow.smax = meta.most as i32;
            var.wide.smin = -i64::from(Errno::MAX);
            var.narrow.smin = -Errno::MAX;
        }
        HelperId::GET_SMP_PROCESSOR_ID => {
            let last = super::cpus() - 1;
            var.wide.umax = last.into();
            var.narrow.umax = last;
            var.wide.smax = last.into();
            var.narrow.smax = last.cast_signed();
            var.wide.umin = 0;
            var.narrow.umin = 0;
            var.wide.smin = 0;
            var.narrow.smin = 0;
        }
        _ => return,
    }
    var.sync();
}
