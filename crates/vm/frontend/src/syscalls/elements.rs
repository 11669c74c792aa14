//! Commands on elements of maps: the calls that a tool makes most.
//!
//! For the short ones, no thread here sleeps until the guest has answered. Waking a thread takes
//! longer than all else that such a call needs, so the thread that receives the answer gives it to
//! the tool. That thread must not wait, because no other receives; answers that may take time are
//! given by the thread that asked.

use std::mem::offset_of;
use std::sync::Arc;

use beeline_supervisor::{Answer, Call, Memory, Reply};
use beeline_uapi::attr::Element;
use beeline_uapi::fields::{u32_at, u64_at};
use beeline_uapi::{Command, Errno, offset_behind};
use beeline_vm_protocol::messages::guest_message::Body as Said;
use beeline_vm_protocol::messages::host_message::Body as Asked;
use beeline_vm_protocol::messages::{Content, LookUp};

use super::forward::{BpfCall, Forward, value_of};
use super::lookup_channel::ChannelOffers;
use super::prefetch::Steps;
use crate::Guest;
use crate::connection::{Connection, EPROTO};
use crate::objects::Object;
use crate::rings::Rings;

/// The bytes of an attribute with a map, a key and a value. Fields behind them, flags first, can
/// ask for more than a value.
const LOOK_UP: usize = offset_behind!(Element, value);
/// The most bytes of a message, or of a value, that take no time.
const SHORT: usize = 4096;

/// Carries out commands on elements.
pub(super) struct Elements<'a> {
    call: &'a Call<'a>,
    connection: &'a Arc<Connection>,
    rings: &'a Rings,
    forward: Forward<'a>,
    steps: Steps<'a>,
    offers: ChannelOffers<'a>,
}

impl<'a> Elements<'a> {
    pub(super) fn new(guest: &'a Guest, call: &'a Call<'a>) -> Self {
        Self {
            call,
            connection: &guest.connection,
            rings: &guest.rings,
            forward: Forward::new(guest, call),
            steps: Steps::new(guest, call),
            offers: ChannelOffers::new(guest, call),
        }
    }

    /// Answers a command on elements of a map.
    pub(super) fn carry_out(&self, bpf: &BpfCall<'_>, map: &Arc<Object>) -> Answer {
        let command = bpf.command;
        self.rings.store_for(map, self.connection, self.call);
        let change = self.steps.begin_change(command);
        if let Some(answer) = self.steps.answer(command, map, bpf.attr)? {
            return Ok(answer);
        }
        if command == Command::MAP_LOOKUP_ELEM
            && let Some(answer) = self.look_up(map, bpf.attr)?
        {
            return Ok(answer);
        }
        let taken = self.forward.take(bpf)?;
        let is_change = matches!(command, Command::MAP_UPDATE_ELEM | Command::MAP_DELETE_ELEM);
        if !is_change || taken.len() > SHORT {
            let done = self.forward.ask(&taken)?;
            drop(change);
            return self.forward.give_back(&taken, &done).map(Reply::Value);
        }
        // Only a number comes back.
        let (layout, connection) = (taken.layout, Arc::clone(self.connection));
        self.ask_then(Asked::Bpf(taken.message), move |_, said| {
            // Dropped before the tool continues, which may want to fetch what it finds.
            drop(change);
            match said {
                Said::BpfDone(done) => {
                    let say = |line| connection.say_aside(line);
                    value_of(&done, layout, say).map(Reply::Value)
                }
                _ => Err(EPROTO),
            }
        })
    }

    /// Looks an element up by the shortest message. Returns `None` if there is none for the tool's
    /// request.
    fn look_up(&self, map: &Arc<Object>, attr: &[u8]) -> Result<Option<Reply>, Errno> {
        let (Some(facts), Some((given, others))) = (map.facts, attr.split_at_checked(LOOK_UP))
        else {
            return Ok(None);
        };
        if !facts.has_plain_elements() || others.iter().any(|byte| *byte != 0) {
            return Ok(None);
        }
        let (key, value) = (
            u64_at(given, offset_of!(Element, key)),
            u64_at(given, offset_of!(Element, value)),
        );
        let request = LookUp {
            handle: map.handle,
            key: self.call.memory.bytes(key, facts.key_size as usize)?,
        };
        let len = facts.value_len(self.connection.welcome().possible_cpus);
        if request.key.len() > SHORT || len > SHORT || !self.call.memory.is_ready(value, len) {
            return Ok(None);
        }
        let fd = u32_at(given, offset_of!(Element, map_fd)) as i32;
        self.offers.note(map, fd, (request.key.len(), len));
        let answer = self.ask_then(Asked::LookUp(request), move |memory, said| match said {
            Said::Content(Content { data, .. }) if data.len() == len => {
                memory.write(value, &data).map(|()| Reply::Value(0))
            }
            _ => Err(EPROTO),
        });
        answer.map(Some)
    }

    /// Sends a request; its answer becomes the call's.
    fn ask_then(
        &self,
        request: Asked,
        answer: impl FnOnce(&Memory<'_>, Said) -> Answer + Send + 'static,
    ) -> Answer {
        let (listener, call) = self.call.memory.of_call().ok_or(EPROTO)?;
        let give = move |said: Result<Said, Errno>| {
            let answer = said.and_then(|said| answer(&Memory::new(&listener, &call), said));
            // If this fails, the tool's thread has been killed.
            listener.answer(call.id, answer);
        };
        self.connection
            .ask_then(request, give, &|| self.call.let_others_lead());
        Ok(Reply::Answered)
    }
}
