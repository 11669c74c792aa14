//! Hooking a planned site and changing it later: writing its trampoline, storing its patch and
//! publishing what runs there.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::atomic::Ordering::{Release, SeqCst};

use beeline_agent::abi::{self, Site, SiteTrap};
use beeline_hook::{Direct, Full, INT3, Kind, Plan, Reason, Registers, Trampoline, TrampolineSpec};
use beeline_inject::Stopped;

use super::planning::Planned;
use super::{Attached, Body, Hold, Hooked, Landing, Request, TRAMPOLINE_BYTES, Target};
use crate::detach::{Beneath, Layers};
use crate::error::{Error, os};
use crate::kernel_uprobes::{Stored, Text, beside};
use crate::patch;

impl Hooked {
    /// Returns where its trampoline may be.
    fn reach(&self) -> Option<RangeInclusive<u64>> {
        let reach = self.plan.reach()?;
        match &self.landing {
            Some(landing) => landing.reach(reach),
            None => Some(reach),
        }
    }

    /// Returns where threads trap beside a kernel uprobe, and where they go on.
    fn traps(&self, trampoline: &Trampoline) -> [SiteTrap; abi::SITE_TRAPS] {
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
                lost: words_of(trap.lost),
                stack: trap.stack,
                is_early: (trap.resume == 0).into(),
            };
        }
        traps
    }
}

/// Returns the words of `struct pt_regs` that hold these registers: bit n for word n. The registers
/// are numbered as in instructions.
fn words_of(registers: Registers) -> u32 {
    /// rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8 to r15.
    const WORDS: [u32; 16] = [10, 11, 12, 5, 19, 4, 13, 14, 9, 8, 7, 6, 3, 2, 1, 0];
    let numbered = (0..).zip(WORDS);
    let known = numbered.filter(|(number, _)| registers.0 >> number & 1 != 0);
    known.fold(0, |mask, (_, word)| mask | 1 << word)
}

impl Target {
    /// Forgets sites with code that has since been unmapped or replaced.
    pub fn forget_unmapped(&mut self) {
        let Some(environment) = &self.environment else {
            return;
        };
        let calls = self.calls.as_ref().map(|calls| &*calls.patched);
        let is_there = |address: &u64, site: &Hooked| {
            // SAFETY: the record was placed in the home pool as a `Site`.
            let record = unsafe { environment.home.get::<Site>(site.record) };
            let stored = Stored::of(record);
            let mut now = vec![0; stored.len()];
            if self.process.read_memory(*address, &mut now).is_err() {
                return false;
            }
            // A system call of the code that is there instead may have been hooked already.
            let is_call = || {
                let stored = calls.and_then(|patched| patched.get(address));
                stored.is_some_and(|stored| {
                    now.iter().zip(stored.bytes()).all(|(now, its)| now == its)
                })
            };
            let is_as_patched = || now[1..] == stored.patch[1..];
            match now[0] {
                // A kernel uprobe may be at the site.
                INT3 if is_as_patched() => true,
                // Another session's jump may lie upon this one.
                first if first == stored.patch[0] && !is_call() => true,
                _ => Text::of(&now, stored) != Text::Other,
            }
        };
        let is_gone = |(address, site): &(&u64, &Hooked)| !is_there(address, site);
        let gone = self.sites.iter().filter(is_gone);
        let mut gone: Vec<_> = gone
            .map(|(address, site)| (*address, site.record))
            .collect();
        // Beside a kernel uprobe nothing of this session may be visible below another session's
        // patch, and that session may be about to go.
        for _ in 0..LOOKS {
            if gone.is_empty() {
                return;
            }
            let Ok(layers) = Layers::of(&self.process) else {
                return;
            };
            gone.retain(|(at, record)| {
                let site = self.sites.get(at);
                !self.is_under(*at, *record, &layers)
                    && site.is_some_and(|site| !is_there(at, site))
            });
        }
        for (address, record) in gone {
            self.set_breakpoint(record, 0);
            self.sites.remove(&address);
            if let Some(environment) = &self.environment {
                // SAFETY: the record was placed in the home pool as a `Site`.
                let record = unsafe { environment.home.get::<Site>(record) };
                record.patched.store(0, SeqCst);
            }
        }
    }

    /// Turns a site with a jump that reaches over `address` into a breakpoint.
    pub(super) fn make_room(&mut self, address: u64, hold: &mut Hold<'_>) -> Result<(), Error> {
        let Some((at, site)) = self.sites.range(..address).next_back() else {
            return Ok(());
        };
        let is_wide = matches!(site.plan.kind, Kind::Jump) || site.plan.second.is_some();
        if !is_wide || at + site.plan.window_len as u64 <= address {
            return Ok(());
        }
        let at = *at;
        self.make_breakpoint(at, Reason::AnotherProbe, hold)
    }

