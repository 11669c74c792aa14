//! The address space of a held target: its memory, and cached answers that cannot change.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::process::Memory;
use crate::{Error, Process, Region, ptrace};

/// The memory and the mappings of one program that a target runs.
///
/// It is shared by the thread that holds the target and the thread that has it work there. After an
/// `execve` it is of no more use.
#[derive(Debug)]
pub(crate) struct AddressSpace {
    process: Process,
    /// Opening it costs more than using it.
    memory: OnceLock<Memory>,
    /// All threads are held, so what is mapped stays until Beeline changes it.
    is_whole: AtomicBool,
    /// The mapped regions, if they have been asked for since they last changed.
    regions: Mutex<Option<Arc<[Region]>>>,
}

impl AddressSpace {
    pub fn of(process: &Process) -> Arc<Self> {
        Arc::new(Self {
            process: process.clone(),
            memory: OnceLock::new(),
            is_whole: AtomicBool::new(false),
            regions: Mutex::default(),
        })
    }

    /// Returns the process that has this address space.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Returns the memory.
    ///
    /// # Errors
    ///
    /// Those of [`Process::memory`].
    pub fn memory(&self) -> Result<&Memory, Error> {
        match self.memory.get() {
            Some(memory) => Ok(memory),
            None => {
                let memory = Memory::open(&self.process)?;
                Ok(self.memory.get_or_init(|| memory))
            }
        }
    }

    /// Reads the memory.
    ///
    /// # Errors
    ///
    /// Those of [`Self::memory`] and [`Memory::read`].
    pub fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Error> {
        self.memory()?.read(address, into)
    }

    /// Writes the memory, read-only pages included. The thread that traces must do it: kernels can
    /// be configured to let only the tracer write those, or nobody by this file
    /// (`proc_mem.force_override`).
    ///
    /// # Errors
    ///
    /// Those of [`Self::memory`] and [`Memory::write`].
    pub fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Error> {
        let outcome = self.memory()?.write(address, bytes);
        match outcome {
            Err(Error::Memory { ref source, .. })
                if source.raw_os_error() == Some(libc::EIO) && self.poke(address, bytes) =>
            {
                Ok(())
            }
            outcome => outcome,
        }
    }

    /// Writes the memory by ptrace(2), which is slower. Returns false if that cannot be done.
    fn poke(&self, address: u64, bytes: &[u8]) -> bool {
        const WORD: u64 = size_of::<u64>() as u64;
        let start = address - address % WORD;
        let end = (address + bytes.len() as u64).next_multiple_of(WORD);
        // Whole words, which no page ends in.
        let mut all = vec![0; (end - start) as usize];
        if self.read(start, &mut all).is_err() {
            return false;
        }
        all[(address - start) as usize..][..bytes.len()].copy_from_slice(bytes);
        let (words, _) = all.as_chunks();
        let poke = |tid: &i32| {
            let mut places = (start..end).step_by(WORD as usize).zip(words);
            places.all(|(place, word)| ptrace::poke(*tid, place, u64::from_ne_bytes(*word)).is_ok())
        };
        // One that is not held is refused at the first word.
        let threads = self.process.thread_ids().unwrap_or_default();
        threads.iter().any(poke)
    }

    /// Writes pieces at ascending addresses, and leaves what is between them as it is.
    ///
    /// # Errors
    ///
    /// Those of [`Self::read`] and [`Self::write`].
    pub fn write_together(&self, pieces: &[(u64, Vec<u8>)]) -> Result<(), Error> {
        let [(start, first), others @ ..] = pieces else {
            return Ok(());
        };
        if others.is_empty() {
            return self.write(*start, first);
        }
        let range = |(address, bytes): &(u64, Vec<u8>)| {
            let at = (address - start) as usize;
            at..at + bytes.len()
        };
        let len = pieces.iter().map(|piece| range(piece).end).max();
        let mut all = vec![0; len.unwrap_or_default()];
        self.read(*start, &mut all)?;
        for piece in pieces {
            all[range(piece)].copy_from_slice(&piece.1);
        }
        self.write(*start, &all)
    }

    /// Returns what is mapped.
    ///
    /// # Errors
    ///
    /// Those of [`Process::regions`].
    pub fn regions(&self) -> Result<Arc<[Region]>, Error> {
        let mut known = self.regions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(regions) = &*known {
            return Ok(regions.clone());
        }
        let regions: Arc<[Region]> = self.process.regions()?.into();
        if self.is_whole() {
            *known = Some(regions.clone());
        }
        Ok(regions)
    }

    /// Notes that what is mapped changes, or has changed.
    pub fn forget_regions(&self) {
        *self.regions.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Notes that no thread of the target runs any more.
    pub fn note_whole(&self) {
        self.is_whole.store(true, SeqCst);
    }

    /// True if all threads of the target are held.
    pub fn is_whole(&self) -> bool {
        self.is_whole.load(SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remote::Remote;

    /// Stands in for a kernel with `proc_mem.force_override=never`.
    #[test]
    fn code_is_written_by_ptrace_and_what_is_beside_it_stays() {
        let mut sleep = std::process::Command::new("sleep");
        let mut child = sleep.arg("60").spawn().unwrap();
        let process = Process::open(child.id() as i32).unwrap();
        let remote = Remote::stop(&process, || {}).unwrap();
        let regions = process.regions().unwrap();
        let is_code = |one: &&Region| one.permissions.execute && !one.permissions.write;
        let code = regions.iter().find(is_code).unwrap().start;
        let mut before = [0; 64];
        remote.space.read(code, &mut before).unwrap();
        for (from, len) in [(0, 8), (3, 2), (13, 9), (24, 1), (31, 33)] {
            let bytes = vec![0xcc; len];
            assert!(remote.space.poke(code + from as u64, &bytes));
            let mut wanted = before;
            wanted[from..from + len].copy_from_slice(&bytes);
            let mut after = [0; 64];
            remote.space.read(code, &mut after).unwrap();
            assert_eq!(after, wanted, "{len} bytes at {from}");
            assert!(remote.space.poke(code, &before));
        }
        assert!(!remote.space.poke(0, &[0]), "there is no such page");
        drop(remote);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
