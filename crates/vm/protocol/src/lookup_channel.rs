//! Look-up channels: a further connection of a tool, for look-ups by any process that has its
//! socket. The tool itself can use it, without going through Beeline.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use crate::address::Address;
use crate::channel::{Channel, Cutter};
use crate::frame;
use crate::messages::guest_message::Body as Said;
use crate::messages::host_message::Body as Asked;
use crate::messages::{GuestMessage, HostMessage, Join};

/// The connection. It ends when this is dropped, for all that have its socket, and when the proxy
/// ends the connection that it has joined.
#[derive(Debug)]
pub struct LookupChannel(Cutter);

/// The number of messages that may come before the answer: signs of life, until the proxy knows
/// that it is to give none.
const BEFORE: usize = 8;

/// The most bytes of each.
const LONGEST: usize = 4 << 10;

impl LookupChannel {
    /// Joins the connection with the token from its [`Welcome`](crate::messages::Welcome).
    ///
    /// # Errors
    ///
    /// Those of connecting, and of a proxy that refuses it.
    pub fn join(address: &Address, token: &[u8]) -> io::Result<Self> {
        let channel = Channel::connect(address, None).map_err(io::Error::other)?;
        let (mut reader, mut writer) = channel.split();
        let channel = Self(writer.cutter());
        let token = token.to_vec();
        let body = Some(Asked::Join(Join { token }));
        frame::write(&mut writer, &HostMessage { id: 1, body })?;
        for _ in 0..BEFORE {
            let message = frame::read_up_to::<GuestMessage>(LONGEST, &mut reader);
            let message = message.map_err(io::Error::other)?;
            match message.map(|message| message.body) {
                Some(None) => {}
                Some(Some(Said::Done(_))) => return Ok(channel),
                _ => break,
            }
        }
        Err(io::ErrorKind::ConnectionRefused.into())
    }
}

/// The socket that messages are sent and received by, in frames. One call that reads or writes
/// takes 5 s at the most.
impl AsFd for LookupChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.stream().as_fd()
    }
}

impl Drop for LookupChannel {
    fn drop(&mut self) {
        self.0.cut();
    }
}
