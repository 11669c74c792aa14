//! Objects as elements of maps: programs to tail-call, inner maps, cgroups; and everything that can
//! be reached through them.
//!
//! In shared memory an element is its object's id. The meaning of the id is known here, by
//! [`Elements`], and in every process that has the map, by the table of [`crate::environment`]. An
//! element is set in three steps. It is noted here as coming; every process that has the map gets
//! the object, with everything that can be reached through it; only then is the id stored in shared
//! memory. A process that gets the map meanwhile finds the object here. So no program comes upon an
//! id that its process does not know.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use beeline_maps::Kind;
use beeline_uapi::flags;
use beeline_uapi::{AttachType, Errno, MapType, ProgramType};
use parking_lot::Mutex;

use crate::backend::{Id, MapSpec};
use crate::map::MapObject;
use crate::program::Program;

/// The object that an element names.
#[derive(Debug, Clone)]
pub enum Object {
    /// In a map of maps.
    Map(Arc<MapObject>),
    /// In a program array.
    Program(Arc<Program>),
    /// In a cgroup array.
    Cgroup {
        /// Its id in the session.
        id: Id,
        /// The kernel's id, of 64 bits.
        kernel_id: u64,
    },
}

impl Object {
    /// Returns its id in the session, which is what stands in shared memory.
    pub fn id(&self) -> Id {
        match self {
            Self::Map(map) => map.id,
            Self::Program(program) => program.id,
            Self::Cgroup { id, .. } => *id,
        }
    }
}

/// The elements of one map, as long as they are in it. Only the tool changes them.
#[derive(Debug, Default)]
pub struct Elements {
    /// Held for a whole change.
    changing: Mutex<()>,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    by_key: BTreeMap<Vec<u8>, Object>,
    /// About to be stored in shared memory.
    coming: Option<Object>,
}

impl Elements {
    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        let held = self.held.lock();
        held.by_key.is_empty() && held.coming.is_none()
    }

    /// Sets an element. `announce` brings the object to every process that has the map, and `store`
    /// puts its id into shared memory.
    ///
    /// # Errors
    ///
    /// Those of `store`, which leave the element as it was.
    pub fn set(
        &self,
        key: &[u8],
        object: Object,
        announce: impl FnOnce(),
        store: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let _changing = self.changing.lock();
        self.held.lock().coming = Some(object.clone());
        announce();
        let stored = store();
        let replaced = {
            let mut held = self.held.lock();
            held.coming = None;
            match stored {
                Ok(()) => held.by_key.insert(key.to_vec(), object),
                Err(_) => None,
            }
        };
        // Not under the lock: it may be the last reference to a program, and thereby to more maps.
        drop(replaced);
        stored
    }

    /// Removes an element; `store` takes its id out of shared memory.
    ///
    /// Processes keep what they have mapped until it is worth a stop to unmap it
    /// ([`crate::target::Target::tidy`]).
    ///
    /// # Errors
    ///
    /// Those of `store`, which leave the element as it was.
    pub fn remove(
        &self,
        key: &[u8],
        store: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let _changing = self.changing.lock();
        store()?;
        let removed = self.held.lock().by_key.remove(key);
        drop(removed);
        Ok(())
    }

    /// Returns all that are stored, with their keys.
    pub fn stored(&self) -> Vec<(Vec<u8>, Object)> {
        let held = self.held.lock();
        let each = held.by_key.iter();
        each.map(|(key, object)| (key.clone(), object.clone()))
            .collect()
    }

    /// Returns all of them, including one that is coming.
    fn all(&self) -> Vec<Object> {
        let held = self.held.lock();
        held.by_key.values().chain(&held.coming).cloned().collect()
    }
}

/// The kind of programs that an array takes: those that could run in each other's place.
#[derive(Debug, Default)]
pub struct ProgramKind(Mutex<Option<(ProgramType, AttachType)>>);

impl ProgramKind {
    /// Admits a program. The first one, which may use the array or be put into it, decides.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a program of another kind.
    pub fn admit(&self, program: &Program) -> Result<(), Errno> {
        let kind = (program.prog_type, program.expected_attach_type);
        let mut decided = self.0.lock();
        if *decided.get_or_insert(kind) == kind {
            Ok(())
        } else {
            Err(Errno(libc::EINVAL))
        }
    }
}

/// Fails, with the kernel's errors, if a map cannot be the inner map of maps of maps.
///
/// # Errors
///
/// `EINVAL` for a map of maps, `ENOTSUPP` for a program array.
pub fn check_inner(map: &MapObject) -> Result<(), Errno> {
    match map.here().spec().kind() {
        Some(Kind::ArrayOfMaps | Kind::HashOfMaps) => Err(Errno(libc::EINVAL)),
        Some(Kind::ProgArray) => Err(Errno::ENOTSUPP),
        _ => Ok(()),
    }
}

/// True if programs cannot distinguish a map from the one that a map of maps was created with.
pub fn alike(template: &MapSpec, map: &MapSpec) -> bool {
    // Access flags belong to a descriptor.
    let lasting = |spec: &MapSpec| spec.flags & !(flags::RDONLY | flags::WRONLY);
    let fixed_size = template.map_type == MapType::ARRAY && template.flags & flags::INNER_MAP == 0;
    template.map_type == map.map_type
        && template.key_size == map.key_size
        && template.value_size == map.value_size
        && lasting(template) == lasting(map)
        && template.fields == map.fields
        && (!fixed_size || template.max_entries == map.max_entries)
}

/// The objects that a process must be given before programs can use some maps.
#[derive(Debug, Default)]
pub struct Reachable {
    /// Maps, each once.
    pub maps: Vec<Arc<MapObject>>,
    /// Elements, by the map that they are in.
    pub elements: Vec<(Id, Object)>,
}

impl Reachable {
    /// Finds what can be reached from some maps, except for what `known` says the process has. A
    /// known map came with everything behind it.
    pub fn from_maps(maps: &[Arc<MapObject>], known: impl Fn(Id) -> bool) -> Self {
        let mut reachable = Self::default();
        reachable.follow(maps.to_vec(), known);
        reachable
    }

    /// Finds what can be reached from a new element of a map that the process has.
    pub fn from_element(map: Id, object: &Object, known: impl Fn(Id) -> bool) -> Self {
        let mut reachable = Self {
            elements: vec![(map, object.clone())],
            ..Self::default()
        };
        reachable.follow(behind(object), known);
        reachable
    }

    /// True if a program among the elements looks at the current task.
    pub fn looks_at_task(&self) -> bool {
        self.elements
            .iter()
            .any(|(_, object)| matches!(object, Object::Program(program) if program.needs.task))
    }

    fn follow(&mut self, mut ahead: Vec<Arc<MapObject>>, known: impl Fn(Id) -> bool) {
        // Programs and the arrays that they are in may form cycles.
        let mut seen = HashSet::new();
        while let Some(map) = ahead.pop() {
            if known(map.id) || !seen.insert(map.id) {
                continue;
            }
            for object in map.elements.all() {
                ahead.extend(behind(&object));
                self.elements.push((map.id, object));
            }
            self.maps.push(map);
        }
    }
}

/// Returns the maps directly behind an object.
fn behind(object: &Object) -> Vec<Arc<MapObject>> {
    match object {
        Object::Map(map) => vec![map.clone()],
        Object::Program(program) => program.maps.clone(),
        Object::Cgroup { .. } => Vec::new(),
    }
}
