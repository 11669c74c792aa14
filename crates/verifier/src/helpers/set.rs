//! Sets of helpers.

use beeline_uapi::HelperId;
use beeline_uapi::helper::Helper;

/// Some helpers, by number.
pub(super) struct Set([Option<&'static Helper>; HelperId::COUNT as usize]);

impl Set {
    /// Creates a set of these helpers; no two have the same number.
    pub(super) const fn new(helpers: &[&'static Helper]) -> Self {
        let mut by_id = [None; HelperId::COUNT as usize];
        let mut at = 0;
        while at < helpers.len() {
            let place = &mut by_id[helpers[at].id.0 as usize];
            assert!(place.is_none(), "two helpers with one number");
            *place = Some(helpers[at]);
            at += 1;
        }
        Self(by_id)
    }

    /// Returns all helpers but one.
    pub(super) const fn without(&self, helper: &Helper) -> Self {
        let mut by_id = self.0;
        by_id[helper.id.0 as usize] = None;
        Self(by_id)
    }

    pub(super) fn get(&self, id: HelperId) -> Option<&'static Helper> {
        self.0.get(id.0 as usize).copied().flatten()
    }
}
