//! The supervisor's backend for [`crate::tool_calls`]: objects without contents. It checks that the
//! supervisor keeps its promises.

use std::collections::HashMap;
use std::os::fd::OwnedFd;

use beeline_runtime::backend::{
    AttachPoint, Backend, Batch, Id, Info, LoadError, Loaded, MapSpec, ObjectRef, ProgramSpec,
    VerifierLog,
};
use beeline_uapi::Errno;
use parking_lot::{Mutex, MutexGuard};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, memfd_create};

const CPUS: u32 = 4;
const E2BIG: i32 = 7;

enum Object {
    Map(MapSpec, OwnedFd),
    Ring(OwnedFd),
    Program(ProgramSpec),
    Link(Id),
}

/// By their ids; the last assigned one.
#[derive(Default)]
pub struct Pretended(Mutex<(HashMap<u32, Object>, u32)>);

fn memory() -> Result<OwnedFd, Errno> {
    memfd_create("pretended", MemfdFlags::CLOEXEC).map_err(|it| Errno(it.raw_os_error()))
}

impl Pretended {
    fn objects(&self) -> MutexGuard<'_, (HashMap<u32, Object>, u32)> {
        self.0.lock()
    }

    fn add(&self, object: Object) -> Id {
        let (objects, last) = &mut *self.objects();
        *last += 1;
        objects.insert(*last, object);
        Id(*last)
    }

    fn spec(&self, map: Id) -> MapSpec {
        match self.objects().0.get(&map.0) {
            Some(Object::Map(spec, _)) => spec.clone(),
            _ => panic!("{map:?} is no map"),
        }
    }

    /// Keys and values have the map's lengths.
    fn check(&self, map: Id, key: Option<&[u8]>, value: Option<&[u8]>) -> Result<(), Errno> {
        let spec = self.spec(map);
        let key_size = key.map_or(spec.key_size as usize, <[u8]>::len);
        assert_eq!(key_size, spec.key_size as usize, "a key of {spec:?}");
        if let Some(value) = value {
            assert_eq!(value.len(), value_len(&spec), "a value of {spec:?}");
        }
        Ok(())
    }

    fn is_there(&self, id: Id) {
        assert!(self.objects().0.contains_key(&id.0), "{id:?} is gone");
    }
}

fn value_len(spec: &MapSpec) -> usize {
    let one = spec.value_size as usize;
    if spec.map_type.is_per_cpu() {
        one.next_multiple_of(8) * CPUS as usize
    } else {
        one
    }
}

impl Backend for Pretended {
    fn cpus(&self) -> u32 {
        CPUS
    }

    fn map_create(&self, spec: &MapSpec) -> Result<Id, Errno> {
        // Answers as the runtime, which would need the memory.
        let bytes = (u64::from(spec.key_size) + value_len(spec) as u64)
            .saturating_mul(spec.max_entries.into());
        if spec.max_entries == 0 || bytes > 1 << 40 {
            return Err(Errno(E2BIG));
        }
        Ok(self.add(Object::Map(spec.clone(), memory()?)))
    }

    fn memory(&self, id: Id) -> Result<OwnedFd, Errno> {
        match self.objects().0.get(&id.0) {
            Some(Object::Map(_, memory) | Object::Ring(memory)) => memory
                .try_clone()
                .map_err(|it| Errno(it.raw_os_error().unwrap_or(0))),
            _ => panic!("{id:?} has no memory"),
        }
    }

    fn map_value_len(&self, map: Id) -> Result<usize, Errno> {
        Ok(value_len(&self.spec(map)))
    }

    fn map_lookup(&self, map: Id, key: &[u8], value: &mut [u8], _: u64) -> Result<(), Errno> {
        self.check(map, Some(key), Some(value))
    }

    fn map_update(&self, map: Id, key: &[u8], value: &[u8], _: u64) -> Result<(), Errno> {
        self.check(map, Some(key), Some(value))
    }

    fn map_set_object(&self, map: Id, key: &[u8], object: ObjectRef, _: u64) -> Result<(), Errno> {
        if let ObjectRef::Map(id) | ObjectRef::Program(id) = object {
            self.is_there(id);
        }
        self.check(map, Some(key), None)
    }

    fn map_delete(&self, map: Id, key: &[u8]) -> Result<(), Errno> {
        self.check(map, Some(key), None)
    }

