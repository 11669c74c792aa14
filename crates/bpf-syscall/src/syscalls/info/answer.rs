//! The tool's side of `BPF_OBJ_GET_INFO_BY_FD`: its structure, and the buffers that this points to.

use beeline_supervisor::Memory;
use beeline_uapi::Errno;
use beeline_uapi::attr::BPF_OBJ_NAME_LEN;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The tool's buffers.
#[derive(Clone, Copy)]
pub(super) struct Buffers<'a>(pub(super) Memory<'a>);

impl Buffers<'_> {
    /// Reads the structure that the tool passed at an address, since some fields are the addresses
    /// of buffers to fill and the room in them: E2BIG if anything is set behind the known fields.
    pub(super) fn read<T: FromBytes + IntoBytes>(
        &self,
        (address, len): (u64, usize),
        fields_end: usize,
    ) -> Result<T, Errno> {
        let bytes = self.0.bytes(address, len)?;
        if bytes.iter().skip(fields_end).any(|&byte| byte != 0) {
            return Err(Errno::E2BIG);
        }
        let mut info = T::new_zeroed();
        for (to, from) in info.as_mut_bytes().iter_mut().zip(&bytes) {
            *to = *from;
        }
        Ok(info)
    }

    /// Writes as much of the structure as the tool has room for, and returns its length.
    pub(super) fn write<T: IntoBytes + Immutable>(
        &self,
        info: &T,
        (address, room): (u64, usize),
    ) -> Result<usize, Errno> {
        let bytes = info.as_bytes();
        let written = bytes.get(..room).unwrap_or(bytes);
        self.0.write(address, written)?;
        Ok(written.len())
    }

    /// Fills a buffer of the tool's that has room for all of it.
    pub(super) fn write_bytes(&self, address: u64, bytes: &[u8]) -> Result<(), Errno> {
        self.0.write(address, bytes)
    }

    /// Fills the buffer that two fields describe: its room, in items of `item` bytes, and its
    /// address. The first field then receives the number of all items.
    pub(super) fn fill(
        &self,
        (count, address): (&mut u32, u64),
        item: usize,
        data: &[u8],
    ) -> Result<(), Errno> {
        let room = (*count as usize).saturating_mul(item);
        *count = (data.len() / item) as u32;
        let given = data.get(..room).unwrap_or(data);
        self.0.write(address, given)
    }

    /// Writes a name into the buffer that two fields give the address and the room of; the second
    /// receives `len`. A name that does not fit is cut, with ENOSPC.
    pub(super) fn fill_name(
        &self,
        (address, room_field): (u64, &mut u32),
        name: &[u8],
        len: usize,
    ) -> Result<(), Errno> {
        let room = *room_field as usize;
        if (address == 0) != (room == 0) {
            return Err(Errno::EINVAL);
        }
        *room_field = len as u32;
        if address == 0 {
            return Ok(());
        }
        let mut text = name.get(..room - 1).unwrap_or(name).to_vec();
        text.push(0);
        self.0.write(address, &text)?;
        if name.len() < room {
            Ok(())
        } else {
            Err(Errno::ENOSPC)
        }
    }
}

/// Returns the field of a name, cut if it is too long.
pub(super) fn name_field(name: &str) -> [u8; BPF_OBJ_NAME_LEN] {
    let mut field = [0; BPF_OBJ_NAME_LEN];
    let room = field.iter_mut().take(BPF_OBJ_NAME_LEN - 1);
    for (to, from) in room.zip(name.bytes()) {
        *to = from;
    }
    field
}
