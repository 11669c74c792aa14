//! The agent as the runtime holds it: one sealed file that every target maps.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use beeline_agent::abi::EntryPoints;
use beeline_isa::abi::HELPER_SLOTS;

use crate::liveness::SessionId;
use crate::memory::{Executable, pages, sealed};

/// The freestanding blob, built by this crate's build script.
static BLOB: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/agent.bin"));

/// The blob in a sealed memory file, and the tables that it contains.
#[derive(Debug)]
pub struct Agent {
    file: File,
    /// Mapped here too: programs that run in Beeline itself call the same helpers.
    here: Executable,
    points: EntryPoints,
    helpers: Box<[usize; HELPER_SLOTS]>,
}

impl Agent {
    /// Makes the file and reads its tables.
    ///
    /// # Errors
    ///
    /// Those of [`sealed`] and [`Executable::map`].
    pub fn new() -> io::Result<Self> {
        let file = sealed(&SessionId::own().name("agent"), BLOB)?;
        let here = Executable::map(file.as_fd(), BLOB.len())?;
        // SAFETY: the build script links the blob so that it starts with its table of entry points.
        let points = unsafe { here.base().cast::<EntryPoints>().read_unaligned() };
        let mut helpers = Box::new([0; HELPER_SLOTS]);
        // SAFETY: the table says where this function of the blob is; the function fills a table of
        // `HELPER_SLOTS` addresses.
        unsafe {
            let fill: unsafe extern "sysv64" fn(*mut usize) =
                std::mem::transmute(here.base().add(points.helpers as usize));
            fill(helpers.as_mut_ptr());
        }
        Ok(Self {
            file,
            here,
            points,
            helpers,
        })
    }

    /// Returns the file to map.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Returns the number of bytes to map.
    pub fn len(&self) -> usize {
        pages(BLOB.len())
    }

    /// Returns the address where it is mapped in Beeline.
    pub fn here(&self) -> u64 {
        self.here.base() as u64
    }

    /// Returns the offsets of the entry points.
    pub fn points(&self) -> &EntryPoints {
        &self.points
    }

    /// Returns the helper addresses for an address space that has the agent at `base`.
    pub fn helpers_at(&self, base: u64) -> [usize; HELPER_SLOTS] {
        let here = self.here() as usize;
        self.helpers.map(|address| {
            if address == 0 {
                0
            } else {
                address - here + base as usize
            }
        })
    }
}
