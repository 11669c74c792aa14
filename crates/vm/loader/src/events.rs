//! Events from the guest: the records that programs write to rings, and the changes in their maps,
//! one after the other.

use std::collections::{HashMap, VecDeque};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use beeline_vm_protocol::messages::Credit;
use beeline_vm_protocol::messages::host_message::Body as Asked;

use crate::error::Error;
use crate::inbox::Heard;
use crate::load::Loaded;
use crate::map::{Elements, Map};
use crate::rings::{self, Ring};

/// The selection of what is watched.
#[derive(Debug, Clone)]
pub struct Watching {
    /// Maps, by their names. If it is empty, all rings and all maps with elements that can change.
    pub maps: Vec<String>,
    /// The interval between two looks at maps' elements.
    pub interval: Duration,
}

impl Default for Watching {
    /// Everything, each second.
    fn default() -> Self {
        Self {
            maps: Vec::new(),
            interval: Duration::from_secs(1),
        }
    }
}

/// An event in the guest. Maps are named by their places in [`Loaded::maps`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A program wrote a record.
    Record {
        /// The ring.
        map: usize,
        /// For a perf event array: the CPU that it was written on.
        cpu: Option<u32>,
        /// The record. For a perf event array some zeros may follow it, as it is stored in whole 8
        /// bytes.
        data: Vec<u8>,
    },
    /// Records of a perf event array had no room.
    Lost {
        /// The ring.
        map: usize,
        /// The CPU that they were written on.
        cpu: u32,
        /// Their number.
        count: u64,
    },
    /// An element is new, or has another value than at the last look.
    Set {
        /// The map.
        map: usize,
        /// Its key.
        key: Vec<u8>,
        /// Its value; see [`Map::value_len`].
        value: Vec<u8>,
        /// The value at the last look, if it was there.
        before: Option<Vec<u8>>,
    },
    /// An element is not there any more.
    Deleted {
        /// The map.
        map: usize,
        /// Its key.
        key: Vec<u8>,
        /// The value at the last look.
        before: Vec<u8>,
    },
}

/// The watched objects, and what has been seen of them.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// Rings by their handles.
    rings: HashMap<u32, Ring>,
    /// Maps by their places, and their elements at the last look.
    looks: Vec<(usize, Elements)>,
    interval: Duration,
    next_look: Option<Instant>,
    ready: VecDeque<Event>,
}

impl Loaded {
    /// Selects what is watched from now on: all records of rings, and of other maps whatever
    /// changes from what they hold now.
    ///
    /// Call it once, preferably before anything is attached. It is an error to name a map that does
    /// not exist, or that has nothing to watch.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuch`] if a named map does not exist, or has nothing to watch. [`Error::Map`] if
    /// the guest refuses. [`Error::File`] if it does not show its CPUs. [`Error::Lost`] and
    /// [`Error::Nonsense`] if it does not answer as it should.
    pub fn watch(&mut self, watching: &Watching) -> Result<(), Error> {
        let maps: Vec<usize> = match watching.maps.as_slice() {
            [] => (0..self.maps.len())
                .filter(|map| self.maps[*map].is_ring() || self.maps[*map].can_change())
                .collect(),
            names => names
                .iter()
                .map(|name| self.watchable(name))
                .collect::<Result<_, _>>()?,
        };
        for place in maps {
            let map = &self.maps[place];
            if map.is_ring() {
                for ring in rings::open(place, map, &self.guest)? {
                    self.watch.rings.insert(ring.handle(map), ring);
                }
            } else {
                let now = map.elements()?;
                self.watch.looks.push((place, now));
            }
        }
        self.watch.interval = watching.interval;
        self.watch.next_look = Some(Instant::now() + watching.interval);
        Ok(())
    }

    fn watchable(&self, name: &str) -> Result<usize, Error> {
        let has = |map: &&Map| map.is_ring() || map.can_change();
        let mut maps = self.maps.iter();
        let found = maps.position(|map| map.name() == name && has(&map));
        found.ok_or_else(|| Error::NoSuch {
            kind: "map to watch",
            name: name.into(),
            has: self
                .maps
                .iter()
                .filter(has)
                .map(|map| map.name().into())
                .collect(),
        })
    }