    /// A site that is hooked by a jump is hooked by a breakpoint.
    pub(super) fn make_breakpoint(
        &mut self,
        at: u64,
        reason: Reason,
        hold: &mut Hold<'_>,
    ) -> Result<(), Error> {
        self.check_trap_unblocked(hold)?;
        self.catch(&[libc::SIGTRAP], hold)?;
        let is_kind = |site: &Hooked| matches!(site.plan.kind, Kind::Breakpoint { .. });
        let has_slot = self.sites.get(&at).is_some_and(is_kind);
        if !has_slot && !self.has_room_for_breakpoint() {
            return Err(self.error("there are too many sites that only a breakpoint can hook"));
        }
        let Some(mut site) = self.sites.remove(&at) else {
            return Ok(());
        };
        let (old, plan, direct) = (site.record, site.plan.clone(), site.direct);
        let landing = site.landing.take();
        let was_breakpoint = matches!(plan.kind, Kind::Breakpoint { .. });
        site.plan = plan.clone().into_breakpoint(reason);
        site.direct = false;
        let done = self.bytes_of(old).and_then(|(bytes, level)| {
            self.place_record(&site.plan, bytes, site.beneath.as_ref(), level)
        });
        let outcome = done.and_then(|record| {
            site.record = record;
            let (trampoline, _) = self.write_trampoline(&site, None)?;
            self.publish(&site)?;
            let replaced = if was_breakpoint { old } else { 0 };
            if !self.set_breakpoint(replaced, record) {
                return Err(self.error("there are too many sites that only a breakpoint can hook"));
            }
            hold.with(&self.process, |stopped| {
                self.check_same(stopped)?;
                let layers = Layers::of(stopped.process())?;
                // SAFETY: the record was placed in the home pool as a `Site`.
                let old = unsafe { self.environment()?.home.get::<Site>(old) };
                patch::restore(stopped, at, old, &layers)?;
                if old.patched.load(SeqCst) != 0 {
                    return Err(self.error("somebody's breakpoint lies upon a site"));
                }
                self.patch(stopped, &site, &trampoline)
            })
        });
        if outcome.is_err() {
            self.set_breakpoint(site.record, if was_breakpoint { old } else { 0 });
            (site.record, site.plan, site.landing) = (old, plan, landing);
            site.direct = direct;
        }
        self.sites.insert(at, site);
        outcome
    }

    /// Returns the code at a site, and the level of the handler that serves it.
    fn bytes_of(&self, record: u64) -> Result<(Bytes, u32), Error> {
        // SAFETY: the record was placed in the home pool as a `Site`.
        let record = unsafe { self.environment()?.home.get::<Site>(record) };
        Ok(((record.original, record.file), record.level))
    }

    /// Makes a hooked site lead to another trampoline.
    fn redirect(
        &mut self,
        site: &Hooked,
        trampoline: &Trampoline,
        at: u64,
        hold: &mut Hold<'_>,
    ) -> Result<(), Error> {
        let Some(landing) = &site.landing else {
            return hold.with(&self.process, |stopped| {
                self.check_same(stopped)?;
                self.patch(stopped, site, trampoline)
            });
        };
        // Only the pads change. No thread is halfway through one, since a pad is one instruction.
        let process = self.process.clone();
        hold.with(&process, |stopped| {
            self.check_same(stopped)?;
            self.aim(landing, at)
        })
    }

    /// Adds a program to a site that is hooked already.
    pub(super) fn extend(
        &mut self,
        request: &Request<'_>,
        mut site: Hooked,
        attached: Attached,
        hold: &mut Hold<'_>,
    ) -> Result<(), Error> {
        self.mark_exit(request, site.record)?;
        site.list(request.retprobe).push(attached);
        let mut outcome = self.publish(&site);
        let showed_registers = site.shows_registers;
        site.shows_registers |= request.body.needs().reads_context;
        if outcome.is_ok() && (site.direct || site.shows_registers != showed_registers) {
            // The direct trampoline knows only its one program, and the agent runs no program that
            // looks at registers which its trampoline does not show.
            outcome = self
                .write_trampoline(&site, None)
                .and_then(|(trampoline, at)| self.redirect(&site, &trampoline, at, hold));
            site.direct &= outcome.is_err();
        }
        if outcome.is_err() {
            // A program that its trampoline does not serve is not attached, and may be tried again.
            site.shows_registers = showed_registers;
            site.list(request.retprobe).pop();
            let _ = self.publish(&site);
        }
        self.sites.insert(request.address, site);
        outcome
    }

