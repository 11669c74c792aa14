//! The file's types as a kernel takes them. Compilers leave open where a section's variables are,
//! and describe things that others define. libbpf fills in what it knows, and so does this.

use std::mem::offset_of;
use std::ops::RangeInclusive;

use beeline_btf::{Btf, Type, int, kind, linkage, to_bytes};
use beeline_uapi::btf::{BtfHeader, BtfParam, BtfType, BtfVarSecinfo, info, info_vlen, rest_len};

use crate::elf::Elf;
use crate::ext::word;
use crate::maps::MapDefinition;

/// The bytes of a type's start, and its words.
const TYPE: usize = size_of::<BtfType>();
const INFO: usize = offset_of!(BtfType, info);
const SIZE_OR_TYPE: usize = offset_of!(BtfType, size_or_type);
/// The words of a section's variable.
const OFFSET: usize = offset_of!(BtfVarSecinfo, offset);
const SIZE: usize = offset_of!(BtfVarSecinfo, size);
/// The variable that stands for each of the kernel's functions in `.ksyms`.
const DUMMY: &[u8] = b"dummy_ksym\0";
const INT_BYTES: u32 = 4;

/// Types being changed.
struct Types<'a> {
    btf: &'a Btf<'a>,
    elf: &'a Elf<'a>,
    /// The section of types.
    types: Vec<u8>,
    strings: Vec<u8>,
    /// The start of each of the file's types; the first is number 1.
    places: Vec<usize>,
    /// The number of added types.
    added: u32,
}

/// Returns the file's types with the facts that the compiler did not know; `options` are in the map
/// `.kconfig`.
pub(crate) fn complete(
    data: &[u8],
    btf: &Btf<'_>,
    elf: &Elf<'_>,
    maps: &[MapDefinition],
    options: &[(String, u32)],
) -> Vec<u8> {
    let section = |at: usize| {
        let start =
            word(data, offset_of!(BtfHeader, hdr_len))?.checked_add(word(data, at)?)? as usize;
        data.get(start..start.checked_add(word(data, at + 4)? as usize)?)
    };
    let (Some(types), Some(strings)) = (
        section(offset_of!(BtfHeader, type_off)),
        section(offset_of!(BtfHeader, str_off)),
    ) else {
        return data.to_vec();
    };
    let mut types = Types {
        btf,
        elf,
        types: types.to_vec(),
        strings: strings.to_vec(),
        places: places(types),
        added: 0,
    };
    types.hide_functions();
    for id in types.numbers() {
        let Some(it) = btf.get(id).filter(|it| it.kind == kind::DATASEC) else {
            continue;
        };
        match it.name {
            b".ksyms" => types.kernel_symbols(id),
            b".kconfig" => {
                let map = maps.iter().find(|map| map.name == ".kconfig");
                types.configuration(id, map.map_or(0, |map| map.value_size), options);
            }
            _ => types.variables(id, it),
        }
        types.sort(id);
    }
    types.bytes()
}

