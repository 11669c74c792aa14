//! A format string, byte by byte, and its characters' classes.

/// A format: bytes up to a terminator, in memory of the program's.
#[derive(Debug, Clone, Copy)]
pub struct Format {
    at: *const u8,
    len: usize,
}

impl Format {
    /// Returns the format at `at` if it ends within `most` bytes.
    ///
    /// # Safety
    ///
    /// `most` bytes at `at`, or those up to and with a zero before that, must be readable as long
    /// as the format is used.
    pub unsafe fn new(at: *const u8, most: usize) -> Option<Self> {
        (0..most)
            // SAFETY: no byte before this one was zero, so the caller promises that it is readable.
            .find(|i| unsafe { at.add(*i).read() } == 0)
            .map(|len| Self { at, len })
    }

    /// Returns the number of bytes without the terminator.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the byte at a place; 0 at the end and after it.
    pub fn byte(&self, i: usize) -> u8 {
        if i < self.len {
            // SAFETY: the index is inside the format.
            unsafe { self.at.add(i).read() }
        } else {
            0
        }
    }

    /// Returns the first place from `i` on with a byte that is not of the class.
    pub fn skip(&self, mut i: usize, class: impl Fn(u8) -> bool) -> usize {
        while i < self.len && class(self.byte(i)) {
            i += 1;
        }
        i
    }
}

// The classes are those of the kernel's table, which takes bytes above 127 for Latin-1.

/// White space.
pub fn is_space(byte: u8) -> bool {
    matches!(byte, 9..=13 | b' ' | 0xa0)
}

/// A letter or a digit.
pub fn is_alphanumeric(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || (byte >= 0xc0 && !is_punctuation(byte))
}

/// True if a format may contain it. Bytes above 127 are taken for parts of UTF-8 here.
pub fn is_text(byte: u8) -> bool {
    matches!(byte, 9..=13 | b' '..=b'~' | 0x80..)
}

/// True if a conversion ends before this byte.
pub fn is_boundary(byte: u8) -> bool {
    byte == 0 || is_space(byte) || is_punctuation(byte)
}

fn is_punctuation(byte: u8) -> bool {
    byte.is_ascii_punctuation() || matches!(byte, 0xa1..=0xbf | 0xd7 | 0xf7)
}
