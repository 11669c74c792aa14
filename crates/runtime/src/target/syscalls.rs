//! System calls of a target. Every `syscall` instruction in the code of its files leads to a stub,
//! and a table says what runs there.

mod beside;
mod chosen;
mod giving_way;
mod late;
mod process_events;
mod slipped;
mod stubs;
mod tables;
mod unhooked;
mod users;
mod written;

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Release, SeqCst};
use std::time::Instant;

use beeline_agent::abi::syscalls::{
    CONTEXT_MODIFY, CONTEXT_PROBE, CONTEXT_RAW, CONTEXT_TRACEPOINT,
};
use beeline_agent::abi::{self, syscalls};
use beeline_hook::CommonCode;
use beeline_inject::{Region, Stopped};
use beeline_uapi::AttachType;

use super::Hold;
use super::memory::TargetMemory;
use super::sites::Sites;
use crate::backend::{Argument, CallContext, Function, Id};
use crate::error::{Error, os};
use crate::file_syscalls::{CallSet, FileCalls, Part};
use crate::link::CallLink;
use crate::map::MapObject;
use crate::vdso;
use beside::Beside;
pub(super) use giving_way::OtherSessions;
use late::Late;
pub use late::{WhyUnseen, code_files, is_code_of_file, path_of};
pub(super) use process_events::MASKS;
pub use process_events::is_process_event;
use slipped::Slipped;
pub use slipped::SlippedCall;
use stubs::{Stubs, store, unhookable_in};
use tables::publish_tables;
use unhooked::Unhooked;
use written::Written;

/// The hooks to install for a target's system calls.
#[derive(Debug, Default)]
pub struct Wanted {
    /// The programs that run at the calls.
    pub links: Vec<Arc<CallLink>>,
    /// True if Beeline is notified when the process forks, runs another program, or maps code. It
    /// is always notified if `links` is not empty.
    pub follows: bool,
    /// True if the process is under the filter of the tool's supervisor.
    pub is_under_filter: bool,
}

impl Wanted {
    /// True if the calls are left alone.
    pub fn is_empty(&self) -> bool {
        self.links.is_empty() && !self.follows
    }
}

/// A target's state of system calls.
#[derive(Debug, Clone)]
struct Calls {
    /// The [`syscalls::Calls`], in the home pool.
    record: u64,
    links: Vec<Attached>,
    /// See [`Wanted::follows`].
    follows: bool,
    /// See [`Wanted::is_under_filter`].
    is_under_filter: bool,
    /// The calls that are hooked in code of files.
    wanted: CallSet,
    /// Code of which only these calls are hooked, as in `seen`.
    partial: BTreeMap<(u64, u64, u64), CallSet>,
    /// Code that has been scanned: where it is mapped, and from where in which file.
    seen: BTreeSet<(u64, u64, u64)>,
    /// The code that all stubs in a pool share, by the pool's address.
    common: Vec<(u64, CommonCode)>,
    /// The state of code that was written at run time.
    written: Written,
    /// True if code of a file has calls that are not hooked.
    has_unhooked: bool,
    unhooked: Unhooked,
    slipped: Slipped,
    beside: Beside,
    /// True if code was not as expected at the last look.
    is_doubtful: bool,
}

#[derive(Debug, Clone)]
struct Attached {
    link: Arc<CallLink>,
    /// The [`abi::Link`].
    place: u64,
}

/// The hooked system calls of a target.
#[derive(Debug, Clone, Default)]
pub(super) struct Syscalls {
    calls: Option<Calls>,
    late: Late,
}

