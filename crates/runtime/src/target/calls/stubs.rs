//! The stubs that `syscall` instructions lead to, and the patches that lead there.

use std::fs::File;
use std::mem::offset_of;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::SeqCst;

use beeline_hook::{CallPatch, CallPlan, CallSpec, CallStub, CommonCode};
use beeline_image::abi::calls::{self, Move, Patch, Patches, Spared, WHY};
use beeline_inject::{Region, Stopped};

use super::super::TRAMPOLINE_BYTES;
use super::{STUB_ALIGN, Target};
use crate::arena::Arena;
use crate::calls::FileCalls;
use crate::error::{Error, os};
use crate::patch::{self, CodePatch};

impl Target {
    /// Writes a stub for each call that can be hooked here and now.
    pub(super) fn write_stubs(
        &mut self,
        plans: &[CallPlan],
        spared: &mut Vec<Spared>,
    ) -> Result<Vec<CallStub>, Error> {
        let mut code = ProcessCode::of(self.process.memory()?);
        let mut stubs = Vec::with_capacity(plans.len());
        for plan in plans {
            let mut original = plan.original();
            if !original.all(|(start, bytes)| code.holds(start, bytes)) {
                let why = "its code is not what the file holds: it is probed, or patched by somebody else";
                spared.push(spared_one(plan.call, why));
                continue;
            }
            match self.write_stub(plan)? {
                Some(stub) => stubs.push(stub),
                None => spared.push(spared_one(
                    plan.call,
                    "no free address range is near enough",
                )),
            }
        }
        Ok(stubs)
    }

    /// Writes a stub into an arena near it; `None` if there is none near enough.
    fn write_stub(&mut self, plan: &CallPlan) -> Result<Option<CallStub>, Error> {
        let Some(reach) = plan.reach() else {
            return Ok(None);
        };
        let near = |arena: &Arena| {
            arena.room() > TRAMPOLINE_BYTES && reach.contains(&arena.next(STUB_ALIGN))
        };
        let Some(base) = self.arenas().find(|arena| near(arena)).map(Arena::base) else {
            return Ok(None);
        };
        let common = self.common_code(base)?;
        let (pid, descriptor) = (self.process.pid(), self.calls_record()?);
        let Some(arena) = self.arenas_mut().find(|arena| arena.base() == base) else {
            return Ok(None);
        };
        let at = arena.next(STUB_ALIGN);
        let stub = plan
            .emit(at, &common, descriptor)
            .map_err(|why| Error::Target {
                pid,
                why: why.to_string(),
            })?;
        arena
            .bytes(&stub.bytes, STUB_ALIGN)
            .map_err(os("filling an arena"))?;
        Ok(Some(stub))
    }

    /// The code that all stubs of one arena share.
    pub(super) fn common_code(&mut self, base: u64) -> Result<CommonCode, Error> {
        let known = self.calls.iter().flat_map(|calls| &calls.common);
        if let Some((_, common)) = known.into_iter().find(|(arena, _)| *arena == base) {
            return Ok(common.clone());
        }
        let points = self.shared.image.points();
        let image = self.environment()?.image;
        let spec = CallSpec {
            enter: image + points.call_enter,
            exit: image + points.call_exit,
            brief_enter: image + points.call_brief_enter,
            brief_exit: image + points.call_brief_exit,
            watched: self.calls_record()? + offset_of!(calls::Calls, watched) as u64,
        };
        let pid = self.process.pid();
        let Some(arena) = self.arenas_mut().find(|arena| arena.base() == base) else {
            return Err(self.error("an arena is gone"));
        };
        let common = CommonCode::emit(arena.next(64), &spec).map_err(|why| Error::Target {
            pid,
            why: why.to_string(),
        })?;
        arena
            .bytes(&common.bytes, 64)
            .map_err(os("filling an arena"))?;
        if let Some(calls) = &mut self.calls {
            calls.common.push((base, common.clone()));
        }
        Ok(common)
    }

