//! The private memory of a target: what belongs to it alone and is never shared.

use std::mem::{offset_of, size_of};

use beeline_agent::abi::{Control, Signals, Slot, TID_UNKNOWN};
use beeline_agent::returns::ReturnTable;
use beeline_inject::{MapFlags, Process, ProtFlags, Stopped};

use crate::arch::TID_OFFSETS;
use crate::detach::MAX_SITES;
use crate::error::{Error, os};
use crate::memory::{PAGE, pages};
use crate::semaphores;
use crate::tasks;

/// Bytes of a slot's stack. Programs need a few kilobytes, but if a signal arrives while one runs,
/// the target's own handler runs here too. Only what is touched takes memory.
const STACK: usize = 256 << 10;

/// The offset of the scratch room on the page of saved signal actions. The actions, and what
/// `patch` needs to change them, take little.
const SCRATCH: u64 = 2048;
const _: () = assert!(size_of::<Signals>().next_multiple_of(64) + 128 <= SCRATCH as usize);
const _: () = assert!(SCRATCH as usize + Stopped::SCRATCH <= PAGE);

/// Addresses of the region's parts: the control page (wiped in a forked child), the page of saved
/// signal actions, the return table, the bits of restored sites, the table of semaphores, the slots, the
/// synthetic tasks, and for each slot a guard page and a stack.
#[derive(Debug, Clone, Copy)]
pub struct Private {
    /// First byte.
    pub base: u64,
    /// Bytes.
    pub len: u64,
    restored: u64,
    semaphores: u64,
    slots: u64,
    tasks: u64,
    stacks: u64,
}

impl Private {
    /// Returns the parts of a region at `base`.
    pub fn layout(base: u64, cpus: u32) -> Self {
        let returns = base + 2 * PAGE as u64;
        let restored = returns + pages(size_of::<ReturnTable>()) as u64;
        let semaphores = restored + pages(MAX_SITES / 8) as u64;
        let slots = semaphores + pages(semaphores::TABLE) as u64;
        let tasks = slots + pages(size_of::<Slot>() * cpus as usize) as u64;
        let stacks = tasks + tasks::room(cpus);
        let len = stacks + ((PAGE + STACK) * cpus as usize) as u64 - base;
        Self {
            base,
            len,
            restored,
            semaphores,
            slots,
            tasks,
            stacks,
        }
    }

    /// Maps the region into a stopped target.
    ///
    /// # Errors
    ///
    /// [`Error::Inject`] if `mmap(2)`, `madvise(2)` or `mprotect(2)` fails in the target.
    pub fn map(stopped: &mut Stopped, cpus: u32) -> Result<Self, Error> {
        let len = Self::layout(0, cpus).len;
        let base = stopped.mmap_anonymous(
            len,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::empty(),
            0,
        )?;
        let this = Self::layout(base, cpus);
        stopped.madvise(this.control(), PAGE as u64, libc::MADV_WIPEONFORK)?;
        for cpu in 0..cpus {
            let guard = this.stack_top(cpu) - (STACK + PAGE) as u64;
            stopped.syscall(libc::SYS_mprotect, [guard, PAGE as u64, 0, 0, 0, 0])?;
        }
        Ok(this)
    }

    /// True if the region of `len` bytes that was mapped at `base` is still there, and filled. The
    /// first slot tells, as nothing else looks like it. `read` returns the word at an address.
    pub fn is_at(base: u64, len: u64, read: impl FnOnce(u64) -> Option<u64>) -> bool {
        let (slots, end) = (Self::layout(base, 1).slots, base.wrapping_add(len));
        let top = read(slots + offset_of!(Slot, stack_top) as u64);
        let is_top = |top: u64| {
            (slots..=end).contains(&top) && (end - top).is_multiple_of((PAGE + STACK) as u64)
        };
        top.is_some_and(is_top)
    }

