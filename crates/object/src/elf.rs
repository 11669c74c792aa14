//! The file as sections, symbols and relocations. Every number is still untrusted.

use object::elf::{
    ELFCLASS64, ELFDATA2MSB, ELFMAG, EM_BPF, FileHeader64, SHF_EXECINSTR, SHT_NOBITS, SHT_PROGBITS,
    STB_LOCAL, STB_WEAK, STT_FUNC, STT_SECTION, STV_HIDDEN, STV_INTERNAL,
};
use object::read::elf::{ElfFile64, SectionHeader};
use object::{
    BigEndian, LittleEndian, Object as _, ObjectSection as _, ObjectSymbol as _, RelocationFlags,
    RelocationTarget, pod,
};

use crate::Error;

/// An object file.
#[derive(Debug)]
pub(crate) struct Elf<'a> {
    /// The sections by number; the first is none.
    pub(crate) sections: Vec<Section<'a>>,
    /// The symbols by number; the first is none.
    pub(crate) symbols: Vec<Symbol<'a>>,
}

#[derive(Debug, Default)]
pub(crate) struct Section<'a> {
    pub(crate) name: &'a str,
    /// Empty if the file holds no bytes for it, as for `.bss`.
    pub(crate) data: &'a [u8],
    pub(crate) size: u64,
    pub(crate) holds_code: bool,
    pub(crate) holds_zeros: bool,
    pub(crate) relocations: Vec<Relocation>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Relocation {
    /// The offset from the section's start.
    pub(crate) offset: u64,
    /// Its symbol's number.
    pub(crate) symbol: usize,
}

#[derive(Debug, Default)]
pub(crate) struct Symbol<'a> {
    pub(crate) name: &'a str,
    /// The section that defines it; None for an extern.
    pub(crate) section: Option<usize>,
    pub(crate) value: u64,
    pub(crate) size: u64,
    pub(crate) is_function: bool,
    /// True if it stands for its section.
    pub(crate) is_section: bool,
    pub(crate) is_local: bool,
    pub(crate) is_weak: bool,
    /// True if it is not visible outside its file.
    pub(crate) is_hidden: bool,
}

impl<'a> Elf<'a> {
    pub(crate) fn parse(data: &'a [u8]) -> Result<Self, Error> {
        if !data.starts_with(&ELFMAG) {
            return Err(Error::NotElf);
        }
        check_header(data)?;
        let file = ElfFile64::<LittleEndian>::parse(data).map_err(broken)?;
        let mut sections = Vec::new();
        for section in file.sections() {
            let number = section.index().0;
            sections.resize_with(sections.len().max(number + 1), Section::default);
            if let Some(place) = sections.get_mut(number) {
                *place = read_section(&section)?;
            }
        }
        let mut symbols = Vec::new();
        for symbol in file.symbols() {
            let number = symbol.index().0;
            symbols.resize_with(symbols.len().max(number + 1), Symbol::default);
            if let Some(place) = symbols.get_mut(number) {
                *place = read_symbol(&symbol)?;
            }
        }
        Ok(Self { sections, symbols })
    }

    /// Returns the first section with a name.
    pub(crate) fn section(&self, name: &str) -> Option<(usize, &Section<'a>)> {
        let mut sections = self.sections.iter().enumerate();
        sections.find(|(_, section)| section.name == name)
    }

    /// Returns the symbol with a name that is defined in a section.
    pub(crate) fn symbol_in(&self, section: usize, name: &str) -> Option<&Symbol<'a>> {
        self.symbols
            .iter()
            .find(|symbol| symbol.section == Some(section) && symbol.name == name)
    }
}

/// Checks that the file is for eBPF, of this byte order, and complete. Its errors are clearer than
/// those of a parser at the first wrong number.
fn check_header(data: &[u8]) -> Result<(), Error> {
    if data.len() < size_of::<FileHeader64<LittleEndian>>() {
        return Err(Error::CutShort(data.len()));
    }
    let unaligned = |()| broken("it is not aligned in memory");
    let (header, _) = pod::from_bytes::<FileHeader64<LittleEndian>>(data).map_err(unaligned)?;
    let (swapped, _) = pod::from_bytes::<FileHeader64<BigEndian>>(data).map_err(unaligned)?;
    let is_big_endian = header.e_ident.data == ELFDATA2MSB;
    let machine = match is_big_endian {
        true => swapped.e_machine.get(BigEndian),
        false => header.e_machine.get(LittleEndian),
    };
    if header.e_ident.class != ELFCLASS64 || machine != EM_BPF {
        return Err(Error::NotBpf);
    }
    if is_big_endian {
        return Err(Error::BigEndian);
    }
    // Compilers write the section headers last.
    let size = u64::from(header.e_shentsize.get(LittleEndian));
    let count = u64::from(header.e_shnum.get(LittleEndian));
    let end = header.e_shoff.get(LittleEndian).checked_add(size * count);
    match end {
        Some(end) if end <= data.len() as u64 => Ok(()),
        _ => Err(Error::CutShort(data.len())),
    }
}

type FileSection<'a, 'f> = object::read::elf::ElfSection64<'a, 'f, LittleEndian>;
type FileSymbol<'a, 'f> = object::read::elf::ElfSymbol64<'a, 'f, LittleEndian>;

fn read_section<'a>(section: &FileSection<'a, '_>) -> Result<Section<'a>, Error> {
    let header = section.elf_section_header();
    let sh_type = header.sh_type(LittleEndian);
    let sh_flags = header.sh_flags(LittleEndian);
    let mut relocations = Vec::new();
    for (offset, relocation) in section.relocations() {
        if let (RelocationTarget::Symbol(symbol), RelocationFlags::Elf { .. }) =
            (relocation.target(), relocation.flags())
        {
            let symbol = symbol.0;
            relocations.push(Relocation { offset, symbol });
        }
    }
    relocations.sort_by_key(|relocation| relocation.offset);
    Ok(Section {
        name: section.name().map_err(broken)?,
        data: section.data().map_err(broken)?,
        size: section.size(),
        holds_code: sh_type == SHT_PROGBITS && sh_flags.contains(SHF_EXECINSTR),
        holds_zeros: sh_type == SHT_NOBITS,
        relocations,
    })
}

fn read_symbol<'a>(symbol: &FileSymbol<'a, '_>) -> Result<Symbol<'a>, Error> {
    let raw = symbol.elf_symbol();
    let (kind, binding) = (raw.st_type(), raw.st_bind());
    Ok(Symbol {
        name: symbol.name().map_err(broken)?,
        section: symbol.section_index().map(|section| section.0),
        value: symbol.address(),
        size: symbol.size(),
        is_function: kind == STT_FUNC,
        is_section: kind == STT_SECTION,
        is_local: binding == STB_LOCAL,
        is_weak: binding == STB_WEAK,
        is_hidden: matches!(raw.st_visibility(), STV_HIDDEN | STV_INTERNAL),
    })
}

fn broken(why: impl ToString) -> Error {
    Error::Broken(why.to_string())
}
