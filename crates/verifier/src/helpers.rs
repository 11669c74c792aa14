//! Helpers, and the kinds of programs that may call them (`get_func_proto` of each `struct
//! bpf_verifier_ops`, and `bpf_base_func_proto`; Linux 6.18, all capabilities, lockdown at
//! integrity).

mod availability;
mod hooks;
mod set;

use beeline_uapi::HelperId;
pub use beeline_uapi::helper::{Arg, Dynptr, Helper, Ret};

use crate::program::Kind;

/// Returns the helper with this number, for programs of this kind.
///
/// `target` is the name for [`Kind::attach_btf_id`]: a function (`vfs_truncate`,
/// `bpf_lsm_file_open`, `bpf_iter_tcp`) or a structure (`tcp_congestion_ops`). Some helpers are for
/// programs at certain targets only; if the name is not known, programs count as being at the right
/// one.
///
/// # Errors
/// [`Missing::Unknown`] if Linux 6.18 has no such helper, [`Missing::NotForThisType`] if programs
/// of this type and attach type cannot call it, [`Missing::NotAtThisTarget`] if others of them can.
pub fn helper(id: HelperId, kind: &Kind, target: Option<&str>) -> Result<&'static Helper, Missing> {
    if id.0 >= HelperId::COUNT {
        return Err(Missing::Unknown);
    }
    let found = availability::find(id, kind, target).ok_or(Missing::NotForThisType)?;
    if availability::is_allowed(found, kind, target) {
        Ok(found)
    } else {
        Err(Missing::NotAtThisTarget)
    }
}

/// The reasons why a helper cannot be called, as the kernel distinguishes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// "invalid func unknown#N".
    Unknown,
    /// "program of this type cannot use helper bpf_NAME#N".
    NotForThisType,
    /// "helper call is not allowed in probe".
    NotAtThisTarget,
}
