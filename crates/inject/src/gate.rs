//! The place in a target where threads make system calls for Beeline: a cell with a way home, see
//! [`restore_stub`](crate::restore_stub), or else a `syscall` instruction of the target's own.

use std::ops::Range;

use object::NativeEndian;
use object::elf::{FileHeader64, PF_X, PT_LOAD};
use object::read::elf::{FileHeader, ProgramHeader};

use crate::address_space::AddressSpace;
use crate::arch::restore_stub::{self, CELL};
use crate::arch::{Registers, SYSCALL, SYSCALL_LEN};
use crate::frames;
use crate::held_threads::{HeldThreads, Tracee};
use crate::regions::PAGE;
use crate::restore_stub::BorrowedThread;
use crate::{Error, Region};

/// The `syscall` instruction that threads of a target are sent through.
#[derive(Debug)]
pub(crate) struct Gate {
    /// That instruction.
    pub syscall: u64,
    /// The cell that contains it. Without one, a thread is lost if Beeline dies while the thread is
    /// borrowed.
    cell: Option<u64>,
    /// True if the cell is filled.
    is_written: bool,
}

impl Gate {
    /// Finds the place in a target.
    ///
    /// # Errors
    ///
    /// [`Error::NoAgent`] if no executable mapping has a `syscall` instruction, and those of
    /// [`AddressSpace::regions`].
    pub fn find(threads: &HeldThreads, space: &AddressSpace) -> Result<Self, Error> {
        let search = Search {
            threads,
            space,
            regions: &space.regions()?,
        };
        let cell = search.cell();
        let syscall = match cell {
            Some(cell) => restore_stub::gate(cell),
            None => search.syscall()?,
        };
        Ok(Self {
            syscall,
            cell,
            is_written: false,
        })
    }

    /// Returns the one in a cell in which threads of the process's parent have made calls. `None`
    /// if something is there now.
    pub fn in_cell(cell: u64, space: &AddressSpace) -> Option<Self> {
        let mut bytes = ZEROES;
        let is_free = space.is_whole() && space.read(cell, &mut bytes).is_ok() && bytes == ZEROES;
        is_free.then(|| Self {
            syscall: restore_stub::gate(cell),
            cell: Some(cell),
            is_written: false,
        })
    }

    /// Returns the cell that contains it.
    pub fn cell(&self) -> Option<u64> {
        self.cell
    }

    /// Returns where a thread stands that has made a call, if that is on a way home: from there on,
    /// if nothing stops the thread, it finds its way.
    pub fn behind(&self) -> Option<u64> {
        self.cell.map(|_| self.syscall + SYSCALL_LEN)
    }

    /// Writes the way home of a borrowed thread, which it takes if Beeline dies.
    ///
    /// # Errors
    ///
    /// Those of [`AddressSpace::write`].
    pub fn write(
        &mut self,
        space: &AddressSpace,
        thread: &BorrowedThread<'_>,
    ) -> Result<(), Error> {
        let Some(cell) = self.cell else {
            return Ok(());
        };
        self.is_written = true;
        space.write(cell, &restore_stub::cell(thread))
    }

    /// Removes the way home, if there is one. No thread may be borrowed any more.
    ///
    /// # Errors
    ///
    /// Those of [`AddressSpace::write`].
    pub fn clear(&mut self, space: &AddressSpace) -> Result<(), Error> {
        match self.cell {
            Some(cell) if self.is_written => {
                self.is_written = false;
                space.write(cell, &ZEROES)
            }
            _ => Ok(()),
        }
    }
}

/// The mapping with the zeroes that are looked at first: small, in every process, and private to it
/// when it is written.
const VDSO: &str = "[vdso]";

const ZEROES: [u8; CELL as usize] = [0; CELL as usize];

/// A search for a cell or an instruction in what a target has mapped.
struct Search<'a> {
    threads: &'a HeldThreads,
    space: &'a AddressSpace,
    regions: &'a [Region],
}

