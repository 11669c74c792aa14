//! A small assembler: instructions with their fields filled in, and labels. It has only the few
//! forms that are needed here.
//!
//! Names of methods and variants are the mnemonics. `wide` chooses between x and w registers.
//! Register 31 is the stack pointer or zero, depending on the form.

use super::immediate::bit_mask;

/// A general register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reg(u8);

/// The stack pointer, in addresses and in additions of constants.
pub(crate) const SP: Reg = Reg(31);
/// Zero, elsewhere.
pub(crate) const ZR: Reg = Reg(31);
/// The frame pointer.
pub(crate) const FP: Reg = Reg(29);
/// The link register.
pub(crate) const LR: Reg = Reg(30);

impl Reg {
    /// Returns register x`number`.
    pub(crate) const fn x(number: u8) -> Self {
        Self(number & 31)
    }

    pub(crate) const fn number(self) -> u8 {
        self.0
    }

    /// Returns the number in the field that begins at this bit.
    const fn at(self, bit: u32) -> u32 {
        (self.0 as u32) << bit
    }
}

/// Operations on two registers into a third.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Three {
    Add = 0x0b00_0000,
    Sub = 0x4b00_0000,
    Subs = 0x6b00_0000,
    And = 0x0a00_0000,
    Orr = 0x2a00_0000,
    Eor = 0x4a00_0000,
    Ands = 0x6a00_0000,
    Mul = 0x1b00_7c00,
    Udiv = 0x1ac0_0800,
    Sdiv = 0x1ac0_0c00,
    Lsl = 0x1ac0_2000,
    Lsr = 0x1ac0_2400,
    Asr = 0x1ac0_2800,
}

/// Additions of a constant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Sum {
    Add = 0x1100_0000,
    Adds = 0x3100_0000,
    Sub = 0x5100_0000,
    Subs = 0x7100_0000,
}

/// Bitwise operations with a constant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Logic {
    And = 0x1200_0000,
    Orr = 0x3200_0000,
    Eor = 0x5200_0000,
    Ands = 0x7200_0000,
}

/// Moves of 16 bits of a constant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Part {
    /// The other bits become ones, and these are inverted.
    Movn = 0x1280_0000,
    /// The other bits become zeros.
    Movz = 0x5280_0000,
    /// The other bits stay.
    Movk = 0x7280_0000,
}

/// Reversals of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Reverse {
    /// In each 16 bits of a w register.
    Rev16 = 0x5ac0_0400,
    /// In a w register.
    Rev32 = 0x5ac0_0800,
    /// In an x register.
    Rev64 = 0xdac0_0c00,
}

/// The effect of a load or store on the register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Access {
    Store = 0,
    Load = 1 << 22,
    /// Sign-extends to 64 bits.
    LoadSigned = 2 << 22,
}

/// Ordered and exclusive accesses, by a plain address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Ordered {
    Ldxr = 0x085f_7c00,
    Ldar = 0x08df_fc00,
    Stlr = 0x089f_fc00,
}

/// Pairs of x registers, and the effect on the base register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Pair {
    Stp = 0xa900_0000,
    Ldp = 0xa940_0000,
    /// `stp [base, off]!`: the base moves, then the registers are stored there.
    StpBefore = 0xa980_0000,
    /// `ldp [base], off`: the registers are loaded, then the base moves.
    LdpAfter = 0xa8c0_0000,
}

/// Conditions, by their numbers. The inverse differs in the lowest bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Condition {
    Eq = 0,
    Ne = 1,
    Hs = 2,
    Lo = 3,
    /// Negative.
    Mi = 4,
    Hi = 8,
    Ls = 9,
    Ge = 10,
    Lt = 11,
    Gt = 12,
    Le = 13,
}

/// Jumps to a register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Indirect {
    Br = 0xd61f_0000,
    Blr = 0xd63f_0000,
}

/// A place in the code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Label(usize);

/// The form in which an instruction names a place: the field's bits and unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    /// `b` and `bl`: words, 128 MiB either way.
    Jump,
    /// Conditional branches: words, 1 MiB either way.
    Branch,
    /// `adr`: bytes, 1 MiB either way.
    Address,
}

/// A place is beyond what an instruction's field can hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TooFar;

/// Code as it grows.
#[derive(Debug, Default)]
pub(crate) struct Assembler {
    words: Vec<u32>,
    /// The word of each label.
    labels: Vec<Option<usize>>,
    /// Words with fields that wait for a label.
    uses: Vec<(usize, Label, Field)>,
    /// True if the code may be longer than 1 MiB, so that conditional branches lead over a jump.
    far: bool,
}

impl Assembler {
    pub(crate) fn new(far: bool) -> Self {
        Self {
            far,
            ..Self::default()
        }
    }

    pub(crate) fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// Returns the length of the code.
    pub(crate) fn bytes(&self) -> usize {
        self.words.len() * 4
    }

    /// Puts a label here.
    pub(crate) fn bind(&mut self, label: Label) {
        if let Some(place) = self.labels.get_mut(label.0) {
            *place = Some(self.words.len());
        }
    }

