//! From a connection that has come in to one that has said who it is and what it wants. Until then
//! it has only a place in the [waiting room](crate::waiting_room).

use std::io;
use std::sync::Arc;
use std::time::Duration;

use beeline_vm_protocol::VERSION;
use beeline_vm_protocol::conversation::{self, Receiver, Sender};
use beeline_vm_protocol::frame::{self, Meter};
use beeline_vm_protocol::listen::Waiting;
use beeline_vm_protocol::messages::guest_message::Body as Answer;
use beeline_vm_protocol::messages::host_message::Body as Request;
use beeline_vm_protocol::messages::{GuestMessage, HostMessage};
use beeline_vm_protocol::peer::Peer;
use beeline_vm_protocol::stream::{MOST_PATIENCE, PATIENCE};
use serde_json::json;

use crate::host::Host;
use crate::limits::Portion;
use crate::memory;
use crate::refusal::Refusal;
use crate::session;
use crate::waiting_room::{Place, WaitingRoom};

/// The longest greeting in bytes: it has the tool's command line in it.
const LONGEST: usize = 256 << 10;

/// A connection, after its first message.
#[derive(Debug)]
pub struct Greeted {
    /// Gets its messages.
    pub receiver: Receiver,
    /// Sends it messages.
    pub sender: Sender,
    /// The name of its other end.
    pub name: String,
    /// The peer at its other end.
    pub peer: Peer,
}

/// Takes a connection that has come in: it is served by a thread of its own once it has greeted, if
/// it may be. Waits for nobody but the proxy's own threads.
pub fn take(waiting: Waiting, host: &Arc<Host>, room: &Arc<WaitingRoom>) {
    let (name, peer) = (waiting.name().to_owned(), waiting.peer().clone());
    if let Some(why) = waiting.stranger() {
        return host.audit.stranger(&name, why);
    }
    let place = room.enter(&peer, waiting.cutter());
    let serving = Arc::clone(host);
    let serve = move || {
        let name = waiting.name().to_owned();
        if let Err(why) = receive(waiting, place, &serving) {
            serving.audit.stranger(&name, &why);
        }
    };
    let thread = std::thread::Builder::new().name("beeline-host".into());
    if thread.spawn(serve).is_err() {
        host.audit.stranger(&name, "there are too many threads");
    }
}

/// Receives the first message, and serves what it asks for. Returns the reason if that is nothing.
fn receive(waiting: Waiting, place: Place, host: &Arc<Host>) -> Result<(), String> {
    let (mut greeted, message) = first_message(waiting).map_err(|error| {
        // The error of a connection that was ended here says nothing.
        let ended = place.ended().map(str::to_owned);
        ended.unwrap_or_else(|| error.to_string())
    })?;
    let id = message.id;
    match message.body {
        Some(Request::Hello(hello)) if id != 0 => {
            let admitted = admit(hello.version, &greeted.peer, host);
            // Counts the session until it is over.
            let _session = admitted.map_err(|refusal| refuse(&greeted, id, refusal))?;
            place.leave()?;
            greeted.receiver.limit(frame::LONGEST);
            let patience = patience(hello.patience);
            let set = greeted.receiver.set_patience(patience);
            set.map_err(|error| error.to_string())?;
            let served = session::serve(greeted, id, hello.tool, host);
            served.map_err(|error| error.to_string())
        }
        Some(Request::Join(join)) if id != 0 => {
            let joined = host.lookup_channels.join(&join.token, &greeted);
            let channel = joined.map_err(|refusal| refuse(&greeted, id, refusal))?;
            place.leave()?;
            let why = channel.serve(id, &mut greeted, host.facts.possible_cpus);
            let name = &greeted.name;
            host.audit.line(name, "", "line", json!({ "why": why }));
            Ok(())
        }
        _ => Err("the conversation does not begin with one Hello".into()),
    }
}

/// Returns how long a host may be silent that asks for so many seconds.
fn patience(seconds: u32) -> Duration {
    let asked = Duration::from_secs(seconds.into());
    match seconds {
        0 => PATIENCE,
        _ => asked.clamp(Duration::from_secs(1), MOST_PATIENCE),
    }
}

fn first_message(waiting: Waiting) -> Result<(Greeted, HostMessage), frame::Error> {
    let (name, peer) = (waiting.name().to_owned(), waiting.peer().clone());
    let (mut receiver, sender) = conversation::open(waiting.accept()?);
    receiver.limit(LONGEST);
    let message = receiver.receive_metered(&mut Short)?;
    let message = message.ok_or_else(|| {
        let why = "it has ended without a greeting";
        io::Error::new(io::ErrorKind::UnexpectedEof, why)
    })?;
    let greeted = Greeted {
        receiver,
        sender,
        name,
        peer,
    };
    Ok((greeted, message))
}

/// Fails if the message is none that begins a conversation, which takes no more memory when it is
/// decoded than before.
struct Short;

impl Meter for Short {
    fn grows(&mut self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn has_come(&mut self, message: &[u8]) -> io::Result<()> {
        match memory::decoded(message) > 2 * message.len() + LONGEST {
            true => Err(io::Error::other("the message is no greeting")),
            false => Ok(()),
        }
    }
}

/// Returns a place among the sessions.
fn admit(version: u32, peer: &Peer, host: &Host) -> Result<Portion, Refusal> {
    if version != VERSION {
        let why = format!(
            "the host speaks version {version} of the protocol, the guest {VERSION}: both need the same beeline"
        );
        return Err(Refusal::new(libc::EPROTONOSUPPORT, why));
    }
    host.sessions.take(peer, 1).map_err(|exhausted| {
        let why = format!(
            "the proxy in the guest serves {} sessions of {peer} already, which is the most while others may come; end other \
             sessions with this guest, then try again",
            exhausted.0
        );
        Refusal::new(libc::EMFILE, why)
    })
}

/// Answers that it is refused, and ends the connection. Returns the reason.
fn refuse(greeted: &Greeted, id: u64, refusal: Refusal) -> String {
    let why = refusal.why.clone();
    let body = Some(Answer::Refused(refusal.into()));
    // It is over in any case.
    if greeted.sender.send(&GuestMessage { id, body }).is_ok() {
        greeted.sender.end_politely();
    }
    why
}
