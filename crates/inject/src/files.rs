//! Mapping Beeline's files into the target, which sees neither paths nor descriptors of them.
//!
//! The target makes a pair of sockets, and Beeline takes one end of it from outside. It sends the
//! descriptors through, and has the target receive, map and close them. All of this happens in
//! memory that is mapped for the purpose, or that the caller provides.

use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use crate::Error;
use crate::fd_limit::Room;
use crate::held_threads::HeldThreads;
use crate::regions::PAGE;

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

/// Some [`Mapping`]s with descriptors of their own, one for each file, so that they can go to the
/// thread that traces, and to the target in one message.
#[derive(Debug, Default)]
pub(crate) struct Batch {
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

/// Splits mappings into messages that are not too long.
pub(crate) fn parcels_of(mappings: &[Mapping<'_>]) -> Result<Vec<Batch>, Error> {
    let mut batches = vec![Batch::default()];
    for mapping in mappings {
        if batches.last().is_none_or(|batch| !batch.has_room(mapping)) {
            batches.push(Batch::default());
        }
        if let Some(batch) = batches.last_mut() {
            batch.add(mapping)?;
        }
    }
    Ok(batches)
}

impl Batch {
    fn has_room(&self, mapping: &Mapping<'_>) -> bool {
        self.files.len() < MOST_FILES || self.known.contains(&mapping.file.as_raw_fd())
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
}

/// The most descriptors that one message may carry (`SCM_MAX_FD`).
const MOST_FILES: usize = 253;

// The layout of the scratch memory.
const PAIR: u64 = 0;
const MSGHDR: u64 = 16;
const IOVEC: u64 = 80;
const PAYLOAD: u64 = 96;
const CONTROL: u64 = 128;
/// `CMSG_LEN(0)`: bytes of a control message's head.
const CMSG_HEAD: usize = 16;
const CONTROL_LEN: usize = CMSG_HEAD + MOST_FILES * size_of::<i32>() + 4;
/// The size of the scratch memory in bytes.
pub(crate) const SCRATCH: usize = CONTROL as usize + CONTROL_LEN;
const _: () = assert!(SCRATCH <= PAGE as usize);
/// From the head of the message to that of the control message.
const HEADS_LEN: usize = CONTROL as usize + CMSG_HEAD - MSGHDR as usize;

/// Descriptors that a target needs beside those that it is sent.
const PAIR_OF_SOCKETS: usize = 2;

/// True if the target has as many files open as it may.
fn is_at_limit(error: &Error) -> bool {
    let is_short = |error: &Error| error.errno() == Some(rustix::io::Errno::MFILE);
    matches!(error, Error::DescriptorLimit { .. }) || is_short(error)
}

impl HeldThreads {
    /// Maps all of them or none, and returns their addresses. `scratch` is memory for it, of
    /// [`SCRATCH`] bytes.
    pub fn map_files(
        &mut self,
        batches: &[Batch],
        scratch: Option<u64>,
    ) -> Result<Vec<u64>, Error> {
        let mut placed = Vec::new();
        for batch in batches {
            let mapped = match scratch {
                Some(scratch) => self.map_through(scratch, batch, &mut placed),
                None => self.map_batch(batch, &mut placed),
            };
            if let Err(error) = mapped {
                let parcels = batches.iter().flat_map(|batch| &batch.parcels);
                let fresh = |(_, parcel): &(_, &Parcel)| !parcel.flags.contains(MapFlags::FIXED);
                for (&address, parcel) in placed.iter().zip(parcels).filter(fresh) {
                    // The memory that was there before is in use. Should this fail as well, the
                    // first error is the one to report.
                    let _ = self.unmap(address, parcel.len);
                }
                return Err(error);
            }
        }
        Ok(placed)
    }

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

    pub fn unmap(&mut self, address: u64, len: u64) -> Result<(), Error> {
        self.call(libc::SYS_munmap, [address, len, 0, 0, 0, 0])
            .map(drop)
    }

    fn map(
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
                pid: self.process.pid(),
                wanted,
                got,
            });
        }
        Ok(got)
    }

    fn map_batch(&mut self, batch: &Batch, placed: &mut Vec<u64>) -> Result<(), Error> {
        let scratch = self.map_anonymous(
            PAGE,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
            0,
        )?;
        let outcome = self.map_through(scratch, batch, placed);
        let cleaned = self.unmap(scratch, PAGE);
        outcome.and(cleaned)
    }

    fn map_through(
        &mut self,
        scratch: u64,
        batch: &Batch,
        placed: &mut Vec<u64>,
    ) -> Result<(), Error> {
        let outcome = self.map_through_pair(scratch, batch, placed);
        // Nothing has been mapped then.
        if !outcome.as_ref().is_err_and(is_at_limit) {
            return outcome;
        }
        let (pid, sent) = (self.process.pid(), batch.files.len());
        let more = (sent + PAIR_OF_SOCKETS) as u64;
        let _room = Room::make(&self.process, more).ok_or(match outcome {
            Err(Error::DescriptorLimit { got, .. }) => Error::DescriptorLimit { pid, got, sent },
            _ => Error::DescriptorLimit { pid, got: 0, sent },
        })?;
        self.map_through_pair(scratch, batch, placed)
    }

