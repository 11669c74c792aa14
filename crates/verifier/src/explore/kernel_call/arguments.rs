//! Checks the arguments of kernel functions (`check_kfunc_args`, `get_kfunc_ptr_arg_type`).

use beeline_uapi::Errno;
use beeline_uapi::object::SpecialField;

use super::super::state_text::type_name;
use super::super::{Check, Explorer, no};
use super::{Call, Initialised, Meta, RBTREE_ADD};
use crate::context::SocketKind;
use crate::program::FieldKind;
use crate::state::{DynptrKind, Flags, Reg, Type};
use crate::types::kernel_functions::flags;
use crate::types::{Annotation, KernelParam, ParamType};

/// The kind of argument that a parameter requires (`enum kfunc_ptr_arg_type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Context,
    Null,
    Allocated,
    RefCounted,
    Dynptr,
    Iterator,
    ListHead,
    ListNode,
    TreeRoot,
    TreeNode,
    Text,
    Map,
    Workqueue,
    TaskWork,
    IrqFlag,
    ResilientLock,
    Structure(u32),
    Callback,
    /// Memory of so many bytes.
    Mem(u32),
    /// Memory of as many bytes as the next argument says.
    SizedMem,
}

/// Flags of pointers that are safe regardless of the function (`BPF_REG_TRUSTED_MODIFIERS`).
const SAFE: Flags = Flags::TRUSTED.with(Flags::ALLOC).with(Flags::NON_OWN_REF);

