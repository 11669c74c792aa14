//! Destructive helpers, which change the traced process. They are only for sessions that the user
//! has allowed to.

use beeline_uapi::{Errno, nr};

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
    let (here, there) = ([from.as_ptr() as u64, bytes], [to, bytes]);
    let (here, there) = ((&raw const here) as u64, (&raw const there) as u64);
    let pid = sys::pid().into();
    // SAFETY: the kernel checks every byte of the process's own memory that it writes. The program
    // answers for those that it reads.
    let written = unsafe { sys::syscall6(nr::PROCESS_VM_WRITEV, [pid, here, 1, there, 1, 0]) };
    if written as u64 == bytes {
        Ok(())
    } else {
        Err(Errno::EFAULT)
    }
}
