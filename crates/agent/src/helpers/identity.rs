//! The identity of the running thread: process, thread, user, name, CPU.

use core::sync::atomic::Ordering::Relaxed;

use beeline_isa::abi::Run;

use super::{context, failed, time};
use crate::abi::{
    COMM_ENTRIES, CommEntry, Context, HAS_RDPID, IS_CHILD, TID_UNKNOWN, USERS_SEEN, UserEntry,
};
use crate::sys::{self, nr};

const EINVAL: i32 = 22;
const PR_GET_NAME: u64 = 16;
const COMM_LEN: usize = 16;

pub unsafe extern "sysv64" fn get_smp_processor_id(
    _: u64,
    _: u64,
    _: u64,
    _: u64,
    _: u64,
    run: *const Run,
) -> u64 {
    // SAFETY: called by a program with its own run.
    u64::from(unsafe { context(run) }.cpu)
}

pub unsafe extern "sysv64" fn get_numa_node_id(
    _: u64,
    _: u64,
    _: u64,
    _: u64,
    _: u64,
    run: *const Run,
) -> u64 {
    // SAFETY: called by a program with its own run; the target outlives the run.
    let flags = unsafe { &(*context(run).target).flags }.load(Relaxed);
    u64::from(sys::node(flags & HAS_RDPID != 0))
}

pub unsafe extern "sysv64" fn get_current_pid_tgid(
    _: u64,
    _: u64,
    _: u64,
    _: u64,
    _: u64,
    run: *const Run,
) -> u64 {
    // SAFETY: called by a program with its own run.
    let context = unsafe { context(run) };
    u64::from(tgid(context)) << 32 | u64::from(tid(context))
}

/// `bpf_get_ns_current_pid_tgid(dev, ino, nsdata, size)`: the ids in the process's own pid
/// namespace, if that is the one named by device and inode; else `-EINVAL` and zeros.
pub unsafe extern "sysv64" fn get_ns_current_pid_tgid(
    dev: u64,
    ino: u64,
    to: u64,
    size: u64,
    _: u64,
    run: *const Run,
) -> u64 {
    /// `struct bpf_pidns_info`.
    type Ids = [u32; 2];
    let size = size as usize & 0xffff_ffff;
    // SAFETY: called by a program with its own run; the target outlives the run. The program
    // answers for `size` bytes.
    unsafe {
        let target = &*context(run).target;
        if size != size_of::<Ids>() || target.pid_namespace != [dev, ino] {
            sys::zero(to as *mut u8, size);
            return failed(EINVAL);
        }
        let tid = sys::syscall(nr::GETTID, [0; 4]) as u32;
        (to as *mut Ids).write_unaligned([tid, (*target.control).own_pid]);
    }
    0
}

/// `bpf_get_current_uid_gid()`: the group above, the user below.
pub unsafe extern "sysv64" fn get_current_uid_gid(
    _: u64,
    _: u64,
    _: u64,
    _: u64,
    _: u64,
    run: *const Run,
) -> u64 {
    // SAFETY: called by a program with its own run.
    let (uid, gid) = user_and_group(unsafe { context(run) });
    u64::from(gid) << 32 | u64::from(uid)
}

/// Returns the thread's user and group.
///
/// A process may change them at any moment, so they are only remembered where every such call is
/// seen. They are kept no longer than for one tick of the coarse clock, in case of changes that
/// nobody has thought of.
fn user_and_group(context: &mut Context) -> (u32, u32) {
    // SAFETY: the context's target outlives the run.
    let target = unsafe { &*context.target };
    // SAFETY: private memory of the target, mapped as long as programs can run.
    let control = unsafe { &*target.control };
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
pub unsafe extern "sysv64" fn get_current_comm(
    buf: u64,
    size: u64,
    _: u64,
    _: u64,
    _: u64,
    run: *const Run,
) -> u64 {
    if buf == 0 || size == 0 || size > u64::from(u32::MAX) {
        return failed(EINVAL);
    }
    // SAFETY: called by a program with its own run.
    let comm = comm(unsafe { context(run) });
    let size = size as usize;
    let (buf, kept) = (buf as *mut u8, size.min(COMM_LEN));
    // SAFETY: the program answers for `size` bytes at `buf`, as it does to the kernel's verifier.
    unsafe {
        if size == COMM_LEN {
            buf.cast::<[u8; COMM_LEN]>().write_unaligned(comm);
            return 0;
        }
        sys::copy(buf, comm.as_ptr(), kept);
        sys::zero(buf.add(kept), size - kept);
        buf.add(kept - 1).write(0);
    }
    0
}

/// `bpf_get_func_ip`: the probed address.
pub unsafe extern "sysv64" fn get_func_ip(
    _: u64,
    _: u64,
    _: u64,
    _: u64,
    _: u64,
    run: *const Run,
) -> u64 {
    // SAFETY: called by a program with its own run.
    let site = unsafe { context(run) }.site;
    // SAFETY: the pointer is null, or a site that outlives the run.
    unsafe { site.as_ref() }.map_or(0, |site| site.function())
}

pub unsafe extern "sysv64" fn get_attach_cookie(
    _: u64,
    _: u64,
    _: u64,
    _: u64,
    _: u64,
    run: *const Run,
) -> u64 {
    // SAFETY: called by a program with its own run.
    unsafe { context(run) }.cookie
}

/// Returns the process's id.
pub fn tgid(context: &Context) -> u32 {
    // SAFETY: the context's target outlives the run.
    let target = unsafe { &*context.target };
    if target.flags.load(Relaxed) & IS_CHILD != 0 {
        // SAFETY: only returns a number.
        return unsafe { sys::syscall(nr::GETPID, [0; 4]) } as u32;
    }
    // SAFETY: private memory of the target, mapped as long as programs can run.
    unsafe { &*target.control }.pid.load(Relaxed)
}

/// Returns the calling thread's id.
pub fn tid(context: &Context) -> u32 {
    // SAFETY: the context's target outlives the run.
    match unsafe { (*context.target).tid_offset } {
        // SAFETY: only returns a number.
        TID_UNKNOWN => (unsafe { sys::syscall(nr::GETTID, [0; 4]) }) as u32,
        // SAFETY: the runtime found each thread's own id at this offset.
        offset => unsafe { sys::thread_word(offset) },
    }
}

/// Returns the calling thread's name.
///
/// Where the calls that change it are not seen, or another thread changes it, it is at most one
/// tick of the coarse clock old.
pub fn comm(context: &mut Context) -> [u8; COMM_LEN] {
    // SAFETY: the context's target outlives the run.
    let target = unsafe { &*context.target };
    if target.tid_offset == TID_UNKNOWN {
        return ask_comm();
    }
    // SAFETY: private memory of the target, mapped as long as programs can run.
    let names = unsafe { &*target.control }.names.load(Relaxed);
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

fn ask_comm() -> [u8; COMM_LEN] {
    let mut comm = [0u8; COMM_LEN];
    // SAFETY: PR_GET_NAME fills 16 bytes.
    unsafe { sys::syscall(nr::PRCTL, [PR_GET_NAME, (&raw mut comm) as u64, 0, 0]) };
    comm
}
