//! The reason why a request is not carried out.

use beeline_vm_protocol::messages::Refused;

/// An errno, and words for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Linux's, positive.
    pub errno: i32,
    /// Empty where the errno says it all.
    pub why: String,
    /// The policy's rule, by its key; empty if no rule forbids it.
    pub rule: String,
}

impl Refusal {
    /// Creates a refusal for a reason other than the policy.
    pub fn new(errno: i32, why: impl Into<String>) -> Self {
        Self {
            errno,
            why: why.into(),
            rule: String::new(),
        }
    }

    /// Creates a refusal by the guest owner's policy.
    pub fn forbidden(rule: &str, why: impl Into<String>) -> Self {
        Self {
            errno: libc::EPERM,
            why: why.into(),
            rule: rule.to_owned(),
        }
    }
}

impl From<rustix::io::Errno> for Refusal {
    fn from(errno: rustix::io::Errno) -> Self {
        Self::new(errno.raw_os_error(), "")
    }
}

impl From<std::io::Error> for Refusal {
    fn from(error: std::io::Error) -> Self {
        match error.raw_os_error() {
            Some(errno) => Self::new(errno, ""),
            None => Self::new(libc::EIO, error.to_string()),
        }
    }
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        Refused {
            errno: refusal.errno as u32,
            why: refusal.why,
            rule: refusal.rule,
        }
    }
}
