//! Restoring a process's system calls.

use std::collections::BTreeSet;
use std::mem::offset_of;
use std::sync::atomic::Ordering::Relaxed;

use beeline_agent::abi::syscalls::{Move, Patch};
use beeline_agent::trapped::unmarked;
use beeline_hook::{JUMP_LEN, SYSCALL_LEN};
use beeline_inject::{Process, Stopped, signal_frames};
use beeline_uapi::linux::{self, PAGE_SIZE};

use super::{INT3, JUMP, Presence};
use crate::error::Error;
use crate::kernel_uprobes::{beside, kernel_uprobes};

impl Presence {
    /// Returns the jumps that are now in the process's code for its system calls, with the bytes
    /// there. A jump with a first byte that a kernel uprobe has changed is included.
    fn patched_calls(&self, stopped: &Stopped) -> Vec<(&Patch, [u8; JUMP_LEN])> {
        let mut patches: Vec<&Patch> = self.calls.patches.iter().collect();
        patches.sort_by_key(|patch| patch.address);
        // A process has hundreds of them, and waits meanwhile.
        // What lies between the jumps of one page is mapped, and is read with them.
        let page = |patch: &Patch| patch.address / PAGE_SIZE;
        let together = patches.chunk_by(|one, next| page(one) == page(next));
        let patched = together.flat_map(|patches| {
            let code = code_of(stopped, patches);
            let jumps = move |(patch, now): &(&Patch, [u8; JUMP_LEN])| {
                let is_first = now[0] == JUMP || now[0] == INT3 || now[0] == patch.original[0];
                is_first
                    && now[1..] != patch.original[1..JUMP_LEN]
                    && self.jumps_here(patch.address, now)
            };
            patches.iter().copied().zip(code).filter(jumps)
        });
        patched.collect()
    }

    /// True if a jump is still there.
    pub(super) fn is_call_patched(&self, stopped: &Stopped) -> bool {
        !self.patched_calls(stopped).is_empty()
    }

    /// True if a session that has programs on system calls may take out this session's hooks.
    pub(crate) fn gives_way(&self) -> bool {
        self.is_live && self.calls.hooked > 0 && self.manifest.gives_way.load(Relaxed) != 0
    }

    /// True if calls are hooked. If the session gives way, only the code shows it.
    pub(crate) fn hooks_calls(&self, process: &Process) -> bool {
        let is_patched = |patch: &Patch| {
            let mut now = [0; JUMP_LEN];
            let is_read = process.read_memory(patch.address, &mut now).is_ok();
            is_read
                && now[1..] != patch.original[1..JUMP_LEN]
                && self.jumps_here(patch.address, &now)
        };
        let may_be_gone = self.manifest.gives_way.load(Relaxed) != 0;
        self.calls.hooked > 0 && (!may_be_gone || self.calls.patches.iter().any(is_patched))
    }

    /// Makes the calls of such a session be as if they had never been hooked. The session finds
    /// that out itself.
    pub(crate) fn give_way(&self, stopped: &mut Stopped) -> Result<(), Error> {
        self.restore_calls(stopped)?;
        self.bring_back(stopped)
    }

    /// Restores the code around system calls. Kernel uprobes there stay; so does a jump under
    /// another party's breakpoint.
    pub(super) fn restore_calls(&self, stopped: &mut Stopped) -> Result<(), Error> {
        let patched = self.patched_calls(stopped);
        let is_disturbed = |(_, now): &&(&Patch, [u8; JUMP_LEN])| now[0] != JUMP;
        let disturbed = patched.iter().filter(is_disturbed);
        let places = disturbed.map(|(patch, _)| patch.address..patch.address + 1);
        let places: Vec<_> = places.collect();
        let probed = match places.is_empty() {
            true => BTreeSet::new(),
            false => kernel_uprobes(stopped, &places).unwrap_or_default(),
        };
        let patched = patched.into_iter();
        let ours = patched.filter(|(patch, now)| now[0] != INT3 || probed.contains(&patch.address));
        let code = ours.map(|(patch, now)| {
            let len = usize::from(patch.len).min(patch.original.len());
            let original = &patch.original[..len];
            let bytes = beside(patch.address, &now, original, original, &probed);
            (patch.address, bytes)
        });
        stopped.write_code(code.collect())?;
        unmark(stopped)
    }

