//! A second process that holds objects with memory that hosts have mapped.
//!
//! Such memory must not be given to another user before the host has let go of it: not when the
//! host's connection breaks, and not when this process is killed. The second process does nothing
//! else. It is made before there are threads. Descriptors go to it in messages, each of which it
//! answers. When this process has ended, it waits for as long as hosts may take to notice, and
//! ends.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

use crate::shared::Shared;

/// Longer than hosts take to notice that a connection is lost (5 s), and to let go.
const LINGER: Duration = Duration::from_secs(10);

/// An order for an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
enum Order {
    Hold = 1,
    Drop = 2,
    DropLater = 3,
}

/// Its number, an [`Order`], and bytes to map.
type Message = [u64; 3];

/// The other process.
#[derive(Debug)]
pub struct Holder {
    /// Locked from a message to its answer.
    socket: Mutex<OwnedFd>,
    last: AtomicU64,
}

/// An object that is held there: until this is dropped and [`LINGER`] has passed, or until
/// [`Self::release`].
#[derive(Debug)]
pub struct Held {
    holder: Arc<Holder>,
    number: u64,
    is_released: bool,
}

impl Holder {
    /// Makes the process. Call it while there is one thread.
    ///
    /// # Errors
    ///
    /// The system's, if there can be no further process.
    pub fn start() -> io::Result<Arc<Self>> {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        // SAFETY: there is one thread, so the child may do all that this process may; it never
        // returns from here.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                drop(ours);
                outlive_signals();
                hold(&theirs);
                // SAFETY: this ends the child without running what the parent has registered for
                // its own end.
                unsafe { libc::_exit(0) }
            }
            _ => Ok(Arc::new(Self {
                socket: Mutex::new(ours),
                last: AtomicU64::new(0),
            })),
        }
    }

    /// Makes the process hold an object, with a mapping of its first bytes if `mapped` is not 0 (a
    /// perf event's ring goes with its last mapping).
    ///
    /// # Errors
    ///
    /// `BrokenPipe` if the process has ended, and its own errors, if it cannot hold the object.
    pub fn hold(self: &Arc<Self>, fd: BorrowedFd<'_>, mapped: usize) -> io::Result<Held> {
        let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        self.order(number, Order::Hold, mapped, Some(fd))?;
        Ok(Held {
            holder: Arc::clone(self),
            number,
            is_released: false,
        })
    }

    fn order(
        &self,
        number: u64,
        order: Order,
        mapped: usize,
        fd: Option<BorrowedFd<'_>>,
    ) -> io::Result<()> {
        let socket = self.socket.lock();
        let message: Message = [number, order as u64, mapped as u64];
        let bytes: Vec<u8> = message.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds: Vec<BorrowedFd<'_>> = fd.into_iter().collect();
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&fds));
        }
        sendmsg(
            &*socket,
            &[IoSlice::new(&bytes)],
            &mut control,
            SendFlags::NOSIGNAL,
        )?;
        let mut answer = [0];
        match rustix::io::read(&*socket, &mut answer)? {
            1 if answer == [0] => Ok(()),
            0 => Err(io::ErrorKind::BrokenPipe.into()),
            _ => Err(io::Error::from_raw_os_error(answer[0].into())),
        }
    }
}

impl Held {
    /// Lets go of the object, because the host has.
    pub fn release(mut self) {
        self.is_released = true;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let order = match self.is_released {
            true => Order::Drop,
            false => Order::DropLater,
        };
        // If the other process has been killed, no process holds the object any more.
        let _ = self.holder.order(self.number, order, 0, None);
    }
}

