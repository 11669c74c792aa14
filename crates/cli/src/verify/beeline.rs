//! Beeline's own verdict.

use std::time::Instant;

use beeline_object::{AttachTarget, Contents, Kernel, MapDefinition, Object, ObjectProgram};
use beeline_uapi::perf::PERF_MAX_STACK_DEPTH;
use beeline_uapi::{MapType, flags};
use beeline_verifier::program::{self, Kind, Map, Modules, is_gpl_compatible};
use beeline_verifier::types::{FileTypes, KernelTypes, ProgramTypes, Refused};
use beeline_verifier::verdict::LogLevel;

use super::{Judgement, Verdict, in_words, kind};

/// Judges the programs of a file.
pub struct Verifier<'a> {
    object: &'a Object,
    kernel: Option<KernelTypes>,
    /// The file's types; none for a file without types.
    types: Option<FileTypes>,
    /// The maps by the descriptors in the instructions, which are places in the object.
    maps: Vec<(i32, Map)>,
}

impl<'a> Verifier<'a> {
    pub fn new(object: &'a Object, kernel: &dyn Kernel) -> Self {
        let kernel = types_of(kernel, &object.modules).map(KernelTypes::indexed);
        let types = FileTypes::parse(object.btf.clone());
        let maps = object.maps.iter().zip(0..);
        let maps = maps.map(|(definition, place)| {
            let mut map = map(types.as_ref(), definition, kernel.as_ref());
            map.id = place as u32 + 1;
            (place, map)
        });
        Self {
            object,
            maps: maps.collect(),
            types,
            kernel,
        }
    }

    /// Judges a program; `target` is the program in which it replaces a function, if it does that.
    pub fn judge(
        &self,
        program: &ObjectProgram,
        target: Option<&Replaced<'_, '_>>,
        log_level: u32,
    ) -> Judgement {
        let start = Instant::now();
        let mut judgement = self.verdict(program, target, log_level);
        judgement.microseconds = start.elapsed().as_micros();
        judgement
    }

    fn verdict(
        &self,
        program: &ObjectProgram,
        target: Option<&Replaced<'_, '_>>,
        log_level: u32,
    ) -> Judgement {
        let refused = |(errno, reason): Refused| Judgement {
            verdict: Verdict::Reject,
            errno: errno.0,
            reason,
            ..Judgement::default()
        };
        let Some(target) = target else {
            let described = self.described(program, self.kind(program));
            return match described {
                Ok(described) => self.judged(&described, self.kind(program), None, log_level),
                Err(why) => refused(why),
            };
        };
        let target_kind = target.verifier.kind(target.program);
        let replaced = target.verifier.described(target.program, target_kind);
        let kind = Kind {
            attach_btf_id: target.function,
            ..kind(program)
        };
        match (
            replaced,
            self.described(program, kind.replacing(&target_kind)),
        ) {
            (Err(why), _) | (_, Err(why)) => refused(why),
            (Ok(replaced), Ok(described)) => target.verifier.with(&replaced, target_kind, |it| {
                self.judged(&described, kind, Some(it), log_level)
            }),
        }
    }

    /// Returns a program with its types, read as those of a program of the given kind.
    fn described<'p>(
        &self,
        program: &'p ObjectProgram,
        kind: Kind,
    ) -> Result<Described<'p>, Refused> {
        let types = self.types(program, kind)?;
        Ok(Described { program, types })
    }

    /// Calls a function with the program as the verifier takes it.
    fn with<T>(
        &self,
        described: &Described<'_>,
        kind: Kind,
        what: impl FnOnce(&program::Program<'_>) -> T,
    ) -> T {
        let maps: Vec<_> = self.maps.iter().map(|(fd, map)| (*fd, map)).collect();
        // Modules have places instead of descriptors, and stand at their own.
        let modules = 0..self.object.modules.len();
        let btf: Vec<_> = (1..).zip(modules.map(Some)).collect();
        let fd_array: Vec<i32> = (0..=btf.len() as i32).collect();
        what(&program::Program {
            kind,
            gpl: is_gpl_compatible(&self.object.license),
            insns: &described.program.insns,
            maps: &maps,
            types: described.types.as_ref(),
            kernel: self.kernel.as_ref(),
            modules: Modules {
                fd_array: Some(&fd_array),
                btf: &btf,
            },
            ..Default::default()
        })
    }

    fn judged(
        &self,
        described: &Described<'_>,
        kind: Kind,
        target: Option<&program::Program<'_>>,
        log_level: u32,
    ) -> Judgement {
        let verdict = self.with(described, kind, |program| {
            let program = program::Program { target, ..*program };
            beeline_verifier::verify(&program, LogLevel(log_level))
        });
        let insns_processed = verdict.effort.insns_processed;
        let log = verdict.log;
        match verdict.result {
            Ok(facts) => Judgement {
                verdict: Verdict::Accept,
                log,
                insns_processed,
                facts: Some(facts),
                ..Judgement::default()
            },
            Err(refusal) => Judgement {
                verdict: Verdict::Reject,
                errno: refusal.errno.0,
                reason: match refusal.reason {
                    silence if silence.is_empty() => in_words(refusal.errno.0),
                    reason => reason,
                },
                insn: refusal.insn,
                state: refusal.state.trim().to_owned(),
                log,
                insns_processed,
                ..Judgement::default()
            },
        }
    }

    fn kind(&self, program: &ObjectProgram) -> Kind {
        let kind = kind(program);
        match (&program.target, &self.kernel) {
            (AttachTarget::InModule { module, id }, Some(kernel)) => Kind {
                attach_btf_id: kernel.in_module(*module, *id).unwrap_or(0),
                ..kind
            },
            _ => kind,
        }
    }

    /// Returns the program's types; none for a file without types.
    fn types(&self, program: &ObjectProgram, kind: Kind) -> Result<Option<ProgramTypes>, Refused> {
        let Some(types) = self
            .types
            .as_ref()
            .filter(|_| !program.func_info.is_empty())
        else {
            return Ok(None);
        };
        let starts: Vec<usize> = program.functions.iter().map(|(start, _)| *start).collect();
        let (functions, lines) = (&program.func_info, &program.line_info);
        let insns = &program.insns;
        let kernel = self.kernel.as_ref();
        ProgramTypes::of(types, functions, lines, &kind, insns, &starts, kernel).map(Some)
    }
}

