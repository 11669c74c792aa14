//! The inbox for what the guest sends on its own. Data are taken in at once, but no more than were
//! asked for.

use std::collections::HashMap;
use std::sync::mpsc::Sender;

use beeline_vm_protocol::messages::guest_message::Body as Said;
use parking_lot::{Mutex, MutexGuard};

/// A received message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// Records of a ring, by its handle.
    Records(u32, Vec<u8>),
    /// The guest has sent more than it was allowed; nothing more is taken from it.
    Excess,
    /// The connection has ended.
    Lost,
    /// The user wants the wait to end.
    Interrupt,
}

/// The number of bytes that the guest may still send, by the ring's handle. A guest that sends more
/// would fill the host's memory.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    allowed: Mutex<HashMap<u32, u64>>,
}

impl Inbox {
    /// Allows this many more bytes.
    pub(crate) fn allow(&self, handle: u32, bytes: u64) {
        let mut allowed = self.allowed();
        let room = allowed.entry(handle).or_default();
        *room = room.saturating_add(bytes);
    }

    /// Takes in what comes. It is called on the thread that receives, so nothing waits here.
    pub(crate) fn take(&self, said: Said, to: &Sender<Heard>) {
        let Said::Records(records) = said else {
            return;
        };
        let mut allowed = self.allowed();
        let Some(room) = allowed.get_mut(&records.handle) else {
            return;
        };
        let heard = match room.checked_sub(records.data.len() as u64) {
            Some(left) => {
                *room = left;
                Heard::Records(records.handle, records.data)
            }
            None => {
                allowed.clear();
                Heard::Excess
            }
        };
        // If it fails, no thread waits.
        let _ = to.send(heard);
    }

    fn allowed(&self) -> MutexGuard<'_, HashMap<u32, u64>> {
        self.allowed.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use beeline_vm_protocol::messages::Records;
    use std::sync::mpsc::channel;

    #[test]
    fn a_sender_beyond_its_credit_is_cut_off() {
        let (to, from) = channel();
        let inbox = Inbox::default();
        let say = |handle, len| {
            let data = vec![7; len];
            inbox.take(Said::Records(Records { handle, data }), &to);
        };
        say(1, 8); // without a request
        inbox.allow(1, 16);
        say(1, 8);
        say(1, 8);
        inbox.allow(1, 8);
        say(1, 8);
        say(1, 8); // too much
        say(1, 8);
        let heard: Vec<_> = from.try_iter().collect();
        let records = |heard: &Heard| matches!(heard, Heard::Records(1, data) if data.len() == 8);
        assert_eq!(heard.len(), 4, "{heard:?}");
        assert!(heard[..3].iter().all(records) && heard[3] == Heard::Excess);
    }
}
