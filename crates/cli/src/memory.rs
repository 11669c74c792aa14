//! The limit of the memory that a tool's objects may take.

use beeline_runtime::Runtime;
use clap::Args;
use rustix::process::{Resource, getrlimit};

/// Options for a session's memory.
#[derive(Debug, Args)]
#[group(id = "memory-options")]
pub struct Options {
    /// The most memory that the tool's maps, programs and other objects may take, such as 512M or
    /// 2G; beyond that its calls fail with ENOMEM [default: half of the memory that Beeline may
    /// take]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    memory_limit: Option<u64>,
}

impl Options {
    /// Sets the limit for the session.
    pub fn apply(&self, runtime: &Runtime) {
        if let Some(limit) = self.memory_limit {
            runtime.limit_memory(limit);
        }
    }
}

/// Makes all threads allocate from one arena if address space is limited (`ulimit -v`).
///
/// Each further arena reserves 64 MiB, most of which is never used.
pub fn reserve_little() {
    if getrlimit(Resource::As).current.is_some() {
        // SAFETY: this is a setting of the allocator's, and there are no other threads yet.
        unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
    }
}

/// Parses bytes; one of the letters K, M, G and T behind them multiplies by 1024, and so on.
fn size(text: &str) -> Result<u64, String> {
    let unit = |letter: char| {
        "KMGT"
            .find(letter.to_ascii_uppercase())
            .map(|at| 10 * (at + 1))
    };
    let shift = text.chars().next_back().and_then(unit);
    let digits = &text[..text.len() - usize::from(shift.is_some())];
    let number: Option<u64> = digits.parse().ok();
    let bytes = number.and_then(|number| number.checked_mul(1 << shift.unwrap_or(0)));
    bytes
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| "a size is a number of bytes, or one with K, M, G or T behind it".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_their_units() {
        let read = [
            ("4096", 4096),
            ("512M", 512 << 20),
            ("2g", 2 << 30),
            ("1T", 1 << 40),
            ("3k", 3072),
        ];
        for (text, bytes) in read {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in [
            "",
            "0",
            "M",
            "-1M",
            "1.5G",
            "1X",
            "1MM",
            "99999999999T",
            "\u{e9}",
        ] {
            assert!(size(text).is_err(), "{text}");
        }
    }
}
