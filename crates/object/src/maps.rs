//! The maps of a file: those that its types describe in `.maps`, those of older `maps` sections,
//! and its variables.

use beeline_btf::{Btf, Type, kind, linkage};
use beeline_uapi::MapType;
use beeline_uapi::flags::{MMAPABLE, RDONLY_PROG};

use crate::Error;
use crate::elf::{Elf, Section, Symbol};
use crate::ext::word;

/// `LIBBPF_PIN_BY_NAME`.
const PIN_BY_NAME: u32 = 1;
/// The most bytes of variables in one section.
const MOST_BYTES: u64 = 1 << 30;

/// A map as the file defines it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MapDefinition {
    /// The name of its variable, or of the section with the variables that it holds.
    pub name: String,
    /// Its type.
    pub map_type: MapType,
    /// The bytes of a key.
    pub key_size: u32,
    /// The bytes of a value.
    pub value_size: u32,
    /// The number of elements, as in the file.
    ///
    /// For a perf event array, libbpf replaces 0 by the number of CPUs; it rounds a ring buffer up
    /// to a power of two of pages.
    pub max_entries: u32,
    /// `BPF_F_*`.
    pub flags: u32,
    /// `map_extra` of `BPF_MAP_CREATE`.
    pub map_extra: u64,
    /// The type of its key in the file's BTF; 0 if not known.
    pub key_type: u32,
    /// The type of its value in the file's BTF; 0 if not known.
    pub value_type: u32,
    /// True if it is to be pinned by its name.
    pub pinned: bool,
    /// For a map of maps: the properties of its maps.
    pub inner: Option<Box<MapDefinition>>,
    /// The content before a program runs.
    pub contents: Contents,
}

/// The initial content of a map.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Contents {
    /// Nothing, or zeros.
    #[default]
    Empty,
    /// Its one value: variables.
    Value(Vec<u8>),
    /// Elements that are maps, by index and map.
    Maps(Vec<(u32, usize)>),
    /// Elements that are programs, by index and name.
    Programs(Vec<(u32, String)>),
}

impl MapDefinition {
    /// Returns `max_entries` as libbpf requests them from the kernel, on a machine with so many
    /// CPUs and pages of this size.
    pub fn entries(&self, cpus: u32, page_size: u32) -> u32 {
        match self.map_type {
            MapType::PERF_EVENT_ARRAY if self.max_entries == 0 => cpus,
            MapType::RINGBUF | MapType::USER_RINGBUF => {
                let whole = self.max_entries.max(page_size).checked_next_power_of_two();
                whole.unwrap_or(self.max_entries)
            }
            _ => self.max_entries,
        }
    }

    /// Returns whether these are a section's variables, all in one value.
    pub fn holds_variables(&self) -> bool {
        matches!(self.contents, Contents::Value(_))
    }
}

/// The maps, and the places in the file that stand for them.
#[derive(Debug, Default)]
pub(crate) struct Maps {
    pub(crate) all: Vec<MapDefinition>,
    /// The section, the offset in it if it holds several maps, and the map's index.
    places: Vec<(usize, Option<u64>, usize)>,
}

impl Maps {
    pub(crate) fn of(elf: &Elf<'_>, btf: Option<&Btf<'_>>) -> Result<Self, Error> {
        let mut maps = Self::default();
        maps.described(elf, btf)?;
        maps.of_old_sections(elf)?;
        for (number, section) in elf.sections.iter().enumerate() {
            if holds_variables(section) && section.size > 0 {
                let map = variables(section, btf)?;
                maps.add(map, number, None);
            }
        }
        maps.arena_variables(elf);
        maps.initial_elements(elf, btf)?;
        Ok(maps)
    }

    /// Returns the map that a symbol stands for, and whether it holds variables.
    pub(crate) fn of_symbol(&self, symbol: &Symbol<'_>) -> Option<(usize, bool)> {
        let section = symbol.section?;
        let found = self.places.iter().find(|(of, offset, _)| {
            *of == section && offset.is_none_or(|offset| offset == symbol.value)
        });
        found.map(|&(_, offset, map)| (map, offset.is_none()))
    }

    fn add(&mut self, map: MapDefinition, section: usize, offset: Option<u64>) {
        self.places.push((section, offset, self.all.len()));
        self.all.push(map);
    }

    /// Adds the maps in `.maps`.
    fn described(&mut self, elf: &Elf<'_>, btf: Option<&Btf<'_>>) -> Result<(), Error> {
        let Some((number, _)) = elf.section(".maps") else {
            return Ok(());
        };
        let btf = btf.ok_or(Error::NoBtf)?;
        for (name, variable) in variables_of(btf, ".maps") {
            let symbol = elf
                .symbol_in(number, &name)
                .ok_or_else(|| Error::map(&name, "it has no symbol"))?;
            let (_, description) = btf
                .resolve(variable.refers_to())
                .ok_or_else(|| Error::map(&name, "it has no type"))?;
            let map = described(btf, &name, description, false)?;
            self.add(map, number, Some(symbol.value));
        }
        Ok(())
    }

