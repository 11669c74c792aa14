//! System calls that slip through: made by an instruction that is neither hooked nor known to make
//! calls.
//!
//! No scan of code finds all of them: memory that stays writable is not scanned, and in a stripped
//! program bytes may be an instruction or data. But a thread that sleeps in a call shows which
//! instruction made it, without being stopped.

use std::collections::BTreeSet;
use std::sync::Arc;

use beeline_agent::abi::syscalls::ORIGINAL;
use beeline_hook::{SYSCALL, Unhookable as Why};
use beeline_inject::{Asleep, Region};

use super::stubs::{Listed, list, spared_one};
use super::written::{calls_without_file, is_kernels_or_ours};
use super::{Syscalls, calls_of_file, key};
use crate::file_syscalls::{FileCalls, Part};
use crate::target::memory::TargetMemory;
use crate::vdso;

/// A target's state of such calls.
#[derive(Debug, Clone, Default)]
pub(super) struct Slipped {
    /// The number of threads that have been looked at, which determines the next one.
    looks: usize,
    /// Instructions that threads sleep behind and that are hooked or reported by other means. Most
    /// threads sleep behind one of these.
    known: BTreeSet<u64>,
    /// Those that have been reported.
    told: BTreeSet<u64>,
}

impl Slipped {
    /// Forgets the known instructions, because the code has changed.
    pub fn forget_code(&mut self) {
        self.known.clear();
    }
}

/// A call that no program has seen though one waits for it.
#[derive(Debug)]
pub struct SlippedCall {
    /// The process's name.
    pub name: String,
    /// The place of the instruction: a file and the offset there, or an address.
    pub place: String,
    /// The call's number.
    pub number: i64,
}

/// The number of threads that are looked at each time. Each takes some microseconds.
const THREADS: usize = 16;
/// The most instructions that are reported in the life of a process: code that is written anew may
/// be anywhere each time.
const LIMIT: usize = 256;

impl Syscalls {
    /// Looks at the instructions by which some of the sleeping threads have called the kernel.
    /// Returns those that were not known yet, each once, and lists them in the process.
    pub fn look_for_slipped(&mut self, memory: &mut TargetMemory) -> Vec<SlippedCall> {
        // Where only functions are probed, no program waits for calls.
        let is_waited_for = self
            .calls
            .as_ref()
            .is_some_and(|calls| !calls.links.is_empty());
        if !is_waited_for || memory.is_gone() {
            return Vec::new();
        }
        let sleepers = self.some_sleepers(memory);
        if sleepers.is_empty() {
            return Vec::new();
        }
        let Ok(regions) = memory.process.regions() else {
            return Vec::new();
        };
        let found = sleepers.iter();
        found
            .filter_map(|asleep| self.judge(memory, asleep, &regions))
            .collect()
    }

    /// Returns threads that sleep in calls which programs wait for, made by what look like unhooked
    /// instructions.
    fn some_sleepers(&mut self, memory: &TargetMemory) -> Vec<Asleep> {
        let Some(calls) = &mut self.calls else {
            return Vec::new();
        };
        let threads = memory.process.thread_ids().unwrap_or_default();
        let count = threads.len().min(THREADS);
        let first = calls.slipped.looks;
        calls.slipped.looks = first.wrapping_add(count);
        let (links, slipped) = (&calls.links, &calls.slipped);
        let is_waited_for = |asleep: &Asleep| {
            let mut numbers = links.iter().map(|one| one.link.number);
            // That number does not say which call goes on after a stop.
            asleep.number != libc::SYS_restart_syscall
                && numbers
                    .any(|number| number.is_none_or(|number| i64::from(number) == asleep.number))
        };
        let is_new = |asleep: &Asleep| {
            let call = asleep.call();
            !slipped.known.contains(&call) && !slipped.told.contains(&call)
        };
        let is_plain = |asleep: &Asleep| {
            let mut code = [0; SYSCALL.len()];
            let read = memory.process.read_memory(asleep.call(), &mut code);
            read.is_ok() && code == SYSCALL
        };
        (first..first + count)
            .filter_map(|index| memory.process.asleep(threads[index % threads.len()]))
            .filter(|asleep| is_waited_for(asleep) && is_new(asleep) && is_plain(asleep))
            .collect()
    }

