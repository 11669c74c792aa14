//! A file's unwind table, as the agent reads it.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use beeline_agent::unwind_table::{HEAD, MOST_RULES, PAGE, Rule, row};
use object::elf::PF_X;
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader};
use object::{Endianness, ReadCache, ReadRef, elf};

use super::unwind_rules::{Ruled, rules};
use super::{Segment, address_in};
use crate::arch::ELF_MACHINE;
use crate::error::Error;
use crate::file_shelf::FromFile;
use crate::liveness::SessionId;
use crate::memory::sealed;

/// The most bytes of unwind information that are read of a file.
const MOST_BYTES: u64 = 256 << 20;
/// The most code that a table is for: offsets have 32 bits.
const MOST_CODE: u64 = 1 << 32;
/// A gap between two functions up to this length is taken for part of the second: nothing runs
/// there, and a row less is needed.
const PADDING: u64 = 16;

/// A file's table, in memory that targets can map.
#[derive(Debug)]
pub struct StackTable {
    segments: Vec<Segment>,
    /// The table; `None` if the file has no unwind information.
    words: Option<Words>,
}

#[derive(Debug)]
struct Words {
    /// The file's own address that the first page stands for.
    origin: u64,
    file: File,
    len: usize,
}

impl FromFile for StackTable {
    const THREAD: &'static str = "beeline-stacks";

    fn read(path: &Path) -> Result<Self, Error> {
        let open = |source| Error::Open {
            path: path.into(),
            source,
        };
        let file = File::open(path).map_err(open)?;
        Self::of(&ReadCache::new(file)).map_err(open)
    }
}

impl StackTable {
    /// Makes the table of a file. One that is no program or library, or has no unwind information,
    /// has an empty one.
    ///
    /// # Errors
    ///
    /// Those of [`sealed`].
    pub fn of<'a>(data: impl ReadRef<'a>) -> io::Result<Self> {
        let (segments, table) = encoded(data).unwrap_or_default();
        let words = match table {
            Some(Table { origin, words }) => {
                let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
                Some(Words {
                    origin,
                    file: sealed(&SessionId::own().name("unwind"), &bytes)?,
                    len: bytes.len(),
                })
            }
            None => None,
        };
        Ok(Self { segments, words })
    }

    /// Returns the file to map and its length; `None` if there is no table.
    pub fn file(&self) -> Option<(BorrowedFd<'_>, usize)> {
        let words = self.words.as_ref()?;
        Some((words.file.as_fd(), words.len))
    }

    /// Returns the address for which the table's first page stands, in a process that has this part
    /// of the file mapped at `start`.
    pub fn origin(&self, mapped: &Range<u64>, start: u64) -> Option<u64> {
        let address = address_in(&self.segments, mapped)?;
        let origin = self.words.as_ref()?.origin;
        Some(start.wrapping_sub(address).wrapping_add(origin))
    }
}

/// A table, and what it is for.
#[derive(Debug)]
pub struct Table {
    /// The file's own address that the first page stands for.
    pub origin: u64,
    /// See [`beeline_agent::unwind_table`].
    pub words: Vec<u32>,
}

/// Returns a file's segments with code, and its table if it has unwind information; `None` if it is
/// no file for this machine.
fn encoded<'a>(data: impl ReadRef<'a>) -> Option<(Vec<Segment>, Option<Table>)> {
    let header = elf::FileHeader64::<Endianness>::parse(data).ok()?;
    let endian = header.endian().ok()?;
    if header.e_machine(endian) != ELF_MACHINE || endian != Endianness::Little {
        return None;
    }
    // Numbers in the first section's header are any numbers, and so much would be read.
    if header.e_phnum(endian) == elf::PN_XNUM {
        return None;
    }
    let headers = header.program_headers(endian, data).ok()?;
    let code = headers.iter().filter(|segment| {
        segment.p_type(endian) == elf::PT_LOAD && segment.p_flags(endian).contains(PF_X)
    });
    let segments = code.filter_map(|segment| {
        let (offset, address) = (segment.p_offset(endian), segment.p_vaddr(endian));
        Segment::new(offset, address, segment.p_filesz(endian))
    });
    let segments: Vec<_> = segments.collect();
    let has_sections = header.e_shnum(endian) != 0;
    let sections = has_sections
        .then(|| header.sections(endian, data).ok())
        .flatten();
    let section = sections.as_ref().and_then(|sections| {
        let (_, section) = sections.section_by_name(endian, b".eh_frame")?;
        (section.sh_size(endian) <= MOST_BYTES).then_some(section)
    });
    let table = section.and_then(|section| {
        let bytes = section.data(endian, data).ok()?;
        table(rules(bytes, section.sh_addr(endian)), &segments)
    });
    Some((segments, table))
}