/// A program with its types.
struct Described<'p> {
    program: &'p ObjectProgram,
    types: Option<ProgramTypes>,
}

/// A program in which another replaces a function.
pub struct Replaced<'v, 'a> {
    pub verifier: &'v Verifier<'a>,
    pub program: &'v ObjectProgram,
    /// The function, in the BTF of the program's file.
    pub function: u32,
}

/// Returns the types of a kernel, with those of the modules of these names.
fn types_of(kernel: &dyn Kernel, modules: &[String]) -> Option<KernelTypes> {
    let btf = kernel.btf()?;
    if modules.is_empty() {
        return KernelTypes::new(btf.to_vec());
    }
    let known = kernel.modules();
    let content = |name| known.iter().find(|(it, _)| it == name);
    let contents = modules.iter().map(|name| Some(&content(name)?.1[..]));
    KernelTypes::with_modules(btf, &contents.collect::<Option<Vec<_>>>()?)
}

/// Returns a map as libbpf would make it.
fn map(types: Option<&FileTypes>, definition: &MapDefinition, kernel: Option<&KernelTypes>) -> Map {
    let definition = &completed(definition);
    let is_constant = definition.map_type == MapType::ARRAY
        && definition.max_entries == 1
        && definition.flags & flags::RDONLY_PROG != 0;
    Map {
        id: 0,
        name: definition.name.clone(),
        map_type: definition.map_type,
        key_size: definition.key_size,
        value_size: definition.value_size,
        max_entries: definition.max_entries,
        flags: definition.flags,
        constant: match &definition.contents {
            Contents::Value(value) if is_constant => Some(value.clone()),
            _ => None,
        },
        inner: definition
            .inner
            .as_ref()
            .map(|inner| Box::new(map(types, inner, kernel))),
        fields: match definition.value_type {
            0 => Vec::new(),
            value_type => types.map_or_else(Vec::new, |types| types.map_fields(value_type, kernel)),
        },
    }
}

/// Adds the values that libbpf, other libraries and tools set when they make the map.
pub fn completed(definition: &MapDefinition) -> MapDefinition {
    let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u32);
    let page_size = rustix::param::page_size() as u32;
    let (key_size, value_size) = match (
        definition.map_type,
        definition.key_size,
        definition.value_size,
    ) {
        // The depth that tools give a stack trace if the file leaves it open.
        (MapType::STACK_TRACE, key, 0) => (key, PERF_MAX_STACK_DEPTH * 8),
        // An index and a descriptor, whatever the file contains.
        (MapType::PERF_EVENT_ARRAY, ..) => (4, 4),
        (MapType::PROG_ARRAY | MapType::ARRAY_OF_MAPS | MapType::HASH_OF_MAPS, key, 0) => (key, 4),
        (_, key, value) => (key, value),
    };
    // Storage of an object's own has no number of elements; others may get it when the tool runs.
    let least = match definition.map_type {
        MapType::CGROUP_STORAGE
        | MapType::PERCPU_CGROUP_STORAGE
        | MapType::SK_STORAGE
        | MapType::INODE_STORAGE
        | MapType::TASK_STORAGE
        | MapType::CGRP_STORAGE => 0,
        _ => 1,
    };
    MapDefinition {
        key_size,
        value_size,
        max_entries: definition.entries(cpus, page_size).max(least),
        ..definition.clone()
    }
}
