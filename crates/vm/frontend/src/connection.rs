//! The connection to a guest's proxy, as a tool's calls see it: it returns an answer or an errno,
//! and shows the user the reason.

use std::collections::HashMap;
use std::sync::Arc;

use beeline_uapi::Errno;
use beeline_vm_protocol::channel::Channel;
use beeline_vm_protocol::client::{Client, Failure, GreetError};
use beeline_vm_protocol::lookup_channel::LookupChannel;
use beeline_vm_protocol::messages::Welcome;
use beeline_vm_protocol::messages::guest_message::Body as Said;
use beeline_vm_protocol::messages::host_message::Body as Asked;
use beeline_vm_protocol::text::printable_line;
use parking_lot::Mutex;

use crate::Error;

/// The error that the tool gets for a call when there is no guest any more.
pub(super) const LOST: Errno = Errno(libc::ENOTCONN);
/// The error for an answer that breaks the protocol.
pub(super) const EPROTO: Errno = Errno(libc::EPROTO);

/// A connection to a proxy that was greeted.
///
/// The proxy drops everything that it holds for us when the connection ends.
pub struct Connection {
    client: Arc<Client>,
    say: Box<dyn Fn(&str) + Send + Sync>,
    /// Lines that are told only once.
    said: Mutex<HashMap<String, Repeated>>,
    at_loss: AtLoss,
    is_this_machine: bool,
}

/// The number of times that a line came up.
#[derive(Debug, Clone, Copy, Default)]
struct Repeated {
    times: u64,
    /// True for a refusal of the guest's: the user is told how many there were.
    is_refusal: bool,
}

/// The most lines about calls that are not carried out.
const MOST_SAID: usize = 100;

/// The action to take at once when the guest is lost.
type AtLoss = Arc<Mutex<Option<Box<dyn FnOnce() + Send>>>>;

/// Takes the guest's messages on rings and arrays, in the order in which they come. Nothing else is
/// received meanwhile, so it must not wait for the guest.
pub(super) type Hear = Box<dyn Fn(&Connection, Said) + Send>;

impl Connection {
    /// Greets the proxy at the other end.
    ///
    /// `tool` is the command line, for the guest's log. `say` tells the user a line. `lost` is
    /// called with the reason if the connection ends before [`Self::close`].
    ///
    /// # Errors
    /// [`Error::Guest`] if the proxy does not answer the greeting as it should, [`Error::Thread`]
    /// if no thread could be started.
    pub fn greet(
        channel: Channel,
        tool: &str,
        say: Box<dyn Fn(&str) + Send + Sync>,
        lost: Box<dyn Fn(&str) + Send + Sync>,
    ) -> Result<Arc<Self>, Error> {
        let at_loss = AtLoss::default();
        let first = Arc::clone(&at_loss);
        let lost = move |why: &str| {
            let first = first.lock().take();
            if let Some(first) = first {
                first();
            }
            lost(why);
        };
        let client = Client::greet(channel, tool, Box::new(lost)).map_err(|error| match error {
            GreetError::Thread(error) => Error::Thread(error),
            error => Error::Guest(error.to_string()),
        })?;
        let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
        let is_this_machine = boot_id.is_ok_and(|own| own.trim() == client.welcome().boot_id);
        Ok(Arc::new(Self {
            is_this_machine,
            client,
            say,
            said: Mutex::default(),
            at_loss,
        }))
    }

    /// Returns what the proxy said of its kernel.
    pub fn welcome(&self) -> &Welcome {
        self.client.welcome()
    }

    /// Returns whether the proxy runs on this machine's own kernel, with the same processes.
    pub fn is_this_machine(&self) -> bool {
        self.is_this_machine
    }

    /// Returns whether there can be another connection to the guest.
    pub(super) fn may_join(&self) -> bool {
        self.client.may_join()
    }

    /// Opens another connection to the guest, for look-ups in the objects of this one. The errors
    /// are those of [`Client::join`].
    pub(super) fn join(&self) -> std::io::Result<LookupChannel> {
        self.client.join()
    }

    /// Ends the connection once all released objects are gone in the guest.
    pub fn close(&self) {
        self.say_how_often();
        if !self.client.close() {
            self.say("the guest is still detaching what the tool has left");
        }
    }

    /// Records that the guest is lost, if that was not known.
    pub fn lose(&self, why: &str) {
        self.client.lose(why);
    }

    /// Sets the action to take before anyone is told that the guest is lost.
    pub(super) fn set_at_loss(&self, at_loss: Box<dyn FnOnce() + Send>) {
        *self.at_loss.lock() = Some(at_loss);
    }

    /// Sends a request and waits for its answer. A refusal becomes its errno, and the user is told
    /// the reason. Returns ENOTCONN if the guest is lost.
    pub(super) fn ask(&self, request: Asked) -> Result<Said, Errno> {
        self.client
            .ask(request)
            .map_err(|failure| errno_of(failure, |line| self.say_refusal(&line)))
    }