impl Syscalls {
    /// Makes system calls do what is wanted, and hooks what is not hooked yet. The process runs on
    /// whatever happens.
    ///
    /// # Errors
    ///
    /// [`Error::Target`] if another session traces its calls, there is no code of a file, or there
    /// is no room near it. [`Error::Changed`] if something else changed the process meanwhile,
    /// [`Error::Os`] if a pool cannot be created or filled, [`Error::Inject`] if the process cannot
    /// be stopped, or its memory cannot be mapped, read or written.
    pub fn hook(
        &mut self,
        sites: &mut Sites,
        wanted: &Wanted,
        hold: &mut Hold<'_>,
    ) -> Result<(), Error> {
        let regions = hold.regions(&sites.memory.process)?;
        let chosen = self.choose(wanted, hold);
        let fresh = self.unseen_code(sites, &regions, chosen)?;
        let missing = self.missing_links(&wanted.links);
        let follows = wanted.follows && !self.calls.as_ref().is_some_and(|calls| calls.follows);
        if fresh.is_empty() && missing.is_empty() && !follows {
            self.say_if_users_are_seen(&sites.memory, &regions);
            return Ok(());
        }
        if sites.memory.syscall_patches.is_empty() {
            OtherSessions(&sites.memory).make_alone(&regions, !wanted.links.is_empty(), hold)?;
        }
        if follows && sites.memory.environment.is_none() {
            let reach = home_reach(&sites.memory, &fresh)?;
            sites.memory.map_what_is_missing(reach, &[], hold)?;
        }
        for link in &missing {
            let reach = home_reach(&sites.memory, &fresh)?;
            sites
                .memory
                .map_what_is_missing(reach, &link.program.maps, hold)?;
            sites.provide(&link.program.needs, hold)?;
        }
        if sites.memory.environment.is_none() {
            return Ok(());
        }
        if wanted.is_under_filter && (follows || !missing.is_empty()) {
            // Without them the agent reads paths at a higher cost.
            let _ = sites.catch(&[libc::SIGBUS, libc::SIGSEGV], hold);
        }
        if let Some(calls) = &mut self.calls {
            calls.slipped.forget_code();
        }
        // New code changes nothing in the tables, and may come often.
        if self.calls.is_none() || !missing.is_empty() || follows {
            let calls = self.lay_out(&mut sites.memory)?;
            calls.follows |= follows;
            // That stays so for as long as it runs.
            calls.is_under_filter |= wanted.is_under_filter;
            if wanted.is_under_filter {
                sites.memory.environment()?.expect_filter();
            }
            for link in missing {
                self.add_link(&mut sites.memory, link)?;
            }
            self.publish(&mut sites.memory)?;
        }
        if let Some(calls) = &mut self.calls {
            calls.wanted = chosen;
        }
        for (region, file) in fresh {
            let outcome = self.hook_region(&mut sites.memory, &region, &file, hold);
            if let Err(Error::Changed { .. }) = outcome {
                // Another session was quicker.
                OtherSessions(&sites.memory).make_alone(
                    &hold.regions(&sites.memory.process)?,
                    false,
                    hold,
                )?;
            }
            if outcome.is_err()
                && let Some(calls) = &mut self.calls
            {
                calls.is_doubtful = true;
            }
            outcome?;
        }
        if let Some(calls) = &mut self.calls {
            calls.is_doubtful = false;
        }
        self.say_if_users_are_seen(&sites.memory, &regions);
        Ok(())
    }

    /// True if its system calls are hooked.
    pub fn are_hooked(&self) -> bool {
        self.calls.is_some()
    }

    /// Ends a link's part. When this returns, its program is not started any more.
    ///
    /// The stubs stay, and see by the table that no program listens.
    pub fn detach(&mut self, memory: &mut TargetMemory, link: Id) {
        let (Some(environment), Some(calls)) = (&memory.environment, &mut self.calls) else {
            return;
        };
        for one in calls.links.iter().filter(|one| one.link.id == link) {
            // SAFETY: the record was placed in the home pool as a `Link`.
            let record = unsafe { environment.home.get::<abi::Link>(one.place) };
            record.enabled.store(0, Release);
        }
        calls.links.retain(|one| one.link.id != link);
        if calls.links.is_empty() {
            users::let_agent_forget(environment);
        }
        // Without room for a shorter list the old one stays, with the link in it disabled.
        let _ = self.publish(memory);
    }

    /// True if Beeline is told when the process forks, runs another program, or maps code.
    pub fn follows(&self) -> bool {
        self.calls.as_ref().is_some_and(|calls| calls.follows)
    }

