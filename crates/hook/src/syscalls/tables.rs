//! The targets of a function's indirect jumps: the tables that compilers make of a `switch`.

use iced_x86::{FlowControl, Instruction, Mnemonic, OpKind, Register};

use crate::plan::{Function, ends_flow};
use crate::survey::Survey;

/// Returns the bytes of a file from an address on, as many as there are; `None` if nothing of the
/// file is there.
pub(super) type Data<'a> = dyn Fn(u64) -> Option<&'a [u8]> + 'a;

/// The known facts about a function's indirect jumps.
#[derive(Default)]
pub(super) struct Jumps {
    /// The targets of tables, in the function.
    pub targets: Vec<u64>,
    /// The first jump that may lead to anywhere in the function.
    pub unknown: Option<u64>,
}

/// The number of instructions before a jump within which it loads its target.
const LOADED_WITHIN: usize = 12;
/// An upper bound for the entries of a table.
const ENTRIES: usize = 2048;

impl Jumps {
    /// Follows all jumps. An address that is loaded from nothing that looks like a table is that of
    /// another function.
    pub fn of(function: &Function, survey: &Survey, data: &Data) -> Self {
        let mut jumps = Self::default();
        for (index, instruction) in survey.instructions.iter().enumerate() {
            let is_jump = instruction.flow_control() == FlowControl::IndirectBranch
                && !instruction.is_ip_rel_memory_operand();
            if is_jump
                && let Some(load) = table_load(survey, index)
                && !jumps.follow(load, function, survey, data)
            {
                jumps.unknown.get_or_insert(instruction.ip());
            }
        }
        jumps
    }

    /// Adds the targets of the table that the instruction loads from. Returns false if they cannot
    /// be found.
    fn follow(
        &mut self,
        load: &Instruction,
        function: &Function,
        survey: &Survey,
        data: &Data,
    ) -> bool {
        let is_relative = load.mnemonic() == Mnemonic::Movsxd;
        let bases = match load.memory_base() {
            Register::None => vec![load.memory_displacement64()],
            base => loaded_addresses(survey, base)
                .map(|address| address.wrapping_add(load.memory_displacement64()))
                .collect(),
        };
        let before = self.targets.len();
        for base in bases {
            let bytes = data(base).unwrap_or_default();
            let targets = if is_relative {
                relative_entries(bytes, base)
            } else {
                absolute_entries(bytes)
            };
            let inside =
                |target: &u64| target.wrapping_sub(function.start) < function.code.len() as u64;
            self.targets.extend(targets.into_iter().take_while(inside));
        }
        self.targets.len() > before
    }
}

/// Returns the instruction by which a jump gets its target from a table: itself, or one of those
/// before it.
fn table_load(survey: &Survey, jump: usize) -> Option<&Instruction> {
    let is_load = |instruction: &&Instruction| {
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
        .take_while(|(back, instruction)| *back == 0 || !ends_flow(instruction))
        .map(|(_, instruction)| instruction)
        .find(is_load)
}

/// Returns all addresses near its code that the function ever loads into the register.
fn loaded_addresses(survey: &Survey, register: Register) -> impl Iterator<Item = u64> {
    survey
        .instructions
        .iter()
        .filter(move |instruction| {
            instruction.mnemonic() == Mnemonic::Lea
                && instruction.op0_register() == register
                && instruction.is_ip_rel_memory_operand()
        })
        .map(Instruction::ip_rel_memory_address)
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
