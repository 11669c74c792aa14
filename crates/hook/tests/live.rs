//! The C library and libcrypto keep working with every function hooked, in a child of this process.

mod support;

use beeline_hook::{
    Direct, Full, Function, Incoming, Kind, Plan, Registers, TrampolineSpec, emit, jump_patch,
    plan_among, reach,
};

use support::child::in_a_child;
use support::elf::Library;
use support::hook;
use support::memory::{Pool, write};
use support::workload::{self, Crypto};

/// Functions that return twice, or never, or whose stack is not their caller's: no return probe
/// fits them.
const ODD: &[&str] = &[
    "setjmp",
    "_setjmp",
    "__sigsetjmp",
    "longjmp",
    "siglongjmp",
    "_longjmp",
    "__libc_siglongjmp",
    "__libc_longjmp",
    "vfork",
    "__vfork",
    "clone",
    "__clone",
    "getcontext",
    "setcontext",
    "swapcontext",
    "makecontext",
];

#[derive(Clone, Copy, PartialEq)]
enum Way {
    Plain,
    Watched,
    Direct,
}

impl Way {
    fn spec(self, plan: &Plan, name: Option<&str>) -> TrampolineSpec {
        let enter = hook::test_hook_enter as *const () as u64;
        let leave = hook::test_hook_leave as *const () as u64;
        let watched =
            self == Self::Watched && plan.at_start && name.is_none_or(|name| !ODD.contains(&name));
        match self {
            Self::Direct => TrampolineSpec::Direct(Direct {
                entry: hook::test_hook_light as *const () as u64,
                clobbers: Registers::CALLER_SAVED,
            }),
            _ if watched => TrampolineSpec::Full(Full {
                descriptor: hook::WATCHED,
                enter,
                leave: Some(leave),
                shows_registers: true,
            }),
            _ => TrampolineSpec::Full(Full {
                descriptor: hook::PLAIN,
                enter,
                leave: None,
                shows_registers: true,
            }),
        }
    }
}

/// Hooks the start of every function of the library that can take a jump; returns their number.
fn hook_all(library: &Library, way: Way) -> usize {
    let base = library.base();
    let (text, len) = (base + library.text.0, library.text.1.len());
    let mut pool = Pool::within(reach(text + len as u64 / 2), 16 << 20);
    let mut patches = Vec::new();
    let in_file = library
        .bodies()
        .map(|(start, code)| Function { start, code });
    let incoming = Incoming::of(in_file).shifted(base);
    for (start, code) in library.bodies() {
        let start = start + base;
        let Ok(plan) = plan_among(start, &Function { start, code }, &incoming) else {
            continue;
        };
        if plan.kind != Kind::Jump {
            continue;
        }
        let name = library.functions[&(start - base)].as_deref();
        let at = pool.next();
        pool.push(&emit(&plan, at, &way.spec(&plan, name)).unwrap().bytes);
        patches.push((start, jump_patch(start, plan.window_len, at).unwrap()));
    }
    library.unprotect();
    for (start, patch) in &patches {
        // SAFETY: the only thread is here, in none of the functions.
        unsafe { write(*start, patch) };
    }
    patches.len()
}

fn libc_works(way: Way) {
    let Some(library) = Library::find("libc.so.6") else {
        eprintln!("skipped: no libc.so.6");
        return;
    };
    let wanted = workload::libc_results();
    hook::reset();
    let hooked = hook_all(&library, way);
    let (entered_before, left_before) = (hook::entered(), hook::left());
    let got = workload::libc_results();
    let (entered, left) = (hook::entered() - entered_before, hook::left() - left_before);
    eprintln!("libc: {hooked} functions hooked, {entered} calls, {left} returns seen");
    assert_eq!(got, wanted);
    assert!(hooked > 3000 && entered > 2000);
    assert_eq!(left > 1900, way == Way::Watched);
}

#[test]
fn libc_with_every_function_hooked() {
    in_a_child(|| libc_works(Way::Plain));
}

#[test]
fn libc_with_every_return_watched() {
    in_a_child(|| libc_works(Way::Watched));
}

#[test]
fn libc_with_every_function_hooked_lightly() {
    in_a_child(|| libc_works(Way::Direct));
}

fn libcrypto_works(way: Way) {
    let (Some(library), Some(crypto)) = (Library::find("libcrypto.so.3"), Crypto::load()) else {
        eprintln!("skipped: no libcrypto.so.3");
        return;
    };
    let wanted = crypto.results();
    hook::reset();
    let hooked = hook_all(&library, way);
    let got = crypto.results();
    eprintln!(
        "libcrypto: {hooked} functions hooked, {} calls, {} returns seen",
        hook::entered(),
        hook::left()
    );
    assert_eq!(got, wanted);
    assert!(hooked > 8000 && hook::entered() > 500);
    assert_eq!(hook::left() > 500, way == Way::Watched);
}

#[test]
fn libcrypto_with_every_function_hooked() {
    in_a_child(|| libcrypto_works(Way::Plain));
}

#[test]
fn libcrypto_with_every_return_watched() {
    in_a_child(|| libcrypto_works(Way::Watched));
}

#[test]
fn libcrypto_with_every_function_hooked_lightly() {
    in_a_child(|| libcrypto_works(Way::Direct));
}
