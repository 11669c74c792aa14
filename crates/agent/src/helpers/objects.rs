//! Helpers on maps of objects: tail calls, inner maps, cgroups.

use core::sync::atomic::Ordering::Acquire;

use beeline_isa::abi::Run;
use beeline_maps::Kind;
use beeline_uapi::Errno;
use beeline_uapi::limits::MAX_TAIL_CALL_CNT;
use beeline_uapi::linux::ROOT_CGROUP_ID;

use crate::abi::{CgroupPath, Context, Link, MapHandle, Target};
use crate::objects::find;

/// `bpf_tail_call(context, map, index)`: returns the entry of the next program, and the run has
/// that program's tables from now on. If it returns 0, the calling program goes on. What belongs to
/// the attachment, such as its cookie, stays.
pub fn tail_call(context: &mut Context, _: u64, map: &MapHandle, index: u32) -> u64 {
    if map.map.spec().kind() != Some(Kind::ProgArray) || context.tail_calls >= MAX_TAIL_CALL_CNT {
        return 0;
    }
    // SAFETY: the key is the 4 bytes of an index.
    let link = unsafe { find(context.target(), map, (&raw const index).cast()) } as *const Link;
    // SAFETY: the pointer is null, or a link that stays as long as the target's pool: elements of
    // program arrays are links.
    let Some(link) = (unsafe { link.as_ref() }) else {
        return 0;
    };
    context.tail_calls += 1;
    context.run = Run {
        context: context.run.context,
        ..link.run
    };
    link.entry() as usize as u64
}

/// Returns the inner map that is an element of `map`, which is no map of values: its
/// [`MapHandle`]'s address, or null.
///
/// # Safety
///
/// `key` must be readable for the map's key size.
#[cold]
pub unsafe fn inner_map(context: &Context, map: &MapHandle, key: *const u8) -> *mut u8 {
    if !matches!(
        map.map.spec().kind(),
        Some(Kind::ArrayOfMaps | Kind::HashOfMaps)
    ) {
        return core::ptr::null_mut();
    }
    // SAFETY: the caller promises that the key is readable.
    unsafe { find(context.target(), map, key) as *mut u8 }
}

/// `bpf_current_task_under_cgroup(map, index)`.
///
/// # Errors
///
/// `E2BIG` for an index that is out of range, `EAGAIN` if the element is empty.
pub fn current_task_under_cgroup(
    context: &mut Context,
    map: &MapHandle,
    index: u32,
) -> Result<u64, Errno> {
    let target = context.target();
    if index >= map.map.spec().max_entries {
        return Err(Errno::E2BIG);
    }
    // SAFETY: the key is the 4 bytes of an index.
    match unsafe { find(target, map, (&raw const index).cast()) } as u64 {
        0 => Err(Errno::EAGAIN),
        wanted => Ok(cgroups(target).any(|cgroup| cgroup == wanted).into()),
    }
}

/// `bpf_get_current_cgroup_id()`.
pub fn get_current_cgroup_id(context: &mut Context) -> u64 {
    cgroups(context.target()).last().unwrap_or(ROOT_CGROUP_ID)
}

/// `bpf_get_current_ancestor_cgroup_id(level)`: 0 if there is none at that level; the root is at
/// level 0.
pub fn get_current_ancestor_cgroup_id(context: &mut Context, level: u32) -> u64 {
    cgroups(context.target()).nth(level as usize).unwrap_or(0)
}

/// Returns the ids of the cgroups that the target is in, from the root to its own.
fn cgroups(target: &Target) -> impl Iterator<Item = u64> {
    let path = target.cgroups.load(Acquire) as *const CgroupPath;
    // SAFETY: the pointer is null, or a path that is published whole and stays as long as the
    // target's pool.
    let depth = unsafe { path.as_ref() }.map_or(0, |path| path.depth);
    // SAFETY: `depth` ids follow the head.
    (0..depth).map(move |level| unsafe { *path.add(1).cast::<u64>().add(level) })
}
