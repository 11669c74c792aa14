//! `/proc/kallsyms` for users to whom the kernel does not show addresses.
//!
//! Tools look there for the names of functions, and ignore a function without an address. Functions
//! that can be probed here get numbers of our own in place of addresses.

use std::fmt::Write;
use std::fs::File;
use std::io::{BufRead, BufReader};

use crate::functions;
use crate::syscall_table::SystemCall;

const PATH: &str = "/proc/kallsyms";
/// The kernel's replacement for an address.
const HIDDEN: &str = "0000000000000000 ";
/// The lowest number, in the kernel's part of the address space.
const FIRST: u64 = 0xffff_ffff_8000_0000;
/// The bytes between two functions, as compilers align them.
const ALIGNED: u64 = 16;

/// Returns the text that the tool reads, if the path is this file and the kernel hides its
/// addresses.
pub(super) fn kallsyms(path: &[u8]) -> Option<String> {
    if path != PATH.as_bytes() {
        return None;
    }
    let mut lines = BufReader::new(File::open(PATH).ok()?).lines();
    let first = lines.next()?.ok()?;
    if !first.starts_with(HIDDEN) {
        return None;
    }
    let rest = lines.map_while(Result::ok);
    Some(with_numbers(std::iter::once(first).chain(rest)))
}

fn with_numbers(lines: impl Iterator<Item = String>) -> String {
    let mut text = String::new();
    let mut numbers = (FIRST..).step_by(ALIGNED as usize);
    for line in lines {
        let symbol = line.strip_prefix(HIDDEN).filter(|symbol| is_served(symbol));
        // Writing to a string does not fail.
        let _ = match symbol.and_then(|symbol| Some((symbol, numbers.next()?))) {
            Some((symbol, number)) => writeln!(text, "{number:016x} {symbol}"),
            None => writeln!(text, "{line}"),
        };
    }
    text
}

/// Returns whether a symbol, given by kind and name, is a function that can be probed.
fn is_served(symbol: &str) -> bool {
    let function = symbol.split_once(' ').map(|(_, name)| name);
    function.is_some_and(|name| {
        SystemCall::of_function(name).is_some()
            || SystemCall::is_never_called(name)
            || functions::is_served(name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_that_can_be_probed_have_numbers() {
        let hidden = [
            "0000000000000000 T _text",
            "0000000000000000 T __x64_sys_openat",
            "0000000000000000 T __x64_sys_stat",
            "0000000000000000 t do_filp_open",
            "0000000000000000 t in_a_module\t[module]",
        ];
        let shown = with_numbers(hidden.into_iter().map(String::from));
        let numbered: Vec<_> = shown
            .lines()
            .filter(|line| !line.starts_with(HIDDEN))
            .collect();
        let [openat, stat] = numbered[..] else {
            panic!("{shown}");
        };
        assert!(openat.starts_with("ffffffff8") && openat.ends_with(" T __x64_sys_openat"));
        assert!(stat.starts_with("ffffffff8") && stat.ends_with(" T __x64_sys_stat"));
        assert_ne!(openat.get(..16), stat.get(..16));
        assert_eq!(shown.lines().count(), hidden.len());
        assert_eq!(kallsyms(b"/proc/kallsyms2"), None);
    }
}
