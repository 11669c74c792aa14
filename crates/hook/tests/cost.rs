//! Prints the cost of a hook. Fails only on a cost out of all proportion, since machines differ and
//! may be busy.

mod support;

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU8, AtomicU64};
use std::time::Instant;

use beeline_hook::{
    CallSites, CallSpec, CommonCode, Direct, Full, Function, Incoming, Registers, TrampolineSpec,
    WATCHED_LEN, emit, jump_patch, plan,
};

use support::elf::Library;
use support::memory::{Pool, write};

/// lea rax, [rdi+1]; nop; ret
const FUNCTION: &[u8] = b"\x48\x8d\x47\x01\x90\xc3\xcc\xcc";
/// The same where flags are live: cmc comes later, and the site is behind a nop.
const INSIDE: &[u8] = b"\x90\x48\x8d\x47\x01\x90\xf5\xc3";
/// xor eax, eax; ret
const NOTHING: &[u8] = b"\x31\xc0\xc3";
/// mov eax, 1; ret
const WANTED: &[u8] = b"\xb8\x01\x00\x00\x00\xc3";

/// Returns the best of several rounds, in ns per call.
fn time(function: u64) -> f64 {
    const CALLS: u32 = 200_000;
    // SAFETY: the address of a function of this signature, hooked or not.
    let function = unsafe { std::mem::transmute::<u64, extern "sysv64" fn(u64) -> u64>(function) };
    let round = || {
        let start = Instant::now();
        for i in 0..CALLS {
            assert_eq!(function(u64::from(i)), u64::from(i) + 1);
        }
        start.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS)
    };
    (0..15).map(|_| round()).fold(f64::INFINITY, f64::min)
}

fn hooked(pool: &mut Pool, code: &[u8], offset: u64, spec: TrampolineSpec) -> u64 {
    let start = pool.push(code);
    let plan = plan(start + offset, &Function { start, code }).unwrap();
    let at = pool.next();
    pool.push(&emit(&plan, at, &spec).unwrap().bytes);
    // SAFETY: the pool's own memory, and nothing runs there now.
    unsafe {
        write(
            plan.site,
            &jump_patch(plan.site, plan.window_len, at).unwrap(),
        )
    };
    start
}

/// `leave` for one call at a time: returns the word that `enter` kept.
fn keeping_hook(pool: &mut Pool) -> (u64, u64) {
    static KEPT: AtomicU64 = AtomicU64::new(0);
    let slot = KEPT.as_ptr() as u64;
    // mov rax, [rdi+152]; mov rax, [rax]; mov rcx, slot; mov [rcx], rax; mov eax, 1; ret
    let mut enter = b"\x48\x8b\x87\x98\x00\x00\x00\x48\x8b\x00\x48\xb9".to_vec();
    enter.extend(slot.to_le_bytes());
    enter.extend(b"\x48\x89\x01");
    enter.extend(WANTED);
    // mov rax, slot; mov rax, [rax]; ret
    let mut leave = b"\x48\xb8".to_vec();
    leave.extend(slot.to_le_bytes());
    leave.extend(b"\x48\x8b\x00\xc3");
    (pool.push(&enter), pool.push(&leave))
}

#[test]
fn cost_of_a_hook() {
    let mut pool = Pool::new(1 << 16);
    let nothing = pool.push(NOTHING);
    let (enter, leave) = keeping_hook(&mut pool);
    let full = TrampolineSpec::Full(Full {
        descriptor: 0,
        enter: nothing,
        leave: None,
        shows_registers: true,
    });
    let blind = TrampolineSpec::Full(Full {
        descriptor: 0,
        enter: nothing,
        leave: None,
        shows_registers: false,
    });
    let watched = TrampolineSpec::Full(Full {
        descriptor: 0,
        enter,
        leave: Some(leave),
        shows_registers: true,
    });
    let direct = TrampolineSpec::Direct(Direct {
        entry: nothing,
        clobbers: Registers::RAX,
    });
    let all = TrampolineSpec::Direct(Direct {
        entry: nothing,
        clobbers: Registers::CALLER_SAVED,
    });
    let plain = pool.push(FUNCTION);
    let plain = time(plain);
    eprintln!("unhooked: {plain:.1} ns");
    for (name, code, offset, spec) in [
        ("direct, 1 register", FUNCTION, 0, direct),
        ("direct, 9 registers", FUNCTION, 0, all),
        ("direct, flags", INSIDE, 1, direct),
        ("full", FUNCTION, 0, full),
        ("full, no registers shown", FUNCTION, 0, blind),
        ("full, flags", INSIDE, 1, full),
        ("full, return watched", FUNCTION, 0, watched),
    ] {
        let cost = time(hooked(&mut pool, code, offset, spec)) - plain;
        eprintln!("{name}: +{cost:.1} ns");
        assert!(cost < 200.0);
    }
}

