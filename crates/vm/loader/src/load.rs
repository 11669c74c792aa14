//! An object's maps and programs, made in the guest.

use std::sync::Arc;

use beeline_isa::opcode::{PSEUDO_MAP_FD, PSEUDO_MAP_VALUE};
use beeline_isa::{INSN_BYTES, Imm64, Insn, Op};
use beeline_object::{AttachTarget, Contents, Object, ObjectProgram};
use beeline_uapi::info::{FuncInfo, LineInfo};
use beeline_uapi::{AttachType, Command, attr, attr_offset as at, offset_behind};

use crate::attach::Attached;
use crate::error::{Error, Refusal};
use crate::events::Watch;
use crate::guest::Guest;
use crate::handle::{Attr, Handle, Line, given, refusal, room};
use crate::map::Map;

/// The verbosity for a verifier that refuses, and how much of its log is kept: its reason stands at
/// the end.
const LOG: usize = 1 << 20;
const LOG_LINES: usize = 12;

/// The selection of an object's programs to load.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    /// Programs by their functions' names. If it is empty, all with a section name that does not
    /// begin with `?`.
    pub programs: Vec<String>,
}

/// A program in the guest.
#[derive(Debug)]
pub(crate) struct LoadedProgram {
    pub(crate) handle: Handle,
    pub(crate) name: String,
    pub(crate) section: String,
    pub(crate) attach_type: AttachType,
}

/// The objects loaded in a guest, and the connection to it. All of them go when this is dropped.
#[derive(Debug)]
pub struct Loaded {
    /// Dropped in this order: the attached programs, programs, maps, the connection.
    pub(crate) attached: Vec<Attached>,
    pub(crate) programs: Vec<LoadedProgram>,
    pub(crate) watch: Watch,
    pub(crate) maps: Vec<Map>,
    pub(crate) guest: Guest,
}

impl Loaded {
    pub(crate) fn new(guest: Guest, object: &Object, selection: &Selection) -> Result<Self, Error> {
        let line = &guest.line;
        let selected = selected(object, selection)?;
        let types = types(line, object)?;
        let maps = object.maps.iter();
        let maps: Vec<Map> = maps
            .map(|map| Map::new(line, map, types.as_ref()))
            .collect::<Result<_, _>>()?;
        let loader = Loader {
            line,
            object,
            types,
            maps: &maps,
        };
        let programs: Vec<LoadedProgram> = selected
            .into_iter()
            .map(|program| loader.load(program))
            .collect::<Result<_, _>>()?;
        put_elements(object, &maps, &programs)?;
        Ok(Self {
            attached: Vec::new(),
            programs,
            watch: Watch::default(),
            maps,
            guest,
        })
    }

    /// Returns the maps, in the order of the object's maps.
    pub fn maps(&self) -> &[Map] {
        &self.maps
    }

    /// Returns the map of a name.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuch`].
    pub fn map(&self, name: &str) -> Result<&Map, Error> {
        let found = self.maps.iter().find(|map| map.name() == name);
        found.ok_or_else(|| Error::NoSuch {
            kind: "map",
            name: name.into(),
            has: self.maps.iter().map(|map| map.name().into()).collect(),
        })
    }

    /// Returns the guest that holds them.
    pub fn guest(&self) -> &Guest {
        &self.guest
    }
}

fn selected<'a>(
    object: &'a Object,
    selection: &Selection,
) -> Result<Vec<&'a ObjectProgram>, Error> {
    let has = |name: &String| {
        let mut programs = object.programs.iter();
        let found = programs.find(|program| program.name == *name);
        found.ok_or_else(|| Error::NoSuch {
            kind: "program",
            name: name.clone(),
            has: object.programs.iter().map(|it| it.name.clone()).collect(),
        })
    };
    match selection.programs.as_slice() {
        [] => Ok(object.programs.iter().filter(|it| it.autoload).collect()),
        names => names.iter().map(has).collect(),
    }
}

/// Loads the object's types into the guest's kernel. Returns `None` if the kernel does not take
/// them, as with libbpf.
fn types(line: &Arc<Line>, object: &Object) -> Result<Option<Handle>, Error> {
    if object.btf.is_empty() {
        return Ok(None);
    }
    let attr = Attr::new(size_of::<attr::BtfLoad>())
        .with(at!(BtfLoad.btf_size), length(object.btf.len()))
        .bytes();
    let made = line.make(
        Command::BTF_LOAD,
        attr,
        vec![given(at!(BtfLoad.btf), object.btf.clone())],
    )?;
    Ok(made.ok())
}

/// Sets elements that are maps or programs.
fn put_elements(object: &Object, maps: &[Map], programs: &[LoadedProgram]) -> Result<(), Error> {
    for (definition, map) in object.maps.iter().zip(maps) {
        let put = |index: &u32, handle: &Handle| {
            map.put(&index.to_ne_bytes(), &handle.number.to_ne_bytes())
        };
        match &definition.contents {
            Contents::Maps(elements) => {
                for (index, element) in elements {
                    let Some(element) = maps.get(*element) else {
                        continue;
                    };
                    put(index, &element.handle)?;
                }
            }
            Contents::Programs(elements) => {
                for (index, name) in elements {
                    // A program that was not selected leaves its place empty.
                    if let Some(program) = programs.iter().find(|it| it.name == *name) {
                        put(index, &program.handle)?;
                    }
                }
            }
            Contents::Empty | Contents::Value(_) => {}
        }
    }
    Ok(())
}

struct Loader<'a> {
    line: &'a Arc<Line>,
    object: &'a Object,
    types: Option<Handle>,
    maps: &'a [Map],
}

