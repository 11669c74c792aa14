//! Links functions in sections to whole programs: the functions that a program calls are appended
//! to it, and every reference to a map, a variable, a function or something of the kernel's is put
//! into the instruction.

use std::collections::HashMap;

use beeline_btf::{Btf, kind};
use beeline_isa::opcode::{
    CALL, JMP, POISON_EXTERN, PSEUDO_BTF_ID, PSEUDO_CALL, PSEUDO_FUNC, PSEUDO_KFUNC_CALL,
    PSEUDO_MAP_FD, PSEUDO_MAP_VALUE,
};
use beeline_isa::{INSN_BYTES, Insn};

use crate::Error;
use crate::elf::{Elf, Symbol};
use crate::externs::Extern;
use crate::kernel::Found;
use crate::maps::Maps;

/// The first number of missing kernel functions; missing variables start at `POISON_EXTERN`.
pub(crate) const POISON_FUNCTION: i32 = POISON_EXTERN + 1_000_000;
/// The most instructions of all programs of a file together, with the copies that each has.
const MOST_INSNS: usize = 8 << 20;

/// Makes an instruction for which a program that reaches it is refused.
fn poison(from: i32, place: u32) -> Insn {
    Insn {
        code: JMP | CALL,
        dst: 0,
        src: 0,
        off: 0,
        imm: from.saturating_add(place.cast_signed()),
    }
}

/// A function in the file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Function<'a> {
    pub(crate) name: &'a str,
    pub(crate) section: usize,
    /// The first slot, and the number of slots.
    pub(crate) start: usize,
    pub(crate) len: usize,
    pub(crate) is_local: bool,
}

/// A function in a program.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    /// Its first slot.
    pub(crate) at: usize,
    /// Its number among the file's functions.
    pub(crate) function: usize,
}

/// Returns the place of a section's instruction in a program of these parts.
pub(crate) fn slot_of(
    functions: &[Function<'_>],
    parts: &[Part],
    section: usize,
    slot: usize,
) -> Option<usize> {
    parts.iter().find_map(|part| {
        let function = functions.get(part.function)?;
        let place = slot.checked_sub(function.start)?;
        (function.section == section && place < function.len).then_some(part.at + place)
    })
}

/// Makes programs from this.
#[derive(Debug)]
pub(crate) struct Linker<'a> {
    pub(crate) elf: &'a Elf<'a>,
    /// The code by section.
    pub(crate) code: &'a [Vec<Insn>],
    pub(crate) functions: &'a [Function<'a>],
    pub(crate) maps: &'a Maps,
    pub(crate) externs: &'a HashMap<usize, Extern>,
    /// The number of instructions that may still be produced.
    room: usize,
}

/// Returns the functions of a file, by section and place.
pub(crate) fn functions<'a>(elf: &Elf<'a>, code: &[Vec<Insn>]) -> Result<Vec<Function<'a>>, Error> {
    let mut functions = Vec::new();
    for symbol in elf.symbols.iter().filter(|symbol| symbol.is_function) {
        let Some(section) = symbol.section else {
            continue;
        };
        let slots = |bytes: u64| {
            let bytes = usize::try_from(bytes).ok()?;
            (bytes % INSN_BYTES == 0).then_some(bytes / INSN_BYTES)
        };
        let place = slots(symbol.value).zip(slots(symbol.size));
        let (start, len) = place
            .filter(|&(start, len)| {
                let available = code.get(section).map_or(0, Vec::len);
                len > 0 && start.checked_add(len).is_some_and(|end| end <= available)
            })
            .ok_or_else(|| {
                Error::Broken(format!(
                    "function {} is not inside its section",
                    symbol.name
                ))
            })?;
        functions.push(Function {
            name: symbol.name,
            section,
            start,
            len,
            is_local: symbol.is_local,
        });
    }
    functions.sort_by_key(|it| (it.section, it.start));
    Ok(functions)
}

