//! Partial reading of an ELF file: only what is looked at. Of a big program that is half, and the
//! rest takes no memory either.

use std::cell::OnceCell;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use object::read::elf::{FileHeader, ProgramHeader, SectionHeader};
use object::{Endianness, elf};

use object::elf::PF_X;

use super::go;
use super::mapped::Mapped;

type Header = elf::FileHeader64<Endianness>;

/// A file with its headers, executable segments, symbols without their names, and unwind
/// information read.
#[derive(Debug)]
pub struct Parts {
    file: File,
    bytes: Bytes,
    /// Other parts that have been asked for, each from a multiple of [`CHUNK`] on.
    others: Vec<OnceCell<Vec<u8>>>,
}

/// As many bytes as the file has.
#[derive(Debug)]
enum Bytes {
    /// All of them.
    Mapped(Mapped),
    /// Zero where nothing was read. Filling fresh memory takes several times as long as looking
    /// through it.
    Copied(Vec<u8>),
}

/// The number of bytes of the rest that are read at once.
const CHUNK: usize = 64 << 10;
/// The number of further bytes that are read, so that as much lies together behind each place. A
/// `switch` of 4,096 cases has a table of this length.
const BEHIND: usize = 16 << 10;

impl Parts {
    /// Reads the parts. Parts that its headers place outside the file are ignored.
    ///
    /// # Errors
    ///
    /// Those of `fstat(2)` and `pread(2)`.
    pub fn read(file: File) -> io::Result<Self> {
        let len = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
        let mapped = Mapped::of(&file, len).map(Bytes::Mapped);
        // Untouched memory is not allocated.
        let bytes = mapped.unwrap_or_else(|| Bytes::Copied(vec![0; len]));
        Self::read_into(file, bytes)
    }

    fn read_into(file: File, bytes: Bytes) -> io::Result<Self> {
        let mut parts = Self {
            file,
            bytes,
            others: Vec::new(),
        };
        let len = parts.bytes().len();
        parts.prefer_large_pages();
        parts.others.resize_with(len.div_ceil(CHUNK), OnceCell::new);
        parts.fill(0..size_of::<Header>() as u64)?;
        for range in parts.tables() {
            parts.fill(range)?;
        }
        for range in parts.wanted() {
            parts.fill(range)?;
        }
        Ok(parts)
    }

