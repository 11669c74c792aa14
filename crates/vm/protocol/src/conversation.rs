//! Messages on a channel, in both directions at once, with a sign of life from each side.

use std::io::{self, BufRead, BufReader};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};
use prost::Message;

use crate::channel::{Channel, Cutter, Reader, Writer};
use crate::frame;

/// The longest silence of each side: it then sends something, if only an empty message. A side that
/// is not heard for [`PATIENCE`](crate::stream::PATIENCE) is gone.
const SIGN_OF_LIFE: Duration = Duration::from_secs(1);
const BUFFER: usize = 64 << 10;

/// Begins a conversation, and returns its receiver and its sender. It ends when either says so, or
/// a stream does.
///
/// # Errors
///
/// Those of [`Sender::keep_alive`].
pub fn begin(channel: Channel) -> io::Result<(Receiver, Sender)> {
    let (receiver, sender) = open(channel);
    sender.keep_alive()?;
    Ok((receiver, sender))
}

/// As [`begin`], but without signs of life.
pub fn open(channel: Channel) -> (Receiver, Sender) {
    let (reader, writer) = channel.split();
    let sender = Sender {
        cutter: writer.cutter(),
        shared: Arc::new(Shared {
            writer: Mutex::new(writer),
            broken: OnceLock::new(),
            end: Arc::default(),
        }),
    };
    let receiver = Receiver {
        reader: BufReader::with_capacity(BUFFER, reader),
        longest: frame::LONGEST,
    };
    (receiver, sender)
}

/// The end of a conversation, which wakes the thread that gives signs of life: threads and
/// descriptors of connections that are over would otherwise pile up for a second.
#[derive(Debug, Default)]
struct End {
    is_over: Mutex<bool>,
    came: Condvar,
}

impl End {
    fn come(&self) {
        *self.is_over.lock() = true;
        self.came.notify_all();
    }

    /// Waits for it, for so long at the most. Returns true if it has come.
    fn wait(&self, most: Duration) -> bool {
        let mut is_over = self.is_over.lock();
        self.came
            .wait_while_for(&mut is_over, |is_over| !*is_over, most);
        *is_over
    }
}

/// Gives signs of life until the sender is gone. A message that is on its way is a sign of life as
/// well.
fn say_so(shared: &Weak<Shared>, end: &End, cutter: &Cutter) {
    while !end.wait(SIGN_OF_LIFE) {
        let Some(shared) = shared.upgrade() else {
            return;
        };
        let Some(mut writer) = shared.writer.try_lock() else {
            continue;
        };
        if let Err(error) = write(&mut writer, &()) {
            if error.kind() != io::ErrorKind::ConnectionAborted {
                shared.is_broken(&error);
            }
            cutter.cut();
            return;
        }
    }
}

fn write<M: Message>(writer: &mut Writer, message: &M) -> io::Result<()> {
    frame::write_within(writer.patience(), writer, message)
}

/// Gets messages.
#[derive(Debug)]
pub struct Receiver {
    reader: BufReader<Reader>,
    /// The longest message in bytes.
    longest: usize,
}

impl Receiver {
    /// Lets the other side be silent forever from now on.
    ///
    /// # Errors
    ///
    /// The stream does not support that.
    pub fn bear_silence(&self) -> io::Result<()> {
        self.reader.get_ref().bear_silence()
    }

    /// Lets the other side be silent for so long from now on, and take as long to receive something,
    /// in place of [`PATIENCE`](crate::stream::PATIENCE).
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn set_patience(&self, patience: Duration) -> io::Result<()> {
        self.reader.get_ref().set_patience(patience)
    }

    /// Refuses longer messages from now on.
    pub fn limit(&mut self, longest: usize) {
        self.longest = longest;
    }

    /// Returns the next message; `None` if the other side has ended the conversation.
    ///
    /// # Errors
    ///
    /// Also if nothing has been heard for too long.
    pub fn receive<M: Message + Default + PartialEq>(&mut self) -> Result<Option<M>, frame::Error> {
        self.receive_metered(&mut frame::Unlimited)
    }

