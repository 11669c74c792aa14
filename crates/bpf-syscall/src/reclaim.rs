//! Calls that take memory, of which the tool has a limit.

use beeline_uapi::Errno;

use crate::local::Handler;

impl Handler<'_> {
    /// Makes something that takes memory. If there is none left, it tries once more when all
    /// objects that the tool has closed are gone, as that may otherwise be noticed much later.
    pub(crate) fn with_room<T>(&self, make: impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
        let is_short = |made: &Result<T, Errno>| matches!(made, Err(Errno(libc::ENOMEM)));
        let made = make();
        if !is_short(&made) {
            return made;
        }
        self.let_others_lead();
        self.local.release_closed();
        let made = make();
        if is_short(&made) {
            self.local.backend.out_of_memory();
        }
        made
    }
}
