//! Giving a process its system calls back.

use beeline_image::abi::PtRegs;
use beeline_image::abi::calls::{Move, Patch};
use beeline_inject::{Stopped, signal_frames};

use super::{JUMP, Presence};
use crate::error::Error;

/// Bytes of a `syscall` instruction, which a restarted call goes back by.
const SYSCALL_LEN: u64 = 2;

impl Presence {
    /// The jumps that are in the process's code for its system calls now.
    fn patched_calls(&self, read: impl Fn(u64, &mut [u8]) -> bool) -> impl Iterator<Item = &Patch> {
        self.calls.patches.iter().filter(move |patch| {
            let mut now = [0; 5];
            let is_jump = read(patch.address, &mut now) && now[0] == JUMP;
            is_jump && self.jumps_here(patch.address, &now)
        })
    }

    /// Puts back what the code was around system calls.
    pub(super) fn restore_calls(&self, stopped: &mut Stopped) -> Result<(), Error> {
        let patched = self.patched_calls(|at, into| stopped.read(at, into).is_ok());
        let code = patched.map(|patch| {
            let len = usize::from(patch.len).min(patch.original.len());
            (patch.address, patch.original[..len].to_vec())
        });
        Ok(stopped.write_code(code.collect())?)
    }

    /// Sends threads that wait in a call which is made elsewhere than in the code back to the code, and those that will
    /// return into such a one from a signal handler.
    pub(super) fn bring_back(&self, stopped: &mut Stopped) -> Result<(), Error> {
        for thread in stopped.threads().to_vec() {
            let (ip, sp) = (thread.ip(), thread.registers().rsp);
            if let Some((ip, sp)) = self.home_of(stopped, ip, sp) {
                stopped.send(thread.tid(), ip, sp)?;
            }
        }
        let moves = self.calls.moves.iter();
        let around = moves.map(|one| one.moved - SYSCALL_LEN..one.moved + 1);
        for frame in signal_frames(stopped, &around.collect::<Vec<_>>())? {
            // In what the kernel saves the stack pointer stands before the instruction pointer.
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

    /// Where in the code a thread is that stands behind a moved call, or at one, and its stack pointer there.
    fn home_of(&self, stopped: &Stopped, ip: u64, sp: u64) -> Option<(u64, u64)> {
        let of = |one: &&Move| ip == one.moved || ip + SYSCALL_LEN == one.moved;
        let one = self.calls.moves.iter().find(of)?;
        let back = one.moved - ip;
        if one.behind != 0 {
            return Some((one.behind - back, sp));
        }
        let at = sp + one.regs;
        let word = |field: usize| {
            let mut word = [0; 8];
            stopped.read(at + field as u64, &mut word).ok()?;
            Some(u64::from_ne_bytes(word))
        };
        let behind = word(std::mem::offset_of!(PtRegs, ip))?;
        Some((behind - back, word(std::mem::offset_of!(PtRegs, sp))?))
    }
}
