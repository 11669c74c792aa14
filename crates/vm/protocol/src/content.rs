//! Large contents that stay the same for long: a host that has one from an earlier time says so by its sum, and it is not sent again.

use sha2::{Digest, Sha256};

/// A sum: contents that differ have different ones.
pub type Sum = [u8; 32];

/// What is shorter is sent each time: that takes no longer than to add it up.
pub const WORTHWHILE: usize = 64 << 10;

/// The SHA-256 of a content.
pub fn sum(content: &[u8]) -> Sum {
    Sha256::digest(content).into()
}

/// Is the file one of those that are large and stay the same for long? `path` is absolute and plain.
pub fn is_lasting(path: &str) -> bool {
    LASTING.contains(&path)
}

const LASTING: [&str; 3] = [
    "/sys/kernel/btf/vmlinux",
    "/sys/kernel/tracing/available_filter_functions",
    "/sys/kernel/debug/tracing/available_filter_functions",
];