    /// Lists what is going to be patched: a patch that nobody could find must never be.
    pub(super) fn list_patches(
        &mut self,
        stubs: &[CallStub],
        spared: &[Spared],
    ) -> Result<(), Error> {
        let patches: Vec<Patch> = stubs
            .iter()
            .flat_map(|stub| &stub.patches)
            .map(as_record)
            .collect();
        let mut moves: Vec<Move> = stubs
            .iter()
            .flat_map(|stub| &stub.moves)
            .map(|(moved, behind)| Move {
                moved: *moved,
                behind: *behind,
                regs: 0,
            })
            .collect();
        let common = self.calls.iter().flat_map(|calls| &calls.common);
        moves.extend(
            common
                .flat_map(|(_, common)| common.framed())
                .map(|(moved, regs)| Move {
                    moved,
                    behind: 0,
                    regs,
                }),
        );
        let environment = self.environment_mut()?;
        let home = &mut environment.home;
        let full = os("filling an arena");
        let listed = Patches {
            next: 0,
            calls: stubs.len(),
            patches: home.array(&patches).map_err(&full)? as usize,
            patch_count: patches.len(),
            moves: home.array(&moves).map_err(&full)? as usize,
            move_count: moves.len(),
            spared: home.array(spared).map_err(&full)? as usize,
            spared_count: spared.len(),
        };
        let first = &environment.manifest().first_patches;
        let next = first.load(SeqCst);
        let place = environment
            .home
            .value(Patches { next, ..listed })
            .map_err(full)?;
        let first = &environment.manifest().first_patches;
        first.store(place as usize, SeqCst);
        Ok(())
    }
}

/// Stores patches while the process is stopped: all, or none.
pub(super) fn store(stopped: &mut Stopped, patches: &[&CallPatch]) -> Result<(), Error> {
    // Until now it ran, and may have mapped something else there.
    let mut now = ProcessCode::of(stopped.process().memory()?);
    for patch in patches {
        if !now.holds(patch.site, &patch.original) {
            return Err(Error::Target {
                pid: stopped.process().pid(),
                why: format!("its code at {:#x} has changed just now", patch.site),
            });
        }
    }
    let code: Vec<_> = patches
        .iter()
        .map(|patch| CodePatch {
            site: patch.site,
            bytes: &patch.bytes,
            inside: patch.inside.clone(),
            resume_map: &patch.resume_map,
        })
        .collect();
    patch::store(stopped, &code).inspect_err(|_| {
        let originals = patches.iter().map(|one| (one.site, one.original.clone()));
        let _ = stopped.write_all(originals.collect());
    })
}

/// The calls of a mapping that the file's code does not let us hook.
pub(super) fn spared_in(region: &Region, file: &FileCalls) -> Vec<Spared> {
    let spared = file.spared_within(region);
    spared
        .into_iter()
        .map(|(address, spared)| spared_one(address, &spared.why.to_string()))
        .collect()
}

fn spared_one(address: u64, why: &str) -> Spared {
    let mut room = [0; WHY];
    room.iter_mut()
        .zip(why.bytes())
        .for_each(|(to, from)| *to = from);
    Spared { address, why: room }
}

fn as_record(patch: &CallPatch) -> Patch {
    let mut original = [0; calls::ORIGINAL];
    let known = original.iter_mut().zip(&patch.original);
    known.for_each(|(to, from)| *to = *from);
    let distance = patch
        .bytes
        .get(1..5)
        .and_then(|bytes| bytes.try_into().ok());
    let distance = distance.map_or(0, i32::from_le_bytes);
    Patch {
        address: patch.site,
        stub: patch
            .site
            .wrapping_add(5)
            .wrapping_add_signed(distance.into()),
        len: patch.original.len() as u8,
        original,
    }
}

/// The memory of a process, read ahead: of some hundred places that follow each other closely, few are read by themselves.
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

    /// Does the process have these bytes there?
    fn holds(&mut self, start: u64, bytes: &[u8]) -> bool {
        if self.known(start, bytes.len()).is_none() {
            self.ahead.resize(Self::AHEAD, 0);
            // Fewer are read where the mapping ends.
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