/// Returns the function that the tag `exception_callback:` of a program's function names.
pub(crate) fn exception_callback(
    btf: &Btf<'_>,
    functions: &[Function<'_>],
    main: &str,
) -> Option<usize> {
    let mut tags = (1..btf.len()).filter_map(|id| btf.get(id));
    let name = tags.find_map(|tag| {
        let name = tag.name.strip_prefix(b"exception_callback:")?;
        let of = btf.get(tag.refers_to())?;
        let is_it = tag.component() == Some(-1) && of.kind == kind::FUNC;
        (is_it && of.name == main.as_bytes()).then_some(name)
    })?;
    functions.iter().position(|it| it.name.as_bytes() == name)
}

impl<'a> Linker<'a> {
    pub(crate) fn new(
        elf: &'a Elf<'a>,
        code: &'a [Vec<Insn>],
        functions: &'a [Function<'a>],
        maps: &'a Maps,
        externs: &'a HashMap<usize, Extern>,
    ) -> Self {
        Self {
            elf,
            code,
            functions,
            maps,
            externs,
            room: MOST_INSNS,
        }
    }

    /// Returns the program that begins with a function, and the places of its functions. Each
    /// called function follows its first caller, as libbpf places them.
    ///
    /// `exception_callback` is the function that runs when the program throws; it comes last, as
    /// nothing calls it.
    pub(crate) fn link(
        &mut self,
        main: usize,
        mut exception_callback: Option<usize>,
    ) -> Result<(Vec<Insn>, Vec<Part>), Error> {
        let (mut insns, mut parts) = (Vec::new(), Vec::new());
        let mut placed = HashMap::from([(main, 0)]);
        self.append(main, &mut insns, &mut parts)?;
        // The functions that are being searched: the part, and the next of its slots.
        let mut open = vec![(0, 0)];
        while let Some((number, next)) = open.last_mut() {
            let Some(&part) = parts.get(*number) else {
                break;
            };
            let slot = *next;
            *next += 1;
            let function = self.function(part.function)?;
            if slot == function.len {
                open.pop();
                if open.is_empty()
                    && let Some(callback) = exception_callback.take()
                    && !placed.contains_key(&callback)
                {
                    placed.insert(callback, insns.len());
                    open.push((parts.len(), 0));
                    self.append(callback, &mut insns, &mut parts)?;
                }
                continue;
            }
            let Some(called) = self.callee(function, slot, insns.get(part.at + slot))? else {
                continue;
            };
            let at = match placed.get(&called) {
                Some(&at) => at,
                None => {
                    let at = insns.len();
                    placed.insert(called, at);
                    open.push((parts.len(), 0));
                    self.append(called, &mut insns, &mut parts)?;
                    at
                }
            };
            if let Some(insn) = insns.get_mut(part.at + slot) {
                let distance = at as i64 - (part.at + slot) as i64 - 1;
                insn.imm = distance as i32; // within MOST_INSNS
                if insn.is_imm64() {
                    insn.src = PSEUDO_FUNC;
                }
            }
        }
        Ok((insns, parts))
    }

    fn function(&self, number: usize) -> Result<Function<'a>, Error> {
        let function = self.functions.get(number).copied();
        function.ok_or_else(|| Error::Broken("a function is missing".into()))
    }

    /// Appends a function, with its references to maps and externs resolved.
    fn append(
        &mut self,
        number: usize,
        insns: &mut Vec<Insn>,
        parts: &mut Vec<Part>,
    ) -> Result<(), Error> {
        let function = self.function(number)?;
        self.room = self.room.checked_sub(function.len).ok_or(Error::TooLarge)?;
        let at = insns.len();
        parts.push(Part {
            at,
            function: number,
        });
        let code = self.code.get(function.section);
        let body = code.and_then(|it| it.get(function.start..function.start + function.len));
        insns.extend(body.unwrap_or_default());
        for slot in 0..function.len {
            if let Some((number, symbol)) = self.relocation(function, slot) {
                let rest = insns.get_mut(at + slot..).unwrap_or_default();
                self.refer(rest, number, symbol)
                    .map_err(|what| self.error(function, slot, symbol, what))?;
            }
        }
        Ok(())
    }

    /// Returns the symbol that an instruction refers to.
    fn relocation(&self, function: Function<'_>, slot: usize) -> Option<(usize, &'a Symbol<'a>)> {
        let section = self.elf.sections.get(function.section)?;
        let offset = ((function.start + slot) * INSN_BYTES) as u64;
        let relocations = &section.relocations;
        let found = relocations
            .binary_search_by_key(&offset, |it| it.offset)
            .ok()?;
        let number = relocations.get(found)?.symbol;
        Some((number, self.elf.symbols.get(number)?))
    }

    /// Resolves a reference to anything but a function of the file.
    fn refer(
        &self,
        insns: &mut [Insn],
        number: usize,
        symbol: &Symbol<'_>,
    ) -> Result<(), &'static str> {
        let wide = insns.first().is_some_and(|insn| insn.is_imm64());
        if !wide {
            let Some(insn) = insns.first_mut().filter(|insn| insn.code == JMP | CALL) else {
                return Err("it is in an instruction that cannot hold it");
            };
            match self.externs.get(&number) {
                Some(Extern::Typed(found)) => {
                    insn.src = PSEUDO_KFUNC_CALL;
                    insn.off = i16::try_from(descriptor(*found))
                        .map_err(|_| "it is in one module too many")?;
                    insn.imm = found.id.cast_signed();
                }
                Some(Extern::Missing(place) | Extern::Absent(place)) => {
                    *insn = poison(POISON_FUNCTION, *place);
                }
                Some(_) => return Err("it is no function"),
                None => {}
            }
            return Ok(());
        }
        let [first, second, ..] = insns else {
            return Err("its instruction is cut");
        };
        let (src, low, high) = match (self.externs.get(&number), self.maps.of_symbol(symbol)) {
            (Some(Extern::Config { map, offset }), _) => (PSEUDO_MAP_VALUE, *map as u32, *offset),
            (Some(Extern::Typed(found)), _) => (PSEUDO_BTF_ID, found.id, descriptor(*found)),
            (Some(Extern::Address(address)), _) => (0, *address as u32, (address >> 32) as u32),
            (Some(Extern::Missing(_)), _) => (0, 0, 0),
            (Some(Extern::Absent(place)), _) => {
                (*first, *second) = (poison(POISON_EXTERN, *place), poison(POISON_EXTERN, *place));
                return Ok(());
            }
            (None, Some((map, true))) => {
                let offset = (symbol.value as u32).wrapping_add(first.imm.cast_unsigned());
                (PSEUDO_MAP_VALUE, map as u32, offset)
            }
            (None, Some((map, false))) => (PSEUDO_MAP_FD, map as u32, 0),
            (None, None) if self.holds_code(symbol) => return Ok(()),
            (None, None) => return Err("it is neither map nor variable nor function"),
        };
        first.src = src;
        first.imm = low.cast_signed();
        second.imm = high.cast_signed();
        Ok(())
    }

    fn holds_code(&self, symbol: &Symbol<'_>) -> bool {
        let section = symbol.section.and_then(|it| self.elf.sections.get(it));
        section.is_some_and(|section| section.holds_code)
    }

    /// Returns the function that an instruction calls or takes the address of, if it does.
    fn callee(
        &self,
        function: Function<'a>,
        slot: usize,
        insn: Option<&Insn>,
    ) -> Result<Option<usize>, Error> {
        let Some(insn) = insn else {
            return Ok(None);
        };
        let is_call = insn.code == JMP | CALL && insn.src == PSEUDO_CALL;
        let relocation = self
            .relocation(function, slot)
            .filter(|(_, symbol)| self.holds_code(symbol));
        let imm = i64::from(insn.imm);
        // A reference is to a function's symbol, or to its section with the place in the
        // instruction.
        let (section, target) = match relocation {
            Some((_, symbol)) if is_call => {
                let base = (symbol.value / INSN_BYTES as u64) as i64;
                (symbol.section, base.wrapping_add(imm).wrapping_add(1))
            }
            Some((_, symbol)) if insn.is_imm64() => {
                let bytes = (symbol.value as i64).wrapping_add(imm);
                (symbol.section, bytes / INSN_BYTES as i64)
            }
            None if is_call => {
                let here = (function.start + slot) as i64;
                (
                    Some(function.section),
                    here.wrapping_add(imm).wrapping_add(1),
                )
            }
            _ => return Ok(None),
        };
        let place = section.zip(usize::try_from(target).ok());
        let found = place.and_then(|place| {
            let by_place = |it: &Function<'_>| (it.section, it.start);
            self.functions.binary_search_by_key(&place, by_place).ok()
        });
        found.map(Some).ok_or_else(|| Error::Relocation {
            function: function.name.to_owned(),
            insn: slot,
            symbol: "a function".to_owned(),
            what: "no function begins where it leads",
        })
    }

    fn error(
        &self,
        function: Function<'_>,
        slot: usize,
        symbol: &Symbol<'_>,
        what: &'static str,
    ) -> Error {
        let section = symbol.section.and_then(|it| self.elf.sections.get(it));
        let symbol = match (symbol.name, section) {
            ("", Some(section)) => section.name,
            (name, _) => name,
        };
        Error::Relocation {
            function: function.name.to_owned(),
            insn: slot,
            symbol: symbol.to_owned(),
            what,
        }
    }
}

/// Returns the number in place of libbpf's module descriptor, or its place among descriptors: 0 for
/// the kernel itself.
fn descriptor(found: Found) -> u32 {
    found.module.map_or(0, |module| module as u32 + 1)
}
