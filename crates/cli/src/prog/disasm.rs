//! `beeline prog disasm`: shows bytecode, machine code and source lines side by side.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use beeline_codegen::{Code, Machine};
use beeline_isa::{Insn, Listing};
use beeline_object::{Line, Object, ObjectProgram};
use beeline_vm_protocol::text::printable;
use clap::Args;
use iced_x86::{Decoder, DecoderOptions, Formatter, IntelFormatter};

use super::file::File;
use super::loaded::{Loaded, map_indexes};
use super::{CompilerName, MachineName, machine};

#[derive(Debug, Args)]
pub struct Arguments {
    /// An object file of clang -target bpf, or a file of `beeline compile`
    file: PathBuf,
    /// Only the programs of this section
    #[arg(long)]
    section: Option<String>,
    /// Only this program
    #[arg(long)]
    program: Option<String>,
    /// Show machine code beside the bytecode
    #[arg(long)]
    jited: bool,
    /// The machine to compile for [default: this one]
    #[arg(long, value_enum, requires = "jited")]
    machine: Option<MachineName>,
    /// The compiler of the machine code
    #[arg(long, value_enum, default_value_t, requires = "jited")]
    engine: CompilerName,
}

/// The columns of bytecode when machine code stands beside it.
const BYTECODE: usize = 56;

/// Prints the selected programs of a file.
///
/// # Errors
///
/// Fails if the file cannot be read, has no such program, or the program cannot be compiled.
pub fn disasm(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let file = File::read(&arguments.file)?;
    let programs = file.select(arguments.section.as_deref(), arguments.program.as_deref())?;
    let machine = machine(arguments.machine);
    for (number, program) in programs.into_iter().enumerate() {
        let code = match arguments.jited {
            true => Some(compiled(&file.object, program, arguments.engine, machine)?),
            false => None,
        };
        let gap = if number > 0 { "\n" } else { "" };
        let listing = listing(&file.object, program, code.as_ref(), machine)?;
        // Names and source lines are the file's.
        let text = format!("{gap}{} ({}):\n{listing}", program.section, program.name);
        print!("{}", printable(&text));
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the code that a session would run, here or on the given machine.
fn compiled(
    object: &Object,
    program: &ObjectProgram,
    engine: CompilerName,
    machine: Machine,
) -> anyhow::Result<Code> {
    let mut loaded = Loaded::new(object, CompilerName::Baseline.engines()?)?;
    let id = loaded.program(program)?;
    let (source, ..) = loaded.compiled(id)?;
    let code = engine.compiler()?.compile(&source.program(), machine);
    code.with_context(|| format!("program {}", program.name))
}

fn listing(
    object: &Object,
    program: &ObjectProgram,
    code: Option<&Code>,
    machine: Machine,
) -> anyhow::Result<String> {
    let mut text = String::new();
    let mut place = 0;
    while let Some(insn) = program.insns.get(place) {
        if let Some((_, name)) = program.functions.iter().find(|(at, _)| *at == place)
            && place > 0
        {
            writeln!(text, "{name}:")?;
        }
        for line in lines_at(program, place) {
            let (file, number, column) = (&line.file, line.line, line.column);
            writeln!(text, "; {} [{file}:{number}:{column}]", line.text)?;
        }
        let slots = if insn.is_imm64() { 2 } else { 1 };
        let insns = program.insns.get(place..).unwrap_or_default();
        let shown = instruction(object, insns.get(..slots).unwrap_or(insns));
        let left = format!("{place:4}: ({:02x}) {shown}", insn.code);
        match code {
            Some(code) => beside(&mut text, &left, &machine_code(code, place, machine))?,
            None => writeln!(text, "{left}")?,
        }
        place += slots;
    }
    if let Some(code) = code.filter(|code| code.insns.is_empty()) {
        // This compiler moves instructions across each other.
        for line in lines_of_code(&code.bytes, 0, machine) {
            writeln!(text, "{line}")?;
        }
    }
    Ok(text)
}

/// Returns the source lines that begin at an instruction. Compilers give number 0 to code that
/// comes from no line.
fn lines_at(program: &ObjectProgram, place: usize) -> impl Iterator<Item = &Line> {
    let mut lines = program.lines.iter();
    std::iter::from_fn(move || lines.find(|line| line.insn == place && line.line > 0))
}

/// Returns one instruction's text, with maps by their names.
pub fn instruction(object: &Object, slots: &[Insn]) -> String {
    let listed = Listing(slots).to_string();
    let mut text = match listed.split_once(") ") {
        Some((_, text)) => text.trim_end().to_owned(),
        None => listed,
    };
    for index in map_indexes(slots) {
        let map = usize::try_from(index)
            .ok()
            .and_then(|at| object.maps.get(at));
        if let Some(map) = map {
            text = text.replace(&format!("[fd:{index}]"), &format!("[{}]", map.name));
        }
    }
    text
}

fn beside(text: &mut String, left: &str, right: &[String]) -> std::fmt::Result {
    let Some((first, rest)) = right.split_first() else {
        return writeln!(text, "{left}");
    };
    writeln!(text, "{left:BYTECODE$} {first}")?;
    rest.iter()
        .try_for_each(|line| writeln!(text, "{:BYTECODE$} {line}", ""))
}

/// Returns the machine code of an instruction, a line for each of the machine's instructions.
fn machine_code(code: &Code, insn: usize, machine: Machine) -> Vec<String> {
    let Some(number) = code.insns.iter().position(|it| it.insn as usize == insn) else {
        return Vec::new();
    };
    let bound = |number: usize| code.insns.get(number).map(|it| it.at as usize);
    let start = bound(number).unwrap_or(0);
    let end = bound(number + 1).unwrap_or(code.bytes.len());
    lines_of_code(
        code.bytes.get(start..end).unwrap_or_default(),
        start,
        machine,
    )
}

fn lines_of_code(bytes: &[u8], start: usize, machine: Machine) -> Vec<String> {
    if machine == Machine::Aarch64 {
        let words = bytes.as_chunks::<4>().0.iter().enumerate();
        return words
            .map(|(number, word)| {
                format!(
                    "{:5x}:  .word {:#010x}",
                    start + 4 * number,
                    u32::from_le_bytes(*word)
                )
            })
            .collect();
    }
    let mut formatter = IntelFormatter::new();
    formatter.options_mut().set_hex_prefix("0x");
    formatter.options_mut().set_hex_suffix("");
    formatter
        .options_mut()
        .set_space_after_operand_separator(true);
    let insns = Decoder::with_ip(64, bytes, start as u64, DecoderOptions::NONE);
    insns
        .into_iter()
        .map(|insn| {
            let mut text = String::new();
            formatter.format(&insn, &mut text);
            format!("{:5x}:  {text}", insn.ip())
        })
        .collect()
}