/// Ignores the signals by which a terminal or a service manager ends the proxy.
fn outlive_signals() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT] {
        // SAFETY: the call sets a disposition; no handler is involved.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

/// One object, in the other process.
struct Object {
    number: u64,
    _fd: OwnedFd,
    _mapped: Option<Shared>,
    until: Option<Instant>,
}

/// Carries out orders until there are no more, and then holds the rest for a while.
fn hold(socket: &OwnedFd) {
    let mut objects: Vec<Object> = Vec::new();
    loop {
        let next = objects.iter().filter_map(|object| object.until).min();
        let left = next.map(|next| next.saturating_duration_since(Instant::now()));
        let left = left.map(|left| Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: left.subsec_nanos().into(),
        });
        let ready = poll(&mut [PollFd::new(socket, PollFlags::IN)], left.as_ref());
        objects.retain(|object| object.until.is_none_or(|until| until > Instant::now()));
        if matches!(ready, Ok(0) | Err(rustix::io::Errno::INTR)) {
            continue;
        }
        let Ok(Some((message, fd))) = receive(socket) else {
            break;
        };
        let errno = carry_out(message, fd, &mut objects);
        if rustix::io::write(socket, &[errno]).is_err() {
            break;
        }
    }
    if !objects.is_empty() {
        std::thread::sleep(LINGER);
    }
}

/// Returns the errno, 0 for none.
fn carry_out(
    [number, order, mapped]: Message,
    fd: Option<OwnedFd>,
    objects: &mut Vec<Object>,
) -> u8 {
    match (order, fd) {
        (order, Some(fd)) if order == Order::Hold as u64 => {
            let map = || Shared::new(&fd, 0, mapped as usize, false);
            let mapped = match (mapped > 0).then(map).transpose() {
                Ok(mapped) => mapped,
                Err(error) => return error.raw_os_error().unwrap_or(libc::EIO) as u8,
            };
            objects.push(Object {
                number,
                _fd: fd,
                _mapped: mapped,
                until: None,
            });
        }
        (order, _) if order == Order::Drop as u64 => {
            objects.retain(|object| object.number != number);
        }
        _ => {
            let mut objects = objects.iter_mut();
            if let Some(object) = objects.find(|object| object.number == number) {
                object.until = Some(Instant::now() + LINGER);
            }
        }
    }
    0
}

/// Returns the next order; `None` if there will be no more.
fn receive(socket: &OwnedFd) -> io::Result<Option<(Message, Option<OwnedFd>)>> {
    let mut bytes = [0; size_of::<Message>()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(
        socket.as_fd(),
        &mut [IoSliceMut::new(&mut bytes)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    if received.bytes != bytes.len() {
        return Ok(None);
    }
    let mut fd = None;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut fds) = message {
            fd = fds.next();
        }
    }
    let mut message = [0; 3];
    for (word, bytes) in message.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *word = u64::from_ne_bytes(*bytes);
    }
    Ok(Some((message, fd)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    /// True if the other end of a socket pair is closed.
    fn is_closed(end: &mut UnixStream) -> bool {
        end.set_read_timeout(Some(Duration::from_millis(200)))
            .unwrap();
        matches!(end.read(&mut [0]), Ok(0))
    }

    /// Returns a holder with the other side in a thread of this process, as tests have many.
    fn holder() -> Arc<Holder> {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        std::thread::spawn(move || hold(&theirs));
        Arc::new(Holder {
            socket: Mutex::new(ours),
            last: AtomicU64::new(0),
        })
    }

    #[test]
    fn released_objects_go_at_once_and_dropped_ones_stay() {
        let holder = holder();
        let [mut first, mut second] = [true, false].map(|is_released| {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let held = holder.hold(theirs.as_fd(), 0).unwrap();
            drop(theirs);
            match is_released {
                true => held.release(),
                false => drop(held),
            }
            ours
        });
        assert!(is_closed(&mut first));
        assert!(!is_closed(&mut second));
        // Nor does it go with the session that had it held.
        drop(holder);
        assert!(!is_closed(&mut second));
    }

    #[test]
    fn unmappable_objects_are_not_held() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        assert!(holder().hold(theirs.as_fd(), 4096).is_err());
        drop((ours, theirs));
    }
}
