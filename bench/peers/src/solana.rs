//! Solana's engines, without what it adds for a blockchain: metering, address translation, noise against guessing.

use anyhow::{Context, anyhow};
use beeline_bench::engines::{Contestant, Memory, Outcome, Prepared, Program, Workshop, timed};
use solana_sbpf::aligned_memory::AlignedMemory;
use solana_sbpf::ebpf;
use solana_sbpf::elf::Executable;
use solana_sbpf::error::ProgramResult;
use solana_sbpf::memory_region::{MemoryMapping, MemoryRegion};
use solana_sbpf::program::{BuiltinProgram, FunctionRegistry, SBPFVersion};
use solana_sbpf::verifier::RequisiteVerifier;
use solana_sbpf::vm::{CallFrame, Config, ContextObject, EbpfVm, ExecutionMode};
use std::ptr::NonNull;
use std::sync::Arc;

/// A way in which solana-sbpf runs programs.
#[derive(Clone, Copy)]
pub enum Solana {
    Interpreter,
    Jit,
}

impl Contestant for Solana {
    fn name(&self) -> &'static str {
        match self {
            Solana::Interpreter => "solana interp",
            Solana::Jit => "solana jit",
        }
    }

    fn prepare(&self, program: &Program, workshop: &Workshop) -> anyhow::Result<Box<dyn Prepared>> {
        let config = Config {
            enable_instruction_meter: false,
            enable_address_translation: false,
            noop_instruction_rate: 0,
            sanitize_user_provided_values: false,
            ..Config::default()
        };
        let executable = Executable::<Unmetered>::from_text_bytes(
            &workshop.bytecode(program, "v2")?,
            Arc::new(BuiltinProgram::new_loader(config)),
            SBPFVersion::V0,
            FunctionRegistry::default(),
        );
        let executable = executable.map_err(|why| anyhow!("{why:?}"))?;
        executable
            .verify::<RequisiteVerifier>()
            .map_err(|why| anyhow!("{why:?}"))?;
        if let Solana::Jit = self {
            executable.jit_compile().map_err(|why| anyhow!("{why:?}"))?;
        }
        Ok(Box::new(Loaded {
            way: *self,
            stack: AlignedMemory::zero_filled(executable.get_config().stack_size()),
            executable,
            memory: Memory::of(&program.memory()),
        }))
    }
}

/// The surroundings of a program that may run for ever.
struct Unmetered(Option<MemoryMapping>);

impl ContextObject for Unmetered {
    fn consume(&mut self, _: u64) {}

    fn get_remaining(&self) -> u64 {
        u64::MAX
    }

    fn active_mapping_ptr(&mut self) -> NonNull<MemoryMapping> {
        self.0.as_mut().map_or(NonNull::dangling(), NonNull::from)
    }
}

struct Loaded {
    way: Solana,
    executable: Executable<Unmetered>,
    stack: AlignedMemory<{ ebpf::HOST_ALIGN }>,
    memory: Memory,
}

impl Prepared for Loaded {
    fn run(&mut self, times: u32) -> anyhow::Result<Outcome> {
        let version = self.executable.get_sbpf_version();
        let stack_len = self.stack.len();
        let regions = vec![MemoryRegion::new(
            self.stack.as_slice_mut() as *mut [u8],
            ebpf::MM_STACK_START,
        )];
        // SAFETY: the stack outlives the mapping, and is bytes.
        let mapping = unsafe { MemoryMapping::new(regions, self.executable.get_config(), version) };
        let mut surroundings = Unmetered(Some(mapping.map_err(|why| anyhow!("{why:?}"))?));
        let loader = self.executable.get_loader().clone();
        let mut machine = EbpfVm::new(loader, version, &mut surroundings, stack_len);
        machine.registers[1] = self.memory.start().expose_provenance() as u64;
        let registers = machine.registers;
        let mut frames = vec![CallFrame::default(); self.executable.get_config().max_call_depth];
        let mut failure = None;
        let outcome = timed(times, || {
            machine.registers = registers;
            let mut mode = match self.way {
                Solana::Interpreter => ExecutionMode::Interpreted,
                Solana::Jit => ExecutionMode::Jit,
            };
            let (_, result) = machine.execute_program(&self.executable, &mut mode, &mut frames);
            match result {
                ProgramResult::Ok(result) => result,
                ProgramResult::Err(why) => {
                    failure = Some(why);
                    0
                }
            }
        });
        match failure {
            None => Ok(outcome),
            Some(why) => Err(anyhow!("{why:?}")).context("the program was stopped"),
        }
    }
}
