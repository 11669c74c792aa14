//! The table by which a Go program's own runtime finds functions. It is there even if everything
//! else has been stripped.
//!
//! Its layout, since Go 1.18, is that of `pcHeader` and `functab` in Go's `runtime/symtab.go`.

use std::ops::Range;

use object::Endianness;
use object::read::elf::SectionHeader;

use super::Sections;

/// The section names of the table of functions that Go's runtime needs. The Go linker, and no
/// other, puts it into programs, stripped ones too.
pub const SECTIONS: [&[u8]; 2] = [b".gopclntab", b".data.rel.ro.gopclntab"];

/// The header's first word, since Go 1.20 and since Go 1.18.
const MAGIC: [u32; 2] = [0xffff_fff1, 0xffff_fff0];
/// The number of bytes of the header that are looked at.
pub const HEADER: usize = 72;
/// The number of bytes of the header before its words.
const WORDS: usize = 8;
// The indexes of the words in use.
const COUNT: usize = 0;
const TEXT: usize = 2;
const TABLE: usize = 7;
/// Bytes of an entry: the start of a function and its description, as 32-bit offsets.
const ENTRY: u64 = 8;
/// The alignment to which the end of the code is padded.
const PADDING: u64 = 64;

/// The position of the table, and the address that it is relative to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// The address of the first function; 0 where the header does not say.
    text: u64,
    /// The entries, as offsets in the section. Behind the last is half an entry more: the end of
    /// the code.
    pub entries: Range<u64>,
}

impl Table {
    /// Reads the first [`HEADER`] bytes of the section. `None` if it is of another kind.
    pub fn of(header: &[u8]) -> Option<Self> {
        let magic = u32::from_le_bytes(*header.first_chunk()?);
        let word = |index: usize| {
            let bytes = header.get(WORDS + 8 * index..)?.first_chunk()?;
            Some(u64::from_le_bytes(*bytes))
        };
        let (count, start) = (word(COUNT)?, word(TABLE)?);
        let len = count.checked_mul(ENTRY)?.checked_add(ENTRY / 2)?;
        MAGIC.contains(&magic).then_some(Self {
            text: word(TEXT)?,
            entries: start..start.checked_add(len)?,
        })
    }
}

/// Returns the functions that it names, in ascending order: the start and end address of each.
///
/// It returns none if they are not certain: one instruction taken to be at a wrong place would
/// spoil the program.
pub fn functions(
    bytes: &[u8],
    sections: &Sections<'_>,
    endian: Endianness,
) -> Option<Vec<(u64, u64)>> {
    let mut found = SECTIONS.iter();
    let (_, section) = found.find_map(|name| sections.section_by_name(endian, name))?;
    let data = section.data(endian, bytes).ok()?;
    let Table { text, entries } = Table::of(data)?;
    let entries =
        data.get(usize::try_from(entries.start).ok()?..usize::try_from(entries.end).ok()?)?;
    let offsets = entries.chunks(ENTRY as usize).map(|entry| {
        let offset = entry.first_chunk().copied();
        offset.map(|bytes| u64::from(u32::from_le_bytes(bytes)))
    });
    let offsets: Vec<u64> = offsets.collect::<Option<_>>()?;
    let (_, code) = sections.section_by_name(endian, b".text")?;
    let (start, len) = (code.sh_addr(endian), code.sh_size(endian));
    let end = *offsets.last()?;
    let text = match text {
        // Without C code in it, the section is Go's from its first byte to its last.
        0 if end <= len && len - end < PADDING => start,
        0 => return None,
        text => text,
    };
    let is_inside = text >= start && text.checked_add(end)? <= start.checked_add(len)?;
    if !is_inside || !offsets.is_sorted() || offsets.first() != Some(&0) {
        return None;
    }
    let pairs = offsets
        .windows(2)
        .map(|pair| (text + pair[0], text + pair[1]));
    Some(pairs.filter(|(start, end)| start < end).collect())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::super::Binary;
    use super::super::parts::Parts;

    /// A program says the same of its functions whether it has been stripped or not.
    #[test]
    fn a_stripped_program_has_the_same_functions() {
        let folder = std::env::temp_dir().join(format!("beeline-go-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let source = folder.join("small.go");
        std::fs::write(&source, "package main\nfunc main() { println(1) }\n").unwrap();
        let build = |flags: &str| {
            let built = folder.join("small");
            let mut go = Command::new("go");
            go.args(["build", "-ldflags", flags, "-o"])
                .arg(&built)
                .arg(&source);
            go.env("GO111MODULE", "off").env("CGO_ENABLED", "0");
            let output = go.output().ok()?;
            assert!(output.status.success(), "{output:?}");
            let parts = Parts::read(std::fs::File::open(&built).unwrap()).unwrap();
            Some(Binary::parse(parts.bytes()).unwrap())
        };
        let (Some(named), Some(stripped)) = (build(""), build("-s -w")) else {
            return eprintln!("skipped: there is no Go here");
        };
        std::fs::remove_dir_all(&folder).unwrap();
        let (named, mut stripped) = (named.functions_in_memory(), stripped.functions_in_memory());
        // A symbol says where the code ends.
        stripped.pop();
        assert!(stripped.len() > 1000, "{}", stripped.len());
        let missing: Vec<_> = stripped.iter().filter(|one| !named.contains(one)).collect();
        assert!(missing.is_empty(), "{missing:x?}");
    }
}
