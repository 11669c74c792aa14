//! The source lines of instructions.

use beeline_btf::Btf;
use beeline_isa::INSN_BYTES;
use beeline_uapi::info::LineInfo;

use crate::elf::Elf;
use crate::ext::{Records, word};
use crate::link::{Function, Part};

/// A source line, and the first instruction of a run that comes from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// The instruction's slot.
    pub insn: usize,
    /// The file's name as the compiler saw it.
    pub file: String,
    /// The line's number, from 1.
    pub line: u32,
    /// The column, from 1; 0 if not known.
    pub column: u32,
    /// The text of the line.
    pub text: String,
}

/// Returns the records for a linked program: the words of each, with the instruction's slot in the
/// program as the first.
pub(crate) fn records_of_program<const WORDS: usize>(
    elf: &Elf<'_>,
    records: &[Records<'_>],
    functions: &[Function<'_>],
    parts: &[Part],
) -> Vec<[u32; WORDS]> {
    let mut found = Vec::new();
    for part in parts {
        let Some(function) = functions.get(part.function) else {
            continue;
        };
        let section = elf.sections.get(function.section).map(|it| it.name);
        let of_section = |it: &&Records<'_>| Some(it.section.as_str()) == section;
        for records in records.iter().filter(of_section) {
            for record in records.records.chunks_exact(records.size) {
                let mut words = [0; WORDS];
                for (at, place) in words.iter_mut().enumerate() {
                    *place = word(record, 4 * at).unwrap_or(0);
                }
                let Some(offset) = words.first_mut() else {
                    continue;
                };
                let slot = (*offset as usize / INSN_BYTES).checked_sub(function.start);
                if let Some(slot) = slot.filter(|slot| *slot < function.len) {
                    *offset = (part.at + slot) as u32; // a program's slots are far fewer
                    found.push(words);
                }
            }
        }
    }
    found.sort_by_key(|words| words.first().copied());
    found
}

/// Returns the lines of a linked program, by instruction, from its `struct bpf_line_info`.
pub(crate) fn lines(btf: &Btf<'_>, info: &[[u32; 4]]) -> Vec<Line> {
    let string = |offset| {
        let string = btf.string(offset).unwrap_or_default();
        String::from_utf8_lossy(string).into_owned()
    };
    let line = |info: LineInfo| Line {
        insn: info.insn_off as usize,
        file: string(info.file_name_off),
        line: info.line(),
        column: info.column(),
        text: string(info.line_off).trim().to_owned(),
    };
    info.iter().map(|&words| line(words.into())).collect()
}
