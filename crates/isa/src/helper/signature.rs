//! Signatures of helpers: the parts of a call that can be checked at run time, without types.

use beeline_uapi::HelperId;
use beeline_uapi::helper::{Arg, Dynptr, Ret, prototype};

/// A helper's arguments and its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signature {
    arguments: [Argument; 5],
    count: usize,
    /// The content of r0 afterwards.
    pub result: Returned,
}

impl Signature {
    /// Returns the arguments, r1 first; at most five.
    pub fn arguments(&self) -> &[Argument] {
        &self.arguments[..self.count]
    }
}

/// One argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Argument {
    /// Any value: a number, an address that the helper itself checks, an argument for a callback.
    Any,
    /// The program's context.
    Context,
    /// A map of a type that [`suits`](beeline_uapi::helper::maps::suits) the helper.
    Map,
    /// A key of the map, to be read.
    Key,
    /// A value of the map, to be read.
    Value,
    /// A value of the map, to be read, or null.
    ValueOrNull,
    /// Room for a value of the map, to be written.
    ValueRoom,
    /// Memory to be read; the next argument is the number of bytes.
    Read,
    /// Memory to be read, or null if the next argument is 0.
    ReadOrNull,
    /// Memory to be written; the next argument is the number of bytes.
    Write,
    /// Memory to be written, or null if the next argument is 0.
    WriteOrNull,
    /// Memory of a map's value; the next argument is the number of bytes.
    Stored,
    /// The bytes of the argument before it; not 0.
    Size,
    /// The bytes of the argument before it.
    SizeOrZero,
    /// A text that ends with a zero byte.
    Text,
    /// Room for eight bytes, to be written.
    Long,
    /// A `struct bpf_spin_lock` in a map's value.
    Lock,
    /// A `struct bpf_timer` in a map's value.
    Timer,
    /// A record that was reserved in a ring buffer; it is handed back.
    Record,
    /// A function of the program.
    Callback,
    /// A task, as `bpf_get_current_task_btf` returns it.
    Task,
    /// A dynptr.
    Dynptr,
    /// The dynptr of a record that was reserved in a ring buffer; it is handed back.
    RecordDynptr,
    /// Room for a dynptr, to be made.
    NewDynptr,
    /// Room for a dynptr of a record, which must be handed back.
    NewRecordDynptr,
    /// Another object of the kernel's.
    Kernel,
}

/// A result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Returned {
    /// r0 is not to be read.
    Nothing,
    /// A number, or an address that is not the program's.
    Number,
    /// A value of the map, or for a map of maps a map; or null.
    ValueOrNull,
    /// A record, or null; the second argument is the number of bytes.
    RecordOrNull,
    /// Memory of a dynptr, or null; the third argument is the number of bytes.
    PartOrNull,
    /// A task, or null.
    Task,
    /// Another object of the kernel's, or null.
    Kernel,
}

/// Returns the signature of a helper.
///
/// `None` for an unknown one, and for one with an argument that no [`Argument`] describes, such as
/// a socket.
pub fn signature(id: HelperId) -> Option<Signature> {
    let helper = prototype(id)?;
    let mut arguments = [Argument::Any; 5];
    let mut count = helper.args.len();
    for (to, arg) in arguments.iter_mut().zip(helper.args) {
        *to = argument(*arg)?;
    }
    match id {
        // The prototype ends before the values to print, which the kernel does not check.
        HelperId::TRACE_PRINTK => count = 5,
        // The prototype allows any memory, and the verifier refuses all but values of maps.
        HelperId::DYNPTR_FROM_MEM => arguments[0] = Argument::Stored,
        _ => {}
    }
    Some(Signature {
        arguments,
        count,
        result: result(helper.ret),
    })
}

