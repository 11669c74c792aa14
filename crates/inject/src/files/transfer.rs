//! Passing the descriptors of one batch to a target through a pair of sockets.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use beeline_uapi::linux::SCM_MAX_FD;
use rustix::mm::MapFlags;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::Batch;
use super::by_name::Named;
use crate::Error;
use crate::fd_limit::Room;
use crate::regions::PAGE;
use crate::remote::{Call, Remote, TABLE};

/// Sends the files of a batch to a target and maps them there.
pub(super) struct Transfer<'a> {
    pub remote: &'a mut Remote,
    /// Memory of the target's for this, of [`SCRATCH`] bytes.
    pub scratch: u64,
    pub batch: &'a Batch,
}

// The layout of the scratch memory.
const PAIR: u64 = 0;
const MSGHDR: u64 = 16;
const IOVEC: u64 = 80;
const PAYLOAD: u64 = 96;
const CONTROL: u64 = 128;
/// `CMSG_LEN(0)`: bytes of a control message's head.
const CMSG_HEAD: usize = 16;
const CONTROL_LEN: usize = CMSG_HEAD + SCM_MAX_FD * size_of::<i32>() + 4;
/// The table of a batch of calls.
const CALLS: u64 = (CONTROL + CONTROL_LEN as u64).next_multiple_of(16);
/// The size of the scratch memory in bytes.
pub(crate) const SCRATCH: usize = CALLS as usize + TABLE;
const _: () = assert!(SCRATCH <= PAGE as usize);
/// From the head of the message to that of the control message.
const HEADS_LEN: usize = CONTROL as usize + CMSG_HEAD - MSGHDR as usize;

/// Descriptors that a target needs beside those that it is sent.
const PAIR_OF_SOCKETS: usize = 2;

/// True if a sandbox around Beeline, not the target, forbids to take descriptors.
fn is_forbidden(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS))
}

/// Returns the result of the only call of some.
fn one(results: Vec<Result<u64, Error>>) -> Result<u64, Error> {
    results.into_iter().next().unwrap_or(Ok(0))
}

/// True if the target has as many files open as it may.
fn is_at_limit(error: &Error) -> bool {
    let is_short = |error: &Error| error.errno() == Some(rustix::io::Errno::MFILE);
    matches!(error, Error::DescriptorLimit { .. }) || is_short(error)
}

