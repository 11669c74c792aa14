//! The processor flags that a hook has to keep.

/// The part of the flags register that is still wanted behind a site.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flags {
    /// Nothing: all flags are written before they are read, or the calling convention says so.
    Dead,
    /// The arithmetic flags: carry, parity, adjust, zero, sign, overflow. The direction flag is
    /// clear.
    Arithmetic,
    /// The arithmetic flags, and the direction flag may be set.
    All,
}

impl Flags {
    /// True if there is anything to keep.
    pub fn live(self) -> bool {
        self != Self::Dead
    }
}
