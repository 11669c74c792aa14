//! Unverified programs, in the interpreter with all helpers: they end with a result or a fault, and
//! touch nothing that is not theirs.

mod common;

use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use beeline_agent::helpers;
use beeline_codegen::{Bytecode, Engine, Interpreter};
use beeline_isa::helper::{Argument, returns, signature};
use beeline_isa::{Insn, Listing, imm64, opcode::*};
use beeline_maps::{Fields, Spec};
use beeline_uapi::helper::maps::suits;
use beeline_uapi::{HelperId, MapType};

use common::maps::{Ours, seed, soak, spec};
use common::{Environment, Random};

/// Programs of one child process.
const BATCH: u64 = 2000;
/// Instructions of one run.
const BUDGET: u64 = 20_000;
/// Bytes of the context, and of the guard on either side of it.
const MEMORY: usize = 64;
const EXIT: Insn = insn(JMP | EXIT_OP, 0, 0, 0, 0);
const EXIT_OP: u8 = beeline_isa::opcode::EXIT;

const fn insn(code: u8, dst: u8, src: u8, off: i16, imm: i32) -> Insn {
    Insn {
        code,
        dst,
        src,
        off,
        imm,
    }
}

/// The programs' maps; the last one's values have a lock in their first word.
fn specs() -> Vec<Spec> {
    let types = [
        (MapType::ARRAY, 4, 64, 8),
        (MapType::HASH, 8, 16, 16),
        (MapType::RINGBUF, 0, 0, 4096),
        (MapType::PERCPU_ARRAY, 4, 24, 4),
        (MapType::LRU_HASH, 4, 8, 4),
        (MapType::QUEUE, 0, 16, 4),
        (MapType::BLOOM_FILTER, 0, 8, 16),
        (MapType::LPM_TRIE, 8, 8, 8),
        (MapType::HASH, 4, 32, 8),
    ];
    types
        .map(|(kind, key, value, entries)| Spec {
            flags: if kind == MapType::LPM_TRIE { 1 } else { 0 },
            ..spec(kind, key, value, entries)
        })
        .to_vec()
}

/// A batch's counts, in memory that outlives its process.
#[derive(Default)]
struct Counts {
    /// The running program.
    seed: AtomicU64,
    loaded: AtomicU64,
    finished: AtomicU64,
    faulted: AtomicU64,
}

#[test]
fn any_program_ends_with_a_result_or_a_fault() {
    let counts = shared_counts();
    let first = seed() << 32;
    let end = std::time::Instant::now() + soak();
    let mut batch = 0;
    while batch < 20 || std::time::Instant::now() < end {
        let from = first + batch * BATCH;
        // SAFETY: the child runs programs and exits.
        let child = unsafe { libc::fork() };
        assert!(child >= 0, "{}", std::io::Error::last_os_error());
        if child == 0 {
            (from..from + BATCH).for_each(|seed| try_program(seed, counts));
            // SAFETY: ends this process.
            unsafe { libc::_exit(0) };
        }
        let mut status = 0;
        // SAFETY: our own child.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        let seed = counts.seed.load(Relaxed);
        assert_eq!(
            status,
            0,
            "seed {seed} crashed:\n{}",
            Listing(&program(seed))
        );
        batch += 1;
    }
    let [loaded, finished, faulted] =
        [&counts.loaded, &counts.finished, &counts.faulted].map(|count| count.load(Relaxed));
    eprintln!(
        "{loaded} of {} programs ran: {finished} to their ends, {faulted} to faults",
        batch * BATCH
    );
    assert!(finished > batch * BATCH / 50 && faulted > batch * BATCH / 10);
}

fn shared_counts() -> &'static Counts {
    let (prot, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_SHARED | libc::MAP_ANONYMOUS,
    );
    // SAFETY: a new anonymous mapping touches no existing memory.
    let memory = unsafe { libc::mmap(ptr::null_mut(), 4096, prot, flags, -1, 0) };
    assert_ne!(memory, libc::MAP_FAILED);
    // SAFETY: large enough, zero, and never unmapped.
    unsafe { &*memory.cast() }
}

