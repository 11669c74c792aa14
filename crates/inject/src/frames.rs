//! Interrupted code that a signal handler will return into.
//!
//! A thread that is held in a signal handler has two places: where it is, and where it was when the
//! signal came, which the kernel has saved on its stack. Patching must mind both.

use std::ops::Range;

use crate::arch::restore_stub::{self, CELL};
use crate::arch::signal_frame::{BREAKPOINT_CODE, Context, IP_TO_INFO, RESTORER_TO_IP, SP_TO_IP};
use crate::regions::Region;
use crate::{Error, Stopped};

/// A place on a stack from which a thread will return by `rt_sigreturn`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SignalFrame {
    /// The thread.
    pub tid: i32,
    /// The address where the thread will go on after the handler.
    pub ip: u64,
    /// The location of that address: write another address there to send the thread elsewhere.
    pub saved_at: u64,
    /// The location and the value of its stack pointer. `None` for a thread that comes from a call
    /// of Beeline's.
    pub sp: Option<(u64, u64)>,
    /// The address that the handler returns to: code that makes the `rt_sigreturn` call.
    pub restorer: u64,
    /// True if the signal is SIGTRAP for an `int3`, which stands before `ip`. Its handler has not
    /// decided yet where the thread goes on.
    pub is_of_breakpoint: bool,
}

/// Bytes of stack that are searched, from the stack pointer up.
const REACH: u64 = 256 << 10;
/// The most frames upon frames that are followed from stack to stack. More are taken for garbage.
const DEPTH: usize = 16;

/// Finds the signal frames on all threads' stacks by which a thread will return into one of
/// `ranges`, by the saved address or by the restorer.
///
/// It recognizes what the kernel saves by its appearance, so a stale frame, or data that look like
/// one, can be among the results. A handler on an alternate stack leads on to the stack that it
/// interrupted.
///
/// # Errors
///
/// Those of [`Stopped::regions`].
pub fn signal_frames(stopped: &Stopped, ranges: &[Range<u64>]) -> Result<Vec<SignalFrame>, Error> {
    let regions = stopped.regions()?;
    let mut found: Vec<SignalFrame> = Vec::new();
    let read = |at, into: &mut [u8]| stopped.read(at, into).is_ok();
    for thread in stopped.threads() {
        for saved in reached_from(&read, &regions, thread.sp()) {
            let mut restorer = [0; 8];
            // A frame without a readable start is none.
            read(saved.at.wrapping_sub(RESTORER_TO_IP), &mut restorer);
            let arrival = arrival(&read, saved.ip);
            let (ip, saved_at) = arrival.unwrap_or((saved.ip, saved.at));
            let mut info = [[0; 4]; 3];
            let is_told = read(saved.at.wrapping_add(IP_TO_INFO), info.as_flattened_mut());
            let [number, _, code] = info.map(i32::from_ne_bytes);
            let frame = SignalFrame {
                tid: thread.tid(),
                ip,
                saved_at,
                sp: arrival.is_none().then_some((saved.at - SP_TO_IP, saved.sp)),
                restorer: u64::from_ne_bytes(restorer),
                is_of_breakpoint: is_told && (number, code) == (libc::SIGTRAP, BREAKPOINT_CODE),
            };
            let leads_into =
                |range: &Range<u64>| range.contains(&frame.ip) || range.contains(&frame.restorer);
            if ranges.iter().any(leads_into) && !found.contains(&frame) {
                found.push(frame);
            }
        }
    }
    Ok(found)
}

/// Returns where a thread goes on that returns to an address on the way home, and where that is
/// kept.
fn arrival(read: &impl Fn(u64, &mut [u8]) -> bool, ip: u64) -> Option<(u64, u64)> {
    let cell = restore_stub::cell_around(ip)?;
    let mut bytes = [0; CELL as usize];
    read(cell, &mut bytes);
    Some((
        restore_stub::left_behind(&bytes)?.ip(),
        cell + restore_stub::IP,
    ))
}

/// Returns every frame on a stack from `sp` up, and on the stacks that these lead to. `read`
/// returns whether it succeeded.
pub(crate) fn reached_from(
    read: &impl Fn(u64, &mut [u8]) -> bool,
    regions: &[Region],
    sp: u64,
) -> Vec<Saved> {
    let mut found = Vec::new();
    let mut stacks = vec![sp];
    let mut at = 0;
    while let Some(&sp) = stacks.get(at).filter(|_| at < DEPTH) {
        at += 1;
        for saved in frames_from(read, regions, sp) {
            let is_known = |seen: &u64| saved.sp.wrapping_sub(*seen) < REACH;
            if !stacks.iter().any(is_known) {
                stacks.push(saved.sp);
            }
            found.push(saved);
        }
    }
    found
}

