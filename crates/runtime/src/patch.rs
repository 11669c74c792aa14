//! Patches of code in a stopped process, and the way back.

use std::collections::BTreeSet;
use std::fs;
use std::ops::Range;
use std::sync::atomic::Ordering::SeqCst;

use beeline_agent::abi::{PASSES_ON, SITE_BREAKPOINT, SITE_JUMP, Site, SiteTrap};
use beeline_hook::{INT3, JUMP_LEN, Kind, Plan, kernel_call_len};
use beeline_inject::{Stopped, signal_frames};

use crate::detach::Layers;
use crate::error::Error;
use crate::kernel_uprobes::{Stored, Text, beside, kernel_uprobes_left};
use crate::proc;

/// Bytes that are stored over code.
#[derive(Debug, Clone)]
pub struct CodePatch<'a> {
    /// The address of the first.
    pub site: u64,
    /// The bytes to store.
    pub bytes: &'a [u8],
    /// The range where no thread may be when they are there.
    pub inside: Range<u64>,
    /// The new places of the instructions that were there: original addresses, and others.
    pub resume_map: &'a [(u64, u64)],
    /// The amount by which all of those are too low.
    pub bias: u64,
}

/// Stores a site's patch. Threads that are inside the patched bytes, or will be when a signal
/// handler returns, are set to the moved instructions.
///
/// # Errors
///
/// Those of [`store`], and [`Error::Inject`] if the code cannot be read.
pub fn apply(
    stopped: &mut Stopped,
    plan: &Plan,
    record: &Site,
    resume_map: &[(u64, u64)],
) -> Result<(), Error> {
    let kind = match plan.kind {
        Kind::Jump => SITE_JUMP,
        Kind::Breakpoint { .. } => SITE_BREAKPOINT,
    };
    record.patched.store(kind, SeqCst);
    let Stored {
        patch, original, ..
    } = Stored::of(record);
    let mut now = vec![0; patch.len()];
    stopped.read(plan.site, &mut now)?;
    let bytes = beside(
        plan.site,
        &now,
        patch,
        original,
        &breakpoints(plan.site, &now, original),
    );
    // All but the first byte of another session's patch below may stay.
    let mut both = bytes.iter().zip(&now);
    let changed = both
        .rposition(|(new, now)| new != now)
        .map_or(0, |last| last + 1);
    let patch = CodePatch {
        site: plan.site,
        bytes: &bytes,
        inside: plan.site + 1..plan.site + changed.max(1) as u64,
        resume_map,
        bias: 0,
    };
    store(stopped, &[patch]).inspect_err(|_| record.patched.store(0, SeqCst))
}

/// Stores patches, none of which overlaps another, and moves threads out of their way.
///
/// # Errors
///
/// Those of [`move_threads`], and [`Error::Inject`] if the code cannot be written.
pub fn store(stopped: &mut Stopped, patches: &[CodePatch<'_>]) -> Result<(), Error> {
    move_threads(stopped, patches)?;
    let code = patches
        .iter()
        .map(|patch| (patch.site, patch.bytes.to_vec()));
    Ok(stopped.write_code(code.collect())?)
}

/// Moves threads that are inside the bytes which are going to be patched, or will be when a signal
/// handler returns, to the moved instructions.
///
/// This comes first of all. The moved instructions do the same with and without the patch, so it
/// does not matter if Beeline dies before the last one is stored.
///
/// # Errors
///
/// [`Error::Target`] if a thread is in the middle of an instruction, [`Error::Inject`] if a thread
/// cannot be moved or its signal frames cannot be read or written.
pub fn move_threads(stopped: &mut Stopped, patches: &[CodePatch<'_>]) -> Result<(), Error> {
    let pid = stopped.process().pid();
    let moved = |ip: u64| {
        let around = patches.iter().find(|patch| patch.inside.contains(&ip))?;
        let mut known = around.resume_map.iter();
        let ip = ip.wrapping_sub(around.bias);
        let (_, moved) = known.find(|(original, _)| *original == ip)?;
        Some(moved.wrapping_add(around.bias))
    };
    let is_inside = |ip: u64| patches.iter().any(|patch| patch.inside.contains(&ip));
    let threads = stopped.threads().iter();
    let inside = threads.filter(|thread| is_inside(thread.ip()));
    let inside: Vec<_> = inside.map(|thread| (thread.tid(), thread.ip())).collect();
    let mut threads = Vec::new();
    for (tid, ip) in inside {
        let to = match stopped.awaits_trap(tid)? {
            // The breakpoint has gone meanwhile: the handler of its signal leads the thread back to
            // the first byte, whatever is there.
            true if patches.iter().any(|patch| patch.site + 1 == ip) => continue,
            true => None,
            false => moved(ip),
        };
        let to = to.ok_or_else(|| Error::Target {
            pid,
            why: format!("a thread is at {ip:#x}, in the middle of an instruction"),
        })?;
        threads.push((tid, to));
    }
    let inside = patches.iter().map(|patch| patch.inside.clone());
    let ranges: Vec<_> = inside.filter(|range| !range.is_empty()).collect();
    let mut frames = Vec::new();
    if !ranges.is_empty() {
        for frame in signal_frames(stopped, &ranges)? {
            // The handler leads the thread to what it has not run yet, by where the breakpoint was.
            if frame.is_of_breakpoint {
                continue;
            }
            // Something that only looks like a frame need not name an instruction's start, and is
            // left alone.
            frames.extend(moved(frame.ip).map(|ip| (frame.saved_at, ip.to_ne_bytes().to_vec())));
        }
    }
    for (tid, ip) in threads {
        stopped.set_ip(tid, ip)?;
    }
    Ok(stopped.write_all(frames)?)
}

/// A patch that is about to go, as its site's record describes it.
#[derive(Debug, Clone, Copy)]
pub struct Going<'a> {
    /// The site.
    pub address: u64,
    /// The moved instructions; see [`Site::body`].
    pub body: u64,
    /// See [`Site::traps`].
    pub traps: &'a [SiteTrap],
}

impl<'a> Going<'a> {
    /// Describes it by a site's record.
    pub fn of(record: &'a Site) -> Self {
        Self {
            address: record.address,
            body: record.body,
            traps: &record.traps,
        }
    }

    /// Returns the breakpoints that a thread reaches when it has run something else than the site's
    /// first instruction, which it has yet to run: where each is, where the thread is to go on, and
    /// by how much its stack pointer is too low.
    fn detours(self) -> impl Iterator<Item = (u64, u64, u64)> + 'a {
        let is_early = move |trap: &&SiteTrap| trap.resume > PASSES_ON && trap.resume == self.body;
        self.traps.iter().filter(is_early).map(move |trap| {
            let offset = u64::from(trap.behind) - 1;
            // Behind the whole instruction the thread may have come in the kernel's hands, and a
            // probe at the site has counted it.
            let is_within = offset < JUMP_LEN as u64;
            let to = if is_within { self.address } else { self.body };
            (
                self.address + offset,
                to,
                i64::from(trap.stack).cast_unsigned(),
            )
        })
    }
}

