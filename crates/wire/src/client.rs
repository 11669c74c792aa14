//! The host's end of a conversation: requests with their answers, and what the guest says on its own.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::thread::{Builder, Thread, park_timeout};
use std::time::Duration;

use crate::VERSION;
use crate::channel::Channel;
use crate::conversation::{self, Arrivals, Receiver, Sender};
use crate::frame;
use crate::messages::guest_message::Body as Said;
use crate::messages::host_message::Body as Asked;
use crate::messages::{Done, GuestMessage, Hello, HostMessage, Refused, Welcome};
use crate::stream::{PATIENCE, silence};

/// Why nobody could be greeted.
#[derive(Debug, thiserror::Error)]
pub enum GreetError {
    /// A thread could not be started.
    #[error("starting a thread: {0}")]
    Thread(io::Error),
    /// The connection.
    #[error(transparent)]
    Frame(#[from] frame::Error),
    /// The other side has closed it.
    #[error("nobody answers there; is `beeline guest` running in the guest?")]
    Nobody,
    /// Another version of the protocol.
    #[error(
        "the proxy in the guest speaks version {0} of the protocol, and this is {VERSION}; install the same beeline on both sides"
    )]
    Version(u32),
    /// The proxy's words.
    #[error("{0}")]
    Refused(String),
    /// What answers speaks another protocol.
    #[error("whoever answers there is no `beeline guest`")]
    Stranger,
}

/// Why a request has no answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Failure {
    /// The guest does not carry it out.
    Refused(Refused),
    /// There is no guest any more.
    Lost,
}

/// A proxy that was greeted. Everything that it holds for us goes with the connection, which lasts until [`Self::close`].
pub struct Client {
    /// Locked from a request's id to its sending: the guest serves them in the order in which they come.
    sender: Mutex<Sender>,
    /// The same, to end it while a request waits to be sent.
    ender: Sender,
    waiting: Mutex<Waiting>,
    turns: Turns,
    welcome: Welcome,
    /// Gets what the guest says on its own, until the connection ends.
    hear: Mutex<Option<Hear>>,
    lost: Lost,
}

/// Takes what the guest says of rings and arrays, in the order in which it comes. Nothing else is received meanwhile: it must not wait
/// for the guest. Dropped when the connection ends.
pub type Hear = Box<dyn Fn(Said) + Send>;

/// Is told why the connection has ended.
pub type Lost = Box<dyn Fn(&str) + Send + Sync>;

struct Waiting {
    last_id: u64,
    /// `None` once the connection is lost or closed.
    answers: Option<HashMap<u64, SyncSender<Said>>>,
}

/// Who receives: mostly the thread that waits for the next answer, so that nobody has to wake it. Else the one that listens, for what
/// the guest says on its own. Whoever it is gives all that comes to whom it is for.
struct Turns {
    receiver: Mutex<Receiver>,
    /// Of what can be received, to wait for it without receiving it. Where there is no such way only the listening thread receives.
    arrivals: Option<Arrivals>,
    /// A thread has received its answer since the listening one looked last: the next will come soon.
    taken: AtomicBool,
    /// Why it has ended, if it was a thread with a request that has seen it.
    end: OnceLock<String>,
    listener: OnceLock<Thread>,
}

const FIRST_ID: u64 = 1;
/// For so long the listening thread leaves what comes to those that wait for answers.
const MOMENT: Duration = Duration::from_millis(1);

impl Client {
    /// Greets the proxy at the other end; `tool` is told to the guest's log. `lost` is called if the connection ends before
    /// [`Self::close`], with the reason.
    pub fn greet(channel: Channel, tool: &str, lost: Lost) -> Result<Arc<Self>, GreetError> {
        let conversation = conversation::begin(channel);
        let (mut receiver, sender) = conversation.map_err(GreetError::Thread)?;
        let welcome = greet(&mut receiver, &sender, tool)?;
        let client = Arc::new(Self {
            sender: Mutex::new(sender.clone()),
            ender: sender,
            waiting: Mutex::new(Waiting {
                last_id: FIRST_ID,
                answers: Some(HashMap::new()),
            }),
            turns: Turns {
                arrivals: receiver.arrivals(),
                receiver: Mutex::new(receiver),
                taken: AtomicBool::new(false),
                end: OnceLock::new(),
                listener: OnceLock::new(),
            },
            welcome,
            hear: Mutex::new(None),
            lost,
        });
        let listening = Arc::clone(&client);
        let listener = Builder::new().name("beeline-guest".into());
        let listener = listener.spawn(move || {
            let end = listening.listen();
            listening.lose(&end);
        });
        let listener = listener.map_err(GreetError::Thread)?;
        let _ = client.turns.listener.set(listener.thread().clone());
        Ok(client)
    }

    /// What the proxy said of its kernel.
    pub fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    /// Ends it.
    pub fn close(&self) {
        self.disconnect();
        self.ender.end();
    }

    /// The guest is lost, if that was not known: ends the connection and says why, as if it had ended by itself.
    pub fn lose(&self, why: &str) {
        if self.disconnect() {
            self.ender.end();
            (self.lost)(why);
        }
    }

    /// Sends a request and waits for its answer, which is none of [`Said::Refused`]. An array's first content is heard, and the answer
    /// to the wish to see it is then [`Said::Done`].
    pub fn ask(&self, request: Asked) -> Result<Said, Failure> {
        let (sender, answer) = sync_channel(1);
        self.send(request, Some(sender))?;
        match self.receive(&answer) {
            Ok(Said::Refused(refused)) => Err(Failure::Refused(refused)),
            Ok(said) => Ok(said),
            Err(_) => Err(Failure::Lost),
        }
    }

