//! The words in which the kernel describes a helper: `struct bpf_func_proto`.

use super::HelperId;

/// What a helper takes and gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Helper {
    /// Its number. Several may have the same, for programs of different types.
    pub id: HelperId,
    /// Of r1 ... r5; as many as it has.
    pub args: &'static [Arg],
    /// What r0 is afterwards.
    pub ret: Ret,
    /// Only for programs under the GPL.
    pub gpl_only: bool,
    /// May it be given pointers into packets (`pkt_access`)?
    pub packet_access: bool,
    /// May it sleep (`might_sleep`)?
    pub might_sleep: bool,
    /// Does it change packet data, so that pointers into it are void afterwards (`bpf_helper_changes_pkt_data`)? A tail
    /// call does if it succeeds, for the caller of the function that makes it; if it comes back, it did nothing.
    pub changes_packet: bool,
    /// Does it leave r1 to r5 alone if compiled in place (`allow_fastcall`)?
    pub fastcall: bool,
}

/// One argument: `enum bpf_arg_type`.
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
        /// `MEM_WRITE`: the helper writes it; else `MEM_RDONLY` or unspecified.
        write: bool,
        /// `MEM_UNINIT`: it need not be initialised.
        uninit: bool,
        /// `PTR_MAYBE_NULL`.
        or_null: bool,
        /// `MEM_FIXED_SIZE`, and `arg_size`; else the next argument is its size.
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
        /// May it be null?
        or_null: bool,
    },
    /// `ARG_PTR_TO_BTF_ID_SOCK_COMMON`.
    BtfSockCommon {
        /// `OBJ_RELEASE`: it is given back.
        release: bool,
        /// `PTR_MAYBE_NULL`.
        or_null: bool,
    },
    /// `ARG_PTR_TO_BTF_ID`.
    Btf {
        /// Of the kernel's structure of this name.
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
        /// May it be null?
        or_null: bool,
    },
    /// `ARG_PTR_TO_CONST_STR`.
    ConstStr,
    /// `ARG_PTR_TO_TIMER`.
    Timer,
    /// `ARG_KPTR_XCHG_DEST`.
    KptrXchgDest,
    /// The second argument of `kptr_xchg`: `ARG_PTR_TO_BTF_ID_OR_NULL | OBJ_RELEASE`, of the type of the destination.
    KptrXchgSource,
    /// `ARG_PTR_TO_DYNPTR`.
    Dynptr(Dynptr),
}

/// What a dynptr argument must be, or is made to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dynptr {
    /// `MEM_RDONLY`: any that is initialised.
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
        /// Of the kernel's structure of this name.
        name: &'static str,
        /// `PTR_MAYBE_NULL`.
        or_null: bool,
        /// `PTR_TRUSTED`.
        trusted: bool,
    },
    /// `RET_PTR_TO_MEM_OR_BTF_ID`: what the first argument is per CPU.
    MemOrBtf {
        /// `PTR_MAYBE_NULL`.
        or_null: bool,
    },
    /// `bpf_kptr_xchg`: what was there.
    KptrOrNull,
}

impl Helper {
    /// One that gives a number and of which nothing special is to be said.
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
}
