//! The helpers of Linux: numbers, names, and what those of tracing programs take and give.

mod signature;

use beeline_uapi::HelperId;

pub use signature::{Argument, Returned, Signature, signature};

/// The name of a helper without its `bpf_` prefix, or `None` where Linux (as of 6.18) has no such helper.
pub fn name(id: u32) -> Option<&'static str> {
    HelperId(id).name()
}

/// How many of r1 to r5 a helper takes, at least and at most; `None` where [`signature`] does not say.
pub fn arguments(id: u32) -> Option<(u8, u8)> {
    let most = signature(id)?.arguments.len() as u8;
    // The one helper of which not all arguments have to be there.
    let least = match HelperId(id) {
        HelperId::TRACE_PRINTK => 2,
        _ => most,
    };
    Some((least, most))
}

/// Does a helper leave anything in r0?
pub fn returns(id: u32) -> bool {
    !matches!(signature(id), Some(signature) if signature.result == Returned::Nothing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_at_their_numbers() {
        let known = [
            (1, "map_lookup_elem"),
            (14, "get_current_pid_tgid"),
            (131, "ringbuf_reserve"),
            (211, "cgrp_storage_delete"),
        ];
        for (id, expected) in known {
            assert_eq!(name(id), Some(expected));
        }
        assert_eq!((name(0), name(212), name(u32::MAX)), (None, None, None));
    }

    #[test]
    fn arguments_are_counted_by_name() {
        assert_eq!(arguments(14), Some((0, 0)));
        assert_eq!(arguments(113), Some((3, 3)));
        assert_eq!(arguments(6), Some((2, 5)));
        assert_eq!(arguments(0), None);
        let known = (0..256).filter(|&id| arguments(id).is_some()).count();
        assert_eq!(
            known,
            13 + 11 + 17 + 20 + 14 + 7 + 1,
            "every name of the table is a helper's"
        );
    }
}
