//! Arguments of a program's functions, by their types and tags (`btf_prepare_func_args`).

use beeline_btf::{Type, kind};
use beeline_uapi::limits::{MAX_BPF_FUNC_REG_ARGS, MAX_RESOLVE_DEPTH};
use beeline_uapi::linux::BPF_USER_PT_REGS;
use beeline_uapi::{AttachType, Errno, ProgramType};

use super::table::{
    TypeTable, is_modifier, is_number, is_small_int, is_struct, kind_name, shown, text,
};
use super::{KernelTypes, Refused};
use crate::program::Kind;

/// A parameter of a global function: `struct bpf_subprog_arg_info`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FunctionArg {
    /// A number.
    Scalar,
    /// A pointer to the context's type.
    Context,
    /// Memory of so many bytes (`ARG_PTR_TO_MEM`), null unless `nonnull`.
    Mem {
        /// The bytes of the memory.
        bytes: u32,
        /// True without `__arg_nonnull`.
        or_null: bool,
    },
    /// An `__arg_untrusted` pointer to numbers or to anything: read only, with probed loads.
    UntrustedMem,
    /// `struct bpf_dynptr *`.
    Dynptr,
    /// `__arg_arena`.
    Arena,
    /// An `__arg_trusted` or `__arg_untrusted` pointer to a structure of the kernel.
    Btf {
        /// The structure, in the kernel's BTF.
        btf_id: u32,
        /// `__arg_nullable`.
        or_null: bool,
        /// `__arg_trusted`.
        trusted: bool,
    },
}

const CTX: u32 = 1 << 0;
const NONNULL: u32 = 1 << 1;
const TRUSTED: u32 = 1 << 2;
const UNTRUSTED: u32 = 1 << 3;
const NULLABLE: u32 = 1 << 4;
const ARENA: u32 = 1 << 5;

/// Returns the arguments of a function.
pub(super) fn of(
    types: &TypeTable,
    function: u32,
    global: bool,
    kind: &Kind,
    kernel: Option<&KernelTypes>,
) -> Result<Vec<FunctionArg>, Refused> {
    let name = types.name(function);
    let Some(prototype) = types.prototype(function) else {
        return Err((Errno::EFAULT, format!("Invalid type of function {name}()")));
    };
    let params: Vec<u32> = types.params(prototype).map(|param| param.type_id).collect();
    if params.len() > MAX_BPF_FUNC_REG_ARGS {
        let count = params.len();
        return refuse(format!(
            "Global function {name}() with {count} > {MAX_BPF_FUNC_REG_ARGS} args. Buggy compiler."
        ));
    }
    if !is_number(types.skip_modifiers(prototype.refers_to()).1) {
        return refuse(format!(
            "Global function {name}() doesn't return scalar. Only those are supported."
        ));
    }
    let each = |(index, id): (usize, &u32)| {
        let param = Param {
            types,
            index,
            global,
            kind,
            kernel,
        };
        let tags = param.tags(function)?;
        let it = types.skip_modifiers(*id).1;
        let arg = match it.kind {
            kind::PTR => param.pointer(it, tags)?,
            _ => None,
        };
        arg.map_or_else(|| param.plain(it, tags, name), Ok)
    };
    params.iter().enumerate().map(each).collect()
}

fn refuse<T>(line: String) -> Result<T, Refused> {
    Err((Errno::EINVAL, line))
}

/// One parameter.
struct Param<'a> {
    types: &'a TypeTable,
    index: usize,
    global: bool,
    kind: &'a Kind,
    kernel: Option<&'a KernelTypes>,
}

