//! The second mappings by which a session sees kernel uprobes; see [`Witness`].

use std::sync::atomic::Ordering::Relaxed;

use beeline_agent::abi::{Manifest, Witness};
use beeline_inject::{Process, Region};

use super::sites::goes_on;
use super::{MAX_SITES, read};
use crate::memory::PAGE;

/// Follows the list of witnesses, as far as it makes sense. It leaves out those that the process
/// has unmapped, or has put something else over.
pub(super) fn witnesses(
    process: &Process,
    manifest: &Manifest,
    mappings: &[Region],
    regions: &[Region],
) -> Vec<Region> {
    let mut found = Vec::new();
    let mut next = manifest.first_witness.load(Relaxed) as u64;
    let is_ours = |place: u64| mappings.iter().any(|mapping| mapping.contains(place));
    for _ in 0..MAX_SITES {
        if !is_ours(next) {
            break;
        }
        // SAFETY: the type consists of integers, for which any bytes are valid.
        let Ok(witness) = (unsafe { read::<Witness>(process, next) }) else {
            break;
        };
        found.extend(still_there(&witness, regions));
        if !goes_on::<Witness>(next, witness.next) {
            break;
        }
        next = witness.next as u64;
    }
    found
}

/// Returns the memory of a witness, if it is still mapped: the same pages of the same file, private
/// and read-only. The kernel may have merged it with its neighbours.
pub(crate) fn still_there(witness: &Witness, regions: &[Region]) -> Option<Region> {
    let (start, len) = (witness.address.load(Relaxed) as u64, witness.len as u64);
    let end = start.checked_add(len)?;
    if start == 0 || len == 0 || !len.is_multiple_of(PAGE as u64) {
        return None;
    }
    let region = regions.iter().find(|region| region.contains(start))?;
    let may = region.permissions;
    let is_it = end <= region.end
        && (region.device, region.inode) == (witness.device, witness.inode)
        && region.offset.checked_add(start - region.start) == Some(witness.offset)
        && may.read
        && !(may.write || may.execute || may.shared);
    is_it.then(|| Region {
        start,
        end,
        offset: witness.offset,
        ..region.clone()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use beeline_inject::Permissions;

    fn witness() -> Witness {
        Witness {
            address: std::sync::atomic::AtomicUsize::new(0x7000_2000),
            len: 0x1000,
            offset: 0x5000,
            device: 8,
            inode: 9,
            next: 0,
        }
    }

    fn region() -> Region {
        Region {
            start: 0x7000_1000,
            end: 0x7000_4000,
            permissions: Permissions {
                read: true,
                ..Permissions::default()
            },
            offset: 0x4000,
            device: 8,
            inode: 9,
            path: "/lib/file".into(),
        }
    }

    #[test]
    fn a_witness_is_known_within_a_greater_mapping() {
        let found = still_there(&witness(), &[region()]).unwrap();
        assert_eq!((found.start, found.end), (0x7000_2000, 0x7000_3000));
        assert_eq!(found.offset, 0x5000);
    }

    #[test]
    fn foreign_mappings_are_left_alone() {
        let changes: [fn(&mut Region); 7] = [
            |region| region.offset = 0x5000,
            |region| region.inode = 10,
            |region| region.device = 9,
            |region| region.permissions.write = true,
            |region| region.permissions.shared = true,
            |region| region.permissions.read = false,
            |region| region.end = 0x7000_2800,
        ];
        for change in changes {
            let mut region = region();
            change(&mut region);
            assert_eq!(
                still_there(&witness(), &[region.clone()]),
                None,
                "{region:?}"
            );
        }
        assert_eq!(still_there(&witness(), &[]), None);
    }
}
