//! Mapping and unmapping memory in a held target.

use super::Remote;
use crate::{Error, MapFlags, ProtFlags};

impl Remote {
    /// Maps `len` bytes of fresh memory.
    ///
    /// # Errors
    ///
    /// Those of [`Self::map`].
    pub fn map_anonymous(
        &mut self,
        len: u64,
        protection: ProtFlags,
        flags: MapFlags,
        address: u64,
    ) -> Result<u64, Error> {
        let flags = flags | MapFlags::from_bits_retain(libc::MAP_ANONYMOUS as u32);
        self.map(-1, 0, len, protection, flags, address)
    }

    /// Unmaps `len` bytes.
    ///
    /// # Errors
    ///
    /// Those of [`Self::call`].
    pub fn unmap(&mut self, address: u64, len: u64) -> Result<(), Error> {
        self.call(libc::SYS_munmap, [address, len, 0, 0, 0, 0])
            .map(drop)
    }

    /// Maps `len` bytes of a file that the target has open as `fd`.
    ///
    /// # Errors
    ///
    /// Those of [`Self::call`]; [`Error::Misplaced`] if a kernel without `MAP_FIXED_NOREPLACE` maps
    /// it elsewhere.
    pub fn map(
        &mut self,
        fd: i32,
        offset: u64,
        len: u64,
        prot: ProtFlags,
        flags: MapFlags,
        wanted: u64,
    ) -> Result<u64, Error> {
        let arguments = [
            wanted,
            len,
            u64::from(prot.bits()),
            u64::from(flags.bits()),
            fd as u64,
            offset,
        ];
        let got = self.call(libc::SYS_mmap, arguments)?;
        // A kernel before 4.17 takes FIXED_NOREPLACE for a hint.
        if flags.contains(MapFlags::FIXED_NOREPLACE) && got != wanted {
            self.unmap(got, len)?;
            return Err(Error::Misplaced {
                pid: self.process().pid(),
                wanted,
                got,
            });
        }
        Ok(got)
    }
}
