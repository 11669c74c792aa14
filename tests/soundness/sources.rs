//! The sources of programs.

use std::fs;

use beeline_e2e::embedded_objects;
use beeline_fuzz::Random;
use beeline_isa::Op;
use beeline_object::{Object, RunningKernel};
use beeline_uapi::MapType;
use beeline_verifier::program::{Kind, Map};

use crate::case::{Case, Judge};
use crate::change::change;
use crate::trial::MOST_VERIFIED;
use crate::world::is_helper;
use crate::{corpus, extras, invent, worldly};

/// Longer programs are left to other tests.
const MOST_INSNS: usize = 300;
/// The most elements of a map of a program that was not generated here.
const MOST_ELEMENTS: u32 = 16;

/// The programs to start from.
pub struct Sources {
    /// From the kernel's own tests, and from the libbpf tools.
    corpora: [Vec<Case>; 2],
}

impl Sources {
    pub fn new() -> Self {
        let accepted = |mut cases: Vec<Case>| {
            let judge = Judge::new();
            // Refused programs teach little as they are: some of them remain.
            let mut random = Random::new(1);
            cases.retain(|case| {
                let verdict = judge.accepts(case, &is_helper, MOST_VERIFIED);
                matches!(verdict, Ok(Some(_))) || random.once_in(6)
            });
            cases
        };
        let corpora = [accepted(selftests()), accepted(tools())];
        for (name, corpus) in ["the kernel's own tests", "the libbpf tools"]
            .iter()
            .zip(&corpora)
        {
            println!("programs of {name}: {}", corpus.len());
        }
        Self { corpora }
    }

    /// Returns the program of a seed. It is the same on each machine unless it derives from a
    /// corpus.
    pub fn case(&self, seed: u64) -> Case {
        let mut random = Random::new(seed);
        random.bits();
        match seed % 8 {
            0..=3 => with_extras(&mut random),
            4 => invent::invent(&mut random),
            5 => {
                let case = worldly::worldly(&mut random);
                match random.once_in(2) {
                    true => changed(&mut random, &case),
                    false => case,
                }
            }
            which => self.changed(which as usize - 6, &mut random),
        }
    }

    fn changed(&self, corpus: usize, random: &mut Random) -> Case {
        let corpus = &self.corpora[corpus];
        if corpus.is_empty() {
            return with_extras(random);
        }
        let at = random.below(corpus.len() as u64) as usize;
        let case = changed(random, &corpus[at]);
        match random.once_in(4) {
            true => changed(random, &case),
            false => case,
        }
    }
}

/// Returns a changed program, of a type whose context can be made up.
fn changed(random: &mut Random, case: &Case) -> Case {
    let mut other = case.clone();
    change(random, &mut other);
    if !has_context_here(&other) {
        other.kind = case.kind;
    }
    other
}

fn has_context_here(case: &Case) -> bool {
    let is_kind = |&(prog_type, ..): &invent::ContextOf| prog_type == case.kind.prog_type;
    invent::KINDS.iter().any(is_kind)
}

fn with_extras(random: &mut Random) -> Case {
    let mut case = loop {
        let case = invent::invent_with(random, Some(extras::unit));
        // One in many is refused only for its type.
        let is_useless = extras::locks(&case.insns) && !extras::may_lock(case.kind.prog_type);
        if !is_useless || random.once_in(20) {
            break case;
        }
    };
    extras::link(random, &mut case.insns);
    case.maps.extend(extras::maps());
    case
}

/// Returns whether its context can be made up, and it calls only available helpers.
fn is_for_here(case: &Case) -> bool {
    let is_callable = |op: Op| match op {
        Op::CallHelper { id } => is_helper(id),
        Op::CallKernel { .. } => false,
        _ => true,
    };
    has_context_here(case)
        && case.kind.attach_btf_id == 0
        && case.insns.len() <= MOST_INSNS
        && case
            .insns
            .iter()
            .filter_map(|insn| insn.op().ok())
            .all(is_callable)
}

/// Makes its maps small.
fn shrunk(mut case: Case) -> Case {
    for (_, map) in &mut case.maps {
        map.max_entries = match map.map_type {
            MapType::RINGBUF | MapType::USER_RINGBUF => 4096,
            _ => map.max_entries.min(MOST_ELEMENTS),
        };
    }
    case
}

fn selftests() -> Vec<Case> {
    let rows = corpus::read().unwrap_or_else(|why| {
        println!("without the kernel's own tests: {why}");
        Vec::new()
    });
    let cases = rows.into_iter().map(|row| Case {
        kind: row.kind,
        insns: row.insns,
        maps: row.maps,
    });
    cases.filter(is_for_here).map(shrunk).collect()
}

/// Returns the programs in the object files embedded in Debian's libbpf tools.
fn tools() -> Vec<Case> {
    let listed = fs::read_to_string("/var/lib/dpkg/info/libbpf-tools.list").unwrap_or_default();
    let kernel = RunningKernel::default();
    let mut cases = Vec::new();
    for file in listed.lines().filter(|file| file.contains("/sbin/")) {
        let data = fs::read(file).unwrap_or_default();
        for object in embedded_objects(&data) {
            if let Ok(object) = Object::parse(object, &kernel) {
                cases.extend(cases_of(&object));
            }
        }
    }
    cases.into_iter().filter(is_for_here).map(shrunk).collect()
}

fn cases_of(object: &Object) -> Vec<Case> {
    let maps = object.maps.iter().zip(0..).map(|(definition, place)| {
        let map = Map {
            id: place as u32 + 1,
            map_type: definition.map_type,
            key_size: definition.key_size,
            value_size: definition.value_size,
            max_entries: definition.max_entries.max(1),
            flags: definition.flags,
            ..Map::default()
        };
        (place, map)
    });
    let maps: Vec<_> = maps.collect();
    let case = |program: &beeline_object::ObjectProgram| Case {
        kind: Kind {
            prog_type: program.kind.prog_type,
            attach_type: program.kind.expected_attach_type,
            flags: program.kind.flags,
            attach_btf_id: program.target.btf_id(),
            ..Kind::default()
        },
        insns: program.insns.clone(),
        maps: maps.clone(),
    };
    object.programs.iter().map(case).collect()
}
