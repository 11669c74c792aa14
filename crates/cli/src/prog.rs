//! `beeline prog`: works on programs of an object file, without a tool and without anything to
//! attach to.

pub mod disasm;
pub mod file;
pub mod loaded;
mod run;

use std::process::ExitCode;
use std::sync::Arc;

use beeline_codegen::{Baseline, Compiler, Machine};
use beeline_runtime::engines::{Choice, Engines};
use clap::{Subcommand, ValueEnum};

use crate::engines::optimizer;
use crate::say;

/// The commands for single programs.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a program here and print its result and the time that it takes
    Run(run::Arguments),
    /// Print a program's instructions, and the machine code beside them
    Disasm(disasm::Arguments),
}

/// Runs one of the commands.
///
/// # Errors
///
/// Those of the command.
pub fn prog(command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Run(arguments) => run::run(arguments),
        Command::Disasm(arguments) => disasm::disasm(arguments),
    }
}

/// A compiler of machine code.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum CompilerName {
    /// The baseline compiler
    #[default]
    #[value(alias = "light")]
    Baseline,
    /// LLVM
    Llvm,
}

impl CompilerName {
    /// Returns the compiler.
    ///
    /// # Errors
    /// Fails if it is not installed.
    pub fn compiler(self) -> anyhow::Result<Box<dyn Compiler + Send + Sync>> {
        Ok(match self {
            Self::Baseline => Box::new(Baseline),
            Self::Llvm => optimizer()?,
        })
    }

    /// Returns engines that use this compiler's code.
    ///
    /// # Errors
    ///
    /// Fails if the compiler is not installed.
    pub fn engines(self) -> anyhow::Result<Engines> {
        let engines = |choice| Engines::new(choice, Arc::new(say));
        Ok(match self {
            Self::Baseline => engines(Choice::Baseline),
            Self::Llvm => engines(Choice::Optimized).with_optimizer(self.compiler()?),
        })
    }
}

/// A processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "kebab-case")]
pub enum MachineName {
    #[value(name = "x86-64", alias = "x86_64")]
    X86_64,
    Aarch64,
}

impl From<MachineName> for Machine {
    fn from(name: MachineName) -> Self {
        match name {
            MachineName::X86_64 => Self::X86_64,
            MachineName::Aarch64 => Self::Aarch64,
        }
    }
}

/// Returns the requested machine, or this one.
pub fn machine(asked: Option<MachineName>) -> Machine {
    asked.map_or(Machine::HERE.unwrap_or(Machine::X86_64), Machine::from)
}
