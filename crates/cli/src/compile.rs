//! `beeline compile`: writes the machine code of programs to a file, ahead of time.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use beeline_codegen::aot::{Aot, AotMap, AotProgram};
use beeline_object::{Contents, MapDefinition, Object};
use beeline_runtime::engines::helper_table;
use beeline_trusted_dir::{check_file, write_anew};
use clap::Args;

use crate::prog::file::File;
use crate::prog::loaded::Loaded;
use crate::prog::{CompilerName, MachineName, machine};

#[derive(Debug, Args)]
pub struct Arguments {
    /// An object file of clang -target bpf
    file: PathBuf,
    /// The file to write
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
    /// Only the programs of this section
    #[arg(long)]
    section: Option<String>,
    /// The compiler to use
    #[arg(long, value_enum, default_value_t)]
    engine: CompilerName,
    /// The machine to compile for [default: this one]
    #[arg(long, value_enum)]
    machine: Option<MachineName>,
}

/// Compiles the selected programs of a file.
///
/// # Errors
///
/// Fails if the file cannot be read or is compiled already, a program cannot be compiled, or the
/// output cannot be written.
pub fn compile(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let file = File::read(&arguments.file)?;
    if file.aot.is_some() {
        bail!("{} is compiled already", arguments.file.display());
    }
    let object = &file.object;
    let machine = machine(arguments.machine);
    let compiler = arguments.engine.compiler()?;
    let mut aot = Aot::new(
        machine,
        helper_table(),
        object.license.clone(),
        object.btf.clone(),
    );
    aot.maps = maps(object)?;
    let mut loaded = Loaded::new(object, CompilerName::Baseline.engines()?)?;
    for program in file.select(arguments.section.as_deref(), None)? {
        let id = loaded.program(program)?;
        let (source, _, maps) = loaded.compiled(id)?;
        let code = compiler
            .compile(&source.program(), machine)
            .with_context(|| format!("program {}", program.name))?;
        aot.add(AotProgram {
            section: program.section.clone(),
            name: program.name.clone(),
            prog_type: program.kind.prog_type.0,
            expected_attach_type: program.kind.expected_attach_type.0,
            flags: program.kind.flags,
            attach_btf_id: program.target.btf_id(),
            functions: program.func_info.clone(),
            digest: source.digest(),
            insns: program
                .insns
                .iter()
                .flat_map(|insn| insn.encode())
                .collect(),
            maps: maps.into_iter().map(|map| map as u32).collect(),
            engine: arguments.engine.compiler()?.name().to_owned(),
            code,
        });
    }
    let output = &arguments.output;
    write_anew(output, check_file)
        .and_then(|mut file| file.write_all(&aot.to_bytes()))
        .with_context(|| output.display().to_string())?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the object's maps, followed by those that maps of maps are to hold.
fn maps(object: &Object) -> anyhow::Result<Vec<AotMap>> {
    let mut maps = Vec::new();
    let mut inner = Vec::new();
    for definition in &object.maps {
        let mut map = map(definition)?;
        if let Some(definition) = &definition.inner {
            map.inner = Some((object.maps.len() + inner.len()) as u32);
            inner.push(self::map(definition)?);
        }
        maps.push(map);
    }
    maps.extend(inner);
    Ok(maps)
}

fn map(definition: &MapDefinition) -> anyhow::Result<AotMap> {
    let contents = match &definition.contents {
        Contents::Empty => Vec::new(),
        Contents::Value(value) if value.iter().all(|byte| *byte == 0) => Vec::new(),
        Contents::Value(value) => value.clone(),
        Contents::Maps(_) | Contents::Programs(_) => bail!(
            "map {} begins with elements that are maps or programs, which a compiled file cannot hold; run the object file",
            definition.name
        ),
    };
    Ok(AotMap {
        name: definition.name.clone(),
        map_type: definition.map_type.0,
        key_size: definition.key_size,
        value_size: definition.value_size,
        max_entries: definition.max_entries,
        map_flags: definition.flags,
        map_extra: definition.map_extra,
        value_type: definition.value_type,
        inner: None,
        contents,
    })
}