#[test]
fn cost_of_deciding() {
    let Some(library) = Library::find("libc.so.6") else {
        eprintln!("skipped: no libc.so.6");
        return;
    };
    let functions = || {
        library
            .bodies()
            .map(|(start, code)| Function { start, code })
    };
    let start = Instant::now();
    Incoming::of(functions());
    eprintln!(
        "branches between {} kB of functions: {:?}",
        library.text.1.len() / 1000,
        start.elapsed()
    );
    let start = Instant::now();
    let planned = functions()
        .filter(|function| plan(function.start, function).is_ok())
        .count();
    eprintln!("{planned} plans: {:?}", start.elapsed());
}

/// `getpid` as compilers write it: mov eax, 39; syscall; cmp rax, -4096; ret
const IN_PLACE: &[u8] = b"\xb8\x27\x00\x00\x00\x0f\x05\x48\x3d\x00\xf0\xff\xff\xc3";
/// With a branch to the code behind it: mov eax, 39; syscall; mov rdx, rax; cmp eax, -1; je -8; ret
const MOVED: &[u8] = b"\xb8\x27\x00\x00\x00\x0f\x05\x48\x89\xc2\x83\xf8\xff\x74\xf8\xc3";
/// With an unknown number: mov eax, 38; inc eax; syscall; mov rdx, rax; ret
const DYNAMIC: &[u8] = b"\xb8\x26\x00\x00\x00\xff\xc0\x0f\x05\x48\x89\xc2\xc3";

/// Returns the best of several rounds of each function in turn, in ns per call.
fn time_calls(functions: &[u64]) -> Vec<f64> {
    const CALLS: u32 = 20_000;
    let own_id = u64::from(std::process::id());
    let round = |function: &u64| {
        // SAFETY: the address of one of the functions above, hooked or not.
        let function =
            unsafe { std::mem::transmute::<u64, extern "sysv64" fn() -> u64>(*function) };
        let start = Instant::now();
        for _ in 0..CALLS {
            assert_eq!(function(), own_id);
        }
        start.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS)
    };
    let mut best = vec![f64::INFINITY; functions.len()];
    for _ in 0..40 {
        for (best, function) in best.iter_mut().zip(functions) {
            *best = best.min(round(function));
        }
    }
    best
}

#[test]
fn cost_of_a_hooked_system_call() {
    static WATCHED: [AtomicU8; WATCHED_LEN] = [const { AtomicU8::new(0) }; WATCHED_LEN];
    let mut pool = Pool::new(1 << 16);
    let nothing = pool.push(NOTHING);
    let spec = CallSpec {
        enter: nothing,
        exit: nothing,
        compact_enter: nothing,
        compact_exit: nothing,
        watched: WATCHED.as_ptr() as u64,
    };
    let common = CommonCode::emit(pool.next(), &spec).unwrap();
    pool.push(&common.bytes);
    for (name, code) in [
        ("in place", IN_PLACE),
        ("moved", MOVED),
        ("number not known", DYNAMIC),
    ] {
        let plain = pool.push(code);
        let start = pool.push(code);
        let plan = CallSites::of(&[Function { start, code }], |_| None)
            .plans
            .remove(0);
        let stub = plan.emit(pool.next(), &common, 0).unwrap();
        pool.push(&stub.bytes);
        for patch in &stub.patches {
            // SAFETY: the pool's own memory, and nothing runs there now.
            unsafe { write(patch.site, &patch.bytes) };
        }
        let set = |enter: u8, exit: u8| {
            WATCHED[39].store(enter, Relaxed);
            WATCHED[1024 + 39].store(exit, Relaxed);
            time_calls(&[plain, start])
        };
        let bytes = stub.bytes.len();
        for (what, times) in [
            ("not watched", set(0, 0)),
            ("enter", set(beeline_hook::WATCHED, 0)),
            ("exit", set(0, beeline_hook::WATCHED)),
            ("both", set(beeline_hook::WATCHED, beeline_hook::WATCHED)),
            ("compactly, enter", set(beeline_hook::WATCHED_COMPACTLY, 0)),
            ("compactly, exit", set(0, beeline_hook::WATCHED_COMPACTLY)),
            (
                "compactly, both",
                set(
                    beeline_hook::WATCHED_COMPACTLY,
                    beeline_hook::WATCHED_COMPACTLY,
                ),
            ),
        ] {
            let cost = times[1] - times[0];
            eprintln!(
                "{name}, {bytes} bytes, {what}: {:.1} ns +{cost:.1}",
                times[0]
            );
            assert!(cost < 1000.0);
        }
    }
}
