//! Many functions that make system calls are searched in bounded memory.

use beeline_hook::{CallSites, Function};

const START: u64 = 0x40_0000;
/// `mov eax, 39; syscall; ret`
const CALL: &[u8] = b"\xb8\x27\0\0\0\x0f\x05\xc3";
/// The most memory for the search beyond the text itself.
const MEMORY_KB: u64 = 512 << 10;

fn peak_kb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let field = line.and_then(|line| line.split_whitespace().next());
    field.and_then(|field| field.parse().ok()).unwrap()
}

/// Functions that make calls are decoded as far as memory allows; others are unnamed code.
#[test]
fn functions_without_end_take_little_memory() {
    const EACH: usize = 1 << 20;
    let mut function = vec![0x90; EACH];
    function[..CALL.len()].copy_from_slice(CALL);
    let functions: Vec<_> = (0..100)
        .map(|number| Function {
            start: START + number * EACH as u64,
            code: &function,
        })
        .collect();
    let before = peak_kb();
    let sites = CallSites::of(&functions, |_| None);
    let taken = peak_kb() - before;
    assert!(taken < MEMORY_KB, "{taken} kB");
    assert_eq!(sites.plans.len(), functions.len());
    assert!(sites.is_partial);
}
