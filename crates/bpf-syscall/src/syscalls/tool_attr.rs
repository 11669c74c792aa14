//! `union bpf_attr` in the tool's memory, where calls write results.

use beeline_supervisor::{Call, Memory};
use beeline_uapi::Errno;

/// The attribute of a `bpf(2)` call in the tool's memory, for the results that go there.
#[derive(Clone, Copy)]
pub(crate) struct ToolAttr<'a> {
    memory: Memory<'a>,
    address: u64,
}

impl<'a> ToolAttr<'a> {
    pub(crate) fn of(call: &Call<'a>) -> Self {
        let [_, address, ..] = call.args;
        Self {
            memory: call.memory,
            address,
        }
    }

    /// Writes the field at an offset.
    pub(crate) fn put_u32(&self, offset: u64, value: u32) -> Result<(), Errno> {
        let field = self.address.checked_add(offset).ok_or(Errno::EFAULT)?;
        self.memory.write_u32(field, value)
    }

    /// Writes a field of eight bytes.
    pub(crate) fn put_u64(&self, offset: u64, value: u64) -> Result<(), Errno> {
        let field = self.address.checked_add(offset).ok_or(Errno::EFAULT)?;
        self.memory.write(field, &value.to_ne_bytes())
    }
}
