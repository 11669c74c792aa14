//! The world of the programs, laid out here and in the kernel.

use std::fs::File;
use std::os::fd::AsRawFd;

use beeline_codegen::{Bytecode, MapShape, Runnable};
use beeline_fuzz::kernel as bpf;
use beeline_fuzz::world::{CONSTANTS, CONTEXT_BYTES, MAPS, QUEUE, RING, contents};
use beeline_isa::Insn;
use beeline_isa::opcode::{PSEUDO_MAP_FD, PSEUDO_MAP_VALUE};
use beeline_maps::{Caller, Kind, Spec};
use beeline_runtime::shape_of;
use beeline_uapi::{Errno, HelperId, ProgramType};
use beeline_verifier::Flow;

use crate::agent::Environment;
use crate::agent::maps::kernel::{KernelMap, cpus};
use crate::agent::maps::{Consumer, Ours, caller, walk};

/// The state that a run left, as the tool sees it: the context, and each map's elements or records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    pub context: [u8; CONTEXT_BYTES],
    pub maps: Vec<(usize, Vec<Element>)>,
}

/// A key and a value, one of which may be empty.
pub type Element = (Vec<u8>, Vec<u8>);

/// The context at the start of every run.
pub const CONTEXT: [u8; CONTEXT_BYTES] = {
    let mut bytes = [0; CONTEXT_BYTES];
    let mut at = 0;
    while at < CONTEXT_BYTES {
        bytes[at] = (at * 73 + 5) as u8;
        at += 1;
    }
    bytes
};

fn spec(map: usize) -> Spec {
    let shape = MAPS[map];
    Spec {
        map_type: shape.map_type,
        key_size: shape.key,
        value_size: shape.value,
        max_entries: shape.entries,
        flags: shape.flags,
        map_extra: 0,
    }
}

/// The maps that a program names.
pub fn used(insns: &[Insn]) -> Vec<usize> {
    let names = |insn: &&Insn| insn.is_imm64() && is_map(insn);
    let mut maps: Vec<usize> = insns
        .iter()
        .filter(names)
        .map(|insn| insn.imm as usize)
        .collect();
    maps.sort_unstable();
    maps.dedup();
    maps
}

fn is_map(insn: &Insn) -> bool {
    matches!(insn.src, PSEUDO_MAP_FD | PSEUDO_MAP_VALUE)
}

/// Returns an element's value for all CPUs, as system calls take it.
fn for_all_cpus(map: usize, value: &[u8]) -> Vec<u8> {
    let is_percpu = spec(map).kind().is_some_and(Kind::is_percpu);
    if !is_percpu {
        return value.to_vec();
    }
    let mut one = value.to_vec();
    one.resize(value.len().next_multiple_of(8), 0);
    one.repeat(cpus() as usize)
}

/// Beeline's maps, and the environment in which engines run programs.
pub struct Here {
    environment: Environment,
    maps: Vec<Ours>,
    /// The bytes of each map, as runs find them.
    fresh: Vec<Vec<u8>>,
    shapes: Vec<MapShape>,
    ring: Consumer,
    context: Box<[u8; CONTEXT_BYTES]>,
}

/// The bytes of context and maps, which all engines leave the same.
pub type Bytes = Vec<Vec<u8>>;

impl Here {
    /// Programs will see this CPU as theirs.
    pub fn new(cpu: u32) -> Self {
        let maps: Vec<Ours> = (0..MAPS.len())
            .map(|map| Ours::new(&spec(map), cpus()).expect("a map"))
            .collect();
        let mut environment = Environment::new();
        environment.set_cpu(cpu, cpus());
        for (number, ours) in maps.iter().enumerate() {
            environment.add_map(ours.map);
            for (key, value) in contents(number) {
                let value = for_all_cpus(number, &value);
                let updated = ours.map.update_copy(&key, &value, 0, &me());
                updated.expect("an update");
            }
        }
        Self {
            environment,
            fresh: maps.iter().map(|ours| ours.memory.bytes()).collect(),
            shapes: maps.iter().map(|ours| shape_of(&ours.map)).collect(),
            ring: Consumer::new(&maps[RING].memory, MAPS[RING].entries.into()),
            maps,
            context: Box::new(CONTEXT),
        }
    }

