//! The kernel objects that a tool may have by their numbers: those that it holds, and those that
//! these hold. If a tool has kept only a program, that still leads it to the program's maps and
//! types.

use std::collections::HashSet;
use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use beeline_uapi::Command;
use beeline_uapi::attr::{GetId, Info};
use beeline_uapi::fields::u32_at;
use beeline_uapi::info::{LinkInfo, MapInfo, ProgInfo};
use beeline_vm_protocol::info::Kind;
use rustix::io::Errno;

use crate::bpf::BY_ID;
use crate::handles::{Handles, Object, info, returned_fd};
use crate::sys::{self, Attr};

/// Offsets in `struct bpf_prog_info`.
mod program {
    use super::{ProgInfo, offset_of};

    pub(super) const MAP_COUNT: usize = offset_of!(ProgInfo, nr_map_ids);
    pub(super) const MAP_IDS: usize = offset_of!(ProgInfo, map_ids);
    pub(super) const BTF: usize = offset_of!(ProgInfo, btf_id);
    /// The length of the part that is read here.
    pub(super) const LEN: usize = beeline_uapi::offset_behind!(ProgInfo, btf_id);
}
const MAP_BTF: usize = offset_of!(MapInfo, btf_id);
const LINK_PROGRAM: usize = offset_of!(LinkInfo, prog_id);

/// Returns the numbers of a tool's own objects of a kind.
pub fn ids(handles: &Handles, kind: Kind) -> HashSet<u32> {
    let mut ids = HashSet::new();
    for object in handles.all() {
        if object.kind == kind {
            ids.insert(object.id);
        }
        // An object that is gone by now leads nowhere.
        let _ = add_held(&object, kind, &mut ids);
    }
    ids.remove(&0);
    ids
}

fn add_held(object: &Object, kind: Kind, ids: &mut HashSet<u32>) -> Result<(), Errno> {
    let fd = object.fd.as_fd();
    match (object.kind, kind) {
        (Kind::Program, _) => add_programs(fd, kind, ids)?,
        (Kind::Map, Kind::Btf) => {
            ids.insert(u32_at(&info(fd)?, MAP_BTF));
        }
        (Kind::Link, Kind::Program) => {
            ids.insert(u32_at(&info(fd)?, LINK_PROGRAM));
        }
        (Kind::Link, Kind::Map | Kind::Btf) => {
            let program = open_program(u32_at(&info(fd)?, LINK_PROGRAM))?;
            add_programs(program.as_fd(), kind, ids)?;
        }
        _ => {}
    }
    Ok(())
}

fn add_programs(program: BorrowedFd<'_>, kind: Kind, ids: &mut HashSet<u32>) -> Result<(), Errno> {
    match kind {
        Kind::Map => ids.extend(maps_of(program)?),
        Kind::Btf => {
            ids.insert(u32_at(&info(program)?, program::BTF));
        }
        _ => {}
    }
    Ok(())
}

fn open_program(id: u32) -> Result<OwnedFd, Errno> {
    let mut attr = Attr::of(&GetId {
        start_id: id,
        ..GetId::default()
    });
    // SAFETY: the command takes only integers, and returns a descriptor.
    unsafe {
        sys::bpf(Command::PROG_GET_FD_BY_ID, &mut attr, BY_ID).map(|value| returned_fd(value))
    }
}

/// Returns the maps that a program uses. Between the two questions it may bind more, which are left
/// out.
fn maps_of(fd: BorrowedFd<'_>) -> Result<Vec<u32>, Errno> {
    const NUMBER: usize = size_of::<u32>();
    let count = u32_at(&info(fd)?, program::MAP_COUNT);
    let mut numbers = vec![0; count as usize * NUMBER];
    let mut asked = Attr::new(&[]).with(program::MAP_COUNT, count);
    if count > 0 {
        asked.point(program::MAP_IDS, &mut numbers);
    }
    let mut attr = Attr::of(&Info {
        bpf_fd: fd.as_raw_fd(),
        info_len: program::LEN as u32,
        ..Info::default()
    });
    attr.point(offset_of!(Info, info), asked.bytes_mut());
    // SAFETY: the attribute leads to a structure that is longer than it says. The one pointer in it
    // that is not null leads to as many numbers as are asked for.
    unsafe { sys::bpf(Command::OBJ_GET_INFO_BY_FD, &mut attr, size_of::<Info>()) }?;
    let there = u32_at(asked.bytes(), program::MAP_COUNT).min(count) as usize;
    let numbers = numbers.chunks_exact(NUMBER).take(there);
    Ok(numbers.map(|number| u32_at(number, 0)).collect())
}
