//! Contexts that the kernel's BTF describes: of programs on its tracepoints, functions, LSM hooks,
//! iterators and operations (`btf_ctx_access`).

use beeline_btf::{Type, kind};
use beeline_uapi::limits::MAX_BPF_FUNC_ARGS;
use beeline_uapi::{AttachType, ProgramType};

use super::table::{is_small_int, is_struct, kind_name, shown, text};
use super::{KernelTypes, Member, Trust, lsm, nullable};
use crate::program::Kind;

/// The bytes of a context that holds the arguments of a function.
const MOST_BYTES: i32 = 8 * MAX_BPF_FUNC_ARGS.cast_signed();

/// The target of a program, as far as its context goes.
struct Attached<'a> {
    kernel: &'a KernelTypes,
    kind: &'a Kind,
    /// The name for messages.
    name: &'a str,
    prototype: Type<'a>,
    /// The number of skipped parameters: the first one of a tracepoint's prototype, `void *__data`,
    /// is not for the program.
    skipped: usize,
    /// The prototype with the parameters' names; suffixes say which may be null.
    named: Option<Type<'a>>,
}

impl KernelTypes {
    /// Returns the result of a load from the context of a program that is attached by BTF
    /// (`btf_ctx_access`).
    ///
    /// Such programs are tp_btf, fentry, fexit, fmod_ret, LSM, iterators, struct_ops. `off` and
    /// `size` are in bytes.
    ///
    /// # Errors
    /// The log's text before "invalid bpf_context access off=%d size=%d"; empty if there is none.
    /// The errno is `EACCES`.
    pub fn context(&self, kind: &Kind, off: i32, size: u32) -> Result<Member, String> {
        let aligned = u32::try_from(off).is_ok_and(|off| off.checked_rem(size) == Some(0));
        if !aligned || off >= MOST_BYTES {
            return Err(String::new());
        }
        let attached = Attached::find(self, kind).ok_or_else(String::new)?;
        attached.access(off.cast_unsigned(), size)
    }

    /// Returns the log's note on a load that [`KernelTypes::context`] found to be good, if any.
    pub fn context_note(&self, kind: &Kind, off: i32) -> Option<String> {
        let attached = Attached::find(self, kind)?;
        let off = u32::try_from(off).ok()?;
        attached.note(off, self.context(kind, off.cast_signed(), 8).ok()?)
    }

    /// Returns whether this is the result of the hook that an LSM program is attached to
    /// (`bpf_insn_access_aux::is_retval`).
    pub fn is_hook_result(&self, kind: &Kind, off: i32) -> bool {
        if kind.prog_type != ProgramType::LSM || kind.attach_type != AttachType::LSM_MAC {
            return false;
        }
        let Some(attached) = Attached::find(self, kind) else {
            return false;
        };
        let count = self.types.params(attached.prototype).count();
        u32::try_from(off)
            .is_ok_and(|off| attached.argument(off).is_ok_and(|(arg, _)| arg == count))
    }

    /// Returns the offsets in the context of objects that the program owns from the start, in
    /// bytes, ascending.
    ///
    /// The program must give them back or pass them on: they are arguments of an operation that are
    /// marked with `__ref` (`bpf_ctx_arg_aux::refcounted`).
    pub fn owned_arguments(&self, kind: &Kind) -> Vec<u32> {
        if kind.prog_type != ProgramType::STRUCT_OPS {
            return Vec::new();
        }
        let attached = Attached::find(self, kind);
        let Some((attached, named)) = attached.and_then(|it| it.named.map(|named| (it, named)))
        else {
            return Vec::new();
        };
        let mut offset = 0u32;
        let mut owned = Vec::new();
        let params = self.types.params(attached.prototype);
        for (param, named) in params.zip(self.types.params(named)) {
            if text(named.name).ends_with("__ref") {
                owned.push(offset);
            }
            offset = offset.saturating_add(attached.passed_bytes(param.type_id));
        }
        owned
    }
}

impl<'a> Attached<'a> {
    /// Finds the target of a program of this kind; `None` if the kernel's types have none.
    fn find(kernel: &'a KernelTypes, kind: &'a Kind) -> Option<Self> {
        let types = &kernel.types;
        let it = types.get(kind.attach_btf_id)?;
        let name = text(it.name);
        let (prototype, name, skipped, named) = match kind.prog_type {
            ProgramType::STRUCT_OPS => {
                let member = types.members(it).nth(kind.attach_type.0 as usize)?;
                let prototype = types.target(types.skip_modifiers(member.type_id).1).1;
                let stub = format!("{name}__{}", text(member.name));
                let named = types
                    .find(kind::FUNC, &stub)
                    .and_then(|id| types.prototype(id));
                (prototype, text(member.name), 0, named)
            }
            _ if kind.attach_type == AttachType::TRACE_RAW_TP => {
                let name = name.strip_prefix("btf_trace_")?;
                let prototype = types.target(types.at(it.refers_to())).1;
                let caller = types.find(kind::FUNC, &format!("__traceiter_{name}"));
                let named = caller.and_then(|id| types.prototype(id));
                (prototype, name, 1, named)
            }
            _ => {
                let prototype = types.prototype(kind.attach_btf_id)?;
                (prototype, name, 0, Some(prototype))
            }
        };
        (prototype.kind == kind::FUNC_PROTO).then_some(Self {
            kernel,
            kind,
            name,
            prototype,
            skipped,
            named,
        })
    }

