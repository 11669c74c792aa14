//! An object's programs in a session of their own, with the maps that they need.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use anyhow::{Context, bail};
use beeline_isa::{Imm64, Insn, Op};
use beeline_object::{Contents, MapDefinition, Object, ObjectProgram};
use beeline_runtime::backend::{
    Backend, Id, Info, Loaded as LoadedProgram, MapSpec, ObjectRef, ProgramSpec, ProgramTypes,
    SpecialFields, ValueType,
};
use beeline_runtime::engines::{Compiled, Engines, Source};
use beeline_runtime::{Rules, Runtime, Scope};
use beeline_uapi::attr::BPF_OBJ_NAME_LEN;
use beeline_uapi::flags;

use crate::say;

/// Characters of an object's name that `bpf()` takes.
const NAME: usize = BPF_OBJ_NAME_LEN - 1;

/// A session with programs of one object in it.
pub struct Loaded<'a> {
    pub runtime: Arc<Runtime>,
    object: &'a Object,
    /// The object's BTF, if it has any.
    types: Option<Arc<[u8]>>,
    /// The maps by their places in the object.
    maps: HashMap<usize, Id>,
    programs: HashMap<String, Id>,
}

impl<'a> Loaded<'a> {
    /// Creates a session without programs.
    ///
    /// # Errors
    ///
    /// Fails if the session cannot be started.
    pub fn new(object: &'a Object, engines: Engines) -> anyhow::Result<Self> {
        // There is no tool, so programs run for this process.
        let runtime = Runtime::new(
            Vec::new(),
            Scope::Processes(Vec::new()),
            Rules::default(),
            engines,
            Arc::new(say),
        )?;
        runtime.set_tool(std::process::id().cast_signed());
        Ok(Self {
            runtime,
            object,
            types: (!object.btf.is_empty()).then(|| object.btf.as_slice().into()),
            maps: HashMap::new(),
            programs: HashMap::new(),
        })
    }

    /// Loads a program, with the maps that it names and their initial contents.
    ///
    /// # Errors
    ///
    /// Fails if a map cannot be created or filled, or the program is refused.
    pub fn program(&mut self, program: &ObjectProgram) -> anyhow::Result<Id> {
        if let Some(id) = self.programs.get(&program.name) {
            return Ok(*id);
        }
        let mut maps = Vec::new();
        for index in map_indexes(&program.insns) {
            let place = usize::try_from(index).unwrap_or(usize::MAX);
            maps.push((index, self.map(place)?));
        }
        let spec = ProgramSpec {
            prog_type: program.kind.prog_type,
            expected_attach_type: program.kind.expected_attach_type,
            flags: program.kind.flags,
            attach_btf_id: program.target.btf_id(),
            in_kernel: false,
            may_use_kernel: false,
            insns: program
                .insns
                .iter()
                .flat_map(|insn| insn.encode())
                .collect(),
            maps: maps.clone(),
            name: cut(&program.name),
            license: self.object.license.clone(),
            types: self.types.as_ref().and_then(|btf| {
                (!program.func_info.is_empty()).then(|| ProgramTypes {
                    btf: btf.clone(),
                    functions: program.func_info.clone(),
                    lines: program.line_info.clone(),
                })
            }),
            log_level: 0,
            log_room: None,
        };
        let loaded = self.runtime.program_load(&spec);
        let LoadedProgram { id, .. } = loaded.map_err(|error| {
            self.runtime.out_of_memory();
            let cause = io::Error::from_raw_os_error(error.errno.0);
            match error.reason.as_str() {
                "" => anyhow::anyhow!("program {} is refused: {cause}", program.name),
                why => anyhow::anyhow!("program {} is refused: {cause}\n{why}", program.name),
            }
        })?;
        self.programs.insert(program.name.clone(), id);
        for (index, map) in maps {
            let place = usize::try_from(index).unwrap_or(usize::MAX);
            self.put_programs(place, map)?;
        }
        Ok(id)
    }

    /// Returns a loaded program as its engine sees it, its code, and the maps' places in the object
    /// by the code's numbers.
    ///
    /// # Errors
    ///
    /// Fails if it is no loaded program.
    pub fn compiled(
        &self,
        program: Id,
    ) -> anyhow::Result<(Arc<Source>, Arc<Compiled>, Vec<usize>)> {
        let (source, code) = self.runtime.compiled(program).map_err(system)?;
        let Info::Program { maps, .. } = self.runtime.info(program).map_err(system)? else {
            bail!("a program is none");
        };
        let place = |map: &Id| {
            let mut known = self.maps.iter();
            known.find(|(_, id)| *id == map).map(|(place, _)| *place)
        };
        Ok((source, code, maps.iter().filter_map(place).collect()))
    }

