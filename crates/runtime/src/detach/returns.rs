//! Restoring the return addresses that a session has changed on threads' stacks.

use std::collections::BTreeMap;
use std::mem::offset_of;

use beeline_agent::returns::{Entry, ReturnTable, depth_of};
use beeline_inject::Stopped;

use super::Presence;
use crate::error::Error;

/// An entry of a return table, see [`Entry`].
#[derive(Debug)]
struct Watched {
    place: u64,
    depth: u64,
    address: u64,
    hijack: u64,
}

impl Presence {
    /// Restores the return addresses that calls in progress have on their stacks, or that another
    /// session has saved from there.
    pub(super) fn restore_returns(
        &self,
        stopped: &mut Stopped,
        others: &[Presence],
    ) -> Result<(), Error> {
        if self.private.is_none() {
            return Ok(());
        }
        for (slot, mut watched) in self.watched_returns(stopped)? {
            watched.sort_unstable_by_key(|entry| entry.depth);
            let (Some(first), Some(last)) = (watched.first(), watched.last()) else {
                continue;
            };
            let mut now = [0; 8];
            // A stale entry's stack may be gone, or hold something else by now.
            if stopped.read(slot, &mut now).is_ok() && u64::from_ne_bytes(now) == last.hijack {
                stopped.write(slot, &first.address.to_ne_bytes())?;
                continue;
            }
            for other in others {
                let over = other
                    .watched_returns(stopped)?
                    .remove(&slot)
                    .unwrap_or_default();
                if let Some(entry) = over.iter().find(|entry| entry.address == last.hijack) {
                    stopped.write(
                        entry.place + offset_of!(Entry, address) as u64,
                        &first.address.to_ne_bytes(),
                    )?;
                }
            }
        }
        Ok(())
    }

    /// Returns the return table by stack slot.
    fn watched_returns(&self, stopped: &Stopped) -> Result<BTreeMap<u64, Vec<Watched>>, Error> {
        let mut table = vec![0u8; size_of::<ReturnTable>()];
        stopped.read(self.manifest.returns as u64, &mut table)?;
        let mut slots: BTreeMap<u64, Vec<Watched>> = BTreeMap::new();
        for place in ReturnTable::places() {
            let Some(entry) = table.get(place..place + size_of::<Entry>()) else {
                continue;
            };
            let word = |field: usize| {
                u64::from_ne_bytes(entry[field..][..8].try_into().unwrap_or_default())
            };
            let slot = word(offset_of!(Entry, key));
            let depth = depth_of(word(offset_of!(Entry, state)));
            if slot != 0 && depth != 0 {
                slots.entry(slot).or_default().push(Watched {
                    place: self.manifest.returns as u64 + place as u64,
                    depth,
                    address: word(offset_of!(Entry, address)),
                    hijack: word(offset_of!(Entry, hijack)),
                });
            }
        }
        Ok(slots)
    }
}
