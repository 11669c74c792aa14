//! An answer to `BPF_OBJ_GET_INFO_BY_FD` while it is being filled.

use beeline_supervisor::Memory;
use beeline_supervisor::attr::{u32_at, u64_at};
use beeline_uapi::Errno;

/// The bytes of a name's field, with its NUL.
const NAME: usize = 16;

/// The kernel's structure for an object. It begins as what the tool passed, since some fields are
/// the addresses of buffers to fill and the room in them.
pub(super) struct Filled<'a> {
    memory: Memory<'a>,
    bytes: Vec<u8>,
}

impl<'a> Filled<'a> {
    /// Reads what the tool passed at an address: E2BIG if anything is set behind the known fields.
    pub(super) fn read(
        memory: Memory<'a>,
        (address, len): (u64, usize),
        (size, fields_end): (usize, usize),
    ) -> Result<Self, Errno> {
        let mut bytes = memory.bytes(address, len)?;
        if bytes.iter().skip(fields_end).any(|&byte| byte != 0) {
            return Err(Errno::E2BIG);
        }
        bytes.resize(size, 0);
        Ok(Self { memory, bytes })
    }

    /// Writes as much of the structure as the tool has room for, and returns its length.
    pub(super) fn write(&self, (address, room): (u64, usize)) -> Result<usize, Errno> {
        let written = self.bytes.get(..room).unwrap_or(&self.bytes);
        self.memory.write(address, written)?;
        Ok(written.len())
    }

    pub(super) fn put(&mut self, offset: usize, field: &[u8]) {
        for (to, from) in self.bytes.iter_mut().skip(offset).zip(field) {
            *to = *from;
        }
    }

    pub(super) fn put_u32(&mut self, offset: usize, value: u32) {
        self.put(offset, &value.to_ne_bytes());
    }

    pub(super) fn put_u64(&mut self, offset: usize, value: u64) {
        self.put(offset, &value.to_ne_bytes());
    }

    /// Puts a name into its field, cut if it is too long.
    pub(super) fn put_name(&mut self, offset: usize, name: &str) {
        let mut field = [0; NAME];
        for (to, from) in field.iter_mut().take(NAME - 1).zip(name.bytes()) {
            *to = from;
        }
        self.put(offset, &field);
    }

    pub(super) fn u32(&self, offset: usize) -> u32 {
        u32_at(&self.bytes, offset)
    }

    pub(super) fn u64(&self, offset: usize) -> u64 {
        u64_at(&self.bytes, offset)
    }

    /// Fills the buffer that two fields describe: its room, in items of `item` bytes, and its
    /// address. The first field then receives the number of all items.
    pub(super) fn fill(
        &mut self,
        (count_at, address_at): (usize, usize),
        item: usize,
        data: &[u8],
    ) -> Result<(), Errno> {
        let room = (self.u32(count_at) as usize).saturating_mul(item);
        self.put_u32(count_at, (data.len() / item) as u32);
        let given = data.get(..room).unwrap_or(data);
        self.memory.write(self.u64(address_at), given)
    }

    /// Writes a name into the buffer that two fields give the address and the room of; the second
    /// receives `len`. A name that does not fit is cut, with ENOSPC.
    pub(super) fn fill_name(
        &mut self,
        (address_at, room_at): (usize, usize),
        name: &[u8],
        len: usize,
    ) -> Result<(), Errno> {
        let (address, room) = (self.u64(address_at), self.u32(room_at) as usize);
        if (address == 0) != (room == 0) {
            return Err(Errno::EINVAL);
        }
        self.put_u32(room_at, len as u32);
        if address == 0 {
            return Ok(());
        }
        let mut text = name.get(..room - 1).unwrap_or(name).to_vec();
        text.push(0);
        self.memory.write(address, &text)?;
        if name.len() < room {
            Ok(())
        } else {
            Err(Errno::ENOSPC)
        }
    }
}