    /// Adds the maps in `maps`, and in sections of their own such as `maps/events`: type, key and
    /// value size, elements, flags; as libbpf took them before version 1, and as other libraries
    /// define them. The bytes behind belong to their users.
    fn of_old_sections(&mut self, elf: &Elf<'_>) -> Result<(), Error> {
        let is_old = |name: &str| name == "maps" || name.starts_with("maps/");
        let sections = elf.sections.iter().enumerate();
        for (number, section) in sections.filter(|(_, section)| is_old(section.name)) {
            let symbols = elf.symbols.iter();
            for symbol in symbols.filter(|it| it.section == Some(number) && is_variable(it)) {
                let map = old_map(section, symbol)
                    .ok_or_else(|| Error::map(symbol.name, "its description ends too early"))?;
                self.add(map, number, Some(symbol.value));
            }
        }
        Ok(())
    }

    /// Assigns variables that clang put into the address space of arenas to the file's arena.
    fn arena_variables(&mut self, elf: &Elf<'_>) {
        let arena = self
            .all
            .iter()
            .position(|map| map.map_type == MapType::ARENA);
        if let (Some((section, _)), Some(arena)) = (elf.section(".addr_space.1"), arena) {
            self.places.push((section, None, arena));
        }
    }

    /// Reads the initial `values` of maps of maps and of program arrays: relocations of `.maps`.
    fn initial_elements(&mut self, elf: &Elf<'_>, btf: Option<&Btf<'_>>) -> Result<(), Error> {
        let (Some((number, section)), Some(btf)) = (elf.section(".maps"), btf) else {
            return Ok(());
        };
        for relocation in &section.relocations {
            let place = self.places.iter().filter(|(of, at, _)| {
                *of == number && at.is_some_and(|at| at <= relocation.offset)
            });
            let holder = place.max_by_key(|(_, at, _)| *at).copied();
            let symbol = elf.symbols.get(relocation.symbol);
            let (Some((_, Some(start), holder)), Some(symbol)) = (holder, symbol) else {
                return Err(Error::Broken("a relocation of .maps leads nowhere".into()));
            };
            let element = self.of_symbol(symbol).map(|(map, _)| map);
            let Some(map) = self.all.get_mut(holder) else {
                continue;
            };
            let index = values_offset(btf, &map.name)
                .and_then(|offset| (relocation.offset - start).checked_sub(offset.into()))
                .and_then(|bytes| u32::try_from(bytes / 8).ok())
                .ok_or_else(|| Error::map(&map.name, "its initial elements are not in `values`"))?;
            match (element, &mut map.contents) {
                (Some(element), Contents::Maps(elements)) => elements.push((index, element)),
                (Some(element), contents @ Contents::Empty) => {
                    *contents = Contents::Maps(vec![(index, element)]);
                }
                (None, Contents::Programs(elements)) => {
                    elements.push((index, symbol.name.to_owned()));
                }
                (None, contents @ Contents::Empty) => {
                    *contents = Contents::Programs(vec![(index, symbol.name.to_owned())]);
                }
                _ => {
                    return Err(Error::map(
                        &map.name,
                        "its initial elements are of two kinds",
                    ));
                }
            }
            map.max_entries = map.max_entries.max(index.saturating_add(1));
        }
        Ok(())
    }
}

/// Returns whether a symbol stands for something in its section, and not for the section.
fn is_variable(symbol: &Symbol<'_>) -> bool {
    !symbol.is_section && !symbol.name.is_empty()
}

/// Reads a description without types. The flags came later than the rest.
fn old_map(section: &Section<'_>, symbol: &Symbol<'_>) -> Option<MapDefinition> {
    let data = section.data.get(usize::try_from(symbol.value).ok()?..)?;
    let size = usize::try_from(symbol.size).ok().filter(|size| *size > 0);
    let data = data.get(..size.unwrap_or(data.len()))?;
    let flags = match data.get(16..) {
        Some([]) => 0,
        _ => word(data, 16)?,
    };
    Some(MapDefinition {
        name: symbol.name.to_owned(),
        map_type: MapType(word(data, 0)?),
        key_size: word(data, 4)?,
        value_size: word(data, 8)?,
        max_entries: word(data, 12)?,
        flags,
        ..MapDefinition::default()
    })
}