    fn access(&self, off: u32, size: u32) -> Result<Member, String> {
        let name = self.name;
        if !off.is_multiple_of(8) {
            return Err(format!("func '{name}' offset {off} is not multiple of 8"));
        }
        let (arg, type_id) = self.argument(off)?;
        let (_, it) = self.kernel.types.skip_modifiers(type_id);
        if is_small_int(it) || matches!(it.kind, kind::ENUM | kind::ENUM64) || is_struct(it) {
            return Ok(Member::Scalar);
        }
        if it.kind != kind::PTR {
            let (of, kind) = (shown(it.name), kind_name(it));
            return Err(format!(
                "func '{name}' arg{arg} '{of}' has type {kind}. Only pointer access is allowed"
            ));
        }
        if size != 8 {
            return Err(format!("func '{name}' size {size} must be 8"));
        }
        let known = self.known(off);
        if let Some(Known::Buffer { writable }) = known {
            return Ok(Member::Buffer { writable });
        }
        let (btf_id, target) = self.kernel.types.target(it);
        if target.kind == 0 || target.kind == kind::INT {
            return Ok(Member::Scalar);
        }
        if let Some(Known::Pointer { trust }) = known {
            return Ok(Member::Pointer {
                btf_id,
                trust,
                or_null: true,
            });
        }
        self.pointer(arg, it, (btf_id, target))
    }

    /// Returns the parameter at an offset, with its type; past the last one, the result if a
    /// program may see it.
    fn argument(&self, off: u32) -> Result<(usize, u32), String> {
        let (kernel, kind, name) = (self.kernel, self.kind, self.name);
        let params: Vec<u32> = kernel
            .types
            .params(self.prototype)
            .map(|it| it.type_id)
            .collect();
        let count = params.len().saturating_sub(self.skipped);
        let arg = self.index(&params, off);
        let missing = || format!("func '{name}' doesn't have {}-th argument", arg + 1);
        if arg > count {
            return Err(missing());
        }
        if arg < count {
            return params
                .get(arg + self.skipped)
                .map(|id| (arg, *id))
                .ok_or_else(missing);
        }
        let result = self.prototype.refers_to();
        match kind.attach_type {
            _ if kind.prog_type == ProgramType::STRUCT_OPS => Err(missing()),
            AttachType::LSM_MAC | AttachType::LSM_CGROUP | AttachType::TRACE_FEXIT => {
                Ok((arg, result))
            }
            AttachType::MODIFY_RETURN => {
                let (_, it) = kernel.types.skip_modifiers(result);
                if is_small_int(it) {
                    return Ok((arg, result));
                }
                let kind = kind_name(it);
                Err(format!("ret type {kind} not allowed for fmod_ret"))
            }
            _ => Err(missing()),
        }
    }

    /// Returns the number of the parameter at an offset: parameters take as many words as they
    /// need. The kernel counts from the first parameter, even if that one is skipped.
    fn index(&self, params: &[u32], off: u32) -> usize {
        let mut end = 0u32;
        let mut is_before = |id: &u32| {
            end = end.saturating_add(self.passed_bytes(*id));
            off < end
        };
        if let Some(arg) = params.iter().position(&mut is_before) {
            return arg;
        }
        if is_before(&self.prototype.refers_to()) {
            params.len()
        } else {
            params.len() + 1
        }
    }

    /// Returns the bytes of a context that an argument of a type takes.
    fn passed_bytes(&self, type_id: u32) -> u32 {
        let (_, it) = self.kernel.types.skip_modifiers(type_id);
        if it.kind == kind::PTR {
            8
        } else {
            it.size().checked_next_multiple_of(8).unwrap_or(u32::MAX)
        }
    }

