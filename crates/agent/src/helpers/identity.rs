//! The identity of the running thread: process, thread, user, name, CPU.

use core::sync::atomic::Ordering::Relaxed;

use beeline_uapi::linux::{PR_GET_NAME, TASK_COMM_LEN};
use beeline_uapi::{Errno, nr};

use super::convention::Writable;
use super::time;
use crate::abi::{COMM_ENTRIES, CommEntry, Context, IS_CHILD, TID_UNKNOWN, USERS_SEEN, UserEntry};
use crate::{arch, sys};

/// `bpf_get_smp_processor_id()`: the slot's number, as in every per-CPU map.
pub fn get_smp_processor_id(context: &mut Context) -> u64 {
    context.cpu.into()
}

/// `bpf_get_numa_node_id()`.
pub fn get_numa_node_id(context: &mut Context) -> u64 {
    arch::node(context.target().flags.load(Relaxed)).into()
}

/// `bpf_get_current_pid_tgid()`: the process above, the thread below.
pub fn get_current_pid_tgid(context: &mut Context) -> u64 {
    u64::from(tgid(context)) << 32 | u64::from(tid(context))
}

/// `bpf_get_ns_current_pid_tgid(dev, ino, nsdata, size)`: the ids in the process's own pid
/// namespace, if that is the one named by device and inode; else `-EINVAL` and zeros.
///
/// # Errors
///
/// `EINVAL` for another size or another namespace.
pub fn get_ns_current_pid_tgid(
    context: &mut Context,
    dev: u64,
    ino: u64,
    to: Writable,
    size: u32,
) -> Result<(), Errno> {
    /// `struct bpf_pidns_info`.
    type Ids = [u32; 2];
    let (target, size) = (context.target(), size as usize);
    // SAFETY: the program answers for `size` bytes.
    unsafe {
        if size != size_of::<Ids>() || target.pid_namespace != [dev, ino] {
            arch::zero(to.as_mut_ptr(), size);
            return Err(Errno::EINVAL);
        }
        let ids: *mut Ids = to.as_mut_ptr().cast();
        ids.write_unaligned([sys::tid(), target.control().own_pid]);
    }
    Ok(())
}

/// `bpf_get_current_uid_gid()`: the group above, the user below.
pub fn get_current_uid_gid(context: &mut Context) -> u64 {
    let (uid, gid) = user_and_group(context);
    u64::from(gid) << 32 | u64::from(uid)
}

/// Returns the thread's user and group.
///
/// A process may change them at any moment, so they are only remembered where every such call is
/// seen. They are kept no longer than for one tick of the coarse clock, in case of unforeseen
/// changes.
fn user_and_group(context: &mut Context) -> (u32, u32) {
    let target = context.target();
    let control = target.control();
    let is_seen = target.flags.load(Relaxed) & USERS_SEEN != 0;
    if !is_seen || target.tid_offset == TID_UNKNOWN || control.user_changes.load(Relaxed) != 0 {
        return ask_user_and_group();
    }
    // A thread's identity changes by its own calls, so these words need no order among threads.
    let users = control.users.load(Relaxed);
    let (tid, tick) = (tid(context), time::tick(context));
    // SAFETY: the slot is leased by this run.
    let known = unsafe { &mut (*context.slot).users };
    let Some(entry) = known.get_mut(tid as usize & (COMM_ENTRIES - 1)) else {
        return ask_user_and_group();
    };
    if (entry.tid, entry.tick, entry.users) != (tid, tick, users) {
        let (uid, gid) = ask_user_and_group();
        // A handler that has interrupted the questions, and changed the answers, has changed
        // `users` as well.
        *entry = UserEntry {
            tid,
            tick,
            users,
            uid,
            gid,
        };
    }
    (entry.uid, entry.gid)
}

fn ask_user_and_group() -> (u32, u32) {
    // SAFETY: both calls only return a number.
    let ask = |call| unsafe { sys::syscall(call, [0; 4]) } as u32;
    (ask(nr::GETUID), ask(nr::GETGID))
}

/// `bpf_get_current_comm(buf, size)`: the thread's name, padded with zeros.
///
/// # Errors
///
/// `EINVAL` for no buffer, or a size of 0 or of more than 32 bits.
pub fn get_current_comm(context: &mut Context, buf: Writable, size: u64) -> Result<(), Errno> {
    let buf = buf.as_mut_ptr();
    if buf.is_null() || size == 0 || size > u64::from(u32::MAX) {
        return Err(Errno::EINVAL);
    }
    let comm = comm(context);
    let size = size as usize;
    let kept = size.min(TASK_COMM_LEN);
    // SAFETY: the program answers for `size` bytes.
    unsafe {
        if size == TASK_COMM_LEN {
            buf.cast::<[u8; TASK_COMM_LEN]>().write_unaligned(comm);
            return Ok(());
        }
        arch::copy(buf, comm.as_ptr(), kept);
        arch::zero(buf.add(kept), size - kept);
        buf.add(kept - 1).write(0);
    }
    Ok(())
}

/// `bpf_get_func_ip(ctx)`: the probed address.
pub fn get_func_ip(context: &mut Context) -> u64 {
    // SAFETY: the pointer is null, or a site that outlives the run.
    unsafe { context.site.as_ref() }.map_or(0, |site| site.function())
}

/// `bpf_get_attach_cookie(ctx)`.
pub fn get_attach_cookie(context: &mut Context) -> u64 {
    context.cookie
}

/// Returns the process's id.
pub fn tgid(context: &Context) -> u32 {
    let target = context.target();
    if target.flags.load(Relaxed) & IS_CHILD != 0 {
        return sys::pid();
    }
    target.control().pid.load(Relaxed)
}

/// Returns the calling thread's id.
pub fn tid(context: &Context) -> u32 {
    match context.target().tid_offset {
        TID_UNKNOWN => sys::tid(),
        // SAFETY: the runtime found each thread's own id at this offset.
        offset => unsafe { arch::thread_word(offset) },
    }
}

/// Returns the calling thread's name.
///
/// Where the calls that change it are not seen, or another thread changes it, it is at most one
/// tick of the coarse clock old.
pub fn comm(context: &mut Context) -> [u8; TASK_COMM_LEN] {
    let target = context.target();
    if target.tid_offset == TID_UNKNOWN {
        return ask_comm();
    }
    let names = target.control().names.load(Relaxed);
    let (tid, tick) = (tid(context), time::tick(context));
    // SAFETY: the slot is leased by this run.
    let entry = unsafe {
        (*context.slot)
            .comms
            .get_mut(tid as usize & (COMM_ENTRIES - 1))
    };
    match entry {
        Some(entry) if (entry.tid, entry.tick, entry.names) == (tid, tick, names) => entry.comm,
        Some(entry) => {
            *entry = CommEntry {
                tid,
                tick,
                names,
                comm: ask_comm(),
            };
            entry.comm
        }
        None => ask_comm(),
    }
}

fn ask_comm() -> [u8; TASK_COMM_LEN] {
    let mut comm = [0u8; TASK_COMM_LEN];
    // SAFETY: PR_GET_NAME fills 16 bytes.
    unsafe { sys::syscall(nr::PRCTL, [PR_GET_NAME, (&raw mut comm) as u64, 0, 0]) };
    comm
}
