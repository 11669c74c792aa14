//! Finds the program in which a `freplace` program replaces a function: one of its own file, or of
//! another that is named.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use beeline_object::{Kernel, Object, ObjectProgram};
use beeline_trusted_dir::{MOST, read_bounded};
use beeline_uapi::ProgramType;

/// The file, and perhaps a program of it, that `--target FILE[:PROGRAM]` names.
#[derive(Debug, Clone)]
pub struct Wanted {
    object: Object,
    program: Option<String>,
}

impl Wanted {
    /// Reads the file.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be read, or has no such program.
    pub fn new(argument: &str, kernel: &dyn Kernel) -> anyhow::Result<Self> {
        let (path, program) = match argument.rsplit_once(':') {
            _ if Path::new(argument).exists() => (argument, None),
            Some((path, program)) => (path, Some(program.to_owned())),
            None => (argument, None),
        };
        let path = PathBuf::from(path);
        let named = || path.display().to_string();
        let data = read_bounded(&path, MOST).with_context(named)?;
        let object = Object::parse(&data, kernel).with_context(named)?;
        if let Some(name) = &program
            && !object.programs.iter().any(|it| it.name == *name)
        {
            bail!("{}: there is no program {name}", named());
        }
        Ok(Self { object, program })
    }

    /// Returns the file.
    pub fn object(&self) -> &Object {
        &self.object
    }

    /// Returns the program of it that is meant, if only one can be.
    pub fn program(&self) -> Option<&str> {
        self.program.as_deref()
    }
}

/// Returns whether a program replaces a function of another.
pub fn replaces(program: &ObjectProgram) -> bool {
    program.kind.prog_type == ProgramType::EXT
}

/// Returns the program of a file with the function that `replacing` names behind its section's
/// slash, and the function's number in the file's BTF.
pub fn find<'a>(
    object: &'a Object,
    program: Option<&str>,
    replacing: &ObjectProgram,
) -> Option<(&'a ObjectProgram, u32)> {
    let (_, name) = replacing.section.split_once('/')?;
    let mut others = object
        .programs
        .iter()
        .filter(|it| !replaces(it) && program.is_none_or(|program| program == it.name));
    others.find_map(|other| {
        let mut functions = other.functions.iter();
        let (start, _) = functions.find(|(_, function)| function == name)?;
        let mut infos = other.func_info.iter();
        let info = infos.find(|info| info[0] as usize == *start)?;
        Some((other, info[1]))
    })
}