impl Search<'_> {
    /// Finds a cell that nothing uses.
    ///
    /// A cell that a killed Beeline has left behind is as good if no thread can be in it, and is
    /// then removed together with this one. There is a cell only where all threads are held,
    /// because no other tracer can then be at work in the same zeroes.
    fn cell(&self) -> Option<u64> {
        if !self.space.is_whole() {
            return None;
        }
        self.small_first(is_code_of_file)
            .into_iter()
            .find_map(|region| {
                let tail = self.tail(region)?;
                let mut bytes = vec![0; (tail.end - tail.start) as usize];
                self.space.read(tail.start, &mut bytes).ok()?;
                let cells = || {
                    tail.clone()
                        .step_by(CELL as usize)
                        .zip(bytes.chunks(CELL as usize))
                };
                let mut left =
                    cells().filter(|(_, bytes)| restore_stub::left_behind(bytes).is_some());
                let left = left.find(|(cell, _)| self.is_left(*cell));
                let found = left.or_else(|| cells().find(|(_, bytes)| **bytes == ZEROES));
                found.map(|(cell, _)| cell)
            })
    }

    /// Returns some of the regions, the vDSO and then the small ones first.
    fn small_first(&self, wanted: impl Fn(&Region) -> bool) -> Vec<&Region> {
        let mut code: Vec<_> = self.regions.iter().filter(|one| wanted(one)).collect();
        code.sort_by_key(|region| (region.path.as_os_str() != VDSO, region.end - region.start));
        code
    }

    /// Returns the cells between the last byte of a segment of code and the end of its page.
    fn tail(&self, region: &Region) -> Option<Range<u64>> {
        const HEADERS: usize = 4096;
        let is_start = |one: &&Region| {
            one.offset == 0
                && one.permissions.read
                && (one.inode, one.device) == (region.inode, region.device)
        };
        let start = match region.offset {
            0 => region,
            _ => self.regions.iter().find(is_start)?,
        };
        let mut headers = vec![0; HEADERS];
        self.space.read(start.start, &mut headers).ok()?;
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
    fn is_left(&self, cell: u64) -> bool {
        let range = cell..cell + CELL;
        let mut held = self.threads.tracees.iter().filter(|one| one.is_held());
        // A borrowed thread is not where its registers belong.
        let is_inside =
            |one: &Tracee| Registers::of(one.tid).is_ok_and(|regs| range.contains(&regs.ip()));
        if held.clone().any(is_inside) {
            return false;
        }
        let read = |at, into: &mut [u8]| self.space.read(at, into).is_ok();
        held.all(|one| {
            let frames = frames::reached_from(&read, self.regions, one.regs.sp());
            frames.into_iter().all(|frame| !range.contains(&frame.ip))
        })
    }

    /// Returns the address of a `syscall` instruction in the target.
    fn syscall(&self) -> Result<u64, Error> {
        // The vDSO is small and always has one; libc and the program are for systems that boot
        // without it.
        let code = self.small_first(|one| one.permissions.execute && one.permissions.read);
        let found = code.into_iter().find_map(|region| self.syscall_in(region));
        found.ok_or_else(|| match self.threads.process.is_alive() {
            true => Error::NoAgent {
                pid: self.threads.process.pid(),
                why: "no executable mapping holds a syscall instruction",
            },
            false => self.threads.exited(),
        })
    }

    fn syscall_in(&self, region: &Region) -> Option<u64> {
        const CHUNK: u64 = 64 << 10;
        let mut start = region.start;
        while start < region.end {
            let mut bytes = vec![0; (region.end - start).min(CHUNK) as usize];
            self.space.read(start, &mut bytes).ok()?;
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

/// True for private code of a file or the vDSO that is not written.
fn is_code_of_file(region: &Region) -> bool {
    let permissions = region.permissions;
    let is_code =
        permissions.read && permissions.execute && !permissions.write && !permissions.shared;
    is_code && (region.inode != 0 || region.path.as_os_str() == VDSO)
}