/// Returns whether it is a section of global variables.
fn holds_variables(section: &Section<'_>) -> bool {
    let is = |name: &str| {
        let rest = section.name.strip_prefix(name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    if section.holds_zeros {
        is(".bss")
    } else {
        !section.holds_code && (is(".data") || is(".rodata"))
    }
}

fn variables(section: &Section<'_>, btf: Option<&Btf<'_>>) -> Result<MapDefinition, Error> {
    let too_large = || Error::map(section.name, "it is too large");
    let bytes = usize::try_from(section.size).map_err(|_| too_large())?;
    if section.size > MOST_BYTES {
        return Err(too_large());
    }
    let value = if section.holds_zeros {
        vec![0; bytes]
    } else {
        section.data.to_vec()
    };
    // The tool may map it, unless its variables are invisible outside its file.
    let is_seen = btf.is_some_and(|btf| {
        variables_of(btf, section.name)
            .iter()
            .any(|(_, it)| it.linkage() != Some(linkage::STATIC))
    });
    let is_constant = section.name.starts_with(".rodata");
    Ok(MapDefinition {
        name: section.name.to_owned(),
        map_type: MapType::ARRAY,
        key_size: 4,
        value_size: bytes as u32, // at most MOST_BYTES
        max_entries: 1,
        flags: if is_constant { RDONLY_PROG } else { 0 } | if is_seen { MMAPABLE } else { 0 },
        value_type: btf.map_or(0, |btf| btf.find([(kind::DATASEC, section.name)])[0]),
        contents: Contents::Value(value),
        ..MapDefinition::default()
    })
}

/// Returns the names and types of a section's variables.
pub(crate) fn variables_of<'a>(btf: &Btf<'a>, section: &str) -> Vec<(String, Type<'a>)> {
    let [number] = btf.find([(kind::DATASEC, section)]);
    let Some(section) = btf.get(number) else {
        return Vec::new();
    };
    btf.members(section)
        .filter_map(|member| btf.get(member.type_id))
        .map(|it| (String::from_utf8_lossy(it.name).into_owned(), it))
        .collect()
}

/// Returns the bytes from a map's start to its `values`.
fn values_offset(btf: &Btf<'_>, map: &str) -> Option<u32> {
    let variables = variables_of(btf, ".maps");
    let (_, variable) = variables.iter().find(|(name, _)| name == map)?;
    let (_, description) = btf.resolve(variable.refers_to())?;
    let mut members = btf.members(description);
    members.find(|it| it.name == b"values").map(|it| it.offset)
}

/// Reads a map from the structure that describes it: numbers are the lengths of arrays that members
/// point to; types are the types that they point to.
fn described(
    btf: &Btf<'_>,
    name: &str,
    description: Type<'_>,
    is_inner: bool,
) -> Result<MapDefinition, Error> {
    if description.kind != kind::STRUCT {
        return Err(Error::map(name, "its type is no structure"));
    }
    let mut map = MapDefinition {
        name: name.to_owned(),
        ..MapDefinition::default()
    };
    for member in btf.members(description) {
        let what = String::from_utf8_lossy(member.name);
        let wrong = || Error::map(name, format!("`{what}` is not what libbpf expects"));
        let number = || number(btf, member.type_id).ok_or_else(wrong);
        let size_of = || sized(btf, member.type_id).ok_or_else(wrong);
        match &*what {
            "type" => map.map_type = MapType(number()?),
            "max_entries" => map.max_entries = number()?,
            "map_flags" => map.flags = number()?,
            "map_extra" => map.map_extra = long_number(btf, member.type_id).ok_or_else(wrong)?,
            "key_size" => map.key_size = number()?,
            "value_size" => map.value_size = number()?,
            "key" => (map.key_type, map.key_size) = size_of()?,
            "value" => (map.value_type, map.value_size) = size_of()?,
            "pinning" if !is_inner => map.pinned = number()? == PIN_BY_NAME,
            "values" if !is_inner => {
                map.value_size = 4;
                let element = btf.get(member.type_id).and_then(|it| it.array());
                let pointer = element.and_then(|(element, _)| btf.resolve(element));
                let pointee = pointer.and_then(|(_, it)| btf.resolve(it.refers_to()));
                map.inner = match (map.map_type, pointee) {
                    (MapType::ARRAY_OF_MAPS | MapType::HASH_OF_MAPS, Some((_, inner))) => {
                        let name = format!("{name}.inner");
                        Some(Box::new(described(btf, &name, inner, true)?))
                    }
                    (MapType::PROG_ARRAY, Some((_, it))) if it.kind == kind::FUNC_PROTO => None,
                    _ => return Err(wrong()),
                };
            }
            "numa_node" => {}
            _ => {
                return Err(Error::map(
                    name,
                    format!("it has a field `{what}`, which is unknown"),
                ));
            }
        }
    }
    Ok(map)
}

/// Reads `int (*member)[NUMBER]`.
fn number(btf: &Btf<'_>, member: u32) -> Option<u32> {
    let (_, pointer) = btf.resolve(member)?;
    (pointer.kind == kind::PTR).then_some(())?;
    Some(btf.get(pointer.refers_to())?.array()?.1)
}

/// Reads `int (*member)[NUMBER]`, or `enum { NAME = NUMBER } member` for numbers too large for an
/// array's length.
fn long_number(btf: &Btf<'_>, member: u32) -> Option<u64> {
    let (_, it) = btf.resolve(member)?;
    match btf.enumerators(it).next() {
        Some(value) if it.count() == 1 => Some(value.value),
        _ => number(btf, member).map(u64::from),
    }
}

/// Reads `TYPE *member`: the type and its size.
fn sized(btf: &Btf<'_>, member: u32) -> Option<(u32, u32)> {
    let pointer = btf.get(member)?;
    (pointer.kind == kind::PTR).then_some(())?;
    Some((pointer.refers_to(), btf.size(pointer.refers_to())?))
}
