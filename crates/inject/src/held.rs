//! Cached answers of a held target that cannot change.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::{Error, Process, Region};

/// Shared by the thread that holds a target and the thread that has it work there.
#[derive(Debug, Default)]
pub(crate) struct Held {
    /// Opening it costs more than using it.
    memory: OnceLock<File>,
    /// All threads are held, so what is mapped stays until Beeline changes it.
    is_whole: AtomicBool,
    /// The mapped regions, if they have been asked for since they last changed.
    regions: Mutex<Option<Arc<[Region]>>>,
}

impl Held {
    /// Returns the target's memory.
    pub fn memory(&self, process: &Process) -> Result<&File, Error> {
        match self.memory.get() {
            Some(memory) => Ok(memory),
            None => {
                let memory = process.memory()?;
                Ok(self.memory.get_or_init(|| memory))
            }
        }
    }

    /// Returns what is mapped into the target.
    pub fn regions(&self, process: &Process) -> Result<Arc<[Region]>, Error> {
        let mut known = self.regions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(regions) = &*known {
            return Ok(regions.clone());
        }
        let regions: Arc<[Region]> = process.regions()?.into();
        if self.is_whole.load(SeqCst) {
            *known = Some(regions.clone());
        }
        Ok(regions)
    }

    /// Notes that no thread of the target runs any more.
    pub fn is_whole(&self) {
        self.is_whole.store(true, SeqCst);
    }

    /// Notes that what is mapped changes, or has changed.
    pub fn forget_regions(&self) {
        *self.regions.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// Retries an access that has failed.
///
/// If a page of the target is not present and the kernel has no memory for it just then, the error
/// is the same as for an address that is not mapped. Work on a held target must not end half done
/// for that.
pub(crate) fn twice<T>(mut access: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    access().or_else(|_| access())
}
