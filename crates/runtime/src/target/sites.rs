//! Hooking a planned site and changing it later: writing its trampoline, storing its patch and
//! publishing what runs there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Release;

use beeline_agent::abi::syscalls::CONTEXT_REGISTERS;
use beeline_agent::abi::{self, Site};
use beeline_hook::{Direct, Full, INT3, Kind, Reason, Registers, Trampoline, TrampolineSpec};
use beeline_inject::{Process, Region};

use super::hooked::{Attached, Hooked, Origin, Quick, mark_exit, place_record};
use super::memory::TargetMemory;
use super::mend::MendState;
use super::pads::{Landing, Pads};
use super::planning::{Planned, Planner};
use super::semaphores::SemaphoreState;
use super::witnesses::Witnesses;
use super::{Body, Hold, Request, TRAMPOLINE_BYTES};
use crate::backend::Id;
use crate::error::{Error, os};
use crate::map::MapObject;
use crate::trampoline_pool::Pool;

/// The hooked sites of a target.
#[derive(Debug)]
pub(super) struct Sites {
    pub memory: TargetMemory,
    /// The hooked sites, by address.
    pub hooked: BTreeMap<u64, Hooked>,
    /// The places that the jumps at its sites lead to, once there are some.
    pub pads: Option<Pads>,
    pub mend_state: MendState,
    pub witnesses: Witnesses,
    pub semaphores: SemaphoreState,
    /// True if there is or was a return probe.
    pub watches_returns: bool,
    /// The number of mappings of code when unwinders were last looked for.
    pub texts_with_unwinding: usize,
}

impl Sites {
    pub fn new(memory: TargetMemory) -> Self {
        Self {
            memory,
            hooked: BTreeMap::new(),
            pads: None,
            mend_state: MendState::default(),
            witnesses: Witnesses::default(),
            semaphores: SemaphoreState::default(),
            watches_returns: false,
            texts_with_unwinding: 0,
        }
    }

    /// Creates the sites of a forked child. Returns `None` if something was mapped here since the
    /// fork. `regions` is what is mapped in the child.
    ///
    /// # Errors
    ///
    /// [`Error::Os`] if a pool cannot be created, and those of [`TargetMemory::fork`].
    pub fn fork(
        &self,
        process: &Process,
        owner: u32,
        regions: &[Region],
    ) -> Result<Option<Self>, Error> {
        let Some(environment) = &self.memory.environment else {
            return Ok(None);
        };
        let is_there = |base| regions.iter().any(|region| region.contains(base));
        let pads = self.pads.iter().flat_map(Pads::bases);
        let pools = self.memory.pools().map(Pool::base).chain(pads);
        if !environment.bases().chain(pools).all(is_there) {
            return Ok(None);
        }
        let pads = self.pads.as_ref().map(Pads::fork).transpose();
        let pads = pads.map_err(os("creating a pool"))?;
        let of_pads = pads.iter().flat_map(Pads::replaced);
        let memory = self.memory.fork(process, owner, environment, of_pads)?;
        Ok(Some(Self {
            memory,
            hooked: self.hooked.clone(),
            pads,
            mend_state: MendState::default(),
            witnesses: self.witnesses.clone(),
            semaphores: self.semaphores,
            watches_returns: self.watches_returns,
            texts_with_unwinding: self.texts_with_unwinding,
        }))
    }

    /// True if this link's program runs at this address.
    pub fn runs_at(&self, address: u64, link: Id) -> bool {
        self.hooked
            .get(&address)
            .is_some_and(|site| site.runs(link))
    }

    /// Attaches a program to a site. The process runs on whatever happens.
    ///
    /// # Errors
    ///
    /// [`Error::Target`] if the site cannot be hooked, [`Error::Changed`] if something else changed
    /// the process meanwhile, [`Error::Os`] if a pool cannot be created or filled,
    /// [`Error::Inject`] if the process cannot be stopped, or its memory cannot be mapped, read or
    /// written.
    pub fn attach(&mut self, request: &Request<'_>, hold: &mut Hold<'_>) -> Result<(), Error> {
        let exit = request.place.exit_flags().filter(|_| request.retprobe);
        if request.retprobe && exit.is_none() {
            self.watches_returns = true;
            let regions = hold.regions(&self.memory.process)?;
            self.keep_unwinding(&regions, hold);
        }
        let mut planned = match self.hooked.contains_key(&request.address) {
            true => None,
            false => Some(self.planner().plan_apart(request, hold)?),
        };
        let known = self.hooked.get(&request.address).map(|site| &site.plan);
        let Some(plan) = planned.as_ref().map(|new| &new.plan).or(known).cloned() else {
            return Ok(());
        };
        if request.retprobe && exit.is_none() && !plan.at_start {
            return Err(self
                .memory
                .error("a return probe needs the function's first address"));
        }
        let maps = request.body.maps();
        match (self.memory.map_for(&plan, maps, hold), &mut planned) {
            (Err(_), Some(new)) if self.memory.has_no_room_for(&plan, hold)? => {
                new.plan = plan.into_breakpoint(Reason::NoRoom);
                self.memory.map_for(&new.plan, maps, hold)?;
            }
            (outcome, _) => outcome?,
        }
        self.provide(&request.body.needs(), hold)?;
        let planned = match planned {
            Some(mut planned) => {
                let landing = self.guarded(&mut planned, request, hold)?;
                Some((planned, landing))
            }
            None => None,
        };
        let environment = self.memory.environment_mut()?;
        if request.place.has_small_stacks() {
            environment.expect_small_stacks();
        }
        let link = match request.body {
            Body::Program(program) => {
                environment.place_link(program, request.cookie, CONTEXT_REGISTERS)?
            }
            Body::Native(offset) => environment.place_native(offset)?,
            Body::Always(offset) => environment.place_always(offset)?,
        };
        if request.semaphore.is_some() {
            self.semaphores = SemaphoreState::Pending;
        }
        let attached = Attached {
            id: request.link,
            link,
            semaphore: request.semaphore,
            maps: request.body.maps().to_vec(),
        };
        match (self.hooked.remove(&request.address), planned) {
            (Some(site), _) => self.extend(request, site, attached, hold),
            (None, Some(planned)) => {
                self.make_room(request.address, hold)?;
                self.hook(request, planned, attached, hold)
            }
            (None, None) => Err(self.memory.error("the site has gone meanwhile")),
        }
    }