/// Sends threads back that are on a detour in patches which are about to go.
///
/// A kernel uprobe has put the first byte back, and such a thread is at the breakpoint that the
/// changed instruction leads to. What will stand there next is in the middle of an instruction.
///
/// # Errors
///
/// [`Error::Inject`] if a thread cannot be moved, or its signal frames cannot be read or written.
pub fn lead_back<'a>(
    stopped: &mut Stopped,
    going: impl Iterator<Item = Going<'a>>,
) -> Result<(), Error> {
    let detours: Vec<_> = going.flat_map(Going::detours).collect();
    if detours.is_empty() {
        return Ok(());
    }
    let detour = |ip: u64| detours.iter().find(|(at, ..)| *at == ip);
    let threads = stopped.threads().iter().filter_map(|thread| {
        let (_, to, stack) = detour(thread.ip())?;
        let sp = thread.sp().wrapping_add(*stack);
        Some((thread.tid(), *to, sp))
    });
    for (tid, to, sp) in threads.collect::<Vec<_>>() {
        stopped.send(tid, to, sp)?;
    }
    let ranges: Vec<_> = detours.iter().map(|(at, ..)| *at..*at + 1).collect();
    let mut words = Vec::new();
    for frame in signal_frames(stopped, &ranges)? {
        let Some((_, to, stack)) = detour(frame.ip) else {
            continue;
        };
        let word = |value: u64| value.to_ne_bytes().to_vec();
        match frame.sp {
            _ if *stack == 0 => {}
            Some((at, sp)) => words.push((at, word(sp.wrapping_add(*stack)))),
            None => continue,
        }
        words.push((frame.saved_at, word(*to)));
    }
    Ok(stopped.write_all(words)?)
}

/// Returns the places of code with a breakpoint, or a call of the kernel's, that is not the file's.
pub fn breakpoints(address: u64, now: &[u8], original: &[u8]) -> BTreeSet<u64> {
    let both = (address..).zip(now.iter().zip(original));
    let is_one = |(_, (now, original)): &(u64, (&u8, &u8))| now != original && **now == INT3;
    let found = both.filter(is_one).map(|(at, _)| at);
    let call = kernel_call_len(now, original).map(|_| address);
    found.chain(call).collect()
}

/// Restores a site's original bytes, and leaves kernel uprobes there alone.
///
/// The patch stays, and stays listed, if another session's patch lies over it, as [`Layers`] say,
/// or another party's breakpoint that will bring it back.
///
/// # Errors
///
/// Those of [`lead_back`], and [`Error::Inject`] if the process's memory cannot be opened or
/// written.
pub fn restore(
    stopped: &mut Stopped,
    address: u64,
    record: &Site,
    layers: &Layers,
) -> Result<(), Error> {
    restore_beside(stopped, (address, record), layers, None)
}

