//! Witnesses: pages of code that are mapped into a target once more, and stay as the kernel has
//! them.
//!
//! A kernel uprobe inside a jump may store the very byte that the jump has there itself, so the
//! patched code does not show it. But the kernel stores the same byte in every private mapping of
//! the file that might be executed, when the file is mapped and when the uprobe comes. A witness is
//! such a mapping. It is read without stopping any thread. Only if it has changed, or there is none
//! yet, is the target stopped and the witness mapped anew. A fresh mapping shows exactly the
//! uprobes that are meant for the process. It shows no stale `int3` that a forked child has copied
//! from its parent.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering::SeqCst;

use beeline_agent::abi;
use beeline_inject::{MapFlags, Mapping, Process, ProtFlags, Region, Stopped};

use super::Hold;
use super::memory::TargetMemory;
use crate::detach::still_there;
use crate::environment::Environment;
use crate::error::{Error, os};
use crate::kernel_uprobes::{open_mapped, stored_by_kernel};
use crate::memory::PAGE;

/// Bytes between a target's program and the witnesses, as long as there is room. What is nearer is
/// left to trampolines and the heap.
const APART: u64 = 512 << 20;
/// Witnesses lie above a program that is lower than this, as bad pointers lead below it.
const LOW: u64 = 4 << 30;

/// A target's witnesses.
#[derive(Debug, Clone, Default)]
pub(super) struct Witnesses {
    mapped: Vec<Mapped>,
    /// The parts that are looked at, by where they are in the code.
    watched: BTreeMap<u64, Watched>,
    /// Places in files that cannot be opened any more. Nothing can be known of them.
    unknown: BTreeSet<u64>,
}

/// A witness.
#[derive(Debug, Clone)]
struct Mapped {
    /// The pages of code.
    code: Range<u64>,
    /// The [`abi::Witness`], in the home pool.
    record: u64,
}

/// A part of a witness.
#[derive(Debug, Clone)]
struct Watched {
    /// Its address.
    at: u64,
    /// The bytes that were there at the last look.
    seen: Vec<u8>,
}

/// A part of a file that is going to have a witness.
struct Part {
    /// The pages of code.
    code: Range<u64>,
    region: Region,
    file: File,
}

impl Part {
    /// Returns the offset in the file of an address in the code.
    fn offset_of(&self, address: u64) -> u64 {
        address - self.region.start + self.region.offset
    }

    /// Describes its witness, at an address if there is room; 0 stands for anywhere.
    fn mapping(&self, address: u64) -> Mapping<'_> {
        Mapping {
            file: self.file.as_fd(),
            offset: self.offset_of(self.code.start),
            len: self.code.end - self.code.start,
            protection: ProtFlags::READ,
            flags: MapFlags::PRIVATE,
            address,
        }
    }

    fn record(&self, at: u64, next: usize) -> abi::Witness {
        abi::Witness {
            address: (at as usize).into(),
            len: (self.code.end - self.code.start) as usize,
            offset: self.offset_of(self.code.start),
            device: self.region.device,
            inode: self.region.inode,
            next,
        }
    }
}

impl Witnesses {
    /// Returns the ranges, of code in one mapping each, that have no witness or one that has
    /// changed since the last look. The process is not stopped for that.
    fn doubtful(&self, process: &Process, ranges: &[Range<u64>]) -> Vec<Range<u64>> {
        let known = |range: &Range<u64>| {
            let watched = self.watched.get(&range.start);
            watched.filter(|watched| watched.seen.len() as u64 == range.end - range.start)
        };
        let ranges = ranges.iter();
        let ranges: Vec<_> = ranges
            .filter(|range| !self.unknown.contains(&range.start))
            .map(|range| (range, known(range)))
            .collect();
        let watched = ranges.iter().filter_map(|(_, watched)| *watched);
        let mut now: Vec<_> = watched
            .map(|watched| (watched.at, vec![0; watched.seen.len()]))
            .collect();
        process.read_pieces(&mut now);
        let mut now = now.into_iter();
        let mut is_same =
            |watched: &Watched| now.next().is_some_and(|(_, now)| now == watched.seen);
        let doubtful = ranges
            .into_iter()
            .filter(|(_, watched)| !watched.is_some_and(&mut is_same));
        doubtful.map(|(range, _)| range.clone()).collect()
    }

