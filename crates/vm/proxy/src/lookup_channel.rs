//! Look-up channels: further connections of a session, by which its tool only looks up elements of
//! maps.

use std::collections::HashMap;
use std::sync::Arc;

use beeline_vm_protocol::conversation::{Receiver, Sender};
use beeline_vm_protocol::look_up::{self, Asked};
use beeline_vm_protocol::messages::guest_message::Body as Answer;
use beeline_vm_protocol::messages::host_message::Body as Request;
use beeline_vm_protocol::messages::{Done, GuestMessage, HostMessage};
use beeline_vm_protocol::peer::Peer;
use parking_lot::{Mutex, MutexGuard};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::elements;
use crate::greeting::Greeted;
use crate::handles::Handles;
use crate::limits::{Limit, Portion};
use crate::refusal::Refusal;

/// The most channels of one session: a host has one for each of some processes of its tool, and
/// those of some that have just ended.
const MOST: usize = 16;
/// The most channels of all peers.
const MOST_OF_ALL: u64 = 64;
/// The most bytes of a channel's message: hosts look up short keys by channels.
const LONGEST: usize = 4 << 10;
/// Bytes of a token, too many to guess.
const TOKEN: usize = 16;

/// The secret that a channel's host must know.
pub type Token = [u8; TOKEN];

/// The sessions that channels may join.
#[derive(Debug)]
pub struct LookupChannels {
    sessions: Mutex<HashMap<Token, Joined>>,
    channels: Arc<Limit>,
}

impl Default for LookupChannels {
    fn default() -> Self {
        Self {
            sessions: Mutex::default(),
            channels: Limit::new(MOST_OF_ALL),
        }
    }
}

/// The channels of one session.
#[derive(Debug)]
struct Joined {
    /// The session's peer, which alone may join it.
    peer: Peer,
    handles: Arc<Handles>,
    /// Senders by numbers that are used once.
    channels: HashMap<u64, Sender>,
    last: u64,
}

/// Permission to join a session, as long as this lives; its channels end with it.
#[derive(Debug)]
pub struct Open<'a> {
    channels: &'a LookupChannels,
    token: Token,
}

impl LookupChannels {
    /// Lets a session be joined.
    ///
    /// # Errors
    ///
    /// Random numbers are not available.
    pub fn open(&self, handles: &Arc<Handles>, peer: &Peer) -> std::io::Result<Open<'_>> {
        let mut token = Token::default();
        getrandom(&mut token, GetRandomFlags::empty())?;
        let joined = Joined {
            peer: peer.clone(),
            handles: Arc::clone(handles),
            channels: HashMap::new(),
            last: 0,
        };
        self.sessions().insert(token, joined);
        Ok(Open {
            channels: self,
            token,
        })
    }

    /// Joins a session.
    ///
    /// # Errors
    ///
    /// `ENOENT` if the peer has none with that token, `EMFILE` if it has too many channels.
    pub fn join(&self, token: &[u8], greeted: &Greeted) -> Result<Place<'_>, Refusal> {
        let unknown = || Refusal::new(libc::ENOENT, "there is no such session to join");
        let token = Token::try_from(token).map_err(|_| unknown())?;
        let mut sessions = self.sessions();
        let joined = sessions.get_mut(&token);
        let joined = joined.filter(|joined| joined.peer == greeted.peer);
        let joined = joined.ok_or_else(unknown)?;
        let too_many = || Refusal::new(libc::EMFILE, "there are too many channels");
        if joined.channels.len() >= MOST {
            return Err(too_many());
        }
        let portion = self.channels.take(&greeted.peer, 1);
        let portion = portion.map_err(|_| too_many())?;
        joined.last += 1;
        let number = joined.last;
        joined.channels.insert(number, greeted.sender.clone());
        let handles = Arc::clone(&joined.handles);
        Ok(Place {
            channels: self,
            token,
            number,
            handles,
            _portion: portion,
        })
    }

    fn sessions(&self) -> MutexGuard<'_, HashMap<Token, Joined>> {
        self.sessions.lock()
    }
}

/// Answers a channel's first message, with the given id, and then its look-ups. Returns the reason
/// for which it has ended.
fn look_up(
    first: u64,
    receiver: &mut Receiver,
    sender: &Sender,
    handles: &Handles,
    cpus: u32,
) -> String {
    let mut sent = sender.send(&message(first, Ok(Answer::Done(Done {}))));
    let (mut key, mut answer) = (Vec::new(), look_up::Answer::default());
    loop {
        if let Err(error) = sent {
            return error.to_string();
        }
        let in_place = receiver.receive_in_place(|message| {
            let asked = Asked::read(message)?;
            key.clear();
            key.extend_from_slice(asked.key);
            let found = elements::look_up_into(asked.handle, &mut key, handles, cpus, &mut answer);
            Some((asked.id, found))
        });
        sent = match in_place {
            Ok(Some((id, Ok(())))) => sender.send_framed(answer.framed(id)),
            Ok(Some((id, Err(refusal)))) => sender.send(&message(id, Err(refusal))),
            // In pieces, or written otherwise.
            Ok(None) => match receiver.receive::<HostMessage>() {
                Ok(Some(HostMessage {
                    id,
                    body: Some(Request::LookUp(request)),
                })) if id != 0 => {
                    let found = elements::look_up(request, handles, cpus);
                    sender.send(&message(id, found.map(Answer::Content)))
                }
                Ok(Some(_)) => return "something else than a look-up".into(),
                Ok(None) => return "the host has ended it".into(),
                Err(error) => return error.to_string(),
            },
            Err(error) => return error.to_string(),
        };
    }
}

/// The place of a channel among its session's, until it ends.
#[derive(Debug)]
pub struct Place<'a> {
    channels: &'a LookupChannels,
    token: Token,
    number: u64,
    handles: Arc<Handles>,
    _portion: Portion,
}

impl Place<'_> {
    /// Serves the channel until it ends, or its session. `id` is its first message's. Returns the
    /// reason.
    pub fn serve(&self, id: u64, greeted: &mut Greeted, cpus: u32) -> String {
        let Greeted {
            receiver, sender, ..
        } = greeted;
        let _ends = Ends(sender);
        receiver.limit(LONGEST);
        if let Err(error) = receiver.bear_silence() {
            return error.to_string();
        }
        look_up(id, receiver, sender, &self.handles, cpus)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if let Some(joined) = self.channels.sessions().get_mut(&self.token) {
            joined.channels.remove(&self.number);
        }
    }
}

/// Ends a channel if its thread ends, even by a panic: the host would wait for its answer.
struct Ends<'a>(&'a Sender);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl Open<'_> {
    /// Returns the token that a channel needs to join.
    pub fn token(&self) -> &Token {
        &self.token
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        let joined = self.channels.sessions().remove(&self.token);
        for channel in joined
            .into_iter()
            .flat_map(|joined| joined.channels.into_values())
        {
            channel.end();
        }
    }
}

fn message(id: u64, answer: Result<Answer, Refusal>) -> GuestMessage {
    let body = answer.unwrap_or_else(|refusal| Answer::Refused(refusal.into()));
    let body = Some(body);
    GuestMessage { id, body }
}
