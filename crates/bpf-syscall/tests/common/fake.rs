//! The simplest backend: maps are trees, programs do nothing, and every request is recorded.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use beeline_runtime::backend::{
    AttachPoint, Backend, Batch, Id, Info, LoadError, Loaded, MapSpec, ObjectRef, ProgramSpec,
    VerifierLog,
};
use beeline_uapi::{Errno, MapType};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

/// Loading a program with this name fails with [`LOG`].
pub const BAD_PROGRAM: &str = "bad";
pub const LOG: &str = "0: (95) exit\nR0 !read_ok\n";
/// Attaching at this offset takes [`SLOW`].
pub const SLOW_OFFSET: u64 = 0x51;
pub const SLOW: Duration = Duration::from_secs(4);
/// Attaching at this offset panics.
pub const PANIC_OFFSET: u64 = 0xdead;

#[derive(Default)]
pub struct Fake {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    last: u32,
    objects: BTreeMap<u32, Kind>,
    log: Vec<String>,
    readable: BTreeSet<u32>,
}

enum Kind {
    Map {
        spec: MapSpec,
        memory: File,
        elements: BTreeMap<Vec<u8>, Vec<u8>>,
        wakeup: OwnedFd,
    },
    Ring {
        memory: File,
        wakeup: OwnedFd,
    },
    Program {
        spec: ProgramSpec,
    },
    Link {
        program: Id,
    },
}

const ENOENT: Errno = Errno(libc::ENOENT);

impl Fake {
    /// The requests so far, in order.
    pub fn log(&self) -> Vec<String> {
        self.state.lock().log.clone()
    }

    /// Returns whether any request starts so.
    pub fn saw(&self, start: &str) -> bool {
        self.log().iter().any(|line| line.starts_with(start))
    }

    /// Returns the objects that were never released.
    pub fn alive(&self) -> usize {
        self.state.lock().objects.len()
    }

    fn note(&self, line: String) {
        self.state.lock().log.push(line);
    }

    fn add(&self, kind: Kind, line: &str) -> Id {
        let mut state = self.state.lock();
        state.last += 1;
        let id = state.last;
        state.objects.insert(id, kind);
        state.log.push(format!("{line} -> {id}"));
        Id(id)
    }

    fn with<T>(
        &self,
        id: Id,
        then: impl FnOnce(&mut Kind) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        then(self.state.lock().objects.get_mut(&id.0).ok_or(ENOENT)?)
    }

    fn elements<T>(
        &self,
        id: Id,
        then: impl FnOnce(&MapSpec, &mut BTreeMap<Vec<u8>, Vec<u8>>, &File) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        self.with(id, |kind| match kind {
            Kind::Map {
                spec,
                memory,
                elements,
                ..
            } => then(spec, elements, memory),
            _ => Err(Errno(libc::EINVAL)),
        })
    }
}

/// Returns the end of the memory at r1 that the program's word loads read.
fn context_end(insns: &[u8]) -> u32 {
    const LOAD_WORD_OF_R1: [u8; 2] = [0x61, 0x10];
    let loads = insns
        .chunks_exact(8)
        .filter(|insn| insn[..2] == LOAD_WORD_OF_R1);
    let ends = loads.map(|insn| u32::from(u16::from_ne_bytes([insn[2], insn[3]])) + 4);
    ends.max().unwrap_or(0)
}

fn memory_of(bytes: u64) -> File {
    let fd = memfd_create("fake", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, bytes).unwrap();
    fd.into()
}

fn new_wakeup() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}

fn index(key: &[u8], spec: &MapSpec) -> Result<u64, Errno> {
    let index = u32::from_ne_bytes(key.try_into().map_err(|_| Errno(libc::EINVAL))?);
    if index < spec.max_entries {
        Ok(u64::from(index) * u64::from(spec.value_size))
    } else {
        Err(ENOENT)
    }
}

impl Backend for Fake {
    fn cpus(&self) -> u32 {
        2
    }

    fn map_create(&self, spec: &MapSpec) -> Result<Id, Errno> {
        if spec.max_entries == 0 {
            return Err(Errno(libc::EINVAL));
        }
        if spec.map_type == MapType::HASH_OF_MAPS && spec.inner.is_none() {
            return Err(Errno(libc::EBADF));
        }
        let memory = memory_of(1 << 16);
        let kind = Kind::Map {
            spec: spec.clone(),
            memory,
            elements: BTreeMap::new(),
            wakeup: new_wakeup(),
        };
        Ok(self.add(kind, &format!("map_create {} {}", spec.map_type, spec.name)))
    }

