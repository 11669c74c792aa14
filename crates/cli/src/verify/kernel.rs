//! The running kernel's verdict: the program is loaded, and dropped at once.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Instant;

use beeline_isa::{Imm64, Insn, Op};
use beeline_kernel::{
    MapSpec, ProgramSpec, ProgramTypes, Refusal, create_map, freeze, load_program, load_types,
    module_types, update,
};
use beeline_object::{AttachTarget, Contents, MapDefinition, Object, ObjectProgram};
use beeline_uapi::{flags, log};

use super::beeline::completed;
use super::{Judgement, Verdict, in_words, kind};
use crate::prog::loaded::map_indexes;

/// Loads the programs of one file.
pub struct Loader<'a> {
    object: &'a Object,
    types: OnceCell<Result<OwnedFd, Refusal>>,
    /// The maps by their places in the object, created on first use.
    maps: Vec<OnceCell<io::Result<OwnedFd>>>,
    /// The modules' types by their places in the object.
    modules: OnceCell<Result<Vec<OwnedFd>, (String, io::Error)>>,
}

impl<'a> Loader<'a> {
    pub fn new(object: &'a Object) -> Self {
        Self {
            object,
            types: OnceCell::new(),
            maps: object.maps.iter().map(|_| OnceCell::new()).collect(),
            modules: OnceCell::new(),
        }
    }

    /// Judges a program; `target` is a program that the kernel has, and the function of it that
    /// this one replaces.
    pub fn judge(
        &self,
        program: &ObjectProgram,
        target: Option<(&OwnedFd, u32)>,
        log_level: u32,
    ) -> Judgement {
        self.load(program, target, log_level).0
    }

    /// Returns the verdict, and the program if the kernel takes it.
    pub fn load(
        &self,
        program: &ObjectProgram,
        target: Option<(&OwnedFd, u32)>,
        log_level: u32,
    ) -> (Judgement, Option<OwnedFd>) {
        let insns = match self.with_descriptors(&program.insns) {
            Ok(insns) => insns,
            Err((name, error)) => {
                let why = format!("map {name} cannot be made: {error}");
                return (not_asked(&error, why), None);
            }
        };
        let modules = match self.modules() {
            Ok(modules) => modules,
            Err((name, error)) => {
                let why = format!("the types of module {name}: {error}");
                return (not_asked(error, why), None);
            }
        };
        let insns = with_modules(insns, modules);
        let mut fd_array = Vec::new();
        if !modules.is_empty() {
            // The kernel itself has no place.
            fd_array = vec![0];
            fd_array.extend(modules.iter().map(AsRawFd::as_raw_fd));
        }
        let attach_to = match (target, &program.target) {
            (Some((target, _)), _) => Some(target.as_fd()),
            (None, AttachTarget::InModule { module, .. }) => modules.get(*module).map(AsFd::as_fd),
            _ => None,
        };
        // Types that the kernel refuses are left out, as libbpf does.
        let types = match self.types() {
            Some(Ok(types)) if !program.func_info.is_empty() => Some(ProgramTypes {
                btf: types.as_fd(),
                functions: &program.func_info,
                lines: &program.line_info,
            }),
            _ => None,
        };
        let kind = kind(program);
        let spec = ProgramSpec {
            prog_type: kind.prog_type,
            expected_attach_type: kind.attach_type,
            flags: kind.flags,
            attach_btf_id: target.map_or(kind.attach_btf_id, |(_, function)| function),
            attach_to,
            fd_array: &fd_array,
            license: &self.object.license,
            kernel_version: self.object.kernel_version.unwrap_or(0),
            insns: &insns,
            types,
            log_level: log::STATS,
            ..ProgramSpec::default()
        };
        // A log takes the verifier longer than its work, so the time is that of a load without one.
        let start = Instant::now();
        let mut loaded = load_program(&spec);
        let microseconds = start.elapsed().as_micros();
        if loaded.is_err() || log_level != 0 {
            let log_level = match log_level {
                0 => log::LEVEL1 | log::STATS,
                level => level | log::STATS,
            };
            loaded = load_program(&ProgramSpec { log_level, ..spec });
        }
        let (judgement, made) = match loaded {
            Ok((made, log)) => (accepted(log), Some(made)),
            Err(refusal) => (rejected(refusal), None),
        };
        let judgement = Judgement {
            microseconds,
            ..judgement
        };
        (judgement, made)
    }

    /// Returns the file's types in the kernel, if it has any.
    fn types(&self) -> Option<&Result<OwnedFd, Refusal>> {
        let types = || load_types(&self.object.btf);
        (!self.object.btf.is_empty()).then(|| self.types.get_or_init(types))
    }

    /// Returns the types of the modules that the file uses. The error holds a module's name and the
    /// reason.
    fn modules(&self) -> Result<&[OwnedFd], &(String, io::Error)> {
        let open = |name: &String| module_types(name).map_err(|error| (name.clone(), error));
        let all = || self.object.modules.iter().map(open).collect();
        self.modules.get_or_init(all).as_deref()
    }

