//! The connection to a guest's proxy: requests with their answers, and what the guest says on its own.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;

use beeline_runtime::backend::Errno;
use beeline_wire::messages::guest_message::Body as Said;
use beeline_wire::messages::host_message::Body as Asked;
use beeline_wire::messages::{GuestMessage, Hello, HostMessage, Welcome};
use beeline_wire::{VERSION, frame};

use super::Channel;
use crate::Error;

/// What the tool gets for a call when there is no guest any more.
const LOST: Errno = Errno(libc::ENOTCONN);

/// A proxy that was greeted. Everything that it holds for us goes with the connection.
pub struct Connection {
    writer: Mutex<Box<dyn Write + Send>>,
    shutdown: Box<dyn Fn() + Send + Sync>,
    waiting: Mutex<Waiting>,
    welcome: Welcome,
    /// What the guest says on its own, for whoever takes it first.
    unasked: Mutex<Option<Receiver<Said>>>,
    say: Box<dyn Fn(&str) + Send + Sync>,
}

struct Waiting {
    last_id: u64,
    /// `None` once the connection is lost or closed.
    answers: Option<HashMap<u64, SyncSender<Said>>>,
}

impl Connection {
    /// Greets the proxy at the other end; `tool` is the command line, for the guest's log. `say` tells the user a line. `lost` is called
    /// if the connection ends before [`Self::close`], with the reason.
    pub fn greet(
        channel_to: Channel,
        tool: &str,
        say: Box<dyn Fn(&str) + Send + Sync>,
        lost: Box<dyn Fn(&str) + Send>,
    ) -> Result<Arc<Self>, Error> {
        let Channel {
            mut reader,
            mut writer,
            shutdown,
        } = channel_to;
        let welcome = greet(&mut *reader, &mut *writer, tool).map_err(Error::Guest)?;
        let (unasked, receiver) = channel();
        let connection = Arc::new(Self {
            writer: Mutex::new(writer),
            shutdown,
            waiting: Mutex::new(Waiting {
                last_id: FIRST_ID,
                answers: Some(HashMap::new()),
            }),
            welcome,
            unasked: Mutex::new(Some(receiver)),
            say,
        });
        let listening = Arc::clone(&connection);
        Builder::new()
            .name("beeline-guest".into())
            .spawn(move || {
                let end = listening.listen(&mut *reader, &unasked);
                if listening.disconnect() {
                    lost(&end);
                }
            })
            .map_err(Error::system("starting a thread"))?;
        Ok(connection)
    }

    /// What the proxy said of its kernel.
    pub fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    /// Ends it.
    pub fn close(&self) {
        self.disconnect();
        (self.shutdown)();
    }

    /// Sends a request and waits for its answer. A refusal is its errno, and its reason is told the user. ENOTCONN if the guest is lost.
    pub(super) fn ask(&self, request: Asked) -> Result<Said, Errno> {
        let (sender, answer) = sync_channel(1);
        self.send(request, Some(sender))?;
        match answer.recv() {
            Ok(Said::Refused(refused)) => {
                if !refused.why.is_empty() {
                    (self.say)(&format!("the guest: {}", refused.why));
                }
                Err(Errno(refused.errno as i32))
            }
            Ok(said) => Ok(said),
            Err(_) => Err(LOST),
        }
    }

    /// Sends a request whose answer does not matter.
    pub(super) fn tell(&self, request: Asked) {
        // If it is lost, there is nobody to be told.
        let _ = self.send(request, None);
    }

    /// Tells the user.
    pub(super) fn say(&self, line: &str) {
        (self.say)(line);
    }

    /// What the guest says on its own; for one taker.
    pub(super) fn take_unasked(&self) -> Option<Receiver<Said>> {
        let mut unasked = self.unasked.lock().unwrap_or_else(PoisonError::into_inner);
        unasked.take()
    }

    fn send(&self, request: Asked, answer: Option<SyncSender<Said>>) -> Result<(), Errno> {
        // In the order of their ids, as the guest serves them in the order in which they come.
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let id = {
            let mut waiting = self.waiting();
            waiting.last_id += 1;
            let id = waiting.last_id;
            let answers = waiting.answers.as_mut().ok_or(LOST)?;
            answer.map(|answer| answers.insert(id, answer));
            id
        };
        let message = HostMessage {
            id,
            body: Some(request),
        };
        match frame::write(&mut *writer, &message) {
            Ok(()) => Ok(()),
            // Nothing of it was sent.
            Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => {
                if let Some(answers) = &mut self.waiting().answers {
                    answers.remove(&id);
                }
                Err(Errno(libc::E2BIG))
            }
            Err(_) => {
                // The other thread sees the end, and says why.
                (self.shutdown)();
                Err(LOST)
            }
        }
    }

    /// Takes what comes until there is no more; says why not.
    fn listen(&self, reader: &mut (dyn Read + Send), unasked: &Sender<Said>) -> String {
        loop {
            let message: GuestMessage = match frame::read(&mut Bytes(reader)) {
                Ok(Some(message)) => message,
                Ok(None) => return "the proxy in the guest has ended the connection".into(),
                Err(error) => return error.to_string(),
            };
            let Some(body) = message.body else {
                return "the guest answers in a way that this version does not know".into();
            };
            if message.id == 0 {
                // Nobody may want it: then it is dropped with the channel.
                let _ = unasked.send(body);
                continue;
            }
            let mut waiting = self.waiting();
            let answer = waiting.answers.as_mut();
            if let Some(answer) = answer.and_then(|answers| answers.remove(&message.id)) {
                // The channel has room for it; its caller waits.
                let _ = answer.send(body);
            }
        }
    }

    /// Nobody waits any more; `false` if that was known.
    fn disconnect(&self) -> bool {
        self.waiting().answers.take().is_some()
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const FIRST_ID: u64 = 1;

fn greet(
    reader: &mut (dyn Read + Send),
    writer: &mut (dyn Write + Send),
    tool: &str,
) -> Result<Welcome, String> {
    let hello = HostMessage {
        id: FIRST_ID,
        body: Some(Asked::Hello(Hello {
            version: VERSION,
            tool: tool.into(),
        })),
    };
    frame::write(&mut Bytes(writer), &hello).map_err(|error| error.to_string())?;
    let answer: GuestMessage = frame::read(&mut Bytes(reader))
        .map_err(|error| error.to_string())?
        .ok_or("nobody answers there; is `beeline guest` running in the guest?")?;
    match answer.body {
        Some(Said::Welcome(welcome)) if welcome.version == VERSION => Ok(welcome),
        Some(Said::Welcome(welcome)) => Err(format!(
            "the proxy in the guest speaks version {} of the protocol, and this is {VERSION}; install the same beeline on both sides",
            welcome.version
        )),
        Some(Said::Refused(refused)) => Err(refused.why),
        _ => Err("whoever answers there is no `beeline guest`".into()),
    }
}

/// A stream behind a pointer, as a stream.
struct Bytes<'a, S: ?Sized>(&'a mut S);

impl<S: Read + ?Sized> Read for Bytes<'_, S> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(buffer)
    }
}

impl<S: Write + ?Sized> Write for Bytes<'_, S> {
    fn write(&mut self, buffer: &[u8]) -> std::io::Result<usize> {
        self.0.write(buffer)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}