    /// Returns a pointer that no other rule describes.
    fn pointer(
        &self,
        arg: usize,
        it: Type<'a>,
        (mut btf_id, target): (u32, Type<'a>),
    ) -> Result<Member, String> {
        let (kernel, kind, name) = (self.kernel, self.kind, self.name);
        if !is_struct(target) {
            let kind = kind_name(target);
            return Err(format!(
                "func '{name}' arg{arg} type {kind} is not a struct"
            ));
        }
        let mut or_null = self.is_nullable(arg);
        if kind.attach_type == AttachType::TRACE_RAW_TP && kind.prog_type == ProgramType::TRACING {
            or_null |= nullable::may_be_null(name, arg);
            if nullable::may_be_error(name, arg) {
                return Ok(Member::Scalar);
            }
        }
        let trust = match kernel.types.pointer_tag(it) {
            "user" => Trust::User,
            "percpu" => Trust::PerCpu,
            _ if self.trusts_arguments() => Trust::Trusted,
            _ => Trust::Plain,
        };
        if self.is_congestion_control() && Some(btf_id) == kernel.structure("sock") {
            btf_id = kernel.structure("tcp_sock").unwrap_or(btf_id);
        }
        Ok(Member::Pointer {
            btf_id,
            trust,
            or_null,
        })
    }

    fn is_nullable(&self, arg: usize) -> bool {
        let Some(named) = self.named else {
            return false;
        };
        let param = self.kernel.types.params(named).nth(arg + self.skipped);
        param.is_some_and(|it| text(it.name).ends_with("__nullable"))
    }

    /// Implements `prog_args_trusted`.
    fn trusts_arguments(&self) -> bool {
        match self.kind.prog_type {
            ProgramType::TRACING => matches!(
                self.kind.attach_type,
                AttachType::TRACE_RAW_TP | AttachType::TRACE_ITER
            ),
            ProgramType::LSM => !lsm::UNTRUSTED.contains(&self.name),
            ProgramType::STRUCT_OPS => true,
            _ => false,
        }
    }

    /// Returns whether its operations are passed a `struct sock` that is known to be a `struct
    /// tcp_sock`.
    fn is_congestion_control(&self) -> bool {
        self.kind.prog_type == ProgramType::STRUCT_OPS
            && self.kernel.name(self.kind.attach_btf_id) == "tcp_congestion_ops"
    }

    /// Returns the facts about an iterator's parameter besides its type.
    fn known(&self, off: u32) -> Option<Known> {
        let kind = self.kind;
        if kind.prog_type != ProgramType::TRACING || kind.attach_type != AttachType::TRACE_ITER {
            return None;
        }
        iterator(self.name)?
            .iter()
            .find(|(at, _)| *at == off)
            .map(|(_, known)| *known)
    }

    fn note(&self, off: u32, found: Member) -> Option<String> {
        let Member::Pointer { .. } = found else {
            return None;
        };
        let (arg, type_id) = self.argument(off).ok()?;
        let by_stub = self.kind.prog_type == ProgramType::STRUCT_OPS && self.is_nullable(arg);
        if by_stub || self.known(off).is_some() {
            return None;
        }
        let types = &self.kernel.types;
        let (_, pointer) = types.skip_modifiers(type_id);
        let (id, it) = types.target(pointer);
        let (name, kind, of) = (self.name, kind_name(it), shown(it.name));
        Some(format!(
            "func '{name}' arg{arg} has btf_id {} type {kind} '{of}'",
            self.kernel.own_number(id)
        ))
    }
}

/// `struct bpf_ctx_arg_aux`: all of them may be null.
#[derive(Debug, Clone, Copy)]
pub(super) enum Known {
    Pointer { trust: Trust },
    Buffer { writable: bool },
}

const TRUSTED: Known = Known::Pointer {
    trust: Trust::Trusted,
};
const PLAIN: Known = Known::Pointer {
    trust: Trust::Plain,
};
const KEY: Known = Known::Buffer { writable: false };
const VALUE: Known = Known::Buffer { writable: true };

/// Returns the registration of an iterator (`struct bpf_iter_reg`), by the function that it is
/// attached by; `None` if there is no such iterator.
pub(super) fn iterator(function: &str) -> Option<&'static [(u32, Known)]> {
    Some(match function.strip_prefix("bpf_iter_")? {
        "bpf_map" | "task" | "cgroup" | "tcp" | "udp" | "kmem_cache" => &[(8, TRUSTED)],
        "bpf_prog" | "bpf_link" | "dmabuf" | "ipv6_route" | "ksym" | "netlink" | "unix" => {
            &[(8, PLAIN)]
        }
        "task_file" => &[(8, PLAIN), (24, PLAIN)],
        "task_vma" => &[(8, PLAIN), (16, PLAIN)],
        "bpf_map_elem" => &[(16, KEY), (24, VALUE)],
        "bpf_sk_storage_map" => &[(16, PLAIN), (24, VALUE)],
        "sockmap" => &[(16, KEY), (24, PLAIN)],
        _ => return None,
    })
}
