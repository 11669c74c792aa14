//! The tables of indirect jumps.

use iced_x86::{Instruction as Decoded, Mnemonic, OpKind, Register};

use crate::arch::x86_64::instruction::Instruction;
use crate::survey::Survey;

/// A table that an indirect jump takes its target from.
pub(crate) struct JumpTable {
    /// The addresses at which it may start.
    pub starts: Vec<u64>,
    /// True if each entry is the distance from the table's start to the target.
    is_relative: bool,
}

/// The number of instructions before a jump within which it loads its target.
const LOADED_WITHIN: usize = 12;
/// An upper bound for the entries of a table.
const ENTRIES: usize = 2048;

impl JumpTable {
    /// Returns the table of the jump with that index; `None` if it loads its target from nothing
    /// that looks like one.
    pub fn of(survey: &Survey, jump: usize) -> Option<Self> {
        let load = table_load(survey, jump)?;
        let starts = match load.memory_base() {
            Register::None => vec![load.memory_displacement64()],
            base => loaded_addresses(survey, base)
                .map(|address| address.wrapping_add(load.memory_displacement64()))
                .collect(),
        };
        Some(Self {
            starts,
            is_relative: load.mnemonic() == Mnemonic::Movsxd,
        })
    }

    /// Returns the targets that the bytes hold, which are those at `start`.
    pub fn targets(&self, start: u64, bytes: &[u8]) -> Vec<u64> {
        match self.is_relative {
            true => relative_entries(bytes, start),
            false => absolute_entries(bytes),
        }
    }
}

/// Returns the instruction by which a jump gets its target from a table: itself, or one of those
/// before it.
fn table_load(survey: &Survey, jump: usize) -> Option<&Decoded> {
    let is_load = |instruction: &&Decoded| {
        let loads = matches!(
            instruction.mnemonic(),
            Mnemonic::Mov | Mnemonic::Movsxd | Mnemonic::Jmp
        );
        let kinds = instruction.op_kinds().any(|kind| kind == OpKind::Memory);
        loads
            && kinds
            && instruction.memory_index() != Register::None
            && matches!(instruction.memory_index_scale(), 4 | 8)
    };
    let first = jump.saturating_sub(LOADED_WITHIN);
    survey.instructions[first..=jump]
        .iter()
        .rev()
        .enumerate()
        .take_while(|(back, instruction)| *back == 0 || !instruction.ends_flow())
        .map(|(_, instruction)| instruction.decoded())
        .find(is_load)
}

/// Returns all addresses near its code that the function ever loads into the register.
fn loaded_addresses(survey: &Survey, register: Register) -> impl Iterator<Item = u64> {
    survey
        .instructions
        .iter()
        .map(Instruction::decoded)
        .filter(move |instruction| {
            instruction.mnemonic() == Mnemonic::Lea
                && instruction.op0_register() == register
                && instruction.is_ip_rel_memory_operand()
        })
        .map(Decoded::ip_rel_memory_address)
}

fn relative_entries(bytes: &[u8], base: u64) -> Vec<u64> {
    let (entries, _) = bytes.as_chunks();
    let target = |entry: &[u8; 4]| base.wrapping_add_signed(i32::from_le_bytes(*entry).into());
    entries.iter().take(ENTRIES).map(target).collect()
}

fn absolute_entries(bytes: &[u8]) -> Vec<u64> {
    let (entries, _) = bytes.as_chunks();
    let target = |entry: &[u8; 8]| u64::from_le_bytes(*entry);
    entries.iter().take(ENTRIES).map(target).collect()
}