/// Makes the table of a section at an address, for code at some addresses; `None` if the section
/// says nothing of it.
pub fn of_section(data: &[u8], address: u64, code: &Range<u64>) -> Option<Table> {
    let len = code.end.checked_sub(code.start)?;
    table(rules(data, address), &[Segment::new(0, code.start, len)?])
}

/// Makes a table of rules for code in some segments; `None` if there are none.
fn table(mut rules: Vec<Ruled>, segments: &[Segment]) -> Option<Table> {
    let parts = || segments.iter().map(Segment::addresses);
    let lowest = parts().map(|part| part.start).min()?;
    let origin = lowest - lowest % PAGE;
    let is_code = |ruled: &Ruled| {
        let mut parts = parts();
        parts.any(|part| part.contains(&ruled.start) && ruled.end <= part.end)
    };
    rules.retain(|ruled| is_code(ruled) && ruled.end - origin <= MOST_CODE);
    rules.sort_by_key(|ruled| ruled.start);
    let starts: Vec<_> = rules.iter().skip(1).map(|ruled| ruled.start).collect();
    let mut encoder = Encoder::default();
    let mut end = origin;
    for (index, ruled) in rules.iter().enumerate() {
        if ruled.start - end > PADDING {
            encoder.put(end - origin, Rule::UNKNOWN);
            end = ruled.start;
        }
        encoder.put(end - origin, ruled.rule);
        // Of two that overlap, the second counts from its start.
        let next = starts.get(index).copied().unwrap_or(u64::MAX);
        end = ruled.end.min(next).max(end);
    }
    encoder.put(end - origin, Rule::UNKNOWN);
    (!rules.is_empty()).then(|| Table {
        origin,
        words: encoder.words(),
    })
}

/// A table in the making.
#[derive(Default)]
struct Encoder {
    /// For each page its first row.
    pages: Vec<u32>,
    rows: Vec<u32>,
    rules: Vec<Rule>,
    indexes: HashMap<Rule, u16>,
    /// The index of the last row's rule.
    last: u16,
}

impl Encoder {
    /// Gives the code from an offset on a rule. Offsets rise.
    fn put(&mut self, offset: u64, rule: Rule) {
        if self.rules.is_empty() {
            self.last = self.index(Rule::UNKNOWN);
        }
        let index = self.index(rule);
        while self.pages.len() as u64 <= offset / PAGE {
            self.pages.push(self.rows.len() as u32);
            self.rows.push(row(0, self.last));
        }
        if index == self.last {
            return;
        }
        self.last = index;
        let new = row(offset % PAGE, index);
        match self.rows.last_mut() {
            Some(last) if *last >> 16 == new >> 16 => *last = new,
            _ => self.rows.push(new),
        }
    }

    /// Returns the index of a rule. A file with more rules than there are indexes has parts of which
    /// nothing is known.
    fn index(&mut self, rule: Rule) -> u16 {
        if let Some(index) = self.indexes.get(&rule) {
            return *index;
        }
        if self.rules.len() == MOST_RULES {
            return 0;
        }
        let index = self.rules.len() as u16;
        self.rules.push(rule);
        self.indexes.insert(rule, index);
        index
    }

    fn words(self) -> Vec<u32> {
        let len = HEAD + self.pages.len() + 1 + 2 * self.rules.len() + self.rows.len();
        let head = [len, self.pages.len(), self.rules.len()].map(|number| number as u32);
        let rules = self
            .rules
            .iter()
            .flat_map(|rule| [rule.0 as u32, (rule.0 >> 32) as u32]);
        let mut words = Vec::with_capacity(len);
        words.extend(head);
        words.extend(&self.pages);
        words.push(self.rows.len() as u32);
        words.extend(rules);
        words.extend(&self.rows);
        words
    }
}

#[cfg(test)]
mod tests;
