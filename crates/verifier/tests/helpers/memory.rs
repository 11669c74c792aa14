//! Helpers' accesses to memory that they are given.

use beeline_uapi::flags;
use beeline_verifier::helpers::{Arg, Dynptr, Helper, Ret};

use crate::call::{Call, Given};
use crate::load::{GPL, Loaded, Subject};
use crate::{Differences, forms, is_content, usable};

/// `BPF_F_RDONLY_PROG`.
const READ_ONLY: u32 = flags::RDONLY_PROG;
/// `BPF_F_WRONLY_PROG`.
const WRITE_ONLY: u32 = flags::WRONLY_PROG;

const ANY_DYNPTR: Arg = Arg::Dynptr(Dynptr::Any);

/// Each form of a helper with the positions of its memory arguments.
fn memory_arguments(subjects: &[Subject]) -> Vec<(&Subject, &'static Helper, usize)> {
    let is_memory = |arg: &Arg| {
        matches!(
            arg,
            Arg::Mem { .. } | Arg::Key | Arg::Value | Arg::ValueOrNull | Arg::UninitValue
        )
    };
    let mut all = Vec::new();
    for (subject, found) in forms(subjects) {
        let places = (0..found.args.len()).filter(|&at| is_memory(&found.args[at]));
        all.extend(places.map(|at| (subject, found, at)));
    }
    all
}

/// Gives one argument, with all others valid; memory there is the stack's.
fn given_at(found: &Helper, at: usize, given: Given) -> Vec<Given> {
    let right = |(place, arg): (usize, &Arg)| match arg {
        _ if place == at => given,
        Arg::Mem { .. } => Given::Stack,
        _ => Given::Right,
    };
    found.args.iter().enumerate().map(right).collect()
}

/// Checks that the kernel agrees; takes the words that it has to refuse with, or `None` if it has
/// to accept.
fn agrees(kernel: &Loaded, refusal: Option<&str>) -> bool {
    match refusal {
        None => is_content(kernel, 5),
        Some(refusal) => kernel.log.contains(refusal),
    }
}

fn writes(arg: Arg) -> bool {
    matches!(arg, Arg::UninitValue | Arg::Mem { write: true, .. })
}

#[test]
fn reading_and_writing() {
    let subjects = usable();
    let mut differences = Differences::default();
    let mut tried = 0;
    for (subject, found, at) in memory_arguments(&subjects) {
        // The dynptr is of the same memory.
        if found.args.contains(&ANY_DYNPTR) {
            continue;
        }
        let writes = writes(found.args[at]);
        for (flags, refusal) in [
            (READ_ONLY, writes.then_some("write into map forbidden")),
            (WRITE_ONLY, (!writes).then_some("read from map forbidden")),
        ] {
            let call = Call::with_memory(subject, found, flags).expect("maps");
            let given = given_at(found, at, Given::Value { bytes: 64 });
            let Some(insns) = call.program(&given) else {
                continue;
            };
            let kernel = subject.load(&insns, GPL);
            tried += 1;
            if !agrees(&kernel, refusal) {
                differences.about(subject, found, at, kernel.reason());
            }
        }
    }
    differences.report(tried);
}

#[test]
fn sizes_and_alignment() {
    let subjects = usable();
    let mut differences = Differences::default();
    let mut tried = 0;
    for (subject, found, at) in memory_arguments(&subjects) {
        let Arg::Mem { fixed, aligned, .. } = found.args[at] else {
            continue;
        };
        let bytes = fixed.unwrap_or(8);
        let odd = bytes + bytes / 2;
        let call = Call::new(subject, found).expect("maps");
        for (bytes, refusal) in [
            (bytes, None),
            (bytes - 1, Some("invalid access to map value")),
            (odd, aligned.then_some("misaligned value access")),
        ] {
            let Some(insns) = call.program(&given_at(found, at, Given::Value { bytes })) else {
                continue;
            };
            let kernel = subject.load(&insns, GPL);
            tried += 1;
            if !agrees(&kernel, refusal) {
                differences.about(
                    subject,
                    found,
                    at,
                    &format!("{bytes} bytes: {}", kernel.reason()),
                );
            }
        }
    }
    differences.report(tried);
}

#[test]
fn packets_as_arguments_get_the_kernels_verdicts() {
    let subjects = usable();
    let mut differences = Differences::default();
    let mut tried = 0;
    for (subject, found, at) in memory_arguments(&subjects) {
        let call = Call::new(subject, found).expect("maps");
        let Some(insns) = call.program(&given_at(found, at, Given::Packet)) else {
            continue;
        };
        let kernel = subject.load(&insns, GPL);
        tried += 1;
        let forbidden = "helper access to the packet is not allowed";
        if !agrees(&kernel, (!found.packet_access).then_some(forbidden)) {
            differences.about(subject, found, at, kernel.reason());
        }
    }
    for (subject, found) in forms(&subjects) {
        let call = Call::new(subject, found).expect("maps");
        let Some(insns) = call.packet_program(&vec![Given::Right; found.args.len()]) else {
            continue;
        };
        let kernel = subject.load(&insns, GPL);
        tried += 1;
        // A tail call that returns did nothing.
        let is_gone = found.changes_packet && found.ret != Ret::Void;
        let gone = "R1 invalid mem access 'scalar'";
        if !agrees(&kernel, is_gone.then_some(gone)) {
            differences.about(
                subject,
                found,
                0,
                &format!("changes packets? {}", kernel.reason()),
            );
        }
    }
    differences.report(tried);
}

/// A process that may not look at memory (without `CAP_PERFMON`) may not hand out unwritten memory
/// either.
#[test]
fn unwritten_memory_as_an_argument_gets_the_kernels_verdict() {
    let subjects = usable();
    let mut differences = Differences::default();
    let mut tried = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            if !crate::load::give_up_perfmon() {
                eprintln!("skipped: this process cannot give up its capabilities");
                return;
            }
            for (subject, found, at) in memory_arguments(&subjects) {
                let Arg::Mem { uninit, .. } = found.args[at] else {
                    continue;
                };
                // No task, and no dynptr, without the helpers that give them.
                let is_made = |arg: &Arg| matches!(*arg, Arg::Btf { .. } | ANY_DYNPTR);
                if found.args.iter().any(is_made) {
                    continue;
                }
                let call = Call::new(subject, found).expect("maps");
                let given = given_at(found, at, Given::Unwritten);
                let Some(insns) = call.simple_program(&given) else {
                    continue;
                };
                let kernel = subject.load(&insns, GPL);
                if kernel.log.contains("cannot use helper") || kernel.log.is_empty() {
                    continue;
                }
                tried += 1;
                if !agrees(&kernel, (!uninit).then_some("read from stack")) {
                    differences.about(subject, found, at, kernel.reason());
                }
            }
        });
    });
    differences.report(tried);
}
