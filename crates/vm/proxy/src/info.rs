//! `BPF_OBJ_GET_INFO_BY_FD`, which has its pointers in the structure that it points to.

use std::mem::offset_of;
use std::os::fd::AsFd;

use beeline_uapi::fields::{put_u32, put_u64, u32_at, u64_at};
use beeline_uapi::info::BtfInfo;
use beeline_uapi::{Command, attr};
use beeline_vm_protocol::info::{INFO_BYTES, Kind, buffers};
use beeline_vm_protocol::layout::{Buffer, INSIDE, Len};
use beeline_vm_protocol::messages::{Bpf, BpfDone, Part};

use crate::digests::{self, Digests};
use crate::handles::{Handles, Object, info};
use crate::refusal::Refusal;
use crate::sys::{self, Attr};

/// Offsets in the attribute.
const OBJECT: usize = offset_of!(attr::Info, bpf_fd);
const LEN: usize = offset_of!(attr::Info, info_len);
const POINTER: usize = offset_of!(attr::Info, info);
/// The first buffer that `struct bpf_btf_info` points to.
const TYPES_PART: u32 = INSIDE | offset_of!(BtfInfo, btf) as u32;
/// The offset in the structure of its length.
const TYPES_LEN: usize = offset_of!(BtfInfo, btf_size);

/// Asks the kernel for an object's information. The kernel's types are left out if the host holds
/// them, by `digests`.
///
/// # Errors
///
/// `EBADF` for an unknown handle, `EFAULT` if there is no structure, `EINVAL` or `E2BIG` if it or
/// one of its buffers is not as it should be, and the kernel's errors. If the command itself fails,
/// the answer has its errno.
pub fn get(request: Bpf, handles: &Handles, digests: &Digests) -> Result<BpfDone, Refusal> {
    let object = handles.get(u32_at(&request.attr, OBJECT))?;
    let mut parts = request.parts;
    let same = !request.held.is_empty()
        && digests
            .now(digests::TYPES)
            .is_some_and(|sum| request.held == sum)
        && is_kernels_own(&object);
    if same {
        parts.retain(|part| part.at != TYPES_PART);
    }
    parts.sort_by_key(|part| part.at);
    let (structure, inside) = match parts.split_first() {
        Some((first, rest)) if first.at as usize == POINTER => (first.data.clone(), rest),
        _ => return Err(Refusal::new(libc::EFAULT, "")),
    };
    let len = u32_at(&request.attr, LEN) as usize;
    if structure.len() > len || len > 1 << 16 {
        let why = "the structure is longer than it says, or than any is";
        return Err(Refusal::new(libc::EINVAL, why));
    }
    if structure.iter().skip(INFO_BYTES).any(|byte| *byte != 0) {
        return Err(Refusal::new(libc::E2BIG, ""));
    }
    // The content of a link's structure depends on its type, which the host may not know, or know
    // wrongly.
    let asked = info(object.fd.as_fd())?;
    let table = buffers(object.kind, &asked);
    let mut structure = counts(table, &structure, len.min(INFO_BYTES));
    if same {
        put_u32(&mut structure, TYPES_LEN, 0);
    }
    let mut lent = lend(&object, table, &mut structure, inside)?;
    let mut attr = Attr::new(&request.attr)
        .with_fd(OBJECT, object.fd.as_fd())
        .with(LEN, structure.len() as u32);
    attr.point(POINTER, &mut structure);
    let size = request.attr.len();
    // SAFETY: the attribute leads to the structure, of the length that it says. All of that is 0
    // except for the counts and the pointers that the table knows; each of these is null or leads
    // to a buffer of the length that the structure says.
    let returned = unsafe { sys::bpf(Command::OBJ_GET_INFO_BY_FD, &mut attr, size) };
    for buffer in table {
        put_u64(&mut structure, buffer.at, 0);
    }
    let mut done = BpfDone {
        same,
        ..BpfDone::default()
    };
    match returned {
        Err(errno) => done.errno = errno.raw_os_error() as u32,
        Ok(value) => {
            done.value = value;
            let known = u32_at(attr.bytes(), LEN) as usize;
            structure.truncate(known);
            done.parts.push(part(POINTER as u32, structure));
            let lent = lent.drain(..);
            done.parts
                .extend(lent.map(|(at, bytes)| part(INSIDE | at as u32, bytes)));
        }
    }
    put_u64(attr.bytes_mut(), POINTER, 0);
    put_u32(attr.bytes_mut(), OBJECT, 0);
    done.attr = attr.bytes()[..size.min(attr.bytes().len())].to_vec();
    Ok(done)
}

