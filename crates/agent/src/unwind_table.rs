//! Unwind tables: by which rule the caller of a piece of code is found, for all code of a file.
//!
//! Beeline makes one from a file's `.eh_frame` and maps it, read-only, into every target that maps
//! the file. A table is an array of 32-bit words:
//!
//! | words | content |
//! | --- | --- |
//! | 3 | the number of words, of pages, of rules |
//! | pages + 1 | for each [page](PAGE) of code the index of its first row, and the number of rows |
//! | 2 for each rule | every different [`Rule`], its low half first |
//! | the rest | the rows, in ascending order: the offset in the page in the upper half, the index of the rule in the lower. A rule holds from its row's offset to the next row's |
//!
//! Each page has a row for its first byte. A row takes four bytes, and a search looks at one page's
//! rows only.

/// The number of bytes of code in a page of a table.
pub const PAGE: u64 = 1 << PAGE_BITS;
const PAGE_BITS: u32 = 16;
/// The words before the pages.
pub const HEAD: usize = 3;
/// The most rules of a table: a row has sixteen bits for one.
pub const MOST_RULES: usize = 1 << 16;

/// The rule by which the caller's registers are found, for the code of one row: a word of a [`Cfa`], a
/// [`Saved`] and their numbers.
///
/// The CFA, "canonical frame address", is the stack pointer behind the return. The return address
/// is below it.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rule(pub u64);

/// The way to the CFA.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cfa {
    /// Nothing is known of the code. The frame pointer has to do.
    Unknown,
    /// There is no caller.
    End,
    /// A signal handler returns to this code, and the kernel's frame is at the stack pointer.
    Signal,
    /// At this distance from the stack pointer.
    Sp(i32),
    /// At this distance from the frame pointer.
    Fp(i32),
    /// In memory at a distance from the stack pointer, and then at a distance from that.
    AtSp(i16, i16),
    /// The same from the frame pointer.
    AtFp(i16, i16),
    /// In an entry of a procedure linkage table, which pushes a word in front of the instruction at
    /// this offset.
    Plt(u8),
}

/// The caller's frame pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Saved {
    /// Still in its register.
    Kept,
    /// In memory at this distance from the CFA.
    AtCfa(i16),
    /// In memory at this distance from the frame pointer.
    AtFp(i16),
}

/// The lowest byte of a [`Rule`].
mod cfa {
    pub const UNKNOWN: u8 = 0;
    pub const END: u8 = 1;
    pub const SIGNAL: u8 = 2;
    pub const SP: u8 = 3;
    pub const FP: u8 = 4;
    pub const AT_SP: u8 = 5;
    pub const AT_FP: u8 = 6;
    pub const PLT: u8 = 7;
}

/// The byte above it.
mod saved {
    pub const KEPT: u8 = 0;
    pub const AT_CFA: u8 = 1;
    pub const AT_FP: u8 = 2;
}

impl Rule {
    /// The rule where nothing is known.
    pub const UNKNOWN: Self = Self(cfa::UNKNOWN as u64);
    /// The rule of the outermost function.
    pub const END: Self = Self(cfa::END as u64);
    /// The rule of the code that signal handlers return to.
    pub const SIGNAL: Self = Self(cfa::SIGNAL as u64);

    /// Puts a rule together.
    pub fn new(cfa: Cfa, saved: Saved) -> Self {
        let two = |low: i16, high: i16| u32::from(low as u16) | u32::from(high as u16) << 16;
        let (kind, number) = match cfa {
            Cfa::Unknown => return Self::UNKNOWN,
            Cfa::End => return Self::END,
            Cfa::Signal => return Self::SIGNAL,
            Cfa::Sp(distance) => (cfa::SP, distance as u32),
            Cfa::Fp(distance) => (cfa::FP, distance as u32),
            Cfa::AtSp(distance, further) => (cfa::AT_SP, two(distance, further)),
            Cfa::AtFp(distance, further) => (cfa::AT_FP, two(distance, further)),
            Cfa::Plt(offset) => (cfa::PLT, offset.into()),
        };
        let (saved, distance) = match saved {
            Saved::Kept => (saved::KEPT, 0),
            Saved::AtCfa(distance) => (saved::AT_CFA, distance),
            Saved::AtFp(distance) => (saved::AT_FP, distance),
        };
        Self(
            u64::from(kind)
                | u64::from(saved) << 8
                | u64::from(distance as u16) << 16
                | u64::from(number) << 32,
        )
    }

