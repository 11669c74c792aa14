//! The semaphores of the hooked sites: raised while programs are attached there.

use std::mem::offset_of;

use beeline_agent::abi::Control;
use beeline_inject::Region;

use super::Hold;
use super::sites::Sites;
use crate::error::Error;
use crate::semaphores::{Share, Shares, address_of};

/// Where a target stands with the semaphores of its sites.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum SemaphoreState {
    /// No site ever had one.
    #[default]
    Unused,
    /// Each is as the sites' programs want it.
    Settled,
    /// One is not mapped yet, or could not be changed.
    Pending,
}

impl Sites {
    /// Makes semaphores count the sites that programs with semaphores run at: each site once,
    /// however many programs there are, as in the kernel. Those that are not mapped yet are raised
    /// later.
    ///
    /// # Errors
    ///
    /// Those of [`Shares::store`], [`Error::Target`] if the process runs another program by now,
    /// [`Error::Inject`] if it cannot be stopped.
    pub fn settle_semaphores(&mut self, hold: &mut Hold<'_>) -> Result<(), Error> {
        if self.semaphores == SemaphoreState::Unused {
            return Ok(());
        }
        self.semaphores = SemaphoreState::Pending;
        let process = self.memory.process.clone();
        let private = self.memory.environment()?.private;
        let (wanted, all_there) = self.wanted_semaphores(&hold.regions(&process)?);
        let read = |address: u64, into: &mut [u8]| process.read_memory(address, into).is_ok();
        if !Shares::read(private.base, read).are(&wanted, read) {
            hold.with(&process, |stopped| {
                self.memory.check_same(stopped)?;
                wanted.store(stopped, private.base)
            })?;
        }
        if all_there {
            self.semaphores = SemaphoreState::Settled;
        }
        let place = private.control() + offset_of!(Control, awaits_data) as u64;
        process.write_memory(place, &u32::from(!all_there).to_ne_bytes())?;
        Ok(())
    }

    /// True if a semaphore is not as it is to be.
    pub fn has_pending_semaphores(&self) -> bool {
        self.semaphores == SemaphoreState::Pending
    }

    /// Returns the shares that the sites ask for, and whether all their semaphores are mapped.
    fn wanted_semaphores(&self, regions: &[Region]) -> (Shares, bool) {
        let (mut wanted, mut all_there) = (Shares::default(), true);
        for (address, site) in &self.hooked {
            let mut attached = site.entry.iter().chain(&site.returns);
            let Some(offset) = attached.find_map(|one| one.semaphore) else {
                continue;
            };
            let text = regions.iter().find(|region| region.contains(*address));
            let place = text.and_then(|text| Some((address_of(offset, text, regions)?, text)));
            let Some((place, text)) = place else {
                all_there = false;
                continue;
            };
            let share = wanted.0.entry(place).or_insert(Share {
                inode: text.inode,
                count: 0,
            });
            share.count = share.count.saturating_add(1);
        }
        (wanted, all_there)
    }
}
