//! The memory of retired domains: what they have left for the tool goes into one shard that no
//! process has.

use beeline_maps::Map;
use beeline_uapi::{Errno, flags};

use super::sums::Addends;
use super::{View, each_element};
use crate::map::MapObject;

/// Adds the elements of a shard to those of another.
///
/// # Errors
///
/// The first by which an element was lost, such as `E2BIG` if there is no room. The others are
/// taken over nevertheless.
pub(super) fn take_over(view: &View, from: &Map, to: &Map) -> Result<(), Errno> {
    let caller = MapObject::caller();
    // No process has it any more.
    let _ = from.release(&|_| true, &caller);
    let mut before = vec![0; to.value_len()];
    let mut outcome = Ok(());
    let each = each_element(from, |key, value| {
        let known = to.lookup_copy(key, &mut before, 0, &caller);
        let done = match (known, view) {
            (Ok(()), View::Sums { halves }) => {
                Addends::new(to, halves).add(&mut before, value);
                to.update_copy(key, &before, flags::ANY, &caller)
            }
            // The process of that id which had it first is gone for longer.
            _ => to.update_copy(key, value, flags::ANY, &caller),
        };
        outcome = outcome.and(done);
        Ok(())
    });
    outcome.and(each)
}
