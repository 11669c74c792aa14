//! The host's end of a conversation: requests with their answers, and messages that the guest sends
//! on its own.

use std::collections::HashMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::Builder;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use crate::VERSION;
use crate::address::Address;
use crate::channel::Channel;
use crate::conversation::{self, Receiver, Sender};
use crate::frame;
use crate::lookup_channel::LookupChannel;
use crate::messages::guest_message::Body as Said;
use crate::messages::host_message::Body as Asked;
use crate::messages::{Done, GuestMessage, Hello, HostMessage, Refused, Release, Welcome};
use crate::stream::PATIENCE;

/// The reason why no proxy could be greeted.
#[derive(Debug, thiserror::Error)]
pub enum GreetError {
    /// A thread could not be started.
    #[error("starting a thread: {0}")]
    Thread(io::Error),
    /// The connection.
    #[error(transparent)]
    Frame(#[from] frame::Error),
    /// The other side has closed it.
    #[error(
        "the connection was taken, and ended again before the greeting was answered{}; is `beeline guest` running in the guest? \
         If it refuses this host, its log says why (`beeline guest --audit FILE`)",
        sent(.0)
    )]
    Nobody(
        /// The reason why it could not even be sent.
        Option<io::Error>,
    ),
    /// Another version of the protocol.
    #[error(
        "the proxy in the guest speaks version {0} of the protocol, and this is {VERSION}; install the same beeline on both sides"
    )]
    Version(u32),
    /// The proxy's words.
    #[error("{0}")]
    Refused(String),
    /// The answering program speaks another protocol.
    #[error("whoever answers there is no `beeline guest`")]
    Stranger,
}

/// The reason why a request has no answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Failure {
    /// The guest does not carry it out.
    Refused(Refused),
    /// There is no guest any more.
    Lost,
}

/// A proxy that was greeted. Everything that it holds for this host goes with the connection, which
/// lasts until [`Self::close`].
pub struct Client {
    /// Locked from a request's id to its sending: the guest serves requests in the order in which
    /// they come.
    sender: Mutex<Sender>,
    /// The same, to end it while a request waits to be sent.
    ender: Sender,
    waiting: Mutex<Waiting>,
    welcome: Welcome,
    /// The address by which other connections lead to the same guest.
    again: Option<Address>,
    /// Gets the messages that the guest sends on its own, until the connection ends.
    hear: Mutex<Option<Hear>>,
    lost: Lost,
}

/// Takes the guest's messages on rings and arrays, in the order in which they come. Nothing else is
/// received meanwhile, so it must not wait for the guest. Dropped when the connection ends.
pub type Hear = Box<dyn Fn(Said) + Send>;

/// Gets the reason why the connection has ended.
pub type Lost = Box<dyn Fn(&str) + Send + Sync>;

struct Waiting {
    last_id: u64,
    /// True if the loss of the connection is of no interest any more.
    is_closing: bool,
    /// `None` once the connection is lost or closed.
    answers: Option<HashMap<u64, Waiter>>,
}

/// The receiver of an answer.
enum Waiter {
    /// A thread that sleeps.
    Thread(SyncSender<Said>),
    /// A callback; no thread sleeps.
    Then(Then),
}

/// The callback for an answer, which is none of [`Said::Refused`]. The receiving thread runs it,
/// and nothing else is received meanwhile, so it must not wait for the guest, nor panic.
pub type Then = Box<dyn FnOnce(Result<Said, Failure>) + Send>;

impl Waiter {
    fn give(self, said: Said) {
        match self {
            // The channel has room for it; its caller waits.
            Self::Thread(answer) => drop(answer.send(said)),
            Self::Then(then) => then(answered(said)),
        }
    }

    /// Handles the loss of the connection: dropping this end tells the channel's other end.
    fn lose(self) {
        if let Self::Then(then) = self {
            then(Err(Failure::Lost));
        }
    }
}

fn answered(said: Said) -> Result<Said, Failure> {
    match said {
        Said::Refused(refused) => Err(Failure::Refused(refused)),
        said => Ok(said),
    }
}

/// The id of the greeting.
pub(crate) const FIRST_ID: u64 = 1;

