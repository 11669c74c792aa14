//! Flattens an object file to one piece of code that may lie anywhere: the instructions, then the
//! constants that they read, with all references between them filled in.

use std::collections::HashMap;

use object::read::elf::{ElfFile64, ElfSection64};
use object::{
    Endianness, Object, ObjectSection, ObjectSymbol, RelocationFlags, RelocationTarget,
    SectionIndex, SectionKind, SymbolKind, elf,
};

use crate::translate::ENTRY;
use crate::trouble::Trouble;

type File<'d> = ElfFile64<'d, Endianness>;

/// The flattened object file.
pub(crate) struct Flat {
    /// Instructions and constants.
    pub(crate) bytes: Vec<u8>,
    /// The bytes of instructions, at the start.
    text: usize,
    /// The names of functions by the offset of their first instruction.
    pub(crate) functions: HashMap<u64, String>,
    /// The table of frames, as if it lay at [`Flat::frame_table_at`]; not part of the code.
    pub(crate) frame_table: Vec<u8>,
    pub(crate) frame_table_at: u64,
}

impl Flat {
    /// Returns the instructions.
    pub(crate) fn text(&self) -> &[u8] {
        self.bytes.get(..self.text).unwrap_or_default()
    }
}

/// Flattens an object file; refuses one with code that would have to be linked with anything, or
/// with data to write.
pub(crate) fn flatten(object: &[u8]) -> Result<Flat, Trouble> {
    let file = File::parse(object)?;
    let text = file
        .section_by_name(".text")
        .ok_or_else(|| Trouble::new("no code"))?;
    let mut layout = Layout::default();
    layout.place(&text)?;
    let text_bytes = layout.bytes.len();
    for section in file.sections() {
        match section.kind() {
            SectionKind::ReadOnlyData | SectionKind::ReadOnlyString
                if section.name()? != ".eh_frame" =>
            {
                layout.place(&section)?;
            }
            SectionKind::Text if section.index() != text.index() => layout.place(&section)?,
            SectionKind::Data | SectionKind::UninitializedData | SectionKind::Tls
                if section.size() != 0 =>
            {
                return Err(Trouble::new("the code has variables"));
            }
            _ => {}
        }
    }
    let mut code = std::mem::take(&mut layout.bytes);
    for (index, at) in layout.starts.clone() {
        layout.relocate(&file, &file.section_by_index(index)?, at, &mut code)?;
    }
    let frame_table_at = code.len().next_multiple_of(8) as u64;
    let mut frame_table = Vec::new();
    if let Some(section) = file.section_by_name(".eh_frame") {
        let start = frame_table_at as usize;
        let mut padded = vec![0; start];
        padded.extend(section.data()?);
        layout.relocate(&file, &section, frame_table_at, &mut padded)?;
        frame_table = padded.split_off(start);
    }
    Ok(Flat {
        functions: functions(&file, &layout)?,
        bytes: code,
        text: text_bytes,
        frame_table,
        frame_table_at,
    })
}

/// The sections, one behind the other.
#[derive(Default)]
struct Layout {
    bytes: Vec<u8>,
    starts: HashMap<SectionIndex, u64>,
}

impl Layout {
    fn place(&mut self, section: &ElfSection64<'_, '_, Endianness>) -> Result<(), Trouble> {
        let align = usize::try_from(section.align()).unwrap_or(1).clamp(1, 64);
        self.bytes
            .resize(self.bytes.len().next_multiple_of(align), 0);
        self.starts.insert(section.index(), self.bytes.len() as u64);
        self.bytes.extend(section.data()?);
        Ok(())
    }

    /// Fills in the references to other sections in a section that starts at `at` in `bytes`.
    fn relocate(
        &self,
        file: &File<'_>,
        section: &ElfSection64<'_, '_, Endianness>,
        at: u64,
        bytes: &mut [u8],
    ) -> Result<(), Trouble> {
        for (offset, relocation) in section.relocations() {
            let RelocationFlags::Elf { r_type } = relocation.flags() else {
                return Err(Trouble::new("an unknown relocation"));
            };
            let RelocationTarget::Symbol(symbol) = relocation.target() else {
                return Err(Trouble::new("a relocation to nothing"));
            };
            let symbol = file.symbol_by_index(symbol)?;
            let start = symbol
                .section_index()
                .and_then(|index| self.starts.get(&index));
            let Some(start) = start else {
                return Err(Trouble::new(format!("the code needs {:?}", symbol.name()?)));
            };
            let target = start
                .wrapping_add(symbol.address())
                .wrapping_add_signed(relocation.addend());
            let place = at + offset;
            let distance = target.wrapping_sub(place).cast_signed();
            let field = usize::try_from(place)
                .ok()
                .and_then(|place| bytes.get_mut(place..))
                .ok_or_else(|| Trouble::new("a relocation outside of its section"))?;
            fill_in(file.architecture(), r_type, field, distance)?;
        }
        Ok(())
    }
}

