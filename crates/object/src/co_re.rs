//! Relocations of fields, types and enumerators to the kernel at hand ("CO-RE").
//!
//! An instruction with such a relocation holds a number that was right for the types that the
//! program was compiled with: the offset of a field, the size of a type, the value of an
//! enumerator. The relocation describes the number, and the kernel's types give its new value.
//! These are looked up by name; the part of a name behind three underscores is the program's own
//! ("flavors": `task_struct___old`). If several types of a name fit, all must agree.
//!
//! Rules and names are those of libbpf (`relo_core.c`). An instruction that cannot be relocated
//! becomes a call of a function that does not exist, so a program may have it where it is never
//! reached; libbpf refuses the file for some such instructions.

mod spec;
mod types;
mod value;

use std::collections::HashMap;
use std::mem::offset_of;

use beeline_btf::{Btf, Type, kind};
use beeline_isa::opcode::{
    ALU, ALU64, B, CALL, CLASS_MASK, DW, H, JMP, K, LD, LDX, POISON_CORE, SIZE_MASK, SOURCE_MASK,
    ST, STX, W,
};
use beeline_isa::{INSN_BYTES, Insn};
use beeline_uapi::info::{CoreRelo, core_relo};

use crate::Error;
use crate::elf::Elf;
use crate::ext::{Ext, word};
use crate::kernel::{Kernel, KernelNames};
use spec::Spec;
use value::Number;

/// `enum bpf_core_relo_kind`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    FieldOffset,
    FieldSize,
    FieldExists,
    FieldSigned,
    FieldLeftShift,
    FieldRightShift,
    LocalType,
    TargetType,
    TypeExists,
    TypeSize,
    EnumeratorExists,
    EnumeratorValue,
    TypeMatches,
}

/// A relocation makes no sense, or has more than one answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Senseless;

type Sensible<T> = Result<T, Senseless>;

/// A relocation.
#[derive(Debug, Clone, Copy)]
struct Relocation<'a> {
    /// The slot of its instruction, in its section.
    slot: usize,
    /// The type's number in the file.
    type_id: u32,
    /// Numbers with colons between them.
    access: &'a [u8],
    what: What,
}

/// Types by name, without the program's own part of it.
type Candidates = HashMap<(Vec<u8>, u8), Vec<u32>>;

/// An instruction that needs something which the kernel's types do not have.
#[derive(Debug)]
pub(crate) struct Unrelocated {
    pub(crate) section: usize,
    /// The slot in the section.
    pub(crate) slot: usize,
    /// The thing in a programmer's notation: `struct task_struct.pid`.
    pub(crate) what: String,
}

/// Relocates the code of all sections, which is by section number; `btf` are the file's own types.
/// Returns the instructions that could not be relocated.
pub(crate) fn relocate(
    elf: &Elf<'_>,
    code: &mut [Vec<Insn>],
    btf: Option<&Btf<'_>>,
    ext: &Ext<'_>,
    kernel: &dyn Kernel,
    names: &KernelNames<'_>,
) -> Result<Vec<Unrelocated>, Error> {
    let Some(btf) = btf else {
        return Ok(Vec::new());
    };
    let relocations = relocations(elf, code, btf, ext)?;
    if relocations
        .iter()
        .all(|(_, of_section)| of_section.is_empty())
    {
        return Ok(Vec::new());
    }
    let kernel = kernel.btf().ok_or(Error::NoKernelBtf)?;
    let kernel = Btf::parse(kernel).ok_or(Error::Core("the kernel's BTF is broken".into()))?;
    let all = relocations.iter().flat_map(|(_, of_section)| of_section);
    let mut by_name = candidates(btf, &kernel, all);
    // Modules are searched only for names that the kernel itself has no type for.
    let with_modules = match by_name.values().any(Vec::is_empty) {
        true => names.with_modules(),
        false => None,
    };
    let kernel = match with_modules {
        Some(with_modules) => {
            add_candidates(&mut by_name, &with_modules, kernel.len());
            with_modules
        }
        None => kernel,
    };
    // The types that have fitted all relocations so far, by the file's types.
    let mut fitting = HashMap::new();
    let mut failed = Vec::new();
    for (section, of_section) in &relocations {
        for relocation in of_section {
            let number = resolve(btf, &kernel, relocation, &by_name, &mut fitting);
            let number = number.map(|it| match (relocation.what, it.new) {
                (What::TargetType, Some(id)) => Number {
                    new: Some(names.own_number(id as u32).into()),
                    ..it
                },
                _ => it,
            });
            let insns = code
                .get_mut(*section)
                .and_then(|it| it.get_mut(relocation.slot..));
            let insns = insns.unwrap_or_default();
            if !number.is_ok_and(|number| patch(insns, &number)) {
                poison(insns);
                failed.push(Unrelocated {
                    section: *section,
                    slot: relocation.slot,
                    what: describe(btf, relocation),
                });
            }
        }
    }
    Ok(failed)
}

