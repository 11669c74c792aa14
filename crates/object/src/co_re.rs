//! Relocations of fields, types and enumerators to the kernel at hand ("CO-RE").
//!
//! aya-obj does them, on whole object files; and it refuses files for reasons that are none here, such as a section's name. So
//! it is given a file of its own kind, made for the purpose: the sections of code under names that it takes, the types, and
//! the relocations. It fails where the kernel lacks a type whose size or number is asked for, which is 0 then to libbpf; so that
//! is found out first.

use std::error::Error as _;
use std::panic::{AssertUnwindSafe, catch_unwind};

use beeline_isa::{INSN_BYTES, Insn};
use object::write::{Object, Symbol, SymbolSection};
use object::{
    Architecture, BinaryFormat, Endianness, SectionKind, SymbolFlags, SymbolKind, SymbolScope,
};

use crate::Error;
use crate::elf::Elf;
use crate::ext::{Ext, word};
use crate::kernel::Kernel;

/// Bytes of `struct bpf_core_relo`: offset in the section, type, access, kind.
const RELOCATION: usize = 16;
/// `BPF_CORE_TYPE_ID_TARGET`, `BPF_CORE_TYPE_EXISTS` and `BPF_CORE_TYPE_SIZE`.
const TYPE_ID: u8 = 7;
const TYPE_EXISTS: u8 = 8;
const TYPE_SIZE: u8 = 9;
/// Bytes of BTF's header, as far as it is used.
const BTF_HEADER: usize = 24;
/// Where the header says how long the strings are.
const STRINGS_LEN: usize = 20;

type Record = [u8; RELOCATION];

/// Relocations by section.
type Records = Vec<(usize, Vec<Record>)>;

/// Relocates the code of all sections, which is by section number; `btf` is the file's own type information.
pub(crate) fn relocate(
    elf: &Elf<'_>,
    code: &mut [Vec<Insn>],
    btf: &[u8],
    ext: &Ext<'_>,
    kernel: &dyn Kernel,
) -> Result<(), Error> {
    let records = records(elf, code, ext)?;
    if records.is_empty() {
        return Ok(());
    }
    let kernel = kernel.btf().ok_or(Error::NoKernelBtf)?;
    // aya-obj was written for files that a compiler made.
    let outcome = catch_unwind(AssertUnwindSafe(|| apply(code, btf, records, kernel)));
    outcome.map_err(|_| Error::Core("the relocations make no sense".into()))?
}

/// The file's relocations, which are all of instructions that there are.
fn records(elf: &Elf<'_>, code: &[Vec<Insn>], ext: &Ext<'_>) -> Result<Records, Error> {
    let mut all = Records::new();
    for (number, insns) in code.iter().enumerate().filter(|(_, it)| !it.is_empty()) {
        let name = elf.sections.get(number).map(|section| section.name);
        let mut of_section = Vec::new();
        for part in ext
            .core
            .iter()
            .filter(|it| Some(it.section.as_str()) == name)
        {
            let is_inside = |record: &Record| {
                let at = place(record);
                at.is_multiple_of(INSN_BYTES) && at / INSN_BYTES < insns.len()
            };
            let (records, []) = part.records.as_chunks() else {
                return Err(Error::Core("their size is not the known one".into()));
            };
            if part.size != RELOCATION || !records.iter().all(is_inside) {
                return Err(Error::Core("one is of no instruction".into()));
            }
            of_section.extend_from_slice(records);
        }
        if !of_section.is_empty() {
            all.push((number, of_section));
        }
    }
    Ok(all)
}

/// Bytes from its section's start to the instruction that a relocation is of.
fn place(record: &Record) -> usize {
    word(record, 0).unwrap_or(u32::MAX) as usize
}

/// What kind a relocation is of, to be changed.
fn kind(record: &mut Record) -> &mut u8 {
    let [.., kind, _, _, _] = record;
    kind
}

fn apply(
    code: &mut [Vec<Insn>],
    btf: &[u8],
    mut records: Records,
    kernel: &[u8],
) -> Result<(), Error> {
    // Of a type that aya-obj does not export.
    let little = aya_obj::Object::parse(&file_for_aya(&[], btf, &Records::new())?)
        .map_err(|error| Error::Core(error.to_string()))?
        .endianness;
    let kernel = aya_obj::btf::Btf::parse(kernel, little)
        .map_err(|error| Error::Core(format!("the kernel's BTF: {error}")))?;
    zero_absent_types(code, btf, &mut records, &kernel)?;
    for (section, insns) in relocated(code, btf, &records, &kernel)? {
        if let Some(place) = code.get_mut(section) {
            *place = insns;
        }
    }
    Ok(())
}

