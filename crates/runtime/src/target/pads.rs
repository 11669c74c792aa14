//! Landing pads: the places that the jumps at sites lead to.
//!
//! A guarded jump ([`beeline_hook::Guard`]) cannot lead just anywhere, because part of its
//! displacement stands for something else. So it leads to a *pad*, a jump at a suitable place,
//! which leads on to the trampoline. All pads of a target are in one memory file, which is mapped
//! wherever pads are needed; only pages with pads in them take memory.

use std::collections::BTreeMap;
use std::mem::offset_of;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use beeline_agent::abi;
use beeline_hook::{Guard, JUMP_LEN, Plan, reach};
use beeline_inject::{MapFlags, Mapping, Process, Region};

use super::Hold;
use super::mapping::{OURS, READ_EXECUTE, mapping, misplaced};
use super::memory::TargetMemory;
use crate::environment::manifest;
use crate::error::{Error, os};
use crate::liveness::SessionId;
use crate::memory::{Memory, PAGE};
use crate::shared::Shared;
use crate::trampoline_pool::POOL_BYTES;

/// A target's pads.
#[derive(Debug)]
pub(super) struct Pads {
    file: Memory,
    /// The addresses where the file is mapped.
    bases: Vec<u64>,
    /// The jumps, by their offsets in the file.
    taken: BTreeMap<u64, [u8; JUMP_LEN]>,
    /// The pads of each site that there ever was. They belong to the site for good, as a thread may
    /// be about to run one.
    known: BTreeMap<u64, Landing>,
}

/// The pads of one site.
#[derive(Debug, Clone)]
pub(super) struct Landing {
    pub guard: Guard,
    /// The pad that the jump leads to.
    pub pad: u64,
    /// The pads that it leads to while there is or was a kernel uprobe inside it.
    others: Vec<u64>,
    /// True if all of those could be placed.
    pub is_whole: bool,
}

/// The kernel uprobes that a jump must withstand. It withstands others as far as there is room for
/// the pads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cover {
    /// At each instruction that it lies over.
    Whole,
    /// At each instruction that does not begin at its last byte: an `int3` there leads far away.
    Near,
    /// At the first instruction.
    Start,
}

impl Cover {
    /// True if a pad is needed at `changed`, the target of a changed jump that otherwise leads to
    /// `pad`.
    fn needs(self, changed: u64, pad: u64) -> bool {
        match self {
            Cover::Whole => true,
            // The last byte is the displacement's highest.
            Cover::Near => changed.abs_diff(pad) < 1 << 24,
            Cover::Start => false,
        }
    }
}

impl Landing {
    fn all(&self) -> impl Iterator<Item = u64> {
        std::iter::once(self.pad).chain(self.others.iter().copied())
    }

    /// Returns the addresses from which a trampoline can be reached.
    pub fn reach(&self, from: RangeInclusive<u64>) -> Option<RangeInclusive<u64>> {
        let narrowed = |(low, high): (u64, u64), pad| {
            let near = reach(pad);
            (low.max(*near.start()), high.min(*near.end()))
        };
        let (low, high) = self.all().fold(from.into_inner(), narrowed);
        (low <= high).then_some(low..=high)
    }
}

/// The size of a pad in bytes.
const PAD: u64 = JUMP_LEN as u64;
/// Bytes left free at the start of the file, for the manifest.
const HEAD: u64 = PAGE as u64;
const LEN: u64 = POOL_BYTES as u64;
/// The least distance between the starts of mappings around addresses that are needed together.
const SHIFT: u64 = 32 * PAGE as u64;
/// The number of places that are tried for one guard in one mapping, if what else is needed does
/// not fit with them.
const TRIES: usize = 8;

impl Pads {
    /// Creates the file of a target's pads. It is mapped nowhere yet.
    ///
    /// # Errors
    ///
    /// [`Error::Os`] if the file cannot be created.
    pub fn new(shared: &Shared) -> Result<Self, Error> {
        let file = Self::file().map_err(os("creating a pool"))?;
        // SAFETY: the file is longer, no other process has it yet, and its start is aligned.
        unsafe {
            file.base()
                .cast::<abi::Manifest>()
                .write(manifest(shared, None))
        };
        Ok(Self {
            file,
            bases: Vec::new(),
            taken: BTreeMap::new(),
            known: BTreeMap::new(),
        })
    }