    /// Returns a map by its place in the object; it is created on first use.
    fn map(&mut self, place: usize) -> anyhow::Result<Id> {
        if let Some(id) = self.maps.get(&place) {
            return Ok(*id);
        }
        let definition = self.object.maps.get(place);
        let definition = definition.context("a program names a map that the file does not have")?;
        let named = || format!("map {}", definition.name);
        let inner = match &definition.inner {
            Some(inner) => Some(self.create(inner, None)?),
            None => None,
        };
        let id = self.create(definition, inner)?;
        self.maps.insert(place, id);
        match &definition.contents {
            Contents::Value(value) => {
                let key = 0u32.to_ne_bytes();
                let stored = self.runtime.map_update(id, &key, value, 0);
                stored.map_err(system).with_context(named)?;
            }
            Contents::Maps(elements) => {
                for (index, element) in elements {
                    let element = ObjectRef::Map(self.map(*element)?);
                    self.put(id, *index, element).with_context(named)?;
                }
            }
            Contents::Programs(_) | Contents::Empty => {}
        }
        if definition.flags & flags::RDONLY_PROG != 0 {
            let frozen = self.runtime.map_freeze(id);
            frozen.map_err(system).with_context(named)?;
        }
        Ok(id)
    }

    fn create(&self, definition: &MapDefinition, inner: Option<Id>) -> anyhow::Result<Id> {
        let value_type = self.types.as_ref().filter(|_| definition.value_type != 0);
        let value_type = value_type.map(|btf| ValueType {
            btf: btf.clone(),
            id: definition.value_type,
            key: definition.key_type,
        });
        let page_size = rustix::param::page_size() as u32;
        let max_entries = definition.entries(self.runtime.cpus(), page_size);
        let spec = MapSpec {
            map_type: definition.map_type,
            key_size: definition.key_size,
            value_size: definition.value_size,
            max_entries,
            flags: definition.flags,
            map_extra: definition.map_extra,
            name: cut(&definition.name),
            inner,
            fields: value_type
                .as_ref()
                .map(SpecialFields::of)
                .unwrap_or_default(),
            value_type,
        };
        let created = self.runtime.map_create(&spec).map_err(|errno| {
            self.runtime.out_of_memory();
            system(errno)
        });
        created.with_context(|| {
            let sizes = "type, sizes and elements";
            format!(
                "map {} cannot be made with the file's {sizes} ({}, {} and {}, {max_entries}), which a tool may change first",
                definition.name, definition.map_type, definition.key_size, definition.value_size
            )
        })
    }

    /// Sets elements that are programs of the file.
    fn put_programs(&mut self, place: usize, map: Id) -> anyhow::Result<()> {
        let object = self.object;
        let contents = object.maps.get(place).map(|map| &map.contents);
        let Some(Contents::Programs(elements)) = contents else {
            return Ok(());
        };
        for (index, name) in elements {
            let program = object.programs.iter().find(|program| program.name == *name);
            let program = program.with_context(|| format!("the file has no program {name}"))?;
            if !self.programs.contains_key(name) {
                let element = ObjectRef::Program(self.program(program)?);
                self.put(map, *index, element)?;
            } else if let Some(id) = self.programs.get(name) {
                self.put(map, *index, ObjectRef::Program(*id))?;
            }
        }
        Ok(())
    }

    fn put(&self, map: Id, index: u32, element: ObjectRef) -> anyhow::Result<()> {
        let key = index.to_ne_bytes();
        let stored = self.runtime.map_set_object(map, &key, element, 0);
        stored.map_err(system)
    }
}

/// Returns the places of the maps that instructions name, each once, by first use.
pub fn map_indexes(insns: &[Insn]) -> Vec<i32> {
    let mut indexes = Vec::new();
    for insn in insns {
        if let Ok(Op::Imm64 {
            kind: Imm64::Map | Imm64::MapValue,
            low,
            ..
        }) = insn.op()
            && !indexes.contains(&low)
        {
            indexes.push(low);
        }
    }
    indexes
}

fn cut(name: &str) -> String {
    name.chars().filter(char::is_ascii).take(NAME).collect()
}

fn system(errno: beeline_uapi::Errno) -> anyhow::Error {
    io::Error::from_raw_os_error(errno.0).into()
}
