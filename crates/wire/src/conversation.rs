//! Messages on a channel, in both directions at once, with a sign of life from each side.

use std::io::{self, BufReader};
use std::sync::{Arc, Mutex, PoisonError, Weak};
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
        writer: Arc::new(Mutex::new(writer)),
    };
    let alive = Arc::downgrade(&sender.writer);
    let cutter = sender.cutter.clone();
    std::thread::Builder::new()
        .name("beeline-alive".into())
        .spawn(move || say_so(&alive, &cutter))?;
    let receiver = Receiver {
        reader: BufReader::with_capacity(BUFFER, reader),
    };
    Ok((receiver, sender))
}

/// Until nobody sends any more. A message that is on its way is a sign of life as well.
fn say_so(writer: &Weak<Mutex<Writer>>, cutter: &Cutter) {
    loop {
        std::thread::sleep(SIGN_OF_LIFE);
        let Some(writer) = writer.upgrade() else {
            return;
        };
        if let Ok(mut writer) = writer.try_lock()
            && frame::write(&mut *writer, &()).is_err()
        {
            cutter.cut();
            return;
        }
    }
}

/// Gets messages.
#[derive(Debug)]
pub struct Receiver {
    reader: BufReader<Reader>,
}

impl Receiver {
    /// The next message; `None` if the other side has ended the conversation. Errors also where nothing has been heard for 5 s.
    pub fn receive<M: Message + Default + PartialEq>(&mut self) -> Result<Option<M>, frame::Error> {
        loop {
            match frame::read::<M>(&mut self.reader)? {
                Some(empty) if empty == M::default() => {}
                message => return Ok(message),
            }
        }
    }
}

/// Sends messages, from any thread.
#[derive(Debug, Clone)]
pub struct Sender {
    writer: Arc<Mutex<Writer>>,
    cutter: Cutter,
}

impl Sender {
    /// Sends a message whole. After an error the conversation has ended.
    pub fn send<M: Message>(&self, message: &M) -> io::Result<()> {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        frame::write(&mut *writer, message).inspect_err(|_| self.cutter.cut())
    }

    /// Would a short message be on its way at once? It may not any more in a moment.
    pub fn is_ready(&self) -> bool {
        self.writer.try_lock().is_ok_and(|writer| writer.is_ready())
    }

    /// Ends the conversation for both sides.
    pub fn end(&self) {
        self.cutter.cut();
    }
}
