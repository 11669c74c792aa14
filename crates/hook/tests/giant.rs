//! A text of hundreds of MB without names is searched in little memory, and its branches into
//! functions are found.

use std::time::{Duration, Instant};

use beeline_hook::{CallSites, Function, LONGEST_FUNCTION};

const START: u64 = 0x40_0000;
const LEN: usize = 240 << 20;
/// A `switch`: `lea rcx, [rip]; movsxd rax, dword ptr [rcx+rax*4]; add rax, rcx; jmp rax`.
const SWITCH: &[u8] = b"\x48\x8d\x0d\0\0\0\0\x48\x63\x04\x81\x48\x01\xc8\xff\xe0";
/// `mov eax, 39; syscall; ret`
const CALL: &[u8] = b"\xb8\x27\0\0\0\x0f\x05\xc3";
const STEP: usize = 64 << 10;
/// The most memory for the search beyond the text itself.
const MEMORY_KB: u64 = 64 << 10;

fn peak_kb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let field = line.and_then(|line| line.split_whitespace().next());
    field.and_then(|field| field.parse().ok()).unwrap()
}

#[test]
fn giant_texts_take_little_memory() {
    const { assert!(LEN > LONGEST_FUNCTION) };
    let mut text = vec![0x90; LEN];
    for at in (0..LEN).step_by(256) {
        text[at..at + SWITCH.len()].copy_from_slice(SWITCH);
    }
    for at in (128..LEN).step_by(STEP) {
        text[at..at + CALL.len()].copy_from_slice(CALL);
    }
    let giant = Function {
        start: START,
        code: &text,
    };
    let before = peak_kb();
    let sites = CallSites::of(&[giant], |_| Some(&text));
    let taken = peak_kb() - before;
    assert!(taken < MEMORY_KB, "{taken} kB");
    assert_eq!(sites.plans.len(), LEN / STEP);
    assert!(sites.is_partial);
}

/// A jump from the giant text to a named function's `syscall` forbids a jump over it and the
/// instruction before.
#[test]
fn branches_out_of_giant_texts_count() {
    let start = START + (LONGEST_FUNCTION as u64) + 0x1000;
    // `endbr64; mov eax, 39; syscall; cmp rax, -4095; ret`
    let code = b"\xf3\x0f\x1e\xfa\xb8\x27\0\0\0\x0f\x05\x48\x3d\x01\xf0\xff\xff\xc3";
    let mut text = vec![0x90; LONGEST_FUNCTION + 1];
    let plans = |text: &[u8]| {
        let functions = [
            Function {
                start: START,
                code: text,
            },
            Function { start, code },
        ];
        let sites = CallSites::of(&functions, |_| None);
        assert_eq!(sites.plans.len() + sites.unhookable.len(), 1);
        sites.plans.first().map(|plan| (plan.form(), plan.number))
    };
    let alone = plans(&text);
    assert!(alone.is_some_and(|(_, number)| number == Some(39)));
    let displacement = (start + 9 - (START + 5)) as i32;
    text[0] = 0xe9;
    text[1..5].copy_from_slice(&displacement.to_le_bytes());
    assert_ne!(plans(&text), alone);
}

/// A search that takes too long gives up, and says so.
#[test]
fn a_text_is_looked_through_until_then() {
    let functions = [Function {
        start: START,
        code: CALL,
    }];
    let now = Instant::now();
    let sites = |until| CallSites::of_until(&functions, |_| None, until).map(|it| it.plans.len());
    assert_eq!(sites(now), None);
    assert_eq!(sites(now + Duration::from_secs(3600)), Some(1));
}
