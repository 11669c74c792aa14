//! The types of registers that an argument takes.

use beeline_uapi::HelperId;

use crate::context::SocketKind;
use crate::helpers::{Arg, Dynptr};
use crate::state::{Flags, Reg, Type};

pub(super) fn accepts_null(arg: Arg) -> bool {
    match arg {
        Arg::ContextOrNull | Arg::ValueOrNull | Arg::KptrXchgSource => true,
        Arg::Mem { or_null, .. }
        | Arg::Socket { or_null }
        | Arg::BtfSockCommon { or_null, .. }
        | Arg::Btf { or_null, .. }
        | Arg::Stack { or_null } => or_null,
        _ => false,
    }
}

/// Returns whether the helper releases the argument (`OBJ_RELEASE`).
pub(super) fn is_release(arg: Arg) -> bool {
    matches!(
        arg,
        Arg::RingbufMem
            | Arg::KptrXchgSource
            | Arg::BtfSockCommon { release: true, .. }
            | Arg::Dynptr(Dynptr::ReleaseRingbuf)
    )
}

/// Returns whether a register has one of the types that an argument takes (`compatible_reg_types`).
pub(super) fn suits(reg: &Reg, arg: Arg, number: u8, helper: HelperId) -> bool {
    let mut flags = reg.flags;
    let read_only = matches!(
        arg,
        Arg::Mem {
            write: false,
            uninit: false,
            ..
        }
    );
    if read_only {
        flags = flags.without(Flags::RDONLY);
    }
    if accepts_null(arg) {
        flags = flags.without(Flags::MAYBE_NULL);
    }
    if helper == HelperId::KPTR_XCHG && number == 2 {
        flags = flags.without(Flags::ALLOC).without(Flags::PERCPU);
    }
    flags = flags.without(Flags::DYNPTR_SLICE);
    let plain = flags == Flags::NONE;
    match arg {
        Arg::Any => true,
        Arg::Context | Arg::ContextOrNull => reg.kind == Type::Context && plain,
        Arg::Map => matches!(reg.kind, Type::Map(_)) && plain,
        Arg::Key | Arg::Value | Arg::ValueOrNull | Arg::UninitValue | Arg::Mem { .. } => {
            match reg.kind {
                Type::Stack(_)
                | Type::Packet
                | Type::PacketMeta
                | Type::MapKey(_)
                | Type::MapValue(_)
                | Type::Buffer => plain,
                Type::Mem(_) => plain || flags == Flags::RINGBUF,
                Type::Btf(_) => read_only && flags == Flags::TRUSTED,
                _ => false,
            }
        }
        Arg::Size | Arg::SizeOrZero | Arg::AllocSizeOrZero => reg.is_scalar(),
        Arg::SpinLock => {
            matches!(reg.kind, Type::MapValue(_)) && plain || reg.is_allocated_object()
        }
        Arg::SockCommon => matches!(reg.kind, Type::Socket(_)) && plain,
        Arg::Socket { .. } => reg.kind == Type::Socket(SocketKind::Socket) && plain,
        Arg::BtfSockCommon { .. } => {
            matches!(reg.kind, Type::Socket(_)) && plain
                || matches!(reg.kind, Type::Btf(_)) && (plain || flags == Flags::TRUSTED)
        }
        Arg::Btf { .. } | Arg::KptrXchgSource => {
            matches!(reg.kind, Type::Btf(_))
                && (plain || flags == Flags::TRUSTED || flags == Flags::RCU)
        }
        Arg::PerCpuBtf => {
            let trust = Flags(flags.0 & !Flags::PERCPU.0);
            matches!(reg.kind, Type::Btf(_))
                && flags.has(Flags::PERCPU)
                && [Flags::NONE, Flags::RCU, Flags::TRUSTED].contains(&trust)
        }
        Arg::RingbufMem => matches!(reg.kind, Type::Mem(_)) && flags == Flags::RINGBUF,
        Arg::Func => matches!(reg.kind, Type::Func(_)),
        Arg::Stack { .. } => matches!(reg.kind, Type::Stack(_)),
        Arg::ConstStr | Arg::Timer => matches!(reg.kind, Type::MapValue(_)) && plain,
        Arg::KptrXchgDest => {
            matches!(reg.kind, Type::MapValue(_)) && plain || reg.is_allocated_object()
        }
        Arg::Dynptr(_) => matches!(reg.kind, Type::Stack(_) | Type::Dynptr(_)),
    }
}

/// Returns the list of accepted types as the log prints it.
pub(super) fn expected(arg: Arg) -> &'static str {
    match arg {
        Arg::Any => "scalar",
        Arg::Context | Arg::ContextOrNull => "ctx",
        Arg::Map => "map_ptr",
        Arg::Key | Arg::Value | Arg::ValueOrNull | Arg::UninitValue | Arg::Mem { .. } => {
            "fp, pkt, pkt_meta, map_key, map_value, mem, ringbuf_mem, buf, trusted_ptr_"
        }
        Arg::Size | Arg::SizeOrZero | Arg::AllocSizeOrZero => "scalar",
        Arg::SpinLock => "map_value, ptr_",
        Arg::SockCommon => "sock_common, sock, tcp_sock, xdp_sock",
        Arg::Socket { .. } => "sock",
        Arg::BtfSockCommon { .. } => "sock_common, sock, tcp_sock, xdp_sock, ptr_, trusted_ptr_",
        Arg::Btf { .. } | Arg::KptrXchgSource => "ptr_, trusted_ptr_, rcu_ptr_",
        Arg::PerCpuBtf => "percpu_ptr_, percpu_rcu_ptr_, percpu_trusted_ptr_",
        Arg::RingbufMem => "ringbuf_mem",
        Arg::Func => "func",
        Arg::Stack { .. } => "fp",
        Arg::ConstStr | Arg::Timer => "map_value",
        Arg::KptrXchgDest => "map_value, ptr_",
        Arg::Dynptr(_) => "fp, dynptr_ptr",
    }
}
