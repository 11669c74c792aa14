//! A session page that a hostile target writes: each request is answered, whatever it says.

use std::mem::offset_of;

use beeline_agent::abi::syscalls::{
    POSTED, Request, UPCALL_CODE, UPCALL_CONFINE, UPCALL_EXEC, UPCALL_FORK, UPCALL_NO_EXEC,
};
use beeline_agent::abi::{DISMISSALS, Lease, MAX_CPUS, Session};
use beeline_runtime::fuzz_api::HostilePage;
use beeline_uapi::linux::PtRegs;
use parking_lot::Mutex;

/// Bytes of a step.
const STEP: usize = 8;
/// The most steps.
const MOST: usize = 64;
/// The most requests. A false one makes Beeline look at all processes.
const REQUESTS: usize = 6;
/// The offset in the page of bytes that are nothing else: leases of CPUs that no machine has.
const FREE: usize = offset_of!(Session, leases) + MAX_CPUS / 2 * size_of::<Lease>();

/// The session, until its target is lost.
static SESSION: Mutex<Option<HostilePage>> = Mutex::new(None);

/// Writes to the page, and one turn of the session's work on it.
pub fn session_page(data: &[u8]) {
    requests_answered(data);
}

/// Does the same, and returns the number of requests that were answered, and whether the session has
/// its target still. `None` if no process can be traced here.
pub fn requests_answered(data: &[u8]) -> Option<(usize, bool)> {
    let mut session = SESSION.lock();
    let page = match session.take().filter(HostilePage::is_whole) {
        Some(whole) => whole,
        None => {
            let begun = HostilePage::begin();
            begun
                .inspect_err(|error| println!("skipped: {error}"))
                .ok()?
        }
    };
    page.clear();
    for step in data.chunks_exact(STEP).take(MOST) {
        take(&page, step.try_into().expect("steps have one length"));
    }
    let answered = page.serve();
    let is_whole = page.is_whole();
    *session = Some(page);
    Some((answered, is_whole))
}

/// Returns a number that may be the target's own.
fn chosen(choice: u8, own: u32) -> u32 {
    match choice {
        0 => own,
        1 => 0,
        2 => u32::MAX,
        3 => std::process::id(),
        other => other.into(),
    }
}

fn take(page: &HostilePage, [what, a, b, c, d, e, f, g]: [u8; STEP]) {
    let (pid, owner) = (page.pid() as u32, page.owner());
    let place = usize::from(u16::from_le_bytes([a, b]));
    let word = [c, d, e, f];
    match what % 6 {
        0 => {
            let request =
                offset_of!(Session, requests) + usize::from(a) % REQUESTS * size_of::<Request>();
            let half = |field: usize, value: u32| page.write(request + field, &value.to_ne_bytes());
            half(offset_of!(Request, kind), u32::from(b) % 8);
            half(offset_of!(Request, pid), chosen(c, pid));
            half(offset_of!(Request, owner), chosen(d, owner));
            half(offset_of!(Request, tid), chosen(e, pid));
            half(
                offset_of!(Request, directory),
                i32::from(g.cast_signed()).cast_unsigned(),
            );
            half(offset_of!(Request, flags), u32::from(g) << 8);
            let address = page.address() + FREE as u64 + 8 * u64::from(f);
            page.write(
                request + offset_of!(Request, address),
                &address.to_ne_bytes(),
            );
            half(offset_of!(Request, state), POSTED);
        }
        1 => {
            let slot = offset_of!(Session, dismissed) + 4 * (usize::from(a) % DISMISSALS);
            page.write(slot, &chosen(b, owner).to_ne_bytes());
        }
        2 => {
            let lease = usize::from(a) % (MAX_CPUS / 2);
            let lease = offset_of!(Session, leases) + lease * size_of::<Lease>();
            page.write(lease, &chosen(b, owner).to_ne_bytes());
        }
        // The address of another of the free bytes, or a number, there.
        3 => {
            let address = page.address() + FREE as u64 + 8 * u64::from(c);
            page.write(FREE + 8 * usize::from(a), &address.to_ne_bytes());
        }
        4 => page.write(FREE + 8 * usize::from(a) + 4 * usize::from(b & 1), &word),
        // Anything anywhere before them.
        _ => page.write(4 * place % FREE, &word),
    }
}

