//! A hooked site: its plan, its record in the target, and what runs there.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use beeline_agent::abi::{self, Site, SiteTrap};
use beeline_hook::{Direct, Filter, Kind, Plan, Trampoline, begins_function};
use beeline_inject::{Region, Stopped};

use super::Request;
use super::memory::TargetMemory;
use super::pads::Landing;
use crate::backend::Id;
use crate::detach::Beneath;
use crate::error::{Error, os};
use crate::kernel_uprobes::{Stored, Text, beside};
use crate::link::FilePlace;
use crate::map::MapObject;
use crate::patch;

/// A hooked site.
#[derive(Debug, Clone)]
pub(super) struct Hooked {
    /// The [`Site`], in the home pool.
    pub record: u64,
    pub plan: Plan,
    /// The pads that its jump leads to. `None` for a breakpoint, and for a jump that cannot be
    /// guarded at all.
    pub landing: Option<Landing>,
    /// Another session's patch that this one lies over.
    pub beneath: Option<Beneath>,
    /// The place in the file that is mapped there.
    pub origin: Origin,
    /// True if it begins, in the file, with a conditional branch.
    pub branches: bool,
    pub entry: Vec<Attached>,
    pub returns: Vec<Attached>,
    /// True if its trampoline serves one program alone: it calls that itself, or asks its filter.
    pub is_single: bool,
    /// True if its trampoline shows all registers; other trampolines are quicker.
    pub shows_registers: bool,
}

/// The way in which a trampoline serves a site with one program, quicker than by the agent.
#[derive(Debug, Clone, Copy)]
pub(super) enum Quick {
    /// It calls the program itself.
    Direct(Direct),
    /// It asks the program's filter before it calls the agent.
    Filtered(Filter),
}

/// A place in a file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Origin {
    pub inode: u64,
    /// Bytes from the start of the file.
    pub offset: u64,
}

impl Origin {
    pub fn of(place: &FilePlace) -> Self {
        let (_, inode) = place.inode();
        let offset = place.offset;
        Self { inode, offset }
    }

    /// True if the place is mapped at `address`.
    pub fn is_at(self, address: u64, regions: &[Region]) -> bool {
        let around = regions.iter().find(|region| region.contains(address));
        around.is_some_and(|region| {
            let offset = address - region.start + region.offset;
            (region.inode, offset) == (self.inode, self.offset)
        })
    }
}

#[derive(Debug, Clone)]
pub(super) struct Attached {
    pub id: Id,
    /// The [`abi::Link`].
    pub link: u64,
    /// The file offset of the semaphore that is to be raised.
    pub semaphore: Option<u64>,
    /// The maps that its program refers to directly.
    pub maps: Vec<Arc<MapObject>>,
}

impl Hooked {
    pub fn is_idle(&self) -> bool {
        self.entry.is_empty() && self.returns.is_empty()
    }

    /// True if all or some hits beside a kernel uprobe go unseen.
    pub fn is_blind_beside_kernel(&self) -> bool {
        if self.branches {
            return true;
        }
        match (&self.beneath, &self.landing) {
            (Some(below), _) => below.traps.iter().all(|trap| trap.resume == 0),
            (None, Some(landing)) => landing.guard.traps.iter().all(|trap| trap.resume == 0),
            (None, None) => self.plan.second.is_none(),
        }
    }

    pub fn runs(&self, link: Id) -> bool {
        self.entry
            .iter()
            .chain(&self.returns)
            .any(|attached| attached.id == link)
    }

    pub fn list(&mut self, of_returns: bool) -> &mut Vec<Attached> {
        if of_returns {
            &mut self.returns
        } else {
            &mut self.entry
        }
    }

    /// Returns where its trampoline may be.
    pub fn reach(&self) -> Option<RangeInclusive<u64>> {
        let reach = self.plan.reach()?;
        match &self.landing {
            Some(landing) => landing.reach(reach),
            None => Some(reach),
        }
    }

    /// Returns where threads trap beside a kernel uprobe, and where they go on.
    pub fn traps(&self, trampoline: &Trampoline) -> [SiteTrap; abi::SITE_TRAPS] {
        if let Some(beneath) = &self.beneath {
            return beneath.traps;
        }
        let of_guard = self.landing.iter().flat_map(|landing| &landing.guard.traps);
        let mut traps = [SiteTrap::default(); abi::SITE_TRAPS];
        for (place, trap) in traps.iter_mut().zip(of_guard.chain(&self.plan.second)) {
            let next = self.plan.site + trap.resume as u64;
            let mut moved = trampoline.resume_map.iter();
            let resume = moved.find(|(original, _)| *original == next);
            *place = SiteTrap {
                resume: resume.map_or(0, |(_, moved)| *moved),
                behind: trap.behind as u32,
                lost: trap.lost.words_of_pt_regs(),
                stack: trap.stack,
                is_early: (trap.resume == 0).into(),
            };
        }
        traps
    }