    /// Sends a request whose answer does not matter.
    pub fn tell(&self, request: Asked) {
        // If it is lost, there is nobody to be told.
        let _ = self.send(request, None);
    }

    /// Whom to tell from now on what the guest says of rings and arrays; what it said before nobody wanted.
    pub fn heard_by(&self, hear: Hear) {
        if self.waiting().answers.is_some() {
            *self.hear() = Some(hear);
        }
    }

    fn send(&self, request: Asked, answer: Option<SyncSender<Said>>) -> Result<(), Failure> {
        let sender = self.sender();
        let id = {
            let mut waiting = self.waiting();
            waiting.last_id += 1;
            let id = waiting.last_id;
            let answers = waiting.answers.as_mut().ok_or(Failure::Lost)?;
            answer.map(|answer| answers.insert(id, answer));
            id
        };
        let message = HostMessage {
            id,
            body: Some(request),
        };
        // Should it fail, the conversation has ended: the other thread sees that, and says why.
        sender.send(&message).map_err(|_| Failure::Lost)
    }

    fn sender(&self) -> MutexGuard<'_, Sender> {
        self.sender.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for an answer: receives it, if nobody else receives already. Errors if there will be none.
    fn receive(&self, answer: &mpsc::Receiver<Said>) -> Result<Said, mpsc::RecvError> {
        let turns = &self.turns;
        let Some((_, Ok(mut receiver))) = turns
            .arrivals
            .as_ref()
            .map(|arrivals| (arrivals, turns.receiver.try_lock()))
        else {
            return answer.recv();
        };
        turns.taken.store(true, Ordering::Relaxed);
        let mut found = answer.try_recv();
        // Of what has been read from the stream nothing tells any more, so it is given out as well.
        while found == Err(TryRecvError::Empty) || receiver.has_more() {
            if let Err(end) = self.take_next(&mut receiver) {
                let _ = turns.end.set(end);
                self.ender.end();
                break;
            }
            found = found.or_else(|_| answer.try_recv());
        }
        drop(receiver);
        if let Some(listener) = turns.listener.get()
            && (turns.end.get().is_some() || self.is_awaited())
        {
            listener.unpark();
        }
        found.or_else(|_| answer.recv())
    }

    /// Takes what comes when nobody waits for an answer, until there is no more; says why not.
    fn listen(&self) -> String {
        let turns = &self.turns;
        let mut patience = PATIENCE;
        loop {
            if let Some(arrivals) = &turns.arrivals {
                while turns.taken.swap(false, Ordering::Relaxed) {
                    park_timeout(MOMENT);
                }
                arrivals.wait(patience);
            }
            let mut receiver = match turns.receiver.try_lock() {
                Ok(receiver) => receiver,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => {
                    park_timeout(MOMENT);
                    continue;
                }
            };
            if let Some(end) = turns.end.get() {
                return end.clone();
            }
            if let Some(arrivals) = &turns.arrivals
                && !arrivals.wait(Duration::ZERO)
            {
                // Others have received it, or nothing came at all.
                patience = receiver.patience();
                match patience {
                    Duration::ZERO => return frame::Error::Io(silence()).to_string(),
                    _ => continue,
                }
            }
            // Of what has been read from the stream nothing tells any more.
            loop {
                if let Err(end) = self.take_next(&mut receiver) {
                    return end;
                }
                if !receiver.has_more() {
                    break;
                }
            }
            patience = PATIENCE;
        }
    }

    /// Gives the next message to whom it is for; the error says why there is none.
    fn take_next(&self, receiver: &mut Receiver) -> Result<(), String> {
        let message: GuestMessage = match receiver.receive() {
            Ok(Some(message)) => message,
            Ok(None) => return Err("the proxy in the guest has ended the connection".into()),
            Err(error) => return Err(error.to_string()),
        };
        let Some(body) = message.body else {
            return Err("the guest answers in a way that this version does not know".into());
        };
        // An array's content is the answer to the wish to see it; what changed later comes later.
        let body = match body {
            Said::Changed(_) | Said::Records(_) | Said::Readable(_) => {
                if let Some(hear) = &*self.hear() {
                    hear(body);
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
        Ok(())
    }

    /// Does anybody wait for an answer?
    fn is_awaited(&self) -> bool {
        let waiting = self.waiting();
        waiting.answers.as_ref().is_some_and(|all| !all.is_empty())
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

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let welcome = &self.welcome;
        f.debug_struct("Client").field("welcome", welcome).finish()
    }
}

fn greet(receiver: &mut Receiver, sender: &Sender, tool: &str) -> Result<Welcome, GreetError> {
    let hello = HostMessage {
        id: FIRST_ID,
        body: Some(Asked::Hello(Hello {
            version: VERSION,
            tool: tool.into(),
        })),
    };
    sender.send(&hello).map_err(frame::Error::Io)?;
    let answer: Option<GuestMessage> = receiver.receive()?;
    match answer.ok_or(GreetError::Nobody)?.body {
        Some(Said::Welcome(welcome)) if welcome.version == VERSION => Ok(welcome),
        Some(Said::Welcome(welcome)) => Err(GreetError::Version(welcome.version)),
        Some(Said::Refused(refused)) => Err(GreetError::Refused(refused.why)),
        _ => Err(GreetError::Stranger),
    }
}
