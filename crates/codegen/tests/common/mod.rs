//! Shared parts of the tests of compiled code: a place to run it, and a small assembler.
#![allow(dead_code, unused_imports, reason = "every test binary uses its part")]

pub mod atomics;
pub mod scenarios;
pub mod tails;
pub mod vectors;

use std::mem::MaybeUninit;
use std::{io, ptr};

use beeline_codegen::{Baseline, Bytecode, Code, Compiler, Error, Executable, Machine};
pub use beeline_fuzz::asm::*;
use beeline_fuzz::kernel;
pub use beeline_fuzz::program as random;
use beeline_isa::Insn;
use beeline_isa::abi::{HELPER_SLOTS, Helper, Run};
use beeline_uapi::ProgramType;
use beeline_verifier::program::{Kind, Map};
use beeline_verifier::types::ProgramTypes;
use beeline_verifier::verdict::LogLevel;
use beeline_verifier::{function_starts, verify};

/// Panics if a socket filter is not accepted.
pub fn accept(insns: &[Insn], maps: &[(i32, &Map)]) {
    let kind = Kind {
        prog_type: ProgramType::SOCKET_FILTER,
        ..Kind::default()
    };
    let starts = function_starts(insns).unwrap_or_else(|reject| panic!("{reject}"));
    let (btf, functions) = kernel::functions(&starts);
    let types = ProgramTypes::new(&btf, &functions, &[], &kind, insns, &starts, None);
    let program = beeline_verifier::program::Program {
        kind,
        gpl: true,
        insns,
        maps,
        types: Some(&types.expect("good type information")),
        kernel: None,
        ..Default::default()
    };
    let verdict = verify(&program, LogLevel(LogLevel::PATH));
    if verdict.result.is_err() {
        panic!("{}", verdict.log);
    }
}

/// Compiles a program with unknown maps.
pub fn compile(insns: &[Insn]) -> Result<Code, Error> {
    Baseline.compile(&Bytecode::new(insns), Machine::X86_64)
}

/// Compiles a program and maps it; panics, with its text, if that fails.
pub fn executable(insns: &[Insn]) -> Executable {
    let code =
        compile(insns).unwrap_or_else(|error| panic!("{error}\n{}", beeline_isa::Listing(insns)));
    Executable::of(code).expect("executable memory")
}

/// Runs a program that needs neither context nor run, and accesses its own stack only.
pub fn result(insns: &[Insn]) -> u64 {
    let program = executable(insns);
    assert!(!program.code().uses_run);
    // SAFETY: as stated above.
    unsafe { program.call(ptr::null(), ptr::null()) }
}

/// A [`Run`] with its tables.
pub struct Environment {
    helpers: Box<[usize; HELPER_SLOTS]>,
    maps: Vec<usize>,
    values: Vec<usize>,
}

impl Environment {
    pub fn new(helpers: &[(usize, Helper)], maps: &[usize], values: &[usize]) -> Self {
        let mut table = Box::new([0; HELPER_SLOTS]);
        for &(id, helper) in helpers {
            table[id] = helper as *const () as usize;
        }
        Self {
            helpers: table,
            maps: maps.to_vec(),
            values: values.to_vec(),
        }
    }

    pub fn run(&self) -> Run {
        Run {
            helpers: self.helpers.as_ptr(),
            maps: self.maps.as_ptr(),
            values: self.values.as_ptr(),
            map_count: self.maps.len(),
            context: ptr::null(),
        }
    }
}

/// Runs `body` in a forked child, so that a crash in it is a result; `None` if it did not finish.
pub fn in_child<T: Copy>(body: impl FnOnce() -> T) -> Option<T> {
    let mut pipe = [0; 2];
    // SAFETY: `pipe` has room for two descriptors.
    assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
    // SAFETY: the child runs only `body`, which takes no lock that another thread may hold, write
    // and _exit.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "{}", io::Error::last_os_error());
    let mut result = MaybeUninit::<T>::uninit();
    if child == 0 {
        // SAFETY: the buffer is as long as said; _exit does not return.
        unsafe {
            libc::alarm(5);
            result.write(body());
            libc::write(pipe[1], result.as_ptr().cast(), size_of::<T>());
            libc::_exit(0);
        }
    }
    // SAFETY: the descriptors are ours and open, the buffer is as long as said, and the child is
    // ours.
    let bytes = unsafe {
        libc::close(pipe[1]);
        let bytes = libc::read(pipe[0], result.as_mut_ptr().cast(), size_of::<T>());
        libc::close(pipe[0]);
        libc::waitpid(child, ptr::null_mut(), 0);
        bytes
    };
    // SAFETY: the same program's bytes of the same type, whole.
    (bytes as usize == size_of::<T>()).then(|| unsafe { result.assume_init() })
}