    fn memory(&self, id: Id) -> Result<OwnedFd, Errno> {
        self.with(id, |kind| match kind {
            Kind::Map { memory, .. } | Kind::Ring { memory, .. } => {
                Ok(memory.try_clone().unwrap().into())
            }
            _ => Err(Errno(libc::EINVAL)),
        })
    }

    fn map_value_len(&self, map: Id) -> Result<usize, Errno> {
        self.elements(map, |spec, _, _| Ok(spec.value_size as usize))
    }

    fn map_lookup(&self, map: Id, key: &[u8], value: &mut [u8], _flags: u64) -> Result<(), Errno> {
        self.elements(map, |spec, elements, memory| {
            if spec.map_type == MapType::ARRAY {
                memory.read_exact_at(value, index(key, spec)?).unwrap();
            } else {
                value.copy_from_slice(elements.get(key).ok_or(ENOENT)?);
            }
            Ok(())
        })
    }

    fn map_update(&self, map: Id, key: &[u8], value: &[u8], _flags: u64) -> Result<(), Errno> {
        self.elements(map, |spec, elements, memory| {
            if spec.map_type == MapType::ARRAY {
                memory.write_all_at(value, index(key, spec)?).unwrap();
            } else {
                elements.insert(key.to_vec(), value.to_vec());
            }
            Ok(())
        })
    }

    fn map_set_object(
        &self,
        map: Id,
        key: &[u8],
        object: ObjectRef,
        _flags: u64,
    ) -> Result<(), Errno> {
        let id = match object {
            ObjectRef::Map(id) | ObjectRef::Program(id) => id.0,
            ObjectRef::Cgroup(id) => id as u32,
        };
        self.elements(map, |_, elements, _| {
            elements.insert(key.to_vec(), id.to_ne_bytes().to_vec());
            Ok(())
        })
    }

    fn map_delete(&self, map: Id, key: &[u8]) -> Result<(), Errno> {
        self.elements(map, |_, elements, _| {
            elements.remove(key).map(|_| ()).ok_or(ENOENT)
        })
    }

    fn map_lookup_and_delete(
        &self,
        map: Id,
        key: &[u8],
        value: &mut [u8],
        _flags: u64,
    ) -> Result<(), Errno> {
        self.elements(map, |_, elements, _| {
            value.copy_from_slice(&elements.remove(key).ok_or(ENOENT)?);
            Ok(())
        })
    }

    fn map_next_key(&self, map: Id, key: Option<&[u8]>, next: &mut [u8]) -> Result<(), Errno> {
        self.elements(map, |_, elements, _| {
            let after = key.filter(|&key| elements.contains_key(key));
            let found = elements
                .keys()
                .find(|&candidate| after.is_none_or(|after| candidate.as_slice() > after));
            next.copy_from_slice(found.ok_or(ENOENT)?);
            Ok(())
        })
    }

    /// Every element is a bucket, in the order of keys.
    fn map_read_batch(
        &self,
        map: Id,
        cursor: u32,
        (keys, values): (&mut [u8], &mut [u8]),
        delete: bool,
    ) -> Result<Batch, Errno> {
        self.elements(map, |spec, elements, _| {
            let (key, value) = (spec.key_size as usize, spec.value_size as usize);
            let all: Vec<_> = elements.clone().into_iter().collect();
            let left = all.get(cursor as usize..).unwrap_or_default();
            let mut count = 0;
            let room = keys
                .chunks_exact_mut(key)
                .zip(values.chunks_exact_mut(value));
            for ((k, v), (to_k, to_v)) in left.iter().zip(room) {
                to_k.copy_from_slice(k);
                to_v.copy_from_slice(v);
                count += 1;
                if delete {
                    elements.remove(k);
                }
            }
            let next = if delete { cursor } else { cursor + count };
            Ok(Batch {
                count,
                next: (left.len() > count as usize).then_some(next),
            })
        })
    }

    fn map_freeze(&self, map: Id) -> Result<(), Errno> {
        self.note(format!("map_freeze {}", map.0));
        Ok(())
    }

    fn perf_ring_create(&self, cpu: u32) -> Result<Id, Errno> {
        let kind = Kind::Ring {
            memory: memory_of(4096),
            wakeup: new_wakeup(),
        };
        Ok(self.add(kind, &format!("ring {cpu}")))
    }

    fn perf_ring_resize(&self, ring: Id, pages: u32) -> Result<(), Errno> {
        self.note(format!("ring_resize {} {pages}", ring.0));
        self.with(ring, |kind| match kind {
            Kind::Ring { memory, .. } => memory
                .set_len(4096 * u64::from(1 + pages))
                .map_err(|_| Errno(libc::ENOMEM)),
            _ => Err(Errno(libc::EINVAL)),
        })
    }