    /// Returns the code's bytes, with the labels' places in all fields. A label that was never
    /// bound counts as too far.
    pub(crate) fn finish(mut self) -> Result<Vec<u8>, TooFar> {
        for &(at, Label(label), field) in &self.uses {
            let place = self.labels.get(label).copied().flatten().ok_or(TooFar)?;
            let distance = place as i64 - at as i64;
            if let Some(word) = self.words.get_mut(at) {
                *word |= field.bits(distance).ok_or(TooFar)?;
            }
        }
        Ok(self.words.into_iter().flat_map(u32::to_le_bytes).collect())
    }

    fn word(&mut self, word: u32) {
        self.words.push(word);
    }

    fn word_to(&mut self, word: u32, label: Label, field: Field) {
        self.uses.push((self.words.len(), label, field));
        self.word(word);
    }

    pub(crate) fn three(&mut self, op: Three, wide: bool, d: Reg, n: Reg, m: Reg) {
        self.word(op as u32 | width(wide) | m.at(16) | n.at(5) | d.at(0));
    }

    /// Emits `d = n op (m << shift)`, of [`Three::Add`] up to [`Three::Ands`], with x registers.
    pub(crate) fn three_shifted(&mut self, op: Three, d: Reg, n: Reg, m: Reg, shift: u32) {
        self.word(op as u32 | width(true) | m.at(16) | (shift & 63) << 10 | n.at(5) | d.at(0));
    }

    /// Emits `d = a + n * m`, with x registers.
    pub(crate) fn madd(&mut self, d: Reg, n: Reg, m: Reg, a: Reg) {
        self.word(0x9b00_0000 | m.at(16) | a.at(10) | n.at(5) | d.at(0));
    }

    /// Emits `d = a - n * m`.
    pub(crate) fn msub(&mut self, wide: bool, d: Reg, n: Reg, m: Reg, a: Reg) {
        self.word(0x1b00_8000 | width(wide) | m.at(16) | a.at(10) | n.at(5) | d.at(0));
    }

    /// Adds or subtracts `imm`, which is less than 4096; if `shifted`, it counts as so many times
    /// 4096.
    pub(crate) fn sum(&mut self, op: Sum, wide: bool, d: Reg, n: Reg, imm: u32, shifted: bool) {
        let imm = (imm & 0xfff) << 10 | u32::from(shifted) << 22;
        self.word(op as u32 | width(wide) | imm | n.at(5) | d.at(0));
    }

    /// Emits a bitwise operation with a constant; returns whether there is such an instruction. For
    /// most constants there is none.
    #[must_use]
    pub(crate) fn logic(&mut self, op: Logic, wide: bool, d: Reg, n: Reg, imm: u64) -> bool {
        let Some(field) = bit_mask(imm, wide) else {
            return false;
        };
        self.word(op as u32 | width(wide) | field << 10 | n.at(5) | d.at(0));
        true
    }

    /// Moves to the `part`th 16 bits of an x register.
    pub(crate) fn part(&mut self, op: Part, d: Reg, imm: u16, part: u32) {
        self.word(op as u32 | width(true) | (part & 3) << 21 | u32::from(imm) << 5 | d.at(0));
    }

    pub(crate) fn mov(&mut self, wide: bool, d: Reg, m: Reg) {
        self.three(Three::Orr, wide, d, ZR, m);
    }

    /// Emits `d = ` bits `from` to `last` of `n`, zero-extended; where `from` is above `last`, the
    /// lowest `last + 1` bits, shifted left to the top of the register and then right by `from`,
    /// around.
    pub(crate) fn ubfm(&mut self, wide: bool, d: Reg, n: Reg, from: u32, last: u32) {
        self.bits(0x5300_0000, wide, d, n, from, last);
    }

    /// Like [`Self::ubfm`], sign-extended.
    pub(crate) fn sbfm(&mut self, wide: bool, d: Reg, n: Reg, from: u32, last: u32) {
        self.bits(0x1300_0000, wide, d, n, from, last);
    }

    fn bits(&mut self, op: u32, wide: bool, d: Reg, n: Reg, from: u32, last: u32) {
        let fields = u32::from(wide) << 22 | (from & 63) << 16 | (last & 63) << 10;
        self.word(op | width(wide) | fields | n.at(5) | d.at(0));
    }

    pub(crate) fn reverse(&mut self, op: Reverse, d: Reg, n: Reg) {
        self.word(op as u32 | n.at(5) | d.at(0));
    }

    /// Emits `d = condition ? n : m`, with x registers.
    pub(crate) fn csel(&mut self, d: Reg, n: Reg, m: Reg, condition: Condition) {
        self.word(0x9a80_0000 | m.at(16) | (condition as u32) << 12 | n.at(5) | d.at(0));
    }

