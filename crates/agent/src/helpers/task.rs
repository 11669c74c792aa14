//! The current task: a synthetic `struct task_struct` in the target's own memory, laid out by the
//! runtime; and the values that maps keep for tasks.

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use beeline_maps::TaskStorage;
use beeline_uapi::{Errno, flags};

use super::convention::Readable;
use super::identity::{comm, tgid, tid};
use super::{maps, read, signal};
use crate::abi::{Context, IS_CHILD, MapHandle, Tasks};

const CREATE: u64 = flags::LOCAL_STORAGE_GET_F_CREATE;

/// `bpf_get_current_task_btf()`: as `bpf_get_current_task`, for programs that read from the address
/// by themselves.
pub fn get_current_task_btf(context: &mut Context) -> u64 {
    signal::let_faults_in(context);
    get_current_task(context)
}

/// `bpf_get_current_task()`: the address of the slot's copy, with the thread's id and name in it;
/// for the main thread that of its own task. 0 if the kernel does not say what a task looks like.
pub fn get_current_task(context: &mut Context) -> u64 {
    match tasks(context) {
        // SAFETY: the slot is leased by this run.
        Some(tasks) => unsafe { fill(tasks, context) },
        None => 0,
    }
}

/// Returns the tasks here, if a program has asked for one.
fn tasks(context: &Context) -> Option<&'static Tasks> {
    let tasks = context.target().tasks.load(Acquire) as *const Tasks;
    // SAFETY: the pointer is null, or laid out by the runtime for as long as programs can run.
    unsafe { tasks.as_ref() }
}

/// True if these bytes belong to a synthetic task. Then they can be read, and are in this very
/// process. For programs that run in Beeline itself, that is another process than the one that they
/// read from.
pub fn holds(context: &Context, from: u64, bytes: u64) -> bool {
    tasks(context).is_some_and(|tasks| {
        let end = from.checked_add(bytes);
        from >= tasks.leader as u64 && end.is_some_and(|end| end <= tasks.end as u64)
    })
}

/// Stores what belongs to the thread into its task, and returns the task's address.
///
/// # Safety
///
/// The context's slot must be leased by the caller.
unsafe fn fill(tasks: &Tasks, context: &mut Context) -> u64 {
    let (tid, tgid, comm) = (tid(context), tgid(context), comm(context));
    let is_child = context.target().flags.load(Relaxed) & IS_CHILD != 0;
    let is_leader = tid == tgid && !is_child;
    let task = match is_leader {
        true => tasks.leader,
        false => tasks
            .copies
            .wrapping_add(tasks.stride.wrapping_mul(context.cpu as usize)),
    };
    let at = |offset: u32| task.wrapping_add(offset as usize);
    // SAFETY: the runtime checked that these fields lie in a task; a copy is private to this slot,
    // and the main thread's task to the main thread.
    unsafe {
        (at(tasks.comm) as *mut [u8; 16]).write_unaligned(comm);
        if is_leader {
            return task as u64;
        }
        (at(tasks.pid) as *mut u32).write_unaligned(tid);
        (at(tasks.tgid) as *mut u32).write_unaligned(tgid);
        // A child that shares the target's memory is a thread's copy of a process, and the target
        // is its parent.
        let leader = if is_child { task } else { tasks.leader };
        (at(tasks.group_leader) as *mut usize).write_unaligned(leader);
        for parent in [tasks.real_parent, tasks.parent] {
            let of_leader = tasks.leader.wrapping_add(parent as usize) as *const usize;
            let parents = if is_child {
                tasks.leader
            } else {
                of_leader.read_unaligned()
            };
            (at(parent) as *mut usize).write_unaligned(parents);
        }
        if tasks.thread_pid != 0 && tasks.number != 0 {
            (at(tasks.thread_pid) as *mut usize).write_unaligned(at(tasks.thread_pid_at));
            (at(tasks.number) as *mut u32).write_unaligned(tid);
        }
    }
    task as u64
}

/// `bpf_task_storage_get(map, task, value, flags)`: the value that the map has for a task, or null.
pub fn task_storage_get(
    context: &mut Context,
    map: &MapHandle,
    task: u64,
    value: Readable,
    flags: u64,
) -> *mut u8 {
    let Some(thread) = thread_of(task, context).filter(|_| flags & !CREATE == 0) else {
        return core::ptr::null_mut();
    };
    // SAFETY: a storage's keys have 4 bytes.
    let found = unsafe { map.map.lookup((&raw const thread).cast(), context.cpu) };
    if !found.is_null() || flags & CREATE == 0 {
        return found;
    }
    let Some(storage) = TaskStorage::of(&map.map) else {
        return core::ptr::null_mut();
    };
    let caller = maps::caller(context);
    // SAFETY: the program answers for the value.
    unsafe { storage.value(thread, value.as_ptr(), &caller) }
}

/// `bpf_task_storage_delete(map, task)`.
///
/// # Errors
///
/// `EINVAL` for null, `ENOENT` if it is no task or has no value, `EBUSY` if a lock does not become
/// free.
pub fn task_storage_delete(context: &mut Context, map: &MapHandle, task: u64) -> Result<(), Errno> {
    if task == 0 {
        return Err(Errno::EINVAL);
    }
    let thread = thread_of(task, context).ok_or(Errno::ENOENT)?;
    // SAFETY: a storage's keys have 4 bytes.
    unsafe {
        map.map
            .delete((&raw const thread).cast(), &maps::caller(context))
    }
}

/// Returns the id of the thread that a synthetic task stands for; `None` for null, or for something
/// that is no task.
fn thread_of(task: u64, context: &mut Context) -> Option<u32> {
    let tasks = tasks(context)?;
    let mut thread = 0u32;
    let field = task.checked_add(tasks.pid.into())?;
    // SAFETY: there is room for 4 bytes, and memory that cannot be read is not read.
    let is_read = task != 0 && unsafe { read::copy(context, (&raw mut thread).cast(), field, 4) };
    is_read.then_some(thread)
}