    fn map_through_pair(
        &mut self,
        scratch: u64,
        batch: &Batch,
        placed: &mut Vec<u64>,
    ) -> Result<(), Error> {
        let kind = (libc::SOCK_DGRAM | libc::SOCK_CLOEXEC) as u64;
        self.call(
            libc::SYS_socketpair,
            [libc::AF_UNIX as u64, kind, 0, scratch + PAIR, 0, 0],
        )?;
        let pair: [i32; 2] = self.read_numbers(scratch + PAIR)?;
        let mut ours = pair.to_vec();
        let outcome = self.receive(scratch, pair, batch).and_then(|files| {
            ours.extend(&files);
            self.map_received(&files, batch, placed)
        });
        let closed = self.close_all(&mut ours);
        outcome.and(closed)
    }

    /// Sends the files into one end of the target's socket pair and has it receive them at the
    /// other. Returns their numbers there.
    fn receive(
        &mut self,
        scratch: u64,
        [ours, theirs]: [i32; 2],
        batch: &Batch,
    ) -> Result<Vec<i32>, Error> {
        let pid = self.process.pid();
        let taken = self.process.take_descriptor(ours);
        let end = taken.map_err(|source| Error::Local {
            what: "take a socket from the target",
            source,
        })?;
        let files: Vec<BorrowedFd<'_>> = batch.files.iter().map(AsFd::as_fd).collect();
        let mut space =
            [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FILES))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&files));
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        sendmsg(&end, &[IoSlice::new(&[0])], &mut control, flags).map_err(|errno| {
            Error::Local {
                what: "send descriptors to the target",
                source: errno.into(),
            }
        })?;

        self.write(scratch + MSGHDR, &heads(scratch))?;
        let flags = (libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT) as u64;
        self.call(
            libc::SYS_recvmsg,
            [theirs as u64, scratch + MSGHDR, flags, 0, 0, 0],
        )?;
        let mut received = self.received(scratch)?;
        if received.len() != batch.files.len() {
            self.close_all(&mut received)?;
            return Err(Error::DescriptorLimit {
                pid,
                got: received.len(),
                sent: batch.files.len(),
            });
        }
        Ok(received)
    }

    /// Returns the descriptors in the control message that the target has received.
    fn received(&mut self, scratch: u64) -> Result<Vec<i32>, Error> {
        let mut control = [0; CONTROL_LEN];
        self.read(scratch + CONTROL, &mut control)?;
        // The length is still 0 if no message has come.
        let (len, rest) = control.split_first_chunk::<8>().unwrap_or((&[0; 8], &[]));
        let len = usize::try_from(u64::from_ne_bytes(*len))
            .unwrap_or(0)
            .clamp(CMSG_HEAD, CONTROL_LEN);
        let (level_and_type, files) = rest[..len - 8].split_at(CMSG_HEAD - 8);
        let rights = words32([libc::SOL_SOCKET, libc::SCM_RIGHTS]);
        let files = if level_and_type == rights { files } else { &[] };
        Ok(files
            .as_chunks::<4>()
            .0
            .iter()
            .map(|&bytes| i32::from_ne_bytes(bytes))
            .collect())
    }

    fn map_received(
        &mut self,
        files: &[i32],
        batch: &Batch,
        placed: &mut Vec<u64>,
    ) -> Result<(), Error> {
        for parcel in &batch.parcels {
            placed.push(self.map(
                files[parcel.file],
                parcel.offset,
                parcel.len,
                parcel.protection,
                parcel.flags,
                parcel.address,
            )?);
        }
        Ok(())
    }

    /// Closes all of them in the target, even if one fails. Consecutive ones, as new descriptors
    /// mostly are, are closed by one call.
    fn close_all(&mut self, files: &mut [i32]) -> Result<(), Error> {
        files.sort_unstable();
        let close = |run: &[i32]| {
            let (first, last) = (run[0] as u64, run[run.len() - 1] as u64);
            self.call(libc::SYS_close_range, [first, last, 0, 0, 0, 0])
                .map(drop)
        };
        let runs = files.chunk_by(|one, next| one + 1 == *next);
        runs.map(close).fold(Ok(()), Result::and)
    }

    fn read_numbers(&mut self, address: u64) -> Result<[i32; 2], Error> {
        let mut bytes = [0; 8];
        self.read(address, &mut bytes)?;
        let both = u64::from_ne_bytes(bytes);
        Ok([both as i32, (both >> 32) as i32])
    }
}

/// Returns a `struct msghdr` for one byte of payload and as much control data as fits, the `struct
/// iovec` for the payload, and zeroes up to the control message.
fn heads(scratch: u64) -> [u8; HEADS_LEN] {
    // name, its length, iovec, their count, control, its length, flags
    let header: [u8; 56] = words([
        0,
        0,
        scratch + IOVEC,
        1,
        scratch + CONTROL,
        CONTROL_LEN as u64,
        0,
    ]);
    let payload: [u8; 16] = words([scratch + PAYLOAD, 1]);
    let mut heads = [0; HEADS_LEN];
    heads[..header.len()].copy_from_slice(&header);
    let at = (IOVEC - MSGHDR) as usize;
    heads[at..at + payload.len()].copy_from_slice(&payload);
    heads
}

fn words<const COUNT: usize, const LEN: usize>(words: [u64; COUNT]) -> [u8; LEN] {
    const { assert!(COUNT * 8 == LEN) };
    let mut bytes = [0; LEN];
    for (place, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *place = word.to_ne_bytes();
    }
    bytes
}

fn words32([first, second]: [i32; 2]) -> [u8; 8] {
    (u64::from(first as u32) | u64::from(second as u32) << 32).to_ne_bytes()
}
