//! Objects that elements of maps name: inner maps, programs to tail-call, cgroups.
//!
//! Shared memory holds only an object's id. The object's address in this target is in the target's
//! own [`ObjectTable`], which only Beeline writes, under the id *and* the map that it is an element
//! of. So a process that scribbles into shared memory can at worst exchange elements of one map,
//! which are alike to the programs that use them.

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use crate::abi::{MapHandle, ObjectEntry, ObjectTable, Target};

/// Returns the name of an object that is an element of a map, given the ids of both in the session.
/// 0 is none.
pub fn name(map: u32, object: u32) -> u64 {
    u64::from(map) << 32 | u64::from(object)
}

/// Returns where the search for a name begins in a table of `mask + 1` entries.
pub fn home(name: u64, mask: usize) -> usize {
    (name.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & mask
}

/// Returns the [`ObjectEntry::value`] here of the element of `map` at `key`. 0 if it is empty or
/// not there, or holds nothing that the tool has put into this map.
///
/// # Safety
///
/// `key` must be readable for the map's key size.
pub unsafe fn find(target: &Target, map: &MapHandle, key: *const u8) -> usize {
    // SAFETY: the caller promises that the key is readable for the map's key size.
    let Some(object) = (unsafe { map.map.object(key) }) else {
        return 0;
    };
    let table = target.objects.load(Acquire) as *const ObjectTable;
    // SAFETY: the pointer is null, or a table that is published whole and stays as long as the
    // target's pool.
    let Some(mask) = (unsafe { table.as_ref() }).map(|table| table.mask) else {
        return 0;
    };
    // SAFETY: `mask + 1` entries follow the head.
    let entries = unsafe { table.add(1) }.cast::<ObjectEntry>();
    let wanted = name(map.id, object);
    let mut place = home(wanted, mask);
    for _ in 0..=mask {
        // SAFETY: `place` is at most `mask`.
        let entry = unsafe { &*entries.add(place) };
        match entry.name.load(Acquire) {
            0 => return 0,
            found if found == wanted => return entry.value.load(Relaxed),
            _ => place = place.wrapping_add(1) & mask,
        }
    }
    0
}

#[cfg(test)]
mod tests {
    extern crate std;

    use beeline_uapi::MapType;
    use std::boxed::Box;
    use std::mem::MaybeUninit;

    use beeline_maps::{Map, PAGE, Spec};

    use super::*;

    const ENTRIES: usize = 8;
    const MAP: u32 = 7;

    #[repr(C)]
    struct Table {
        head: ObjectTable,
        entries: [ObjectEntry; ENTRIES],
    }

    #[repr(C, align(4096))]
    struct Page([u32; PAGE as usize / 4]);

    fn table(names: [u64; ENTRIES]) -> Table {
        Table {
            head: ObjectTable { mask: ENTRIES - 1 },
            entries: names.map(|name| ObjectEntry {
                name: name.into(),
                value: (name as usize).wrapping_add(1000).into(),
            }),
        }
    }

    /// Returns the result of `find` for one element with the content `object`.
    fn found(table: &Table, object: u32) -> usize {
        let mut page = Box::new(Page([0; PAGE as usize / 4]));
        page.0[0] = object;
        let spec = Spec {
            map_type: MapType::ARRAY_OF_MAPS,
            key_size: 4,
            value_size: 4,
            max_entries: 1,
            flags: 0,
            map_extra: 0,
        };
        // SAFETY: an array of one element fits a page, which outlives the handle.
        let map = unsafe { Map::attach(&spec, 1, (&raw mut *page).cast()) };
        let handle = MapHandle {
            map: map.expect("a good spec"),
            rings: core::ptr::null(),
            id: MAP,
        };
        let mut target: Box<MaybeUninit<Target>> = Box::new(MaybeUninit::zeroed());
        // SAFETY: the structure consists of pointers and integers, which may all be zero.
        let target = unsafe { target.assume_init_mut() };
        *target.objects.get_mut() = std::ptr::from_ref(table) as usize;
        let key = 0u32;
        // SAFETY: a key has 4 bytes.
        unsafe { find(target, &handle, (&raw const key).cast()) }
    }

    #[test]
    fn only_what_is_in_this_map_is_found_and_every_search_ends() {
        let ours = |object| name(MAP, object);
        // Every place is taken, so only the number of entries ends a search.
        let full = table([1, 2, 3, 4, 5, 6, 7, 8].map(ours));
        for object in 1..=8 {
            assert_eq!(found(&full, object), ours(object) as usize + 1000);
        }
        for stray in [0, 9, 1 << 31, u32::MAX] {
            assert_eq!(found(&full, stray), 0, "{stray}");
        }
        let of_another = table([1, 2, 3, 4, 5, 6, 7, 8].map(|object| name(MAP + 1, object)));
        for object in 0..=9 {
            assert_eq!(found(&of_another, object), 0, "{object}");
        }
        assert_eq!(found(&table([0; ENTRIES]), 1), 0);
    }
}