/// As [`restore`], for many sites, with one look for kernel uprobes.
///
/// # Errors
///
/// Those of [`restore`].
pub fn restore_all(
    stopped: &mut Stopped,
    sites: &[(u64, &Site)],
    layers: &Layers,
) -> Result<(), Error> {
    let place = |(address, record): &(u64, &Site)| {
        let len = Stored::of(record).len() as u64;
        *address..*address + len
    };
    let places: Vec<_> = sites.iter().map(place).collect();
    let probed = kernel_uprobes_left(stopped, &places).ok();
    let mut sites = sites.iter();
    sites.try_for_each(|site| restore_beside(stopped, *site, layers, probed.as_ref()))
}

/// Restores a site beside kernel uprobes, which are looked for if they are not known.
fn restore_beside(
    stopped: &mut Stopped,
    (address, record): (u64, &Site),
    layers: &Layers,
    known: Option<&BTreeSet<u64>>,
) -> Result<(), Error> {
    let is_under = layers.is_under(address, record.layer);
    if record.patched.load(SeqCst) == 0 || is_under {
        return Ok(());
    }
    let stored = Stored::of(record);
    let (patch, original) = (stored.patch, layers.below(address, record.layer, stored));
    let mut now = vec![0; stored.len()];
    stopped.check_readable()?;
    if stopped.read(address, &mut now).is_err() {
        // Unmapped by the target.
        record.patched.store(0, SeqCst);
        return Ok(());
    }
    if Text::of(&now, stored) != Text::Other {
        let place = address..address + stored.len() as u64;
        // Where that cannot be known, because the file is gone, a breakpoint over a jump is taken
        // for another tracer's.
        let found;
        let probed = match known {
            Some(known) => known,
            None => {
                found =
                    kernel_uprobes_left(stopped, std::slice::from_ref(&place)).unwrap_or_default();
                &found
            }
        };
        if is_covered(address, &now, patch, probed) {
            return Ok(());
        }
        let bytes = beside(address, &now, original, original, probed);
        lead_back(stopped, std::iter::once(Going::of(record)))?;
        stopped.write(address, &bytes)?;
        now = bytes;
    }
    let theirs = breakpoints(address, &now, original);
    if beside(address, &now, original, original, &theirs) == now {
        record.patched.store(0, SeqCst);
    }
    Ok(())
}

/// A site's code and state before its patch goes, for the case that the next one cannot be stored.
#[derive(Debug)]
pub struct Before {
    code: Vec<u8>,
    patched: u32,
}

impl Before {
    /// Notes them.
    ///
    /// # Errors
    ///
    /// [`Error::Inject`] if the code cannot be read.
    pub fn of(stopped: &Stopped, address: u64, record: &Site) -> Result<Self, Error> {
        let mut code = vec![0; record.original_len as usize];
        stopped.read(address, &mut code)?;
        let patched = record.patched.load(SeqCst);
        Ok(Self { code, patched })
    }

    /// Puts them back, in the same stop. No thread has run since, so none is in its way.
    ///
    /// # Errors
    ///
    /// [`Error::Inject`] if the code cannot be written.
    pub fn put_back(self, stopped: &mut Stopped, address: u64, record: &Site) -> Result<(), Error> {
        record.patched.store(self.patched, SeqCst);
        Ok(stopped.write(address, &self.code)?)
    }
}

/// True if a breakpoint that is not the kernel's lies upon a jump. Its removal brings the jump's
/// first byte back.
pub fn is_covered(address: u64, now: &[u8], patch: &[u8], probed: &BTreeSet<u64>) -> bool {
    now.first() == Some(&INT3) && patch.first() != Some(&INT3) && !probed.contains(&address)
}

/// A thread that has a signal blocked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Blocking {
    /// Its number.
    pub tid: i32,
    /// True if it runs, or would if there were a processor for it: it may not block the signal for
    /// long.
    pub is_running: bool,
}

/// Returns the threads of the process that have the signal blocked, and have not ended.
pub fn threads_blocking(pid: i32, signal: i32) -> Vec<Blocking> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return Vec::new();
    };
    let blocking = threads.flatten().filter_map(|thread| {
        let status = proc::text(thread.path().join("status")).ok()?;
        let field = |name| status.lines().find_map(|line| line.strip_prefix(name));
        let state = field("State:")?.trim_start();
        let mask = u64::from_str_radix(field("SigBlk:")?.trim(), 16).ok()?;
        let tid = thread.file_name().to_str()?.parse().ok()?;
        let is_running = state.starts_with('R');
        let blocks = mask >> (signal - 1) & 1 == 1 && !state.starts_with(['Z', 'X']);
        blocks.then_some(Blocking { tid, is_running })
    });
    blocking.collect()
}
