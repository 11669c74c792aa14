//! Maps that exist in the kernel only: of sockets, of devices, of what the kernel keeps for its own
//! objects. Beeline makes them there, and the tool works on them by itself.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use beeline_kernel as kernel;
use beeline_maps::{Fields, Spec};
use beeline_uapi::{Errno, MapType};
use parking_lot::Mutex;

use super::super::shards::Shard;
use super::super::{MapObject, out_of_memory};
use super::creation::{kernel_spec, load_types_of};
use super::{Twin, View};
use crate::backend::{Id, MapSpec};
use crate::budget::Budget;

/// The map whose memory stands for that of such a map, which has none here. No program has it.
const FACE: Spec = Spec {
    map_type: MapType::ARRAY,
    key_size: 4,
    value_size: 8,
    max_entries: 1,
    flags: 0,
    map_extra: 0,
};

impl MapObject {
    /// Creates a map in the kernel.
    ///
    /// # Errors
    ///
    /// The errno of bpf(2); `ENOMEM` if the budget has no room for it; those of [`Shard::new`].
    pub fn only_in_kernel(
        id: Id,
        spec: &MapSpec,
        cpus: u32,
        budget: &Budget,
    ) -> Result<Self, Errno> {
        let charge = budget.charge(bytes_of(spec))?;
        let types = load_types_of(spec).map_err(out_of_memory)?;
        let map = kernel::Map::new(&kernel::MapSpec {
            types: types
                .as_ref()
                .map(|(btf, key, value)| (btf.as_fd(), *key, *value)),
            name: &spec.name,
            ..kernel_spec(spec, spec.flags)
        });
        let map = map.map_err(out_of_memory)?;
        let first = Shard::new(
            &spec.name,
            &FACE,
            Fields::new(&FACE, None, None)?,
            cpus,
            budget,
        )?;
        let made = Self::with_first(id, spec, first, None, budget)?;
        made.sides.write().twin = Some(Twin {
            map,
            view: View::Kernels,
            is_anothers: false,
            changing: Mutex::default(),
            _charge: Some(charge),
        });
        Ok(made)
    }

    /// Returns the kernel's map, for a map that exists there only. Its face is of another type.
    ///
    /// # Errors
    ///
    /// Those of `fcntl(2)`, by which the descriptor is duplicated.
    pub fn kernels_own(&self) -> io::Result<Option<OwnedFd>> {
        if self.map.spec().map_type == self.spec.map_type {
            return Ok(None);
        }
        let copy = |map: &kernel::Map| map.as_fd().try_clone_to_owned();
        self.in_twin(copy).transpose()
    }
}

/// Returns the bytes that a map takes in the kernel when it is full, about.
fn bytes_of(spec: &MapSpec) -> u64 {
    const ITSELF: u64 = 8 << 10;
    const OF_ELEMENT: u64 = 64;
    let element = match spec.map_type {
        MapType::ARENA => beeline_maps::PAGE,
        _ => OF_ELEMENT + u64::from(spec.key_size) + u64::from(spec.value_size),
    };
    ITSELF + element.saturating_mul(spec.max_entries.into())
}