    /// Returns the addresses of kernel uprobes within ranges of code, in ascending order, as far as
    /// they may have changed since the last call for the same ranges.
    ///
    /// # Errors
    ///
    /// Those of mapping files into a process.
    pub fn new_kernel_uprobes(
        &mut self,
        memory: &mut TargetMemory,
        ranges: &[Range<u64>],
    ) -> Result<BTreeSet<u64>, Error> {
        let doubtful = self.doubtful(&memory.process, ranges);
        if doubtful.is_empty() || memory.waits_for_child() {
            return Ok(BTreeSet::new());
        }
        let (mut stale, anew) = self.taken_out(&doubtful, ranges);
        let Some(environment) = &mut memory.environment else {
            return Ok(BTreeSet::new());
        };
        let process = &memory.process;
        let pid = process.pid();
        let found = Hold::Brief.with(process, |stopped| {
            if !environment.is_in(stopped) {
                let why = "it runs another program by now".into();
                return Err(Error::Target { pid, why });
            }
            unmap(stopped, environment, &mut stale)?;
            let regions = stopped.regions()?;
            let (parts, unknown) = parts_of(pid, &regions, &anew);
            self.unknown.extend(unknown);
            let wishes = beside_program(process, &regions, &parts)?;
            map(stopped, environment, self, (&parts, &wishes), &anew)
        });
        // Witnesses that could not be unmapped are taken out the next time.
        self.mapped.append(&mut stale);
        found
    }

    /// Forgets a range that starts here, so that it is looked at anew.
    pub fn forget(&mut self, start: u64) {
        self.watched.remove(&start);
    }

    /// Takes out witnesses that have to be mapped anew for some ranges to be seen rightly, and
    /// those that are not needed any more.
    ///
    /// Returns them, and the ranges with those that were seen by the same witnesses.
    fn taken_out(
        &mut self,
        doubtful: &[Range<u64>],
        ranges: &[Range<u64>],
    ) -> (Vec<Mapped>, Vec<Range<u64>>) {
        let is_in = |code: &Range<u64>, range: &Range<u64>| {
            range.start < code.end && code.start < range.end
        };
        let pages: Vec<_> = doubtful.iter().map(pages_of).collect();
        let is_stale = |mapped: &mut Mapped| {
            pages.iter().any(|pages| is_in(&mapped.code, pages))
                || !ranges.iter().any(|range| is_in(&mapped.code, range))
        };
        let stale: Vec<_> = self.mapped.extract_if(.., is_stale).collect();
        let anew = ranges.iter().filter(|range| {
            let is_seen = stale.iter().any(|stale| is_in(&stale.code, range));
            is_seen || doubtful.contains(range)
        });
        let anew: Vec<_> = anew.cloned().collect();
        let is_wanted = |start: &u64| ranges.iter().any(|range| range.start == *start);
        self.unknown.retain(is_wanted);
        self.watched
            .retain(|start, _| is_wanted(start) && !anew.iter().any(|range| range.start == *start));
        (stale, anew)
    }
}

/// Unmaps witnesses, as far as they are still there, and takes them out of the list.
fn unmap(
    stopped: &mut Stopped,
    environment: &mut Environment,
    stale: &mut Vec<Mapped>,
) -> Result<(), Error> {
    let regions = stopped.regions()?;
    while let Some(record) = stale.last().map(|mapped| mapped.record) {
        // SAFETY: the record was placed in the home pool as a `Witness`.
        let witness = unsafe { environment.home.get::<abi::Witness>(record) };
        if let Some(there) = still_there(witness, &regions) {
            stopped.munmap(there.start, there.end - there.start)?;
        }
        witness.address.store(0, SeqCst);
        environment.free_witnesses.push(record);
        stale.pop();
    }
    Ok(())
}

