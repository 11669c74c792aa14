//! A plugin for the bpf_conformance suite (<https://github.com/Alan-Jowett/bpf_conformance>):
//!
//! ```text
//! bpf_conformance_plugin [MEMORY] [--engine interpreter|baseline|llvm] <PROGRAM
//! ```
//!
//! The program comes as hex bytes on standard input, the memory that r1 points to and whose length is in r2 as hex bytes in
//! the first argument, r0 goes as hex to standard output. Helper 5 is the suite's `unwind`. The suite hands all options over
//! in one argument, or in an empty one. Programs are not verified; but in the interpreter a bad one may take
//! this process with it.

use std::io::Read;
use std::process::ExitCode;
use std::ptr;

use beeline_codegen::{Baseline, Bytecode, Context, Engine, Interpreter};
use beeline_codegen_llvm::Llvm;
use beeline_isa::abi::{HELPER_SLOTS, Helper, Run};
use beeline_isa::{Insn, imm64};

/// The number of the suite's own helper.
const UNWIND: usize = 5;

fn main() -> ExitCode {
    match run(std::env::args().skip(1)) {
        Ok(r0) => {
            println!("{r0:x}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("bpf_conformance_plugin: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: impl Iterator<Item = String>) -> Result<u64, String> {
    let (memory, engine) = options(arguments)?;
    let mut memory = bytes(&memory)?;
    let mut text = String::new();
    std::io::stdin()
        .read_to_string(&mut text)
        .map_err(|error| format!("standard input: {error}"))?;
    let program = bytes(&text)?;
    // r2 = the memory's length: no engine passes it by itself.
    let mut insns = imm64(2, 0, memory.len() as u64).to_vec();
    insns.extend(Insn::decode_all(&program).map_err(|error| error.to_string())?);
    let runnable = engine
        .load(&Bytecode::new(&insns))
        .map_err(|error| error.to_string())?;

    let mut helpers = [0; HELPER_SLOTS];
    helpers[UNWIND] = unwind as Helper as usize;
    let start = if memory.is_empty() {
        ptr::null_mut()
    } else {
        memory.as_mut_ptr()
    };
    let context = Context {
        start,
        bytes: memory.len(),
    };
    let run = Run {
        helpers: helpers.as_ptr(),
        maps: ptr::null(),
        values: ptr::null(),
        map_count: 0,
        context: start,
    };
    // SAFETY: the tables are whole; that the suite's programs are good is for whoever runs them to know.
    let r0 = unsafe { runnable.run(context, &run) };
    r0.map_err(|fault| fault.to_string())
}

/// The memory, in hex, and the engine.
fn options(arguments: impl Iterator<Item = String>) -> Result<(String, Box<dyn Engine>), String> {
    let (mut memory, mut engine) = (String::new(), "baseline".to_owned());
    let arguments: Vec<_> = arguments.collect();
    let (first, options) = match &arguments[..] {
        [first, rest @ ..] if !first.starts_with('-') => (first.as_str(), rest),
        all => ("", all),
    };
    memory.push_str(first);
    let mut words = options.iter().flat_map(|option| option.split_whitespace());
    while let Some(word) = words.next() {
        match (word.strip_prefix("--engine="), word) {
            (Some(name), _) => engine = name.to_owned(),
            (None, "--engine") => {
                engine = words.next().ok_or("--engine needs a name")?.to_owned();
            }
            _ => return Err(format!("{word}: no such option; there is --engine")),
        }
    }
    Ok((memory, named(&engine)?))
}

fn named(engine: &str) -> Result<Box<dyn Engine>, String> {
    match engine {
        "interpreter" => Ok(Box::new(Interpreter::default())),
        "baseline" => Ok(Box::new(Baseline)),
        "llvm" => Ok(Box::new(Llvm)),
        _ => Err(format!(
            "{engine}: no such engine; there are baseline and llvm"
        )),
    }
}

/// Hex digits in pairs, with white space anywhere.
fn bytes(text: &str) -> Result<Vec<u8>, String> {
    let digits = text
        .chars()
        .filter(|character| !character.is_whitespace())
        .map(|character| character.to_digit(16).map(|digit| digit as u8))
        .collect::<Option<Vec<_>>>()
        .ok_or("something is no hex digit")?;
    let (pairs, rest) = digits.as_chunks::<2>();
    if !rest.is_empty() {
        return Err("an odd number of hex digits".to_owned());
    }
    Ok(pairs.iter().map(|[high, low]| high << 4 | low).collect())
}

/// The suite's helper: gives its argument back.
unsafe extern "sysv64" fn unwind(value: u64, _: u64, _: u64, _: u64, _: u64, _: *const Run) -> u64 {
    value
}