fn argument(arg: Arg) -> Option<Argument> {
    /// The bytes of a `long`.
    const LONG: u32 = 8;
    Some(match arg {
        // The verifier requires constant sizes for reservations. The helpers check their values.
        Arg::Any | Arg::AllocSizeOrZero => Argument::Any,
        // A callback gets it, and nothing else reads it.
        Arg::Stack { .. } => Argument::Any,
        Arg::Context => Argument::Context,
        Arg::Map => Argument::Map,
        Arg::Key => Argument::Key,
        Arg::Value => Argument::Value,
        Arg::ValueOrNull => Argument::ValueOrNull,
        Arg::UninitValue => Argument::ValueRoom,
        Arg::Mem {
            fixed: Some(LONG),
            write: true,
            ..
        } => Argument::Long,
        Arg::Mem { fixed: Some(_), .. } => return None,
        Arg::Mem { write, or_null, .. } => match (write, or_null) {
            (false, false) => Argument::Read,
            (false, true) => Argument::ReadOrNull,
            (true, false) => Argument::Write,
            (true, true) => Argument::WriteOrNull,
        },
        Arg::Size => Argument::Size,
        Arg::SizeOrZero => Argument::SizeOrZero,
        Arg::ConstStr => Argument::Text,
        Arg::SpinLock => Argument::Lock,
        Arg::Timer => Argument::Timer,
        Arg::RingbufMem => Argument::Record,
        Arg::Func => Argument::Callback,
        Arg::Dynptr(Dynptr::Any) => Argument::Dynptr,
        Arg::Dynptr(Dynptr::NewLocal) => Argument::NewDynptr,
        Arg::Dynptr(Dynptr::NewRingbuf) => Argument::NewRecordDynptr,
        Arg::Dynptr(Dynptr::ReleaseRingbuf) => Argument::RecordDynptr,
        Arg::Btf {
            name: "task_struct",
            ..
        } => Argument::Task,
        Arg::Btf { .. } | Arg::PerCpuBtf => Argument::Kernel,
        Arg::ContextOrNull
        | Arg::SockCommon
        | Arg::Socket { .. }
        | Arg::BtfSockCommon { .. }
        | Arg::KptrXchgDest
        | Arg::KptrXchgSource => return None,
    })
}

fn result(ret: Ret) -> Returned {
    match ret {
        Ret::Integer => Returned::Number,
        Ret::Void => Returned::Nothing,
        Ret::Value { .. } => Returned::ValueOrNull,
        Ret::RingbufMemOrNull => Returned::RecordOrNull,
        Ret::DynptrMemOrNull => Returned::PartOrNull,
        Ret::Btf {
            name: "task_struct",
            ..
        } => Returned::Task,
        Ret::Btf { .. }
        | Ret::MemOrBtf { .. }
        | Ret::KptrOrNull
        | Ret::SocketOrNull
        | Ret::SockCommonOrNull
        | Ret::TcpSockOrNull => Returned::Kernel,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signatures() -> impl Iterator<Item = (HelperId, Signature)> {
        let ids = (0..HelperId::COUNT).map(HelperId);
        ids.filter_map(|id| Some((id, signature(id)?)))
    }

    #[test]
    fn every_size_follows_what_it_is_the_size_of() {
        use Argument::*;
        for (id, signature) in signatures() {
            let mut before = None;
            for &argument in signature.arguments() {
                let is_sized = matches!(
                    before,
                    Some(Read | ReadOrNull | Write | WriteOrNull | Stored)
                );
                let is_size = matches!(argument, Size | SizeOrZero);
                assert_eq!(is_size, is_sized, "{argument:?} of {id}");
                before = Some(argument);
            }
        }
    }

    #[test]
    fn keys_and_values_have_a_map_before_them() {
        use Argument::*;
        for (id, signature) in signatures() {
            let mut has_map = false;
            for argument in signature.arguments() {
                has_map |= *argument == Map;
                let is_keyed = matches!(argument, Key | Value | ValueOrNull | ValueRoom);
                assert!(has_map || !is_keyed, "{argument:?} of {id}");
            }
        }
    }

    #[test]
    fn prototypes_do_not_say_everything() {
        use Argument::*;
        let arguments = |id| signature(id).map(|signature| signature.arguments);
        assert_eq!(
            arguments(HelperId::TRACE_PRINTK),
            Some([Read, Size, Any, Any, Any])
        );
        assert_eq!(
            arguments(HelperId::DYNPTR_FROM_MEM),
            Some([Stored, SizeOrZero, Any, NewDynptr, Any])
        );
        assert_eq!(arguments(HelperId::SK_RELEASE), None);
    }
}
