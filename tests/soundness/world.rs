//! The world of the programs: maps of the shapes that each program has, filled with numbers, and
//! every helper that harms nothing here.

use std::collections::HashMap;

use beeline_codegen::{Bytecode, Interpreter, Moment};
use beeline_fuzz::Random;
use beeline_maps::{Caller, Fields, Kind, Layout, Spec};
use beeline_uapi::{HelperId, MapType};
use beeline_verifier::program::{FieldKind, Map};

use crate::agent::Environment;
use crate::agent::maps::{Ours, caller};

/// CPUs of the world: few, so that values of per-CPU maps are few.
const CPUS: u32 = 2;
/// A map with more bytes than this is not made.
const MOST_BYTES: u64 = 1 << 20;
/// Elements that a hash has at first.
const ELEMENTS: u32 = 4;

/// Helpers that programs of the world may call. Excludes those that write memory other than theirs,
/// send signals, or make slow requests to the system.
pub fn is_helper(id: HelperId) -> bool {
    // The clock, random numbers, the current task; reads of any memory; tail calls, locks,
    // discarded output.
    const WORDS: [u32; 20] = [
        4, 5, 7, 8, 12, 14, 15, 16, 25, 35, 45, 93, 94, 112, 113, 114, 115, 125, 160, 174,
    ];
    WORDS.contains(&id.0) || beeline_fuzz::world::HELPERS.contains(&id.0)
}

/// A map, and its memory as programs find it.
struct Made {
    ours: Ours,
    handle: u64,
    fresh: Vec<u8>,
    /// The offset of a lock in each value.
    lock: Option<u32>,
    /// Its value is always the same.
    is_constant: bool,
}

/// Everything that a map is made from, to tell maps with different layouts apart.
type Shape = (MapType, [u32; 4], Option<u32>, Option<Vec<u8>>);

/// The world.
pub struct World {
    environment: Environment,
    made: Vec<Made>,
    by_shape: HashMap<Shape, Option<usize>>,
}

impl World {
    pub fn new() -> Self {
        let mut environment = Environment::new();
        environment.set_cpu(0, CPUS);
        Self {
            environment,
            made: Vec::new(),
            by_shape: HashMap::new(),
        }
    }

    /// Gives a program its maps in their first state. `None`: one of them is not available here.
    pub fn lay_out(&mut self, maps: &[&Map]) -> Option<Vec<usize>> {
        let numbers: Option<Vec<usize>> = maps.iter().map(|map| self.number_of(map)).collect();
        let numbers = numbers?;
        let handles: Vec<u64> = numbers.iter().map(|&at| self.made[at].handle).collect();
        self.environment.use_maps(&handles);
        for &at in &numbers {
            self.made[at].renew();
        }
        Some(numbers)
    }

    fn number_of(&mut self, map: &Map) -> Option<usize> {
        let lock = lock_of(map);
        let numbers = [map.key_size, map.value_size, map.max_entries, map.flags];
        let key = (map.map_type, numbers, lock, map.constant.clone());
        if let Some(&known) = self.by_shape.get(&key) {
            return known;
        }
        let made = self.make(map, lock);
        self.by_shape.insert(key, made);
        made
    }

    fn make(&mut self, map: &Map, lock: Option<u32>) -> Option<usize> {
        let spec = Spec {
            map_type: map.map_type,
            key_size: map.key_size,
            value_size: map.value_size,
            max_entries: map.max_entries,
            flags: map.flags,
            map_extra: 0,
        };
        let layout = Layout::new(&spec, CPUS).ok()?;
        if layout.len > MOST_BYTES {
            return None;
        }
        let mut ours = Ours::new(&spec, CPUS).ok()?;
        if let Some(lock) = lock {
            let fields = Fields::new(&spec, Some(lock), None).ok()?;
            ours.map = ours.map.with_fields(fields);
        }
        let handle = self.environment.add_map(ours.map);
        if let Some(constant) = &map.constant {
            ours.map.update_copy(&[0; 4], constant, 0, &me()).ok()?;
        }
        let fresh = ours.memory.bytes();
        self.made.push(Made {
            ours,
            handle,
            fresh,
            lock,
            is_constant: map.constant.is_some(),
        });
        Some(self.made.len() - 1)
    }