/// Returns the pages of some ranges of code, joined where they lie side by side in one mapping, and
/// the starts of ranges for which there is no file.
fn parts_of(pid: i32, regions: &[Region], ranges: &[Range<u64>]) -> (Vec<Part>, Vec<u64>) {
    let (mut parts, mut unknown) = (Vec::<Part>::new(), Vec::new());
    for range in ranges {
        let Some(region) = regions.iter().find(|one| one.contains(range.start)) else {
            continue;
        };
        let pages = pages_of(range);
        let code = pages.start..pages.end.min(region.end);
        if let Some(last) = parts.last_mut()
            && last.region.start == region.start
            && code.start <= last.code.end
        {
            last.code.end = last.code.end.max(code.end);
            continue;
        }
        let file = match parts.last() {
            Some(last) if last.region.start == region.start => last.file.try_clone().ok(),
            _ => Some(region)
                .filter(|region| region.inode != 0)
                .and_then(|region| open_mapped(pid, region)),
        };
        match file {
            Some(file) => parts.push(Part {
                code,
                region: region.clone(),
                file,
            }),
            None => unknown.push(range.start),
        }
    }
    (parts, unknown)
}

/// Returns where the witnesses of these parts should be, or 0 for anywhere: beside the program,
/// where the kernel puts nothing unasked.
///
/// The kernel itself would put a witness where the target has just unmapped something, and a
/// program that reads through a pointer to that would find the witness there.
fn beside_program(
    process: &Process,
    regions: &[Region],
    parts: &[Part],
) -> Result<Vec<u64>, Error> {
    let program = std::fs::read_link(format!("/proc/{}/exe", process.pid()));
    let is_program = |region: &&Region| program.as_ref().is_ok_and(|path| region.path == *path);
    let Some(program) = regions.iter().find(is_program) else {
        return Ok(vec![0; parts.len()]);
    };
    let mut distance = APART;
    let wish = |part: &Part| {
        let len = part.code.end - part.code.start;
        // None of them is mapped yet, and no two should be at the same address.
        distance += len + PAGE as u64;
        let middle = match program.start < LOW {
            true => program.start + distance,
            false => program.start.saturating_sub(distance),
        };
        let near = middle.saturating_sub(APART / 2)..=middle + APART / 2;
        Ok(process.find_gap_among(regions, near, len)?.unwrap_or(0))
    };
    parts.iter().map(wish).collect()
}

/// Maps witnesses of these parts of files at the wished places, looks at the ranges in them, and
/// returns where kernel uprobes are.
fn map(
    stopped: &mut Stopped,
    environment: &mut Environment,
    witnesses: &mut Witnesses,
    (parts, wishes): (&[Part], &[u64]),
    ranges: &[Range<u64>],
) -> Result<BTreeSet<u64>, Error> {
    let mut found = BTreeSet::new();
    if parts.is_empty() {
        return Ok(found);
    }
    let mappings: Vec<_> = parts
        .iter()
        .zip(wishes)
        .map(|(part, wish)| part.mapping(*wish))
        .collect();
    // They are listed first: if Beeline is killed or this fails, a later clean-up finds those that
    // are mapped by then.
    let mut records = Vec::new();
    for (part, wish) in parts.iter().zip(wishes) {
        let record = environment.place_witness(|next| part.record(*wish, next))?;
        records.push(record);
        witnesses.mapped.push(Mapped {
            code: part.code.clone(),
            record,
        });
    }
    let placed = stopped.map_files_through(environment.private.scratch(), &mappings)?;
    for ((part, record), at) in parts.iter().zip(records).zip(placed) {
        // SAFETY: the record was placed in the home pool as a `Witness`.
        let witness = unsafe { environment.home.get::<abi::Witness>(record) };
        witness.address.store(at as usize, SeqCst);
        let code = &part.code;
        for range in ranges.iter().filter(|range| code.contains(&range.start)) {
            let at = at + (range.start - code.start);
            let mut seen = vec![0; (range.end.min(code.end) - range.start) as usize];
            stopped.read(at, &mut seen)?;
            let uprobes = stored_by_kernel(&part.file, part.offset_of(range.start), &seen)
                .map_err(os("reading a file that is mapped"))?;
            found.extend(uprobes.map(|distance| range.start + distance));
            witnesses.watched.insert(range.start, Watched { at, seen });
        }
    }
    Ok(found)
}

/// Returns the pages that a range lies in.
fn pages_of(range: &Range<u64>) -> Range<u64> {
    let page = PAGE as u64;
    range.start / page * page..range.end.next_multiple_of(page)
}
