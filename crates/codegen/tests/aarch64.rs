//! Code for aarch64, run under qemu-user: it gives the results of the same compiler's code for
//! x86-64, and follows the platform's rules.

mod common;

use std::ptr;
use std::sync::{Mutex, MutexGuard, OnceLock};

use beeline_aarch64::{Array, Image, Job, Outcome, Runner};
use beeline_codegen::{Baseline, Bytecode, Code, Compiler, Error, Machine, MapShape};
use beeline_isa::{Insn, Listing, imm64, opcode::*};
use beeline_verifier::resolve;

use beeline_fuzz::Random;
use common::random;
use common::scenarios::scenarios;
use common::vectors;
use common::{
    EXIT as END, alu, alu_imm, branch, call, executable, load, mov, mov_reg, result, store,
};
use common::{atomics, tails};

/// `BPF_FUNC_loop`.
const LOOP: u32 = 181;

/// Returns the one runner of all tests; `None`, with a message, if there can be none.
fn runner() -> Option<MutexGuard<'static, Runner>> {
    static RUNNER: OnceLock<Result<Mutex<Runner>, String>> = OnceLock::new();
    match RUNNER.get_or_init(|| Runner::start().map(Mutex::new)) {
        Ok(runner) => Some(runner.lock().unwrap_or_else(|broken| broken.into_inner())),
        Err(why) => {
            eprintln!("skipped: {why}");
            None
        }
    }
}

fn compile(insns: &[Insn]) -> Result<Code, Error> {
    Baseline.compile(&Bytecode::new(insns), Machine::Aarch64)
}

fn compiled(insns: &[Insn]) -> Code {
    compile(insns).unwrap_or_else(|error| panic!("{error}\n{}", Listing(insns)))
}

fn run_all(runner: &mut Runner, programs: &[&[Insn]], context: &[u8]) -> Outcome {
    let codes: Vec<Code> = programs.iter().map(|insns| compiled(insns)).collect();
    let outcome = runner.run_programs(&codes, context, None);
    let texts = || programs.iter().map(|insns| Listing(insns).to_string());
    let text = || texts().collect::<Vec<_>>().join("\n");
    let outcome = outcome.unwrap_or_else(|broken| panic!("{broken}\n{}", text()));
    assert!(outcome.result.is_ok(), "{:?}\n{}", outcome.result, text());
    outcome
}

fn run(runner: &mut Runner, insns: &[Insn]) -> u64 {
    run_all(runner, &[insns], &[]).result.expect("no fault")
}

#[test]
fn every_vector_gives_its_result() {
    let Some(mut runner) = runner() else { return };
    let (mut passed, mut failed) = (0, Vec::new());
    for vector in vectors::all()
        .iter()
        .filter(|vector| vector.name != "callx")
    {
        let code = compiled(&vector.insns);
        let image = Image {
            code: &code.bytes,
            maps: &[],
        };
        let job = Job {
            programs: &[image],
            context: &vector.memory,
            second: (!code.uses_run).then_some(vector.memory.len() as u64),
        };
        match runner.run(&job).expect("the runner runs").result {
            Ok(result) if result == vector.expected => passed += 1,
            result => failed.push(format!(
                "{}: expected {:#x}, got {result:x?}",
                vector.name, vector.expected
            )),
        }
    }
    eprintln!("{passed} conformance vectors passed");
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert_eq!(passed, 312);
}

#[test]
fn random_programs_give_what_they_give_on_x86_64() {
    let Some(mut runner) = runner() else { return };
    for seed in 0..3000 {
        let insns = random::program(seed, 8 + (seed % 5) as usize * 16);
        let expected = result(&insns);
        let found = run(&mut runner, &insns);
        assert_eq!(found, expected, "seed {seed}\n{}", Listing(&insns));
    }
}