    fn perf_ring_enable(&self, ring: Id, on: bool) -> Result<(), Errno> {
        self.note(format!("ring_enable {} {on}", ring.0));
        if !on {
            self.state.lock().readable.remove(&ring.0);
        }
        Ok(())
    }

    fn perf_ring_pause(&self, ring: Id, on: bool) -> Result<(), Errno> {
        self.note(format!("ring_pause {} {on}", ring.0));
        Ok(())
    }

    fn perf_array_set(&self, map: Id, index: u32, ring: Id) -> Result<(), Errno> {
        self.note(format!("perf_array_set {} {index} {}", map.0, ring.0));
        Ok(())
    }

    fn wakeup(&self, id: Id) -> Result<OwnedFd, Errno> {
        self.with(id, |kind| match kind {
            Kind::Map { wakeup, .. } | Kind::Ring { wakeup, .. } => Ok(wakeup.try_clone().unwrap()),
            _ => Err(Errno(libc::EINVAL)),
        })
    }

    /// A test run makes everything readable, and disabling a ring ends it.
    fn readable(&self, id: Id) -> Result<bool, Errno> {
        Ok(self.state.lock().readable.contains(&id.0))
    }

    fn program_load(&self, spec: &ProgramSpec) -> Result<Loaded, LoadError> {
        if spec.name == BAD_PROGRAM {
            return Err(LoadError {
                errno: Errno(libc::EACCES),
                reason: "R0 !read_ok".into(),
                log: VerifierLog {
                    text: LOG.into(),
                    longest: LOG.len(),
                },
            });
        }
        let line = format!(
            "program_load {} {} maps {:?}",
            spec.prog_type, spec.name, spec.maps
        );
        Ok(Loaded {
            id: self.add(Kind::Program { spec: spec.clone() }, &line),
            log: VerifierLog::default(),
        })
    }

    fn program_bind_map(&self, program: Id, map: Id) -> Result<(), Errno> {
        self.note(format!("bind {} {}", program.0, map.0));
        Ok(())
    }

    /// Wakes all waiters.
    fn program_test_run(&self, program: Id, context: &[u8]) -> Result<u64, Errno> {
        self.note(format!("test_run {} {context:?}", program.0));
        let state = &mut *self.state.lock();
        state.readable.extend(state.objects.keys());
        for kind in state.objects.values() {
            if let Kind::Ring { wakeup, .. } | Kind::Map { wakeup, .. } = kind {
                rustix::io::write(wakeup, &1u64.to_ne_bytes()).unwrap();
            }
        }
        Ok(42)
    }

    fn attach(&self, program: Id, point: &AttachPoint) -> Result<Id, Errno> {
        match point {
            AttachPoint::Uprobe {
                offset: PANIC_OFFSET,
                ..
            } => panic!("as asked"),
            AttachPoint::Uprobe {
                offset: SLOW_OFFSET,
                ..
            } => std::thread::sleep(SLOW),
            _ => {}
        }
        Ok(self.add(
            Kind::Link { program },
            &format!("attach {} {point:?}", program.0),
        ))
    }

    fn attach_check(&self, point: &AttachPoint) -> Result<(), Errno> {
        match point {
            AttachPoint::Uprobe { path, .. } if !path.exists() => Err(ENOENT),
            _ => Ok(()),
        }
    }

    fn info(&self, id: Id) -> Result<Info, Errno> {
        self.with(id, |kind| match kind {
            Kind::Map { spec, .. } => Ok(Info::Map(spec.clone())),
            Kind::Program { spec } => Ok(Info::Program {
                prog_type: spec.prog_type,
                name: spec.name.clone(),
                tag: [7; 8],
                jited: vec![0xc3; 100],
                xlated: spec.insns.clone(),
                context_end: context_end(&spec.insns),
                maps: spec.maps.iter().map(|(_, id)| *id).collect(),
            }),
            Kind::Link { program } => Ok(Info::Link { program: *program }),
            Kind::Ring { .. } => Err(Errno(libc::EINVAL)),
        })
    }

    fn release(&self, id: Id) {
        let mut state = self.state.lock();
        state.log.push(format!("release {}", id.0));
        assert!(
            state.objects.remove(&id.0).is_some(),
            "{} is released twice",
            id.0
        );
    }

    fn trace_pipe(&self) -> Result<OwnedFd, Errno> {
        Err(Errno(libc::ENOENT))
    }

    fn unsupported(&self, what: &str) {
        self.note(format!("unsupported {what}"));
    }
}
