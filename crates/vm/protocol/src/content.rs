//! Large contents that stay the same for long. A host that has one from an earlier time says so by
//! its sum, and it is not sent again.

use sha2::{Digest, Sha256};

/// A sum: contents that differ have different ones.
pub type Sum = [u8; 32];

/// The least size for this. Shorter contents are sent each time: that takes no longer than
/// computing the sum.
pub const WORTHWHILE: usize = 64 << 10;

/// Returns the SHA-256 of a content.
pub fn sum(content: &[u8]) -> Sum {
    Sha256::digest(content).into()
}

/// True if the file is one of those that are large and stay the same for long. `path` is absolute
/// and plain.
pub fn is_lasting(path: &str) -> bool {
    LASTING.contains(&path)
}

const LASTING: [&str; 3] = [
    "/sys/kernel/btf/vmlinux",
    "/sys/kernel/tracing/available_filter_functions",
    "/sys/kernel/debug/tracing/available_filter_functions",
];