#[test]
fn random_callbacks_and_tail_calls_give_what_they_give_on_x86_64() {
    const PROGRAMS: u64 = 3;
    let Some(mut runner) = runner() else { return };
    let looping = beeline_agent::helpers::ALL
        .iter()
        .find(|known| known.number == LOOP)
        .expect("a helper of the agent");
    for seed in 0..400 {
        let insns = random::looping(seed, 4 + (seed % 4) as usize * 4);
        let found = run(&mut runner, &insns);
        let expected = tails::run(&Baseline, &[insns], &[(LOOP as usize, looping.helper)]);
        assert_eq!(found, expected, "seed {seed}");
        let programs: Vec<Vec<Insn>> = (0..PROGRAMS)
            .map(|number| {
                let insns = random::tail_calling(seed * PROGRAMS + number, 6, PROGRAMS, 3);
                resolve(&insns, &[(3, 0)]).expect("one map")
            })
            .collect();
        let slices: Vec<&[Insn]> = programs.iter().map(Vec::as_slice).collect();
        let found = run_all(&mut runner, &slices, &[]).result;
        assert_eq!(
            found,
            Ok(tails::run(&Baseline, &programs, &[])),
            "seed {seed}"
        );
    }
}

#[test]
fn every_scenario_gives_its_result() {
    let Some(mut runner) = runner() else { return };
    for scenario in scenarios() {
        let programs: Vec<&[Insn]> = scenario.programs.iter().map(Vec::as_slice).collect();
        let outcome = run_all(&mut runner, &programs, &5_u64.to_le_bytes());
        assert_eq!(outcome.result, Ok(scenario.expected), "{}", scenario.name);
    }
}

#[test]
fn atomics_do_what_the_instruction_set_says() {
    let Some(mut runner) = runner() else { return };
    atomics::atomics_on_all_registers(|insns| run(&mut runner, insns));
    atomics::compare_and_exchange_in_both_outcomes(|insns| run(&mut runner, insns));
}

#[test]
fn all_constants_can_be_had() {
    let Some(mut runner) = runner() else { return };
    let parts = [0, 1, 0x8000, 0xfffe, 0xffff, 0x5555];
    for (at, low) in (0..parts.len().pow(4)).zip([7, -7, 4095, -4096, 1 << 23].iter().cycle()) {
        let value = (0..4).fold(0, |value, part| {
            value << 16 | parts[at / parts.len().pow(part) % parts.len()]
        });
        let [first, second] = imm64(0, 0, value);
        let insns = [
            first,
            second,
            alu_imm(ADD, 0, *low),
            alu_imm(SUB, 0, 5),
            END,
        ];
        let expected = value.wrapping_add_signed(*low as i64 - 5);
        assert_eq!(run(&mut runner, &insns), expected, "{value:#x}");
    }
}

/// Bytes on either side of r6's target.
const REACH: usize = 1 << 15;

/// Accesses of all kinds in the [`REACH`] of r6, the middle of the context; r0 depends on every
/// load.
fn accesses(seed: u64) -> Vec<Insn> {
    const OFFSETS: [i64; 14] = [
        0, 1, 7, 255, 256, 257, 4095, 4096, 8190, 16_380, 16_384, 32_760, 32_759, 20_001,
    ];
    let mut random = Random::new(seed);
    let mut insns = vec![mov_reg(6, 1), alu_imm(ADD, 6, REACH as i32)];
    for register in [0, 7, 8] {
        insns.extend(imm64(register, 0, random.bits()));
    }
    for _ in 0..40 {
        let size = random.pick(&[B, H, W, DW]);
        let bytes = [4, 2, 1, 8][usize::from(size >> 3)];
        let off = random.pick(&OFFSETS) * random.pick(&[1, -1]);
        let aligned = (off / bytes * bytes) as i16;
        let off = off as i16;
        let access = |code, dst, src, off, imm| Insn {
            code,
            dst,
            src,
            off,
            imm,
        };
        let imm = random.bits() as i32;
        let wide = random.pick(&[W, DW]);
        let [near, word] = [off.clamp(-512, 511), aligned & !7];
        let (load, store) = (LDX | MEM | size, STX | MEM | size);
        insns.push(match random.below(8) {
            0 => access(load, 7, 6, off, 0),
            1 => access(load, 7, 6, near, 0),
            2 if size != DW => access(LDX | MEMSX | size, 7, 6, off, 0),
            3 => access(store, 6, 8, off, 0),
            4 => access(ST | MEM | size, 6, 0, off, imm),
            5 => access(STX | ATOMIC | size, 7, 6, aligned, LOAD_ACQ),
            6 => access(STX | ATOMIC | size, 6, 8, aligned, STORE_REL),
            _ => access(
                STX | ATOMIC | wide,
                6,
                8,
                word,
                i32::from(ADD) | random.pick(&[0, FETCH]),
            ),
        });
        insns.extend([alu(XOR, 0, 7), alu_imm(MUL, 0, 31), alu(ADD, 8, 0)]);
    }
    insns.push(END);
    insns
}

