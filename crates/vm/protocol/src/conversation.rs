//! Messages on a channel, in both directions at once, with a sign of life from each side.

use std::io::{self, BufRead, BufReader};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use prost::Message;

use crate::channel::{Channel, Cutter, Reader, Writer};
use crate::frame;

/// Each side says something at least so often, be it an empty message: who is not heard for
/// [`PATIENCE`](crate::stream::PATIENCE) is gone.
const SIGN_OF_LIFE: Duration = Duration::from_secs(1);
const BUFFER: usize = 64 << 10;

/// Begins a conversation: who receives, and who sends. It ends when either says so, or a stream does.
pub fn begin(channel: Channel) -> io::Result<(Receiver, Sender)> {
    let (reader, writer) = channel.split();
    let sender = Sender {
        cutter: writer.cutter(),
        shared: Arc::new(Shared {
            writer: Mutex::new(writer),
            is_silent: AtomicBool::new(false),
            broken: OnceLock::new(),
        }),
    };
    let alive = Arc::downgrade(&sender.shared);
    let cutter = sender.cutter.clone();
    std::thread::Builder::new()
        .name("beeline-alive".into())
        .spawn(move || say_so(&alive, &cutter))?;
    let receiver = Receiver {
        reader: BufReader::with_capacity(BUFFER, reader),
        longest: frame::LONGEST,
    };
    Ok((receiver, sender))
}

/// Until nobody sends any more. A message that is on its way is a sign of life as well.
fn say_so(shared: &Weak<Shared>, cutter: &Cutter) {
    loop {
        std::thread::sleep(SIGN_OF_LIFE);
        let Some(shared) = shared.upgrade() else {
            return;
        };
        let Ok(mut writer) = shared.writer.try_lock() else {
            continue;
        };
        if shared.is_silent.load(Relaxed) {
            return;
        }
        if let Err(error) = frame::write(&mut *writer, &()) {
            if error.kind() != io::ErrorKind::ConnectionAborted {
                shared.is_broken(&error);
            }
            cutter.cut();
            return;
        }
    }
}

/// Gets messages.
#[derive(Debug)]
pub struct Receiver {
    reader: BufReader<Reader>,
    /// Bytes of a message.
    longest: usize,
}

impl Receiver {
    /// From now on the other side may be silent for as long as it likes. Error: that is not to be had of such a stream.
    pub fn bear_silence(&self) -> io::Result<()> {
        self.reader.get_ref().bear_silence()
    }

    /// Takes no messages of more bytes from now on.
    pub fn limit(&mut self, longest: usize) {
        self.longest = longest;
    }

    /// The next message; `None` if the other side has ended the conversation. Errors also where nothing has been heard for 5 s.
    pub fn receive<M: Message + Default + PartialEq>(&mut self) -> Result<Option<M>, frame::Error> {
        loop {
            match frame::read_up_to::<M>(self.longest, &mut self.reader)? {
                Some(empty) if empty == M::default() => {}
                message => return Ok(message),
            }
        }
    }

    /// What `take` makes of the next message's bytes, where they came in. `None` if they have not come in one piece, or it makes nothing of
    /// them: [`Receiver::receive`] gives the message then.
    pub fn receive_in_place<T>(
        &mut self,
        take: impl FnOnce(&[u8]) -> Option<T>,
    ) -> Result<Option<T>, frame::Error> {
        let Some(message) = frame::first(self.longest, self.reader.fill_buf()?)? else {
            return Ok(None);
        };
        let (taken, len) = (take(message), frame::HEAD + message.len());
        if taken.is_some() {
            self.reader.consume(len);
        }
        Ok(taken)
    }
}

/// Sends messages, from any thread.
#[derive(Debug, Clone)]
pub struct Sender {
    shared: Arc<Shared>,
    cutter: Cutter,
}

#[derive(Debug)]
struct Shared {
    writer: Mutex<Writer>,
    /// No signs of life are given any more.
    is_silent: AtomicBool,
    /// Why nothing could be sent.
    broken: OnceLock<String>,
}

impl Shared {
    /// The first reason is the one: what was tried later met with what came of that.
    fn is_broken(&self, error: &io::Error) {
        let _ = self.broken.set(match error.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
                "the proxy in the guest has ended the connection".to_owned()
            }
            _ => error.to_string(),
        });
    }
}

impl Sender {
    /// Sends a message whole. After an error the conversation has ended.
    pub fn send<M: Message>(&self, message: &M) -> io::Result<()> {
        let sent = frame::write(&mut *self.writer(), message);
        sent.inspect_err(|error| self.fail(error))
    }

    /// As [`Self::send`], but after an error what the other side has said before may still be received.
    pub(crate) fn send_first<M: Message>(&self, message: &M) -> io::Result<()> {
        frame::write(&mut *self.writer(), message)
    }

    /// Why nothing could be sent, if that was what ended the conversation.
    pub(crate) fn broken(&self) -> Option<String> {
        self.shared.broken.get().cloned()
    }

    fn fail(&self, error: &io::Error) {
        // Where it had been ended on purpose there is nothing to tell.
        if error.kind() != io::ErrorKind::ConnectionAborted {
            self.shared.is_broken(error);
        }
        self.cutter.cut();
    }

    /// Sends a message that is in its frame already. After an error the conversation has ended.
    pub fn send_framed(&self, frame: &[u8]) -> io::Result<()> {
        let sent = frame::write_framed(&mut *self.writer(), frame);
        sent.inspect_err(|error| self.fail(error))
    }

    /// Would a short message be on its way at once? It may not any more in a moment.
    pub fn is_ready(&self) -> bool {
        let writer = self.shared.writer.try_lock();
        writer.is_ok_and(|writer| writer.is_ready())
    }

    /// Gives no signs of life from now on: the other side does not listen all the time.
    pub fn be_silent(&self) {
        let _writer = self.writer();
        self.shared.is_silent.store(true, Relaxed);
    }

    fn writer(&self) -> MutexGuard<'_, Writer> {
        let writer = self.shared.writer.lock();
        writer.unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the conversation for both sides.
    pub fn end(&self) {
        self.cutter.cut();
    }
}
