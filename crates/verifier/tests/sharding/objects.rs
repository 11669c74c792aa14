//! Object files of real tools: bpftrace's, and those inside libbpf-tools.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use beeline_isa::{Insn, opcode::LD_IMM64};
use beeline_uapi::MapType;
use beeline_verifier::program::Map;
use beeline_verifier::sharding::{Use, uses};

/// The programs of an object file, with maps by name in place of descriptors.
pub struct Object {
    programs: Vec<(String, Vec<Insn>)>,
    /// Maps and sections of data; the index is the descriptor.
    names: Vec<String>,
}

struct Section<'a> {
    name: String,
    kind: u32,
    flags: u64,
    info: usize,
    data: &'a [u8],
}

fn number(data: &[u8], at: usize, len: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes[..len].copy_from_slice(&data[at..at + len]);
    u64::from_le_bytes(bytes)
}

fn text(data: &[u8], at: usize) -> String {
    let bytes = data[at..].iter().take_while(|byte| **byte != 0);
    bytes.map(|&byte| char::from(byte)).collect()
}

fn sections(elf: &[u8]) -> Vec<Section<'_>> {
    let (start, count) = (number(elf, 40, 8) as usize, number(elf, 60, 2) as usize);
    let header = |index: usize| &elf[start + 64 * index..][..64];
    let content = |header: &[u8]| {
        let (at, len) = (
            number(header, 24, 8) as usize,
            number(header, 32, 8) as usize,
        );
        match number(header, 4, 4) {
            8 => &[],
            _ => &elf[at..at + len],
        }
    };
    let names = content(header(number(elf, 62, 2) as usize));
    let section = |index| {
        let header = header(index);
        Section {
            name: text(names, number(header, 0, 4) as usize),
            kind: number(header, 4, 4) as u32,
            flags: number(header, 8, 8),
            info: number(header, 44, 4) as usize,
            data: content(header),
        }
    };
    (0..count).map(section).collect()
}

impl Object {
    pub fn parse(elf: &[u8]) -> Self {
        const EXECUTABLE: u64 = 4;
        let sections = sections(elf);
        let strings = sections.iter().find(|section| section.name == ".strtab");
        let symbols = sections.iter().find(|section| section.kind == 2);
        let (strings, symbols) = (strings.expect("names").data, symbols.expect("symbols").data);
        let mut names: Vec<String> = Vec::new();
        let mut programs = BTreeMap::new();
        for (index, section) in sections.iter().enumerate() {
            if section.flags & EXECUTABLE != 0 && !section.data.is_empty() {
                let insns = Insn::decode_all(section.data).expect("whole instructions");
                programs.insert(index, (section.name.clone(), insns.collect::<Vec<Insn>>()));
            }
        }
        for section in sections.iter().filter(|section| section.kind == 9) {
            let Some((_, insns)) = programs.get_mut(&section.info) else {
                continue;
            };
            for relocation in section.data.chunks(16) {
                let at = number(relocation, 0, 8) as usize / 8;
                let symbol = &symbols[24 * number(relocation, 12, 4) as usize..][..24];
                if insns[at].code != LD_IMM64 {
                    continue;
                }
                let target = &sections[number(symbol, 6, 2) as usize].name;
                let is_map = target == ".maps";
                let name = match is_map {
                    true => text(strings, number(symbol, 0, 4) as usize),
                    false => target.clone(),
                };
                let fd = names.iter().position(|known| *known == name);
                let fd = fd.unwrap_or_else(|| {
                    names.push(name);
                    names.len() - 1
                });
                let offset = number(symbol, 8, 8) as i32 + insns[at].imm;
                insns[at].src = if is_map { 1 } else { 2 };
                insns[at].imm = fd as i32;
                insns[at + 1].imm = if is_map { 0 } else { offset };
            }
        }
        Self {
            programs: programs.into_values().collect(),
            names,
        }
    }

    /// Returns the use of each map by all programs whose sections' names begin with one of these.
    pub fn uses(&self, sections: &[&str], map: impl Fn(&str) -> Map) -> BTreeMap<String, Use> {
        let name = |fd: usize| match self.names.get(fd) {
            Some(name) => name.clone(),
            None => format!("@{fd}"),
        };
        let count = if self.names.is_empty() {
            8
        } else {
            self.names.len()
        };
        let maps: Vec<(i32, Map)> = (0..count)
            .map(|fd| {
                (
                    fd as i32,
                    Map {
                        id: fd as u32,
                        ..map(&name(fd))
                    },
                )
            })
            .collect();
        let mut all: BTreeMap<String, Use> = BTreeMap::new();
        for (section, insns) in &self.programs {
            if !sections.is_empty() && !sections.iter().any(|it| section.starts_with(it)) {
                continue;
            }
            let named = |fd: i32| {
                insns
                    .iter()
                    .any(|it| it.is_imm64() && it.src != 0 && it.imm == fd)
            };
            let maps: Vec<(i32, &Map)> = maps
                .iter()
                .filter(|(fd, _)| named(*fd))
                .map(|(fd, map)| (*fd, map))
                .collect();
            for (fd, used) in uses(insns, &maps) {
                let name = name(fd as usize);
                let both = all
                    .get(&name)
                    .map_or(used.clone(), |other| other.and(&used));
                all.insert(name, both);
            }
        }
        all
    }
}

/// Compiles a bpftrace script; `None` without bpftrace.
pub fn bpftrace(script: &str) -> Option<Object> {
    let path = std::env::temp_dir().join(format!(
        "beeline-sharding-{}-{:?}",
        std::process::id(),
        std::thread::current().id()
    ));
    let output = Command::new("bpftrace")
        .args(["--unsafe", "-e", script, "--emit-elf"])
        .arg(&path)
        .output();
    let Ok(elf) = std::fs::read(&path) else {
        eprintln!("skipped: no bpftrace: {output:?}");
        return None;
    };
    std::fs::remove_file(&path).expect("the file that was just read");
    Some(Object::parse(&elf))
}

/// Returns the first object file inside a tool; `None` without the tool.
pub fn embedded(tool: &str) -> Option<Object> {
    let data = std::fs::read(Path::new("/usr/sbin").join(tool)).ok()?;
    let start = data.windows(20).position(|header| {
        header.starts_with(b"\x7fELF\x02\x01\x01") && header[16..20] == [1, 0, 247, 0]
    })?;
    Some(Object::parse(&data[start..]))
}

pub fn map(map_type: MapType, key_size: u32, value_size: u32) -> Map {
    Map {
        map_type,
        key_size,
        value_size,
        max_entries: 128,
        ..Map::default()
    }
}
