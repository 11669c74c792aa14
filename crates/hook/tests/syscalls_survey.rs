//! Every `syscall` instruction of real programs and libraries is hooked, or is one of those that
//! must not be; and the instructions displaced for it mean the same in the stub.

mod support;

use std::path::Path;
use std::time::Instant;

use beeline_hook::{
    CallForm, CallPlan, CallSites, CallSpec, CommonCode, Function, Unhookable, UnhookableCall,
};
use iced_x86::{Decoder, DecoderOptions};

use support::elf::Library;
use support::same;

/// The assumed addresses of files, and the distance from there to stubs.
const BASE: u64 = 0x7f12_3450_0000;
const DISTANCE: u64 = 0x2345_6780;

const SPEC: CallSpec = CallSpec {
    enter: 0x7f00_0000_0000,
    exit: 0x7f00_0000_1000,
    compact_enter: 0x7f00_0000_0000,
    compact_exit: 0x7f00_0000_1000,
    watched: 0x7f00_0000_2000,
};

/// Returns the sites of a file; `None`, with a message, if it is not there. Prints a line of a
/// table.
fn survey(path: &str) -> Option<(Library, CallSites)> {
    let Some(library) = Library::read(Path::new(path)) else {
        eprintln!("skipped: {path} is not there");
        return None;
    };
    let functions: Vec<_> = library
        .bodies()
        .map(|(start, code)| Function { start, code })
        .collect();
    let start = Instant::now();
    let sites = CallSites::of(&functions, |address| library.data(address));
    let found = start.elapsed();
    let start = Instant::now();
    let len = emit_all(&sites.plans, |_, _| {});
    let emitted = start.elapsed();
    let count = |form, is_known| {
        let is_such = |plan: &&CallPlan| plan.form() == form && plan.number.is_some() == is_known;
        sites.plans.iter().filter(is_such).count()
    };
    eprintln!(
        "{path}, {} kB, {} functions: {} in place, {} moved, {} moved without a number, {} at callers, \
         {} unhookable; found in {found:?}, {len} bytes written in {emitted:?}",
        library.text.1.len() / 1000,
        functions.len(),
        count(CallForm::InPlace, true),
        count(CallForm::Moved, true),
        count(CallForm::Moved, false),
        count(CallForm::Caller, false),
        sites.unhookable.len(),
    );
    Some((library, sites))
}

/// Writes all stubs for the file at [`BASE`]; returns their length.
fn emit_all(plans: &[CallPlan], look: impl Fn(u64, &beeline_hook::CallStub)) -> usize {
    let start = BASE - DISTANCE;
    let common = CommonCode::emit(start, &SPEC).unwrap();
    let mut at = start + common.bytes.len() as u64;
    for plan in plans {
        let plan = plan.at(BASE);
        assert!(plan.reach().is_some_and(|reach| reach.contains(&at)));
        let stub = plan.emit(at, &common, 1).unwrap();
        look(at, &stub);
        at += stub.bytes.len() as u64;
    }
    (at - start) as usize
}

/// Each overwritten byte belongs to one site, is what the file has, and its instruction means the
/// same in the stub.
fn check(library: &Library, plans: &[CallPlan]) {
    let mut overwritten = Vec::new();
    for plan in plans {
        for (start, original) in plan.original() {
            assert_eq!(library.data(start).unwrap()[..original.len()], *original);
            overwritten.push(start..start + original.len() as u64);
        }
    }
    overwritten.sort_by_key(|range| range.start);
    assert!(
        overwritten
            .windows(2)
            .all(|pair| pair[0].end <= pair[1].start)
    );
    emit_all(plans, |at, stub| {
        for patch in &stub.patches {
            let end = patch.site + patch.original.len() as u64;
            for (address, moved) in &patch.resume_map {
                let original = library.data(address - BASE).unwrap();
                let original =
                    Decoder::with_ip(64, original, *address, DecoderOptions::NONE).decode();
                let is_displaced = (patch.site..end).contains(address);
                // Instructions behind a moved call are listed for the call's sake first.
                if is_displaced && stub.bytes[(moved - at) as usize..].starts_with(MOV_RCX_WATCHED)
                {
                    assert!(
                        patch
                            .resume_map
                            .iter()
                            .filter(|(from, _)| from == address)
                            .count()
                            == 2
                    );
                } else if is_displaced {
                    same::same(&original, &stub.bytes[(moved - at) as usize..], *moved)
                        .unwrap_or_else(|why| panic!("{original} at {address:#x}: {why}"));
                }
            }
        }
    });
}

/// The beginning of a stub far from the table, which checks whether an exit is watched.
const MOV_RCX_WATCHED: &[u8] = &[0x48, 0xb9];

/// True if the instruction before is `mov eax, number`.
fn follows_a_number(library: &Library, call: u64) -> bool {
    let before = library.data(call - 5).unwrap();
    before[0] == 0xb8 && before[3..5] == [0, 0]
}

/// Every `mov eax, number; syscall` of a text, wherever its bytes are, is hooked or unhookable.
fn check_found(library: &Library, sites: &CallSites) {
    let (start, text) = &library.text;
    for (offset, bytes) in text.windows(7).enumerate() {
        if bytes[0] == 0xb8 && bytes[3..] == [0, 0, 0x0f, 0x05] {
            let call = start + offset as u64 + 5;
            let is_found = sites.plans.iter().any(|plan| plan.call == call)
                || sites
                    .unhookable
                    .iter()
                    .any(|unhookable| unhookable.call == call);
            assert!(is_found, "{call:#x}");
        }
    }
}