    fn map_lookup_and_delete(
        &self,
        map: Id,
        key: &[u8],
        value: &mut [u8],
        _: u64,
    ) -> Result<(), Errno> {
        self.check(map, Some(key), Some(value))
    }

    fn map_next_key(&self, map: Id, key: Option<&[u8]>, next: &mut [u8]) -> Result<(), Errno> {
        self.check(map, key, None)?;
        self.check(map, Some(next), None)
    }

    fn map_read_batch(
        &self,
        map: Id,
        cursor: u32,
        (keys, values): (&mut [u8], &mut [u8]),
        _: bool,
    ) -> Result<Batch, Errno> {
        let spec = self.spec(map);
        let room = keys.len() / (spec.key_size as usize).max(1);
        assert_eq!(room * value_len(&spec), values.len(), "a batch of {spec:?}");
        Ok(Batch {
            count: room as u32,
            next: cursor.checked_add(1).filter(|next| *next < 100),
        })
    }

    fn map_freeze(&self, map: Id) -> Result<(), Errno> {
        self.check(map, None, None)
    }

    fn perf_ring_create(&self, cpu: u32) -> Result<Id, Errno> {
        assert!(cpu < CPUS);
        Ok(self.add(Object::Ring(memory()?)))
    }

    fn perf_ring_resize(&self, ring: Id, pages: u32) -> Result<(), Errno> {
        assert!(pages.is_power_of_two());
        self.is_there(ring);
        Ok(())
    }

    fn perf_ring_enable(&self, ring: Id, _: bool) -> Result<(), Errno> {
        self.is_there(ring);
        Ok(())
    }

    fn perf_ring_pause(&self, ring: Id, _: bool) -> Result<(), Errno> {
        self.is_there(ring);
        Ok(())
    }

    fn perf_array_set(&self, map: Id, index: u32, ring: Id) -> Result<(), Errno> {
        self.is_there(ring);
        assert!(index < self.spec(map).max_entries);
        Ok(())
    }

    fn wakeup(&self, id: Id) -> Result<OwnedFd, Errno> {
        self.is_there(id);
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|it| Errno(it.raw_os_error()))
    }

    fn readable(&self, id: Id) -> Result<bool, Errno> {
        self.is_there(id);
        Ok(id.0.is_multiple_of(2))
    }

    fn program_load(&self, spec: &ProgramSpec) -> Result<Loaded, LoadError> {
        assert!(spec.insns.len().is_multiple_of(8) && !spec.insns.is_empty());
        for (_, map) in &spec.maps {
            self.is_there(*map);
        }
        Ok(Loaded {
            id: self.add(Object::Program(spec.clone())),
            log: VerifierLog {
                text: "a line\n".repeat(9),
                longest: 63,
            },
        })
    }

    fn program_bind_map(&self, program: Id, map: Id) -> Result<(), Errno> {
        self.is_there(program);
        self.is_there(map);
        Ok(())
    }

    fn program_test_run(&self, program: Id, _: &[u8]) -> Result<u64, Errno> {
        self.is_there(program);
        Ok(7)
    }

    fn attach(&self, program: Id, _: &AttachPoint) -> Result<Id, Errno> {
        self.is_there(program);
        Ok(self.add(Object::Link(program)))
    }

    fn attach_check(&self, _: &AttachPoint) -> Result<(), Errno> {
        Ok(())
    }

    fn info(&self, id: Id) -> Result<Info, Errno> {
        Ok(match self.objects().0.get(&id.0) {
            Some(Object::Map(spec, _)) => Info::Map(spec.clone()),
            Some(Object::Program(spec)) => Info::Program {
                prog_type: spec.prog_type,
                name: spec.name.clone(),
                tag: [7; 8],
                jited: vec![0xc3; 100],
                xlated: spec.insns.clone(),
                context_end: 0,
                maps: spec.maps.iter().map(|(_, id)| *id).collect(),
            },
            Some(Object::Link(program)) => Info::Link { program: *program },
            Some(Object::Ring(_)) | None => panic!("{id:?} has no information"),
        })
    }

    fn release(&self, id: Id) {
        let gone = self.objects().0.remove(&id.0);
        assert!(gone.is_some(), "{id:?} is released twice");
    }

    fn trace_pipe(&self) -> Result<OwnedFd, Errno> {
        memory()
    }

    fn unsupported(&self, _: &str) {}
}