    /// Returns the next event; `None` if there is none until the deadline, or the wait has been
    /// [interrupted](crate::Interrupter). Maps are looked at meanwhile when it is time.
    ///
    /// # Errors
    ///
    /// Those of [`Self::look`]. [`Error::Lost`] once the connection has ended, [`Error::Nonsense`]
    /// if the guest sends records that make no sense, or more than it may.
    pub fn next_event(&mut self, deadline: Option<Instant>) -> Result<Option<Event>, Error> {
        loop {
            if let Some(event) = self.watch.ready.pop_front() {
                return Ok(Some(event));
            }
            let next_look = self
                .watch
                .next_look
                .filter(|_| !self.watch.looks.is_empty());
            let now = Instant::now();
            if next_look.is_some_and(|look| look <= now) {
                self.look()?;
                continue;
            }
            let until = deadline.into_iter().chain(next_look).min();
            let heard = match until {
                Some(until) => self
                    .guest
                    .heard
                    .recv_timeout(until.saturating_duration_since(now)),
                None => self
                    .guest
                    .heard
                    .recv()
                    .map_err(|_| RecvTimeoutError::Disconnected),
            };
            match heard {
                Ok(heard) => {
                    if self.take(heard)? {
                        return Ok(None);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                        return Ok(None);
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return Err(self.guest.line.lost()),
            }
        }
    }

    /// Looks at the watched maps now. Their changes are the next events.
    ///
    /// # Errors
    ///
    /// Those of [`Map::elements`].
    pub fn look(&mut self) -> Result<(), Error> {
        for (place, known) in &mut self.watch.looks {
            let now = self.maps[*place].elements()?;
            self.watch.ready.extend(changes(*place, known, &now));
            *known = now;
        }
        self.watch.next_look = Some(Instant::now() + self.watch.interval);
        Ok(())
    }

    /// Takes in a message. Returns whether it was an interruption.
    fn take(&mut self, heard: Heard) -> Result<bool, Error> {
        match heard {
            Heard::Records(handle, data) => {
                let Some(ring) = self.watch.rings.get(&handle) else {
                    return Ok(false);
                };
                self.watch.ready.extend(ring.records(&data)?);
                let bytes = data.len() as u64;
                self.guest.inbox.allow(handle, bytes);
                let client = &self.guest.line.client;
                client.tell(Asked::Credit(Credit { handle, bytes }));
                Ok(false)
            }
            Heard::Excess => Err(Error::Nonsense("more records than it was allowed to send")),
            Heard::Lost => Err(self.guest.line.lost()),
            Heard::Interrupt => Ok(true),
        }
    }
}

/// Returns the changes from one look to the next, in the order of keys.
fn changes(map: usize, before: &Elements, now: &Elements) -> Vec<Event> {
    let mut changes = Vec::new();
    for (key, value) in now {
        let known = before.get(key);
        if known != Some(value) {
            changes.push(Event::Set {
                map,
                key: key.clone(),
                value: value.clone(),
                before: known.cloned(),
            });
        }
    }
    for (key, value) in before {
        if !now.contains_key(key) {
            changes.push(Event::Deleted {
                map,
                key: key.clone(),
                before: value.clone(),
            });
        }
    }
    changes.sort_by(|a, b| key_of(a).cmp(key_of(b)));
    changes
}

fn key_of(event: &Event) -> &[u8] {
    match event {
        Event::Set { key, .. } | Event::Deleted { key, .. } => key,
        Event::Record { .. } | Event::Lost { .. } => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn elements(pairs: &[(u8, u8)]) -> Elements {
        let pairs = pairs.iter();
        pairs
            .map(|(key, value)| (vec![*key], vec![*value]))
            .collect()
    }

    #[test]
    fn changes_are_what_is_new_what_differs_and_what_is_gone() {
        let before = elements(&[(1, 1), (2, 2), (3, 3)]);
        let now = elements(&[(1, 1), (2, 9), (4, 4)]);
        let set = |key, value, before: Option<u8>| Event::Set {
            map: 5,
            key: vec![key],
            value: vec![value],
            before: before.map(|before| vec![before]),
        };
        let gone = Event::Deleted {
            map: 5,
            key: vec![3],
            before: vec![3],
        };
        assert_eq!(
            changes(5, &before, &now),
            [set(2, 9, Some(2)), gone, set(4, 4, None)]
        );
        assert_eq!(changes(5, &now, &now), []);
    }
}