impl Loader<'_> {
    fn load(&self, program: &ObjectProgram) -> Result<LoadedProgram, Error> {
        let name = || program.name.clone();
        if let AttachTarget::Missing(why) = &program.target {
            return Err(Error::Attach {
                name: name(),
                section: program.section.clone(),
                why: why.clone(),
            });
        }
        let insns = self.with_handles(&program.insns);
        let types = self
            .types
            .as_ref()
            .filter(|_| !program.func_info.is_empty());
        // Types that the kernel does not accept for this program are left out, as with libbpf.
        let mut first = self.try_load(program, &insns, types, 0)?;
        if first.is_err() && types.is_some() {
            first = self.try_load(program, &insns, None, 0)?;
        }
        let handle = match first {
            Ok(handle) => handle,
            Err((refusal, _)) => match self.try_load(program, &insns, types, 1)? {
                Ok(handle) => handle,
                Err((_, log)) => {
                    let name = name();
                    return Err(Error::Program { name, refusal, log });
                }
            },
        };
        Ok(LoadedProgram {
            handle,
            name: name(),
            section: program.section.clone(),
            attach_type: program.kind.expected_attach_type,
        })
    }

    /// Tries to load a program.
    ///
    /// # Errors
    ///
    /// The kernel's, and the end of its verifier's log.
    #[allow(clippy::type_complexity, reason = "an answer that has two parts")]
    fn try_load(
        &self,
        program: &ObjectProgram,
        insns: &[u8],
        types: Option<&Handle>,
        log_level: u32,
    ) -> Result<Result<Handle, (Refusal, String)>, Error> {
        let kind = &program.kind;
        let mut attr = Attr::new(offset_behind!(attr::ProgLoad, fd_array_cnt))
            .with(at!(ProgLoad.prog_type), kind.prog_type.0)
            .with(at!(ProgLoad.insn_cnt), length(insns.len() / INSN_BYTES))
            .with(at!(ProgLoad.log_level), log_level)
            .with(
                at!(ProgLoad.log_size),
                if log_level == 0 { 0 } else { length(LOG) },
            )
            .with(
                at!(ProgLoad.kern_version),
                self.object.kernel_version.unwrap_or(0),
            )
            .with(at!(ProgLoad.prog_flags), kind.flags)
            .with_name(at!(ProgLoad.prog_name), &program.name)
            .with(
                at!(ProgLoad.expected_attach_type),
                kind.expected_attach_type.0,
            )
            .with(at!(ProgLoad.attach_btf_id), program.target.btf_id());
        let mut parts = vec![
            given(at!(ProgLoad.insns), insns),
            given(at!(ProgLoad.license), self.object.license.as_bytes()),
        ];
        if log_level != 0 {
            parts.push(room(at!(ProgLoad.log_buf), LOG));
        }
        if let Some(types) = types {
            attr = attr.with(at!(ProgLoad.prog_btf_fd), types.number);
            let functions = bytes(&program.func_info);
            attr = attr
                .with(
                    at!(ProgLoad.func_info_rec_size),
                    length(size_of::<FuncInfo>()),
                )
                .with(at!(ProgLoad.func_info_cnt), length(program.func_info.len()));
            parts.push(given(at!(ProgLoad.func_info), functions));
            if !program.line_info.is_empty() {
                attr = attr
                    .with(
                        at!(ProgLoad.line_info_rec_size),
                        length(size_of::<LineInfo>()),
                    )
                    .with(at!(ProgLoad.line_info_cnt), length(program.line_info.len()));
                parts.push(given(at!(ProgLoad.line_info), bytes(&program.line_info)));
            }
        }
        let done = self
            .line
            .bpf_done(Command::PROG_LOAD, attr.bytes(), parts)?;
        Ok(match done {
            Err(refusal) => Err((refusal, String::new())),
            Ok(done) if done.errno != 0 => {
                let log = done
                    .parts
                    .iter()
                    .find(|part| part.at == at!(ProgLoad.log_buf) as u32);
                Err((
                    refusal(&done),
                    log.map_or_else(String::new, |log| end(&log.data)),
                ))
            }
            Ok(done) => Ok(self.line.handle(done.handle)?),
        })
    }

    /// Returns the instructions with handles in place of the maps' positions.
    fn with_handles(&self, insns: &[Insn]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(insns.len() * 8);
        let mut second = false;
        for insn in insns {
            let mut insn = *insn;
            let op = insn.op();
            if let Ok(Op::Imm64 { kind, low, .. }) = op
                && !second
            {
                second = true;
                let map = usize::try_from(low).ok().and_then(|at| self.maps.get(at));
                let source = match kind {
                    Imm64::Map => Some(PSEUDO_MAP_FD),
                    Imm64::MapValue => Some(PSEUDO_MAP_VALUE),
                    _ => None,
                };
                if let (Some(map), Some(source)) = (map, source) {
                    insn.src = source;
                    insn.imm = map.handle.number.cast_signed();
                }
            } else {
                second = false;
            }
            bytes.extend(insn.encode());
        }
        bytes
    }
}

fn bytes<const N: usize>(records: &[[u32; N]]) -> Vec<u8> {
    let words = records.iter().flatten();
    words.flat_map(|word| word.to_ne_bytes()).collect()
}

/// Returns the last lines of a log that are not statistics.
fn end(log: &[u8]) -> String {
    let log = String::from_utf8_lossy(log);
    let lines = log.trim_end_matches('\0').lines();
    let lines: Vec<&str> = lines
        .filter(|line| !line.starts_with("processed "))
        .collect();
    lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
}

fn length(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