/// All of them are hooked, except restorers and code without a stack, of which there are as many as
/// given, and data between functions.
fn is_hooked(path: &str, least: usize, restorers: usize, without_stack: usize) {
    let Some((library, sites)) = survey(path) else {
        return;
    };
    let count = |why: &Unhookable| {
        sites
            .unhookable
            .iter()
            .filter(|unhookable| unhookable.why == *why)
            .count()
    };
    let counted = (
        count(&Unhookable::Restorer),
        count(&Unhookable::WithoutStack),
    );
    assert_eq!(
        counted,
        (restorers, without_stack),
        "{:x?}",
        sites.unhookable
    );
    let is_named =
        |unhookable: &UnhookableCall| !matches!(unhookable.why, Unhookable::CannotHook(_));
    let is_data = |unhookable: &UnhookableCall| {
        unhookable.why == Unhookable::Doubtful && !follows_a_number(&library, unhookable.call)
    };
    assert!(
        sites
            .unhookable
            .iter()
            .all(|unhookable| is_named(unhookable) || is_data(unhookable)),
        "{:x?}",
        sites.unhookable
    );
    assert!(sites.plans.len() >= least, "{}", sites.plans.len());
    check(&library, &sites.plans);
    check_found(&library, &sites);
    check_shifted(&sites.plans);
}

/// Stubs for a text that lies higher, as does all else, differ only in the words declared as
/// addresses.
fn check_shifted(plans: &[CallPlan]) {
    const HIGHER: u64 = 0x1_2345_6000;
    let start = BASE - DISTANCE;
    let near = start + 0x10_0000;
    for watched in [SPEC.watched, near] {
        let spec = CallSpec { watched, ..SPEC };
        let common = CommonCode::emit(start, &spec).unwrap();
        let higher = CallSpec {
            watched: watched + HIGHER,
            ..spec
        };
        let higher = CommonCode::emit(start + HIGHER, &higher).unwrap();
        assert_eq!(higher.layout(start + HIGHER), common.layout(start));
        let mut at = start + common.bytes.len() as u64;
        for plan in plans {
            let mut stub = plan.at(BASE).emit(at, &common, 1).unwrap();
            let plan = plan.at(BASE + HIGHER);
            let there = plan.emit(at + HIGHER, &higher, 1 + HIGHER).unwrap();
            at += stub.bytes.len() as u64;
            for place in &stub.addresses {
                let word = stub.bytes[*place..].first_chunk_mut().unwrap();
                *word = (u64::from_le_bytes(*word) + HIGHER).to_le_bytes();
            }
            for patch in &mut stub.patches {
                patch.site += HIGHER;
                patch.inside = patch.inside.start + HIGHER..patch.inside.end + HIGHER;
                for (original, moved) in &mut patch.resume_map {
                    (*original, *moved) = (*original + HIGHER, *moved + HIGHER);
                }
            }
            for (moved, behind) in &mut stub.moves {
                (*moved, *behind) = (*moved + HIGHER, *behind + HIGHER);
            }
            assert_eq!(stub, there, "{:#x}", plan.call - HIGHER - BASE);
        }
    }
}

#[test]
fn calls_of_libc_are_hooked() {
    is_hooked("/lib/x86_64-linux-gnu/libc.so.6", 400, 1, 0);
}

#[test]
fn calls_of_the_dynamic_loader_are_hooked() {
    is_hooked("/lib64/ld-linux-x86-64.so.2", 30, 1, 0);
}

#[test]
fn calls_of_a_static_program_are_hooked() {
    is_hooked("/sbin/ldconfig", 100, 1, 0);
}

#[test]
fn calls_of_musl_are_hooked() {
    is_hooked("/usr/lib/x86_64-linux-musl/libc.so", 400, 1, 2);
}

#[test]
fn calls_of_a_go_program_are_hooked() {
    is_hooked("/usr/local/go/bin/go", 30, 1, 1);
}

/// A big program that makes its calls through the C library.
#[test]
fn calls_in_a_big_program_are_hooked() {
    is_hooked("/usr/bin/node", 0, 0, 0);
}

/// The numbers found in the code of libc's wrappers are those of their calls.
#[test]
fn numbers_found_in_wrappers_are_those_of_their_calls() {
    let Some((library, sites)) = survey("/lib/x86_64-linux-gnu/libc.so.6") else {
        return;
    };
    let wrappers = [
        ("getpid", libc::SYS_getpid),
        ("read", libc::SYS_read),
        ("write", libc::SYS_write),
        ("mmap", libc::SYS_mmap),
        ("dup2", libc::SYS_dup2),
        ("getuid", libc::SYS_getuid),
        ("epoll_wait", libc::SYS_epoll_wait),
    ];
    // Only one of several names for the same function is kept.
    let plain = |known: &Option<String>| {
        let known = known.as_deref().unwrap_or_default().trim_start_matches('_');
        known.trim_start_matches("libc_").to_owned()
    };
    let mut looked_at = 0;
    for (name, number) in wrappers {
        let mut functions = library.functions.iter();
        let Some((start, _)) = functions.find(|(_, known)| plain(known) == name) else {
            continue;
        };
        looked_at += 1;
        let next = library.functions.range(start + 1..).next().unwrap().0;
        let inside: Vec<_> = sites
            .plans
            .iter()
            .filter(|plan| (*start..*next).contains(&plan.call))
            .map(|plan| plan.number)
            .collect();
        assert!(!inside.is_empty(), "{name} has no system call");
        assert!(
            inside.iter().all(|known| *known == Some(number as u32)),
            "{name}: {inside:?}"
        );
    }
    assert!(looked_at > 3, "{looked_at}");
}
