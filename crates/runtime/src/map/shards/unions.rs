//! Maps with keys that belong to one process each, and so to its domain.

use std::collections::BTreeMap;
use std::sync::Arc;

use beeline_maps::Map;
use beeline_uapi::{Errno, flags};

use crate::domain::{Credentials, Domain};
use crate::map::MapObject;

/// Hands the elements in the first shard that belong to processes of a domain over to its shard:
/// the tool has made them before there was that shard.
///
/// # Errors
///
/// `EBUSY` if a lock does not become free, `E2BIG` if there is no room.
pub(super) fn hand_over(from: &Map, to: &Map, id: u32, domain: &Arc<Domain>) -> Result<(), Errno> {
    let caller = MapObject::caller();
    let mut known = BTreeMap::new();
    let mut is_of_domain = |key: &[u8]| {
        let Some(pid) = process_of(key, id) else {
            return false;
        };
        let credentials = |pid| Credentials::of(pid).is_some_and(|own| domain.is_of(&own));
        *known.entry(pid).or_insert_with_key(|pid| credentials(*pid))
    };
    let mut copied = Vec::new();
    super::each_element(from, |key, value| {
        if is_of_domain(key) {
            to.update_copy(key, value, flags::ANY, &caller)?;
            copied.push(key.to_vec());
        }
        Ok(())
    })?;
    // One that cannot be deleted is hidden by its copy.
    for key in copied {
        let _ = from.delete_key(&key, &caller);
    }
    Ok(())
}

/// Returns the thread or process that a key belongs to.
pub(super) fn process_of(key: &[u8], id: u32) -> Option<i32> {
    let bytes = key.get(id as usize..)?.first_chunk()?;
    Some(i32::from_ne_bytes(*bytes))
}