    /// Hooks a new site.
    pub(super) fn hook(
        &mut self,
        request: &Request<'_>,
        (planned, landing): (Planned, Option<Landing>),
        attached: Attached,
        hold: &mut Hold<'_>,
    ) -> Result<(), Error> {
        let Planned {
            plan,
            original,
            file,
            beneath,
            probed,
            level,
        } = planned;
        let is_breakpoint = matches!(plan.kind, Kind::Breakpoint { .. });
        let needs = request.body.needs();
        let direct = !needs.slot && !needs.reads_context && !request.retprobe && !is_breakpoint;
        let record = self.place_record(&plan, (original, file), beneath.as_ref(), level)?;
        let shows_registers = needs.reads_context;
        let mut site = Hooked {
            record,
            plan,
            landing,
            beneath,
            branches: beeline_hook::branches_sometimes(&file),
            entry: Vec::new(),
            returns: Vec::new(),
            direct,
            shows_registers,
        };
        site.list(request.retprobe).push(attached);
        let call = match request.body {
            Body::Program(program) if direct => {
                let (code, entry) = self.environment_mut()?.place_program(program)?;
                // x86-64 has 16 registers.
                let clobbers = Registers(code.code.clobbers.bits() as u16);
                Some(Direct { entry, clobbers })
            }
            _ => None,
        };
        self.mark_exit(request, site.record)?;
        let (trampoline, at) = self.write_trampoline(&site, call)?;
        self.publish(&site)?;
        if is_breakpoint && !self.set_breakpoint(0, site.record) {
            return Err(self.error("there are too many sites that only a breakpoint can hook"));
        }
        let process = self.process.clone();
        let stored = hold.with(&process, |stopped| {
            self.check_same(stopped)?;
            self.check_original(stopped, &site, &probed)?;
            if let Some(landing) = &site.landing {
                self.aim(landing, at)?;
            }
            self.patch(stopped, &site, &trampoline)
        });
        if stored.is_err() {
            // A thread that comes to another breakpoint there must not find it.
            self.set_breakpoint(site.record, 0);
        }
        stored?;
        self.log_hook(request, &site);
        self.sites.insert(request.address, site);
        Ok(())
    }

    fn log_hook(&self, request: &Request<'_>, site: &Hooked) {
        let place = request.place;
        let (hook, why) = match &site.plan.kind {
            Kind::Jump => ("jump", String::new()),
            Kind::Breakpoint { reason } => ("breakpoint", reason.to_string()),
        };
        let guard = match &site.landing {
            Some(landing) if landing.is_whole => "whole",
            Some(_) => "in part",
            None => "none",
        };
        tracing::debug!(
            pid = self.process.pid(),
            address = %format_args!("{:#x}", request.address),
            place = %format_args!("{}+{:#x}", place.path.display(), place.offset),
            is_return = request.retprobe,
            hook,
            why,
            guard,
            layer = site.beneath.as_ref().map_or(0, |below| below.layer),
            "hooked a site"
        );
    }

    /// Has a site's record say that it is an exit, if a program is to run as its function returns there.
    fn mark_exit(&mut self, request: &Request<'_>, record: u64) -> Result<(), Error> {
        let Some(flags) = request.place.exit_flags().filter(|_| request.retprobe) else {
            return Ok(());
        };
        // SAFETY: the record was placed as a `Site`. Without programs for the return nobody looks
        // at what changes.
        unsafe {
            self.environment_mut()?
                .home
                .change::<Site>(record, |record| {
                    record.flags = record.flags & abi::SITE_FUNCTION_ENTRY | flags;
                });
        }
        Ok(())
    }