    /// Returns instructions with descriptors in place of the maps' places. The error holds a map's
    /// name and the reason why it cannot be made.
    fn with_descriptors(&self, insns: &[Insn]) -> Result<Vec<Insn>, (String, io::Error)> {
        let mut descriptors = HashMap::new();
        for place in map_indexes(insns) {
            let at = usize::try_from(place).unwrap_or(usize::MAX);
            let (Some(map), Some(definition)) = (self.maps.get(at), self.object.maps.get(at))
            else {
                continue;
            };
            match map.get_or_init(|| self.make(definition)) {
                Ok(map) => descriptors.insert(place, map.as_raw_fd()),
                Err(error) => return Err((definition.name.clone(), same(error))),
            };
        }
        let mut insns = insns.to_vec();
        for insn in &mut insns {
            if let Ok(Op::Imm64 {
                kind: Imm64::Map | Imm64::MapValue,
                low,
                ..
            }) = insn.op()
                && let Some(descriptor) = descriptors.get(&low)
            {
                insn.imm = *descriptor;
            }
        }
        Ok(insns)
    }

    /// Creates a map with its constants; its other initial contents do not matter to a verdict.
    fn make(&self, definition: &MapDefinition) -> io::Result<OwnedFd> {
        let definition = completed(definition);
        let inner = definition.inner.as_deref();
        let inner = inner.map(|inner| self.make(inner)).transpose()?;
        let plain = MapSpec {
            map_type: definition.map_type,
            key_size: definition.key_size,
            value_size: definition.value_size,
            max_entries: definition.max_entries,
            flags: definition.flags,
            map_extra: definition.map_extra,
            inner: inner.as_ref().map(AsFd::as_fd),
            ..MapSpec::default()
        };
        // Not every type of map takes types; then it does without, as with libbpf.
        let typed = match self.types() {
            Some(Ok(btf)) if definition.value_type != 0 => create_map(&MapSpec {
                types: Some((btf.as_fd(), definition.key_type, definition.value_type)),
                ..plain
            })
            .ok(),
            _ => None,
        };
        let map = typed.map_or_else(|| create_map(&plain), Ok)?;
        if let Contents::Value(value) = &definition.contents
            && definition.flags & flags::RDONLY_PROG != 0
        {
            update(&map, &0u32.to_ne_bytes(), value)?;
            freeze(&map)?;
        }
        Ok(map)
    }
}

/// Puts descriptors in place of the modules' places in variables of modules.
fn with_modules(mut insns: Vec<Insn>, modules: &[OwnedFd]) -> Vec<Insn> {
    for at in 1..insns.len() {
        if let Ok(Op::Imm64 {
            kind: Imm64::KernelVariable,
            ..
        }) = insns[at - 1].op()
            && let Some(place) = insns[at].imm.checked_sub(1)
            && let Some(module) = usize::try_from(place).ok().and_then(|it| modules.get(it))
        {
            insns[at].imm = module.as_raw_fd();
        }
    }
    insns
}

fn same(error: &io::Error) -> io::Error {
    io::Error::from_raw_os_error(error.raw_os_error().unwrap_or(0))
}

/// Returns the judgement if nothing was learnt about the program.
fn not_asked(error: &io::Error, reason: String) -> Judgement {
    Judgement {
        errno: error.raw_os_error().unwrap_or(0),
        reason,
        ..Judgement::default()
    }
}

fn accepted(log: String) -> Judgement {
    Judgement {
        verdict: Verdict::Accept,
        insns_processed: processed(&log),
        log,
        ..Judgement::default()
    }
}

fn rejected(refusal: Refusal) -> Judgement {
    let Refusal { errno, log, .. } = refusal;
    let said = log.lines().rev().find(|line| !is_aside(line));
    // A kernel that refuses such programs to everyone has not looked at this one.
    let verdict = match said {
        None if errno == libc::EPERM => Verdict::Unknown,
        _ => Verdict::Reject,
    };
    Judgement {
        verdict,
        errno,
        reason: said.map_or_else(|| in_words(errno), |line| line.trim().to_owned()),
        insn: log.lines().rev().find_map(instruction),
        insns_processed: processed(&log),
        log,
        ..Judgement::default()
    }
}

/// Returns whether the line is a statistic, or a state that was compared.
fn is_aside(line: &str) -> bool {
    let known = [
        "processed ",
        "verification time ",
        "stack depth ",
        "cur state:",
        "old state:",
    ];
    line.is_empty() || known.iter().any(|it| line.starts_with(it))
}

fn processed(log: &str) -> u32 {
    let mut lines = log.lines();
    let line = lines.find_map(|line| line.strip_prefix("processed "));
    let number = line.and_then(|line| line.split(' ').next()?.parse().ok());
    number.unwrap_or(0)
}

/// Parses the number in `12: (bf) r1 = r2`.
fn instruction(line: &str) -> Option<usize> {
    let (number, rest) = line.split_once(": (")?;
    rest.contains(") ").then(|| number.parse().ok())?
}