impl Client {
    /// Greets the proxy at the other end. `tool` is told to the guest's log. `lost` is called with
    /// the reason if the connection ends before [`Self::close`].
    ///
    /// # Errors
    ///
    /// [`GreetError::Thread`] if a thread could not be started; the others say what the other end
    /// did in place of an answer.
    pub fn greet(channel: Channel, tool: &str, lost: Lost) -> Result<Arc<Self>, GreetError> {
        let again = channel.again().cloned();
        let patience = channel.patience();
        let conversation = conversation::begin(channel);
        let (mut receiver, sender) = conversation.map_err(GreetError::Thread)?;
        let welcome = greet(&mut receiver, &sender, tool, patience)?;
        let client = Arc::new(Self {
            sender: Mutex::new(sender.clone()),
            ender: sender,
            waiting: Mutex::new(Waiting {
                last_id: FIRST_ID,
                is_closing: false,
                answers: Some(HashMap::new()),
            }),
            welcome,
            again,
            hear: Mutex::new(None),
            lost,
        });
        let listening = Arc::clone(&client);
        Builder::new()
            .name("beeline-guest".into())
            .spawn(move || {
                let end = listening.listen(&mut receiver);
                let end = listening.ender.broken().unwrap_or(end);
                listening.lose(&end);
            })
            .map_err(GreetError::Thread)?;
        Ok(client)
    }

    /// Returns the proxy's description of its kernel.
    pub fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    /// True if there can be another connection to the guest.
    pub fn may_join(&self) -> bool {
        self.again.is_some()
    }

    /// Makes another connection to the guest, for look-ups in what this one has.
    ///
    /// # Errors
    ///
    /// `Unsupported` if there can be only one connection, or if the data are encrypted; the errors
    /// of connecting.
    pub fn join(&self) -> io::Result<LookupChannel> {
        let address = self.again.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        LookupChannel::join(address, &self.welcome.token)
    }

    /// Ends the connection once the guest has done everything that it was told, so that released
    /// objects are gone. Without this they would be given back as well, but a process that looks at
    /// the guest's objects could still find them for a moment.
    ///
    /// Returns false if that takes longer than [`PATIENCE`].
    pub fn close(&self) -> bool {
        self.waiting().is_closing = true;
        let (sender, answer) = sync_channel(1);
        let barrier = Asked::Release(Release::default());
        // A guest that is lost by now has given back everything, or is no more.
        let is_done = self.send(barrier, Some(Waiter::Thread(sender))).is_err()
            || answer.recv_timeout(PATIENCE) != Err(RecvTimeoutError::Timeout);
        let left = self.disconnect();
        self.ender.end();
        left.into_iter().flatten().for_each(Waiter::lose);
        is_done
    }

    /// Notes that the guest is lost, if that was not known: ends the connection and reports the
    /// reason, as if it had ended by itself.
    pub fn lose(&self, why: &str) {
        let is_closing = self.waiting().is_closing;
        if let Some(left) = self.disconnect() {
            self.ender.end();
            if !is_closing {
                (self.lost)(why);
            }
            left.into_iter().for_each(Waiter::lose);
        }
    }

    /// Sends a request and waits for its answer, which is none of [`Said::Refused`]. An array's
    /// first content is passed to the listener, and the answer to the request for it is then
    /// [`Said::Done`].
    ///
    /// # Errors
    ///
    /// [`Failure::Refused`] with the guest's reason, or [`Failure::Lost`] if the connection has
    /// ended.
    pub fn ask(&self, request: Asked) -> Result<Said, Failure> {
        let (sender, answer) = sync_channel(1);
        self.send(request, Some(Waiter::Thread(sender)))?;
        answer.recv().map_err(|_| Failure::Lost).and_then(answered)
    }

    /// Sends a request, and runs a callback on its answer: no other thread is woken for that.
    /// `before_waiting` is called if others are sending, or the line is full.
    pub fn ask_then(&self, request: Asked, then: Then, before_waiting: &dyn Fn()) {
        let free = self.sender.try_lock();
        let sender = free.filter(|sender| sender.is_ready()).unwrap_or_else(|| {
            before_waiting();
            self.sender()
        });
        // A request that cannot be sent is handled by then: its waiter is told when the connection
        // is lost.
        let _ = self.send_by(&sender, request, Some(Waiter::Then(then)));
    }

    /// Sends a request with an answer that does not matter.
    pub fn tell(&self, request: Asked) {
        // If the connection is lost, no peer is left to be told.
        let _ = self.send(request, None);
    }

