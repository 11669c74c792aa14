//! The stubs that `syscall` instructions lead to, and the patches that lead there.

use std::fs::File;
use std::mem::offset_of;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use beeline_agent::abi::syscalls::{self, Move, Patch, Patches, Unhookable, WHY};
use beeline_hook::{CallPatch, CallPlan, CallSpec, CallStub, CommonCode, jump_target};
use beeline_inject::{Region, Stopped};

use super::super::TRAMPOLINE_BYTES;
use super::super::syscall_patches::StoredPatch;
use super::{Calls, STUB_ALIGN, reach_of};
use crate::error::{Error, os};
use crate::file_syscalls::{FileCalls, Layout, Part, StubSet};
use crate::memory::PAGE;
use crate::patch::{self, CodePatch};
use crate::target::memory::TargetMemory;
use crate::trampoline_pool::Pool;
use crate::vdso;

/// Stubs that stand in a process.
pub(super) struct Placed {
    pub set: Arc<StubSet>,
    /// The offset to add to every address of the set.
    bias: u64,
}

impl Placed {
    /// Returns the patches, and where they go.
    fn patches(&self) -> impl Iterator<Item = (u64, &CallPatch)> {
        let patches = self.set.patches.iter();
        patches.map(|patch| (patch.site.wrapping_add(self.bias), patch))
    }

    /// Returns the patches as they are stored.
    pub fn stored(&self) -> impl Iterator<Item = (u64, StoredPatch)> {
        let patches = self.patches().enumerate();
        patches.map(|(index, (site, _))| (site, StoredPatch::new(self.set.clone(), index)))
    }
}

/// Writes stubs into a target's pools.
pub(super) struct Stubs<'a> {
    pub memory: &'a mut TargetMemory,
    pub calls: &'a mut Calls,
}