    /// Fails unless the code that a new site's patch goes over is what it was when the site was
    /// planned. Another session may have come or gone since.
    ///
    /// # Errors
    ///
    /// [`Error::Changed`] if it differs, [`Error::Target`] if the agent is not mapped.
    pub fn check_original(
        &self,
        stopped: &Stopped,
        memory: &TargetMemory,
        probed: &BTreeSet<u64>,
    ) -> Result<(), Error> {
        // SAFETY: the record was placed in the home pool as a `Site`.
        let record = unsafe { memory.environment()?.home.get::<Site>(self.record) };
        let Stored { original, file, .. } = Stored::of(record);
        let mut now = vec![0; original.len()];
        let is_read = stopped.read(record.address, &mut now).is_ok();
        let expected = beside(record.address, &now, original, original, probed);
        // Bytes that the kernel has put back in another session's patch come back with this one's.
        let below = Stored {
            patch: original,
            original: file,
            file,
        };
        let is_below = || record.layer > 0 && Text::of(&now, below) == Text::Mixed;
        let is_same = now == expected || is_below();
        match is_read && is_same {
            true => Ok(()),
            false => Err(Error::Changed {
                pid: memory.process.pid(),
                address: record.address,
            }),
        }
    }

    /// Stores a site's patch while the process is stopped.
    ///
    /// # Errors
    ///
    /// Those of [`patch::apply`], and [`Error::Target`] if the agent is not mapped.
    pub fn patch(
        &self,
        stopped: &mut Stopped,
        memory: &TargetMemory,
        trampoline: &Trampoline,
    ) -> Result<(), Error> {
        // SAFETY: the record was placed in the home pool as a `Site`.
        let record = unsafe { memory.environment()?.home.get::<Site>(self.record) };
        patch::apply(stopped, &self.plan, record, &trampoline.resume_map)
    }
}

/// Returns the code at a site, and the level of the handler that serves it.
pub(super) fn bytes_of(memory: &TargetMemory, record: u64) -> Result<(Bytes, u32), Error> {
    // SAFETY: the record was placed in the home pool as a `Site`.
    let record = unsafe { memory.environment()?.home.get::<Site>(record) };
    Ok(((record.original, record.file), record.level))
}

/// Has a site's record say that it is an exit, if a program is to run as its function returns
/// there.
pub(super) fn mark_exit(
    memory: &mut TargetMemory,
    request: &Request<'_>,
    record: u64,
) -> Result<(), Error> {
    let Some(flags) = request.place.exit_flags().filter(|_| request.retprobe) else {
        return Ok(());
    };
    // SAFETY: the record was placed as a `Site`. Without programs for the return, the agent does
    // not look at what changes.
    unsafe {
        memory
            .environment_mut()?
            .home
            .change::<Site>(record, |record| {
                record.flags = record.flags & abi::SITE_FUNCTION_ENTRY | flags;
            });
    }
    Ok(())
}

/// Places a site's record and lists it in the manifest.
pub(super) fn place_record(
    memory: &mut TargetMemory,
    plan: &Plan,
    (original, file): Bytes,
    beneath: Option<&Beneath>,
    level: u32,
) -> Result<u64, Error> {
    let environment = memory.environment_mut()?;
    let site = Site {
        target: environment.target as *const _,
        address: plan.site,
        entry: 0.into(),
        returns: 0.into(),
        return_entry: 0,
        body: 0,
        flags: if begins_function(&original) {
            abi::SITE_FUNCTION_ENTRY
        } else {
            0
        },
        next: environment.manifest().first_site.load(SeqCst),
        patched: 0.into(),
        original_len: patch_len(plan, beneath) as u32,
        original,
        patch: [0; abi::ORIGINAL_BYTES],
        file,
        layer: beneath.map_or(0, |below| below.layer),
        level,
        traps: Default::default(),
    };
    let site = environment.home.value(site).map_err(os("filling a pool"))?;
    // It is listed before it is patched: there must never be a patch that no session could find.
    environment
        .manifest()
        .first_site
        .store(site as usize, SeqCst);
    Ok(site)
}

/// The code at a site without this session's patch, and the file's.
pub(super) type Bytes = ([u8; abi::ORIGINAL_BYTES], [u8; abi::ORIGINAL_BYTES]);

/// Returns the number of bytes that a site's patch overwrites.
fn patch_len(plan: &Plan, beneath: Option<&Beneath>) -> usize {
    match (&plan.kind, beneath) {
        (Kind::Jump, _) => plan.window_len,
        (Kind::Breakpoint { .. }, Some(below)) => below.patch.len(),
        (Kind::Breakpoint { .. }, None) => plan.breakpoint_patch().len(),
    }
}
