//! Helper prototypes in the kernel's terms: `struct bpf_func_proto`.

use super::{HelperId, Sets};

/// A helper's arguments, result and properties.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Helper {
    /// The helper's number. Several entries may share one, for programs of different types.
    pub id: HelperId,
    /// The arguments in r1 ... r5, as many as there are.
    pub args: &'static [Arg],
    /// The result in r0.
    pub ret: Ret,
    /// Available only to programs under the GPL.
    pub gpl_only: bool,
    /// Accepts pointers into packets (`pkt_access`).
    pub packet_access: bool,
    /// May sleep (`might_sleep`).
    pub might_sleep: bool,
    /// Changes packet data, which invalidates pointers into it (`bpf_helper_changes_pkt_data`). A
    /// tail call does so if it succeeds, for the caller of the function that makes it; if it
    /// returns, it did nothing.
    pub changes_packet: bool,
    /// Leaves r1 to r5 alone if compiled in place (`allow_fastcall`).
    pub fastcall: bool,
    /// The sets that it belongs to: they say which programs may call it.
    pub sets: Sets,
}

/// An argument: `enum bpf_arg_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arg {
    /// `ARG_ANYTHING`: any initialised value.
    Any,
    /// `ARG_PTR_TO_CTX`.
    Context,
    /// `ARG_PTR_TO_CTX_OR_NULL`.
    ContextOrNull,
    /// `ARG_CONST_MAP_PTR`.
    Map,
    /// `ARG_PTR_TO_MAP_KEY`.
    Key,
    /// `ARG_PTR_TO_MAP_VALUE`.
    Value,
    /// `ARG_PTR_TO_MAP_VALUE_OR_NULL`.
    ValueOrNull,
    /// `ARG_PTR_TO_MAP_VALUE | MEM_UNINIT | MEM_WRITE`.
    UninitValue,
    /// `ARG_PTR_TO_MEM` and its flags.
    Mem {
        /// `MEM_WRITE`: the helper writes the memory; otherwise `MEM_RDONLY` or unspecified.
        write: bool,
        /// `MEM_UNINIT`: the memory need not be initialised.
        uninit: bool,
        /// `PTR_MAYBE_NULL`.
        or_null: bool,
        /// `MEM_FIXED_SIZE`, with `arg_size`; otherwise the next argument is the size.
        fixed: Option<u32>,
        /// `MEM_ALIGNED`.
        aligned: bool,
    },
    /// `ARG_CONST_SIZE`.
    Size,
    /// `ARG_CONST_SIZE_OR_ZERO`.
    SizeOrZero,
    /// `ARG_CONST_ALLOC_SIZE_OR_ZERO`.
    AllocSizeOrZero,
    /// `ARG_PTR_TO_SPIN_LOCK`.
    SpinLock,
    /// `ARG_PTR_TO_SOCK_COMMON`.
    SockCommon,
    /// `ARG_PTR_TO_SOCKET`, `ARG_PTR_TO_SOCKET_OR_NULL`.
    Socket {
        /// Accepts null.
        or_null: bool,
    },
    /// `ARG_PTR_TO_BTF_ID_SOCK_COMMON`.
    BtfSockCommon {
        /// `OBJ_RELEASE`: the helper releases the object.
        release: bool,
        /// `PTR_MAYBE_NULL`.
        or_null: bool,
    },
    /// `ARG_PTR_TO_BTF_ID`.
    Btf {
        /// The name of the kernel structure.
        name: &'static str,
        /// `PTR_MAYBE_NULL`.
        or_null: bool,
    },
    /// `ARG_PTR_TO_PERCPU_BTF_ID`.
    PerCpuBtf,
    /// `ARG_PTR_TO_RINGBUF_MEM | OBJ_RELEASE`.
    RingbufMem,
    /// `ARG_PTR_TO_FUNC`.
    Func,
    /// `ARG_PTR_TO_STACK`; `ARG_PTR_TO_STACK_OR_NULL`.
    Stack {
        /// Accepts null.
        or_null: bool,
    },
    /// `ARG_PTR_TO_CONST_STR`.
    ConstStr,
    /// `ARG_PTR_TO_TIMER`.
    Timer,
    /// `ARG_KPTR_XCHG_DEST`.
    KptrXchgDest,
    /// The second argument of `kptr_xchg`: `ARG_PTR_TO_BTF_ID_OR_NULL | OBJ_RELEASE`, with the
    /// destination's type.
    KptrXchgSource,
    /// `ARG_PTR_TO_DYNPTR`.
    Dynptr(Dynptr),
}