    /// Emits a load or store of `1 << size` bytes at `base + off`. Returns whether there is such an
    /// instruction: there is for `off` from -256 to 255, and for multiples of the size up to 4095
    /// times it.
    #[must_use]
    pub(crate) fn access(&mut self, op: Access, size: u32, t: Reg, base: Reg, off: i32) -> bool {
        let scaled = off.cast_unsigned() >> size;
        let fields = if off >= 0 && scaled << size == off.cast_unsigned() && scaled < 4096 {
            0x3900_0000 | scaled << 10
        } else if (-256..256).contains(&off) {
            0x3800_0000 | (off.cast_unsigned() & 0x1ff) << 12
        } else {
            return false;
        };
        self.word(op as u32 | size << 30 | fields | base.at(5) | t.at(0));
        true
    }

    /// Like [`Self::access`], at `base + index`.
    pub(crate) fn access_indexed(&mut self, op: Access, size: u32, t: Reg, base: Reg, index: Reg) {
        self.word(op as u32 | size << 30 | 0x3820_6800 | index.at(16) | base.at(5) | t.at(0));
    }

    /// Emits a load or store of an x register at `base + off`, a multiple of 8 up to 32,760.
    pub(crate) fn word_access(&mut self, op: Access, t: Reg, base: Reg, off: u32) {
        let scaled = (off >> 3 & 0xfff) << 10;
        self.word(op as u32 | 3 << 30 | 0x3900_0000 | scaled | base.at(5) | t.at(0));
    }

    /// Emits a load or store of two x registers at `base + off`, a multiple of 8 from -512 to 504.
    pub(crate) fn pair(&mut self, op: Pair, [t, u]: [Reg; 2], base: Reg, off: i32) {
        let off = ((off >> 3).cast_unsigned() & 0x7f) << 15;
        self.word(op as u32 | off | u.at(10) | base.at(5) | t.at(0));
    }

    /// An access of `1 << size` bytes that is exclusive, or ordered with all others.
    pub(crate) fn ordered(&mut self, op: Ordered, size: u32, t: Reg, base: Reg) {
        self.word(op as u32 | size << 30 | base.at(5) | t.at(0));
    }

    /// Emits `stxr`, or `stlxr` if it is a release: `status` becomes 0 if the bytes were stored.
    pub(crate) fn stxr(&mut self, release: bool, size: u32, status: Reg, t: Reg, base: Reg) {
        let release = u32::from(release) << 15;
        self.word(0x0800_7c00 | size << 30 | status.at(16) | release | base.at(5) | t.at(0));
    }

    /// Emits `dmb ish`: orders all accesses before it with all behind it.
    pub(crate) fn barrier(&mut self) {
        self.word(0xd503_3bbf);
    }

    pub(crate) fn b(&mut self, to: Label) {
        self.word_to(0x1400_0000, to, Field::Jump);
    }

    pub(crate) fn bl(&mut self, to: Label) {
        self.word_to(0x9400_0000, to, Field::Jump);
    }

    pub(crate) fn b_if(&mut self, condition: Condition, to: Label) {
        self.branch(0x5400_0000 | condition as u32, 1, to);
    }

    pub(crate) fn cbz(&mut self, wide: bool, t: Reg, to: Label) {
        self.branch(0x3400_0000 | width(wide) | t.at(0), 1 << 24, to);
    }

    pub(crate) fn cbnz(&mut self, wide: bool, t: Reg, to: Label) {
        self.branch(0x3500_0000 | width(wide) | t.at(0), 1 << 24, to);
    }

    /// A conditional branch; `inverse` is the bit that inverts its condition.
    fn branch(&mut self, word: u32, inverse: u32, to: Label) {
        if self.far {
            self.word(word ^ inverse | 2 << 5);
            self.b(to);
        } else {
            self.word_to(word, to, Field::Branch);
        }
    }

    pub(crate) fn indirect(&mut self, op: Indirect, n: Reg) {
        self.word(op as u32 | n.at(5));
    }

    pub(crate) fn ret(&mut self) {
        self.word(0xd65f_0000 | LR.at(5));
    }

    /// Sets `d` to the address of something that can be jumped to: the code at `to`, or a jump
    /// there.
    pub(crate) fn entry_address(&mut self, d: Reg, to: Label) {
        if self.far {
            let [jump, over] = [self.label(), self.label()];
            self.word_to(0x1000_0000 | d.at(0), jump, Field::Address);
            self.b(over);
            self.bind(jump);
            self.b(to);
            self.bind(over);
        } else {
            self.word_to(0x1000_0000 | d.at(0), to, Field::Address);
        }
    }
}

impl Field {
    /// Returns the field's bits for a distance in words; `None` if it does not fit.
    fn bits(self, words: i64) -> Option<u32> {
        let width = match self {
            Self::Jump => 26,
            Self::Branch | Self::Address => 19,
        };
        let limit = 1_i64 << (width - 1);
        if !(-limit..limit).contains(&words) {
            return None;
        }
        let field = words as u32 & ((1 << width) - 1);
        Some(match self {
            Self::Jump => field,
            // An address in bytes has 21 bits; the lowest two stand elsewhere and are 0.
            Self::Branch | Self::Address => field << 5,
        })
    }
}

const fn width(wide: bool) -> u32 {
    (wide as u32) << 31
}

#[cfg(test)]
#[path = "assembler_tests.rs"]
mod tests;