impl Stubs<'_> {
    /// Writes a stub for each call of a mapping that can be hooked here and now.
    ///
    /// # Errors
    ///
    /// [`Error::Target`] if a stub cannot be emitted, [`Error::Os`] if a pool is full,
    /// [`Error::Inject`] if the process's memory cannot be opened.
    pub fn write(
        &mut self,
        region: &Region,
        file: &FileCalls,
        part: Part,
        unhookable: &mut Vec<Unhookable>,
    ) -> Result<Placed, Error> {
        let around = match file.hookable_within(region, part) {
            0 => None,
            _ => self.layout(region, part)?,
        };
        if let Some((pool, layout)) = &around
            && let Some(set) = file.written(layout)
            && let Some(placed) = self.write_again(*pool, set)?
        {
            return Ok(placed);
        }
        let plans = file.within(region, part);
        let mut stubs = self.write_anew(&plans, unhookable)?;
        if vdso::is_at(region) {
            spare_feigning(&mut stubs, unhookable);
        }
        let set = Arc::new(set_of(stubs, plans.len(), around));
        if set.layout.is_some() {
            file.remember(&set);
        }
        Ok(Placed { set, bias: 0 })
    }

    /// Returns a pool near a mapping's code, and the layout of everything around it.
    fn layout(&mut self, region: &Region, part: Part) -> Result<Option<(u64, Layout)>, Error> {
        let reach = reach_of(region);
        let near =
            |pool: &&Pool| pool.room() > TRAMPOLINE_BYTES && reach.contains(&pool.next(STUB_ALIGN));
        let Some(base) = self.memory.pools().find(near).map(Pool::base) else {
            return Ok(None);
        };
        let common = self.common_code(base)?.layout(base);
        let descriptor = self.calls.record.wrapping_sub(base);
        let pool = self.memory.pools().find(|pool| pool.base() == base);
        Ok(pool.map(|pool| {
            let layout = Layout {
                part,
                mapping: (region.offset, region.end - region.start),
                code: region.start.wrapping_sub(base),
                stubs: pool.next(STUB_ALIGN) - base,
                descriptor,
                common,
            };
            (base, layout)
        }))
    }

    /// Writes the stubs of another process with the same layout as this one.
    ///
    /// Returns `None` if there is no room, or the code is not what it was there. The code is
    /// compared here only if it has differed before, as [`store`] compares it in any case.
    fn write_again(&mut self, base: u64, set: Arc<StubSet>) -> Result<Option<Placed>, Error> {
        let bias = base.wrapping_sub(set.pool);
        let placed = Placed { set, bias };
        if self.calls.is_doubtful {
            let mut code = ProcessCode::of(self.memory.process.memory()?);
            let mut patches = placed.patches();
            if !patches.all(|(site, patch)| code.holds(site, &patch.original)) {
                return Ok(None);
            }
        }
        let bytes = &placed.set.bytes;
        let shift = |bytes: &mut [u8]| {
            for place in &placed.set.addresses {
                if let Some(word) = bytes.get_mut(*place..).and_then(<[u8]>::first_chunk_mut) {
                    *word = u64::from_le_bytes(*word).wrapping_add(bias).to_le_bytes();
                }
            }
        };
        let mut pools = self.memory.pools_mut();
        let pool = pools.find(|pool| pool.base() == base);
        let Some(pool) = pool.filter(|pool| pool.room() > bytes.len() + TRAMPOLINE_BYTES) else {
            return Ok(None);
        };
        pool.changed_bytes(bytes, STUB_ALIGN, shift)
            .map_err(os("filling a pool"))?;
        Ok(Some(placed))
    }

    /// Writes a stub for each plan, and returns the stubs with their addresses.
    fn write_anew(
        &mut self,
        plans: &[CallPlan],
        unhookable: &mut Vec<Unhookable>,
    ) -> Result<Vec<(u64, CallStub)>, Error> {
        let mut code = ProcessCode::of(self.memory.process.memory()?);
        let mut stubs = Vec::with_capacity(plans.len());
        for plan in plans {
            let mut original = plan.original();
            if !original.all(|(start, bytes)| code.holds(start, bytes)) {
                let why = "its code is not what the file holds: it is probed, or patched by somebody else";
                unhookable.push(spared_one(plan.call, why));
                continue;
            }
            match self.write_stub(plan)? {
                Some(stub) => stubs.push(stub),
                None => unhookable.push(spared_one(
                    plan.call,
                    "no free address range is near enough",
                )),
            }
        }
        Ok(stubs)
    }

    /// Writes a stub into a pool near it. Returns `None` if there is none near enough.
    fn write_stub(&mut self, plan: &CallPlan) -> Result<Option<(u64, CallStub)>, Error> {
        let Some(reach) = plan.reach() else {
            return Ok(None);
        };
        let near =
            |pool: &Pool| pool.room() > TRAMPOLINE_BYTES && reach.contains(&pool.next(STUB_ALIGN));
        let Some(base) = self.memory.pools().find(|pool| near(pool)).map(Pool::base) else {
            return Ok(None);
        };
        let common = self.common_code(base)?;
        let (pid, descriptor) = (self.memory.process.pid(), self.calls.record);
        let Some(pool) = self.memory.pools_mut().find(|pool| pool.base() == base) else {
            return Ok(None);
        };
        let at = pool.next(STUB_ALIGN);
        let stub = plan
            .emit(at, &common, descriptor)
            .map_err(|why| Error::Target {
                pid,
                why: why.to_string(),
            })?;
        pool.bytes(&stub.bytes, STUB_ALIGN)
            .map_err(os("filling a pool"))?;
        Ok(Some((at, stub)))
    }

    /// Returns the code that all stubs of one pool share.
    ///
    /// # Errors
    ///
    /// [`Error::Target`] if there is no such pool or the code cannot be emitted, [`Error::Os`] if
    /// the pool is full.
    pub fn common_code(&mut self, base: u64) -> Result<CommonCode, Error> {
        let mut known = self.calls.common.iter();
        if let Some((_, common)) = known.find(|(pool, _)| *pool == base) {
            return Ok(common.clone());
        }
        let points = self.memory.shared.agent.points();
        let agent = self.memory.environment()?.agent;
        let spec = CallSpec {
            enter: agent + points.call_enter,
            exit: agent + points.call_exit,
            compact_enter: agent + points.call_compact_enter,
            compact_exit: agent + points.call_compact_exit,
            watched: self.calls.record + offset_of!(syscalls::Calls, watched) as u64,
        };
        let pid = self.memory.process.pid();
        let Some(pool) = self.memory.pools_mut().find(|pool| pool.base() == base) else {
            return Err(self.memory.error("a pool is gone"));
        };
        let common = CommonCode::emit(pool.next(64), &spec).map_err(|why| Error::Target {
            pid,
            why: why.to_string(),
        })?;
        pool.bytes(&common.bytes, 64)
            .map_err(os("filling a pool"))?;
        self.calls.common.push((base, common.clone()));
        Ok(common)
    }

    /// Lists what is going to be patched: there must never be a patch that no session could find.
    /// Returns the list as it was before.
    ///
    /// # Errors
    ///
    /// [`Error::Target`] if the agent is not mapped, [`Error::Os`] if the home pool is full.
    pub fn list_patches(
        &mut self,
        stubs: &Placed,
        unhookable: &[Unhookable],
    ) -> Result<usize, Error> {
        let patches: Vec<Patch> = stubs.patches().map(as_record).collect();
        let moves = stubs.set.moves.iter();
        let mut moves: Vec<Move> = moves
            .map(|(moved, behind)| Move {
                moved: moved.wrapping_add(stubs.bias),
                behind: behind.wrapping_add(stubs.bias),
                regs: 0,
            })
            .collect();
        moves.extend(
            self.calls
                .common
                .iter()
                .flat_map(|(_, common)| common.framed())
                .map(|(moved, regs)| Move {
                    moved,
                    behind: 0,
                    regs,
                }),
        );
        list(
            self.memory,
            Listed {
                calls: stubs.set.count,
                patches: &patches,
                moves: &moves,
                unhookable,
            },
        )
    }
}