    /// Sets the listener for the guest's messages on rings and arrays. Earlier messages were of no
    /// interest.
    pub fn heard_by(&self, hear: Hear) {
        if self.waiting().answers.is_some() {
            *self.hear() = Some(hear);
        }
    }

    fn send(&self, request: Asked, answer: Option<Waiter>) -> Result<(), Failure> {
        self.send_by(&self.sender(), request, answer)
    }

    /// Sends a request. Requests are sent in the order of their numbers: `sender` is locked.
    fn send_by(
        &self,
        sender: &Sender,
        request: Asked,
        answer: Option<Waiter>,
    ) -> Result<(), Failure> {
        let mut waiting = self.waiting();
        waiting.last_id += 1;
        let id = waiting.last_id;
        let Some(answers) = waiting.answers.as_mut() else {
            drop(waiting);
            if let Some(answer) = answer {
                answer.lose();
            }
            return Err(Failure::Lost);
        };
        if let Some(answer) = answer {
            answers.insert(id, answer);
        }
        drop(waiting);
        let message = HostMessage {
            id,
            body: Some(request),
        };
        // If it fails, the conversation has ended: the other thread sees that, and reports the
        // reason.
        sender.send(&message).map_err(|_| Failure::Lost)
    }

    fn sender(&self) -> MutexGuard<'_, Sender> {
        self.sender.lock()
    }

    /// Takes messages until there are no more, and returns the reason.
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
            // An array's content is the answer to the request for it; later changes come later.
            let body = match body {
                Said::Changed(_) | Said::Records(_) | Said::Readable(_) => {
                    if let Some(hear) = &*self.hear() {
                        hear(body);
                    }
                    Said::Done(Done {})
                }
                body => body,
            };
            let answers = |waiting: &mut Waiting| waiting.answers.as_mut()?.remove(&message.id);
            let waiter = answers(&mut self.waiting());
            // A panic in a callback must not end the thread that receives.
            let give = || waiter.map(|waiter| waiter.give(body));
            let _ = catch_unwind(AssertUnwindSafe(give));
        }
    }

    /// Ends all waits. Returns the callbacks that still have to be told; `None` if the loss was
    /// known.
    fn disconnect(&self) -> Option<Vec<Waiter>> {
        let answers = self.waiting().answers.take();
        *self.hear() = None;
        let is_told = |waiter: &Waiter| matches!(waiter, Waiter::Then(_));
        Some(answers?.into_values().filter(is_told).collect())
    }

    fn hear(&self) -> MutexGuard<'_, Option<Hear>> {
        self.hear.lock()
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock()
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Not everything that it said: the token must not be shown.
        let release = &self.welcome.release;
        f.debug_struct("Client")
            .field("release", release)
            .finish_non_exhaustive()
    }
}

fn greet(
    receiver: &mut Receiver,
    sender: &Sender,
    tool: &str,
    patience: Duration,
) -> Result<Welcome, GreetError> {
    let hello = HostMessage {
        id: FIRST_ID,
        body: Some(Asked::Hello(Hello {
            version: VERSION,
            tool: tool.into(),
            patience: u32::try_from(patience.as_secs()).unwrap_or(u32::MAX),
        })),
    };
    // A proxy that does not take it may have said why before.
    let sent = sender.send_first(&hello);
    let answer: Option<GuestMessage> = match (receiver.receive(), sent) {
        (Ok(answer), Ok(())) => answer,
        (Ok(Some(answer)), Err(_)) => Some(answer),
        (_, Err(error)) if is_of_an_end(&error) => return Err(GreetError::Nobody(Some(error))),
        (_, Err(error)) => return Err(frame::Error::Io(error).into()),
        (Err(frame::Error::Io(error)), Ok(())) if is_of_an_end(&error) => None,
        (Err(error), Ok(())) => return Err(error.into()),
    };
    match answer.ok_or(GreetError::Nobody(None))?.body {
        Some(Said::Welcome(welcome)) if welcome.version == VERSION => Ok(welcome),
        Some(Said::Welcome(welcome)) => Err(GreetError::Version(welcome.version)),
        Some(Said::Refused(refused)) => Err(GreetError::Refused(refused.why)),
        _ => Err(GreetError::Stranger),
    }
}

/// True if the other side has ended the connection.
fn is_of_an_end(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

fn sent(error: &Option<io::Error>) -> &'static str {
    match error {
        Some(_) => ", which it did not take",
        None => "",
    }
}