    /// Ends a link's part. When this returns, its program is not started any more.
    ///
    /// Nothing is stopped for that. [`Self::restore_idle`] restores a site that is left without
    /// programs.
    pub fn detach(&mut self, link: Id) {
        let touched: Vec<u64> = self
            .hooked
            .iter()
            .filter(|(_, site)| site.runs(link))
            .map(|(at, _)| *at)
            .collect();
        for address in touched {
            let Some(mut site) = self.hooked.remove(&address) else {
                continue;
            };
            for attached in site
                .entry
                .iter()
                .chain(&site.returns)
                .filter(|attached| attached.id == link)
            {
                if let Some(environment) = &self.memory.environment {
                    // SAFETY: the address is that of a `Link` that was placed in the home pool.
                    unsafe { environment.home.get::<abi::Link>(attached.link) }
                        .enabled
                        .store(0, Release);
                }
            }
            for of_returns in [false, true] {
                site.list(of_returns).retain(|attached| attached.id != link);
            }
            // Without room for a shorter list the old one stays, with the link in it disabled.
            let _ = self.publish(&site);
            self.hooked.insert(address, site);
        }
    }

    /// Returns what plans further sites.
    pub fn planner(&self) -> Planner<'_> {
        Planner {
            memory: &self.memory,
            sites: &self.hooked,
        }
    }

    /// Returns the maps that programs here refer to directly.
    pub fn maps(&self) -> impl Iterator<Item = &Arc<MapObject>> {
        let sites = self.hooked.values();
        let attached = sites.flat_map(|site| site.entry.iter().chain(&site.returns));
        attached.flat_map(|one| &one.maps)
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
            return hold.with(&self.memory.process, |stopped| {
                self.memory.check_same(stopped)?;
                site.patch(stopped, &self.memory, trampoline)
            });
        };
        // Only the pads change. No thread is halfway through one, since a pad is one instruction.
        let process = self.memory.process.clone();
        hold.with(&process, |stopped| {
            self.memory.check_same(stopped)?;
            match &mut self.pads {
                Some(pads) => pads.aim(&mut self.memory, landing, at),
                None => Ok(()),
            }
        })
    }

    /// Adds a program to a site that is hooked already.
    ///
    /// # Errors
    ///
    /// Those of [`Self::publish`] and [`Self::write_trampoline`], and of stopping the process. The
    /// program is not attached then.
    pub fn extend(
        &mut self,
        request: &Request<'_>,
        mut site: Hooked,
        attached: Attached,
        hold: &mut Hold<'_>,
    ) -> Result<(), Error> {
        site.list(request.retprobe).push(attached);
        // The site is still patched after a failure, so it goes back to the others in any case.
        let mut outcome =
            mark_exit(&mut self.memory, request, site.record).and_then(|()| self.publish(&site));
        let showed_registers = site.shows_registers;
        site.shows_registers |= request.body.needs().reads_context;
        if outcome.is_ok() && (site.is_single || site.shows_registers != showed_registers) {
            // Such a trampoline knows only its one program, and the agent runs no program that
            // looks at registers which its trampoline does not show.
            outcome = self
                .write_trampoline(&site, None)
                .and_then(|(trampoline, at)| self.redirect(&site, &trampoline, at, hold));
            site.is_single &= outcome.is_err();
        }
        if outcome.is_err() {
            // A program that its trampoline does not serve is not attached, and may be tried again.
            site.shows_registers = showed_registers;
            site.list(request.retprobe).pop();
            let _ = self.publish(&site);
        }
        self.hooked.insert(request.address, site);
        outcome
    }

    /// Hooks a new site.
    ///
    /// # Errors
    ///
    /// Those of [`Self::write_trampoline`] and [`Self::publish`]. [`Error::Changed`] if the code is
    /// not what it was when it was planned, [`Error::Target`] if there are too many breakpoints or
    /// the process runs another program by now, [`Error::Inject`] if it cannot be stopped or its
    /// code cannot be written.
    pub fn hook(
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
        let is_direct = !needs.slot && !needs.reads_context && !request.retprobe && !is_breakpoint;
        let record = place_record(
            &mut self.memory,
            &plan,
            (original, file),
            beneath.as_ref(),
            level,
        )?;
        let shows_registers = needs.reads_context;
        let mut site = Hooked {
            record,
            plan,
            landing,
            beneath,
            origin: Origin::of(request.place),
            branches: beeline_hook::branches_sometimes(&file),
            entry: Vec::new(),
            returns: Vec::new(),
            is_single: false,
            shows_registers,
        };
        let link = attached.link;
        site.list(request.retprobe).push(attached);
        let environment = self.memory.environment_mut()?;
        let quick = match request.body {
            Body::Program(program) if is_direct => {
                let (code, entry) = environment.place_program(program)?;
                let clobbers = Registers::of_numbers(code.code.clobbers.bits());
                Some(Quick::Direct(Direct { entry, clobbers }))
            }
            Body::Program(program) if !request.retprobe && !is_breakpoint => environment
                .trampoline_filter(program, link)
                .map(Quick::Filtered),
            _ => None,
        };
        site.is_single = quick.is_some();
        mark_exit(&mut self.memory, request, site.record)?;
        let (trampoline, at) = self.write_trampoline(&site, quick)?;
        self.publish(&site)?;
        if is_breakpoint && !self.memory.signals().set_breakpoint(0, site.record) {
            return Err(self
                .memory
                .error("there are too many sites that only a breakpoint can hook"));
        }
        let process = self.memory.process.clone();
        let stored = hold.with(&process, |stopped| {
            self.memory.check_same(stopped)?;
            site.check_original(stopped, &self.memory, &probed)?;
            if let (Some(landing), Some(pads)) = (&site.landing, &mut self.pads) {
                pads.aim(&mut self.memory, landing, at)?;
            }
            site.patch(stopped, &self.memory, &trampoline)
        });
        if stored.is_err() {
            // A thread that comes to another breakpoint there must not find it.
            self.memory.signals().set_breakpoint(site.record, 0);
        }
        stored?;
        log_hook(self.memory.process.pid(), request, &site);
        self.hooked.insert(request.address, site);
        Ok(())
    }

    /// Writes a site's trampoline into a pool near it, and the patch that leads there into the
    /// record.
    ///
    /// # Errors
    ///
    /// [`Error::Target`] if no pool is near enough or the trampoline cannot be emitted,
    /// [`Error::Os`] if the pool is full.
    pub fn write_trampoline(
        &mut self,
        site: &Hooked,
        quick: Option<Quick>,
    ) -> Result<(Trampoline, u64), Error> {
        let environment = self.memory.environment()?;
        let points = self.memory.shared.agent.points();
        let full = Full {
            descriptor: site.record,
            enter: environment.agent + points.enter,
            leave: site
                .plan
                .at_start
                .then_some(environment.agent + points.leave),
            shows_registers: site.shows_registers,
        };
        let spec = match quick {
            Some(Quick::Direct(direct)) => TrampolineSpec::Direct(direct),
            Some(Quick::Filtered(filter)) => TrampolineSpec::Filtered(filter, full),
            None => TrampolineSpec::Full(full),
        };
        let reach = site
            .reach()
            .ok_or_else(|| self.memory.error("the site's operands are too far apart"))?;
        let (pid, plan) = (self.memory.process.pid(), &site.plan);
        let fail = |why: String| Error::Target { pid, why };
        let pool = self
            .memory
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
            self.memory
                .environment_mut()?
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

    /// Publishes which programs run at a site. From the next hit on, exactly these run.
    ///
    /// # Errors
    ///
    /// [`Error::Target`] if the agent is not mapped, [`Error::Os`] if the home pool is full.
    pub fn publish(&mut self, site: &Hooked) -> Result<(), Error> {
        let links = |attached: &[Attached]| {
            attached
                .iter()
                .map(|attached| attached.link)
                .collect::<Vec<_>>()
        };
        let environment = self.memory.environment_mut()?;
        // The filter of a single program is the trampoline's to ask.
        let entry = environment.place_list(&links(&site.entry), site.entry.len() > 1)?;
        let returns = environment.place_list(&links(&site.returns), true)?;
        // SAFETY: the record was placed in the home pool as a `Site`.
        let record = unsafe { environment.home.get::<Site>(site.record) };
        record.entry.store(entry as usize, Release);
        record.returns.store(returns as usize, Release);
        Ok(())
    }
}

fn log_hook(pid: i32, request: &Request<'_>, site: &Hooked) {
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
        pid,
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

/// Returns a breakpoint over another session's patch. The rest of that patch stays behind it, which
/// identifies it.
fn breakpoint_over(patch: &[u8]) -> Vec<u8> {
    let mut bytes = patch.to_vec();
    if let Some(first) = bytes.first_mut() {
        *first = INT3;
    }
    bytes
}