    /// Returns the links that do not run here yet.
    fn missing_links<'a>(&self, links: &'a [Arc<CallLink>]) -> Vec<&'a Arc<CallLink>> {
        let known = |link: &Arc<CallLink>| {
            let calls = self.calls.iter().flat_map(|calls| &calls.links);
            calls.into_iter().any(|one| one.link.id == link.id)
        };
        links.iter().filter(|link| !known(link)).collect()
    }

    /// Forgets code that was hooked and is not there any more, or has been mapped anew.
    fn forget_unmapped(&mut self, sites: &mut Sites, regions: &[Region]) {
        let Some(calls) = &mut self.calls else {
            return;
        };
        let memory = OnceCell::new();
        let code_at = |address: u64, len: usize| {
            let memory = memory
                .get_or_init(|| sites.memory.process.memory().ok())
                .as_ref()?;
            let mut now = vec![0; len];
            memory.read_exact_at(&mut now, address).ok()?;
            // A function that begins there may be probed.
            sites.planner().uncover(address, &mut now).ok()?;
            Some(now)
        };
        let patched = &sites.memory.syscall_patches;
        calls.seen.retain(|(start, inode, offset)| {
            let mapped = (*start, *inode, *offset);
            let region = regions.iter().find(|region| key(region) == mapped);
            region.is_some_and(|region| {
                let first = patched.range(region.start..region.end).next();
                first.is_none_or(|(site, stored)| {
                    let bytes = stored.bytes();
                    let is_it = |now: Vec<u8>| now[0] == bytes[0] || stored.lacks_first(&now);
                    code_at(*site, bytes.len()).is_some_and(is_it)
                })
            })
        });
        calls.partial.retain(|key, _| calls.seen.contains(key));
        let is_seen = |site: &u64| {
            let mut seen = regions.iter().filter(|region| region.contains(*site));
            seen.any(|region| calls.seen.contains(&key(region)))
        };
        if !sites.memory.syscall_patches.keys().all(is_seen) {
            Arc::make_mut(&mut sites.memory.syscall_patches).retain(|site, _| is_seen(site));
        }
    }

    /// Returns code that has not been scanned yet.
    fn unseen_code(
        &mut self,
        sites: &mut Sites,
        regions: &[Region],
        chosen: CallSet,
    ) -> Result<Vec<(Region, Arc<FileCalls>)>, Error> {
        self.forget_unmapped(sites, regions);
        let memory = &sites.memory;
        let is_private =
            |region: &&Region| region.permissions.execute && !region.permissions.shared;
        let (mut of_files, others): (Vec<_>, Vec<_>) = regions
            .iter()
            .filter(is_private)
            .partition(|region| is_code_of_file(region));
        of_files.retain(|region| !self.has_seen(region, chosen));
        let (mut fresh, mut without_file) = self.look_through(memory, of_files);
        for region in others {
            if vdso::is_at(region) {
                let calls = memory
                    .shared
                    .calls
                    .of_vdso()
                    .filter(|_| !self.has_seen(region, chosen));
                fresh.extend(calls.map(|calls| (region.clone(), calls)));
            } else {
                without_file.push(region.clone());
            }
        }
        fresh.sort_by_key(|(region, _)| region.start);
        self.add_without_file(memory, without_file, &mut fresh);
        Ok(fresh)
    }

    /// Places the table, once.
    fn lay_out(&mut self, memory: &mut TargetMemory) -> Result<&mut Calls, Error> {
        if let Some(calls) = self.calls.take() {
            return Ok(self.calls.insert(calls));
        }
        let environment = memory.environment_mut()?;
        let (target, child) = (environment.target, environment.child);
        let record = environment
            .home
            .zeroed::<syscalls::Calls>(1)
            .map_err(os("filling a pool"))?;
        // SAFETY: all zeros are a valid table, and nothing in the target knows of it yet.
        unsafe {
            environment.home.change::<syscalls::Calls>(record, |table| {
                (table.target, table.child) = (target as *const _, child as *const _);
            });
        }
        environment.calls = Some(record);
        Ok(self.calls.insert(Calls {
            record,
            links: Vec::new(),
            follows: false,
            is_under_filter: false,
            wanted: CallSet::NONE,
            partial: BTreeMap::new(),
            seen: BTreeSet::new(),
            common: Vec::new(),
            written: Written::default(),
            has_unhooked: false,
            unhooked: Unhooked::default(),
            slipped: Slipped::default(),
            beside: Beside::default(),
            is_doubtful: false,
        }))
    }

    fn add_link(&mut self, memory: &mut TargetMemory, link: &Arc<CallLink>) -> Result<(), Error> {
        let context = match link.context {
            CallContext::Tracepoint => CONTEXT_TRACEPOINT,
            CallContext::Trampoline
                if link.program.expected_attach_type == AttachType::MODIFY_RETURN =>
            {
                CONTEXT_MODIFY
            }
            CallContext::RawTracepoint | CallContext::Trampoline => CONTEXT_RAW,
            CallContext::Probe => CONTEXT_PROBE,
            CallContext::FunctionProbe(function) => syscalls::CONTEXT_FUNCTION | packed(&function),
            CallContext::FunctionTrampoline(function) => {
                syscalls::CONTEXT_FUNCTION_WORDS | packed(&function)
            }
        };
        let environment = memory.environment_mut()?;
        let place = environment.place_link(&link.program, link.cookie, context)?;
        if let Some(calls) = &mut self.calls {
            let link = link.clone();
            calls.links.push(Attached { link, place });
        }
        Ok(())
    }

    /// Publishes which programs run at which calls. From the next call on, exactly these run.
    fn publish(&mut self, memory: &mut TargetMemory) -> Result<(), Error> {
        match &self.calls {
            Some(here) => publish_tables(memory, here),
            None => Ok(()),
        }
    }

    /// Hooks the calls of one mapping of a file. Everything is prepared while the process runs; one
    /// stop stores the patches.
    fn hook_region(
        &mut self,
        memory: &mut TargetMemory,
        region: &Region,
        file: &FileCalls,
        hold: &mut Hold<'_>,
    ) -> Result<(), Error> {
        let part = self.part_of(region);
        let hookable = file.hookable_within(region, part);
        let is_first = part.had == CallSet::NONE;
        let mut unhookable = match is_first {
            false => Vec::new(),
            true => unhookable_in(region, file),
        };
        let mut missing = 0;
        self.count_written(region, hookable, &mut unhookable);
        if hookable > 0 || !unhookable.is_empty() {
            memory.map_what_is_missing(reach_of(region), &[], hold)?;
            if file.has_small_stacks() {
                memory.environment()?.expect_small_stacks();
            }
            let stubs = self
                .stubs(memory)?
                .write(region, file, part, &mut unhookable)?;
            missing = hookable - stubs.set.count;
            if missing > 0 {
                // Patches over them since then may be another session's.
                OtherSessions(memory).make_alone(&hold.regions(&memory.process)?, false, hold)?;
            }
            let before = self.stubs(memory)?.list_patches(&stubs, &unhookable)?;
            let stored = hold.with(&memory.process, |stopped| {
                memory.check_same(stopped)?;
                store(stopped, &stubs)
            });
            if let Err(Error::Changed { .. }) = stored {
                // Nothing was stored, and they are tried, and listed, again.
                let manifest = memory.environment()?.manifest();
                manifest.first_patches.store(before, SeqCst);
            }
            stored?;
            Arc::make_mut(&mut memory.syscall_patches).extend(stubs.stored());
        }
        if let Some(calls) = &mut self.calls {
            calls.seen.insert(key(region));
            match part.wanted == CallSet::ALL {
                false => calls.partial.insert(key(region), part.wanted),
                true => calls.partial.remove(&key(region)),
            };
            calls.has_unhooked |= missing > 0 || file.may_have_unhooked(region);
            match is_first {
                false => calls.unhooked.add_more(missing),
                true => calls.unhooked.add(region, file, missing),
            }
        }
        Ok(())
    }

    /// Returns what writes stubs.
    fn stubs<'a>(&'a mut self, memory: &'a mut TargetMemory) -> Result<Stubs<'a>, Error> {
        match &mut self.calls {
            Some(calls) => Ok(Stubs { memory, calls }),
            None => Err(memory.error("its system calls are not hooked")),
        }
    }

    /// Returns the maps that programs here refer to directly.
    pub fn maps(&self) -> impl Iterator<Item = &Arc<MapObject>> {
        let links = self.calls.iter().flat_map(|calls| &calls.links);
        links.flat_map(|one| &one.link.program.maps)
    }

    /// Makes a process that stands before the first instruction of its new program run the programs
    /// behind `execve` first.
    ///
    /// # Errors
    ///
    /// [`Error::Target`] if its calls are not hooked or the code cannot be emitted, [`Error::Os`]
    /// if the pool is full, [`Error::Inject`] if the thread's registers cannot be set.
    pub fn begin_behind_exec(
        &mut self,
        memory: &mut TargetMemory,
        stopped: &mut Stopped,
    ) -> Result<(), Error> {
        let Some(thread) = stopped.threads().first() else {
            return Ok(());
        };
        let (tid, back) = (thread.tid(), thread.ip());
        let Some(base) = memory.environment.as_ref().map(|here| here.home.base()) else {
            return Ok(());
        };
        let mut stubs = self.stubs(memory)?;
        let (common, descriptor) = (stubs.common_code(base)?, stubs.calls.record);
        let home = &mut memory.environment_mut()?.home;
        let code = common
            .behind(
                home.next(STUB_ALIGN),
                libc::SYS_execve as u32,
                descriptor,
                back,
            )
            .map_err(|why| Error::Target {
                pid: stopped.process().pid(),
                why: why.to_string(),
            })?;
        let at = home
            .bytes(&code, STUB_ALIGN)
            .map_err(os("filling a pool"))?;
        Ok(stopped.set_ip(tid, at)?)
    }
}

