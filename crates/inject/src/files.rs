//! Mapping Beeline's files into the target, which sees neither paths nor descriptors of them.
//!
//! The target makes a pair of sockets, and Beeline takes one end of it from outside, or has the
//! target connect to it where that is forbidden. It sends the descriptors through, and has the target receive, map and close them. All of this happens in
//! memory that is mapped for the purpose, or that the caller provides.

mod by_name;
mod transfer;

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use beeline_uapi::linux::SCM_MAX_FD;
use rustix::mm::{MapFlags, ProtFlags};

use crate::Error;
use crate::regions::PAGE;
use crate::remote::Remote;

pub(crate) use transfer::SCRATCH;
use transfer::Transfer;

/// A part of a file that is to be mapped into a target.
#[derive(Debug, Clone, Copy)]
pub struct Mapping<'a> {
    /// The file, open here.
    pub file: BorrowedFd<'a>,
    /// Bytes from the start of the file; a multiple of the page size.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// The target's rights to it.
    pub protection: ProtFlags,
    /// Shared or private, and the treatment of `address`.
    pub flags: MapFlags,
    /// The address; 0 for anywhere. A hint, unless `flags` has `FIXED_NOREPLACE` or `FIXED`.
    pub address: u64,
}

/// [`Mapping`]s with descriptors of their own, so that they can go to the thread that traces.
#[derive(Debug)]
pub(crate) struct Batches(Vec<Batch>);

/// Some of them, with one descriptor for each file, that go to the target in one message.
#[derive(Debug, Default)]
struct Batch {
    files: Vec<OwnedFd>,
    /// The caller's descriptor that each of them was made from.
    known: Vec<i32>,
    parcels: Vec<Parcel>,
}

#[derive(Debug)]
struct Parcel {
    /// The index of the file in the batch.
    file: usize,
    offset: u64,
    len: u64,
    protection: ProtFlags,
    flags: MapFlags,
    address: u64,
}

impl Parcel {
    /// Returns the arguments of `mmap(2)`, all but the descriptor.
    fn arguments(&self) -> [u64; 6] {
        let (protection, flags) = (self.protection.bits(), self.flags.bits());
        let [protection, flags] = [protection, flags].map(u64::from);
        [self.address, self.len, protection, flags, 0, self.offset]
    }

    /// True if this address is as its flags have it.
    fn is_where_wanted(&self, address: u64) -> bool {
        !self.flags.contains(MapFlags::FIXED_NOREPLACE) || address == self.address
    }
}

impl Batches {
    /// Splits mappings into messages that are not too long.
    ///
    /// # Errors
    ///
    /// [`Error::Local`] if a descriptor cannot be duplicated.
    pub fn of(mappings: &[Mapping<'_>]) -> Result<Self, Error> {
        let mut batches = vec![Batch::default()];
        for mapping in mappings {
            if batches.last().is_none_or(|batch| !batch.has_room(mapping)) {
                batches.push(Batch::default());
            }
            if let Some(batch) = batches.last_mut() {
                batch.add(mapping)?;
            }
        }
        Ok(Self(batches))
    }

    /// Maps all of them into a target, or none, and returns their addresses. `scratch` is memory
    /// for it there, of [`SCRATCH`] bytes.
    ///
    /// # Errors
    ///
    /// [`Error::DescriptorLimit`], [`Error::Misplaced`], [`Error::Local`] if the files cannot be
    /// sent, and those of [`Remote::call`] and of access to the target's memory.
    pub fn map_into(&self, remote: &mut Remote, scratch: Option<u64>) -> Result<Vec<u64>, Error> {
        let mut placed = Vec::new();
        for batch in &self.0 {
            let mapped = match scratch {
                Some(scratch) => batch.map_through(scratch, remote, &mut placed),
                None => batch.map_into(remote, &mut placed),
            };
            if let Err(error) = mapped {
                self.unmap(remote, &placed);
                return Err(error);
            }
        }
        Ok(placed)
    }

    /// Unmaps those that have been mapped, except where there was memory before: that is in use.
    fn unmap(&self, remote: &mut Remote, placed: &[u64]) {
        let parcels = self.0.iter().flat_map(|batch| &batch.parcels);
        let fresh = |(_, parcel): &(_, &Parcel)| !parcel.flags.contains(MapFlags::FIXED);
        for (&address, parcel) in placed.iter().zip(parcels).filter(fresh) {
            // An error has come first, which is the one to report.
            let _ = remote.unmap(address, parcel.len);
        }
    }
}

impl Batch {
    fn has_room(&self, mapping: &Mapping<'_>) -> bool {
        self.files.len() < SCM_MAX_FD || self.known.contains(&mapping.file.as_raw_fd())
    }

    fn add(&mut self, mapping: &Mapping<'_>) -> Result<(), Error> {
        let number = mapping.file.as_raw_fd();
        let known = self.known.iter().position(|known| *known == number);
        let file = match known {
            Some(file) => file,
            None => {
                let file = mapping.file.try_clone_to_owned();
                self.files.push(file.map_err(|source| Error::Local {
                    what: "duplicate a descriptor",
                    source,
                })?);
                self.known.push(number);
                self.files.len() - 1
            }
        };
        self.parcels.push(Parcel {
            file,
            offset: mapping.offset,
            len: mapping.len,
            protection: mapping.protection,
            flags: mapping.flags,
            address: mapping.address,
        });
        Ok(())
    }

    fn map_into(&self, remote: &mut Remote, placed: &mut Vec<u64>) -> Result<(), Error> {
        if let Some(room) = remote.fresh_room {
            let outcome = self.map_through(room, remote, placed);
            let cleaned = remote.space.write(room, &[0; SCRATCH]);
            return outcome.and(cleaned);
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let scratch = remote.map_anonymous(PAGE, access, MapFlags::PRIVATE, 0)?;
        let outcome = self.map_through(scratch, remote, placed);
        let cleaned = remote.unmap(scratch, PAGE);
        outcome.and(cleaned)
    }

    fn map_through(
        &self,
        scratch: u64,
        remote: &mut Remote,
        placed: &mut Vec<u64>,
    ) -> Result<(), Error> {
        let batch = self;
        Transfer {
            remote,
            scratch,
            batch,
        }
        .run(placed)
    }
}