    /// Returns what the agent expects to find in a process of the first number, and in its own pid
    /// namespace of the second, and where. The last store lets programs run.
    ///
    /// # Errors
    ///
    /// [`Error::Os`] if the kernel gives no random bytes (`getrandom(2)`).
    pub fn fill(&self, (pid, own): (i32, i32), cpus: u32) -> Result<Vec<(u64, Vec<u8>)>, Error> {
        let mut seeds = vec![[0u8; 8]; cpus as usize];
        rustix::rand::getrandom(
            seeds.as_flattened_mut(),
            rustix::rand::GetRandomFlags::empty(),
        )
        .map_err(|error| os("reading random bytes")(error.into()))?;
        let mut stores = Vec::new();
        let mut store = |at: u64, field: usize, bytes: &[u8]| {
            stores.push((at + field as u64, bytes.to_vec()));
        };
        for (cpu, seed) in seeds.into_iter().enumerate() {
            let slot = self.slots + (cpu * size_of::<Slot>()) as u64;
            let top = self.stack_top(cpu as u32);
            store(slot, offset_of!(Slot, stack_top), &top.to_ne_bytes());
            let seed = u64::from_ne_bytes(seed) | 1;
            store(slot, offset_of!(Slot, random), &seed.to_ne_bytes());
        }
        let control = self.control();
        store(control, offset_of!(Control, own_pid), &own.to_ne_bytes());
        store(control, offset_of!(Control, pid), &pid.to_ne_bytes());
        Ok(stores)
    }

    /// As [`Self::fill`], for a forked child with a copy of its parent's slots, which no thread
    /// holds.
    ///
    /// # Errors
    ///
    /// Those of [`Self::fill`].
    pub fn refill(&self, pids: (i32, i32), cpus: u32) -> Result<Vec<(u64, Vec<u8>)>, Error> {
        let mut stores = Vec::new();
        for cpu in 0..cpus as usize {
            let slot = self.slots + (cpu * size_of::<Slot>()) as u64;
            for field in [offset_of!(Slot, holder), offset_of!(Slot, lock)] {
                stores.push((slot + field as u64, vec![0; size_of::<usize>()]));
            }
        }
        stores.extend(self.fill(pids, cpus)?);
        Ok(stores)
    }

    /// Returns the [`Control`].
    pub fn control(&self) -> u64 {
        self.base
    }

    /// Returns the [`Signals`](beeline_agent::abi::Signals), on a page of their own.
    pub fn signals(&self) -> u64 {
        self.base + PAGE as u64
    }

    /// Returns room to have files mapped through, behind those.
    pub fn scratch(&self) -> u64 {
        self.signals() + SCRATCH
    }

    /// Returns the [`ReturnTable`].
    pub fn returns(&self) -> u64 {
        self.base + 2 * PAGE as u64
    }

    /// Returns the bits of restored sites: one for each site that there ever was, oldest first. A
    /// set bit means that the patch was taken away for good as the session left.
    pub fn restored(&self) -> u64 {
        self.restored
    }

    /// Returns the table of what the session has added to semaphores; see
    /// [`Shares`](crate::semaphores::Shares).
    pub fn semaphores(&self) -> u64 {
        self.semaphores
    }

    /// Returns the [`Slot`]s.
    pub fn slots(&self) -> u64 {
        self.slots
    }

    /// Returns room for [`tasks`]; untouched, and so without memory, unless a program asks for its
    /// task.
    pub fn tasks(&self) -> u64 {
        self.tasks
    }

    fn stack_top(&self, cpu: u32) -> u64 {
        self.stacks + ((PAGE + STACK) * (cpu as usize + 1)) as u64
    }
}

/// Finds where every thread keeps its own id, if the C library is one that does.
pub fn find_tid_offset(process: &Process, stopped: &Stopped) -> i32 {
    let own_namespace = process.own_pid() == process.pid();
    let all_keep_it_at = |offset: i32| {
        own_namespace
            && stopped.threads().iter().all(|thread| {
                // A program that has just begun has none.
                if thread.thread_pointer() == 0 {
                    return false;
                }
                let mut word = [0; 4];
                let place = thread.thread_pointer().wrapping_add_signed(offset.into());
                stopped.read(place, &mut word).is_ok() && i32::from_ne_bytes(word) == thread.tid()
            })
    };
    TID_OFFSETS
        .into_iter()
        .find(|offset| all_keep_it_at(*offset))
        .unwrap_or(TID_UNKNOWN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_is_known_by_its_first_slot() {
        for cpus in [1, 2, 64] {
            let region = Private::layout(0x7f00_0000_0000, cpus);
            let is_at = |top: Option<u64>| Private::is_at(region.base, region.len, |_| top);
            assert!(is_at(Some(region.stack_top(0))), "{cpus}");
            // Nothing there; fresh memory of other code; a stack of another region.
            assert!(!is_at(None) && !is_at(Some(0)));
            assert!(!is_at(Some(region.stack_top(0) + PAGE as u64)));
            assert!(!is_at(Some(
                region.base + region.len + (PAGE + STACK) as u64
            )));
        }
    }
}
