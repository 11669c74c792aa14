//! The fields of an instruction's eight bytes.

use core::fmt;

use crate::opcode;

/// The bytes of one instruction slot.
pub const INSN_BYTES: usize = 8;

/// One instruction slot as it is encoded; see `struct bpf_insn` in `linux/bpf.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Insn {
    /// Opcode: class and, by class, operation and source or size and mode.
    pub code: u8,
    /// Destination register, 0 to 15 (only 0 to 10 exist).
    pub dst: u8,
    /// Source register, 0 to 15, or the meaning of an immediate.
    pub src: u8,
    /// Offset: bytes in loads and stores, slots in jumps.
    pub off: i16,
    /// Immediate.
    pub imm: i32,
}

impl Insn {
    /// Decodes the instructions of a program, 8 bytes each, in order.
    ///
    /// # Errors
    /// [`DecodeError`] if the last one is incomplete.
    pub fn decode_all(bytes: &[u8]) -> Result<Decoder<'_>, DecodeError> {
        let (slots, rest) = bytes.as_chunks();
        if rest.is_empty() {
            Ok(Decoder { slots })
        } else {
            Err(DecodeError { bytes: bytes.len() })
        }
    }

    /// Decodes one little-endian slot.
    ///
    /// Every value is an instruction; [`Insn::op`] says whether it is a valid one.
    pub const fn decode(bytes: [u8; INSN_BYTES]) -> Self {
        let [code, registers, off0, off1, imm0, imm1, imm2, imm3] = bytes;
        Self {
            code,
            dst: registers & 0x0f,
            src: registers >> 4,
            off: i16::from_le_bytes([off0, off1]),
            imm: i32::from_le_bytes([imm0, imm1, imm2, imm3]),
        }
    }

    /// Encodes an instruction, the inverse of [`Insn::decode`].
    ///
    /// Only the low four bits of the registers have a place.
    pub const fn encode(self) -> [u8; INSN_BYTES] {
        let [off0, off1] = self.off.to_le_bytes();
        let [imm0, imm1, imm2, imm3] = self.imm.to_le_bytes();
        [
            self.code,
            self.dst & 0x0f | self.src << 4,
            off0,
            off1,
            imm0,
            imm1,
            imm2,
            imm3,
        ]
    }

    /// Returns whether this is the first of the two slots of `LD_IMM64`.
    pub const fn is_imm64(self) -> bool {
        self.code == opcode::LD_IMM64
    }
}

/// Returns the two slots of `rDST = VALUE`; `src` gives the value's meaning
/// ([`opcode::PSEUDO_MAP_FD`], ...).
pub const fn imm64(dst: u8, src: u8, value: u64) -> [Insn; 2] {
    let first = Insn {
        code: opcode::LD_IMM64,
        dst,
        src,
        off: 0,
        imm: value as i32,
    };
    [
        first,
        Insn {
            code: 0,
            dst: 0,
            src: 0,
            off: 0,
            imm: (value >> 32) as i32,
        },
    ]
}

/// Iterator over the instructions of [`Insn::decode_all`].
#[derive(Debug, Clone)]
pub struct Decoder<'a> {
    slots: &'a [[u8; INSN_BYTES]],
}

impl Iterator for Decoder<'_> {
    type Item = Insn;

    fn next(&mut self) -> Option<Insn> {
        let (first, rest) = self.slots.split_first()?;
        self.slots = rest;
        Some(Insn::decode(*first))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.slots.len(), Some(self.slots.len()))
    }
}

impl ExactSizeIterator for Decoder<'_> {}

/// The length of a program is not a multiple of [`INSN_BYTES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecodeError {
    /// The length of the refused bytes.
    pub bytes: usize,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} bytes are no whole number of {INSN_BYTES}-byte eBPF instructions; pass all of the last one",
            self.bytes
        )
    }
}

impl core::error::Error for DecodeError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_where_the_rfc_says() {
        let insn = Insn::decode([0x61, 0xa3, 0xf8, 0xff, 1, 2, 3, 0x84]);
        assert_eq!(
            insn,
            Insn {
                code: 0x61,
                dst: 3,
                src: 10,
                off: -8,
                imm: 0x8403_0201_u32 as i32
            }
        );
        assert_eq!(insn.encode(), [0x61, 0xa3, 0xf8, 0xff, 1, 2, 3, 0x84]);
    }

    #[test]
    fn a_cut_instruction_is_refused() {
        assert_eq!(
            Insn::decode_all(&[0; 12]).unwrap_err(),
            DecodeError { bytes: 12 }
        );
        assert_eq!(Insn::decode_all(&[0; 16]).unwrap().len(), 2);
    }

    #[test]
    fn every_slot_survives_a_round_trip() {
        for code in 0..=u8::MAX {
            for registers in 0..=u8::MAX {
                let bytes = [code, registers, 0x80, 0x7f, 0xff, 0, 0x80, 0x01];
                assert_eq!(Insn::decode(bytes).encode(), bytes);
            }
        }
    }
}
