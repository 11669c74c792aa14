//! Commands on elements of maps: the calls that a tool makes most.
//!
//! For the short ones, no thread here sleeps until the guest has answered. Waking a thread takes
//! longer than all else that such a call needs, so the thread that receives the answer gives it to
//! the tool. That thread must not wait, because no other receives; answers that may take time are
//! given by the thread that asked.

use std::sync::Arc;

use beeline_supervisor::{Answer, Memory, Reply};
use beeline_uapi::{Command, Errno};
use beeline_vm_protocol::layout::{Layout, long_at, number_at};
use beeline_vm_protocol::messages::guest_message::Body as Said;
use beeline_vm_protocol::messages::host_message::Body as Asked;
use beeline_vm_protocol::messages::{Content, LookUp};

use crate::Handler;
use crate::attr::Taken;
use crate::commands::{EPROTO, value_of};
use crate::connection::Connection;
use crate::objects::Object;

/// The bytes of an attribute with a map, a key and a value. Fields behind them, flags first, can
/// ask for more than a value.
const LOOK_UP: usize = 24;
/// The most bytes of a message, or of a value, that take no time.
const SHORT: usize = 4096;

impl Handler<'_> {
    /// Carries out a command on elements of a map.
    pub(super) fn on_elements(
        &self,
        map: &Arc<Object>,
        command: Command,
        layout: Layout,
        attr: Vec<u8>,
    ) -> Answer {
        self.guest.rings.store_for(map, self);
        let change = self.begin_change(command);
        if let Some(answer) = self.walk(command, map, &attr)? {
            return Ok(answer);
        }
        if command == Command::MAP_LOOKUP_ELEM
            && let Some(answer) = self.look_up(map, &attr)?
        {
            return Ok(answer);
        }
        let taken = Taken::new(self, command, layout, attr, Some(map))?;
        let is_change = matches!(command, Command::MAP_UPDATE_ELEM | Command::MAP_DELETE_ELEM);
        if !is_change || taken.len() > SHORT {
            let done = self.ask_bpf(taken.message.clone())?;
            drop(change);
            taken.give_back(&self.memory, self.args[1], &done)?;
            let say = |line: String| self.guest.connection.say(&line);
            return value_of(&done, layout, say).map(Reply::Value);
        }
        // Only a number comes back.
        let (request, connection) = (Asked::Bpf(taken.message), self.connection());
        self.ask_then(request, move |_, said| {
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
        let (key, value) = (long_at(given, 8), long_at(given, 16));
        let request = LookUp {
            handle: map.handle,
            key: self.memory.bytes(key, facts.key_size as usize)?,
        };
        let len = facts.value_len(self.guest.welcome().possible_cpus);
        if request.key.len() > SHORT || len > SHORT || !self.memory.is_ready(value, len) {
            return Ok(None);
        }
        self.offer_line(map, number_at(given, 0) as i32, (request.key.len(), len));
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
        let (listener, call) = self.memory.of_call().ok_or(EPROTO)?;
        let give = move |said: Result<Said, Errno>| {
            let answer = said.and_then(|said| answer(&Memory::new(&listener, &call), said));
            // If this fails, the tool's thread has been killed.
            listener.answer(call.id, answer);
        };
        self.connection()
            .ask_then(request, give, &|| self.let_others_lead());
        Ok(Reply::Answered)
    }

    fn connection(&self) -> Arc<Connection> {
        Arc::clone(&self.guest.connection)
    }
}
