//! Reads the type information that a tool gives for a map's value: its size, and the places of the
//! fields that belong to the kernel.

use beeline_runtime::backend::SpecialFields;
use beeline_runtime::btf::{Btf, Type, kind};
use beeline_uapi::limits::MAX_RESOLVE_DEPTH;
use beeline_uapi::object::SpecialField;
use beeline_uapi::{Errno, MapType};

use crate::syscalls::attr::MapCreate;

/// The number of members that are looked at: structures may hold each other many times over.
const MOST_MEMBERS: u32 = 100_000;

/// Checks the types of key and value as the kernel does, and finds a lock and a timer in the value.
pub(crate) fn check(data: &[u8], wanted: &MapCreate) -> Result<SpecialFields, Errno> {
    if wanted.btf_value_type == 0 {
        return Ok(SpecialFields::default());
    }
    let btf = Btf::parse(data).ok_or(Errno::EINVAL)?;
    let is_array = wanted.map_type == MapType::ARRAY;
    let by_number = is_array || wanted.map_type == MapType::TASK_STORAGE;
    let (_, value) = btf.resolve(wanted.btf_value_type).ok_or(Errno::EINVAL)?;
    let is_int = |id| btf.resolve(id).is_some_and(|(_, it)| it.kind == kind::INT);
    if wanted.btf_key_type == 0 {
        // Only the sections of global variables have no type for the key.
        if !is_array || wanted.max_entries != 1 || value.kind != kind::DATASEC {
            return Err(Errno::EINVAL);
        }
    } else if btf.size(wanted.btf_key_type) != Some(wanted.key_size)
        || by_number && !is_int(wanted.btf_key_type)
    {
        return Err(Errno::EINVAL);
    }
    if btf.size(wanted.btf_value_type) != Some(wanted.value_size) {
        return Err(Errno::EINVAL);
    }
    let mut search = Search {
        btf: &btf,
        found: SpecialFields::default(),
        members: MOST_MEMBERS,
    };
    // A value with errors in these fields counts as one without them: its map is made, and no
    // program may lock it.
    let found = search.within(value, 0, MAX_RESOLVE_DEPTH);
    Ok(found.map_or_else(SpecialFields::default, |()| search.found))
}

struct Search<'a> {
    btf: &'a Btf<'a>,
    found: SpecialFields,
    members: u32,
}

impl<'a> Search<'a> {
    /// Searches a structure, or a section of variables, that begins at an offset of the value.
    /// Returns `None` for impossible fields.
    fn within(&mut self, of: Type<'a>, start: u32, depth: u32) -> Option<()> {
        let depth = depth.checked_sub(1)?;
        let btf = self.btf;
        let (mut locks, mut timers) = (0, 0);
        for member in btf.members(of) {
            self.members = self.members.checked_sub(1)?;
            let offset = start.checked_add(member.offset)?;
            let mut count = 1u32;
            let mut it = btf.get(member.type_id)?;
            if it.kind == kind::VAR {
                it = btf.get(it.refers_to())?;
            }
            while let Some((element, elements)) = it.array() {
                self.members = self.members.checked_sub(1)?;
                count = count.checked_mul(elements)?;
                it = btf.get(element)?;
            }
            if it.kind != kind::STRUCT || count == 0 {
                continue;
            }
            let (place, seen) = match SpecialField::named(it.name) {
                Some(SpecialField::SpinLock) => (&mut self.found.spin_lock, &mut locks),
                Some(SpecialField::Timer) => (&mut self.found.timer, &mut timers),
                _ => {
                    self.within(it, offset, depth)?;
                    continue;
                }
            };
            *seen += count;
            // The kernel looks for a second one in the same structure only.
            if *seen > 1 {
                return None;
            }
            *place = Some(offset);
        }
        Some(())
    }
}