impl Types<'_> {
    /// Returns the numbers of the file's types.
    fn numbers(&self) -> RangeInclusive<u32> {
        1..=self.places.len() as u32
    }

    /// Returns the start of a type.
    fn at(&self, id: u32) -> Option<usize> {
        self.places.get(id.checked_sub(1)? as usize).copied()
    }

    /// Sets a word, counted in bytes from a type's start.
    fn put(&mut self, id: u32, offset: usize, value: u32) {
        let Some(at) = self.at(id).map(|at| at + offset) else {
            return;
        };
        if let Some(place) = self.types.get_mut(at..at + 4) {
            place.copy_from_slice(&value.to_le_bytes());
        }
    }

    fn get(&self, id: u32, offset: usize) -> u32 {
        let at = self.at(id).map(|at| at + offset);
        at.and_then(|at| word(&self.types, at)).unwrap_or(0)
    }

    /// Returns a section's variables: the place among its words, and the number of the variable's
    /// type.
    fn variables_of(&self, section: u32) -> Vec<(usize, u32)> {
        let count = usize::from(info_vlen(self.get(section, INFO)));
        let places = (0..count).map(|number| TYPE + number * size_of::<BtfVarSecinfo>());
        places.map(|at| (at, self.get(section, at))).collect()
    }

    /// Makes global functions static to the kernel if only their file sees them.
    fn hide_functions(&mut self) {
        for id in self.numbers() {
            let Some(it) = self.btf.get(id).filter(|it| it.kind == kind::FUNC) else {
                continue;
            };
            let mut symbols = self.elf.symbols.iter();
            let is_it = |name: &str| name.as_bytes() == it.name;
            if it.linkage() == Some(linkage::GLOBAL)
                && symbols.any(|symbol| {
                    symbol.is_function && symbol.is_hidden && !symbol.is_local && is_it(symbol.name)
                })
                && !self.is_program(it.name)
            {
                self.put(id, INFO, info(kind::FUNC, linkage::STATIC as u16));
            }
        }
    }

    fn is_program(&self, name: &[u8]) -> bool {
        let mut symbols = self.elf.symbols.iter();
        symbols.any(|symbol| {
            let section = symbol.section.and_then(|it| self.elf.sections.get(it));
            let in_text = section.is_none_or(|section| section.name == ".text");
            symbol.is_function && symbol.name.as_bytes() == name && !in_text
        })
    }

    /// Returns the end of the last byte that a section's variables take.
    fn end_of_variables(&self, id: u32) -> u32 {
        let places = self.variables_of(id).into_iter().map(|(place, _)| place);
        let ends = places.map(|at| {
            self.get(id, at + OFFSET)
                .saturating_add(self.get(id, at + SIZE))
        });
        ends.max().unwrap_or(0)
    }

    /// Completes a section of the file: its size, and the places of its variables.
    fn variables(&mut self, id: u32, section: Type<'_>) {
        let name = String::from_utf8_lossy(section.name);
        let is_open = self.get(id, SIZE_OR_TYPE) == 0;
        if is_open {
            let size = match self.elf.section(&name) {
                Some((_, section)) => section.size as u32,
                // The compiler has put its variables elsewhere in the end.
                None => self.end_of_variables(id),
            };
            self.put(id, SIZE_OR_TYPE, size);
        }
        for (place, variable) in self.variables_of(id) {
            let Some(it) = self.btf.get(variable) else {
                continue;
            };
            if it.linkage() != Some(linkage::GLOBAL) {
                continue;
            }
            let mut symbols = self.elf.symbols.iter();
            let symbol = symbols.find(|symbol| {
                !symbol.is_local && !symbol.is_function && symbol.name.as_bytes() == it.name
            });
            let Some((value, is_hidden)) = symbol.map(|it| (it.value, it.is_hidden)) else {
                continue;
            };
            if is_open {
                self.put(id, place + OFFSET, value as u32);
            }
            if is_hidden {
                self.put(variable, TYPE, linkage::STATIC);
            }
        }
    }

    /// Completes `.ksyms`: variables become numbers of the program's own, and a dummy takes the
    /// place of functions.
    fn kernel_symbols(&mut self, id: u32) {
        let variables = self.variables_of(id);
        let is_function = |types: &Self, id: u32| {
            let it = types.btf.get(id);
            it.is_some_and(|it| it.kind == kind::FUNC)
        };
        let number = self.int();
        let has_functions = variables.iter().any(|(_, it)| is_function(self, *it));
        let dummy = has_functions.then(|| self.dummy(number));
        let mut offset = 0;
        for (place, symbol) in variables {
            match dummy.filter(|_| is_function(self, symbol)) {
                Some((dummy, name)) => {
                    self.name_parameters(self.get(symbol, SIZE_OR_TYPE), name);
                    self.put(id, place, dummy);
                    self.put(symbol, INFO, info(kind::FUNC, linkage::GLOBAL as u16));
                }
                None => {
                    self.put(symbol, TYPE, linkage::GLOBAL);
                    self.put(symbol, SIZE_OR_TYPE, number);
                }
            }
            self.put(id, place + OFFSET, offset);
            self.put(id, place + SIZE, INT_BYTES);
            offset += INT_BYTES;
        }
        self.put(id, SIZE_OR_TYPE, offset);
    }

    /// Names the parameters of a function that is defined, which must have names.
    fn name_parameters(&mut self, prototype: u32, name: u32) {
        let count = usize::from(info_vlen(self.get(prototype, INFO)));
        for at in (0..count).map(|number| TYPE + number * size_of::<BtfParam>()) {
            let (its_name, its_type) = (
                at + offset_of!(BtfParam, name_off),
                at + offset_of!(BtfParam, r#type),
            );
            if self.get(prototype, its_name) == 0 && self.get(prototype, its_type) != 0 {
                self.put(prototype, its_name, name);
            }
        }
    }

    fn configuration(&mut self, id: u32, size: u32, options: &[(String, u32)]) {
        self.put(id, SIZE_OR_TYPE, size);
        for (place, variable) in self.variables_of(id) {
            let name = self.btf.get(variable).map_or(&[][..], |it| it.name);
            let option = options.iter().find(|(it, _)| it.as_bytes() == name);
            if let Some((_, offset)) = option {
                self.put(variable, TYPE, linkage::GLOBAL);
                self.put(id, place + OFFSET, *offset);
            }
        }
    }

    /// Returns a number of four bytes.
    fn int(&mut self) -> u32 {
        let is_int = |id: &u32| {
            let it = self.btf.get(*id);
            it.is_some_and(|it| it.kind == kind::INT) && self.btf.size(*id) == Some(INT_BYTES)
        };
        if let Some(id) = self.numbers().find(is_int) {
            return id;
        }
        const SIGNED_32_BITS: u32 = int::word(int::SIGNED, 32);
        let name = self.string(b"int\0");
        self.add(&[name, info(kind::INT, 0), INT_BYTES, SIGNED_32_BITS])
    }

    /// Returns the dummy variable, and its name.
    fn dummy(&mut self, number: u32) -> (u32, u32) {
        let name = self.string(DUMMY);
        let words = [name, info(kind::VAR, 0), number, linkage::GLOBAL];
        (self.add(&words), name)
    }

    fn string(&mut self, string: &[u8]) -> u32 {
        let at = self.strings.len() as u32;
        self.strings.extend(string);
        at
    }

    fn add(&mut self, words: &[u32]) -> u32 {
        self.types
            .extend(words.iter().flat_map(|it| it.to_le_bytes()));
        self.added += 1;
        self.places.len() as u32 + self.added
    }

    /// Sorts variables by their offsets.
    fn sort(&mut self, section: u32) {
        let variables = self.variables_of(section);
        let record =
            |types: &Self, at: usize| [0, OFFSET, SIZE].map(|it| types.get(section, at + it));
        let mut records: Vec<_> = variables.iter().map(|(at, _)| record(self, *at)).collect();
        records.sort_by_key(|[_, offset, _]| *offset);
        for ((at, _), record) in variables.iter().zip(records) {
            for (word, value) in record.into_iter().enumerate() {
                self.put(section, at + 4 * word, value);
            }
        }
    }

    fn bytes(self) -> Vec<u8> {
        to_bytes(&self.types, &self.strings)
    }
}

/// Returns the starts of types.
fn places(types: &[u8]) -> Vec<usize> {
    let (mut places, mut at) = (Vec::new(), 0);
    while let Some(info) = word(types, at + INFO) {
        places.push(at);
        at += TYPE + rest_len(info).unwrap_or(0);
    }
    places
}