    /// Returns the program, and the facts about its surroundings that engines may use.
    pub fn program<'a>(&'a self, insns: &'a [Insn]) -> Bytecode<'a> {
        Bytecode {
            maps: &self.shapes,
            in_agent: true,
            ..Bytecode::new(insns)
        }
    }

    /// Resets everything that a program may change, runs the program, and returns r0 or a fault.
    pub fn run(&mut self, program: &dyn Runnable, used: &[usize]) -> Result<u64, String> {
        *self.context = CONTEXT;
        for &map in used {
            let (memory, fresh) = (self.maps[map].memory.base, &self.fresh[map]);
            // SAFETY: the map's memory is as long as what was once copied from it, and no program
            // runs now.
            unsafe { memory.copy_from_nonoverlapping(fresh.as_ptr(), fresh.len()) };
        }
        let result = self.environment.run_on(program, &mut self.context[..]);
        result.map_err(|fault| fault.to_string())
    }

    /// Runs a program on any context and with any numbers in its maps, and returns r0 or a fault.
    pub fn run_on(
        &mut self,
        program: &dyn Runnable,
        context: &mut [u8],
        mut number: impl FnMut() -> u64,
    ) -> Result<u64, String> {
        for (map, ours) in self.maps.iter().enumerate() {
            for (key, mut value) in contents(map) {
                if map != CONSTANTS && map != QUEUE {
                    value.fill_with(|| number() as u8);
                    let value = for_all_cpus(map, &value);
                    // Programs may have filled a hash.
                    let _ = ours.map.update_copy(&key, &value, 0, &me());
                }
            }
        }
        let result = self.environment.run_on(program, context);
        result.map_err(|fault| fault.to_string())
    }

    /// Returns the bytes that the last run left.
    pub fn bytes(&self, used: &[usize]) -> Bytes {
        let maps = used.iter().map(|&map| self.maps[map].memory.bytes());
        [self.context.to_vec()].into_iter().chain(maps).collect()
    }

    /// Returns the state that the last run left. Takes the records out of the ring.
    pub fn left(&mut self, used: &[usize]) -> Left {
        let maps = used.iter().map(|&map| (map, self.elements(map)));
        Left {
            context: *self.context,
            maps: maps.collect(),
        }
    }

    fn elements(&self, map: usize) -> Vec<Element> {
        let ours = &self.maps[map].map;
        let mut value = vec![0; ours.value_len()];
        match map {
            RING => records(&self.ring),
            QUEUE => taken(|| {
                ours.lookup_and_delete(&[], &mut value, 0, &me())
                    .map(|()| value.clone())
            }),
            _ => elements(
                map,
                |key, out| ours.next_key(key, out, &me()),
                |key| {
                    let found = ours.lookup_copy(key, &mut value, 0, &me());
                    found.map(|()| value.clone())
                },
            ),
        }
    }
}

/// The caller that looks at maps, as the tool.
fn me() -> Caller {
    caller(9, Caller::NO_SLOT)
}

/// The kernel's maps.
pub struct There {
    maps: Vec<KernelMap>,
    ring: Consumer,
}

impl There {
    pub fn new() -> Self {
        let maps: Vec<KernelMap> = (0..MAPS.len())
            .map(|map| KernelMap::new(&spec(map)).expect("a map"))
            .collect();
        let ring = Consumer::of(&maps[RING].fd, MAPS[RING].entries.into());
        let there = Self { maps, ring };
        there.refill(CONSTANTS);
        there.maps[CONSTANTS].freeze().expect("a frozen map");
        there
    }