    fn judge(
        &mut self,
        memory: &mut TargetMemory,
        asleep: &Asleep,
        regions: &[Region],
    ) -> Option<SlippedCall> {
        let call = asleep.call();
        let region = regions.iter().find(|region| region.contains(call))?;
        if vdso::is_at(region) || is_kernels_or_ours(region) {
            return None;
        }
        let calls = self.calls.as_ref()?;
        let is_seen = calls.seen.contains(&key(region));
        // Code that has just come will be scanned in a moment.
        let is_settled = is_seen || calls.written.leaves_alone(region);
        if !is_settled || calls.slipped.told.len() >= LIMIT {
            return None;
        }
        let known = match is_patched(memory, call) {
            true => Known::Hooked,
            false if !is_seen => Known::Not,
            false => known_as(call, region, &*self.calls_known_in(memory, region)?),
        };
        let slipped = &mut self.calls.as_mut()?.slipped;
        let is_listed = match known {
            Known::Hooked | Known::Told => {
                slipped.known.insert(call);
                return None;
            }
            Known::Doubtful => true,
            Known::Not => false,
        };
        if !slipped.told.insert(call) {
            return None;
        }
        if !is_listed {
            let why = "it was found in a sleeping thread only: nothing tells that there is code";
            // Without room it is reported nevertheless.
            let _ = list(memory, Listed::unhookable(&[spared_one(call, why)]));
        }
        Some(SlippedCall {
            name: memory.name(),
            place: place_of(call, region),
            number: asleep.number,
        })
    }

    /// Returns what is known of a mapping's calls. The file may be gone by now, and what is in
    /// memory is not what it held.
    fn calls_known_in(&self, memory: &TargetMemory, region: &Region) -> Option<Arc<FileCalls>> {
        match region.inode {
            0 => calls_without_file(memory, region),
            inode => {
                let gone = || memory.shared.calls.known(region.device, inode);
                calls_of_file(memory, region).or_else(gone)
            }
        }
    }
}

/// True if a jump stands over it, or right before or behind it.
fn is_patched(memory: &TargetMemory, call: u64) -> bool {
    let around = call.saturating_sub(ORIGINAL as u64)..=call + SYSCALL.len() as u64;
    let mut patched = memory.syscall_patches.range(around);
    patched.any(|(site, stored)| site + stored.bytes().len() as u64 >= call)
}

/// Knowledge about a `syscall` instruction.
enum Known {
    Hooked,
    /// It cannot be hooked, and the user has been told.
    Told,
    /// It was thought to be possibly data.
    Doubtful,
    Not,
}

fn known_as(call: u64, region: &Region, file: &FileCalls) -> Known {
    // Where the instruction itself is left alone, the sleeping thread may have called before it was
    // hooked.
    if file
        .within(region, Part::ALL)
        .iter()
        .any(|plan| plan.call == call)
    {
        return Known::Hooked;
    }
    let unhookable = file.unhookable_within(region).into_iter();
    match unhookable.into_iter().find(|(address, _)| *address == call) {
        Some((_, unhookable)) if matches!(unhookable.why, Why::Doubtful) => Known::Doubtful,
        Some(_) => Known::Told,
        None => Known::Not,
    }
}

fn place_of(address: u64, region: &Region) -> String {
    match region.inode {
        0 => format!("{address:#x}"),
        _ => {
            let offset = address - region.start + region.offset;
            format!("{}+{offset:#x}", region.path.display()).replace(char::is_control, "\u{fffd}")
        }
    }
}
