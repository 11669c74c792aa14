//! What a target that is held is asked again and again, and says the same.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::{Error, Process, Region};

/// Shared by the thread that holds a target and whoever has it work there.
#[derive(Debug, Default)]
pub(crate) struct Held {
    /// Opening it costs more than using it.
    memory: OnceLock<File>,
    /// All threads are held, so what is mapped stays until we change it.
    is_whole: AtomicBool,
    /// What is mapped, if it has been asked for since it last changed.
    regions: Mutex<Option<Arc<[Region]>>>,
}

impl Held {
    /// The target's memory.
    pub fn memory(&self, process: &Process) -> Result<&File, Error> {
        match self.memory.get() {
            Some(memory) => Ok(memory),
            None => {
                let memory = process.memory()?;
                Ok(self.memory.get_or_init(|| memory))
            }
        }
    }

    /// What is mapped into the target.
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

    /// No thread of the target runs any more.
    pub fn is_whole(&self) {
        self.is_whole.store(true, SeqCst);
    }

    /// What is mapped changes, or has changed.
    pub fn forget_regions(&self) {
        *self.regions.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// Does once more what has failed: for a page of the target's that is not there the kernel may have had no memory just then, of which it
/// says what it says of an address that is not mapped. What is begun with a target that is held is not to end half done for that.
pub(crate) fn twice<T>(mut access: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    access().or_else(|_| access())
}