/// Describes a relocation with the names of the file's types.
fn describe(btf: &Btf<'_>, relocation: &Relocation<'_>) -> String {
    /// The bytes of a name that suffice to recognise it; its length is not trusted.
    const ENOUGH: usize = 128;
    let text = |name: &[u8]| {
        let name = name.get(..ENOUGH).unwrap_or(name);
        String::from_utf8_lossy(name).into_owned()
    };
    let Some(root) = btf.get(relocation.type_id) else {
        return "a type".to_owned();
    };
    let word = match root.kind {
        kind::STRUCT => "struct ",
        kind::UNION => "union ",
        kind::ENUM | kind::ENUM64 => "enum ",
        _ => "",
    };
    let mut what = format!("{word}{}", text(essential(root.name)));
    let access = text(relocation.access);
    let mut numbers = access.split(':').flat_map(str::parse::<usize>);
    if relocation.what.is_of_enumerator() {
        let value = numbers
            .next()
            .and_then(|number| btf.enumerators(root).nth(number));
        return match value {
            Some(value) => format!("{what}, {}", text(essential(value.name))),
            None => what,
        };
    }
    // The first number is an index into the memory behind a pointer.
    let mut id = relocation.type_id;
    for number in numbers.skip(1) {
        let Ok((_, it)) = bare(btf, id) else {
            break;
        };
        if let Some((element, _)) = it.array() {
            what += &format!("[{number}]");
            id = element;
        } else if let Some(member) = btf.bit_members(it).nth(number) {
            if !member.name.is_empty() {
                what += &format!(".{}", text(member.name));
            }
            id = member.type_id;
        }
    }
    what
}

/// Returns the relocations of each section; all are of existing instructions.
fn relocations<'a>(
    elf: &Elf<'_>,
    code: &[Vec<Insn>],
    btf: &Btf<'a>,
    ext: &Ext<'_>,
) -> Result<Vec<(usize, Vec<Relocation<'a>>)>, Error> {
    let mut all = Vec::new();
    for (number, insns) in code.iter().enumerate().filter(|(_, it)| !it.is_empty()) {
        let name = elf.sections.get(number).map(|section| section.name);
        let parts = ext.core.iter();
        let mut of_section = Vec::new();
        for part in parts.filter(|it| Some(it.section.as_str()) == name) {
            if part.size < size_of::<CoreRelo>() {
                return Err(Error::Core("their size is not the known one".into()));
            }
            for record in part.records.chunks_exact(part.size) {
                let relocation = Relocation::of(record, btf)
                    .ok_or_else(|| Error::Core("one is of an unknown kind".into()))?;
                if relocation.slot >= insns.len() {
                    return Err(Error::Core("one is of no instruction".into()));
                }
                of_section.push(relocation);
            }
        }
        all.push((number, of_section));
    }
    Ok(all)
}

impl<'a> Relocation<'a> {
    fn of(record: &[u8], btf: &Btf<'a>) -> Option<Self> {
        let at = word(record, offset_of!(CoreRelo, insn_off))? as usize;
        let what = match word(record, offset_of!(CoreRelo, kind))? {
            core_relo::FIELD_BYTE_OFFSET => What::FieldOffset,
            core_relo::FIELD_BYTE_SIZE => What::FieldSize,
            core_relo::FIELD_EXISTS => What::FieldExists,
            core_relo::FIELD_SIGNED => What::FieldSigned,
            core_relo::FIELD_LSHIFT_U64 => What::FieldLeftShift,
            core_relo::FIELD_RSHIFT_U64 => What::FieldRightShift,
            core_relo::TYPE_ID_LOCAL => What::LocalType,
            core_relo::TYPE_ID_TARGET => What::TargetType,
            core_relo::TYPE_EXISTS => What::TypeExists,
            core_relo::TYPE_SIZE => What::TypeSize,
            core_relo::ENUMVAL_EXISTS => What::EnumeratorExists,
            core_relo::ENUMVAL_VALUE => What::EnumeratorValue,
            core_relo::TYPE_MATCHES => What::TypeMatches,
            _ => return None,
        };
        at.is_multiple_of(INSN_BYTES).then_some(Self {
            slot: at / INSN_BYTES,
            type_id: word(record, offset_of!(CoreRelo, type_id))?,
            access: btf.string(word(record, offset_of!(CoreRelo, access_str_off))?)?,
            what,
        })
    }
}