fn try_program(seed: u64, counts: &Counts) {
    counts.seed.store(seed, Relaxed);
    let insns = program(seed);
    let Ok(runnable) = Interpreter::with_budget(BUDGET).load(&Bytecode::new(&insns)) else {
        return;
    };
    counts.loaded.fetch_add(1, Relaxed);
    let mut world = World::new();
    let mut memory = [0x5a_u8; 3 * MEMORY];
    let outcome = world
        .environment
        .run_on(&*runnable, &mut memory[MEMORY..2 * MEMORY]);
    match outcome {
        Ok(_) => counts.finished.fetch_add(1, Relaxed),
        Err(_) => counts.faulted.fetch_add(1, Relaxed),
    };
    let around = memory[..MEMORY].iter().chain(&memory[2 * MEMORY..]);
    if around.into_iter().any(|byte| *byte != 0x5a) {
        std::process::abort();
    }
}

struct World {
    environment: Environment,
    _maps: Vec<Ours>,
}

impl World {
    fn new() -> Self {
        let mut environment = Environment::new();
        let maps: Vec<Ours> = specs()
            .iter()
            .map(|spec| Ours::new(spec, 1).expect("a map"))
            .collect();
        for (number, ours) in maps.iter().enumerate() {
            let map = if number + 1 == maps.len() {
                let fields = Fields::new(ours.map.spec(), Some(0), None);
                ours.map.with_fields(fields.expect("a lock"))
            } else {
                ours.map
            };
            environment.add_map(map);
        }
        Self {
            environment,
            _maps: maps,
        }
    }
}

/// One program in four is random bytes, one is sound as far as this goes, and the others are sound
/// ones with damage.
fn program(seed: u64) -> Vec<Insn> {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    for _ in 0..4 {
        random.next();
    }
    let kind = random.below(4);
    let mut insns = match kind {
        0 => (0..1 + random.below(24))
            .map(|_| Insn::decode(random.next().to_le_bytes()))
            .collect(),
        _ => sensible(&mut random),
    };
    if kind > 1 {
        for _ in 0..1 + random.below(3) {
            damage(&mut random, &mut insns);
        }
    }
    insns
}

fn damage(random: &mut Random, insns: &mut Vec<Insn>) {
    let at = random.below(insns.len());
    let bits = random.next();
    match random.below(7) {
        0 => insns[at].dst = (bits % 11) as u8,
        1 => insns[at].src = (bits % 11) as u8,
        2 => insns[at].off = (bits % 64) as i16 - 32,
        3 => insns[at].imm = odd_number(random) as i32,
        4 => insns[at].code ^= 1 << (bits % 8),
        5 => drop(insns.remove(at)),
        _ => insns[at] = insns[bits as usize % insns.len()],
    }
    insns.push(EXIT);
}

fn odd_number(random: &mut Random) -> u64 {
    let bits = random.next();
    random.one_of(&[
        0,
        1,
        4,
        8,
        16,
        64,
        bits & 0xff,
        bits & 0xffff,
        bits,
        u64::MAX,
        1 << 31,
    ])
}

/// Returns a program with functions that calls helpers mostly with valid arguments.
fn sensible(random: &mut Random) -> Vec<Insn> {
    let mut insns = vec![insn(ALU64 | MOV | X, 6, 1, 0, 0)];
    for register in [0, 1, 2, 3, 4, 5, 7, 8, 9] {
        insns.extend(imm64(register, 0, odd_number(random)));
    }
    let calls = 2 + random.below(8);
    let mut places = Vec::new();
    for _ in 0..calls {
        match random.below(3) {
            0 => insns.push(anything(random)),
            _ => call_helper(random, &mut insns, &mut places),
        }
    }
    insns.extend([insn(ALU64 | MOV | K, 0, 0, 0, 0), EXIT]);
    let function = insns.len();
    for place in places {
        insns[place].imm = (function - place - 1) as i32;
    }
    for _ in 0..random.below(6) {
        insns.push(anything(random));
    }
    insns.extend([insn(ALU64 | MOV | K, 0, 0, 0, 0), EXIT]);
    insns
}

