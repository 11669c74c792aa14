//! Objects in maps: the tool passes descriptors, and the map keeps the objects behind them.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use beeline_uapi::MapType;
use parking_lot::{Mutex, MutexGuard};

use crate::objects::{Map, Object, ProgramObject};

/// The objects that are elements of a map, by key.
///
/// They live at least as long as they are elements: the tool may close its descriptor of an inner
/// map, and ask for it later by the id that it reads from the element.
#[derive(Default)]
pub(crate) struct ObjectElements(Mutex<BTreeMap<Vec<u8>, Object>>);

impl ObjectElements {
    /// Locks the elements. Each change is a single step, made after the backend's.
    pub(crate) fn lock(&self) -> MutexGuard<'_, BTreeMap<Vec<u8>, Object>> {
        self.0.lock()
    }
}

/// All objects that were ever put into maps and still live. The tool may know them by their ids
/// alone.
#[derive(Default)]
pub(crate) struct Members(Mutex<HashMap<u32, Member>>);

enum Member {
    Map(Weak<Map>),
    Program(Weak<ProgramObject>),
}

impl Member {
    fn lives(&self) -> bool {
        match self {
            Member::Map(map) => map.strong_count() > 0,
            Member::Program(program) => program.strong_count() > 0,
        }
    }

    fn object(&self) -> Option<Object> {
        match self {
            Member::Map(map) => map.upgrade().map(Object::Map),
            Member::Program(program) => program.upgrade().map(Object::Program),
        }
    }
}

impl Members {
    /// Returns the objects that still live.
    pub(crate) fn alive(&self) -> Vec<Object> {
        self.lock().values().filter_map(Member::object).collect()
    }

    pub(crate) fn add(&self, object: &Object) {
        let (id, member) = match object {
            Object::Map(map) => (map.held.id, Member::Map(Arc::downgrade(map))),
            Object::Program(program) => (program.held.id, Member::Program(Arc::downgrade(program))),
            _ => return,
        };
        let mut members = self.lock();
        if members.len() == members.capacity() {
            members.retain(|_, member| member.lives());
        }
        members.insert(id.0, member);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u32, Member>> {
        self.0.lock()
    }
}

/// A descriptor's share in an object.
pub(crate) struct Use(Option<Arc<Map>>);

impl Use {
    pub(crate) fn of(object: &Object) -> Self {
        let Object::Map(map) = object else {
            return Use(None);
        };
        map.uses.fetch_add(1, Ordering::AcqRel);
        Use(Some(Arc::clone(map)))
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        if let Some(map) = self.0.take()
            && map.uses.fetch_sub(1, Ordering::AcqRel) == 1
        {
            clear_programs(&map);
        }
    }
}

/// Removes the elements of a program array when the tool has no descriptor of it any more. Programs
/// may use the arrays that they are in; without this, such a cycle would never end.
fn clear_programs(map: &Map) {
    if map.spec.map_type != MapType::PROG_ARRAY {
        return;
    }
    let mut elements = map.elements.lock();
    let all = std::mem::take(&mut *elements);
    for key in all.keys() {
        // Nothing else can have deleted it, because we hold the lock.
        let _ = map.held.backend().map_delete(map.held.id, key);
    }
    drop(elements);
    drop(all);
}