/// Returns the calls of the file that a mapping is of, if they are known. `None` if the file has
/// been replaced or removed since.
fn calls_of_file(memory: &TargetMemory, region: &Region) -> Option<Arc<FileCalls>> {
    let path = path_of(&memory.process, region);
    let calls = &memory.shared.calls;
    calls.of(&path, region.inode, Instant::now()).ready()
}

/// Returns where the first pool may be: near the first code that is to be hooked.
///
/// A program mostly has no calls itself, and is far from its libraries, which have.
fn home_reach(
    memory: &TargetMemory,
    fresh: &[(Region, Arc<FileCalls>)],
) -> Result<RangeInclusive<u64>, Error> {
    if let Some(environment) = &memory.environment {
        let base = environment.home.base();
        return Ok(base..=environment.home.next(64));
    }
    let mut hookable = fresh.iter();
    let hookable = hookable.find(|(region, file)| file.hookable_within(region, Part::ALL) > 0);
    let (region, _) = hookable
        .or_else(|| fresh.first())
        .ok_or_else(|| memory.error("it has no code of a file"))?;
    Ok(reach_of(region))
}

const STUB_ALIGN: usize = 16;

/// Packs where a function's arguments come from, for [`abi::Link::context`].
fn packed(function: &Function) -> usize {
    let bits = |argument: &Argument| match *argument {
        Argument::Zero => syscalls::ARGUMENT_ZERO,
        Argument::Of(index) => usize::from(index) + 1,
        Argument::CurrentDirectory => syscalls::ARGUMENT_DIRECTORY,
        Argument::OpenFlags => syscalls::ARGUMENT_OPEN_FLAGS,
        Argument::OpenMode => syscalls::ARGUMENT_OPEN_MODE,
        Argument::OpenHow => syscalls::ARGUMENT_OPEN_HOW,
    };
    let places = (syscalls::ARGUMENTS..).step_by(4);
    let arguments = function.arguments.iter().zip(places);
    let count = function.arguments.len() << syscalls::ARGUMENT_COUNT;
    arguments.fold(count, |all, (argument, place)| {
        all | bits(argument) << place
    })
}

/// Returns the key of a mapping of a file's code.
fn key(region: &Region) -> (u64, u64, u64) {
    (region.start, region.inode, region.offset)
}

/// Returns where a pool may start so that all of a mapping reaches it.
fn reach_of(region: &Region) -> RangeInclusive<u64> {
    let (low, _) = beeline_hook::reach(region.end).into_inner();
    let (_, high) = beeline_hook::reach(region.start).into_inner();
    low..=high
}