impl Explorer<'_> {
    pub(super) fn check_kernel_arguments(&mut self, call: &Call<'_>, meta: &mut Meta) -> Check {
        let name = call.function.name;
        if call.params.len() > 5 {
            let count = call.params.len();
            return no(
                Errno::EINVAL,
                format!("Function {name} has {count} > 5 args"),
            );
        }
        let mut number = 1;
        while let Some(param) = call.params.get(usize::from(number) - 1) {
            let is_pair = self.check_kernel_argument(call, number, param, meta)?;
            number += if is_pair { 2 } else { 1 };
        }
        if call.has(flags::RELEASE) && meta.release.is_none() {
            return no(
                Errno::EINVAL,
                format!("release kernel function {name} expects refcounted PTR_TO_BTF_ID"),
            );
        }
        Ok(())
    }

    /// Checks an argument. Returns `true` if it was memory, and the next argument is its size.
    fn check_kernel_argument(
        &mut self,
        call: &Call<'_>,
        number: u8,
        param: &KernelParam<'_>,
        meta: &mut Meta,
    ) -> Check<bool> {
        if matches!(
            param.annotation,
            Some(Annotation::Program | Annotation::Ignored)
        ) {
            return Ok(false);
        }
        let arg = number - 1;
        match param.is {
            ParamType::Number { .. } => {
                self.number_argument(number, param, meta)?;
                return Ok(false);
            }
            ParamType::Void => {
                return no(
                    Errno::EINVAL,
                    format!("Unrecognized arg#{arg} type UNKNOWN"),
                );
            }
            _ => {}
        }
        let reg = *self.cur.reg(number);
        let wants_trust = call.wants_trust() || call.has(flags::RCU);
        let nullable = param.annotation == Some(Annotation::Nullable);
        if wants_trust && (reg.is_null() || reg.may_be_null()) && !nullable {
            return no(
                Errno::EACCES,
                format!("Possibly NULL pointer passed to trusted arg{arg}"),
            );
        }
        if reg.ref_id != 0 {
            meta.ref_id = reg.ref_id;
            if call.has(flags::RELEASE) {
                meta.release = Some(number);
            }
        }
        let wanted = self.wanted(call, number, param, &reg)?;
        if wanted == Wanted::Map {
            self.map_argument(number, &reg, meta)?;
        }
        if matches!(
            wanted,
            Wanted::Map | Wanted::Allocated | Wanted::Structure(_)
        ) && wants_trust
            && !is_trusted(&reg)
        {
            self.check_rcu_suffices(call, number, &reg)?;
        }
        if wanted == Wanted::Null {
            return Ok(false);
        }
        self.check_kernel_offset(number, &reg, call.has(flags::RELEASE) && reg.ref_id != 0)?;
        self.check_wanted(call, number, param, wanted, meta)?;
        self.uses.uses_context |= reg.kind == Type::Context;
        Ok(wanted == Wanted::SizedMem)
    }

    fn check_rcu_suffices(&self, call: &Call<'_>, number: u8, reg: &Reg) -> Check {
        if !call.has(flags::RCU) {
            return no(
                Errno::EINVAL,
                format!("R{number} must be referenced or trusted"),
            );
        }
        if !reg.flags.has(Flags::RCU) {
            return no(Errno::EINVAL, format!("R{number} must be a rcu pointer"));
        }
        Ok(())
    }

    fn number_argument(&mut self, number: u8, param: &KernelParam<'_>, meta: &mut Meta) -> Check {
        let reg = *self.cur.reg(number);
        if !reg.is_scalar() {
            return no(Errno::EINVAL, format!("R{number} is not a scalar"));
        }
        let constant = reg.constant();
        match param.annotation {
            Some(Annotation::Constant) => {
                let Some(value) = constant else {
                    return no(Errno::EINVAL, format!("R{number} must be a known constant"));
                };
                self.mark_precise(number)?;
                meta.constant = Some(value);
            }
            Some(Annotation::ReadOnlyResultSize | Annotation::ResultSize) => {
                if meta.result_bytes.is_some() {
                    return no(
                        Errno::EINVAL,
                        "2 or more rdonly/rdwr_buf_size parameters for kfunc",
                    );
                }
                let Some(value) = constant else {
                    return no(Errno::EINVAL, format!("R{number} is not a const"));
                };
                let writable = param.annotation == Some(Annotation::ResultSize);
                meta.result_bytes = Some((value, writable));
                self.mark_precise(number)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn wanted(
        &self,
        call: &Call<'_>,
        number: u8,
        param: &KernelParam<'_>,
        reg: &Reg,
    ) -> Check<Wanted> {
        if call.is("bpf_cast_to_kern_ctx") {
            return Ok(Wanted::Context);
        }
        let next = call.params.get(usize::from(number));
        let sized = number < 5
            && next.is_some_and(|next| {
                matches!(
                    next.annotation,
                    Some(Annotation::Size | Annotation::ConstantSize)
                ) && matches!(next.is, ParamType::Number { .. })
                    && self.cur.reg(number + 1).is_scalar()
            });
        let structure = match param.is {
            ParamType::Structure { btf_id, .. } => Some(btf_id),
            _ => None,
        };
        let prog_type = self.program.kind.prog_type;
        if structure.is_some_and(|id| call.kernel.is_context(id, prog_type)) {
            return Ok(Wanted::Context);
        }
        if param.annotation == Some(Annotation::Nullable) && reg.is_null() && !sized {
            return Ok(Wanted::Null);
        }
        let marked = match param.annotation {
            Some(Annotation::Allocated) => Some(Wanted::Allocated),
            Some(Annotation::RefCounted) => Some(Wanted::RefCounted),
            Some(Annotation::String) => Some(Wanted::Text),
            Some(Annotation::Map) => Some(Wanted::Map),
            Some(Annotation::IrqFlag) => Some(Wanted::IrqFlag),
            _ => None,
        };
        let named = structure.and_then(|id| special(call, number, param, id));
        if let Some(wanted) = marked.or(named) {
            return Ok(wanted);
        }
        let arg = number - 1;
        if is_structure(reg) {
            return match structure {
                Some(btf_id) => Ok(Wanted::Structure(btf_id)),
                None => no(
                    Errno::EINVAL,
                    format!(
                        "kernel function {} args#{arg} pointer type is not supported",
                        call.function.name
                    ),
                ),
            };
        }
        match (param.is, sized) {
            (ParamType::Callback, _) => Ok(Wanted::Callback),
            (ParamType::Anything, true) => Ok(Wanted::SizedMem),
            (
                ParamType::Numbers { .. }
                | ParamType::Structure {
                    only_numbers: true, ..
                },
                true,
            ) => Ok(Wanted::SizedMem),
            (ParamType::Numbers { bytes, .. }, false)
            | (
                ParamType::Structure {
                    bytes: Some(bytes),
                    only_numbers: true,
                    ..
                },
                false,
            ) => Ok(Wanted::Mem(bytes)),
            _ => {
                let (kind, name) = match structure {
                    Some(id) => ("STRUCT", call.kernel.name(id)),
                    None => ("UNKNOWN", ""),
                };
                let void = if sized { "void, " } else { "" };
                no(
                    Errno::EINVAL,
                    format!(
                        "arg#{arg} pointer type {kind} {name} must point to {void}scalar, or struct with scalar"
                    ),
                )
            }
        }
    }

    /// Implements `check_func_arg_reg_off`.
    fn check_kernel_offset(&self, number: u8, reg: &Reg, release: bool) -> Check {
        if release {
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
        let plain = reg.flags == Flags::NONE;
        match reg.kind {
            Type::Scalar | Type::Stack(_) | Type::Packet | Type::PacketMeta | Type::Arena => Ok(()),
            Type::MapKey(_) | Type::MapValue(_) if plain => Ok(()),
            Type::Mem(_) | Type::Buffer if !reg.may_be_null() => Ok(()),
            Type::Uninit => Ok(()),
            Type::Btf(_) if !reg.may_be_null() => self.check_no_offset(reg, number, true),
            _ => self.check_no_offset(reg, number, false),
        }
    }

    fn check_wanted(
        &mut self,
        call: &Call<'_>,
        number: u8,
        param: &KernelParam<'_>,
        wanted: Wanted,
        meta: &mut Meta,
    ) -> Check {
        let reg = *self.cur.reg(number);
        let arg = number - 1;
        match wanted {
            Wanted::Null => Ok(()),
            Wanted::Context => self.context_argument(call, arg, &reg),
            Wanted::Allocated => self.dropped_argument(call, arg, &reg),
            Wanted::RefCounted => self.counted_argument(arg, &reg, meta),
            Wanted::Dynptr => self.kernel_dynptr_argument(call, number, param, meta),
            Wanted::Iterator => self.iterator_argument(call, number, param, meta),
            Wanted::ListHead | Wanted::TreeRoot => self.root_argument(number, &reg, meta),
            Wanted::ListNode | Wanted::TreeNode => {
                let name = call.function.name;
                if wanted == Wanted::ListNode || name == RBTREE_ADD {
                    self.check_is_owned(arg, &reg)?;
                } else {
                    self.check_is_in_tree(name, &reg)?;
                }
                self.node_argument(number, &reg, meta)
            }
            Wanted::Text => {
                if !matches!(reg.kind, Type::MapValue(_)) || reg.may_be_null() {
                    return no(
                        Errno::EINVAL,
                        format!("arg#{arg} doesn't point to a const string"),
                    );
                }
                self.constant_text(number, &reg).map(|_| ())
            }
            Wanted::Map => self.structure_argument(call, number, &reg, None),
            Wanted::Structure(btf_id) => self.structure_argument(call, number, &reg, Some(btf_id)),
            Wanted::Workqueue => {
                self.work_argument(number, &reg, (FieldKind::Workqueue, "bpf_wq"), meta)
            }
            Wanted::TaskWork => {
                self.work_argument(number, &reg, (FieldKind::TaskWork, "bpf_task_work"), meta)
            }
            Wanted::IrqFlag => self.irq_flag_argument(call, number),
            Wanted::ResilientLock => self.resilient_lock_argument(call, number),
            Wanted::Callback => match reg.kind {
                Type::Func(function) => {
                    meta.function = Some(function as usize);
                    Ok(())
                }
                _ => no(Errno::EINVAL, format!("arg{arg} expected pointer to func")),
            },
            Wanted::Mem(bytes) => self.check_memory_argument(number, bytes),
            Wanted::SizedMem => self.sized_argument(call, number, param, meta),
        }
    }

    fn context_argument(&self, call: &Call<'_>, arg: u8, reg: &Reg) -> Check {
        if reg.kind != Type::Context {
            let name = type_name(reg);
            return no(
                Errno::EINVAL,
                format!("arg#{arg} expected pointer to ctx, but got {name}"),
            );
        }
        let prog_type = self.program.kind.prog_type;
        if !call.is("bpf_cast_to_kern_ctx") {
            return Ok(());
        }
        match call.kernel.kernel_context(prog_type) {
            Ok(_) => Ok(()),
            Err((errno, why)) => no(errno, why),
        }
    }

    /// Implements `process_kf_arg_ptr_to_btf_id`; `None` for `struct bpf_map`.
    fn structure_argument(
        &self,
        call: &Call<'_>,
        number: u8,
        reg: &Reg,
        wanted: Option<u32>,
    ) -> Check {
        let kernel = call.kernel;
        let named = |name: &str| kernel.structure(name).unwrap_or(0);
        let wanted = wanted.unwrap_or_else(|| named("bpf_map"));
        let arg = number - 1;
        let have = match reg.kind {
            Type::Btf(btf_id) if is_safe(reg) || reg.flags.has(Flags::RCU) => btf_id,
            Type::Socket(SocketKind::Common) => named("sock_common"),
            Type::Socket(SocketKind::Socket) => named("sock"),
            Type::Socket(SocketKind::Tcp) => named("tcp_sock"),
            Type::Map(_) => named("bpf_map"),
            _ => {
                let expected = Reg {
                    flags: Flags(reg.flags.0 & SAFE.0),
                    ..*reg
                };
                return no(
                    Errno::EINVAL,
                    format!(
                        "arg#{arg} is {} expected {} or socket",
                        type_name(reg),
                        type_name(&expected)
                    ),
                );
            }
        };
        let is_own = matches!(reg.kind, Type::Btf(_)) && reg.flags.has(Flags::ALLOC);
        let (have_name, wanted_name) = if is_own {
            let types = self.program.types;
            (
                types.map_or("", |types| types.name(have)),
                kernel.name(wanted),
            )
        } else {
            (kernel.name(have), kernel.name(wanted))
        };
        let strict =
            call.has(flags::RELEASE) && reg.ref_id != 0 || is_uncast_alias(have_name, wanted_name);
        let is_projection = matches!(
            (wanted_name, have_name),
            ("__sk_buff", "sk_buff") | ("xdp_md", "xdp_buff")
        );
        if is_projection || !is_own && kernel.matches(have, reg.off, wanted, strict) {
            return Ok(());
        }
        no(
            Errno::EINVAL,
            format!(
                "kernel function {} args#{arg} expected pointer to STRUCT {wanted_name} but R{number} has a pointer to STRUCT {have_name}",
                call.function.name
            ),
        )
    }

    /// Checks memory with its size in the next argument (`check_kfunc_mem_size_reg`).
    fn sized_argument(
        &mut self,
        call: &Call<'_>,
        number: u8,
        param: &KernelParam<'_>,
        meta: &mut Meta,
    ) -> Check {
        let size = number + 1;
        let saved = *self.cur.reg(number);
        let optional = param.annotation == Some(Annotation::Optional);
        if !(optional && saved.is_null()) {
            if saved.may_be_null() {
                let mut reg = saved;
                self.not_null(&mut reg);
                *self.cur.reg_mut(number) = reg;
            }
            let mut scratch = super::super::helper::Meta::default();
            let outcome = self
                .check_size(size, false, true, false, &mut scratch)
                .and_then(|()| self.check_size(size, true, true, false, &mut scratch));
            *self.cur.reg_mut(number) = saved;
            if let Err(why) = outcome {
                let pair = format!(
                    "arg#{} arg#{number} memory, len pair leads to invalid memory access",
                    number - 1
                );
                return no(why.errno, format!("{}\n{pair}", why.why));
            }
        }
        let next = call.params.get(usize::from(number));
        if next.is_some_and(|next| next.annotation == Some(Annotation::ConstantSize)) {
            let Some(value) = self.cur.reg(size).constant() else {
                return no(Errno::EINVAL, format!("R{size} must be a known constant"));
            };
            meta.constant = Some(value);
        }
        Ok(())
    }

    fn kernel_dynptr_argument(
        &mut self,
        call: &Call<'_>,
        number: u8,
        param: &KernelParam<'_>,
        meta: &mut Meta,
    ) -> Check {
        let reg = *self.cur.reg(number);
        if !matches!(reg.kind, Type::Stack(_) | Type::Dynptr(_)) {
            return no(
                Errno::EINVAL,
                format!(
                    "arg#{} expected pointer to stack or const struct bpf_dynptr",
                    number - 1
                ),
            );
        }
        if param.annotation != Some(Annotation::Uninit) {
            meta.dynptr = Some(self.initialised_dynptr(number, &reg)?);
            return Ok(());
        }
        let parent = meta.dynptr.unwrap_or(Initialised {
            kind: DynptrKind::Any,
            id: 0,
            ref_id: 0,
        });
        let kind = match call.function.name {
            "bpf_dynptr_from_skb" => DynptrKind::Skb,
            "bpf_dynptr_from_xdp" => DynptrKind::Xdp,
            "bpf_dynptr_from_skb_meta" => DynptrKind::SkbMeta,
            _ => parent.kind,
        };
        self.new_dynptr(number, &reg, kind, parent.ref_id)
    }
}

/// Returns the requirement of structures with rules of their own.
fn special(call: &Call<'_>, number: u8, param: &KernelParam<'_>, btf_id: u32) -> Option<Wanted> {
    let of_iterator = call.has(flags::ITER_NEW | flags::ITER_NEXT | flags::ITER_DESTROY);
    if of_iterator && number == 1 || param.name.ends_with("__iter") {
        return Some(Wanted::Iterator);
    }
    let name = call.kernel.name(btf_id);
    if name == "bpf_dynptr" {
        return Some(Wanted::Dynptr);
    }
    Some(match SpecialField::named(name.as_bytes())? {
        SpecialField::ListHead => Wanted::ListHead,
        SpecialField::ListNode => Wanted::ListNode,
        SpecialField::RbRoot => Wanted::TreeRoot,
        SpecialField::RbNode => Wanted::TreeNode,
        SpecialField::Workqueue => Wanted::Workqueue,
        SpecialField::TaskWork => Wanted::TaskWork,
        SpecialField::ResSpinLock => Wanted::ResilientLock,
        SpecialField::SpinLock | SpecialField::Timer | SpecialField::Refcount => return None,
    })
}

/// Returns whether it points to a structure of the kernel, by any name.
fn is_structure(reg: &Reg) -> bool {
    match reg.kind {
        Type::Btf(_) | Type::Map(_) => true,
        Type::Socket(kind) => kind != SocketKind::Xdp,
        _ => false,
    }
}

/// Returns whether it is without `bpf_type_has_unsafe_modifiers`.
fn is_safe(reg: &Reg) -> bool {
    reg.flags.without(SAFE) == Flags::NONE
}

/// Implements `is_trusted_reg`.
fn is_trusted(reg: &Reg) -> bool {
    let known = matches!(reg.kind, Type::Map(_) | Type::Socket(_)) && is_structure(reg);
    reg.ref_id != 0 || is_safe(reg) && (known || reg.flags.has(SAFE))
}

/// Returns whether these are two names of one structure, of which only one may be written
/// (`btf_type_ids_nocast_alias`).
fn is_uncast_alias(one: &str, other: &str) -> bool {
    const SUFFIX: &str = "___init";
    one.strip_suffix(SUFFIX) == Some(other) || other.strip_suffix(SUFFIX) == Some(one)
}
