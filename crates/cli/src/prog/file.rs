//! Files with programs: objects, and the output of `beeline compile`.

use std::path::Path;

use anyhow::{Context, bail};
use beeline_codegen::aot::{Aot, AotMap, AotProgram};
use beeline_isa::Insn;
use beeline_object::{
    AttachTarget, Contents, MapDefinition, Object, ObjectProgram, RunningKernel, SectionKind,
};
use beeline_trusted_dir::{MOST, read_bounded, read_file};
use beeline_uapi::{AttachType, MapType, ProgramType};

/// The first bytes of files of `beeline compile`.
const AHEAD: &[u8] = b"bee aot";

/// The programs of a file.
#[derive(Debug)]
pub struct File {
    pub object: Object,
    /// The programs' code, if the file has it.
    pub aot: Option<Aot>,
}

impl File {
    /// Reads a file of either kind.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be read, or is of neither kind.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let named = || path.display().to_string();
        let data = read_bounded(path, MOST).with_context(named)?;
        if data.starts_with(AHEAD) {
            // Its code is run as it is, so it is read anew, as a program is.
            let data = read_file(path).with_context(named)?;
            let aot = Aot::from_bytes(&data).with_context(named)?;
            let object = object_of(&aot).with_context(named)?;
            let aot = Some(aot);
            return Ok(Self { object, aot });
        }
        let object = Object::parse(&data, &RunningKernel::default()).with_context(named)?;
        Ok(Self { object, aot: None })
    }

    /// Selects programs like [`select`].
    ///
    /// # Errors
    ///
    /// Those of the function [`select`].
    pub fn select(
        &self,
        section: Option<&str>,
        name: Option<&str>,
    ) -> anyhow::Result<Vec<&ObjectProgram>> {
        select(&self.object, section, name)
    }

    /// Returns the one program that is meant.
    ///
    /// # Errors
    ///
    /// Fails if there is no such program, or more than one.
    pub fn select_one(
        &self,
        section: Option<&str>,
        name: Option<&str>,
    ) -> anyhow::Result<&ObjectProgram> {
        let found = self.select(section, name)?;
        match found.as_slice() {
            [one] => Ok(one),
            several => {
                let listed = |it: &&ObjectProgram| {
                    format!("\n  --section {} --program {}", it.section, it.name)
                };
                let listed: String = several.iter().map(listed).collect();
                bail!(
                    "{} programs could be meant; say which:{listed}",
                    several.len()
                );
            }
        }
    }
}

/// Returns the programs of a section, and of a name if one is given; all if neither is.
///
/// # Errors
///
/// Fails if there is no such program.
pub fn select<'a>(
    object: &'a Object,
    section: Option<&str>,
    name: Option<&str>,
) -> anyhow::Result<Vec<&'a ObjectProgram>> {
    let is_wanted = |program: &&ObjectProgram| {
        section.is_none_or(|section| program.section == section)
            && name.is_none_or(|name| program.name == name)
    };
    let found: Vec<_> = object.programs.iter().filter(is_wanted).collect();
    if !found.is_empty() {
        return Ok(found);
    }
    let listed = |program: &ObjectProgram| format!("\n  {} ({})", program.section, program.name);
    let there: String = object.programs.iter().map(listed).collect();
    let what = match (section, name) {
        (Some(section), None) => format!("no section {section}"),
        (None, Some(name)) => format!("no program {name}"),
        (Some(section), Some(name)) => format!("no program {name} in a section {section}"),
        (None, None) => "no program".to_owned(),
    };
    if there.is_empty() {
        bail!(
            "the file has no programs; those are functions that stand in sections of their own, by SEC(\"...\")"
        );
    }
    bail!("the file has {what}; there are, by section and program:{there}");
}

/// Returns a compiled file as the object that it was made from.
fn object_of(aot: &Aot) -> anyhow::Result<Object> {
    let program = |it: &AotProgram| {
        let insns = Insn::decode_all(&it.insns)?;
        Ok(ObjectProgram {
            name: it.name.clone(),
            section: it.section.clone(),
            kind: SectionKind {
                prog_type: ProgramType(it.prog_type),
                expected_attach_type: AttachType(it.expected_attach_type),
                flags: it.flags,
            },
            target: match it.attach_btf_id {
                0 => AttachTarget::None,
                id => AttachTarget::Found(id),
            },
            func_info: it.functions.clone(),
            autoload: true,
            insns: insns.collect(),
            functions: vec![(0, it.name.clone())],
            ..ObjectProgram::default()
        })
    };
    let map = |it: &AotMap| MapDefinition {
        name: it.name.clone(),
        map_type: MapType(it.map_type),
        key_size: it.key_size,
        value_size: it.value_size,
        max_entries: it.max_entries,
        flags: it.map_flags,
        map_extra: it.map_extra,
        value_type: it.value_type,
        contents: match it.contents.as_slice() {
            [] => Contents::Empty,
            value => Contents::Value(value.to_vec()),
        },
        ..MapDefinition::default()
    };
    let maps = aot.maps.iter().map(|it| {
        let inner = it.inner.and_then(|inner| aot.maps.get(inner as usize));
        MapDefinition {
            inner: inner.map(|inner| Box::new(map(inner))),
            ..map(it)
        }
    });
    Ok(Object {
        programs: aot
            .programs
            .iter()
            .map(program)
            .collect::<Result<_, anyhow::Error>>()?,
        maps: maps.collect(),
        license: aot.license.clone(),
        btf: aot.btf.clone(),
        ..Object::default()
    })
}