    /// Places a site's record and lists it in the manifest.
    fn place_record(
        &mut self,
        plan: &Plan,
        (original, file): Bytes,
        beneath: Option<&Beneath>,
        level: u32,
    ) -> Result<u64, Error> {
        let environment = self.environment_mut()?;
        let is_entry = original[0] == PUSH_RBP || original.starts_with(&ENDBR64);
        let site = Site {
            target: environment.target as *const _,
            address: plan.site,
            entry: 0.into(),
            returns: 0.into(),
            return_entry: 0,
            body: 0,
            flags: if is_entry {
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
        // It is listed before it is patched: there must never be a patch that nobody could find.
        environment
            .manifest()
            .first_site
            .store(site as usize, SeqCst);
        Ok(site)
    }

    /// Writes a site's trampoline into a pool near it, and the patch that leads there into the
    /// record.
    fn write_trampoline(
        &mut self,
        site: &Hooked,
        direct: Option<Direct>,
    ) -> Result<(Trampoline, u64), Error> {
        let environment = self.environment()?;
        let points = self.shared.agent.points();
        let spec = match direct {
            Some(direct) => TrampolineSpec::Direct(direct),
            None => TrampolineSpec::Full(Full {
                descriptor: site.record,
                enter: environment.agent + points.enter,
                leave: site
                    .plan
                    .at_start
                    .then_some(environment.agent + points.leave),
                shows_registers: site.shows_registers,
            }),
        };
        let reach = site
            .reach()
            .ok_or_else(|| self.error("the site's operands are too far apart"))?;
        let (pid, plan) = (self.process.pid(), &site.plan);
        let fail = |why: String| Error::Target { pid, why };
        let pool = self
            .pools_mut()
            .find(|pool| pool.room() > TRAMPOLINE_BYTES && reach.contains(&pool.next(64)))
            .ok_or_else(|| fail("no pool is near enough to the site".into()))?;
        let at = pool.next(64);
        let trampoline =
            beeline_hook::emit(plan, at, &spec).map_err(|why| fail(why.to_string()))?;
        pool.bytes(&trampoline.bytes, 64)
            .map_err(os("filling a pool"))?;
        let patch = match (&plan.kind, &site.landing) {
            (Kind::Jump, Some(landing)) => landing.guard.patch(plan.site, landing.pad),
            (Kind::Jump, None) => beeline_hook::jump_patch(plan.site, plan.window_len, at)
                .map_err(|why| fail(why.to_string()))?,
            (Kind::Breakpoint { .. }, _) => match &site.beneath {
                Some(below) => breakpoint_over(&below.patch),
                None => plan.breakpoint_patch(),
            },
        };
        let passes_on = matches!(&site.beneath, Some(below) if below.is_breakpoint);
        let traps = site.traps(&trampoline);
        // SAFETY: the record was placed as a `Site`. Only threads that came through a patch read
        // what changes here, and an older trampoline of the site leads to the same kind of places.
        unsafe {
            self.environment_mut()?
                .home
                .change::<Site>(site.record, |record| {
                    record.body = if passes_on {
                        abi::PASSES_ON
                    } else {
                        trampoline.body
                    };
                    record.return_entry = trampoline.return_entry.unwrap_or(record.return_entry);
                    record.patch[..patch.len()].copy_from_slice(&patch);
                    record.traps = traps;
                });
        }
        Ok((trampoline, at))
    }

    /// Fails unless the code that a new site's patch goes over is what it was when the site was
    /// planned. Another session may have come or gone since.
    fn check_original(
        &self,
        stopped: &Stopped,
        site: &Hooked,
        probed: &BTreeSet<u64>,
    ) -> Result<(), Error> {
        // SAFETY: the record was placed in the home pool as a `Site`.
        let record = unsafe { self.environment()?.home.get::<Site>(site.record) };
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
                pid: self.process.pid(),
                address: record.address,
            }),
        }
    }

    /// Stores a site's patch while the process is stopped.
    fn patch(
        &self,
        stopped: &mut Stopped,
        site: &Hooked,
        trampoline: &Trampoline,
    ) -> Result<(), Error> {
        // SAFETY: the record was placed in the home pool as a `Site`.
        let record = unsafe { self.environment()?.home.get::<Site>(site.record) };
        patch::apply(stopped, &site.plan, record, &trampoline.resume_map)
    }

    /// Publishes which programs run at a site. From the next hit on, exactly these run.
    pub(super) fn publish(&mut self, site: &Hooked) -> Result<(), Error> {
        let links = |attached: &[Attached]| {
            attached
                .iter()
                .map(|attached| attached.link)
                .collect::<Vec<_>>()
        };
        let environment = self.environment_mut()?;
        let entry = environment.place_list(&links(&site.entry))?;
        let returns = environment.place_list(&links(&site.returns))?;
        // SAFETY: the record was placed in the home pool as a `Site`.
        let record = unsafe { environment.home.get::<Site>(site.record) };
        record.entry.store(entry as usize, Release);
        record.returns.store(returns as usize, Release);
        Ok(())
    }
}

/// The code at a site without this session's patch, and the file's.
type Bytes = ([u8; abi::ORIGINAL_BYTES], [u8; abi::ORIGINAL_BYTES]);

/// Returns the number of bytes that a site's patch overwrites.
fn patch_len(plan: &Plan, beneath: Option<&Beneath>) -> usize {
    match (&plan.kind, beneath) {
        (Kind::Jump, _) => plan.window_len,
        (Kind::Breakpoint { .. }, Some(below)) => below.patch.len(),
        (Kind::Breakpoint { .. }, None) => plan.breakpoint_patch().len(),
    }
}

/// Returns a breakpoint over another session's patch. The rest of that patch stays behind it, which
/// identifies it.
fn breakpoint_over(patch: &[u8]) -> Vec<u8> {
    let mut bytes = patch.to_vec();
    if let Some(first) = bytes.first_mut() {
        *first = INT3;
    }
    bytes
}

/// The number of looks at sites that seem to be gone, while other sessions come and go.
const LOOKS: usize = 2;
const PUSH_RBP: u8 = 0x55;
const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