    /// Like [`Self::ask`], without waiting for the answer: the thread that receives it calls
    /// `then`, which must not wait for the guest. `before_waiting` is called if the line is not
    /// free.
    pub(super) fn ask_then(
        self: &Arc<Self>,
        request: Asked,
        then: impl FnOnce(Result<Said, Errno>) + Send + 'static,
        before_waiting: &dyn Fn(),
    ) {
        let this = Arc::clone(self);
        let then = move |answer: Result<Said, Failure>| {
            let say = |line| this.say_aside_as(line, true);
            then(answer.map_err(|failure| errno_of(failure, say)));
        };
        self.client
            .ask_then(request, Box::new(then), before_waiting);
    }

    /// Sends a request and ignores its answer.
    pub(super) fn tell(&self, request: Asked) {
        self.client.tell(request);
    }

    /// Tells the user a line. Words of the guest in it do not make it several.
    pub(super) fn say(&self, line: &str) {
        (self.say)(&printable_line(line));
    }

    /// Like [`Self::say_once`], without waiting for the reader of the line.
    pub(super) fn say_aside(self: &Arc<Self>, line: String) {
        self.say_aside_as(line, false);
    }

    fn say_aside_as(self: &Arc<Self>, line: String, is_refusal: bool) {
        if let Some(count) = self.is_new(&line, is_refusal) {
            let this = Arc::clone(self);
            let says = std::thread::Builder::new().name("beeline-says".into());
            // Without a thread, the line is not told.
            let _ = says.spawn(move || this.say_new(&line, count));
        }
    }

    /// Tells the user a line that may recur, once, and no more than [`MOST_SAID`] such lines:
    /// numbers in them are the tool's.
    pub(super) fn say_once(&self, line: &str) {
        if let Some(count) = self.is_new(line, false) {
            self.say_new(line, count);
        }
    }

    /// Tells the user of a refusal, once, and how many there were when the connection is closed.
    pub(super) fn say_refusal(&self, line: &str) {
        if let Some(count) = self.is_new(line, true) {
            self.say_new(line, count);
        }
    }

    /// Returns the number of such lines with this one; `None` if it was told already, or too many
    /// others were.
    fn is_new(&self, line: &str, is_refusal: bool) -> Option<usize> {
        let mut said = self.said.lock();
        if let Some(known) = said.get_mut(line) {
            known.times += 1;
            return None;
        }
        if said.len() >= MOST_SAID {
            return None;
        }
        let first = Repeated {
            times: 1,
            is_refusal,
        };
        said.insert(line.to_owned(), first);
        Some(said.len())
    }

    /// Tells the user of refusals that have recurred.
    fn say_how_often(&self) {
        let mut said: Vec<_> = self.said.lock().drain().collect();
        said.sort_by(|(one, _), (other, _)| one.cmp(other));
        for (line, how) in said {
            if how.is_refusal && how.times > 1 {
                self.say(&format!("{} times: {line}", how.times));
            }
        }
    }

    fn say_new(&self, line: &str, count: usize) {
        self.say(line);
        if count == MOST_SAID {
            self.say("what else is not carried out in guests is not said any more");
        }
    }

    /// Sets the receiver of the guest's messages on rings and arrays. Earlier messages were not
    /// wanted.
    pub(super) fn heard_by(self: &Arc<Self>, hear: Hear) {
        let this = Arc::downgrade(self);
        self.client.heard_by(Box::new(move |said| {
            if let Some(this) = this.upgrade() {
                hear(&this, said);
            }
        }));
    }
}

fn errno_of(failure: Failure, say: impl FnOnce(String)) -> Errno {
    match failure {
        Failure::Refused(refused) => {
            match (&refused.rule[..], &refused.why[..]) {
                (_, "") => {}
                ("", why) => say(format!("the guest: {why}")),
                (rule, why) => say(format!("the guest's policy ({rule}): {why}")),
            }
            Errno(refused.errno as i32)
        }
        Failure::Lost => LOST,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake;
    use beeline_vm_protocol::messages::{Done, Refused, Settle};

    #[test]
    fn repeated_messages_are_reported_once_and_bounded() {
        let guest = fake::guest(|_| None);
        for number in [1, 1, 2] {
            guest.connection.say_once(&format!("command {number}"));
        }
        assert_eq!(*guest.said.lock(), ["command 1", "command 2"]);
        for number in 3..10_000 {
            guest.connection.say_once(&format!("command {number}"));
        }
        let said = guest.said.lock();
        assert_eq!(said.len(), MOST_SAID + 1);
        assert!(said[MOST_SAID].contains("not said any more"));
    }

    #[test]
    fn repeated_refusals_are_reported_once_with_a_count() {
        let guest = fake::guest(|asked| match asked {
            Asked::Settle(_) => Some(Said::Refused(Refused {
                errno: libc::EPERM as u32,
                why: "no\u{1b}[2J\nbeeline: all is well".into(),
                rule: "attach.allow".into(),
            })),
            _ => Some(Said::Done(Done {})),
        });
        for _ in 0..1000 {
            let refused = guest.connection.ask(Asked::Settle(Settle {}));
            assert_eq!(refused, Err(Errno(libc::EPERM)));
        }
        let line = "the guest's policy (attach.allow): no\\u001b[2J\\nbeeline: all is well";
        assert_eq!(*guest.said.lock(), [line]);
        guest.connection.close();
        assert_eq!(*guest.said.lock(), [line, &format!("1000 times: {line}")]);
    }
}