    /// As [`Receiver::receive`], with a meter for each message.
    ///
    /// # Errors
    ///
    /// Those of [`Receiver::receive`], and the meter's.
    pub fn receive_metered<M: Message + Default + PartialEq>(
        &mut self,
        meter: &mut dyn frame::Meter,
    ) -> Result<Option<M>, frame::Error> {
        loop {
            let patience = self.reader.get_ref().patience();
            match frame::read_metered::<M>(patience, self.longest, &mut self.reader, meter)? {
                Some(empty) if empty == M::default() => {}
                message => return Ok(message),
            }
        }
    }

    /// Returns the result of `take` on the next message's bytes, in place. `None` if they have not
    /// come in one piece, or `take` returns `None`: [`Receiver::receive`] returns the message then.
    ///
    /// # Errors
    ///
    /// Those of [`Receiver::receive`], except for [`frame::Error::Malformed`].
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
    /// The reason why nothing could be sent.
    broken: OnceLock<String>,
    end: Arc<End>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.end.come();
    }
}

impl Shared {
    /// Records the first reason only: later attempts fail as a consequence of it.
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
    /// Gives signs of life from now on.
    ///
    /// # Errors
    ///
    /// The system's, if the thread for them could not be started.
    pub fn keep_alive(&self) -> io::Result<()> {
        let alive = Arc::downgrade(&self.shared);
        let end = Arc::clone(&self.shared.end);
        let cutter = self.cutter.clone();
        std::thread::Builder::new()
            .name("beeline-alive".into())
            .spawn(move || say_so(&alive, &end, &cutter))?;
        Ok(())
    }

    /// Sends a whole message. After an error the conversation has ended.
    ///
    /// # Errors
    ///
    /// Those of [`frame::write`]; `TimedOut` if the other side has taken nothing for too long.
    pub fn send<M: Message>(&self, message: &M) -> io::Result<()> {
        let sent = write(&mut self.writer(), message);
        sent.inspect_err(|error| self.fail(error))
    }

    /// As [`Self::send`], but after an error earlier messages of the other side may still be
    /// received.
    pub(crate) fn send_first<M: Message>(&self, message: &M) -> io::Result<()> {
        write(&mut self.writer(), message)
    }

    /// Returns the reason why nothing could be sent, if that ended the conversation.
    pub(crate) fn broken(&self) -> Option<String> {
        self.shared.broken.get().cloned()
    }

    fn fail(&self, error: &io::Error) {
        // If it was ended on purpose there is nothing to report.
        if error.kind() != io::ErrorKind::ConnectionAborted {
            self.shared.is_broken(error);
        }
        self.cutter.cut();
    }

    /// Sends a message that is in its frame already. After an error the conversation has ended.
    ///
    /// # Errors
    ///
    /// Those of [`frame::write_framed`]; `TimedOut` if the other side has taken nothing for too long.
    pub fn send_framed(&self, frame: &[u8]) -> io::Result<()> {
        let mut writer = self.writer();
        let sent = frame::write_framed(writer.patience(), &mut *writer, frame);
        drop(writer);
        sent.inspect_err(|error| self.fail(error))
    }

    /// True if a short message would be on its way at once. That may change at any moment.
    pub fn is_ready(&self) -> bool {
        let writer = self.shared.writer.try_lock();
        writer.is_some_and(|writer| writer.is_ready())
    }

    fn writer(&self) -> MutexGuard<'_, Writer> {
        self.shared.writer.lock()
    }

    /// Ends the conversation for both sides.
    pub fn end(&self) {
        self.shared.end.come();
        self.cutter.cut();
    }

    /// Ends it once the other side has had the time to receive what was sent last.
    pub fn end_politely(&self) {
        self.cutter.end_politely();
        self.end();
    }
}