/// Writes the distance to a target in the form that a relocation requires. All relocations are
/// relative.
fn fill_in(
    machine: object::Architecture,
    r_type: elf::RelocationType,
    field: &mut [u8],
    distance: i64,
) -> Result<(), Trouble> {
    use object::Architecture::{Aarch64, X86_64};
    // The bits of an instruction's immediate: how many, how far up, and in which unit.
    let (bits, shift, unit) = match (machine, r_type) {
        (X86_64, elf::R_X86_64_PC32 | elf::R_X86_64_PLT32) | (Aarch64, elf::R_AARCH64_PREL32) => {
            let number = i32::try_from(distance).map_err(|_| too_far())?;
            return overwrite(field, &number.to_le_bytes());
        }
        (X86_64, elf::R_X86_64_PC64) | (Aarch64, elf::R_AARCH64_PREL64) => {
            return overwrite(field, &distance.to_le_bytes());
        }
        (Aarch64, elf::R_AARCH64_ADR_PREL_LO21) => return adr(field, distance),
        (Aarch64, elf::R_AARCH64_CALL26 | elf::R_AARCH64_JUMP26) => (26, 0, 4),
        (Aarch64, elf::R_AARCH64_LD_PREL_LO19 | elf::R_AARCH64_CONDBR19) => (19, 5, 4),
        (Aarch64, elf::R_AARCH64_TSTBR14) => (14, 5, 4),
        _ => {
            return Err(Trouble::new(format!(
                "the code has a relocation of type {}",
                r_type.0
            )));
        }
    };
    immediate(field, distance / unit, bits, shift)
}

fn too_far() -> Trouble {
    Trouble::new("the code is too large")
}

fn overwrite(field: &mut [u8], bytes: &[u8]) -> Result<(), Trouble> {
    field
        .get_mut(..bytes.len())
        .ok_or_else(|| Trouble::new("a relocation outside of its section"))?
        .copy_from_slice(bytes);
    Ok(())
}

/// Ors a signed number of so many bits into an instruction.
fn immediate(field: &mut [u8], number: i64, bits: u32, shift: u32) -> Result<(), Trouble> {
    let limit = 1_i64 << (bits - 1);
    if !(-limit..limit).contains(&number) {
        return Err(too_far());
    }
    let number = (number as u32) & ((1 << bits) - 1);
    let insn = instruction(field)?;
    overwrite(field, &(insn | number << shift).to_le_bytes())
}

/// Puts a distance into `adr`, which has its two lowest bits apart.
fn adr(field: &mut [u8], distance: i64) -> Result<(), Trouble> {
    immediate(field, distance >> 2, 19, 5)?;
    let insn = instruction(field)?;
    overwrite(field, &(insn | (distance as u32 & 3) << 29).to_le_bytes())
}

fn instruction(field: &[u8]) -> Result<u32, Trouble> {
    field
        .first_chunk()
        .map(|&bytes| u32::from_le_bytes(bytes))
        .ok_or_else(|| Trouble::new("a relocation outside of its section"))
}

fn functions(file: &File<'_>, layout: &Layout) -> Result<HashMap<u64, String>, Trouble> {
    let mut functions = HashMap::new();
    for symbol in file.symbols() {
        let start = symbol
            .section_index()
            .and_then(|index| layout.starts.get(&index));
        if let (SymbolKind::Text, Some(start)) = (symbol.kind(), start) {
            functions.insert(start + symbol.address(), symbol.name()?.to_owned());
        }
    }
    match functions.get(&0) {
        Some(name) if name == ENTRY => Ok(functions),
        _ => Err(Trouble::new("the code does not start with its entry")),
    }
}