    /// Puts numbers into the maps.
    pub fn fill(&self, numbers: &[usize], random: &mut Random) {
        for &at in numbers {
            self.made[at].fill(random);
        }
    }

    /// Runs a program once; with `watch`, shows each of its steps. Describes a fault.
    pub fn run(
        &mut self,
        interpreter: Interpreter,
        program: &Bytecode<'_>,
        context: &mut [u8],
        watch: &mut dyn FnMut(&Moment<'_>) -> Result<(), String>,
    ) -> Result<u64, String> {
        let result = self.environment.run_by(context, |argument, run| {
            // SAFETY: the environment's tables are whole, and the interpreter checks every access.
            unsafe { interpreter.run_watched(program, argument, run, watch) }
        });
        result.map_err(|fault| fault.to_string())
    }

    /// Runs a prepared program once. Describes a fault.
    pub fn run_ready(
        &mut self,
        program: &dyn beeline_codegen::Runnable,
        context: &mut [u8],
    ) -> Result<u64, String> {
        let result = self.environment.run_on(program, context);
        result.map_err(|fault| fault.to_string())
    }
}

impl Made {
    /// Resets the map.
    fn renew(&self) {
        // SAFETY: the memory is as long as what was once copied from it, and no program runs now.
        unsafe {
            let memory = self.ours.memory.base;
            memory.copy_from_nonoverlapping(self.fresh.as_ptr(), self.fresh.len());
        }
    }

    fn fill(&self, random: &mut Random) {
        let map = &self.ours.map;
        if self.is_constant {
            return;
        }
        match map.spec().kind() {
            Some(Kind::Array | Kind::PercpuArray) => self.fill_values(random),
            Some(kind) if kind.is_hash() && !kind.holds_objects() => {
                let mut value = vec![0; map.value_len()];
                let mut key = vec![0; map.spec().key_size as usize];
                for element in 0..ELEMENTS as u8 {
                    fill(&mut value, random);
                    if let Some(first) = key.first_mut() {
                        *first = element;
                    }
                    // The program may have filled the map.
                    let _ = map.update_copy(&key, &value, 0, &me());
                }
            }
            _ => {}
        }
    }

    /// Overwrites an array's values, except for locks.
    fn fill_values(&self, random: &mut Random) {
        let layout = self.ours.map.layout();
        let bytes = (layout.len - layout.values) as usize;
        // SAFETY: the map's memory from its first value to its end; nobody else uses it now.
        let values = unsafe {
            let first = self.ours.memory.base.add(layout.values as usize);
            std::slice::from_raw_parts_mut(first, bytes)
        };
        fill(values, random);
        if let Some(lock) = self.lock {
            for value in values.chunks_mut(layout.stride as usize) {
                if let Some(word) = value.get_mut(lock as usize..lock as usize + 4) {
                    word.fill(0);
                }
            }
        }
    }
}

/// Numbers of all kinds. In long memory only the first bytes differ each time.
pub fn fill(bytes: &mut [u8], random: &mut Random) {
    const MOST: usize = 512;
    let first = bytes.len().min(MOST);
    for word in bytes[..first].chunks_mut(8) {
        let number = random.number().to_ne_bytes();
        word.copy_from_slice(&number[..word.len()]);
    }
}

/// Returns the offset of the lock in a map's values.
fn lock_of(map: &Map) -> Option<u32> {
    let lock = map
        .fields
        .iter()
        .find(|field| field.kind == FieldKind::SpinLock);
    lock.map(|field| field.offset)
}

/// Returns the caller that fills maps, as the tool.
fn me() -> Caller {
    caller(9, Caller::NO_SLOT)
}
