//! Fetches keys and values many at a time while a tool goes through a map, so that the tool does
//! not wait for the guest at each.
//!
//! A fetched value is given once, and only for a moment: a tool never reads anything older than
//! that. Keys that the tool deletes on its way stay known as steps to continue from, and are never
//! returned themselves. A tool that takes many steps takes them in its own process, once it has a
//! fast path ([`beeline_runtime::fast_path::Prefetch`]): the fetched data is shown there.

use std::mem::offset_of;
use std::sync::Arc;

use beeline_runtime::fast_path::{BYTES, DELETED, FREE, FRESH, Fetched, GIVEN, Prefetch, STEPS};
use beeline_supervisor::keys::key_of_descriptor;
use beeline_supervisor::{Call, Reply};
use beeline_uapi::attr::Element;
use beeline_uapi::fields::{u32_at, u64_at};
use beeline_uapi::{Command, Errno};
use beeline_vm_protocol::layout::changes_elements;
use beeline_vm_protocol::messages::guest_message::Body as Said;
use beeline_vm_protocol::messages::host_message::Body as Asked;
use beeline_vm_protocol::messages::{self, Iterated};
use parking_lot::MutexGuard;
use rustix::time::{ClockId, clock_gettime};

use super::kernel::Kernel;
use crate::Guest;
use crate::changes::{Change, Changes};
use crate::connection::EPROTO;
use crate::objects::{Object, Objects};

const ENOENT: Errno = Errno(libc::ENOENT);
/// The elements fetched at the first step of an iteration, which may be its only one, and at later
/// ones, or after an earlier iteration that went on.
const FIRST_FETCH: u32 = 16;
const FETCH: u32 = STEPS as u32;

/// A tool's place on its way through a map.
#[derive(Default)]
pub(crate) struct Iteration {
    /// The keys of all steps.
    keys: Vec<u8>,
    values: Vec<u8>,
    /// For each step [`FREE`], [`GIVEN`] or [`DELETED`], as far as is known here.
    given: Vec<u8>,
    lens: Lens,
    /// The step that was given last.
    at: usize,
    /// True if the last step is the map's last.
    is_whole: bool,
    /// The time of the fetch, in nanoseconds of `CLOCK_MONOTONIC`.
    fetched: u64,
    /// The [`Changes::era`](crate::changes::Changes::era) before the fetch.
    era: u64,
    /// True if the tool's processes may take steps themselves.
    is_shown: bool,
    /// True if the tool wanted more than is fetched at a first step, the last time that it went
    /// through the map.
    went_on: bool,
}

/// The bytes of a key, and of a value.
#[derive(Clone, Copy, Default)]
struct Lens {
    key: usize,
    value: usize,
}

impl Iteration {
    /// Fails if the guest's keys and values are not as long as the map's, or not as many.
    fn new(iterated: Iterated, lens: Lens) -> Result<Self, Errno> {
        let steps = iterated.keys.len() / lens.key.max(1);
        let is_whole = |bytes: &[u8], len: usize| steps.checked_mul(len) == Some(bytes.len());
        if !is_whole(&iterated.keys, lens.key) || !is_whole(&iterated.values, lens.value) {
            return Err(EPROTO);
        }
        Ok(Self {
            given: vec![FREE; steps],
            keys: iterated.keys,
            values: iterated.values,
            lens,
            is_whole: iterated.end,
            fetched: now(),
            ..Self::default()
        })
    }

    fn is_fresh(&self) -> bool {
        now().saturating_sub(self.fetched) < FRESH
    }

    fn key(&self, step: usize) -> Option<&[u8]> {
        self.keys.chunks_exact(self.lens.key.max(1)).nth(step)
    }

    /// Returns the step with a key; most often the one that was given last, or the one before.
    fn find(&self, key: &[u8]) -> Option<usize> {
        let near = self.at.saturating_sub(1)..self.given.len().min(self.at + 2);
        let is_it = |step: &usize| self.key(*step) == Some(key);
        near.into_iter()
            .find(is_it)
            .or_else(|| (0..self.given.len()).find(is_it))
    }
}

fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Takes the tool's steps through maps.
#[derive(Clone, Copy)]
pub(super) struct Steps<'a> {
    call: &'a Call<'a>,
    kernel: Kernel<'a>,
    objects: &'a Objects,
    changes: &'a Arc<Changes>,
    /// The part of the iterations that the tool's processes see.
    board: &'a Prefetch,
}

impl<'a> Steps<'a> {
    pub(super) fn new(guest: &'a Guest, call: &'a Call<'a>) -> Self {
        Self {
            call,
            kernel: Kernel::new(guest, call),
            objects: &guest.objects,
            changes: &guest.changes,
            board: &guest.prefetch,
        }
    }

    /// Answers a command on a map from fetched data, and fetches more. Returns `None` if the
    /// command must be carried out as it is.
    pub(super) fn answer(
        &self,
        command: Command,
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
        let value_len = facts.value_len(self.kernel.connection.welcome().possible_cpus);
        let (key, value) = (
            u64_at(attr, offset_of!(Element, key)),
            u64_at(attr, offset_of!(Element, value)),
        );
        let read_key = || self.call.memory.bytes(key, key_len);
        match command {
            Command::MAP_GET_NEXT_KEY => {
                let after = match key {
                    0 => None,
                    _ => Some(read_key()?),
                };
                let lens = Lens {
                    key: key_len,
                    value: value_len,
                };
                let fd = u32_at(attr, offset_of!(Element, map_fd)) as i32;
                let next = self.next_key(map, fd, after, lens)?;
                self.call.memory.write(value, &next)?;
                Ok(Some(Reply::Value(0)))
            }
            // Most look-ups are no part of an iteration: for these, the key is not read here.
            Command::MAP_LOOKUP_ELEM
                if u64_at(attr, offset_of!(Element, flags)) == 0
                    && self.iteration_of(map).is_fresh() =>
            {
                let Some(found) = self.take_value(map, &read_key()?, GIVEN) else {
                    return Ok(None);
                };
                self.call.memory.write(value, &found)?;
                Ok(Some(Reply::Value(0)))
            }
            Command::MAP_UPDATE_ELEM if facts.is_hash() => {
                // The value counts as given: it may be another one now.
                self.take_value(map, &read_key()?, GIVEN);
                Ok(None)
            }
            Command::MAP_DELETE_ELEM | Command::MAP_LOOKUP_AND_DELETE_ELEM if facts.is_hash() => {
                self.take_value(map, &read_key()?, DELETED);
                Ok(None)
            }
            // An element of a trie may be changed by another key as well.
            Command::MAP_UPDATE_ELEM | Command::MAP_DELETE_ELEM => {
                self.give_no_more(map);
                Ok(None)
            }
            _ if changes_elements(command) => {
                self.forget(map, &mut self.iteration_of(map));
                Ok(None)
            }
            _ => Ok(None),
        }
    }

    /// Begins a change that is about to be asked for; none if the command is not for one.
    pub(super) fn begin_change(&self, command: Command) -> Option<Change> {
        let change = changes_elements(command).then(|| self.changes.begin())?;
        if self.changes.have_names() {
            self.board.hide_all();
        }
        Some(change)
    }

    /// Returns a fetched value, if it is still good. It is not given again, for the reason that the
    /// mark states.
    fn take_value(&self, map: &Object, key: &[u8], mark: u8) -> Option<Vec<u8>> {
        let mut iteration = self.iteration_of(map);
        if !iteration.is_fresh() {
            return None;
        }
        let step = iteration.find(key)?;
        let before = std::mem::replace(&mut iteration.given[step], mark);
        // Code in the tool that takes steps looks only there.
        let is_shown = iteration.is_shown;
        let was_taken = is_shown && !self.board.mark(map.handle.into(), step, mark);
        let len = iteration.lens.value;
        let value = iteration.values.get(step * len..(step + 1) * len)?;
        let is_good = before == FREE && !was_taken && self.is_of_this_era(&iteration);
        is_good.then(|| value.to_vec())
    }

    /// Gives none of the values of an iteration any more. Its keys stay valid.
    pub(super) fn give_no_more(&self, map: &Object) {
        let mut iteration = self.iteration_of(map);
        if iteration.is_shown {
            self.board.hide(map.handle.into());
            iteration.is_shown = false;
        }
        iteration.given.fill(GIVEN);
    }