/// True if these are the types of the kernel itself, those in [`digests::TYPES`].
pub fn is_kernels_own(object: &Object) -> bool {
    const NAME: &[u8] = b"vmlinux\0";
    const STRUCTURE: usize = size_of::<BtfInfo>();
    if object.kind != Kind::Btf {
        return false;
    }
    let mut name = [0; NAME.len()];
    let mut structure = [0; STRUCTURE];
    put_u64(
        &mut structure,
        offset_of!(BtfInfo, name),
        name.as_mut_ptr().expose_provenance() as u64,
    );
    let len = NAME.len() as u32;
    put_u32(&mut structure, offset_of!(BtfInfo, name_len), len);
    let mut attr = Attr::new(&[])
        .with_fd(OBJECT, object.fd.as_fd())
        .with(LEN, STRUCTURE as u32);
    attr.point(POINTER, &mut structure);
    // SAFETY: the attribute leads to a structure of the length that it says. All of that is 0
    // except for the pointer to a name, which leads to a buffer of the length that the structure
    // says.
    let told = unsafe {
        sys::bpf(
            Command::OBJ_GET_INFO_BY_FD,
            &mut attr,
            size_of::<attr::Info>(),
        )
    };
    let is_kernels = u32_at(&structure, offset_of!(BtfInfo, kernel_btf)) != 0;
    told.is_ok() && is_kernels && name == NAME
}

fn part(at: u32, data: Vec<u8>) -> Part {
    Part { at, data, room: 0 }
}

/// Returns a structure with only those fields set that say how long buffers are.
fn counts(table: &[Buffer], given: &[u8], len: usize) -> Vec<u8> {
    let mut structure = vec![0; len];
    let fields = table.iter().flat_map(|buffer| match buffer.len {
        Len::Count(at) | Len::Items(at, _) => [Some(at), None],
        Len::Records(count, size) => [Some(count), Some(size)],
        _ => [None; 2],
    });
    for at in fields.flatten() {
        put_u32(&mut structure, at, u32_at(given, at));
    }
    structure
}

/// Sets pointers of the structure to buffers for which the host has room.
fn lend(
    object: &Object,
    table: &[Buffer],
    structure: &mut [u8],
    parts: &[Part],
) -> Result<Vec<(usize, Vec<u8>)>, Refusal> {
    let mut lent = Vec::new();
    for given in parts {
        let at = (given.at & !INSIDE) as usize;
        let buffer = table.iter().find(|buffer| buffer.at == at);
        let Some(buffer) = buffer.filter(|_| given.at & INSIDE != 0) else {
            let why = format!(
                "there is no pointer at {at} in a {:?}'s structure",
                object.kind
            );
            return Err(Refusal::new(libc::EINVAL, why));
        };
        if u64_at(structure, at) != 0 || at + 8 > structure.len() {
            let why = "a buffer is given twice, or for nothing";
            return Err(Refusal::new(libc::EINVAL, why));
        }
        let len = buffer.len.bytes(structure, None);
        let len = len.ok_or_else(|| Refusal::new(libc::E2BIG, ""))?;
        if len == 0 {
            continue;
        }
        let mut bytes = vec![0; len];
        put_u64(structure, at, bytes.as_mut_ptr().expose_provenance() as u64);
        lent.push((at, bytes));
    }
    Ok(lent)
}