/// Prepends something to the list of the process's system calls. Returns the list as it was
/// before.
pub(super) fn list(memory: &mut TargetMemory, listed: Listed<'_>) -> Result<usize, Error> {
    let environment = memory.environment_mut()?;
    let home = &mut environment.home;
    let full = os("filling a pool");
    let patches = Patches {
        next: 0,
        calls: listed.calls,
        patches: home.array(listed.patches).map_err(&full)? as usize,
        patch_count: listed.patches.len(),
        moves: home.array(listed.moves).map_err(&full)? as usize,
        move_count: listed.moves.len(),
        unhookable: home.array(listed.unhookable).map_err(&full)? as usize,
        unhookable_count: listed.unhookable.len(),
    };
    let first = &environment.manifest().first_patches;
    let next = first.load(SeqCst);
    let place = environment
        .home
        .value(Patches { next, ..patches })
        .map_err(full)?;
    let first = &environment.manifest().first_patches;
    first.store(place as usize, SeqCst);
    Ok(next)
}

/// The content of one list of a process's system calls, all of it in one mapping.
#[derive(Debug, Default)]
pub(super) struct Listed<'a> {
    /// `syscall` instructions that lead to a stub.
    calls: usize,
    patches: &'a [Patch],
    moves: &'a [Move],
    unhookable: &'a [Unhookable],
}

impl<'a> Listed<'a> {
    /// Lists instructions that are not hooked.
    pub fn unhookable(unhookable: &'a [Unhookable]) -> Self {
        Self {
            unhookable,
            ..Self::default()
        }
    }
}

/// Collects the stubs of one mapping. `plans` is the number of those that were to be written into
/// the pool that is `around`.
fn set_of(stubs: Vec<(u64, CallStub)>, plans: usize, around: Option<(u64, Layout)>) -> StubSet {
    let (pool, layout) = around.unzip();
    let pool = pool.unwrap_or_default();
    let mut set = StubSet {
        layout: layout.filter(|_| stubs.len() == plans),
        pool,
        bytes: Vec::new(),
        addresses: Vec::new(),
        patches: Vec::new(),
        moves: Vec::new(),
        count: stubs.len(),
    };
    let start = set.layout.as_ref().map(|layout| pool + layout.stubs);
    for (at, stub) in stubs {
        let behind = set.bytes.len().next_multiple_of(STUB_ALIGN);
        if start.map(|start| start + behind as u64) == Some(at) {
            set.bytes.resize(behind, 0);
            let addresses = stub.addresses.iter();
            set.addresses.extend(addresses.map(|place| behind + place));
            set.bytes.extend(stub.bytes);
        } else {
            // A stub is in another pool.
            set.layout = None;
        }
        set.patches.extend(stub.patches);
        set.moves.extend(stub.moves);
    }
    set
}

/// Stores patches while the process is stopped: all, or none.
pub(super) fn store(stopped: &mut Stopped, stubs: &Placed) -> Result<(), Error> {
    let mut places: Vec<_> = stubs.patches().collect();
    places.sort_by_key(|(site, _)| *site);
    let pages = || places.chunk_by(is_together);
    let mut pieces: Vec<_> = pages().map(piece).collect();
    // Memory that cannot be read is not what it is expected to be.
    let _ = stopped.read_all(&mut pieces);
    for (piece, places) in pieces.iter_mut().zip(pages()) {
        patch_piece(piece, places).map_err(|address| Error::Changed {
            pid: stopped.process().pid(),
            address,
        })?;
    }
    let bias = stubs.bias;
    let code = places.iter().map(|(site, patch)| CodePatch {
        site: *site,
        bytes: &patch.bytes,
        inside: patch.inside.start.wrapping_add(bias)..patch.inside.end.wrapping_add(bias),
        resume_map: &patch.resume_map,
        bias,
    });
    patch::move_threads(stopped, &code.collect::<Vec<_>>())?;
    stopped.write_all(pieces).map_err(|error| {
        let originals = stubs.patches();
        let originals = originals.map(|(site, patch)| (site, patch.original.clone()));
        let _ = stopped.write_all(originals.collect());
        error.into()
    })
}