    fn next_key(
        &self,
        map: &Arc<Object>,
        fd: i32,
        after: Option<Vec<u8>>,
        lens: Lens,
    ) -> Result<Vec<u8>, Errno> {
        let mut iteration = self.iteration_of(map);
        if let Some(after) = &after
            && iteration.is_fresh()
            && let Some(step) = iteration.find(after)
        {
            let mut behind = step + 1..iteration.given.len();
            let next = behind.find(|step| iteration.given[*step] != DELETED);
            if let Some((next, key)) = next.and_then(|next| Some((next, iteration.key(next)?))) {
                let key = key.to_vec();
                iteration.at = next;
                self.show_iteration(map, fd, &mut iteration);
                return Ok(key);
            }
            if iteration.is_whole {
                return Err(ENOENT);
            }
        }
        // A tool that deletes each first key takes no other step.
        let step = iteration.at.max(self.board.step_of(map.handle.into()));
        iteration.went_on = match after {
            Some(_) => true,
            None => iteration.went_on && step + 1 >= FIRST_FETCH as usize,
        };
        let most = match iteration.went_on {
            false => FIRST_FETCH,
            true => FETCH,
        };
        let room = BYTES / (lens.key + lens.value).max(1);
        let request = messages::Iterate {
            handle: map.handle,
            after: after.unwrap_or_default(),
            count: most.min(room.max(1) as u32),
        };
        self.forget(map, &mut iteration);
        // The order matters: a change that begins between the two is of a later era.
        let era = self.changes.era();
        let is_doubtful = self.changes.are_under_way();
        let iterated = match self.kernel.ask_at_once(Asked::Iterate(request))? {
            Said::Iterated(iterated) => iterated,
            _ => return Err(EPROTO),
        };
        *iteration = Iteration {
            era,
            went_on: iteration.went_on,
            ..Iteration::new(iterated, lens)?
        };
        if is_doubtful {
            iteration.given.fill(GIVEN);
        }
        self.show_iteration(map, fd, &mut iteration);
        iteration.key(0).map(<[u8]>::to_vec).ok_or(ENOENT)
    }

    /// Returns whether fetched values may still be given. They may not if any map has been changed
    /// since by another name.
    fn is_of_this_era(&self, iteration: &Iteration) -> bool {
        iteration.era == self.changes.era()
    }

    /// Gives nothing of the iteration any more.
    fn forget(&self, map: &Object, iteration: &mut Iteration) {
        if iteration.is_shown {
            self.board.hide(map.handle.into());
        }
        *iteration = Iteration {
            went_on: iteration.went_on,
            ..Iteration::default()
        };
    }

    /// Lets the tool's processes take the steps from here on, if any can and they do not already.
    fn show_iteration(&self, map: &Arc<Object>, fd: i32, iteration: &mut Iteration) {
        if iteration.is_shown || !self.board.is_open() || !self.is_of_this_era(iteration) {
            return;
        }
        // The number may be another map's by now.
        let file = key_of_descriptor(self.call.tid, fd).ok();
        let Some(file) = file.filter(|file| self.objects.is_of(file, map)) else {
            return;
        };
        let fetched = Fetched {
            file: (file.device, file.inode),
            at: iteration.fetched,
            keys: &iteration.keys,
            values: &iteration.values,
            given: &iteration.given,
            is_whole: iteration.is_whole,
            step: iteration.at,
        };
        iteration.is_shown = self.board.show(map.handle.into(), &fetched);
        // A thread that changes a map by another name hides the iterations that it finds shown.
        if iteration.is_shown && !self.is_of_this_era(iteration) {
            self.board.hide(map.handle.into());
        }
    }

    /// Locks a map's iteration, for which another thread may be fetching more.
    fn iteration_of<'m>(&self, map: &'m Object) -> MutexGuard<'m, Iteration> {
        match map.iteration.try_lock() {
            Some(iteration) => iteration,
            None => {
                self.call.let_others_lead();
                map.iteration.lock()
            }
        }
    }
}