#[test]
fn accesses_at_all_distances_do_what_they_do_on_x86_64() {
    let Some(mut runner) = runner() else { return };
    for seed in 0..100 {
        let insns = accesses(seed);
        let mut context: Vec<u8> = (0..2 * REACH + 8).map(|at| (at * 37 % 251) as u8).collect();
        let outcome = run_all(&mut runner, &[&insns], &context);
        // SAFETY: the program accesses its context only, and needs no run.
        let expected = unsafe { executable(&insns).call(context.as_mut_ptr(), ptr::null()) };
        assert_eq!(outcome.result, Ok(expected), "{seed}\n{}", Listing(&insns));
        assert!(outcome.context == context, "{seed}\n{}", Listing(&insns));
    }
}

/// Programs longer than the reach of a conditional branch, in all directions, and with functions at
/// both ends.
#[test]
fn programs_of_megabytes() {
    let Some(mut runner) = runner() else { return };
    for length in [60_000, 400_000] {
        // r0 = 1; twice forwards over all, and back again; then the callback behind the end, which
        // gives 5.
        let far = |code, off: i32| Insn {
            code,
            dst: 0,
            src: 0,
            off: 0,
            imm: off,
        };
        let filler = alu_imm(XOR, 9, 0x1234_5678);
        let block = [filler; 30_000];
        let mut insns = vec![mov(9, 0), mov(0, 1), mov(6, 0)];
        // A chain of branches, each as far as an offset goes.
        while insns.len() < length {
            insns.push(branch(JEQ, 0, 1, 30_000));
            insns.extend(block);
        }
        insns.push(alu_imm(ADD, 6, 1));
        insns.push(branch(JGT, 6, 1, 1));
        let back = 2 - insns.len() as i32;
        insns.push(far(JMP32 | JA, back));
        let here = insns.len() as i32;
        insns.extend(common::scenarios::call_with_function(here, here + 7, 200));
        insns.extend([alu_imm(MUL, 0, 10), alu(ADD, 0, 6), alu(ADD, 0, 9), END]);
        insns.extend([mov_reg(0, 5), END]);
        assert_eq!(run(&mut runner, &insns), 52, "{length}");
        assert_eq!(compiled(&insns).bytes.len() > 1 << 20, length > 60_000);
    }
}

/// Does the same as [`look_up`], for the CPU of this number.
fn look_up_of_cpu(key: i32, cpu: i32) -> Vec<Insn> {
    let mut insns = look_up(key, false);
    let at = insns.iter().position(|insn| *insn == call(1));
    let at = at.expect("a call");
    insns.splice(at..=at, [mov(3, cpu), call(195)]);
    insns
}