    fn file() -> std::io::Result<Memory> {
        let file = Memory::new(&SessionId::own().name("trampolines"), POOL_BYTES)?;
        file.seal_for_others()?;
        Ok(file)
    }

    /// Creates the same pads for a forked child, in a file of its own.
    ///
    /// # Errors
    ///
    /// Those of [`Memory::new`] and [`Memory::seal_for_others`].
    pub fn fork(&self) -> std::io::Result<Self> {
        let file = Self::file()?;
        // SAFETY: both mappings are longer, and no other process has the new one yet.
        unsafe {
            let head = file.base();
            head.copy_from_nonoverlapping(self.file.base(), HEAD as usize);
        }
        let copy = Self {
            file,
            bases: self.bases.clone(),
            taken: self.taken.clone(),
            known: self.known.clone(),
        };
        copy.taken
            .iter()
            .for_each(|(at, jump)| copy.store(*at, jump));
        Ok(copy)
    }

    /// Returns mappings of the file at its places, over whatever is there now.
    pub fn replaced(&self) -> impl Iterator<Item = Mapping<'_>> {
        self.bases.iter().map(|base| Mapping {
            address: *base,
            flags: OURS | MapFlags::FIXED,
            ..mapping(self.file.file(), POOL_BYTES, READ_EXECUTE)
        })
    }

    /// Returns the addresses where the file is mapped.
    pub fn bases(&self) -> impl Iterator<Item = u64> {
        self.bases.iter().copied()
    }

    /// Finds places for the pads of a jump, and maps what is missing.
    ///
    /// Returns `None` if there is no room; the jump cannot be guarded then.
    ///
    /// # Errors
    ///
    /// [`Error::Changed`] if something was mapped at a chosen place meanwhile, [`Error::Target`] if
    /// the agent is not mapped or the process runs another program by now, [`Error::Inject`] if the
    /// process cannot be stopped or nothing can be mapped into it.
    pub fn find_landing(
        &mut self,
        memory: &TargetMemory,
        plan: &Plan,
        cover: Cover,
        hold: &mut Hold<'_>,
    ) -> Result<Option<Landing>, Error> {
        let known = self.known.get(&plan.site);
        let serves = |known: &&Landing| {
            (known.is_whole || cover != Cover::Whole) && plan.guards.contains(&known.guard)
        };
        if let Some(known) = known.filter(serves) {
            return Ok(Some(known.clone()));
        }
        let regions = hold.regions(&memory.process)?;
        let search = Search {
            process: &memory.process,
            pads: self,
            regions: &regions,
            plan,
            cover,
        };
        let Some((landing, draft)) = search.run()? else {
            return Ok(None);
        };
        let scratch = memory.environment()?.private.scratch();
        let mappings = draft.bases.iter().map(|base| Mapping {
            address: *base,
            flags: OURS | MapFlags::FIXED_NOREPLACE,
            ..mapping(self.file.file(), POOL_BYTES, READ_EXECUTE)
        });
        let mappings: Vec<_> = mappings.collect();
        if !mappings.is_empty() {
            hold.with(&memory.process, |stopped| {
                memory.check_same(stopped)?;
                let placed = stopped.map_files_through(scratch, &mappings);
                placed.map_err(|error| misplaced(error, &mappings))
            })?;
        }
        drop(mappings);
        self.bases.extend(&draft.bases);
        // No thread gets there yet.
        let reserved = draft
            .taken
            .into_iter()
            .map(|offset| (offset, [0; JUMP_LEN]));
        self.taken.extend(reserved);
        self.known.insert(plan.site, landing.clone());
        Ok(Some(landing))
    }

    /// Makes the pads of a site lead to a trampoline. The process must be stopped.
    ///
    /// The pads that only a changed jump leads to also report that the site should be looked at.
    ///
    /// # Errors
    ///
    /// [`Error::Target`] if a pad cannot reach the trampoline, [`Error::Os`] if the pool near it is
    /// full.
    pub fn aim(
        &mut self,
        memory: &mut TargetMemory,
        landing: &Landing,
        trampoline: u64,
    ) -> Result<(), Error> {
        let pid = memory.process.pid();
        let notice = match landing.others.is_empty() {
            true => trampoline,
            false => write_notice(memory, trampoline)?,
        };
        for pad in landing.all() {
            let to = if pad == landing.pad {
                trampoline
            } else {
                notice
            };
            let jump = beeline_hook::jump_patch(pad, JUMP_LEN, to);
            let jump = jump.map_err(|why| Error::Target {
                pid,
                why: why.to_string(),
            })?;
            let (Some(offset), Ok(jump)) = (self.offset(pad), jump.try_into()) else {
                continue;
            };
            self.store(offset, &jump);
            self.taken.insert(offset, jump);
        }
        Ok(())
    }

    fn store(&self, offset: u64, jump: &[u8; JUMP_LEN]) {
        assert!(offset + PAD <= LEN, "a pad outside its file");
        // SAFETY: the place is inside the mapping, and this process has no references into it. The
        // target gets here through jumps that are stored later, or is stopped.
        unsafe {
            let place = self.file.base().add(offset as usize);
            place.copy_from_nonoverlapping(jump.as_ptr(), jump.len());
        }
    }

    /// Returns the offset in the file of a mapped address.
    fn offset(&self, address: u64) -> Option<u64> {
        offset_among(self.bases.iter(), address)
    }
}

