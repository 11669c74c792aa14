//! Machine code that is written instruction by instruction: most of a stub is the same each time.

use super::opcodes::JMP;
use crate::arch::x86_64::jump::displacement;
use crate::arch::x86_64::relocate::{Displaced, relocate};
use crate::trampoline::EmitError;

/// Code being written.
pub(super) struct Code {
    at: u64,
    pub bytes: Vec<u8>,
    /// See [`CallStub::addresses`](crate::CallStub::addresses).
    pub addresses: Vec<usize>,
}

/// A 32-bit displacement to be filled in, by its offset.
#[must_use]
pub(super) struct Gap(usize);

impl Code {
    /// Creates code without instructions yet, to be placed at `at`.
    pub fn new(at: u64) -> Self {
        Self {
            at,
            bytes: Vec::with_capacity(256),
            addresses: Vec::new(),
        }
    }

    pub fn here(&self) -> u64 {
        self.at.wrapping_add(self.bytes.len() as u64)
    }

    pub fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Writes a word that is an address.
    pub fn put_address(&mut self, address: u64) {
        self.addresses.push(self.bytes.len());
        self.put(&address.to_le_bytes());
    }

    /// Writes an instruction that ends in a displacement to an address that is not known yet.
    pub fn gap(&mut self, opcode: &[u8]) -> Gap {
        self.put(opcode);
        let gap = Gap(self.bytes.len());
        self.put(&[0; 4]);
        gap
    }

    /// Makes the gap's instruction lead here.
    pub fn fill(&mut self, gap: Gap) {
        let value = (self.bytes.len() - gap.0 - 4) as u32;
        self.bytes[gap.0..gap.0 + 4].copy_from_slice(&value.to_le_bytes());
    }

    /// Writes an instruction that ends in a displacement to `target`.
    ///
    /// # Errors
    ///
    /// [`EmitError::JumpBack`] if `target` is out of reach.
    pub fn relative(&mut self, opcode: &[u8], target: u64) -> Result<(), EmitError> {
        let at = self.here();
        self.put(opcode);
        let end = self.here().wrapping_add(4);
        let displacement =
            displacement(end, target).map_err(|source| EmitError::JumpBack { at, source })?;
        self.put(&displacement.to_le_bytes());
        Ok(())
    }

    /// Writes a jump to `target`.
    ///
    /// # Errors
    ///
    /// Those of [`Self::relative`].
    pub fn jump(&mut self, target: u64) -> Result<(), EmitError> {
        self.relative(JMP, target)
    }

    /// Writes displaced instructions; each one's old and new address goes into `resume_map`.
    ///
    /// # Errors
    ///
    /// [`EmitError::Relocate`] if an instruction cannot run here.
    pub fn displaced(
        &mut self,
        code: &[Displaced],
        resume_map: &mut Vec<(u64, u64)>,
    ) -> Result<(), EmitError> {
        for displaced in code {
            let address = self.here();
            resume_map.push((displaced.instruction.address(), address));
            let bytes = relocate(displaced, address)?;
            self.put(&bytes);
            if displaced.instruction.is_call() {
                // The address that it returns to.
                self.addresses.push(self.bytes.len() - size_of::<u64>());
            }
        }
        Ok(())
    }

    /// Writes the displaced instructions behind the call, and the jump back to `end`.
    ///
    /// # Errors
    ///
    /// Those of [`Self::displaced`] and [`Self::jump`].
    pub fn rest(
        &mut self,
        code: &[Displaced],
        end: u64,
        resume_map: &mut Vec<(u64, u64)>,
    ) -> Result<(), EmitError> {
        self.displaced(code, resume_map)?;
        if code.last().is_none_or(|last| last.instruction.goes_on()) {
            resume_map.push((end, self.here()));
            self.jump(end)?;
        }
        Ok(())
    }
}