    /// Returns the way to the CFA.
    #[inline(always)]
    pub fn cfa(self) -> Cfa {
        let number = (self.0 >> 32) as u32;
        let (low, high) = (number as u16 as i16, (number >> 16) as i16);
        match self.0 as u8 {
            cfa::SP => Cfa::Sp(number as i32),
            cfa::FP => Cfa::Fp(number as i32),
            cfa::AT_SP => Cfa::AtSp(low, high),
            cfa::AT_FP => Cfa::AtFp(low, high),
            cfa::PLT => Cfa::Plt(number as u8),
            cfa::SIGNAL => Cfa::Signal,
            cfa::END => Cfa::End,
            _ => Cfa::Unknown,
        }
    }

    /// Returns where the caller's frame pointer is.
    #[inline(always)]
    pub fn saved(self) -> Saved {
        let distance = (self.0 >> 16) as u16 as i16;
        match (self.0 >> 8) as u8 {
            saved::AT_CFA => Saved::AtCfa(distance),
            saved::AT_FP => Saved::AtFp(distance),
            _ => Saved::Kept,
        }
    }
}

/// A table. Whatever its words are, a search in it ends, and reads nothing else.
#[derive(Debug, Clone, Copy)]
pub struct UnwindTable<'a>(&'a [u32]);

impl<'a> UnwindTable<'a> {
    /// Returns the table in some words.
    pub fn of(words: &'a [u32]) -> Self {
        Self(words)
    }

    /// Returns the table at an address.
    ///
    /// # Safety
    ///
    /// A table must be mapped there that nobody changes.
    #[inline(always)]
    pub(crate) unsafe fn at(address: usize) -> Self {
        let words = address as *const u32;
        // SAFETY: the caller promises a table, which begins with the number of its words.
        Self(unsafe { core::slice::from_raw_parts(words, *words as usize) })
    }

    /// Returns the rule for the code at an offset from the start of the table's first page.
    #[inline]
    pub fn rule(&self, offset: u64) -> Rule {
        self.find(offset).unwrap_or(Rule::UNKNOWN)
    }

    #[inline]
    fn find(&self, offset: u64) -> Option<Rule> {
        let words = self.0;
        let (pages, rules) = (*words.get(1)? as usize, *words.get(2)? as usize);
        let page = usize::try_from(offset >> PAGE_BITS).ok()?;
        if page >= pages {
            return None;
        }
        let (first, end) = (*words.get(HEAD + page)?, *words.get(HEAD + page + 1)?);
        let rules_at = HEAD + pages + 1;
        let rows = words.get(rules_at + 2 * rules..)?;
        let rows = rows.get(first as usize..end as usize)?;
        let last = row(offset, u16::MAX);
        let behind = rows.partition_point(|row| *row <= last);
        let found = *rows.get(behind.checked_sub(1)?)?;
        let rule = rules_at + 2 * (found as usize & (MOST_RULES - 1));
        let (low, high) = (*words.get(rule)?, *words.get(rule + 1)?);
        Some(Rule(u64::from(low) | u64::from(high) << 32))
    }
}

/// Returns a row: the code at this offset follows the rule with this index.
#[inline(always)]
pub fn row(offset: u64, rule: u16) -> u32 {
    u32::from(offset as u16) << 16 | u32::from(rule)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read_as_they_were_made() {
        let ways = [
            Cfa::Sp(8),
            Cfa::Sp(-8),
            Cfa::Sp(i32::MAX),
            Cfa::Fp(16),
            Cfa::Fp(i32::MIN),
            Cfa::AtSp(-40, 8),
            Cfa::AtFp(-8, i16::MIN),
            Cfa::Plt(11),
        ];
        for cfa in ways {
            for saved in [Saved::Kept, Saved::AtCfa(-16), Saved::AtFp(i16::MAX)] {
                let rule = Rule::new(cfa, saved);
                assert_eq!((rule.cfa(), rule.saved()), (cfa, saved));
            }
        }
        for cfa in [Cfa::Unknown, Cfa::End, Cfa::Signal] {
            assert_eq!(Rule::new(cfa, Saved::AtCfa(-16)).cfa(), cfa);
        }
    }

    #[test]
    fn garbage_is_no_table() {
        let mut words = [0u32; 64];
        let mut state = 1u32;
        for _ in 0..20_000 {
            for word in &mut words {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                // Small numbers get further.
                *word = state >> (state >> 8 & 31);
            }
            for len in [0, 1, 2, 3, 4, 17, 64] {
                let table = UnwindTable::of(&words[..len]);
                for offset in [0, 1, PAGE - 1, PAGE, 5 * PAGE + 77, u64::MAX] {
                    let _ = table.rule(offset);
                }
            }
        }
    }
}
