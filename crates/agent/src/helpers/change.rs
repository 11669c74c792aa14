//! Destructive helpers, which change the traced process. They are only for sessions that the user
//! has allowed to.

use beeline_uapi::Errno;

use super::convention::Readable;
use crate::abi::{Context, Overridden};
use crate::sys;

/// `bpf_override_return(regs, rc)`: the call is not made, and `rc` is its result. The last
/// program's word counts.
pub fn override_return(context: &mut Context, _: u64, result: u64) {
    context.overridden = Overridden {
        is_there: 1,
        result,
    };
}

/// `bpf_probe_write_user(dst, src, len)`: where the process itself may write; else `-EFAULT`.
///
/// # Errors
///
/// `EFAULT` if not all of it can be written.
pub fn probe_write_user(_: &mut Context, to: u64, from: Readable, bytes: u32) -> Result<(), Errno> {
    let bytes = u64::from(bytes);
    // SAFETY: the program answers for the bytes that it reads.
    let written = unsafe { sys::write_memory(sys::pid(), to, from.as_ptr(), bytes) };
    if written as u64 == bytes {
        Ok(())
    } else {
        Err(Errno::EFAULT)
    }
}
