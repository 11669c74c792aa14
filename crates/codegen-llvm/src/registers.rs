//! Finds the registers that the code touches.

use beeline_codegen::{Machine, RegisterSet};
use iced_x86::{Decoder, DecoderOptions, FlowControl, InstructionInfoFactory, OpAccess};

use crate::trouble::Trouble;

/// The registers that System V lets a function change: rax, rcx, rdx, rsi, rdi, r8 to r11.
const X86_64: RegisterSet = RegisterSet::from_bits(0b0000_1111_1100_0111);
/// x0 to x17, and the link register.
const AARCH64: RegisterSet = RegisterSet::from_bits(0x4003_ffff);

/// Returns the registers that code changes and does not restore. Fails if it touches others than
/// general ones.
pub(crate) fn clobbered(
    machine: Machine,
    text: &[u8],
    calls_helpers: bool,
) -> Result<RegisterSet, Trouble> {
    match machine {
        Machine::X86_64 => {
            let written = x86_64(text, calls_helpers)?;
            Ok(written.intersection(X86_64))
        }
        Machine::Aarch64 => {
            let (insns, _) = text.as_chunks();
            match insns
                .iter()
                .find(|&&insn| is_vector(u32::from_le_bytes(insn)))
            {
                None => Ok(AARCH64),
                Some(insn) => Err(Trouble::new(format!("the code has {insn:02x?}"))),
            }
        }
    }
}

/// Returns all registers that are written, saved or not, also by helpers.
fn x86_64(text: &[u8], calls_helpers: bool) -> Result<RegisterSet, Trouble> {
    let mut info = InstructionInfoFactory::new();
    let mut written = 0_u32;
    for insn in Decoder::new(64, text, DecoderOptions::NONE) {
        if insn.is_invalid() {
            return Err(Trouble::new("the code cannot be decoded"));
        }
        // The last call of a helper may have become a jump.
        let leaves = matches!(
            insn.flow_control(),
            FlowControl::IndirectCall | FlowControl::IndirectBranch
        );
        if leaves && calls_helpers {
            written |= X86_64.bits();
        }
        for used in info.info(&insn).used_registers() {
            let register = used.register();
            if register.is_segment_register() {
                continue;
            }
            if !register.is_gpr() {
                return Err(Trouble::new(format!("the code has {insn}")));
            }
            if !matches!(
                used.access(),
                OpAccess::Read | OpAccess::CondRead | OpAccess::None
            ) {
                written |= 1 << (register.full_register().number() & 15);
            }
        }
    }
    Ok(RegisterSet::from_bits(written))
}

/// Returns whether an instruction belongs to the groups of A64 that work on vector registers.
fn is_vector(insn: u32) -> bool {
    let group = insn >> 25 & 0b1111;
    let is_access = group & 0b0101 == 0b0100;
    group & 0b0111 == 0b0111 || is_access && insn >> 26 & 1 != 0
}
