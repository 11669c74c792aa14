//! The bytes that are written over a site.

use std::ops::RangeInclusive;

use thiserror::Error;

use crate::arch::{self, BREAKPOINT, JUMP_LEN, JUMP_REACH, JUMP_REACH_IN_WORDS};

/// The reach of a jump, less room for the longest trampoline.
const REACH: u64 = JUMP_REACH - SLACK;

/// An upper bound for the size of a trampoline: all of it reaches what its start reaches.
const SLACK: u64 = 64 << 10;

/// A branch or an operand does not reach its target.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "{target:#x} is more than {JUMP_REACH_IN_WORDS} from {from:#x}: place the trampoline nearer, or use a breakpoint"
)]
pub struct ReachError {
    /// The instruction, or the address behind it.
    pub from: u64,
    /// The address that it should reach.
    pub target: u64,
}

/// Returns a jump to `target` that fills the `window_len` bytes at `site`. The bytes left over are
/// breakpoints, which no thread reaches as long as none was inside the window when it was patched.
///
/// The window of a [`Kind::Jump`](crate::Kind::Jump) has room for the jump.
///
/// # Errors
///
/// [`ReachError`] if `target` is out of a jump's reach, or the window is shorter than a jump.
pub fn jump_patch(site: u64, window_len: usize, target: u64) -> Result<Vec<u8>, ReachError> {
    let Some(rest) = window_len.checked_sub(JUMP_LEN) else {
        return Err(ReachError { from: site, target });
    };
    let mut bytes = arch::jump(site, target)?.to_vec();
    bytes.extend(BREAKPOINT.iter().cycle().take(rest));
    Ok(bytes)
}

/// Returns where a trampoline may start to be reached from `site` and to reach back: a jump's reach
/// to both sides, less some room. [`Plan::reach`](crate::Plan::reach) also takes into account what
/// the displaced instructions address.
pub fn reach(site: u64) -> RangeInclusive<u64> {
    site.saturating_sub(REACH)..=site.saturating_add(REACH)
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use crate::arch::INT3;

    #[test]
    fn jump_patch_fills_the_window() {
        assert_eq!(
            jump_patch(0x1000, 5, 0x2000),
            Ok(vec![0xe9, 0xfb, 0x0f, 0, 0])
        );
        assert_eq!(
            jump_patch(0x2000, 7, 0x1000),
            Ok(vec![0xe9, 0xfb, 0xef, 0xff, 0xff, INT3, INT3])
        );
        assert!(jump_patch(0x1000, 4, 0x2000).is_err());
    }

    #[test]
    fn jump_patch_names_what_is_out_of_reach() {
        let error = jump_patch(0x1000, 5, 0x1_0000_0000).unwrap_err();
        assert_eq!(
            error.to_string(),
            "0x100000000 is more than 2 GiB from 0x1005: place the trampoline nearer, or use a breakpoint"
        );
    }

    #[test]
    fn both_ends_of_the_reach_are_reached() {
        let site = 0x7f00_1234_5678;
        let (low, high) = reach(site).into_inner();
        for start in [low, high] {
            assert!(jump_patch(site, 5, start).is_ok());
            assert!(jump_patch(start + SLACK - 5, 5, site + 15).is_ok());
        }
    }
}