    /// Sends threads back to the code that wait in a call which is made elsewhere, and threads that
    /// will return into such a call from a signal handler.
    pub(super) fn bring_back(&self, stopped: &mut Stopped) -> Result<(), Error> {
        for thread in stopped.threads().to_vec() {
            let (ip, sp) = (thread.ip(), thread.sp());
            if let Some((ip, sp)) = self.home_of(stopped, ip, sp) {
                stopped.send(thread.tid(), ip, sp)?;
            }
        }
        let moves = self.calls.moves.iter();
        let around = moves.map(|one| one.moved - SYSCALL_LEN..one.moved + 1);
        for frame in signal_frames(stopped, &around.collect::<Vec<_>>())? {
            // In the kernel's saved state the stack pointer comes right before the instruction
            // pointer.
            let sp_at = frame.saved_at - 8;
            let mut sp = [0; 8];
            stopped.read(sp_at, &mut sp)?;
            let sp = u64::from_ne_bytes(sp);
            if let Some((ip, sp)) = self.home_of(stopped, frame.ip, sp) {
                stopped.write(sp_at, [sp, ip].map(u64::to_ne_bytes).as_flattened())?;
            }
        }
        Ok(())
    }

    /// Returns where in the code a thread belongs that stands at or behind a moved call, and its
    /// stack pointer there.
    fn home_of(&self, stopped: &Stopped, ip: u64, sp: u64) -> Option<(u64, u64)> {
        // The kernel moves back by the instruction to restart a call.
        let back = |one: &Move| one.moved.wrapping_sub(ip);
        let of = |one: &&Move| [0, SYSCALL_LEN].contains(&back(one));
        let one = self.calls.moves.iter().find(of)?;
        let back = back(one);
        if one.behind != 0 {
            return Some((one.behind.wrapping_sub(back), sp));
        }
        // Its own stack says where, and what: a thread can be sent anywhere by that, but only by itself.
        let at = sp.wrapping_add(one.regs);
        let word = |field: usize| {
            let mut word = [0; 8];
            stopped
                .read(at.wrapping_add(field as u64), &mut word)
                .ok()?;
            Some(u64::from_ne_bytes(word))
        };
        let behind = word(offset_of!(linux::PtRegs, ip))?;
        Some((
            behind.wrapping_sub(back),
            word(offset_of!(linux::PtRegs, sp))?,
        ))
    }
}

/// Takes the agent's mark away from threads that wait in calls with paths: nothing does so behind the
/// call any more.
fn unmark(stopped: &mut Stopped) -> Result<(), Error> {
    const SIXTH: usize = 5;
    for thread in stopped.threads().to_vec() {
        let mut registers = *thread.registers();
        // No call has the number that stands for none.
        let number = registers.call_number() as u64;
        if let Some(last) = unmarked(number, registers.argument(SIXTH)) {
            registers.set_last_argument(last);
            stopped.set_registers(thread.tid(), registers)?;
        }
    }
    Ok(())
}

/// Returns the bytes at stored jumps, which are in ascending order within one page. Where nothing
/// can be read any more they are zeros.
fn code_of(stopped: &Stopped, patches: &[&Patch]) -> Vec<[u8; JUMP_LEN]> {
    let (Some(first), Some(last)) = (patches.first(), patches.last()) else {
        return Vec::new();
    };
    let mut code = vec![0; (last.address - first.address) as usize + JUMP_LEN];
    let is_whole = stopped.read(first.address, &mut code).is_ok();
    let code = patches.iter().map(|patch| {
        let mut now = [0; JUMP_LEN];
        match is_whole {
            true => {
                now.copy_from_slice(&code[(patch.address - first.address) as usize..][..JUMP_LEN])
            }
            // Some of it has been unmapped.
            false if stopped.read(patch.address, &mut now).is_err() => now = [0; JUMP_LEN],
            false => {}
        }
        now
    });
    code.collect()
}
