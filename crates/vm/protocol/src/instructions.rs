//! The places where instructions name objects by descriptors.

use beeline_isa::INSN_BYTES;
use beeline_isa::opcode::{
    self, HELPER_CALL, LD_IMM64, PSEUDO_BTF_ID, PSEUDO_KFUNC_CALL, PSEUDO_MAP_FD, PSEUDO_MAP_IDX,
    PSEUDO_MAP_IDX_VALUE, PSEUDO_MAP_VALUE,
};
use beeline_uapi::fields::{put_u32, u32_at};
use sha2::{Digest, Sha256};

/// A call of a helper, a local function or a kernel function, by its source register. For a kernel
/// function, an index in `off` names the function's module.
const CALL: u8 = opcode::JMP | opcode::CALL;

/// A place of a descriptor, or of an index into the array of descriptors.
enum Named {
    /// The offset in bytes of a descriptor.
    Descriptor(usize),
    Index(u32),
}

fn named(insns: &[u8]) -> impl Iterator<Item = Named> + '_ {
    let mut second_half = false;
    let starts = (0..insns.len() / INSN_BYTES).map(|number| number * INSN_BYTES);
    starts.filter_map(move |start| {
        if std::mem::take(&mut second_half) {
            return None;
        }
        let [code, registers] = *insns.get(start..)?.first_chunk()?;
        let source = registers >> 4;
        second_half = code == LD_IMM64;
        match (code, source) {
            (LD_IMM64, PSEUDO_MAP_FD | PSEUDO_MAP_VALUE) => Some(Named::Descriptor(start + 4)),
            (LD_IMM64, PSEUDO_MAP_IDX | PSEUDO_MAP_IDX_VALUE) => {
                Some(Named::Index(u32_at(insns, start + 4)))
            }
            // For a module's variable; 0 is the kernel itself.
            (LD_IMM64, PSEUDO_BTF_ID) => {
                let at = start + INSN_BYTES + 4;
                (u32_at(insns, at) != 0).then_some(Named::Descriptor(at))
            }
            (CALL, PSEUDO_KFUNC_CALL) => {
                let module = u32_at(insns, start) >> 16;
                (module != 0).then_some(Named::Index(module))
            }
            _ => None,
        }
    })
}

/// A call of an instruction to something outside of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Called {
    /// A helper, by its number.
    Helper(u32),
    /// A function of the kernel's.
    Function {
        /// The number of its type.
        id: u32,
        /// The module with the type: 0 for the kernel's own, else an index into the array of
        /// descriptors.
        module: u32,
    },
}

/// Returns the calls of the instructions, as often as they occur.
pub fn calls(insns: &[u8]) -> impl Iterator<Item = Called> + '_ {
    let mut second_half = false;
    insns.chunks_exact(INSN_BYTES).filter_map(move |insn| {
        if std::mem::take(&mut second_half) {
            return None;
        }
        second_half = insn[0] == LD_IMM64;
        match (insn[0], insn[1] >> 4) {
            (CALL, HELPER_CALL) => Some(Called::Helper(u32_at(insn, 4))),
            (CALL, PSEUDO_KFUNC_CALL) => Some(Called::Function {
                id: u32_at(insn, 4),
                module: u32_at(insn, 0) >> 16,
            }),
            _ => None,
        }
    })
}

/// Returns the digest that a program's signature is made over: the SHA-256 of its instructions,
/// with 0 in place of each descriptor and handle.
pub fn digest(insns: &[u8]) -> [u8; 32] {
    let mut insns = insns.to_vec();
    let Ok(()) = replace_objects(&mut insns, |_| Ok::<_, std::convert::Infallible>(0));
    Sha256::digest(&insns).into()
}

/// Replaces every descriptor by the result of `other` for it.
///
/// # Errors
///
/// The first of `other`; then some descriptors may have been replaced.
pub fn replace_objects<E>(
    insns: &mut [u8],
    mut other: impl FnMut(u32) -> Result<u32, E>,
) -> Result<(), E> {
    let places: Vec<usize> = named(insns)
        .filter_map(|named| match named {
            Named::Descriptor(at) => Some(at),
            Named::Index(_) => None,
        })
        .collect();
    for at in places {
        let object = other(u32_at(insns, at))?;
        put_u32(insns, at, object);
    }
    Ok(())
}

/// Returns the length that the array of descriptors must have, given the indices into it.
pub fn array_len(insns: &[u8]) -> usize {
    let indices = named(insns).filter_map(|named| match named {
        Named::Index(index) => Some(index as usize + 1),
        Named::Descriptor(_) => None,
    });
    indices.max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn insn(code: u8, source: u8, off: i16, imm: u32) -> Vec<u8> {
        let mut bytes = vec![code, source << 4];
        bytes.extend(off.to_ne_bytes());
        bytes.extend(imm.to_ne_bytes());
        bytes
    }

    #[test]
    fn descriptors_are_replaced_and_indices_counted() {
        let mut insns = [
            insn(LD_IMM64, PSEUDO_MAP_FD, 0, 5),
            // The second half looks like a first.
            insn(LD_IMM64, PSEUDO_MAP_FD, 0, 77),
            insn(LD_IMM64, PSEUDO_MAP_IDX, 0, 2),
            insn(0, 0, 0, 0),
            insn(LD_IMM64, 0, 0, 9),
            insn(0, 0, 0, 0),
            insn(CALL, PSEUDO_KFUNC_CALL, 3, 100),
            insn(LD_IMM64, PSEUDO_BTF_ID, 0, 1),
            insn(0, 0, 0, 6),
        ]
        .concat();
        assert_eq!(array_len(&insns), 4);
        let mut seen = Vec::new();
        let replaced: Result<(), ()> = replace_objects(&mut insns, |fd| {
            seen.push(fd);
            Ok(fd + 100)
        });
        replaced.unwrap();
        assert_eq!(seen, [5, 6]);
        assert_eq!(u32_at(&insns, 4), 105);
        assert_eq!(u32_at(&insns, 12), 77);
        assert_eq!(u32_at(&insns, 8 * 8 + 4), 106);
    }

    #[test]
    fn calls_are_found_and_digests_know_no_descriptors() {
        let with = |fd| {
            let parts = [
                insn(LD_IMM64, PSEUDO_MAP_FD, 0, fd),
                // The second half looks like a call.
                insn(CALL, 0, 0, 0),
                insn(CALL, 0, 0, 12),
                insn(CALL, 1, 0, 3),
                insn(CALL, PSEUDO_KFUNC_CALL, 2, 40),
            ];
            parts.concat()
        };
        let called: Vec<Called> = calls(&with(5)).collect();
        let function = Called::Function { id: 40, module: 2 };
        assert_eq!(called, [Called::Helper(12), function]);
        assert_eq!(digest(&with(5)), digest(&with(6)));
        let mut other = with(5);
        other[20] += 1;
        assert_ne!(digest(&other), digest(&with(5)));
    }

    #[test]
    fn cut_off_instructions_name_nothing() {
        let insns = insn(LD_IMM64, PSEUDO_BTF_ID, 0, 1);
        for len in 0..insns.len() {
            assert_eq!(array_len(&insns[..len]), 0);
        }
        let mut alone = insns;
        let replaced: Result<(), ()> = replace_objects(&mut alone, |_| Err(()));
        assert_eq!(replaced, Ok(()));
    }
}
