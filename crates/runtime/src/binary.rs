//! ELF files: where a place in the text is mapped, and the function that contains it.

mod go;
mod mapped;
pub mod parts;
mod unwind;
mod unwind_rules;
pub mod unwind_table;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Bound, Range};

use beeline_hook::LONGEST_FUNCTION;
use object::elf::{PF_W, PF_X, SHF_EXECINSTR};
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader, SectionTable, Sym};
use object::{Endianness, elf};

use crate::arch::{ELF_MACHINE, ELF_MACHINE_NAME};
use crate::memory::PAGE;
use crate::parallel::both;

type Sections<'data> = SectionTable<'data, elf::FileHeader64<Endianness>>;

/// A place this far behind the last function that the file names is taken for the start of an
/// unnamed one.
const UNKNOWN_LENGTH: u64 = 4096;

/// The size in bytes from which a file is worth another thread.
const LARGE: usize = 4 << 20;

/// An ELF file's executable segments and functions.
#[derive(Debug)]
pub struct Binary {
    segments: Vec<Segment>,
    /// The segments that are not executable.
    others: Vec<Segment>,
    /// The file offsets of those that may be written, to whole pages.
    writable: Vec<Range<u64>>,
    /// End by start of every function, in the file's virtual addresses.
    functions: BTreeMap<u64, u64>,
    /// End by start of the ranges that symbols mark as data among the code, likewise.
    data: BTreeMap<u64, u64>,
    /// The ends of sections of code, likewise.
    section_ends: BTreeSet<u64>,
    /// The addresses of [`WANTED`] functions, in the file's virtual addresses.
    wanted: BTreeMap<&'static str, u64>,
    /// The addresses of [`RETURNING_TWICE`] functions, likewise.
    returning_twice: BTreeSet<u64>,
    /// See [`Self::restorers`].
    restorers: Vec<u64>,
    is_go: bool,
}

/// Functions that return more often than they are called: there is no one return to watch.
const RETURNING_TWICE: [&str; 9] = [
    "vfork",
    "__vfork",
    "__libc_vfork",
    "setjmp",
    "_setjmp",
    "__sigsetjmp",
    "sigsetjmp",
    "getcontext",
    "__getcontext",
];

/// Functions that Beeline itself looks for.
const WANTED: [&str; 9] = [
    "_Unwind_Find_FDE",
    "sigaction",
    "_dl_find_object",
    "dl_iterate_phdr",
    "_Unwind_RaiseException",
    "_Unwind_Resume",
    "_Unwind_Resume_or_Rethrow",
    "_Unwind_ForcedUnwind",
    "_Unwind_Backtrace",
];

/// An executable segment, with its ends as plain numbers.
#[derive(Debug)]
struct Segment {
    offset: u64,
    address: u64,
    len: u64,
}

impl Segment {
    fn new(offset: u64, address: u64, len: u64) -> Option<Self> {
        (offset.checked_add(len).is_some() && address.checked_add(len).is_some()).then_some(Self {
            offset,
            address,
            len,
        })
    }

    fn offsets(&self) -> Range<u64> {
        self.offset..self.offset + self.len
    }

    fn addresses(&self) -> Range<u64> {
        self.address..self.address + self.len
    }

    /// Returns the file offset of an address from the segment's start to its end.
    fn to_offset(&self, address: u64) -> u64 {
        address - self.address + self.offset
    }

    /// Returns the address of a file offset, likewise.
    fn to_address(&self, offset: u64) -> u64 {
        offset - self.offset + self.address
    }
}

/// Returns the file's own address of the start of a part of it that is mapped for code.
fn address_in(segments: &[Segment], mapped: &Range<u64>) -> Option<u64> {
    let overlaps = |offsets: Range<u64>| offsets.start < mapped.end && mapped.start < offsets.end;
    let mut segments = segments.iter();
    let segment = segments.find(|segment| overlaps(segment.offsets()))?;
    let distance = mapped.start.wrapping_sub(segment.offset);
    Some(distance.wrapping_add(segment.address))
}

/// The surroundings of a probed place, as file offsets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The function, to the next function or the end of its section or segment.
    pub function: Range<u64>,
}

