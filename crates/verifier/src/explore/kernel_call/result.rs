//! The content of r0 after a call of a kernel function (`check_kfunc_call`, `check_special_kfunc`).

use beeline_uapi::Errno;
use beeline_uapi::limits::BPF_GLOBAL_PERCPU_MA_MAX_SIZE;

use super::super::{Check, Explorer, no};
use super::{Call, Meta};
use crate::state::{DynptrKind, Flags, HeldKind, LockPlace, Object, Reg, Type};
use crate::types::ParamType;
use crate::types::kernel_functions::flags;

impl Explorer<'_> {
    pub(super) fn set_kernel_result(&mut self, call: &Call<'_>, meta: &Meta) -> Check {
        let result = match call.result {
            ParamType::Void => Reg::UNINIT,
            ParamType::Number { .. } if call.function.name.starts_with("bpf_res_spin_lock") => {
                Reg::known(0)
            }
            ParamType::Number { .. } => Reg::UNKNOWN,
            _ => self.pointer_result(call, meta)?,
        };
        *self.cur.reg_mut(0) = result;
        Ok(())
    }

    fn pointer_result(&mut self, call: &Call<'_>, meta: &Meta) -> Check<Reg> {
        let is_node = matches!(
            call.result,
            ParamType::Structure { btf_id, .. }
                if matches!(call.kernel.name(btf_id), "bpf_list_node" | "bpf_rb_node")
        );
        let mut reg = match self.special_result(call, meta, is_node)? {
            Some(reg) => reg,
            None => self.plain_result(call, meta)?,
        };
        // The program has another reference to an object of its own.
        let or_null = call.has(flags::RET_NULL) && !meta.owned;
        if or_null {
            reg = reg.flagged(Flags::MAYBE_NULL);
            reg.id = self.fresh_id();
        }
        if call.has(flags::ACQUIRE) {
            let id = self.fresh_id();
            self.cur
                .hold(HeldKind::Object, id, self.insn, LockPlace::None);
            if or_null {
                reg.id = id;
            }
            reg.ref_id = id;
        } else if is_node {
            reg = self.node_in_place(reg);
        }
        if reg.is_allocated_object() && reg.id == 0 {
            reg.id = self.fresh_id();
        }
        // A number cannot be null.
        if reg.is_scalar() {
            reg.flags = Flags::NONE;
        }
        Ok(reg)
    }

    /// Returns the result of functions that define it by their arguments.
    fn special_result(&self, call: &Call<'_>, meta: &Meta, is_node: bool) -> Check<Option<Reg>> {
        let constant = meta.constant.unwrap_or(0);
        Ok(Some(match call.function.name {
            "bpf_obj_new_impl" => self.allocated(constant, false)?,
            "bpf_percpu_obj_new_impl" => self.allocated(constant, true)?,
            "bpf_refcount_acquire_impl" => {
                Reg::pointer(Type::Btf(meta.object)).flagged(Flags::ALLOC)
            }
            _ if is_node => match meta.root {
                Some(root) => self.node(root),
                None => return no(Errno::EINVAL, "a node without a root"),
            },
            "bpf_cast_to_kern_ctx" => {
                let behind = call.kernel.kernel_context(self.program.kind.prog_type);
                Reg::pointer(Type::Btf(behind.unwrap_or(0))).flagged(Flags::TRUSTED)
            }
            "bpf_rdonly_cast" => self.cast(call, constant)?,
            "bpf_dynptr_slice" => self.slice(meta).flagged(Flags::RDONLY),
            "bpf_dynptr_slice_rdwr" => {
                if !crate::context::packet::may_store(&self.program.kind) {
                    return no(
                        Errno::EINVAL,
                        "the prog does not allow writes to packet data",
                    );
                }
                self.slice(meta)
            }
            _ => return Ok(None),
        }))
    }

    /// Returns a new object of one of the program's types.
    fn allocated(&self, constant: u64, per_cpu: bool) -> Check<Reg> {
        let Ok(btf_id) = u32::try_from(constant) else {
            return no(
                Errno::EINVAL,
                "local type ID argument must be in range [0, U32_MAX]",
            );
        };
        let Some(types) = self.program.types else {
            return no(
                Errno::EINVAL,
                "bpf_obj_new/bpf_percpu_obj_new requires prog BTF",
            );
        };
        let Some(bytes) = types.object_size(btf_id) else {
            return no(
                Errno::EINVAL,
                "bpf_obj_new/bpf_percpu_obj_new type ID argument must be of a struct",
            );
        };
        let reg = Reg::pointer(Type::Btf(btf_id)).flagged(Flags::ALLOC);
        if !per_cpu {
            return Ok(reg);
        }
        if bytes > BPF_GLOBAL_PERCPU_MA_MAX_SIZE {
            return no(
                Errno::EINVAL,
                format!(
                    "bpf_percpu_obj_new type size ({bytes}) is greater than {BPF_GLOBAL_PERCPU_MA_MAX_SIZE}"
                ),
            );
        }
        if !types.has_only_numbers(btf_id) {
            return no(
                Errno::EINVAL,
                "bpf_percpu_obj_new type ID argument must be of a struct of scalars",
            );
        }
        if !types.object_fields(btf_id, self.program.kernel).is_empty() {
            return no(
                Errno::EINVAL,
                "bpf_percpu_obj_new type ID argument must not contain special fields",
            );
        }
        Ok(reg.flagged(Flags::PERCPU))
    }

    /// Returns something that may be read like a structure of the kernel, or bytes.
    fn cast(&self, call: &Call<'_>, constant: u64) -> Check<Reg> {
        let btf_id = constant as u32;
        if btf_id == 0 {
            return Ok(Reg::pointer(Type::Mem(0))
                .flagged(Flags::RDONLY)
                .flagged(Flags::UNTRUSTED));
        }
        match call.kernel.is_structure(btf_id) {
            Some(true) => Ok(Reg::pointer(Type::Btf(btf_id)).flagged(Flags::UNTRUSTED)),
            Some(false) => no(
                Errno::EINVAL,
                "kfunc bpf_rdonly_cast type ID argument must be of a struct or void",
            ),
            None => no(
                Errno::EINVAL,
                format!("Unknown type ID {constant} passed to kfunc bpf_rdonly_cast"),
            ),
        }
    }

    /// Returns memory of a dynptr, which ends with it.
    fn slice(&self, meta: &Meta) -> Reg {
        let bytes = meta.constant.unwrap_or(0) as u32;
        let mut reg = Reg::pointer(Type::Mem(bytes));
        if let Some(dynptr) = meta.dynptr {
            reg.range = dynptr.id.cast_signed();
            if matches!(
                dynptr.kind,
                DynptrKind::Skb | DynptrKind::Xdp | DynptrKind::SkbMeta
            ) {
                reg = reg.flagged(Flags::DYNPTR_SLICE);
            }
        }
        reg
    }

    /// Returns the result of all other functions, by the prototype.
    fn plain_result(&self, call: &Call<'_>, meta: &Meta) -> Check<Reg> {
        let rcu = if call.has(flags::RCU_PROTECTED) {
            Flags::RCU
        } else {
            Flags::NONE
        };
        if call.result == ParamType::Anything {
            return Ok(Reg::UNKNOWN);
        }
        let ParamType::Structure { btf_id, .. } = call.result else {
            let bytes = match (call.result, meta.result_bytes) {
                (_, Some((bytes, writable))) => (bytes, writable),
                (_, None) if call.is("bpf_session_cookie") => (8, true),
                (ParamType::Numbers { bytes, .. }, None) => (bytes.into(), false),
                _ => return self.unsupported_result(call),
            };
            let flags = if bytes.1 { Flags::NONE } else { Flags::RDONLY };
            return Ok(Reg {
                ref_id: meta.ref_id,
                ..Reg::pointer(Type::Mem(bytes.0 as u32)).flagged(flags.with(rcu))
            });
        };
        let trust = if call.is("bpf_get_kmem_cache") {
            Flags::UNTRUSTED
        } else if let Some((frame, slot)) = meta.iterator.filter(|_| call.has(flags::ITER_NEXT)) {
            let content = &self.cur.frames[frame].stack[slot];
            debug_assert!(matches!(content.object, Object::Iter { .. }));
            if content.reg.flags.has(Flags::RCU) {
                Flags::RCU
            } else {
                Flags::TRUSTED
            }
        } else {
            rcu
        };
        Ok(Reg::pointer(Type::Btf(btf_id)).flagged(trust))
    }

    fn unsupported_result<T>(&self, call: &Call<'_>) -> Check<T> {
        if call.has(flags::ACQUIRE) {
            return no(
                Errno::EINVAL,
                "acquire kernel function does not return PTR_TO_BTF_ID",
            );
        }
        no(
            Errno::EACCES,
            format!(
                "kernel function {} returns pointer type that is not supported",
                call.function.name
            ),
        )
    }
}
