//! Which source line an instruction comes from.

use beeline_btf::Btf;
use beeline_isa::INSN_BYTES;

use crate::elf::Elf;
use crate::ext::{Ext, word};
use crate::link::{Function, Part};

/// A source line, and the first instruction of a run that comes from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// The instruction's slot.
    pub insn: usize,
    /// The file's name as the compiler saw it.
    pub file: String,
    /// From 1 on.
    pub line: u32,
    /// From 1 on; 0 if not known.
    pub column: u32,
    /// The line itself.
    pub text: String,
}

/// The lines of a linked program, by instruction.
pub(crate) fn of_program(
    elf: &Elf<'_>,
    btf: &Btf<'_>,
    ext: &Ext<'_>,
    functions: &[Function<'_>],
    parts: &[Part],
) -> Vec<Line> {
    let string = |offset| {
        let string = btf.string(offset).unwrap_or_default();
        String::from_utf8_lossy(string).into_owned()
    };
    let mut lines = Vec::new();
    for part in parts {
        let Some(function) = functions.get(part.function) else {
            continue;
        };
        let section = elf.sections.get(function.section);
        let of_section = ext
            .lines
            .iter()
            .filter(|it| Some(it.section.as_str()) == section.map(|it| it.name));
        for records in of_section {
            for record in records.records.chunks_exact(records.size) {
                let fields = [0, 4, 8, 12].map(|at| word(record, at).unwrap_or(0));
                let [offset, file, text, place] = fields;
                let slot = (offset as usize / INSN_BYTES).checked_sub(function.start);
                let Some(slot) = slot.filter(|slot| *slot < function.len) else {
                    continue;
                };
                lines.push(Line {
                    insn: part.at + slot,
                    file: string(file),
                    line: place >> 10,
                    column: place & 0x3ff,
                    text: string(text).trim().to_owned(),
                });
            }
        }
    }
    lines.sort_by_key(|line| line.insn);
    lines
}