/// The kind of dynptr that an argument requires, or that the helper makes of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dynptr {
    /// `MEM_RDONLY`: any initialised dynptr.
    Any,
    /// `DYNPTR_TYPE_LOCAL | MEM_UNINIT`.
    NewLocal,
    /// `DYNPTR_TYPE_RINGBUF | MEM_UNINIT`.
    NewRingbuf,
    /// `DYNPTR_TYPE_RINGBUF | OBJ_RELEASE`.
    ReleaseRingbuf,
}

/// A result: `enum bpf_return_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ret {
    /// `RET_INTEGER`.
    Integer,
    /// `RET_VOID`.
    Void,
    /// `RET_PTR_TO_MAP_VALUE`.
    Value {
        /// `PTR_MAYBE_NULL`.
        or_null: bool,
    },
    /// `RET_PTR_TO_SOCKET_OR_NULL`.
    SocketOrNull,
    /// `RET_PTR_TO_SOCK_COMMON_OR_NULL`.
    SockCommonOrNull,
    /// `RET_PTR_TO_TCP_SOCK_OR_NULL`.
    TcpSockOrNull,
    /// `RET_PTR_TO_RINGBUF_MEM_OR_NULL`.
    RingbufMemOrNull,
    /// `RET_PTR_TO_DYNPTR_MEM_OR_NULL`.
    DynptrMemOrNull,
    /// `RET_PTR_TO_BTF_ID`.
    Btf {
        /// The name of the kernel structure.
        name: &'static str,
        /// `PTR_MAYBE_NULL`.
        or_null: bool,
        /// `PTR_TRUSTED`.
        trusted: bool,
    },
    /// `RET_PTR_TO_MEM_OR_BTF_ID`: the per-CPU variable that the first argument points to.
    MemOrBtf {
        /// `PTR_MAYBE_NULL`.
        or_null: bool,
    },
    /// `bpf_kptr_xchg`: the previous value.
    KptrOrNull,
}

impl Helper {
    /// Returns a helper that gives a number and has no special properties.
    pub(super) const fn new(id: HelperId, args: &'static [Arg]) -> Self {
        Self {
            id,
            args,
            ret: Ret::Integer,
            gpl_only: false,
            packet_access: false,
            might_sleep: false,
            changes_packet: false,
            fastcall: false,
            sets: Sets::NONE,
        }
    }

    pub(super) const fn returns(self, ret: Ret) -> Self {
        Self { ret, ..self }
    }

    pub(super) const fn gpl(self) -> Self {
        Self {
            gpl_only: true,
            ..self
        }
    }

    pub(super) const fn packet_access(self) -> Self {
        Self {
            packet_access: true,
            ..self
        }
    }

    pub(super) const fn might_sleep(self) -> Self {
        Self {
            might_sleep: true,
            ..self
        }
    }

    pub(super) const fn changes_packet(self) -> Self {
        Self {
            changes_packet: true,
            ..self
        }
    }

    pub(super) const fn fastcall(self) -> Self {
        Self {
            fastcall: true,
            ..self
        }
    }
    pub(super) const fn belongs_to(self, sets: Sets) -> Self {
        Self {
            sets: self.sets.and(sets),
            ..self
        }
    }
}