    /// Loads a program, or returns the kernel's reason against it.
    pub fn load(&self, insns: &[Insn]) -> Result<File, bpf::Refusal> {
        let flow = Flow::of(insns).map_err(|reject| bpf::Refusal {
            errno: 0,
            longest_log: 0,
            log: format!("ours, before it: {reject}"),
        })?;
        let starts: Vec<usize> = flow.functions().iter().map(|one| one.start).collect();
        let resolved: Vec<Insn> = insns.iter().map(|insn| self.resolved(insn)).collect();
        bpf::load_functions(ProgramType::SYSCALL, &resolved, &starts)
    }

    /// Runs a program once on fresh maps; returns the low half of r0, and the state that it left.
    pub fn run(&self, program: &File, used: &[usize]) -> (u32, Left) {
        for &map in used.iter().filter(|&&map| map != CONSTANTS) {
            self.refill(map);
        }
        let mut context = CONTEXT;
        let result = bpf::test_run_on(program, &mut context).expect("a test run");
        let maps = used.iter().map(|&map| (map, self.elements(map)));
        let maps = maps.collect();
        (result, Left { context, maps })
    }

    fn resolved(&self, insn: &Insn) -> Insn {
        let mut insn = *insn;
        if insn.is_imm64() && is_map(&insn) {
            insn.imm = self.maps[insn.imm as usize].fd.as_raw_fd();
        }
        insn
    }

    /// Resets a map.
    fn refill(&self, map: usize) {
        let kernel = &self.maps[map];
        let is_array = matches!(spec(map).kind(), Some(Kind::Array | Kind::PercpuArray));
        if !is_array {
            for (key, _) in self.elements(map) {
                // In a queue and a ring, to look is to take.
                if map != QUEUE && map != RING {
                    kernel.delete(&key).expect("an element that was there");
                }
            }
        }
        for (key, value) in contents(map) {
            let updated = kernel.update(&key, &for_all_cpus(map, &value), 0);
            updated.expect("an update");
        }
    }

    fn elements(&self, map: usize) -> Vec<Element> {
        let kernel = &self.maps[map];
        let mut value = for_all_cpus(map, &vec![0; MAPS[map].value as usize]);
        match map {
            RING => records(&self.ring),
            QUEUE => taken(|| {
                kernel
                    .lookup_and_delete(&[], &mut value)
                    .map(|()| value.clone())
            }),
            _ => elements(
                map,
                |key, out| kernel.next_key(key, out),
                |key| kernel.lookup(key, &mut value).map(|()| value.clone()),
            ),
        }
    }
}

/// Returns the elements of a map with keys, in the keys' order.
fn elements(
    map: usize,
    next_key: impl Fn(Option<&[u8]>, &mut [u8]) -> Result<(), Errno>,
    mut look_up: impl FnMut(&[u8]) -> Result<Vec<u8>, Errno>,
) -> Vec<Element> {
    let mut keys = walk(MAPS[map].key as usize, next_key);
    keys.sort_unstable();
    let value = |key: Vec<u8>| {
        let value = look_up(&key).expect("the value of a key");
        (key, value)
    };
    keys.into_iter().map(value).collect()
}

/// Takes everything out of a queue.
fn taken(mut take: impl FnMut() -> Result<Vec<u8>, Errno>) -> Vec<Element> {
    std::iter::from_fn(|| take().ok())
        .map(|value| (Vec::new(), value))
        .collect()
}

/// Returns the records of a ring buffer.
fn records(ring: &Consumer) -> Vec<Element> {
    let mut records = Vec::new();
    ring.consume_shared(&mut |record| records.push((Vec::new(), record.to_vec())));
    records
}

/// Returns the helpers of the world, for the verifier.
pub fn is_helper(id: HelperId) -> bool {
    id != HelperId::TAIL_CALL && beeline_fuzz::world::HELPERS.contains(&id.0)
}