/// True if both lie in one page. They are then read, and written, together.
fn is_together((one, patch): &(u64, &CallPatch), (next, other): &(u64, &CallPatch)) -> bool {
    let pages = |site: u64, patch: &CallPatch| {
        let last = site + patch.original.len().saturating_sub(1) as u64;
        (site / PAGE as u64, last / PAGE as u64)
    };
    let (first, last) = pages(*one, patch);
    first == last && pages(*next, other) == (first, last)
}

/// Returns room for the bytes at some places of one page, which are in ascending order.
fn piece(places: &[(u64, &CallPatch)]) -> (u64, Vec<u8>) {
    let start = places.first().map_or(0, |(site, _)| *site);
    let ends = places
        .iter()
        .map(|(site, patch)| site + patch.original.len() as u64);
    let end = ends.max().unwrap_or(start);
    (start, vec![0; (end - start) as usize])
}

/// Turns the bytes that are there into those to be stored.
///
/// The error is a place with unexpected bytes: until it was stopped the process ran, and may have
/// mapped something else.
fn patch_piece(
    (start, code): &mut (u64, Vec<u8>),
    places: &[(u64, &CallPatch)],
) -> Result<(), u64> {
    for (site, patch) in places {
        let at = (*site - *start) as usize;
        match code.get_mut(at..at + patch.original.len()) {
            Some(code) if *code == patch.original => code.copy_from_slice(&patch.bytes),
            _ => return Err(*site),
        }
    }
    Ok(())
}

/// Leaves out stubs with jumps that look like a `syscall`. In the vDSO `beeline_inject` uses the
/// first bytes that look like one, and with one jump in some thousand its distance does.
fn spare_feigning(stubs: &mut Vec<(u64, CallStub)>, unhookable: &mut Vec<Unhookable>) {
    stubs.retain(|(_, stub)| {
        let feigns = stub.feigns_a_call();
        if feigns && let Some(patch) = stub.patches.first() {
            let why = "the jump's own bytes would look like such an instruction";
            unhookable.push(spared_one(patch.site, why));
        }
        !feigns
    });
}

/// Returns the calls of a mapping that cannot be hooked because of the file's code.
pub(super) fn unhookable_in(region: &Region, file: &FileCalls) -> Vec<Unhookable> {
    let unhookable = file.unhookable_within(region);
    unhookable
        .into_iter()
        .map(|(address, unhookable)| spared_one(address, &unhookable.why.to_string()))
        .collect()
}

pub(super) fn spared_one(address: u64, why: &str) -> Unhookable {
    let mut room = [0; WHY];
    room.iter_mut()
        .zip(why.bytes())
        .for_each(|(to, from)| *to = from);
    Unhookable { address, why: room }
}

fn as_record((site, patch): (u64, &CallPatch)) -> Patch {
    let mut original = [0; syscalls::ORIGINAL];
    let known = original.iter_mut().zip(&patch.original);
    known.for_each(|(to, from)| *to = *from);
    Patch {
        address: site,
        stub: jump_target(site, &patch.bytes).unwrap_or_default(),
        len: patch.original.len() as u8,
        original,
    }
}

/// The memory of a process, read ahead. Of some hundred places that follow each other closely, few
/// need a read of their own.
struct ProcessCode {
    memory: File,
    start: u64,
    ahead: Vec<u8>,
}

impl ProcessCode {
    const AHEAD: usize = 16 << 10;

    fn of(memory: File) -> Self {
        Self {
            memory,
            start: 0,
            ahead: Vec::new(),
        }
    }

    /// True if the process has these bytes there.
    fn holds(&mut self, start: u64, bytes: &[u8]) -> bool {
        if self.known(start, bytes.len()).is_none() {
            self.ahead.resize(Self::AHEAD, 0);
            // A read is shorter where the mapping ends.
            let read = self.memory.read_at(&mut self.ahead, start).unwrap_or(0);
            self.ahead.truncate(read);
            self.start = start;
        }
        self.known(start, bytes.len()) == Some(bytes)
    }

    fn known(&self, start: u64, len: usize) -> Option<&[u8]> {
        let at = usize::try_from(start.checked_sub(self.start)?).ok()?;
        self.ahead.get(at..at.checked_add(len)?)
    }
}