    /// Returns the file as far as it was read. Elsewhere there are zeros, or the file's own bytes.
    pub fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Mapped(mapped) => mapped.bytes(),
            Bytes::Copied(bytes) => bytes,
        }
    }

    /// Returns the file's bytes from an offset on, some of them at least, whatever was read.
    pub fn data(&self, offset: u64) -> Option<&[u8]> {
        let offset = usize::try_from(offset).ok()?;
        if let Bytes::Mapped(mapped) = &self.bytes {
            let bytes = mapped.bytes().get(offset..);
            return bytes.filter(|bytes| !bytes.is_empty());
        }
        let start = offset / CHUNK * CHUNK;
        let chunk = self.others.get(offset / CHUNK)?.get_or_init(|| {
            let mut bytes = vec![0; (self.bytes().len() - start).min(CHUNK + BEHIND)];
            let read = self.file.read_exact_at(&mut bytes, start as u64);
            read.map_or_else(|_| Vec::new(), |()| bytes)
        });
        chunk.get(offset - start..)
    }

    /// Asks for large pages. Otherwise most of a big file is filled page by page, each with a
    /// fault.
    fn prefer_large_pages(&mut self) {
        const LARGE: usize = 2 << 20;
        let Bytes::Copied(bytes) = &mut self.bytes else {
            return;
        };
        let start = bytes.as_ptr().align_offset(LARGE);
        let Some(aligned) = bytes.get_mut(start..) else {
            return;
        };
        let len = aligned.len() / LARGE * LARGE;
        let place = aligned.as_mut_ptr().cast();
        // SAFETY: these are whole large pages of this value's own memory, and their content does
        // not depend on the advice. If it is not taken, nothing changes.
        let _ = unsafe { rustix::mm::madvise(place, len, rustix::mm::Advice::LinuxHugepage) };
    }

    fn fill(&mut self, range: Range<u64>) -> io::Result<()> {
        let end = range.end.min(self.bytes().len() as u64);
        if range.start >= end {
            return Ok(());
        }
        let bytes = match &mut self.bytes {
            Bytes::Mapped(mapped) => {
                mapped.prepare(range.start as usize, end as usize);
                return Ok(());
            }
            Bytes::Copied(bytes) => bytes,
        };
        let part = &mut bytes[range.start as usize..end as usize];
        match self.file.read_exact_at(part, range.start) {
            // It has become shorter: the missing part is zero.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
            other => other,
        }
    }

    /// Returns where the tables of segments and sections are.
    fn tables(&self) -> Vec<Range<u64>> {
        let Ok(header) = Header::parse(self.bytes()) else {
            return Vec::new();
        };
        let Ok(endian) = header.endian() else {
            return Vec::new();
        };
        let table = |start: u64, size: u16, count: u16| {
            start..start.saturating_add(u64::from(size) * u64::from(count))
        };
        let (segment, section) = (header.e_phentsize(endian), header.e_shentsize(endian));
        vec![
            table(header.e_phoff(endian), segment, header.e_phnum(endian)),
            // The first section says how many there are if the header cannot.
            table(
                header.e_shoff(endian),
                section,
                header.e_shnum(endian).max(1),
            ),
        ]
    }

    /// Returns the parts that [`super::Binary::parse`] looks at.
    fn wanted(&mut self) -> Vec<Range<u64>> {
        let mut wanted = Vec::new();
        let Ok(header) = Header::parse(self.bytes()) else {
            return wanted;
        };
        let Ok(endian) = header.endian() else {
            return wanted;
        };
        let range = |(start, len): (u64, u64)| start..start.saturating_add(len);
        let segments = header
            .program_headers(endian, self.bytes())
            .unwrap_or_default();
        let code = segments.iter().filter(|segment| {
            segment.p_type(endian) == elf::PT_LOAD && segment.p_flags(endian).contains(PF_X)
        });
        wanted.extend(code.map(|segment| range(segment.file_range(endian))));
        let sections = header
            .section_headers(endian, self.bytes())
            .unwrap_or_default();
        // The positions of functions are wanted, not their names; but sections are found by their
        // names.
        let tables = sections
            .iter()
            .filter(|section| matches!(section.sh_type(endian), elf::SHT_SYMTAB | elf::SHT_DYNSYM));
        let names = header.shstrndx(endian, self.bytes()).ok();
        let names = names.and_then(|index| sections.get(usize::try_from(index).ok()?));
        let unwinding = self.named(header, endian, b".eh_frame");
        let is_stripped = !sections
            .iter()
            .any(|section| section.sh_type(endian) == elf::SHT_SYMTAB);
        let of_go = is_stripped.then(|| self.go_table(header, endian)).flatten();
        wanted.extend(
            tables
                .chain(names)
                .filter_map(|section| section.file_range(endian))
                .map(range),
        );
        wanted.extend(unwinding);
        wanted.extend(of_go.into_iter().flatten());
        wanted
    }

    /// Returns where a Go program's table of functions is, and the header that says so.
    fn go_table(&self, header: &Header, endian: Endianness) -> Option<[Range<u64>; 2]> {
        let mut names = go::SECTIONS.iter();
        let section = names.find_map(|name| self.named(header, endian, name))?;
        let head = self.data(section.start)?;
        let entries = go::Table::of(head.get(..go::HEADER)?)?.entries;
        let place = |offset: u64| section.start.saturating_add(offset).min(section.end);
        Some([
            section.start..place(go::HEADER as u64),
            place(entries.start)..place(entries.end),
        ])
    }

    /// Returns where a section of this name is. Its name is read for that.
    fn named(&self, header: &Header, endian: Endianness, name: &[u8]) -> Option<Range<u64>> {
        let sections = header.section_headers(endian, self.bytes()).ok()?;
        let index = header.shstrndx(endian, self.bytes()).ok()?;
        let names = sections.get(usize::try_from(index).ok()?)?;
        let (names, _) = names.file_range(endian)?;
        let found = sections.iter().find(|section| {
            let at = names.checked_add(section.sh_name(endian).into());
            let known = at.and_then(|at| self.data(at));
            known.is_some_and(|known| {
                known.strip_prefix(name).and_then(|rest| rest.first()) == Some(&0)
            })
        })?;
        let (start, len) = found.file_range(endian)?;
        Some(start..start.saturating_add(len))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Binary;
    use super::*;

    #[test]
    fn parts_say_of_a_file_what_all_of_it_says() {
        let own = std::env::current_exe().unwrap();
        for path in ["/bin/sh".as_ref(), own.as_path()] {
            let all = std::fs::read(path).unwrap();
            let open = || File::open(path).unwrap();
            let copied = Bytes::Copied(vec![0; all.len()]);
            for parts in [Parts::read(open()), Parts::read_into(open(), copied)] {
                let parts = parts.unwrap();
                let [mut all_of_it, of_parts] =
                    [&all, parts.bytes()].map(|bytes| Binary::parse_nameless(bytes).unwrap());
                assert_eq!(format!("{all_of_it:?}"), format!("{of_parts:?}"));
                // These are found by their names.
                all_of_it = Binary::parse(&all).unwrap();
                all_of_it.wanted.clear();
                all_of_it.returning_twice.clear();
                assert_eq!(format!("{all_of_it:?}"), format!("{of_parts:?}"));
                for offset in (0..all.len()).step_by(10_007) {
                    let data = parts.data(offset as u64).unwrap();
                    assert!(data.len() >= BEHIND.min(all.len() - offset));
                    assert_eq!(data, &all[offset..offset + data.len()]);
                }
                assert_eq!(parts.data(all.len() as u64 + 1), None);
            }
        }
    }

    #[test]
    fn less_is_read_than_there_is() {
        let own = std::env::current_exe().unwrap();
        let all = std::fs::read(&own).unwrap();
        let copied = Bytes::Copied(vec![0; all.len()]);
        let parts = Parts::read_into(File::open(&own).unwrap(), copied).unwrap();
        let differ = all
            .iter()
            .zip(parts.bytes())
            .filter(|(all, part)| all != part);
        assert!(differ.count() > 0);
    }
}
