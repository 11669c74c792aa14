//! The place in a target where threads make system calls for Beeline: a cell with a way home, see
//! [`restore_stub`](crate::restore_stub), or else a `syscall` instruction of the target's own.

use std::ops::Range;

use object::NativeEndian;
use object::elf::{FileHeader64, PF_X, PT_LOAD};
use object::read::elf::{FileHeader, ProgramHeader};

use crate::frames;
use crate::held_threads::{HeldThreads, State};
use crate::ptrace;
use crate::regions::PAGE;
use crate::restore_stub::{self, BorrowedThread, CELL, SYSCALL_LEN};
use crate::{Error, Region, Seccomp};

/// The `syscall` instruction that threads of a target are sent through.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Gate {
    /// That instruction.
    pub syscall: u64,
    /// The cell that contains it. Without one, a thread is lost if Beeline dies while the thread is
    /// borrowed.
    pub cell: Option<u64>,
    /// True if the cell is filled.
    is_written: bool,
}

impl Gate {
    /// Returns where a thread stands when it has made a call. From here on, if nothing stops it, it
    /// finds its way home.
    pub fn behind(&self) -> u64 {
        self.syscall + SYSCALL_LEN
    }
}

/// The mapping with the zeroes that are looked at first: small, in every process, and private to it
/// when it is written.
const VDSO: &str = "[vdso]";

impl HeldThreads {
    /// Returns the gate.
    pub fn gate(&mut self) -> Result<Gate, Error> {
        if let Some(gate) = self.gate {
            return Ok(gate);
        }
        let regions = self.held.regions(&self.process)?;
        let gate = match self.find_cell(&regions) {
            Some(cell) => Gate {
                syscall: restore_stub::gate(cell),
                cell: Some(cell),
                is_written: false,
            },
            None => Gate {
                syscall: self.find_syscall(&regions)?,
                cell: None,
                is_written: false,
            },
        };
        self.gate = Some(gate);
        Ok(gate)
    }

    /// Writes the way home of a borrowed thread, which it takes if Beeline dies.
    pub fn write_way_home(&mut self, at: usize) -> Result<(), Error> {
        let tracee = &self.tracees[at];
        let (Some(borrowed), Some(gate)) = (&tracee.borrowed, self.gate) else {
            return Ok(());
        };
        let Some(cell) = gate.cell else {
            return Ok(());
        };
        let bytes = restore_stub::cell(&BorrowedThread {
            regs: &tracee.regs,
            mask: borrowed.mask,
            call_mask: borrowed.call_mask,
            dispatch: borrowed.dispatch,
            sequence: borrowed.sequence.and_then(|sequence| sequence.anew),
            // Under the other option no thread with a filter is borrowed.
            is_confined: self.process.seccomp() != Seccomp::Refuse,
        });
        self.gate = Some(Gate {
            is_written: true,
            ..gate
        });
        self.write(cell, &bytes)
    }

    /// Removes the cell when no thread is borrowed any more.
    pub fn clear_gate(&mut self) -> Result<(), Error> {
        let Some(gate) = self.gate.filter(|gate| gate.is_written) else {
            return Ok(());
        };
        let is_used = |state: State| state != State::Gone;
        if !self.tracees.iter().any(|tracee| is_used(tracee.state)) {
            // The process has ended, or runs another program.
            return Ok(());
        }
        self.gate = Some(Gate {
            is_written: false,
            ..gate
        });
        gate.cell.map_or(Ok(()), |cell| self.write(cell, &ZEROES))
    }

    /// Finds a cell that nothing uses.
    ///
    /// A cell that a killed Beeline has left behind is as good if no thread can be in it, and is
    /// then removed together with this one. Only a session that holds all threads gets a cell,
    /// because nobody else can then be at work in the same zeroes.
    fn find_cell(&mut self, regions: &[Region]) -> Option<u64> {
        if !self.is_whole {
            return None;
        }
        let mut code: Vec<_> = regions.iter().filter(|one| is_code_of_file(one)).collect();
        code.sort_by_key(|region| (region.path.as_os_str() != VDSO, region.end - region.start));
        code.into_iter().find_map(|region| {
            let tail = self.tail(region, regions)?;
            let mut bytes = vec![0; (tail.end - tail.start) as usize];
            self.read(tail.start, &mut bytes).ok()?;
            let cells = || {
                tail.clone()
                    .step_by(CELL as usize)
                    .zip(bytes.chunks(CELL as usize))
            };
            let mut left = cells().filter(|(_, bytes)| restore_stub::left_behind(bytes).is_some());
            let left = left.find(|(cell, _)| self.is_left(*cell, regions));
            let found = left.or_else(|| cells().find(|(_, bytes)| **bytes == ZEROES));
            found.map(|(cell, _)| cell)
        })
    }

