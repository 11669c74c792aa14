//! Programs that tail call each other.

use std::fs::File;
use std::os::fd::AsRawFd;

use beeline_fuzz::{kernel as bpf, program};
use beeline_isa::Insn;
use beeline_uapi::{MapType, ProgramType};
use beeline_verifier::{Flow, resolve};

use crate::judge::{
    ENGINES, Judge, KERNEL, PLACES, Verdict, has_given_up, processor_time, same, words,
};
use crate::programs::tails;

const PROGRAMS: usize = 3;

/// Returns the programs of a seed, for an array of programs with this descriptor.
pub fn programs_of(seed: u64, array: i32) -> [Vec<Insn>; PROGRAMS] {
    let length = [2, 4, 6, 12][(seed / 16 % 4) as usize];
    let of = |number| {
        seed.wrapping_mul(PROGRAMS as u64)
            .wrapping_add(number as u64)
    };
    std::array::from_fn(|number| program::tail_calling(of(number), length, PROGRAMS as u64, array))
}

impl Judge {
    /// Runs the first of a seed's programs wherever there is time for it; calls `entering` with
    /// each place first.
    pub fn judge_tail_calls(&mut self, seed: u64, mut entering: impl FnMut(usize)) -> Verdict {
        let mut due = self.due();
        // Another test compares that machine's runs of such programs.
        due[ENGINES] = false;
        due[KERNEL] &= self.kernel.is_some();
        let mut expected = None;
        if due[KERNEL] {
            entering(KERNEL);
            let start = processor_time();
            let ran = run_in_kernel(seed);
            self.spent[KERNEL] += processor_time() - start;
            match ran {
                Ok(result) => expected = Some(result),
                Err(refusal) if has_given_up(&refusal) => return Verdict::GivenUp,
                Err(refusal) => return Verdict::Refused(words(&refusal)),
            }
        }
        const ARRAY: i32 = 3;
        let resolved = programs_of(seed, ARRAY);
        let resolved = resolved.map(|insns| resolve(&insns, &[(ARRAY, 0)]).expect("one map"));
        for place in (0..ENGINES).filter(|&place| due[place]) {
            entering(place);
            let start = processor_time();
            let result = tails::run(&*self.engines[place], &resolved, &[]) as u32;
            self.spent[place] += processor_time() - start;
            let found = format!("{result:#x}");
            if let Err(difference) = same(
                "r0",
                &found,
                &format!("{:#x}", *expected.get_or_insert(result)),
            ) {
                return Verdict::Differs(format!("{}: {difference}", PLACES[place]));
            }
        }
        Verdict::Same(due)
    }
}

/// Returns the low half of the first program's r0, or the reason why the kernel rejects one of
/// them.
fn run_in_kernel(seed: u64) -> Result<u32, bpf::Refusal> {
    let array = bpf::map(MapType::PROG_ARRAY, 4, 4, PROGRAMS as u32).expect("a program array");
    let programs = programs_of(seed, array.as_raw_fd());
    let load = |insns: &Vec<Insn>| {
        let flow = Flow::of(insns).expect("a good program");
        let starts: Vec<usize> = flow.functions().iter().map(|one| one.start).collect();
        bpf::load_functions(ProgramType::SOCKET_FILTER, insns, &starts)
    };
    let loaded: Vec<File> = programs.iter().map(load).collect::<Result<_, _>>()?;
    for (index, program) in (0..).zip(&loaded) {
        let set = bpf::set(&array, index, program.as_raw_fd() as u32);
        set.expect("a program of the array's type");
    }
    Ok(bpf::test_run(&loaded[0]).expect("a test run"))
}