/// `r0 = *map_lookup_elem(map, &key)`, or -1 if there is no such element. The compiler knows the
/// key, or not.
fn look_up(key: i32, is_known: bool) -> Vec<Insn> {
    let mut insns = vec![mov(3, key), alu(OR, 3, 3), store(10, -8, 3)];
    if is_known {
        insns.remove(1);
    }
    insns.extend(imm64(1, PSEUDO_MAP_FD, 0));
    insns.extend([mov_reg(2, 10), alu_imm(ADD, 2, -8), call(1)]);
    insns.extend([branch(JNE, 0, 0, 2), mov(0, -1), END, load(0, 0, 0), END]);
    insns
}

#[test]
fn inlined_helpers_behave_as_the_called_ones() {
    let Some(mut runner) = runner() else { return };
    let mut result = |insns: &[Insn], shape: MapShape, stride: usize| {
        let program = Bytecode {
            maps: &[shape],
            in_agent: true,
            ..Bytecode::new(insns)
        };
        let code = Baseline.compile(&program, Machine::Aarch64);
        let values = (0..10 * stride).map(|at| (at / stride) as u8).collect();
        let image = Image {
            code: &code.expect("a good program").bytes,
            maps: &[Array {
                value_bytes: stride,
                values,
            }],
        };
        let job = Job {
            programs: &[image],
            context: &[],
            second: None,
        };
        let outcome = runner.run(&job).expect("the runner runs");
        outcome.result.expect("no fault")
    };
    for stride in [8, 16, 24, 5000, 1 << 16] {
        let (entries, cpu_stride) = (5, stride * 5);
        let array = MapShape::Array { entries, stride };
        let per_cpu = MapShape::PerCpuArray {
            entries,
            stride,
            cpu_stride,
            cpus: 2,
        };
        for (key, is_known) in [-1, 0, 1, 4, 5, i32::MIN]
            .into_iter()
            .flat_map(|key| [(key, false), (key, true)])
        {
            let element = |first: u64| match key {
                0..5 => (first + key as u64) * 0x0101_0101_0101_0101,
                _ => u64::MAX,
            };
            let insns = look_up(key, is_known);
            let mut found = |shape| result(&insns, shape, stride as usize);
            assert_eq!(found(array), element(0), "{key} {stride}");
            assert_eq!(found(per_cpu), element(5), "{key} {stride}");
            for cpu in [-1, 0, 1, 2] {
                let of_cpu = result(&look_up_of_cpu(key, cpu), per_cpu, stride as usize);
                let expected = match cpu {
                    0 | 1 => element(5 * cpu as u64),
                    _ => u64::MAX,
                };
                assert_eq!(of_cpu, expected, "{key} of {cpu} {stride}");
            }
            let mut found = |shape| result(&insns, shape, stride as usize);
            if key != 5 {
                assert_eq!(found(MapShape::Opaque), element(0), "{key} {stride}");
            }
        }
    }
    for (helper, expected) in [(8, 1), (173, 0x517e), (174, 0xc0_0c1e)] {
        assert_eq!(result(&[call(helper), END], MapShape::Opaque, 8), expected);
    }
}

#[test]
fn the_code_of_each_instruction_is_found() {
    for seed in 0..50 {
        let insns = random::program(seed, 60);
        let [x86_64, aarch64] = [Machine::X86_64, Machine::Aarch64].map(|machine| {
            let compiled = Baseline.compile(&Bytecode::new(&insns), machine);
            compiled.expect("a good program")
        });
        let places = &aarch64.insns;
        assert_eq!(
            places.first().map(|place| (place.at, place.insn)),
            Some((0, 0))
        );
        assert!(places.is_sorted_by_key(|place| place.at));
        assert!(places.iter().all(|place| place.at % 4 == 0));
        let slots: Vec<u32> = places.iter().map(|place| place.insn).collect();
        // A fused instruction has no place of its own.
        assert!(x86_64.insns.iter().all(|place| slots.contains(&place.insn)));
    }
}

#[test]
fn helpers_beyond_the_table_are_refused() {
    assert!(matches!(
        compile(&[call(256), END]),
        Err(Error::NoSuchHelper { insn: 0, id: 256 })
    ));
}
