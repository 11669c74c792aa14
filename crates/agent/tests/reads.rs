//! Reads of known sizes, which compilers call by special entries, match those of the general
//! helper: of memory that is there, that was there a moment ago, and that never was.

mod common;

use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use beeline_codegen::{Baseline, Bytecode, Compiler, Executable, Machine};
use beeline_isa::Insn;
use beeline_uapi::HelperId;
use beeline_uapi::linux::PAGE_SIZE;

use common::Environment;
use common::maps::kernel::insn;

const PAGE: usize = PAGE_SIZE as usize;
const EFAULT: u64 = -14_i64 as u64;

/// `probe_read(context[1], size, context[0])`
fn read(helper: HelperId, size: i32) -> Vec<Insn> {
    let words = [
        insn(0x79, 3, 1, 0, 0),
        insn(0x79, 1, 1, 8, 0),
        insn(0xb7, 2, 0, 0, size),
        insn(0x85, 0, 0, 0, helper.0.cast_signed()),
        insn(0x95, 0, 0, 0, 0),
    ];
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    Insn::decode_all(&bytes).expect("whole insns").collect()
}

/// Returns the result and the bytes written, by the general helper or by the compiler's choice.
fn run(
    environment: &mut Environment,
    size: i32,
    from: *const u8,
    in_agent: bool,
) -> (u64, [u8; 16]) {
    let insns = read(HelperId::PROBE_READ_KERNEL, size);
    let program = Bytecode {
        in_agent,
        ..Bytecode::new(&insns)
    };
    let code = Baseline.compile(&program, Machine::X86_64);
    let code = Executable::of(code.expect("a good program")).expect("executable memory");
    let mut to = [0xa5; 16];
    let mut words = [
        from.expose_provenance(),
        to.as_mut_ptr().expose_provenance(),
    ];
    environment.set_argument(words.as_mut_ptr().cast());
    (environment.run(&code), to)
}

/// Two pages, of which the second cannot be read.
fn memory() -> *mut u8 {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping; its second half is ours to protect.
    unsafe {
        let pages = libc::mmap(ptr::null_mut(), 2 * PAGE, protection, flags, -1, 0);
        assert_ne!(pages, libc::MAP_FAILED);
        protect(pages.cast::<u8>().add(PAGE), libc::PROT_NONE);
        pages.cast()
    }
}

fn protect(page: *mut u8, protection: i32) {
    // SAFETY: a page of the test's own.
    assert_eq!(unsafe { libc::mprotect(page.cast(), PAGE, protection) }, 0);
}

/// The number of caught faults.
static FAULTS: AtomicU32 = AtomicU32::new(0);

/// Acts as the agent's own handler: goes on where the helpers say.
extern "C" fn on_fault(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    FAULTS.fetch_add(1, Relaxed);
    // SAFETY: the kernel passes a context that is ours to change.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let ip = &mut registers[libc::REG_RIP as usize];
    match beeline_agent::helpers::fault_fixup(*ip as u64) {
        Some(fixup) => *ip = fixup as i64,
        // SAFETY: ends the test.
        None => unsafe { libc::abort() },
    }
}

fn catch_faults() {
    // SAFETY: a handler that changes the context only.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_fault as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(
            libc::sigaction(libc::SIGSEGV, &raw const action, ptr::null_mut()),
            0
        );
    }
}

#[test]
fn sized_reads_are_the_general_one() {
    catch_faults();
    let page = memory();
    for at in 0..PAGE {
        // SAFETY: in the first page.
        unsafe { page.add(at).write(at as u8 | 1) };
    }
    for size in [0, 1, 2, 3, 4, 8, 16] {
        // One each, so that each remembers pages for itself.
        let mut environments = [false, true].map(|in_agent| {
            let mut environment = Environment::new();
            environment.catch_faults();
            (environment, in_agent)
        });
        let mut both = |from: *const u8| {
            let [called, special] = environments
                .each_mut()
                .map(|(environment, in_agent)| run(environment, size, from, *in_agent));
            assert_eq!(called, special, "{size} bytes at {from:?}");
            called
        };
        // Twice: the first time it checks the page.
        for _ in 0..2 {
            let (result, bytes) = both(page.wrapping_add(24));
            assert_eq!(result, 0);
            for (at, byte) in bytes.iter().enumerate() {
                let expected = if at < size as usize {
                    (24 + at) as u8 | 1
                } else {
                    0xa5
                };
                assert_eq!(*byte, expected);
            }
        }
        both(page.wrapping_add(PAGE - size as usize));
        let partly = both(page.wrapping_add(PAGE - 1)).0;
        assert_eq!(partly, if size > 1 { EFAULT } else { 0 });
        for nowhere in [0, 8, 1 << 46, 1 << 47, usize::MAX - 7] {
            both(ptr::without_provenance(nowhere));
        }
        // The page was readable a moment ago.
        protect(page, libc::PROT_NONE);
        let before = FAULTS.load(Relaxed);
        let (result, bytes) = both(page.wrapping_add(24));
        // Both tried to read it.
        assert_eq!(FAULTS.load(Relaxed) > before, size != 0);
        let nothing = if size == 0 { 0 } else { EFAULT };
        assert_eq!(
            (result, bytes[0]),
            (nothing, if size == 0 { 0xa5 } else { 0 })
        );
        protect(page, libc::PROT_READ | libc::PROT_WRITE);
    }
}
