//! Messages on a channel, in both directions at once, with a sign of life from each side.

use std::io::{self, BufRead, BufReader};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
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
        if frame::write(&mut *writer, &()).is_err() {
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
}

impl Sender {
    /// Sends a message whole. After an error the conversation has ended.
    pub fn send<M: Message>(&self, message: &M) -> io::Result<()> {
        frame::write(&mut *self.writer(), message).inspect_err(|_| self.cutter.cut())
    }

    /// Sends a message that is in its frame already. After an error the conversation has ended.
    pub fn send_framed(&self, frame: &[u8]) -> io::Result<()> {
        let sent = frame::write_framed(&mut *self.writer(), frame);
        sent.inspect_err(|_| self.cutter.cut())
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
