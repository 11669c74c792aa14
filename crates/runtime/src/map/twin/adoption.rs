//! Maps in the kernel that were there before: others have made them, and go on using them.

use std::os::fd::{AsFd, OwnedFd};

use beeline_kernel as kernel;
use beeline_maps::{Fields, Kind, Layout, Map, PAGE, Spec};
use beeline_uapi::{Errno, flags};
use parking_lot::Mutex;

use super::super::shards::Shard;
use super::super::{MapObject, bytes_of, out_of_memory};
use super::creation::{TOOLS, has_values, kernel_spec};
use super::{Twin, View, errno};
use crate::backend::{Id, MapSpec};
use crate::budget::Budget;
use crate::liveness::SessionId;
use crate::memory::Memory;

/// The reason for which programs in processes cannot use such a map.
pub(super) const NOT_HERE: &str = "it is another's map in the kernel, of which programs in \
                                   processes use hashes, and arrays that can be mapped to write";

impl MapObject {
    /// Takes a map of the kernel's that others have made. All of it stays where it is: programs in
    /// processes map its pages or ask for each operation, and the tool's operations are `bpf(2)`.
    /// Programs only read it if `spec` has `BPF_F_RDONLY_PROG`, which is for the caller to add where
    /// `file` does not allow more.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` for a type whose elements are more than bytes, or values for another number of CPUs
    /// than Beeline's; those of [`Layout::new`] and
    /// [`Memory::new`], `ENOMEM` if the budget has no room for it, and those of mmap(2).
    pub fn of_kernel(
        id: Id,
        spec: &MapSpec,
        cpus: u32,
        budget: &Budget,
        file: OwnedFd,
    ) -> Result<Self, Errno> {
        let plain = spec.plain();
        let is_queue = |kind| matches!(kind, Kind::Queue | Kind::Stack);
        let suits = |kind| has_values(kind) || is_queue(kind);
        if !plain.kind().is_some_and(suits) {
            return Err(Errno::EOPNOTSUPP);
        }
        let twin = errno(kernel::Map::of(file, &kernel_spec(spec, spec.flags)))?;
        // The kernel maps no array by a descriptor that is only to be read.
        let has = |flag| spec.flags & flag != 0;
        if plain.kind() == Some(Kind::Array) && has(flags::MMAPABLE) && !has(flags::RDONLY_PROG) {
            return Self::over_kernels_pages(id, spec, cpus, budget, (twin, true));
        }
        // Nothing is ever stored here.
        let empty = Spec {
            max_entries: 1,
            flags: plain.flags & !TOOLS,
            ..plain
        };
        Layout::new(&empty, cpus)?;
        let first = Shard::new(
            &spec.name,
            &empty,
            Fields::new(&empty, None, None)?,
            cpus,
            budget,
        )?;
        let map = Self::with_first(id, spec, first, None, budget)?;
        if twin.value_len() != map.map.value_len() {
            return Err(Errno::EOPNOTSUPP);
        }
        map.sides.write().twin = Some(Twin {
            map: twin,
            view: View::Kernels,
            is_anothers: true,
            changing: Mutex::default(),
            _charge: None,
        });
        Ok(map)
    }

    /// Makes the pages of a kernel's array the map's memory. `twin` says if the array is another's.
    ///
    /// # Errors
    ///
    /// Those of [`MapObject::on_both_sides`].
    pub(super) fn over_kernels_pages(
        id: Id,
        spec: &MapSpec,
        cpus: u32,
        budget: &Budget,
        (twin, is_anothers): (kernel::Map, bool),
    ) -> Result<Self, Errno> {
        let plain = spec.plain();
        let layout = Layout::new(&plain, cpus)?;
        if plain.kind() != Some(Kind::Array) {
            return Err(Errno::EINVAL);
        }
        let charge = budget.charge(bytes_of(&layout, plain.kind()))?;
        let name = SessionId::own().name(&format!("map-{}", spec.name));
        let face = Memory::new(&name, (layout.len + PAGE) as usize).map_err(out_of_memory)?;
        face.seal_size().map_err(out_of_memory)?;
        let file = twin.as_fd().try_clone_to_owned().map_err(out_of_memory)?;
        let pages = Memory::over(file, layout.len as usize).map_err(out_of_memory)?;
        // SAFETY: the kernel lays an array out as Beeline does, one value of whole words behind the
        // other, and the mapping lives as long as the map that owns its twin.
        let map = unsafe { Map::attach(&plain, cpus, pages.base()) }?;
        let first = Shard {
            memory: face,
            map,
            charge,
        };
        let map = Self::with_first(id, spec, first, None, budget)?;
        map.sides.write().twin = Some(Twin {
            map: twin,
            view: View::Shared(pages),
            is_anothers,
            changing: Mutex::default(),
            _charge: None,
        });
        Ok(map)
    }
}
