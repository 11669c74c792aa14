//! Planning a site: the code around it without this session, and other sessions' patches there.

use std::collections::{BTreeMap, BTreeSet};

use beeline_agent::abi::{self, Site};
use beeline_hook::{BREAKPOINT_LEN, Function, Plan, Reason, kernel_call_len};

use super::hooked::Hooked;
use super::memory::TargetMemory;
use super::{Hold, Request};
use crate::detach::{Beneath, presences};
use crate::error::Error;
use crate::kernel_uprobes::{Stored, Text, beside, kernel_uprobes};
use crate::liveness::SessionId;
use crate::patch;

/// The plan for a new site, and the code that was there when it was made.
#[derive(Debug, Clone)]
pub(super) struct Planned {
    pub plan: Plan,
    /// The code that is there, including other sessions' patches, and the same bytes of the file.
    pub original: [u8; abi::ORIGINAL_BYTES],
    pub file: [u8; abi::ORIGINAL_BYTES],
    /// Another session's patch at the site.
    pub beneath: Option<Beneath>,
    /// Kernel uprobes in the function.
    pub probed: BTreeSet<u64>,
    /// The level of the handler for SIGTRAP that serves it; see [`abi::TRAP_LEVELS`].
    pub level: u32,
}

impl Planned {
    /// Gives up the traps if a session below has a handler that is called first and keeps them to
    /// itself. Hits beside a kernel uprobe are not seen then.
    ///
    /// # Errors
    ///
    /// [`Error::Target`] if that session has hooked the function by a breakpoint.
    pub fn yield_traps(&mut self, memory: &TargetMemory) -> Result<(), Error> {
        let Some(below) = &mut self.beneath else {
            return Ok(());
        };
        if below.is_breakpoint {
            return Err(memory.error(
                "other sessions of Beeline, which came and went meanwhile, have hooked the same function by a breakpoint: \
                 attach again when they have ended",
            ));
        }
        below.traps = Default::default();
        Ok(())
    }
}

/// A function as it would be without this session.
struct Current {
    start: u64,
    code: Vec<u8>,
    /// The addresses of kernel uprobes in it.
    probed: BTreeSet<u64>,
    /// Another session's patch at the site.
    beneath: Option<Beneath>,
}

/// Plans sites of a target.
#[derive(Clone, Copy)]
pub(super) struct Planner<'a> {
    pub memory: &'a TargetMemory,
    pub sites: &'a BTreeMap<u64, Hooked>,
}