impl Transfer<'_> {
    /// Maps the batch, and raises the target's limit of open files for that if need be.
    ///
    /// # Errors
    ///
    /// [`Error::DescriptorLimit`] if the limit cannot be raised, [`Error::Misplaced`],
    /// [`Error::Local`] if the files cannot be sent, and those of running system calls in the
    /// target and of access to its memory.
    pub fn run(&mut self, placed: &mut Vec<u64>) -> Result<(), Error> {
        let outcome = self.map_through_pair(placed);
        // Nothing has been mapped then.
        if !outcome.as_ref().is_err_and(is_at_limit) {
            return outcome;
        }
        let process = self.remote.process();
        let (pid, sent) = (process.pid(), self.batch.files.len());
        let more = (sent + PAIR_OF_SOCKETS) as u64;
        let _room = Room::make(process, more).ok_or(match outcome {
            Err(Error::DescriptorLimit { got, .. }) => Error::DescriptorLimit { pid, got, sent },
            _ => Error::DescriptorLimit { pid, got: 0, sent },
        })?;
        self.map_through_pair(placed)
    }

    fn map_through_pair(&mut self, placed: &mut Vec<u64>) -> Result<(), Error> {
        let kind = (libc::SOCK_DGRAM | libc::SOCK_CLOEXEC) as u64;
        let place = self.scratch + PAIR;
        let arguments = [libc::AF_UNIX as u64, kind, 0, place, 0, 0];
        self.remote.call(libc::SYS_socketpair, arguments)?;
        let mut pair = [[0; 4]; 2];
        self.remote.space.read(place, pair.as_flattened_mut())?;
        let pair = pair.map(i32::from_ne_bytes);
        let mut ours = pair.to_vec();
        let outcome = self.receive(pair, &mut ours);
        let closed = self.close_all(&mut ours);
        let mut mapped = outcome?;
        placed.append(&mut mapped);
        closed
    }

    /// Sends the files into one end of the target's socket pair and has it receive them at the
    /// other, and map them. Returns the addresses, and adds the descriptors to `open`.
    fn receive(
        &mut self,
        [ours, theirs]: [i32; 2],
        open: &mut Vec<i32>,
    ) -> Result<Vec<u64>, Error> {
        let fail = |source| Error::Local {
            what: "take a socket from the target",
            source,
        };
        match self.remote.process().take_descriptor(ours) {
            Ok(end) => self.receive_from(&end, theirs, open),
            Err(error) if is_forbidden(&error) => self.receive_by_name(open),
            Err(error) => Err(fail(error)),
        }
    }

    /// Has the target connect to a socket of Beeline's, and receive the files there and map them.
    fn receive_by_name(&mut self, open: &mut Vec<i32>) -> Result<Vec<u64>, Error> {
        let fail = |source| Error::Local {
            what: "have the target connect to a socket",
            source,
        };
        let named = Named::new().map_err(fail)?;
        let (place, address) = (self.scratch + PAYLOAD, named.address());
        if address.len() > (CONTROL - PAYLOAD) as usize {
            return Err(fail(io::ErrorKind::InvalidInput.into()));
        }
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        let arguments = [libc::AF_UNIX as u64, kind as u64, 0, 0, 0, 0];
        let socket = self.remote.call(libc::SYS_socket, arguments)?;
        let connect = [socket, place, address.len() as u64, 0, 0, 0];
        let connected = self.remote.space.write(place, address);
        let received = connected
            .and_then(|()| self.remote.call(libc::SYS_connect, connect))
            .and_then(|_| {
                let pid = self.remote.process().pid();
                let end = named.connection_of(pid).map_err(fail)?;
                self.receive_from(&end, socket as i32, open)
            });
        open.push(socket as i32);
        received
    }

    /// Sends the files into one end of a connection and has the target receive them at the other
    /// and map them: all, or none. Returns the addresses, and adds the descriptors to `open`.
    fn receive_from(
        &mut self,
        end: &OwnedFd,
        theirs: i32,
        open: &mut Vec<i32>,
    ) -> Result<Vec<u64>, Error> {
        self.send(end)?;
        let sent = self.batch.files.len();
        let (heads, files_at) = (
            self.scratch + MSGHDR,
            self.scratch + CONTROL + CMSG_HEAD as u64,
        );
        let mut message = heads_for(self.scratch).to_vec();
        // Whatever does not come is no descriptor.
        message.extend(vec![u8::MAX; sent * size_of::<i32>()]);
        self.remote.space.write(heads, &message)?;
        let flags = (libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT) as u64;
        let arguments = [theirs as u64, heads, flags, 0, 0, 0];
        let receive = [Call::new(libc::SYS_recvmsg, arguments)];
        let map = self.batch.parcels.iter().map(|parcel| Call {
            descriptor_at: Some(files_at + (parcel.file * size_of::<i32>()) as u64),
            ..Call::new(libc::SYS_mmap, parcel.arguments())
        });
        let map: Vec<Call> = map.collect();
        let mut parcels = self.batch.parcels.iter();
        // What is replaced cannot be put back, so all files must be there before.
        if parcels.any(|parcel| parcel.flags.contains(MapFlags::FIXED)) {
            let has_come = self.make(&receive).and_then(one);
            self.note_received(has_come, open)?;
            let mapped = self.make(&map)?;
            return self.all_or_none(Ok(()), mapped);
        }
        match self.make(&[&receive[..], &map].concat()) {
            Ok(mut results) => {
                let mapped = results.split_off(1);
                let outcome = self.note_received(one(results), open);
                self.all_or_none(outcome, mapped)
            }
            Err(error) => self.note_received(Err(error), open).map(|()| Vec::new()),
        }
    }

    fn make(&mut self, calls: &[Call]) -> Result<Vec<Result<u64, Error>>, Error> {
        self.remote.calls(self.scratch + CALLS, calls)
    }

    /// Adds the descriptors that have come to `open`, whatever has become of the calls.
    fn note_received(
        &self,
        has_come: Result<u64, Error>,
        open: &mut Vec<i32>,
    ) -> Result<(), Error> {
        let received = self.received()?;
        let (got, sent) = (received.len(), self.batch.files.len());
        open.extend(received);
        has_come?;
        match got == sent {
            true => Ok(()),
            false => Err(Error::DescriptorLimit {
                pid: self.remote.process().pid(),
                got,
                sent,
            }),
        }
    }

    /// Returns the addresses of all parcels; or unmaps those that were mapped where nothing was
    /// before, if there is an error.
    fn all_or_none(
        &mut self,
        outcome: Result<(), Error>,
        mapped: Vec<Result<u64, Error>>,
    ) -> Result<Vec<u64>, Error> {
        let pid = self.remote.process().pid();
        let (mut placed, mut error) = (Vec::new(), outcome.err());
        for (parcel, result) in self.batch.parcels.iter().zip(mapped) {
            match result {
                Ok(got) if !parcel.is_where_wanted(got) => {
                    placed.push((got, parcel));
                    error.get_or_insert(Error::Misplaced {
                        pid,
                        wanted: parcel.address,
                        got,
                    });
                }
                Ok(got) => placed.push((got, parcel)),
                Err(why) => drop(error.get_or_insert(why)),
            }
        }
        let Some(error) = error else {
            return Ok(placed.into_iter().map(|(at, _)| at).collect());
        };
        for (at, parcel) in placed {
            if !parcel.flags.contains(MapFlags::FIXED) {
                // An error has come first, which is the one to report.
                let _ = self.remote.unmap(at, parcel.len);
            }
        }
        Err(error)
    }

    /// Sends the files into one end of the target's socket pair.
    fn send(&self, end: &OwnedFd) -> Result<(), Error> {
        let files: Vec<BorrowedFd<'_>> = self.batch.files.iter().map(AsFd::as_fd).collect();
        let mut space =
            [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SCM_MAX_FD))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&files));
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let sent = sendmsg(end, &[IoSlice::new(&[0])], &mut control, flags);
        sent.map(drop).map_err(|errno| Error::Local {
            what: "send descriptors to the target",
            source: errno.into(),
        })
    }

    /// Returns the descriptors in the control message that the target has received.
    fn received(&self) -> Result<Vec<i32>, Error> {
        let mut control = [0; CONTROL_LEN];
        self.remote
            .space
            .read(self.scratch + CONTROL, &mut control)?;
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

    /// Closes all of them in the target, even if one fails. Consecutive ones, as new descriptors
    /// mostly are, are closed by one call, unless there is a filter: many are older than that call.
    fn close_all(&mut self, files: &mut [i32]) -> Result<(), Error> {
        files.sort_unstable();
        if self.remote.is_confined()? {
            let close = |file: &i32| Call::new(libc::SYS_close, [*file as u64, 0, 0, 0, 0, 0]);
            let calls: Vec<_> = files.iter().map(close).collect();
            let results = self.remote.calls(self.scratch + CALLS, &calls)?;
            return results.into_iter().try_for_each(|closed| closed.map(drop));
        }
        let close = |run: &[i32]| {
            let (first, last) = (run[0] as u64, run[run.len() - 1] as u64);
            let arguments = [first, last, 0, 0, 0, 0];
            self.remote.call(libc::SYS_close_range, arguments).map(drop)
        };
        let runs = files.chunk_by(|one, next| one.checked_add(1) == Some(*next));
        runs.map(close).fold(Ok(()), Result::and)
    }
}

/// Returns a `struct msghdr` for one byte of payload and as much control data as fits, the `struct
/// iovec` for the payload, and zeroes up to the control message.
fn heads_for(scratch: u64) -> [u8; HEADS_LEN] {
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