impl Param<'_> {
    fn tags(&self, function: u32) -> Result<u32, Refused> {
        let index = self.index;
        let mut tags = 0;
        for tag in self.types.tags(function, index as i32, "arg:") {
            if !self.global {
                let line = format!("arg#{index} type tag is not supported in static functions");
                return Err((Errno::EOPNOTSUPP, line));
            }
            tags |= match tag {
                "ctx" => CTX,
                "trusted" => TRUSTED,
                "untrusted" => UNTRUSTED,
                "nonnull" => NONNULL,
                "nullable" => NULLABLE,
                "arena" => ARENA,
                _ => {
                    let line = format!("arg#{index} has unsupported set of tags");
                    return Err((Errno::EOPNOTSUPP, line));
                }
            };
        }
        Ok(tags)
    }

    /// Parses a pointer; returns `None` for one that says nothing, in a static function.
    fn pointer(&self, it: Type<'_>, tags: u32) -> Result<Option<FunctionArg>, Refused> {
        let index = self.index;
        let invalid = || refuse(format!("arg#{index} has invalid combination of tags"));
        if tags & CTX != 0 || self.is_context(it) {
            if tags & !CTX != 0 {
                return invalid();
            }
            if tags & CTX != 0 {
                self.validate_context(it)?;
            }
            return Ok(Some(FunctionArg::Context));
        }
        let (_, target) = self.types.target(it);
        let is_forward = target.kind == kind::FWD && !target.is_flagged();
        if (is_struct(target) || is_forward) && target.name == b"bpf_dynptr" {
            return if tags != 0 {
                invalid()
            } else {
                Ok(Some(FunctionArg::Dynptr))
            };
        }
        if tags & TRUSTED != 0 {
            if tags & NONNULL != 0 {
                return invalid();
            }
            return Ok(Some(FunctionArg::Btf {
                btf_id: self.of_kernel(target)?,
                or_null: tags & NULLABLE != 0,
                trusted: true,
            }));
        }
        if tags & UNTRUSTED != 0 {
            return self.untrusted(target, tags).map(Some);
        }
        if tags & ARENA != 0 {
            if tags & !ARENA != 0 {
                return refuse(format!(
                    "arg#{index} arena cannot be combined with any other tags"
                ));
            }
            return Ok(Some(FunctionArg::Arena));
        }
        if !self.global {
            return Ok(None);
        }
        if tags & NULLABLE != 0 {
            return invalid();
        }
        let sized = self.types.sized(it.refers_to()).map_err(|errno| {
            let (kind, name) = (kind_name(target), text(target.name));
            let line = format!(
                "arg#{index} reference type('{kind} {name}') size cannot be determined: -{}",
                errno.0
            );
            (Errno::EINVAL, line)
        })?;
        Ok(Some(FunctionArg::Mem {
            bytes: sized.bytes,
            or_null: tags & NONNULL == 0,
        }))
    }

    fn untrusted(&self, target: Type<'_>, tags: u32) -> Result<FunctionArg, Refused> {
        let index = self.index;
        if tags & !UNTRUSTED != 0 {
            return refuse(format!(
                "arg#{index} untrusted cannot be combined with any other tags"
            ));
        }
        if target.kind == 0 || is_number(target) {
            return Ok(FunctionArg::UntrustedMem);
        }
        let btf_id = self.of_kernel(target)?;
        if !is_struct(target) {
            let kind = kind_name(target);
            return refuse(format!(
                "arg#{index} has type {kind} '', but only struct or primitive types are allowed"
            ));
        }
        Ok(FunctionArg::Btf {
            btf_id,
            or_null: false,
            trusted: false,
        })
    }

    fn plain(&self, it: Type<'_>, tags: u32, function: &str) -> Result<FunctionArg, Refused> {
        let index = self.index;
        if tags != 0 {
            return refuse(format!(
                "arg#{index} has pointer tag, but is not a pointer type"
            ));
        }
        if is_number(it) {
            return Ok(FunctionArg::Scalar);
        }
        let kind = kind_name(it);
        refuse(format!(
            "Arg#{index} type {kind} in {function}() is not supported yet."
        ))
    }

    /// Returns the only type of the kernel with this name, up to `___`.
    fn of_kernel(&self, target: Type<'_>) -> Result<u32, Refused> {
        let matching = self
            .kernel
            .map_or_else(Vec::new, |kernel| kernel.candidates(target));
        let (errno, why) = match matching[..] {
            [one] => return Ok(one),
            [] => (Errno::ENOENT, "has no matches"),
            _ => (Errno::ESRCH, "is ambiguous"),
        };
        let (index, kind, name) = (self.index, kind_name(target), shown(target.name));
        let line = format!("arg#{index} reference type('{kind} {name}') {why}");
        Err((errno, line))
    }

    /// Returns whether it is a pointer to the context type of the program's type
    /// (`btf_is_prog_ctx_type`).
    fn is_context(&self, pointer: Type<'_>) -> bool {
        if self.kind.prog_type == ProgramType::KPROBE && self.is_user_regs(pointer) {
            return true;
        }
        let (_, target) = self.types.target(pointer);
        is_struct(target) && is_named_as_context(text(target.name), self.kind.prog_type)
    }

    /// Returns whether it is a `bpf_user_pt_regs_t *`, which its name tells.
    fn is_user_regs(&self, pointer: Type<'_>) -> bool {
        let mut it = self.types.at(pointer.refers_to());
        for _ in 0..MAX_RESOLVE_DEPTH {
            if it.kind == kind::TYPEDEF {
                return it.name == b"bpf_user_pt_regs_t";
            }
            if !is_modifier(it) {
                break;
            }
            it = self.types.at(it.refers_to());
        }
        false
    }

    /// Checks that an argument tagged as a context can be one (`btf_validate_prog_ctx_type`).
    fn validate_context(&self, pointer: Type<'_>) -> Result<(), Refused> {
        let (index, kind) = (self.index, self.kind);
        let regs = matches!(
            kind.prog_type,
            ProgramType::KPROBE | ProgramType::PERF_EVENT
        );
        if regs && self.is_user_regs(pointer) {
            return Ok(());
        }
        let (_, target) = self.types.target(pointer);
        if target.kind == 0 {
            return Ok(());
        }
        let name = text(target.name);
        if name.is_empty() {
            return refuse(format!("arg#{index} type doesn't have a name"));
        }
        let is_struct = is_struct(target);
        let is_u64 = is_small_int(target) && target.size() == 8;
        let good = match kind.prog_type {
            ProgramType::KPROBE | ProgramType::PERF_EVENT => is_struct && name == BPF_USER_PT_REGS,
            ProgramType::RAW_TRACEPOINT | ProgramType::RAW_TRACEPOINT_WRITABLE => is_u64,
            ProgramType::TRACING => match kind.attach_type {
                AttachType::TRACE_RAW_TP => {
                    is_u64 || is_struct && name == "bpf_raw_tracepoint_args"
                }
                AttachType::TRACE_ITER => is_struct && name.starts_with("bpf_iter__"),
                AttachType::TRACE_FENTRY | AttachType::TRACE_FEXIT | AttachType::MODIFY_RETURN => {
                    is_u64
                }
                _ => false,
            },
            ProgramType::LSM | ProgramType::STRUCT_OPS => is_u64,
            ProgramType::TRACEPOINT | ProgramType::SYSCALL | ProgramType::EXT => true,
            _ => false,
        };
        if good {
            return Ok(());
        }
        let Some(wanted) = context_structure(kind.prog_type) else {
            return refuse(format!("arg#{index} should be void pointer"));
        };
        if is_struct && wanted == name {
            return Ok(());
        }
        refuse(format!("arg#{index} should be `struct {wanted} *`"))
    }
}

