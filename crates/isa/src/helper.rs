//! Helpers as an engine without types sees them: their arguments and results, in the form that
//! tracing programs call.
//!
//! All of it is derived from the kernel's [prototypes](beeline_uapi::helper::prototype).

mod signature;

use beeline_uapi::HelperId;
use beeline_uapi::helper::{Ret, prototype};

pub use signature::{Argument, Returned, Signature, signature};

/// Returns the number of r1 to r5 that a helper takes, at least and at most; `None` if
/// [`signature`] does not say.
pub fn arguments(id: HelperId) -> Option<(u8, u8)> {
    let most = signature(id)?.arguments().len() as u8;
    let least = match id {
        // Values that the text does not use may be missing.
        HelperId::TRACE_PRINTK => 2,
        _ => most,
    };
    Some((least, most))
}

/// Returns whether a helper leaves anything in r0. An unknown helper is assumed to.
pub fn returns(id: HelperId) -> bool {
    prototype(id).is_none_or(|helper| helper.ret != Ret::Void)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_counted() {
        assert_eq!(arguments(HelperId::GET_CURRENT_PID_TGID), Some((0, 0)));
        assert_eq!(arguments(HelperId::PROBE_READ_KERNEL), Some((3, 3)));
        assert_eq!(arguments(HelperId::TRACE_PRINTK), Some((2, 5)));
        assert_eq!(arguments(HelperId::UNSPEC), None);
        assert_eq!(arguments(HelperId(HelperId::COUNT)), None);
    }

    #[test]
    fn some_helpers_return_nothing() {
        assert!(!returns(HelperId::RINGBUF_SUBMIT));
        assert!(returns(HelperId::RINGBUF_OUTPUT));
        assert!(returns(HelperId(HelperId::COUNT)));
    }
}
