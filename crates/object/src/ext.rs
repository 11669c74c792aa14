//! `.BTF.ext`: the information on instructions, by sections of code. `Documentation/bpf/btf.rst`
//! describes the format.

use beeline_btf::{Btf, MAGIC_AND_VERSION};

/// Its parts, each by the section that it is about.
#[derive(Debug, Default)]
pub(crate) struct Ext<'a> {
    /// `struct bpf_func_info`: offset in the section, type.
    pub(crate) functions: Vec<Records<'a>>,
    /// `struct bpf_line_info`: offset in the section, file's name, line's text, line and column.
    pub(crate) lines: Vec<Records<'a>>,
    /// `struct bpf_core_relo`.
    pub(crate) core: Vec<Records<'a>>,
}

/// Records of one size about one section.
#[derive(Debug)]
pub(crate) struct Records<'a> {
    pub(crate) section: String,
    /// The bytes of one record.
    pub(crate) size: usize,
    pub(crate) records: &'a [u8],
}

impl<'a> Ext<'a> {
    /// Parses the data; returns None if it is malformed.
    pub(crate) fn parse(data: &'a [u8], btf: &Btf<'_>) -> Option<Self> {
        if !data.starts_with(&MAGIC_AND_VERSION) {
            return None;
        }
        let header = word(data, 4)?;
        let part = |at: usize| -> Option<Vec<Records<'a>>> {
            // Older headers are shorter.
            if header < at as u32 + 8 || word(data, at + 4)? == 0 {
                return Some(Vec::new());
            }
            let start = (header as usize).checked_add(word(data, at)? as usize)?;
            let end = start.checked_add(word(data, at + 4)? as usize)?;
            by_section(data.get(start..end)?, btf)
        };
        Some(Self {
            functions: part(8)?,
            lines: part(16)?,
            core: part(24)?,
        })
    }
}

fn by_section<'a>(data: &'a [u8], btf: &Btf<'_>) -> Option<Vec<Records<'a>>> {
    let size = word(data, 0)? as usize;
    if size < 8 {
        return None;
    }
    let (mut sections, mut rest) = (Vec::new(), data.get(4..)?);
    while !rest.is_empty() {
        let name = btf.string(word(rest, 0)?)?;
        let bytes = (word(rest, 4)? as usize).checked_mul(size)?;
        sections.push(Records {
            section: String::from_utf8_lossy(name).into_owned(),
            size,
            records: rest.get(8..8usize.checked_add(bytes)?)?,
        });
        rest = rest.get(8usize.checked_add(bytes)?..)?;
    }
    Some(sections)
}

/// Returns the little-endian word at an offset.
pub(crate) fn word(data: &[u8], at: usize) -> Option<u32> {
    let bytes = data.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}
