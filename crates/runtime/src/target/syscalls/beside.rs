//! Kernel uprobes at the jumps of system calls.
//!
//! The kernel runs the file's instruction, which moves the call's number, and goes on at the call
//! itself. So the call is made and its return is seen, but its entry is not. When the kernel's
//! uprobe goes, the file's first byte stays, and the number is wrong until the stub corrects it
//! (`beeline_hook::CallPlan::emit`) or the jump is whole again. No thread reports either, so
//! Beeline looks now and then.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use beeline_hook::INT3;
use beeline_inject::Process;

use super::Syscalls;
use crate::error::Error;
use crate::kernel_uprobes::kernel_uprobes;
use crate::memory::PAGE;
use crate::target::Hold;
use crate::target::memory::TargetMemory;
use crate::target::syscall_patches::StoredPatch;

/// The pause between looks.
const PAUSE: Duration = Duration::from_secs(5);
/// The pause between looks while there is one.
const SHORT: Duration = Duration::from_secs(1);

/// The state of the looks for kernel uprobes there.
#[derive(Debug, Clone, Default)]
pub(super) struct Beside {
    looked: Option<Instant>,
    /// True if there was one at the last look.
    is_there: bool,
    /// Places that have been reported.
    told: BTreeSet<u64>,
}

impl Beside {
    fn is_due(&self) -> bool {
        let pause = if self.is_there { SHORT } else { PAUSE };
        self.looked.is_none_or(|looked| looked.elapsed() > pause)
    }
}

impl Syscalls {
    /// Restores jumps that had a kernel uprobe. Returns, as text for people, where there is one
    /// now, each once.
    pub(in crate::target) fn mend(&mut self, memory: &mut TargetMemory) -> Vec<String> {
        let Some(calls) = self.calls.as_mut().filter(|calls| calls.beside.is_due()) else {
            return Vec::new();
        };
        calls.beside.looked = Some(Instant::now());
        calls.beside.is_there = false;
        let touched = touched(&memory.process, &memory.syscall_patches);
        if touched.is_empty() || memory.waits_for_child() {
            return Vec::new();
        }
        // A failure is tried again.
        let probed = make_whole(memory, &touched).unwrap_or_default();
        let pid = memory.process.pid();
        let Some(calls) = &mut self.calls else {
            return Vec::new();
        };
        calls.beside.is_there = !probed.is_empty();
        let new = probed
            .into_iter()
            .filter(|address| calls.beside.told.insert(*address));
        let say = |address| {
            format!(
                "process {pid}: a kernel uprobe is at {address:#x}, where a system call is hooked: as long as it is there this session \
                 sees that call's return and not its entry"
            )
        };
        new.map(say).collect()
    }
}

/// Stores again the first bytes of jumps that have no kernel uprobe any more. Returns the other
/// jumps.
fn make_whole(memory: &TargetMemory, touched: &[u64]) -> Result<BTreeSet<u64>, Error> {
    let ranges: Vec<_> = touched.iter().map(|at| *at..*at + 1).collect();
    Hold::Brief.with(&memory.process, |stopped| {
        memory.check_same(stopped)?;
        let probed = kernel_uprobes(stopped, &ranges)?;
        let mut code = Vec::new();
        for address in touched.iter().filter(|at| !probed.contains(at)) {
            let Some(stored) = memory.syscall_patches.get(address) else {
                continue;
            };
            let mut now = vec![0; stored.bytes().len()];
            let is_read = stopped.read(*address, &mut now).is_ok();
            if is_read && stored.lacks_first(&now) && now[0] != INT3 {
                code.push((*address, stored.bytes()[..1].to_vec()));
            }
        }
        stopped.write_code(code)?;
        Ok(probed)
    })
}

/// Returns the patches that stand there except for their first bytes.
fn touched(process: &Process, patched: &BTreeMap<u64, StoredPatch>) -> Vec<u64> {
    let places: Vec<_> = patched.iter().collect();
    let is_together = |one: &(&u64, &StoredPatch), next: &(&u64, &StoredPatch)| {
        *one.0 / PAGE as u64 == *next.0 / PAGE as u64
    };
    let together: Vec<_> = places.chunk_by(is_together).collect();
    let piece = |together: &&[(&u64, &StoredPatch)]| {
        let (start, _) = together.first()?;
        let (last, stored) = together.last()?;
        let len = (**last - **start) as usize + stored.bytes().len();
        Some((**start, vec![0; len]))
    };
    let mut pieces: Vec<_> = together.iter().filter_map(piece).collect();
    process.read_pieces(&mut pieces);
    let mut touched = Vec::new();
    for (together, (start, now)) in together.iter().zip(&pieces) {
        for (address, stored) in *together {
            let from = (**address - start) as usize;
            // Memory that cannot be read has been unmapped.
            let now = now.get(from..from + stored.bytes().len());
            if now.is_some_and(|now| stored.lacks_first(now)) {
                touched.push(**address);
            }
        }
    }
    touched
}
