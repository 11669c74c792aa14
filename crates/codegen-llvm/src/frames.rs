//! Computes the stack that functions need, from the information on frames that LLVM writes for
//! debuggers.

use std::collections::HashMap;

use beeline_codegen::Machine;
use beeline_isa::Op;
use beeline_uapi::HelperId;
use beeline_verifier::Flow;
use gimli::{
    BaseAddresses, CfaRule, EhFrame, LittleEndian, Register, UnwindContext, UnwindSection,
};

use crate::flatten::Flat;
use crate::translate::{ENTRY, TAIL, callback_name, function_name};
use crate::trouble::Trouble;

/// The bytes of stack by the functions' names; for a function with several copies, the largest.
pub(crate) struct Frames {
    bytes: HashMap<String, usize>,
    /// The return address of a helper, on machines where calls push it.
    return_address: usize,
}

impl Frames {
    pub(crate) fn of(machine: Machine, flat: &Flat) -> Result<Self, Trouble> {
        let (stack_pointer, return_address) = match machine {
            Machine::X86_64 => (gimli::X86_64::RSP, 8),
            Machine::Aarch64 => (gimli::AArch64::SP, 0),
        };
        let bases = BaseAddresses::default().set_eh_frame(flat.frame_table_at);
        let mut table = EhFrame::new(&flat.frame_table, LittleEndian);
        table.set_address_size(8);
        let mut context = UnwindContext::new();
        let mut entries = table.entries(&bases);
        let (mut bytes, mut seen) = (HashMap::new(), 0);
        while let Some(entry) = entries.next()? {
            let gimli::CieOrFde::Fde(partial) = entry else {
                continue;
            };
            let entry = partial.parse(EhFrame::cie_from_offset)?;
            let name = flat.functions.get(&entry.initial_address());
            let name = name.ok_or_else(|| Trouble::new("a frame of no function"))?;
            let deepest = deepest(&table, &bases, &mut context, &entry, stack_pointer)?;
            // f1.specialized.2 is a copy of f1.
            let original = name.split('.').next().unwrap_or_default().to_owned();
            let known = bytes.entry(original).or_insert(0);
            *known = deepest.max(*known);
            seen += 1;
        }
        if seen != flat.functions.len() {
            return Err(Trouble::new("a function without a frame"));
        }
        Ok(Self {
            bytes,
            return_address,
        })
    }

    /// Returns the stack that a function of the program adds to its caller's: its frame, the data
    /// between it and a helper or a program that goes on in its place, and a helper's return
    /// address. A function that was made part of its caller adds less.
    pub(crate) fn bytes(&self, flow: &Flow, number: usize) -> usize {
        let of = |name: &str| self.bytes.get(name).copied().unwrap_or(0);
        let own = if number == 0 {
            of(ENTRY)
        } else {
            of(&function_name(number))
        };
        let calls = |wanted: fn(HelperId) -> bool| {
            flow.functions().get(number).is_some_and(|&function| {
                flow.reachable_ops(function)
                    .any(|(_, op)| matches!(op, Op::CallHelper { id } if wanted(id)))
            })
        };
        let helper = if calls(|_| true) {
            self.return_address
        } else {
            0
        };
        let tail = if number != 0 && calls(|id| id == HelperId::TAIL_CALL) {
            of(TAIL)
        } else {
            0
        };
        own + of(&callback_name(number)) + helper + tail
    }
}

type Table<'d> = EhFrame<gimli::EndianSlice<'d, LittleEndian>>;
type Entry<'d> = gimli::FrameDescriptionEntry<gimli::EndianSlice<'d, LittleEndian>>;

/// Returns the distance of the caller's frame from the stack pointer, at most.
fn deepest(
    table: &Table<'_>,
    bases: &BaseAddresses,
    context: &mut UnwindContext<usize>,
    entry: &Entry<'_>,
    stack_pointer: Register,
) -> Result<usize, Trouble> {
    let mut rows = entry.rows(table, bases, context)?;
    let mut deepest = 0;
    while let Some(row) = rows.next_row()? {
        match row.cfa() {
            CfaRule::RegisterAndOffset { register, offset } if *register == stack_pointer => {
                deepest = deepest.max(usize::try_from(*offset).unwrap_or(usize::MAX));
            }
            _ => return Err(Trouble::new("a frame of no fixed size")),
        }
    }
    Ok(deepest)
}