impl Binary {
    /// Reads a file's headers and symbols.
    ///
    /// # Errors
    ///
    /// The error says what is wrong with the file.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        Self::parse_with(bytes, true)
    }

    /// As [`Self::parse`], without the names of symbols: no function is known by its name.
    ///
    /// # Errors
    ///
    /// Those of [`Self::parse`].
    pub fn parse_nameless(bytes: &[u8]) -> Result<Self, String> {
        Self::parse_with(bytes, false)
    }

    fn parse_with(bytes: &[u8], names: bool) -> Result<Self, String> {
        let header = elf::FileHeader64::<Endianness>::parse(bytes)
            .map_err(|_| "not a 64-bit ELF file".to_owned())?;
        let endian = header.endian().map_err(|e| e.to_string())?;
        if header.e_machine(endian) != ELF_MACHINE {
            return Err(format!("not an {ELF_MACHINE_NAME} program or library"));
        }
        let headers = header
            .program_headers(endian, bytes)
            .map_err(|e| e.to_string())?;
        let loaded = |executable: bool| {
            let wanted = headers.iter().filter(move |segment| {
                segment.p_type(endian) == elf::PT_LOAD
                    && segment.p_flags(endian).contains(PF_X) == executable
            });
            wanted.filter_map(|segment| {
                let (offset, address) = (segment.p_offset(endian), segment.p_vaddr(endian));
                Segment::new(offset, address, segment.p_filesz(endian))
            })
        };
        let writable = headers.iter().filter_map(|segment| {
            let is_written =
                segment.p_type(endian) == elf::PT_LOAD && segment.p_flags(endian).contains(PF_W);
            let (start, len) = (segment.p_offset(endian), segment.p_filesz(endian));
            let end = start
                .checked_add(len)?
                .checked_next_multiple_of(PAGE as u64)?;
            is_written.then_some(start - start % PAGE as u64..end)
        });
        let mut binary = Self {
            segments: loaded(true).collect(),
            writable: writable.collect(),
            others: loaded(false).collect(),
            functions: BTreeMap::new(),
            data: BTreeMap::new(),
            section_ends: BTreeSet::new(),
            wanted: BTreeMap::new(),
            returning_twice: BTreeSet::new(),
            restorers: Vec::new(),
            is_go: false,
        };
        let sections = header.sections(endian, bytes).map_err(|e| e.to_string())?;
        binary.is_go = go::SECTIONS
            .iter()
            .any(|name| sections.section_by_name(endian, name).is_some());
        let code = sections
            .iter()
            .filter(|section| section.sh_flags(endian).contains(SHF_EXECINSTR));
        let ends = code.filter_map(|section| {
            let start = section.sh_addr(endian);
            start.checked_add(section.sh_size(endian))
        });
        binary.section_ends = ends.collect();
        let named = || unwind::named(bytes, &sections, endian);
        let (named, symbols) = match bytes.len() < LARGE {
            true => (named(), binary.symbols(bytes, &sections, endian, names)),
            false => both(named, || binary.symbols(bytes, &sections, endian, names)),
        };
        binary.restorers = named.restorers;
        let mut functions = named.functions;
        // Two parts that are sorted each are quickly sorted together, and then quickly in the tree.
        functions.extend(symbols);
        functions.sort();
        // Of several that start at one place the longest counts, which is the last here.
        binary.functions = functions.into_iter().collect();
        let functions = &binary.functions;
        let is_code = |start: u64, end: u64| functions.range(start..end).next().is_some();
        binary
            .data
            .retain(|start, end| start < end && !is_code(*start, *end));
        Ok(binary)
    }

    /// Returns the functions that symbols name, sorted: the start and end address of each. Names
    /// are looked at only if `names` is set.
    fn symbols(
        &mut self,
        bytes: &[u8],
        sections: &Sections<'_>,
        endian: Endianness,
        names: bool,
    ) -> Vec<(u64, u64)> {
        let mut functions = Vec::new();
        let mut kinds = sections.iter().map(|section| section.sh_type(endian));
        if self.is_go && !kinds.any(|kind| kind == elf::SHT_SYMTAB) {
            let of_go = go::functions(bytes, sections, endian);
            functions.extend(of_go.unwrap_or_default());
        }
        for kind in [elf::SHT_SYMTAB, elf::SHT_DYNSYM] {
            let Ok(table) = sections.symbols(endian, bytes, kind) else {
                continue;
            };
            for symbol in table.iter() {
                let is_function = matches!(symbol.st_type(), elf::STT_FUNC | elf::STT_GNU_IFUNC);
                let (start, len) = (symbol.st_value(endian), symbol.st_size(endian));
                if symbol.st_type() == elf::STT_OBJECT && self.is_executable(start) {
                    self.data.insert(start, start.saturating_add(len));
                }
                if !is_function || symbol.st_shndx(endian) == elf::SHN_UNDEF {
                    continue;
                }
                functions.push((start, start.saturating_add(len)));
                if !names {
                    continue;
                }
                let name = symbol.name(endian, table.strings()).unwrap_or_default();
                if RETURNING_TWICE.iter().any(|twice| twice.as_bytes() == name) {
                    self.returning_twice.insert(start);
                }
                if let Some(wanted) = WANTED.iter().find(|wanted| wanted.as_bytes() == name) {
                    self.wanted.insert(wanted, start);
                }
            }
        }
        functions.sort_unstable();
        functions
    }

    /// Returns the surroundings of a file offset.
    ///
    /// # Errors
    ///
    /// The error says why a probe cannot be there.
    pub fn place(&self, offset: u64) -> Result<Place, String> {
        let segment = self
            .segment(offset)
            .ok_or_else(|| format!("offset {offset:#x} is not in its executable code"))?;
        let address = segment.to_address(offset);
        let mut later = self
            .functions
            .range((Bound::Excluded(address), Bound::Unbounded));
        let next = later.next().map(|(start, _)| *start);
        let next = self.end_of_code(address, next, segment);
        let is_near = |start: u64| {
            address - start < UNKNOWN_LENGTH && self.end_of_code(start, None, segment) > address
        };
        let function = match self.functions.range(segment.address..=address).next_back() {
            // Hand-written assembly often has no size, or a wrong one: it reaches to the next
            // function.
            Some((start, end)) if is_near(*start) || address < *end => *start..next,
            _ => address..next.min(address.saturating_add(UNKNOWN_LENGTH)),
        };
        Ok(Place {
            function: segment.to_offset(function.start)..segment.to_offset(function.end),
        })
    }

    /// Returns where code that goes on at an address ends: at the next function, or with its
    /// section or segment.
    fn end_of_code(&self, address: u64, next: Option<u64>, segment: &Segment) -> u64 {
        let behind = (Bound::Excluded(address), Bound::Unbounded);
        let section_end = self.section_ends.range(behind).next().copied();
        let ends = next.into_iter().chain(section_end);
        ends.fold(segment.addresses().end, u64::min)
    }

    fn is_executable(&self, address: u64) -> bool {
        let mut segments = self.segments.iter();
        segments.any(|segment| segment.addresses().contains(&address))
    }

    fn segment(&self, offset: u64) -> Option<&Segment> {
        self.segments
            .iter()
            .find(|segment| segment.offsets().contains(&offset))
    }

    /// True if the function at this file offset returns more often than it is called.
    pub fn returns_twice(&self, offset: u64) -> bool {
        self.segment(offset)
            .is_some_and(|segment| self.returning_twice.contains(&segment.to_address(offset)))
    }

    /// True for a Go program. Its stacks move, and with them the return addresses on them.
    pub fn moves_stacks(&self) -> bool {
        self.is_go
    }

    /// True if its functions may be called with only some hundred bytes of stack left. Go's run on
    /// stacks of a few kilobytes, and for code without names this is unknown.
    pub fn has_small_stacks(&self) -> bool {
        self.is_go || self.unnamed_code().next().is_some()
    }

    /// Returns the addresses, in the file's own terms, at which its unwind information has code
    /// that signal handlers return to. That code begins there or a byte behind.
    pub fn restorers(&self) -> &[u64] {
        &self.restorers
    }

    /// Returns the file offset of a [`WANTED`] function.
    pub fn wanted(&self, name: &str) -> Option<u64> {
        let address = *self.wanted.get(name)?;
        let segment = self
            .segments
            .iter()
            .find(|s| s.addresses().contains(&address))?;
        Some(segment.to_offset(address))
    }

    /// True if a file offset is in a segment that may be written, as far as whole pages are mapped.
    pub fn may_write(&self, offset: u64) -> bool {
        self.writable.iter().any(|part| part.contains(&offset))
    }

    /// Returns the file offsets of the executable segment around one of them.
    pub fn code_around(&self, offset: u64) -> Option<Range<u64>> {
        let mut parts = self.segments.iter().map(Segment::offsets);
        parts.find(|part| part.contains(&offset))
    }

    /// Returns the file's own address of the start of a part of it that is mapped for code. Whole
    /// pages are mapped, so it may begin before the code does.
    pub fn address_of(&self, mapped: &Range<u64>) -> Option<u64> {
        address_in(&self.segments, mapped)
    }

    /// Returns the file offsets of the bytes from one of its own addresses on, as far as they are
    /// mapped together.
    pub fn offsets_from(&self, address: u64) -> Option<Range<u64>> {
        let mut segments = self.segments.iter().chain(&self.others);
        let segment = segments.find(|segment| segment.addresses().contains(&address))?;
        Some(segment.to_offset(address)..segment.offsets().end)
    }

    /// Returns the executable segments in which no function is known, by the file's own addresses:
    /// the file has been stripped of everything that names them.
    pub fn unnamed_code(&self) -> impl Iterator<Item = Range<u64>> {
        let segments = self.segments.iter().map(Segment::addresses);
        segments.filter(|range| self.functions.range(range.clone()).next().is_none())
    }

    /// Returns the ranges that symbols mark as data among the code: end by start, by the file's own
    /// addresses. None of them overlaps with a function's start.
    pub fn data(&self) -> &BTreeMap<u64, u64> {
        &self.data
    }

    /// Returns every function that the file names, as file offsets, each up to the next one.
    pub fn functions(&self) -> Vec<Range<u64>> {
        self.functions_by(|segment, address| segment.to_offset(address))
    }

    /// The same by the file's own addresses.
    pub fn functions_in_memory(&self) -> Vec<Range<u64>> {
        self.functions_by(|_, address| address)
    }

    fn functions_by(&self, place: impl Fn(&Segment, u64) -> u64) -> Vec<Range<u64>> {
        let mut functions = Vec::new();
        for segment in &self.segments {
            let starts = self
                .functions
                .range(segment.addresses())
                .map(|(start, _)| *start);
            let starts: Vec<u64> = starts.collect();
            let nexts = starts.iter().skip(1).copied().map(Some).chain([None]);
            let range = |(start, next): (&u64, Option<u64>)| {
                let end = self.end_of_code(*start, next, segment);
                // The code behind it then belongs to functions that nothing names.
                let own_end = match self.functions.get(start) {
                    Some(own) if end - start > LONGEST_FUNCTION as u64 && own > start => {
                        end.min(*own)
                    }
                    _ => end,
                };
                [*start..own_end, own_end..end]
            };
            let ranges = starts.iter().zip(nexts).flat_map(range);
            let ranges = ranges.filter(|range| !range.is_empty());
            functions
                .extend(ranges.map(|range| place(segment, range.start)..place(segment, range.end)));
        }
        functions
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shell() -> Vec<u8> {
        std::fs::read("/bin/sh").expect("every system has a shell")
    }

    /// Bytes that the linker has put behind a section are no code of its last function.
    #[test]
    fn functions_end_with_their_section() {
        let binary = Binary::parse(&shell()).unwrap();
        assert!(!binary.section_ends.is_empty());
        for function in binary.functions_in_memory() {
            let inside = (
                Bound::Excluded(function.start),
                Bound::Excluded(function.end),
            );
            assert_eq!(
                binary.section_ends.range(inside).next(),
                None,
                "{function:x?}"
            );
        }
    }

    #[test]
    fn a_function_holds_the_places_inside_it() {
        let binary = Binary::parse(&shell()).unwrap();
        let functions = binary.functions();
        assert!(functions.len() > 100, "also where symbols are stripped");
        for function in functions.iter().filter(|function| !function.is_empty()) {
            assert_eq!(binary.place(function.start).unwrap().function, *function);
            let middle = function.start + (function.end - function.start).min(4000) / 2;
            assert_eq!(binary.place(middle).unwrap().function, *function);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

        /// Headers, tables and unwind information can be arbitrary bytes.
        #[test]
        fn a_spoiled_file_gives_an_answer(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..40),
            near_the_start in any::<bool>(),
            offset in any::<u64>(),
        ) {
            let mut bytes = shell();
            let len = if near_the_start { 1024 } else { bytes.len() };
            for (at, byte) in changes {
                bytes[at.index(len)] = byte;
            }
            if let Ok(binary) = Binary::parse(&bytes) {
                for at in [offset, offset % (1 << 20)] {
                    let _ = (binary.place(at), binary.returns_twice(at));
                }
                let _ = (binary.functions(), binary.wanted("sigaction"));
            }
        }
    }
}