fn anything(random: &mut Random) -> Insn {
    let [a, b] = [random.below(10) as u8, random.below(11) as u8];
    let base = random.one_of(&[10, 10, 6, 7, 0, b]);
    let off = -8 * random.below(16) as i16 + random.below(3) as i16 / 2;
    let size = random.one_of(&[B, H, W, DW]);
    let imm = odd_number(random) as i32;
    match random.below(8) {
        0 => insn(LDX | MEM | size, a, base, off, 0),
        1 => insn(STX | MEM | size, base, a, off, 0),
        2 => insn(ST | MEM | size, base, 0, off, imm),
        3 => {
            let op = random.one_of(&[0, 1, 0x40, 0xa1, XCHG, CMPXCHG, LOAD_ACQ, STORE_REL]);
            insn(
                STX | ATOMIC | random.one_of(&[W, DW]),
                base,
                a,
                off & -8,
                op,
            )
        }
        4 => insn(JMP | JNE | K, b, 0, random.below(4) as i16, imm),
        5 => insn(ALU64 | ADD | K, a, 0, 0, imm),
        6 => insn(ALU64 | MOV | X, a, b, 0, 0),
        _ => insn(
            ALU64 | random.one_of(&[SUB, MUL, DIV, MOD, XOR]) | X,
            a,
            b,
            0,
            0,
        ),
    }
}

/// Loads arguments that are mostly valid, calls, and keeps the result in r7 unless it is null.
fn call_helper(random: &mut Random, insns: &mut Vec<Insn>, places: &mut Vec<usize>) {
    let helper = HelperId(helpers::ALL[random.below(helpers::ALL.len())].number);
    let Some(known) = signature(helper) else {
        return;
    };
    let specs = specs();
    let fitting: Vec<usize> = (0..specs.len())
        .filter(|&map| suits(helper, specs[map].map_type))
        .collect();
    for (register, argument) in (1..).zip(known.arguments()) {
        let slot = -8 * (1 + random.below(32) as i32);
        let stack = [
            insn(ALU64 | MOV | X, register, 10, 0, 0),
            insn(ALU64 | ADD | K, register, 0, 0, slot),
        ];
        use Argument::*;
        match argument {
            _ if random.below(24) == 0 => insns.extend(imm64(register, 0, odd_number(random))),
            Context => insns.push(insn(ALU64 | MOV | X, register, 6, 0, 0)),
            Map if fitting.is_empty() => {
                insns.extend(imm64(register, PSEUDO_MAP_FD, random.below(9) as u64));
            }
            Map => insns.extend(imm64(
                register,
                PSEUDO_MAP_FD,
                random.one_of(&fitting) as u64,
            )),
            Size | SizeOrZero => insns.push(insn(
                ALU64 | MOV | K,
                register,
                0,
                0,
                random.one_of(&[1, 4, 8, 16, -slot]),
            )),
            Callback => {
                places.push(insns.len());
                insns.extend(imm64(register, PSEUDO_FUNC, 0));
            }
            Stored => insns.extend(imm64(register, PSEUDO_MAP_VALUE, 0)),
            Record | Lock => insns.push(insn(ALU64 | MOV | X, register, 7, 0, 0)),
            Dynptr | RecordDynptr | NewDynptr | NewRecordDynptr => {
                insns.push(insn(ALU64 | MOV | X, register, 10, 0, 0));
                insns.push(insn(
                    ALU64 | ADD | K,
                    register,
                    0,
                    0,
                    random.one_of(&[-16, -32]),
                ));
            }
            Any => insns.push(insn(
                ALU64 | MOV | K,
                register,
                0,
                0,
                random.one_of(&[0, 0, 0, 1, 8, 16, 64]),
            )),
            _ => insns.extend(stack),
        }
    }
    insns.push(insn(JMP | CALL, 0, 0, 0, helper.0.cast_signed()));
    if returns(helper) {
        insns.extend([
            insn(JMP | JEQ | K, 0, 0, 1, 0),
            insn(ALU64 | MOV | X, 7, 0, 0, 0),
        ]);
    } else {
        insns.push(insn(ALU64 | MOV | K, 0, 0, 0, 0));
    }
    for register in 1..6 {
        insns.push(insn(ALU64 | MOV | K, register, 0, 0, 0));
    }
}