/// Asks first if types are there whose size or number is wanted; puts 0 and drops the relocation if not.
fn zero_absent_types(
    code: &mut [Vec<Insn>],
    btf: &[u8],
    records: &mut Records,
    kernel: &aya_obj::btf::Btf,
) -> Result<(), Error> {
    let needs_type = |record: &Record| matches!(*kind(&mut { *record }), TYPE_ID | TYPE_SIZE);
    let questions: Records = records
        .iter()
        .map(|(section, of_section)| {
            let mut asked: Vec<_> = of_section.iter().copied().filter(needs_type).collect();
            asked.iter_mut().for_each(|it| *kind(it) = TYPE_EXISTS);
            (*section, asked)
        })
        .filter(|(_, asked)| !asked.is_empty())
        .collect();
    if questions.is_empty() {
        return Ok(());
    }
    let answers = relocated(code, btf, &questions, kernel)?;
    for (section, of_section) in records {
        let answers = answers.iter().find(|(of, _)| of == section);
        let (Some((_, answers)), Some(insns)) = (answers, code.get_mut(*section)) else {
            continue;
        };
        of_section.retain(|record| {
            let slot = place(record) / INSN_BYTES;
            let is_absent = needs_type(record) && answers.get(slot).is_some_and(|it| it.imm == 0);
            if is_absent {
                let wide = insns.get(slot).is_some_and(|insn| insn.is_imm64());
                let slots = insns.iter_mut().skip(slot).take(if wide { 2 } else { 1 });
                slots.for_each(|insn| insn.imm = 0);
            }
            !is_absent
        });
    }
    Ok(())
}

/// The relocated code of each section that has relocations.
fn relocated(
    code: &[Vec<Insn>],
    btf: &[u8],
    records: &Records,
    kernel: &aya_obj::btf::Btf,
) -> Result<Vec<(usize, Vec<Insn>)>, Error> {
    let file = file_for_aya(code, btf, records)?;
    let mut object =
        aya_obj::Object::parse(&file).map_err(|error| Error::Core(error.to_string()))?;
    object.relocate_btf(kernel).map_err(|error| {
        let cause = error.source().map(ToString::to_string);
        Error::Core(cause.unwrap_or_else(|| error.to_string()))
    })?;
    let insn = |it: &aya_obj::generated::bpf_insn| Insn {
        code: it.code,
        dst: it.dst_reg(),
        src: it.src_reg(),
        off: it.off,
        imm: it.imm,
    };
    let functions = object.functions.into_values().filter_map(|it| {
        let section = it.name.strip_prefix(SYMBOL)?.parse().ok()?;
        Some((section, it.instructions.iter().map(insn).collect()))
    });
    Ok(functions.collect())
}

/// With a section's number, the name of its code.
const SYMBOL: &str = "code";

fn file_for_aya(code: &[Vec<Insn>], btf: &[u8], records: &Records) -> Result<Vec<u8>, Error> {
    let mut file = Object::new(BinaryFormat::Elf, Architecture::Bpf, Endianness::Little);
    let (mut names, mut relocations) = (Names::after(btf)?, Vec::new());
    for (number, records) in records {
        let insns = code.get(*number).map_or(&[][..], Vec::as_slice);
        let bytes: Vec<u8> = insns.iter().flat_map(|insn| insn.encode()).collect();
        let section = format!("uprobe/{number}");
        let head = [names.add(&section), records.len() as u32];
        relocations.extend(head.map(u32::to_le_bytes).concat());
        relocations.extend(records.concat());
        let size = bytes.len() as u64;
        let id = file.add_section(Vec::new(), section.into_bytes(), SectionKind::Text);
        file.set_section_data(id, bytes, 8);
        file.add_symbol(Symbol {
            name: format!("{SYMBOL}{number}").into_bytes(),
            value: 0,
            size,
            kind: SymbolKind::Text,
            scope: SymbolScope::Dynamic,
            weak: false,
            section: SymbolSection::Section(id),
            flags: SymbolFlags::None,
        });
    }
    for (name, data) in [(".BTF", names.btf), (".BTF.ext", ext_of(&relocations))] {
        let id = file.add_section(Vec::new(), name.into(), SectionKind::Other);
        file.set_section_data(id, data, 4);
    }
    file.write().map_err(|error| Error::Core(error.to_string()))
}

/// `.BTF.ext` with these relocations and nothing else.
fn ext_of(relocations: &[u8]) -> Vec<u8> {
    let len = relocations.len() as u32 + 4;
    // Magic and version, the header's length, places and lengths of the three parts, the size of a record.
    let header = [0x0001_eb9f, 32, 0, 0, 0, 0, 0, len, RELOCATION as u32];
    let mut ext = header.map(u32::to_le_bytes).concat();
    ext.extend(relocations);
    ext
}

/// Type information with more strings.
struct Names {
    btf: Vec<u8>,
}

impl Names {
    /// The strings have to be the last section, as compilers have it.
    fn after(btf: &[u8]) -> Result<Self, Error> {
        let field = |at| word(btf, at).map(|word| word as usize);
        let end = || {
            let strings = field(4)?.checked_add(field(16)?)?;
            strings.checked_add(field(STRINGS_LEN)?)
        };
        if field(4) < Some(BTF_HEADER) || end() != Some(btf.len()) {
            let why = "the strings of .BTF are not its last part";
            return Err(Error::Core(why.into()));
        }
        Ok(Self { btf: btf.to_vec() })
    }

    /// Gives the string's offset.
    fn add(&mut self, name: &str) -> u32 {
        let offset = word(&self.btf, STRINGS_LEN).unwrap_or(0);
        self.btf.extend(name.as_bytes());
        self.btf.push(0);
        let len = offset + name.len() as u32 + 1;
        if let Some(place) = self.btf.get_mut(STRINGS_LEN..STRINGS_LEN + 4) {
            place.copy_from_slice(&len.to_le_bytes());
        }
        offset
    }
}