    /// Returns the cells between the last byte of a segment of code and the end of its page.
    fn tail(&mut self, region: &Region, regions: &[Region]) -> Option<Range<u64>> {
        const HEADERS: usize = 4096;
        let is_start = |one: &&Region| {
            one.offset == 0
                && one.permissions.read
                && (one.inode, one.device) == (region.inode, region.device)
        };
        let start = match region.offset {
            0 => region,
            _ => regions.iter().find(is_start)?,
        };
        let mut headers = vec![0; HEADERS];
        self.read(start.start, &mut headers).ok()?;
        let header = FileHeader64::<NativeEndian>::parse(&*headers).ok()?;
        let segments = header.program_headers(NativeEndian, &*headers).ok()?;
        let ends = segments.iter().filter_map(|segment| {
            let of = |word: object::U64<NativeEndian>| word.get(NativeEndian);
            let is_code = segment.p_type(NativeEndian) == PT_LOAD
                && segment.p_flags(NativeEndian).contains(PF_X);
            is_code.then(|| of(segment.p_offset).saturating_add(of(segment.p_filesz)))
        });
        let mapped = region.offset..region.offset + (region.end - region.start);
        let mut tails = ends.filter_map(|end| {
            let page_end = end.checked_next_multiple_of(PAGE)?;
            let is_mapped = mapped.contains(&end) && page_end <= mapped.end;
            let address = |offset: u64| region.start + (offset - region.offset);
            is_mapped.then(|| address(end).next_multiple_of(CELL)..address(page_end))
        });
        tails.find(|tail| tail.start < tail.end)
    }

    /// True if no thread is in a cell that was left behind, or about to return to it from a signal
    /// handler.
    fn is_left(&mut self, cell: u64, regions: &[Region]) -> bool {
        let range = cell..cell + CELL;
        let held = self.tracees.iter().filter(|one| one.state == State::Held);
        let stacks: Vec<u64> = held.clone().map(|one| one.regs.rsp).collect();
        // A borrowed thread is not where its registers belong.
        let is_inside = |tid| ptrace::registers(tid).is_ok_and(|regs| range.contains(&regs.rip));
        let mut tids = held.map(|one| one.tid);
        if tids.any(is_inside) {
            return false;
        }
        let process = self.process.clone();
        let Ok(memory) = process.memory() else {
            return false;
        };
        let read = |at, into: &mut [u8]| process.read_from(&memory, at, into).is_ok();
        stacks.into_iter().all(|sp| {
            let frames = frames::reached_from(&read, regions, sp);
            frames.into_iter().all(|frame| !range.contains(&frame.ip))
        })
    }

    /// Returns the address of a `syscall` instruction in the target.
    fn find_syscall(&mut self, regions: &[Region]) -> Result<u64, Error> {
        let mut code: Vec<_> = regions
            .iter()
            .filter(|region| region.permissions.execute && region.permissions.read)
            .collect();
        // The vDSO is small and always has one; libc and the program are for systems that boot
        // without it.
        code.sort_by_key(|region| (region.path.as_os_str() != VDSO, region.end - region.start));
        let found = code
            .into_iter()
            .find_map(|region| self.find_syscall_in(region));
        found.ok_or_else(|| match self.process.is_alive() {
            true => Error::NoAgent {
                pid: self.process.pid(),
                why: "no executable mapping holds a syscall instruction",
            },
            false => self.exited(),
        })
    }

    fn find_syscall_in(&mut self, region: &Region) -> Option<u64> {
        const SYSCALL: [u8; 2] = [0x0f, 0x05];
        const CHUNK: u64 = 64 << 10;
        let mut start = region.start;
        while start < region.end {
            let mut bytes = vec![0; (region.end - start).min(CHUNK) as usize];
            self.read(start, &mut bytes).ok()?;
            if let Some(at) = bytes
                .windows(SYSCALL.len())
                .position(|pair| pair == SYSCALL)
            {
                return Some(start + at as u64);
            }
            // An instruction across two chunks is missed, which costs nothing: there are others.
            start += CHUNK;
        }
        None
    }
}

const ZEROES: [u8; CELL as usize] = [0; CELL as usize];

/// True for private code of a file or the vDSO that nobody writes.
fn is_code_of_file(region: &Region) -> bool {
    let permissions = region.permissions;
    let is_code =
        permissions.read && permissions.execute && !permissions.write && !permissions.shared;
    is_code && (region.inode != 0 || region.path.as_os_str() == VDSO)
}