impl What {
    fn is_of_type(self) -> bool {
        matches!(
            self,
            Self::LocalType
                | Self::TargetType
                | Self::TypeExists
                | Self::TypeSize
                | Self::TypeMatches
        )
    }

    fn is_of_enumerator(self) -> bool {
        matches!(self, Self::EnumeratorExists | Self::EnumeratorValue)
    }
}

/// Returns a name without the program's own part: the part behind the last three underscores that
/// have something else on both sides.
pub(crate) fn essential(name: &[u8]) -> &[u8] {
    let is_separator =
        |it: &[u8]| matches!(it, [x, b'_', b'_', b'_', y] if *x != b'_' && *y != b'_');
    let last = name.windows(5).rposition(is_separator);
    last.map_or(name, |at| name.get(..=at).unwrap_or(name))
}

/// Returns whether a type of the file's may stand for one of the kernel's, as libbpf requires of
/// externs.
pub(crate) fn are_compatible(btf: &Btf<'_>, local: u32, kernel: &Btf<'_>, target: u32) -> bool {
    types::are_compatible(btf, local, kernel, target).unwrap_or(false)
}

/// Makes enumerations of both sizes alike.
fn comparable(kind: u8) -> u8 {
    if kind == kind::ENUM64 {
        kind::ENUM
    } else {
        kind
    }
}

fn are_comparable(one: Type<'_>, other: Type<'_>) -> bool {
    comparable(one.kind) == comparable(other.kind)
}

/// Returns the type behind names and qualifiers; `void` has number 0.
fn bare<'a>(btf: &Btf<'a>, mut id: u32) -> Sensible<(u32, Type<'a>)> {
    // More than any compiler nests.
    for _ in 0..64 {
        if id == 0 {
            return Ok((0, Type::VOID));
        }
        let it = btf.get(id).ok_or(Senseless)?;
        match it.kind {
            kind::TYPEDEF | kind::VOLATILE | kind::CONST | kind::RESTRICT | kind::TYPE_TAG => {
                id = it.refers_to();
            }
            _ => return Ok((id, it)),
        }
    }
    Err(Senseless)
}

/// Returns the kernel's types with the names in the relocations, in one pass over its types.
fn candidates<'a>(
    btf: &Btf<'_>,
    kernel: &Btf<'_>,
    relocations: impl Iterator<Item = &'a Relocation<'a>>,
) -> Candidates {
    let mut found = Candidates::new();
    for relocation in relocations {
        if let Some(it) = btf.get(relocation.type_id).filter(|it| !it.name.is_empty()) {
            found.insert(
                (essential(it.name).to_vec(), comparable(it.kind)),
                Vec::new(),
            );
        }
    }
    add_candidates(&mut found, kernel, 1);
    found
}

/// Adds types from `first` on, for names that have none yet.
fn add_candidates(found: &mut Candidates, kernel: &Btf<'_>, first: u32) {
    let wanted = found.iter().filter(|(_, known)| known.is_empty());
    let wanted: std::collections::HashSet<_> = wanted.map(|(key, _)| key.clone()).collect();
    let names: std::collections::HashSet<Vec<u8>> =
        wanted.iter().map(|(name, _)| name.clone()).collect();
    for id in first..kernel.len() {
        let Some(it) = kernel.get(id).filter(|it| !it.name.is_empty()) else {
            continue;
        };
        let name = essential(it.name);
        if !names.contains(name) {
            continue;
        }
        let key = (name.to_vec(), comparable(it.kind));
        if wanted.contains(&key)
            && let Some(place) = found.get_mut(&key)
        {
            place.push(id);
        }
    }
}

/// Returns the number for a relocation's instruction.
fn resolve(
    btf: &Btf<'_>,
    kernel: &Btf<'_>,
    relocation: &Relocation<'_>,
    by_name: &Candidates,
    fitting: &mut HashMap<u32, Vec<u32>>,
) -> Sensible<Number> {
    let local = Spec::of(btf, relocation)?;
    if relocation.what == What::LocalType {
        return Ok(Number::unchecked(relocation.type_id.into()));
    }
    let root = btf.get(relocation.type_id).ok_or(Senseless)?;
    if root.name.is_empty() {
        return Err(Senseless);
    }
    let candidates = fitting.entry(relocation.type_id).or_insert_with(|| {
        let key = (essential(root.name).to_vec(), comparable(root.kind));
        by_name.get(&key).cloned().unwrap_or_default()
    });
    let mut found: Option<(Number, u64)> = None;
    let mut fit = Vec::new();
    for &candidate in candidates.iter() {
        let Some(target) = spec::matching(btf, &local, kernel, candidate)? else {
            continue;
        };
        let number = value::number(btf, &local, Some((kernel, &target)))?;
        match &found {
            None => found = Some((number, target.bit_offset)),
            Some((first, bit_offset)) => {
                let agree = number.new == first.new && target.bit_offset == *bit_offset;
                agree.then_some(()).ok_or(Senseless)?;
            }
        }
        fit.push(candidate);
    }
    match found {
        Some((number, _)) => {
            *candidates = fit;
            Ok(number)
        }
        None => value::number(btf, &local, None),
    }
}