/// Returns every frame between `sp` and the end of its mapping, or of the reach.
fn frames_from(read: &impl Fn(u64, &mut [u8]) -> bool, regions: &[Region], sp: u64) -> Vec<Saved> {
    let start = sp & !7;
    let Some(region) = regions.iter().find(|region| region.contains(start)) else {
        return Vec::new();
    };
    let len = (region.end - start).min(REACH);
    let mut stack = vec![0; len as usize];
    // A stack that cannot be read (a guard page, a vanished mapping) holds no frame that the thread
    // could use.
    if !read(start, &mut stack) {
        return Vec::new();
    }
    let words: Vec<u64> = stack
        .as_chunks::<8>()
        .0
        .iter()
        .map(|&bytes| u64::from_ne_bytes(bytes))
        .collect();
    let frames = (0..words.len()).filter_map(|at| {
        let context = Context::recognize(&words, at)?;
        let saved_at = start + 8 * at as u64 + SP_TO_IP;
        let alternate = context.alternate_stack;
        let saved = Saved {
            at: saved_at,
            sp: context.sp,
            ip: context.ip,
        };
        (!alternate.is_some_and(|stack| is_elsewhere(saved_at, sp, stack))).then_some(saved)
    });
    frames.collect()
}

/// True if a frame is on an alternate stack that this stack pointer is not on.
///
/// The thread has left that stack, or it is another thread's: an alternate stack may be next to any
/// other stack, as Go's are, and keeps its last frame.
fn is_elsewhere(frame: u64, sp: u64, (start, len): (u64, u64)) -> bool {
    let is_inside = |at: u64| at.wrapping_sub(start) < len;
    is_inside(frame) && !is_inside(sp)
}

/// A frame: what its thread goes back to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Saved {
    /// The address of the instruction pointer.
    at: u64,
    sp: u64,
    pub ip: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process can put frames with any stack pointer on its stacks.
    #[test]
    fn a_frame_may_name_a_stack_at_the_end_of_all_addresses() {
        const BASE: u64 = 0x10_0000;
        let mut words = vec![0u64; 0x400];
        for (ip_at, sp) in [(0x100, u64::MAX - 7), (0x200, u64::MAX)] {
            words[ip_at..ip_at + 3].copy_from_slice(&[0x40_1000, 0x246, 0x33]);
            words[ip_at - 1] = sp;
        }
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let read = |at: u64, into: &mut [u8]| {
            let there = (at - BASE) as usize;
            into.copy_from_slice(&bytes[there..there + into.len()]);
            true
        };
        let line = "100000-102000 rw-p 00000000 00:00 0";
        let regions = crate::regions::parse(line.as_bytes());
        let found = reached_from(&read, &regions, BASE);
        let stacks: Vec<u64> = found.iter().map(|saved| saved.sp).collect();
        assert_eq!(stacks, [u64::MAX - 7, u64::MAX]);
    }

    /// A stack of 8 KiB, and above it an alternate one with a frame at its end.
    #[test]
    fn a_frame_on_an_alternate_stack_belongs_to_the_thread_on_it() {
        const BASE: u64 = 0x10_0000;
        const ALTERNATE: u64 = BASE + 0x2000;
        let mut words = vec![0u64; 0x800];
        let ip_at = 0x800 - 8;
        words[ip_at - 1..ip_at + 3].copy_from_slice(&[BASE + 0x1000, 0x40_1000, 0x246, 0x33]);
        words[ip_at - 19..ip_at - 16].copy_from_slice(&[ALTERNATE, 0, 0x2000]);
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let read = |at: u64, into: &mut [u8]| {
            let at = (at - BASE) as usize;
            into.copy_from_slice(&bytes[at..at + into.len()]);
            true
        };
        let line = "100000-104000 rw-p 00000000 00:00 0";
        let regions = crate::regions::parse(line.as_bytes());
        let found = |sp| frames_from(&read, &regions, sp).len();
        assert_eq!((found(BASE + 0x100), found(ALTERNATE + 0x100)), (0, 1));
    }
}
