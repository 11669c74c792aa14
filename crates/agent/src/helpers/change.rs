//! Destructive helpers, which change the traced process. They are only for sessions that the user
//! has allowed to.

use beeline_isa::abi::Run;

use super::{context, failed};
use crate::abi::Overridden;
use crate::sys::{self, nr};

const EFAULT: i32 = 14;

/// `bpf_override_return(regs, rc)`: the call is not made, and `rc` is its result. The last
/// program's word counts.
pub unsafe extern "sysv64" fn override_return(
    _: u64,
    result: u64,
    _: u64,
    _: u64,
    _: u64,
    run: *const Run,
) -> u64 {
    // SAFETY: called by a program with its own run.
    unsafe { context(run) }.overridden = Overridden {
        is_there: 1,
        result,
    };
    0
}

/// `bpf_probe_write_user(dst, src, len)`: where the process itself may write; else `-EFAULT`.
pub unsafe extern "sysv64" fn probe_write_user(
    to: u64,
    from: u64,
    bytes: u64,
    _: u64,
    _: u64,
    _: *const Run,
) -> u64 {
    let bytes = bytes & 0xffff_ffff;
    let (here, there) = ([from, bytes], [to, bytes]);
    let (here, there) = ((&raw const here) as u64, (&raw const there) as u64);
    // SAFETY: the first call only returns a number; then the kernel checks every byte of the
    // process's own memory that it writes. The program answers for those that it reads.
    let written = unsafe {
        let pid = sys::syscall(nr::GETPID, [0; 4]) as u64;
        sys::syscall6(nr::PROCESS_VM_WRITEV, [pid, here, 1, there, 1, 0])
    };
    if written as u64 == bytes {
        0
    } else {
        failed(EFAULT)
    }
}
