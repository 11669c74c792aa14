//! Beeline's own verdict.

use std::time::Instant;

use beeline_object::{AttachTarget, Contents, Kernel, MapDefinition, Object, Program};
use beeline_verifier::program::{self, Kind, Map, Modules, is_gpl_compatible};
use beeline_verifier::types::{FileTypes, KernelTypes, ProgramTypes};
use beeline_verifier::verdict::LogLevel;

use super::{Judgement, Verdict, kind};

const ARRAY: u32 = 2;
const PROG_ARRAY: u32 = 3;
const PERF_EVENT_ARRAY: u32 = 4;
const STACK_TRACE: u32 = 7;
const ARRAY_OF_MAPS: u32 = 12;
const HASH_OF_MAPS: u32 = 13;
const SK_STORAGE: u32 = 24;
const INODE_STORAGE: u32 = 28;
const TASK_STORAGE: u32 = 29;
const CGRP_STORAGE: u32 = 32;
/// `BPF_F_RDONLY_PROG`.
const RDONLY_PROG: u32 = 1 << 7;
/// Frames that tools give a stack trace whose depth the file leaves open: `kernel.perf_event_max_stack`.
const FRAMES: u32 = 127;

/// What the programs of a file are judged with.
pub struct Verifier<'a> {
    object: &'a Object,
    kernel: Option<KernelTypes>,
    /// None for a file without types.
    types: Option<FileTypes>,
    /// By the descriptors that instructions have: places in the object.
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

    pub fn judge(&self, program: &Program, log_level: u32) -> Judgement {
        let start = Instant::now();
        let mut judgement = self.verdict(program, log_level);
        judgement.microseconds = start.elapsed().as_micros();
        judgement
    }

    fn verdict(&self, program: &Program, log_level: u32) -> Judgement {
        let types = match self.types(program) {
            Ok(types) => types,
            Err((errno, reason)) => {
                return Judgement {
                    verdict: Verdict::Reject,
                    errno,
                    reason,
                    ..Judgement::default()
                };
            }
        };
        let maps: Vec<_> = self.maps.iter().map(|(fd, map)| (*fd, map)).collect();
        // Modules have places instead of descriptors, and stand at their own.
        let modules = 0..self.object.modules.len();
        let btf: Vec<_> = (1..).zip(modules.map(Some)).collect();
        let fd_array: Vec<i32> = (0..=btf.len() as i32).collect();
        let judged = program::Program {
            kind: self.kind(program),
            gpl: is_gpl_compatible(&self.object.license),
            insns: &program.insns,
            maps: &maps,
            types: types.as_ref(),
            kernel: self.kernel.as_ref(),
            modules: Modules {
                fd_array: Some(&fd_array),
                btf: &btf,
            },
            ..Default::default()
        };
        let verdict = beeline_verifier::verify(&judged, LogLevel(log_level));
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
                errno: refusal.errno,
                reason: refusal.reason,
                insn: refusal.insn,
                state: refusal.state.trim().to_owned(),
                log,
                insns_processed,
                ..Judgement::default()
            },
        }
    }

    fn kind(&self, program: &Program) -> Kind {
        let kind = kind(program);
        match (&program.target, &self.kernel) {
            (AttachTarget::InModule { module, id }, Some(kernel)) => Kind {
                attach_btf_id: kernel.in_module(*module, *id).unwrap_or(0),
                ..kind
            },
            _ => kind,
        }
    }

    /// None for a file without types.
    fn types(&self, program: &Program) -> Result<Option<ProgramTypes>, (i32, String)> {
        let Some(types) = self
            .types
            .as_ref()
            .filter(|_| !program.func_info.is_empty())
        else {
            return Ok(None);
        };
        let starts: Vec<usize> = program.functions.iter().map(|(start, _)| *start).collect();
        let (functions, lines) = (&program.func_info, &program.line_info);
        let (insns, kind) = (&program.insns, self.kind(program));
        let kernel = self.kernel.as_ref();
        ProgramTypes::of(types, functions, lines, &kind, insns, &starts, kernel).map(Some)
    }
}

/// The types of a kernel, with those of the modules of these names.
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

/// A map as libbpf would make it.
fn map(types: Option<&FileTypes>, definition: &MapDefinition, kernel: Option<&KernelTypes>) -> Map {
    let definition = &completed(definition);
    let is_constant = definition.map_type == ARRAY
        && definition.max_entries == 1
        && definition.flags & RDONLY_PROG != 0;
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

/// With what libbpf, other libraries and tools put in when they make the map.
pub fn completed(definition: &MapDefinition) -> MapDefinition {
    let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u32);
    let page_size = rustix::param::page_size() as u32;
    let (key_size, value_size) = match (
        definition.map_type,
        definition.key_size,
        definition.value_size,
    ) {
        (STACK_TRACE, key, 0) => (key, FRAMES * 8),
        // An index and a descriptor, whatever the file says or not.
        (PERF_EVENT_ARRAY, ..) => (4, 4),
        (PROG_ARRAY | ARRAY_OF_MAPS | HASH_OF_MAPS, key, 0) => (key, 4),
        (_, key, value) => (key, value),
    };
    // Storage of an object's own has no number of elements; others may get it when the tool runs.
    let least = match definition.map_type {
        SK_STORAGE | INODE_STORAGE | TASK_STORAGE | CGRP_STORAGE => 0,
        _ => 1,
    };
    MapDefinition {
        key_size,
        value_size,
        max_entries: definition.entries(cpus, page_size).max(least),
        ..definition.clone()
    }
}
