//! Loads of compiled programs that faulted.
//!
//! A program that follows the pointers of `bpf_get_current_task_btf` reads them directly, and need
//! not check for null: where the kernel finds nothing to read, it reads zero and goes on. The
//! agent's handler does the same, as it knows the few forms of a load that the compiler writes.

/// A load: its length in bytes, and the number of the register that it fills.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// Bytes.
    pub len: u64,
    /// In the processor's numbering.
    pub register: u8,
}

/// The longest of these instructions: REX, two bytes of opcode, ModRM, SIB, four of displacement.
pub const LONGEST: usize = 9;

const TWO_BYTES: u8 = 0x0f;

/// Decodes `mov`, `movzx`, `movsx` and `movsxd` from memory at a register, perhaps an index and a
/// displacement; `None` for anything else.
pub fn decode(code: &[u8; LONGEST]) -> Option<Load> {
    let mut bytes = code.iter().copied();
    let mut next = bytes.next()?;
    let mut len = 2; // The opcode's last byte and ModRM.
    let mut high = 0;
    if next & 0xf0 == 0x40 {
        high = (next & 4) << 1;
        next = bytes.next()?;
        len += 1;
    }
    let is_load = if next == TWO_BYTES {
        len += 1;
        // movzx and movsx, of bytes and words: b6, b7, be, bf.
        bytes.next()? & 0xf6 == 0xb6
    } else {
        // mov, movsxd
        next == 0x8b || next == 0x63
    };
    let modrm = bytes.next()?;
    let mut base = modrm & 7;
    if base == 4 {
        // With a scale and an index.
        base = bytes.next()? & 7;
        len += 1;
    }
    let displacement = match modrm >> 6 {
        // No base: relative to the instruction pointer, or absolute.
        0 if base == 5 => return None,
        0 => 0,
        1 => 1,
        2 => 4,
        _ => return None,
    };
    if !is_load {
        return None;
    }
    Some(Load {
        len: len + displacement,
        register: modrm >> 3 & 7 | high,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(code: &[u8]) -> Option<(u64, u8)> {
        let mut padded = [0xcc; LONGEST];
        padded[..code.len()].copy_from_slice(code);
        decode(&padded).map(|load| (load.len, load.register))
    }

    #[test]
    fn other_instructions_are_no_loads() {
        for code in [
            &[0x48, 0x89, 0x47, 8][..],      // mov %rax, 8(%rdi)
            &[0x48, 0x8b, 0xc7],             // mov %rdi, %rax
            &[0x48, 0x8b, 5, 0, 0, 0, 0],    // mov 0(%rip), %rax
            &[0x8b, 0x04, 0x25, 0, 0, 0, 0], // mov 0, %eax
            &[0xf0, 0x48, 0x0f, 0xc1, 0x47], // lock xadd
            &[0x0f, 0xaf, 0x07],             // imul (%rdi), %eax
            &[0xcc],
        ] {
            assert_eq!(load(code), None, "{code:x?}");
        }
    }

    #[test]
    fn loads_are_measured() {
        assert_eq!(load(&[0x8b, 0x07]), Some((2, 0))); // mov (%rdi), %eax
        assert_eq!(load(&[0x4d, 0x8b, 0x7d, 8]), Some((4, 15))); // mov 8(%r13), %r15
        assert_eq!(load(&[0x44, 0x0f, 0xb6, 0x83, 0, 1, 0, 0]), Some((8, 8))); // movzbl 256(%rbx), %r8d
        assert_eq!(load(&[0x4d, 0x8b, 0x5c, 0x24, 8]), Some((5, 11))); // mov 8(%r12), %r11
        assert_eq!(load(&[0x0f, 0xb6, 0x0c, 0x17]), Some((4, 1))); // movzbl (%rdi,%rdx), %ecx
        // movsbq 256(%r13,%r14), %r8
        assert_eq!(
            load(&[0x4f, 0x0f, 0xbe, 0x84, 0x35, 0, 1, 0, 0]),
            Some((9, 8))
        );
    }
}
