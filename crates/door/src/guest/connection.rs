//! The connection to a guest's proxy: requests with their answers, and what the guest says on its own.

use std::collections::HashMap;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;

use beeline_runtime::backend::Errno;
use beeline_wire::VERSION;
use beeline_wire::channel::Channel;
use beeline_wire::conversation::{self, Receiver, Sender};
use beeline_wire::messages::guest_message::Body as Said;
use beeline_wire::messages::host_message::Body as Asked;
use beeline_wire::messages::{Done, GuestMessage, Hello, HostMessage, Welcome};

use crate::Error;

/// What the tool gets for a call when there is no guest any more.
const LOST: Errno = Errno(libc::ENOTCONN);

/// A proxy that was greeted. Everything that it holds for us goes with the connection.
pub struct Connection {
    /// Locked from a request's id to its sending: the guest serves them in the order in which they come.
    sender: Mutex<Sender>,
    waiting: Mutex<Waiting>,
    welcome: Welcome,
    /// Gets what changes memory here, until the connection ends.
    hear: Mutex<Option<Hear>>,
    say: Box<dyn Fn(&str) + Send + Sync>,
    lost: Box<dyn Fn(&str) + Send + Sync>,
    /// What is to be done at once when the guest is lost.
    at_loss: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

/// Takes what the guest says of rings and arrays, in the order in which it comes. Nothing else is received meanwhile: it must not wait
/// for the guest.
pub(super) type Hear = Box<dyn Fn(&Connection, Said) + Send>;

struct Waiting {
    last_id: u64,
    /// `None` once the connection is lost or closed.
    answers: Option<HashMap<u64, SyncSender<Said>>>,
}

impl Connection {
    /// Greets the proxy at the other end; `tool` is the command line, for the guest's log. `say` tells the user a line. `lost` is called
    /// if the connection ends before [`Self::close`], with the reason.
    pub fn greet(
        channel: Channel,
        tool: &str,
        say: Box<dyn Fn(&str) + Send + Sync>,
        lost: Box<dyn Fn(&str) + Send + Sync>,
    ) -> Result<Arc<Self>, Error> {
        let conversation = conversation::begin(channel);
        let (mut receiver, sender) = conversation.map_err(Error::system("starting a thread"))?;
        let welcome = greet(&mut receiver, &sender, tool).map_err(Error::Guest)?;
        let connection = Arc::new(Self {
            sender: Mutex::new(sender),
            waiting: Mutex::new(Waiting {
                last_id: FIRST_ID,
                answers: Some(HashMap::new()),
            }),
            welcome,
            hear: Mutex::new(None),
            say,
            lost,
            at_loss: Mutex::new(None),
        });
        let listening = Arc::clone(&connection);
        Builder::new()
            .name("beeline-guest".into())
            .spawn(move || {
                let end = listening.listen(&mut receiver);
                listening.lose(&end);
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
        self.sender().end();
    }

    /// The guest is lost, if it was not known.
    pub fn lose(&self, why: &str) {
        if !self.disconnect() {
            return;
        }
        self.sender().end();
        let mut at_loss = self.at_loss.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at_loss) = at_loss.take() {
            at_loss();
        }
        drop(at_loss);
        (self.lost)(why);
    }

    /// To be done before anybody is told that the guest is lost.
    pub(super) fn set_at_loss(&self, at_loss: Box<dyn FnOnce() + Send>) {
        *self.at_loss.lock().unwrap_or_else(PoisonError::into_inner) = Some(at_loss);
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

    /// Whom to tell from now on what the guest says of rings and arrays; what it said before nobody wanted.
    pub(super) fn heard_by(&self, hear: Hear) {
        if self.waiting().answers.is_some() {
            *self.hear() = Some(hear);
        }
    }

    fn send(&self, request: Asked, answer: Option<SyncSender<Said>>) -> Result<(), Errno> {
        let sender = self.sender();
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
        // Should it fail, the conversation has ended: the other thread sees that, and says why.
        sender.send(&message).map_err(|_| LOST)
    }

    fn sender(&self) -> MutexGuard<'_, Sender> {
        self.sender.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what comes until there is no more; says why not.
    fn listen(&self, receiver: &mut Receiver) -> String {
        loop {
            let message: GuestMessage = match receiver.receive() {
                Ok(Some(message)) => message,
                Ok(None) => return "the proxy in the guest has ended the connection".into(),
                Err(error) => return error.to_string(),
            };
            let Some(body) = message.body else {
                return "the guest answers in a way that this version does not know".into();
            };
            // An array's content is the answer to the wish to see it; what changed later comes later.
            let body = match body {
                Said::Changed(_) | Said::Records(_) | Said::Readable(_) => {
                    if let Some(hear) = &*self.hear() {
                        hear(self, body);
                    }
                    Said::Done(Done {})
                }
                body => body,
            };
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
        let first = self.waiting().answers.take().is_some();
        *self.hear() = None;
        first
    }

    fn hear(&self) -> MutexGuard<'_, Option<Hear>> {
        self.hear.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const FIRST_ID: u64 = 1;

fn greet(receiver: &mut Receiver, sender: &Sender, tool: &str) -> Result<Welcome, String> {
    let hello = HostMessage {
        id: FIRST_ID,
        body: Some(Asked::Hello(Hello {
            version: VERSION,
            tool: tool.into(),
        })),
    };
    sender.send(&hello).map_err(|error| error.to_string())?;
    let answer: GuestMessage = receiver
        .receive()
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