/// Returns a request of the target's own.
fn request(number: u8, kind: u32, at: u8) -> [u8; STEP] {
    [0, number, kind as u8, 0, 0, 0, at, 0]
}

/// Returns a number to be put at one of the free words.
fn number(at: usize, value: u32) -> [u8; STEP] {
    let [c, d, e, f] = value.to_le_bytes();
    [4, at as u8, 0, c, d, e, f, 0]
}

/// The same for the upper half of the word.
fn upper(at: usize, value: u32) -> [u8; STEP] {
    let [c, d, e, f] = value.to_le_bytes();
    [4, at as u8, 1, c, d, e, f, 0]
}

/// Returns the registers of a call that installs a filter of one instruction.
fn confining(result: u32) -> Vec<[u8; STEP]> {
    const PROGRAM: u8 = 32;
    const FILTER: u8 = 36;
    let register = |field: usize| field / 8;
    vec![
        number(
            register(offset_of!(PtRegs, orig_ax)),
            libc::SYS_seccomp as u32,
        ),
        number(
            register(offset_of!(PtRegs, di)),
            libc::SECCOMP_SET_MODE_FILTER,
        ),
        [
            3,
            register(offset_of!(PtRegs, dx)) as u8,
            0,
            PROGRAM,
            0,
            0,
            0,
            0,
        ],
        number(PROGRAM.into(), 1),
        [3, PROGRAM + 1, 0, FILTER, 0, 0, 0, 0],
        number(FILTER.into(), libc::BPF_RET | libc::BPF_K),
        upper(FILTER.into(), result),
        request(0, UPCALL_CONFINE, 0),
    ]
}

/// Returns pages with requests of each kind, and with what nobody writes.
pub fn page_seeds() -> Vec<(String, Vec<u8>)> {
    let path = [
        number(0, u32::from_le_bytes(*b"/bin")),
        upper(0, u32::from_le_bytes(*b"/ls\0")),
    ];
    let execs = [
        &path[..],
        &[request(0, UPCALL_EXEC, 0), request(1, UPCALL_NO_EXEC, 0)],
    ]
    .concat();
    let others = vec![
        request(0, UPCALL_CODE, 0),
        request(1, UPCALL_FORK, 0),
        request(2, 7, 0),
    ];
    let false_ones = vec![
        [0, 0, UPCALL_FORK as u8, 1, 0, 0, 0, 0],
        [0, 1, UPCALL_EXEC as u8, 3, 0, 1, 0, 0],
        [0, 2, UPCALL_CODE as u8, 0, 9, 0, 0, 0],
    ];
    let blocked = 4 * (offset_of!(Session, blocked) / 4) % FREE;
    let [low, high] = (blocked as u16 / 4).to_le_bytes();
    let counts = vec![
        [2, 0, 9, 0, 0, 0, 0, 0],
        [2, 1, 0, 0, 0, 0, 0, 0],
        [1, 0, 9, 0, 0, 0, 0, 0],
        [5, 2, 0, 255, 255, 255, 255, 0],
        [5, low, high, 1, 0, 0, 0, 0],
    ];
    let seeds = [
        ("execs", execs),
        ("others", others),
        ("false", false_ones),
        ("counts", counts),
        (
            "dismissed",
            vec![[1, 3, 0, 0, 0, 0, 0, 0], request(0, UPCALL_CODE, 0)],
        ),
        ("confines", confining(libc::SECCOMP_RET_KILL_PROCESS)),
        ("confines-little", confining(libc::SECCOMP_RET_ALLOW)),
    ];
    let seeds = seeds.map(|(name, steps)| (name.to_owned(), steps.as_flattened().to_vec()));
    seeds.into()
}