/// Puts a number into an instruction, if the instruction can take it and holds the number by the
/// file's types.
fn patch(insns: &mut [Insn], number: &Number) -> bool {
    let [insn, rest @ ..] = insns else {
        return false;
    };
    let Some(new) = number.new else {
        return false;
    };
    let holds = |held: u64| number.old.is_none_or(|old| held == old);
    let extended = |held: i64| held.cast_unsigned();
    match insn.code & CLASS_MASK {
        ALU | ALU64 if insn.code & SOURCE_MASK == K && holds(extended(insn.imm.into())) => {
            insn.imm = new as i32; // numbers that need more are in wide instructions
            true
        }
        LDX | ST | STX if holds(extended(insn.off.into())) => {
            let Some(off) = i16::try_from(new).ok().filter(|_| number.may_load) else {
                return false;
            };
            if number.old_size != number.new_size {
                let (old, new) = (size_bits(number.old_size), size_bits(number.new_size));
                let (Some(old), Some(new)) = (old, new) else {
                    return false;
                };
                if insn.code & SIZE_MASK != old {
                    return false;
                }
                insn.code = insn.code & !SIZE_MASK | new;
            }
            insn.off = off;
            true
        }
        LD if insn.is_imm64() && insn.src == 0 => {
            let Some(second) = rest.first_mut() else {
                return false;
            };
            let (low, high) = (insn.imm.cast_unsigned(), second.imm.cast_unsigned());
            if !holds(u64::from(high) << 32 | u64::from(low)) {
                return false;
            }
            insn.imm = new as i32;
            second.imm = (new >> 32) as i32;
            true
        }
        _ => false,
    }
}

/// Returns the bits of an instruction's code for a size in bytes.
fn size_bits(bytes: u32) -> Option<u8> {
    match bytes {
        8 => Some(DW),
        4 => Some(W),
        2 => Some(H),
        1 => Some(B),
        _ => None,
    }
}

/// Makes an instruction for which a program that reaches it is refused.
fn poison(insns: &mut [Insn]) {
    let slots = match insns.first() {
        Some(insn) if insn.is_imm64() => 2,
        _ => 1,
    };
    for insn in insns.iter_mut().take(slots) {
        *insn = Insn {
            code: JMP | CALL,
            dst: 0,
            src: 0,
            off: 0,
            imm: POISON_CORE,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suffix_behind_three_underscores_is_a_flavor() {
        let essential =
            |name: &str| String::from_utf8(essential(name.as_bytes()).to_vec()).unwrap();
        assert_eq!(essential("task_struct"), "task_struct");
        assert_eq!(essential("task_struct___old"), "task_struct");
        assert_eq!(essential("a___b___c"), "a___b");
        assert_eq!(essential("a____b"), "a____b");
        assert_eq!(essential("a___"), "a___");
        assert_eq!(essential("___a"), "___a");
    }

    #[test]
    fn an_instruction_that_holds_something_else_is_left_to_be_poisoned() {
        let add = Insn {
            code: 0x07,
            dst: 1,
            src: 0,
            off: 0,
            imm: 8,
        };
        let number = Number {
            old: Some(8),
            ..Number::unchecked(16)
        };
        let mut insns = [add];
        assert!(patch(&mut insns, &number));
        assert_eq!(insns[0].imm, 16);
        assert!(!patch(&mut insns, &number));
        poison(&mut insns);
        assert_eq!((insns[0].code, insns[0].imm), (0x85, POISON_CORE));
    }

    #[test]
    fn a_load_takes_the_fields_new_size() {
        let load = Insn {
            code: 0x61,
            dst: 1,
            src: 2,
            off: 4,
            imm: 0,
        };
        let number = Number {
            old: Some(4),
            old_size: 4,
            new_size: 8,
            ..Number::unchecked(40)
        };
        let mut insns = [load];
        assert!(patch(&mut insns, &number));
        assert_eq!((insns[0].code, insns[0].off), (0x79, 40));
        let mut insns = [load];
        let odd = Number {
            new_size: 3,
            ..number
        };
        assert!(!patch(&mut insns, &odd));
        let unlike = Number {
            may_load: false,
            ..number
        };
        assert!(!patch(&mut insns, &unlike));
    }
}
