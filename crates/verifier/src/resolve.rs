//! Converts the descriptors that a tool wrote into its program to the indexes that compiled code
//! uses.

use beeline_isa::{Imm64, Insn, Op};

/// An instruction names a map that is not in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "insn {insn} names map descriptor {fd}, which is not among the program's maps; list every map of its summary"
)]
pub struct Unresolved {
    /// The instruction's slot.
    pub insn: usize,
    /// The descriptor.
    pub fd: i32,
}

/// Replaces the descriptor of every map by the index that `maps` pairs it with.
///
/// # Errors
/// [`Unresolved`] if an instruction names a descriptor that `maps` does not have.
pub fn resolve(insns: &[Insn], maps: &[(i32, u32)]) -> Result<Vec<Insn>, Unresolved> {
    let mut resolved = insns.to_vec();
    for (index, insn) in resolved.iter_mut().enumerate() {
        if let Ok(Op::Imm64 {
            kind: Imm64::Map | Imm64::MapValue,
            low: fd,
            ..
        }) = insn.op()
        {
            let &(_, map) = maps
                .iter()
                .find(|pair| pair.0 == fd)
                .ok_or(Unresolved { insn: index, fd })?;
            insn.imm = map.cast_signed();
        }
    }
    Ok(resolved)
}