/// Returns whether a structure of this name is a context's, or the kernel's structure behind one.
pub(super) fn is_named_as_context(name: &str, of: ProgramType) -> bool {
    context_structure(of).is_some_and(|wanted| {
        let projected = matches!(
            (wanted, name),
            ("__sk_buff", "sk_buff") | ("xdp_md", "xdp_buff")
        );
        // The kernel names it by its typedef first.
        let is_typedef = of == ProgramType::KPROBE && name == "bpf_user_pt_regs_t";
        wanted == name || projected || is_typedef
    })
}

/// Returns the context structure of programs of a type, if it has a name (`linux/bpf_types.h`).
fn context_structure(of: ProgramType) -> Option<&'static str> {
    Some(match of {
        ProgramType::SOCKET_FILTER
        | ProgramType::SCHED_CLS
        | ProgramType::SCHED_ACT
        | ProgramType::CGROUP_SKB
        | ProgramType::LWT_IN
        | ProgramType::LWT_OUT
        | ProgramType::LWT_XMIT
        | ProgramType::LWT_SEG6LOCAL
        | ProgramType::SK_SKB
        | ProgramType::FLOW_DISSECTOR => "__sk_buff",
        ProgramType::XDP => "xdp_md",
        ProgramType::CGROUP_SOCK => "bpf_sock",
        ProgramType::CGROUP_SOCK_ADDR => "bpf_sock_addr",
        ProgramType::SOCK_OPS => "bpf_sock_ops",
        ProgramType::SK_MSG => "sk_msg_md",
        ProgramType::KPROBE => BPF_USER_PT_REGS,
        ProgramType::PERF_EVENT => "bpf_perf_event_data",
        ProgramType::RAW_TRACEPOINT | ProgramType::RAW_TRACEPOINT_WRITABLE => {
            "bpf_raw_tracepoint_args"
        }
        ProgramType::CGROUP_DEVICE => "bpf_cgroup_dev_ctx",
        ProgramType::CGROUP_SYSCTL => "bpf_sysctl",
        ProgramType::CGROUP_SOCKOPT => "bpf_sockopt",
        ProgramType::SK_REUSEPORT => "sk_reuseport_md",
        ProgramType::SK_LOOKUP => "bpf_sk_lookup",
        ProgramType::NETFILTER => "bpf_nf_ctx",
        _ => return None,
    })
}