fn offset_among<'a>(mut bases: impl Iterator<Item = &'a u64>, address: u64) -> Option<u64> {
    bases.find_map(|base| {
        let offset = address.checked_sub(*base)?;
        (HEAD..=LEN - PAD).contains(&offset).then_some(offset)
    })
}

/// The mappings and places that are going to be taken, if all works out.
#[derive(Default, Clone)]
struct Draft {
    bases: Vec<u64>,
    taken: Vec<u64>,
}

/// A search for places for the pads of one site.
struct Search<'a> {
    process: &'a Process,
    pads: &'a Pads,
    regions: &'a [Region],
    plan: &'a Plan,
    cover: Cover,
}

impl Search<'_> {
    fn run(&self) -> Result<Option<(Landing, Draft)>, Error> {
        for guard in &self.plan.guards {
            for base in &self.pads.bases {
                if let Some(found) = self.within(guard, *base, &Draft::default())? {
                    return Ok(Some(found));
                }
            }
            let mut draft = Draft::default();
            let base = match guard.fixed {
                [Some(_), Some(_), Some(_), Some(_)] => {
                    let (low, high) = reach(self.plan.site).into_inner();
                    let only = guard.targets(self.plan.site, low, high).next();
                    only.map_or(Ok(None), |only| self.base_around(only, &draft))?
                }
                _ => self.base_near(&draft)?,
            };
            let Some(base) = base else { continue };
            draft.bases.push(base);
            if let Some(found) = self.within(guard, base, &draft)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Finds a pad in one mapping together with all others that it needs.
    fn within(
        &self,
        guard: &Guard,
        base: u64,
        draft: &Draft,
    ) -> Result<Option<(Landing, Draft)>, Error> {
        let site = self.plan.site;
        let (nearest, furthest) = reach(site).into_inner();
        let low = nearest.max(base + HEAD);
        let high = furthest.min(base + LEN - PAD);
        let mut tries = 0;
        for pad in guard.targets(site, low, high) {
            let mut draft = draft.clone();
            if !self.take(pad, &mut draft) {
                continue;
            }
            let wanted = guard.variants(site, pad);
            if let Some(others) = self.others(pad, &wanted, &mut draft)? {
                let landing = Landing {
                    guard: guard.clone(),
                    pad,
                    is_whole: others.len() == wanted.len(),
                    others,
                };
                return Ok(Some((landing, draft)));
            }
            tries += 1;
            if tries == TRIES {
                break;
            }
        }
        Ok(None)
    }

    /// Takes the places of further pads of a site as far as they are available. Returns `None` if
    /// one that is needed is not.
    fn others(
        &self,
        pad: u64,
        wanted: &[u64],
        draft: &mut Draft,
    ) -> Result<Option<Vec<u64>>, Error> {
        let mut others = Vec::new();
        for other in wanted {
            if self.find(*other, draft)? {
                others.push(*other);
            } else if self.cover.needs(*other, pad) {
                return Ok(None);
            }
        }
        Ok(Some(others))
    }

    /// Takes the place of a pad, which may not be mapped yet.
    fn find(&self, pad: u64, draft: &mut Draft) -> Result<bool, Error> {
        if !reach(self.plan.site).contains(&pad) {
            return Ok(false);
        }
        if self.take(pad, draft) {
            return Ok(true);
        }
        let Some(base) = self.base_around(pad, draft)? else {
            return Ok(false);
        };
        draft.bases.push(base);
        let is_taken = self.take(pad, draft);
        if !is_taken {
            draft.bases.pop();
        }
        Ok(is_taken)
    }

    /// Takes the place of a pad if it is free and is mapped or going to be.
    fn take(&self, pad: u64, draft: &mut Draft) -> bool {
        let mapped = self.pads.offset(pad);
        let Some(offset) = mapped.or_else(|| offset_among(draft.bases.iter(), pad)) else {
            return false;
        };
        let around = offset.saturating_sub(PAD - 1)..offset + PAD;
        let is_taken = self.pads.taken.range(around.clone()).next().is_some();
        if is_taken || draft.taken.iter().any(|one| around.contains(one)) {
            return false;
        }
        draft.taken.push(offset);
        true
    }

    /// Returns where the file can be mapped so that it contains the address.
    ///
    /// The offset differs each time, because addresses that are needed together often differ in
    /// their last byte alone.
    fn base_around(&self, address: u64, draft: &Draft) -> Result<Option<u64>, Error> {
        let mapped = self.pads.bases.len() + draft.bases.len();
        let shift = (mapped as u64 * SHIFT) % (LEN / 2);
        let low = (address + PAD).saturating_sub(LEN) + shift;
        let high = address.saturating_add(LEN - HEAD);
        self.gap(low..=high, draft)
    }

    /// Returns where the file can be mapped near the site.
    fn base_near(&self, draft: &Draft) -> Result<Option<u64>, Error> {
        self.gap(reach(self.plan.site), draft)
    }

    fn gap(&self, near: RangeInclusive<u64>, draft: &Draft) -> Result<Option<u64>, Error> {
        let mut regions = self.regions.to_vec();
        regions.extend(draft.bases.iter().map(|base| Region {
            start: *base,
            end: base + LEN,
            permissions: Default::default(),
            offset: 0,
            device: 0,
            inode: 0,
            path: PathBuf::new(),
        }));
        Ok(self.process.find_gap_among(&regions, near, LEN)?)
    }
}

/// Writes code near a trampoline that reports that a site is not as it was left, and then leads
/// to the trampoline.
fn write_notice(memory: &mut TargetMemory, trampoline: u64) -> Result<u64, Error> {
    let environment = memory.environment()?;
    let flag = environment.private.control() + offset_of!(abi::Control, disturbed) as u64;
    let session = environment.record().session as u64;
    let count = session + offset_of!(abi::Session, disturbed) as u64;
    let mut pools = memory.pools_mut();
    let Some(pool) = pools.find(|pool| pool.holds(trampoline)) else {
        return Ok(trampoline);
    };
    let at = pool.next(NOTICE_ALIGN);
    match beeline_hook::notice_stub(at, flag, count, trampoline) {
        Ok(stub) => pool
            .bytes(&stub, NOTICE_ALIGN)
            .map_err(os("filling a pool")),
        Err(_) => Ok(trampoline),
    }
}

const NOTICE_ALIGN: usize = 16;