impl Planner<'_> {
    /// Plans a new site beside the existing ones.
    ///
    /// # Errors
    ///
    /// Those of [`Self::plan`].
    pub fn plan_apart(self, request: &Request<'_>, hold: &mut Hold<'_>) -> Result<Planned, Error> {
        let mut planned = self.plan(request, hold)?;
        let plan = &planned.plan;
        let inside = plan.site + 1..plan.site + plan.window_len as u64;
        if self.sites.range(inside).next().is_some() {
            planned.plan = planned.plan.into_breakpoint(Reason::AnotherProbe);
        }
        Ok(planned)
    }

    /// Plans a new site, and returns the plan with the code that is there now.
    ///
    /// # Errors
    ///
    /// [`Error::Target`] if the site cannot be hooked or another tracer has patched its code,
    /// [`Error::Changed`] if the code changes meanwhile, [`Error::Inject`] if the process cannot be
    /// stopped or read, [`Error::Os`] if a file that it maps cannot be read.
    pub fn plan(self, request: &Request<'_>, hold: &mut Hold<'_>) -> Result<Planned, Error> {
        let Current {
            start,
            code,
            probed,
            beneath,
        } = self.current_code(request, hold)?;
        let (_, file) = request.place.function_at(request.address);
        let incoming = request.place.incoming_at(request.address);
        let plan = |code: &[u8]| {
            let plan =
                beeline_hook::plan_among(request.address, &Function { start, code }, &incoming);
            plan.map_err(|why| self.memory.error(why.to_string()))
        };
        let mut plan = match &beneath {
            None => plan(&code)?,
            // The breakpoint is there already.
            Some(below) if below.is_breakpoint => plan(file)?.into_breakpoint(Reason::AnotherProbe),
            Some(below) => plan(&code)?.over(plan(file)?, &below.patch),
        };
        // An event at a kernel uprobe further inside is the kernel's only if the instruction is run
        // where it is.
        let inside = plan.site + 1..plan.site + plan.window_len as u64;
        if probed.range(inside).next().is_some() {
            plan = plan.into_breakpoint(Reason::AnotherProbe);
        }
        let from_site = |code: &[u8]| {
            let mut bytes = [0; abi::ORIGINAL_BYTES];
            let code = code.get((request.address - start) as usize..);
            let both = bytes.iter_mut().zip(code.unwrap_or_default());
            both.for_each(|(to, from)| *to = *from);
            bytes
        };
        Ok(Planned {
            plan,
            original: from_site(&code),
            file: from_site(file),
            beneath,
            probed,
            level: 0,
        })
    }

    /// Returns the function around the site as it would be without this session, and the kernel
    /// uprobes in it.
    ///
    /// That is the file's content, except for the jumps of other sessions and those at system
    /// calls, which are moved like any other instruction.
    fn current_code(self, request: &Request<'_>, hold: &mut Hold<'_>) -> Result<Current, Error> {
        let (start, file) = request.place.function_at(request.address);
        let mut code = file.to_vec();
        let mut beneath = None;
        let mut now = vec![0; code.len()];
        self.memory.process.read_memory(start, &mut now)?;
        let (seen, mut again) = (now.clone(), vec![0; now.len()]);
        let end = start + code.len() as u64;
        self.uncover(start, &mut now)?;
        let from = start.saturating_sub(abi::ORIGINAL_BYTES as u64);
        for (address, stored) in self.memory.syscall_patches.range(from..end) {
            // It has since been unmapped, and mapped anew.
            if now == code && !holds(&now, start, *address, stored.bytes()) {
                let pid = self.memory.process.pid();
                let address = *address;
                return Err(Error::Changed { pid, address });
            }
            overlay(&mut code, start, *address, stored.bytes());
        }
        if now != code {
            let own = SessionId::own();
            let mut others = presences(&self.memory.process)?;
            others.retain(|presence| presence.session != own);
            beneath = Beneath::at(&others, request.address);
            let mut sites: Vec<_> = others.iter().flat_map(|other| &other.sites).collect();
            sites.sort_by_key(|site| site.layer);
            for site in sites {
                overlay(&mut code, start, site.address, &site.patch);
            }
        }
        let mut probed = patch::breakpoints(start, &now, &code);
        if !probed.is_empty() {
            let known = hold.with(&self.memory.process, |stopped| {
                kernel_uprobes(stopped, std::slice::from_ref(&(start..end)))
            })?;
            probed.retain(|address| known.contains(address));
        }
        let theirs = |address: u64| {
            let call = address - start;
            let called = kernel_call_len(&now[call as usize..], &code[call as usize..]);
            address..address + called.unwrap_or(BREAKPOINT_LEN) as u64
        };
        let theirs: Vec<_> = probed.iter().map(|address| theirs(*address)).collect();
        let is_strange = |(i, (now, expected)): (usize, (&u8, &u8))| {
            let address = start + i as u64;
            // Bytes that the kernel has put back in another session's patch are mended by that
            // session, or come back with this one's.
            let is_put_back = beneath.is_some() && Some(now) == file.get(i);
            now != expected && !is_put_back && !theirs.iter().any(|range| range.contains(&address))
        };
        match now.iter().zip(&code).enumerate().position(is_strange) {
            None => Ok(Current {
                start,
                code,
                probed,
                beneath,
            }),
            // The code there has come or gone since.
            Some(i) if self.memory.process.read_memory(start, &mut again).is_ok() && again != seen => {
                let (pid, address) = (self.memory.process.pid(), start + i as u64);
                Err(Error::Changed { pid, address })
            }
            Some(i) => Err(self.memory.error(format!(
                "its code at {:#x} is not what the file holds: somebody else has patched it (a debugger, another \
                 tracer); end that first",
                start + i as u64
            ))),
        }
    }

    /// Undoes this session's site patches in a copy of the code at `start`.
    ///
    /// # Errors
    ///
    /// [`Error::Target`] if the agent is not mapped.
    pub fn uncover(self, start: u64, now: &mut [u8]) -> Result<(), Error> {
        let end = start + now.len() as u64;
        let from = start.saturating_sub(abi::ORIGINAL_BYTES as u64);
        for (address, site) in self.sites.range(from..end) {
            // SAFETY: the record was placed in the home pool as a `Site`.
            let record = unsafe { self.memory.environment()?.home.get::<Site>(site.record) };
            let stored = Stored::of(record);
            let Stored {
                patch, original, ..
            } = stored;
            if holds(now, start, *address, patch) {
                overlay(now, start, *address, original);
                continue;
            }
            let offset = address.checked_sub(start).map(|offset| offset as usize);
            let shown = offset.and_then(|offset| now.get(offset..offset + stored.len()));
            if let Some(shown) = shown.filter(|now| Text::of(now, stored) == Text::Mixed) {
                let theirs = patch::breakpoints(*address, shown, patch);
                let bytes = beside(*address, shown, original, original, &theirs);
                overlay(now, start, *address, &bytes);
            }
        }
        Ok(())
    }
}

/// True if these bytes stand at `address`, as far as the code at `start` shows.
fn holds(code: &[u8], start: u64, address: u64, bytes: &[u8]) -> bool {
    let at = |address: u64| {
        let offset = address.checked_sub(start)?;
        code.get(usize::try_from(offset).ok()?)
    };
    let mut bytes = (address..).zip(bytes);
    bytes.all(|(address, byte)| at(address).is_none_or(|now| now == byte))
}

/// Lays `bytes`, which are at `address`, over those of a function that starts at `start`.
fn overlay(code: &mut [u8], start: u64, address: u64, bytes: &[u8]) {
    for (at, byte) in (address..).zip(bytes) {
        let place = at
            .checked_sub(start)
            .and_then(|offset| code.get_mut(usize::try_from(offset).ok()?));
        if let Some(place) = place {
            *place = *byte;
        }
    }
}
