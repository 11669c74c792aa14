//! Going through a map: the next keys and their values are fetched many at a time, so that a tool that asks for one after the other
//! does not wait for the guest at each.
//!
//! A value that was fetched is given once, and only for a moment: what a tool reads is never older than that. Keys that the tool deletes
//! on its way stay known as steps, as it wants to go on from there.

use std::sync::Arc;
use std::sync::{MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use beeline_runtime::backend::Errno;
use beeline_wire::layout::{command, long_at};
use beeline_wire::messages::guest_message::Body as Said;
use beeline_wire::messages::host_message::Body as Asked;
use beeline_wire::messages::{self, Walked};

use super::Guest;
use super::commands::EPROTO;
use super::objects::Object;
use crate::call::Call;
use crate::notify::Reply;

const ENOENT: Errno = Errno(libc::ENOENT);
/// The oldest that a fetched element may be.
const FRESH: Duration = Duration::from_millis(100);
/// Elements fetched at the first step of a walk, which may be its only one, and at later ones.
const FIRST_FETCH: u32 = 16;
const FETCH: u32 = 4096;
/// Bytes of one fetch.
const FETCH_BYTES: usize = 256 << 10;

/// Where a tool is when it goes through a map.
#[derive(Default)]
pub(super) struct Walk {
    steps: Vec<Step>,
    /// The step that was given last.
    at: usize,
    /// The last step is the map's last.
    end: bool,
    fetched: Option<Instant>,
}

struct Step {
    key: Vec<u8>,
    /// Until it has been given, or may have changed.
    value: Option<Vec<u8>>,
}

impl Walk {
    fn is_fresh(&self) -> bool {
        self.fetched.is_some_and(|then| then.elapsed() < FRESH)
    }

    /// The step with a key; most often that which was given last, or the one before.
    fn find(&self, key: &[u8]) -> Option<usize> {
        let near = self.at.saturating_sub(1)..self.steps.len().min(self.at + 2);
        let is_it = |&step: &usize| self.steps[step].key == key;
        near.into_iter()
            .find(is_it)
            .or_else(|| (0..self.steps.len()).find(is_it))
    }

    fn new(walked: Walked, key_len: usize, value_len: usize) -> Self {
        let keys = walked.keys.chunks_exact(key_len);
        let values = walked.values.chunks_exact(value_len.max(1));
        let steps = keys.zip(values).map(|(key, value)| Step {
            key: key.to_vec(),
            value: Some(value.to_vec()),
        });
        Self {
            steps: steps.collect(),
            at: 0,
            end: walked.end,
            fetched: Some(Instant::now()),
        }
    }
}

impl Call<'_, Guest> {
    /// Answers a command on a map from what was fetched, and fetches more. `None` if it has to be carried out as it is.
    pub(super) fn walk(
        &self,
        number: u32,
        map: &Arc<Object>,
        attr: &[u8],
    ) -> Result<Option<Reply>, Errno> {
        let Some(facts) = map.facts else {
            return Ok(None);
        };
        if !facts.is_gone_through() {
            return Ok(None);
        }
        let key_len = facts.key_size as usize;
        let value_len = facts.value_len(self.door.welcome().possible_cpus);
        let (key, value) = (long_at(attr, 8), long_at(attr, 16));
        let read_key = || self.memory.bytes(key, key_len);
        match number {
            command::MAP_GET_NEXT_KEY => {
                let after = match key {
                    0 => None,
                    _ => Some(read_key()?),
                };
                let next = self.next_key(map, after, (key_len, value_len))?;
                self.memory.write(value, &next)?;
                Ok(Some(Reply::Value(0)))
            }
            command::MAP_LOOKUP_ELEM if long_at(attr, 24) == 0 => {
                let key = read_key()?;
                let mut walk = self.walk_of(map);
                let known = walk.is_fresh().then(|| walk.find(&key)).flatten();
                let found = known.and_then(|step| walk.steps[step].value.take());
                drop(walk);
                let Some(found) = found else {
                    return Ok(None);
                };
                self.memory.write(value, &found)?;
                Ok(Some(Reply::Value(0)))
            }
            command::MAP_UPDATE_ELEM
            | command::MAP_DELETE_ELEM
            | command::MAP_LOOKUP_AND_DELETE_ELEM => {
                let key = read_key()?;
                let mut walk = self.walk_of(map);
                if let Some(step) = walk.find(&key) {
                    walk.steps[step].value = None;
                }
                Ok(None)
            }
            command::MAP_UPDATE_BATCH
            | command::MAP_DELETE_BATCH
            | command::MAP_LOOKUP_AND_DELETE_BATCH => {
                *self.walk_of(map) = Walk::default();
                Ok(None)
            }
            _ => Ok(None),
        }
    }

    fn next_key(
        &self,
        map: &Arc<Object>,
        after: Option<Vec<u8>>,
        lens: (usize, usize),
    ) -> Result<Vec<u8>, Errno> {
        let mut walk = self.walk_of(map);
        if let Some(after) = &after
            && walk.is_fresh()
            && let Some(step) = walk.find(after)
        {
            if let Some(next) = walk.steps.get(step + 1) {
                let next = next.key.clone();
                walk.at = step + 1;
                return Ok(next);
            }
            if walk.end {
                return Err(ENOENT);
            }
        }
        let most = match &after {
            None => FIRST_FETCH,
            Some(_) => FETCH,
        };
        let room = FETCH_BYTES / (lens.0 + lens.1).max(1);
        let request = messages::Walk {
            handle: map.handle,
            after: after.unwrap_or_default(),
            count: most.min(room.max(1) as u32),
        };
        let walked = match self.ask_at_once(Asked::Walk(request))? {
            Said::Walked(walked) => walked,
            _ => return Err(EPROTO),
        };
        *walk = Walk::new(walked, lens.0, lens.1);
        let first = walk.steps.first().ok_or(ENOENT)?;
        Ok(first.key.clone())
    }

    /// A map's walk, of which another thread may be asking for more.
    fn walk_of<'m>(&self, map: &'m Object) -> MutexGuard<'m, Walk> {
        match map.walk.try_lock() {
            Ok(walk) => walk,
            Err(TryLockError::Poisoned(walk)) => walk.into_inner(),
            Err(TryLockError::WouldBlock) => {
                self.let_others_lead();
                map.walk.lock().unwrap_or_else(PoisonError::into_inner)
            }
        }
    }
}
