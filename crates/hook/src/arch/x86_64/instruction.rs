//! Instructions, as the rest of the crate asks about them.

use std::fmt;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Mnemonic, OpKind, Register};

use super::relocate::{Movement, movement};

/// A decoded instruction, at its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instruction(iced_x86::Instruction);

/// The boundary on which functions start, including those without a symbol.
const FUNCTION_ALIGN: u64 = 16;

/// Decodes code that is mapped at `start`, one instruction after the other. Yields `None` for a
/// byte at which none can begin, and continues behind that byte.
#[inline]
pub(crate) fn decode(code: &[u8], start: u64) -> impl Iterator<Item = Option<Instruction>> {
    let mut decoder = Decoder::with_ip(64, code, start, DecoderOptions::NONE);
    std::iter::from_fn(move || {
        if !decoder.can_decode() {
            return None;
        }
        let decoded = decoder.decode();
        if decoded.is_invalid() {
            let behind = decoded.ip().wrapping_add(1);
            let offset = behind.wrapping_sub(start) as usize;
            decoder.set_position(offset).ok()?;
            decoder.set_ip(behind);
            return Some(None);
        }
        Some(Some(Instruction(decoded)))
    })
}

impl Instruction {
    /// Takes over what the decoder made.
    #[inline]
    pub(super) fn new(decoded: iced_x86::Instruction) -> Self {
        Self(decoded)
    }

    /// Returns the decoder's own description.
    #[inline]
    pub fn decoded(&self) -> &iced_x86::Instruction {
        &self.0
    }

    /// Returns the address of its first byte.
    #[inline]
    pub fn address(&self) -> u64 {
        self.0.ip()
    }

    /// Returns the address behind its last byte.
    #[inline]
    pub fn end(&self) -> u64 {
        self.0.next_ip()
    }

    /// Returns the number of its bytes.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the address that the instruction names relative to its own: a branch's or call's
    /// target, or an operand's address.
    #[inline]
    pub(crate) fn target(&self) -> Option<u64> {
        if self.has_near_target() {
            return Some(self.0.near_branch_target());
        }
        self.0
            .is_ip_rel_memory_operand()
            .then(|| self.0.ip_rel_memory_address())
    }

    /// True if its first operand is a target within the address space's 64 bits.
    #[inline]
    pub(super) fn has_near_target(&self) -> bool {
        self.0.op_count() > 0 && self.0.op0_kind() == OpKind::NearBranch64
    }

    /// Returns the target of a direct branch: one within the address space's 64 bits, other than a
    /// call, with its target in the instruction.
    #[inline]
    pub(crate) fn branch_target(&self) -> Option<u64> {
        (self.has_near_target() && !self.0.is_call_near()).then(|| self.0.near_branch_target())
    }

    /// Returns the target of a direct branch that is a jump, conditional or not.
    #[inline]
    pub(crate) fn jump_target(&self) -> Option<u64> {
        let is_jump = matches!(
            self.0.flow_control(),
            FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch
        );
        self.branch_target().filter(|_| is_jump)
    }

    /// Returns the target of a conditional branch.
    #[inline]
    pub(crate) fn conditional_target(&self) -> Option<u64> {
        let is_conditional = self.0.flow_control() == FlowControl::ConditionalBranch;
        is_conditional.then(|| self.0.near_branch_target())
    }

    /// Returns the address that a direct call calls.
    #[inline]
    pub(crate) fn called(&self) -> Option<u64> {
        self.0.is_call_near().then(|| self.0.near_branch_target())
    }

    /// True for a jump with unknown targets. A jump through a fixed slot (a tail call to an
    /// imported function) has only one target, elsewhere.
    #[inline]
    pub(crate) fn jumps_anywhere(&self) -> bool {
        self.0.flow_control() == FlowControl::IndirectBranch && !self.0.is_ip_rel_memory_operand()
    }

    /// True for a near call, direct or not.
    #[inline]
    pub(crate) fn is_call(&self) -> bool {
        self.0.is_call_near() || self.0.is_call_near_indirect()
    }

    /// True if it returns from the function.
    #[inline]
    pub(crate) fn is_return(&self) -> bool {
        self.0.flow_control() == FlowControl::Return
    }

    /// True for the instruction by which a thread calls the kernel.
    #[inline]
    pub(crate) fn is_system_call(&self) -> bool {
        self.0.mnemonic() == Mnemonic::Syscall
    }

    /// True if the processor always goes on to the next instruction.
    #[inline]
    pub(crate) fn runs_on(&self) -> bool {
        self.0.flow_control() == FlowControl::Next
    }

    /// True if the processor never goes on to the next instruction.
    #[inline]
    pub(crate) fn ends_flow(&self) -> bool {
        matches!(
            self.0.flow_control(),
            FlowControl::Return
                | FlowControl::UnconditionalBranch
                | FlowControl::IndirectBranch
                | FlowControl::Exception
        )
    }

    /// True if its moved form can ever reach its own end. A moved call returns to where the call
    /// was.
    #[inline]
    pub(crate) fn goes_on(&self) -> bool {
        !self.is_call() && !self.ends_flow()
    }

    /// True for filler between functions. Filler that starts at a function's alignment may be a
    /// function's patchable entry.
    pub(crate) fn is_padding(&self) -> bool {
        matches!(self.0.mnemonic(), Mnemonic::Nop | Mnemonic::Int3)
            && !self.address().is_multiple_of(FUNCTION_ALIGN)
    }

    /// True if it stores a zero somewhere else than on the stack.
    pub(crate) fn stores_zero_for_others(&self) -> bool {
        let on_stack = matches!(
            self.0.memory_base(),
            Register::RSP | Register::RBP | Register::RIP | Register::None
        );
        self.0.mnemonic() == Mnemonic::Mov
            && self.0.op0_kind() == OpKind::Memory
            && !on_stack
            && self.0.try_immediate(1).is_ok_and(|value| value == 0)
    }

    /// Fails, with a phrase, if the instruction has to run where it is.
    pub(crate) fn can_move(&self) -> Result<(), &'static str> {
        movement(&self.0).map(drop)
    }

    /// Fails, with a phrase, if the instruction may not move together with neighbours: such an
    /// instruction is moved only on its own.
    pub(crate) fn can_move_with_others(&self) -> Result<(), &'static str> {
        match self.0.flow_control() {
            FlowControl::XbeginXabortXend => Err("it is part of a transaction"),
            FlowControl::Call if !self.is_call() => Err("its address is seen by the kernel"),
            _ => Ok(()),
        }
    }

    /// True if it can be moved to where a displacement does not reach what it names. An instruction
    /// without a relative operand always can.
    pub(crate) fn leads_far(&self) -> bool {
        !self.0.is_ip_rel_memory_operand()
            && !matches!(movement(&self.0), Ok(Movement::Transaction))
    }
}

/// In Intel syntax.
impl fmt::Display for Instruction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
