//! The memory of a process, read and written through its file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::Process;
use crate::Error;

/// The opened memory of one program that a process runs. After an `execve` it is of no more use.
#[derive(Debug)]
pub(crate) struct Memory {
    process: Process,
    file: File,
}

impl Memory {
    /// Opens a process's memory.
    ///
    /// # Errors
    ///
    /// Those of [`Process::memory`].
    pub fn open(process: &Process) -> Result<Self, Error> {
        Ok(Self {
            process: process.clone(),
            file: process.memory()?,
        })
    }

    /// Fills `into` with what is at `address`.
    ///
    /// # Errors
    ///
    /// [`Error::Memory`], or [`Error::Exited`] if the process has ended.
    pub fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Error> {
        let outcome = twice(|| self.file.read_exact_at(into, address));
        outcome.map_err(|source| self.error("read", address, into.len(), source))
    }

    /// Writes `bytes` to `address`, even if the pages there are read-only.
    ///
    /// # Errors
    ///
    /// [`Error::Memory`], or [`Error::Exited`] if the process has ended.
    pub fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Error> {
        let outcome = twice(|| self.file.write_all_at(bytes, address));
        outcome.map_err(|source| self.error("write", address, bytes.len(), source))
    }

    fn error(&self, verb: &'static str, address: u64, len: usize, source: io::Error) -> Error {
        let pid = self.process.pid();
        if !self.process.is_alive() {
            return Error::Exited { pid };
        }
        Error::Memory {
            pid,
            verb,
            address,
            len,
            source,
        }
    }
}

/// Retries an access that has failed.
///
/// If a page of the target is not present and the kernel has no memory for it just then, the error
/// is the same as for an address that is not mapped. Work on a held target must not end half done
/// for that.
fn twice<T>(mut access: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    access().or_else(|_| access())
}
