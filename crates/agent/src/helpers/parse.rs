//! Numbers from text.

use beeline_isa::abi::Run;

use super::failed;
use super::text::is_space;

const EINVAL: i32 = 22;
const ERANGE: i32 = 34;
/// In flags: the base.
const BASE_MASK: u64 = 0x1f;
/// The most characters that a number may have behind its sign.
const LONGEST: usize = 63;

/// `bpf_strtol(buf, buf_len, flags, res)`: returns the bytes that the number takes.
pub unsafe extern "sysv64" fn strtol(
    buf: u64,
    len: u64,
    flags: u64,
    to: u64,
    _: u64,
    _: *const Run,
) -> u64 {
    // SAFETY: the program answers for the text and for a word at `to`.
    unsafe {
        (to as *mut u64).write(0);
        let text = Text::new(buf, len);
        let number = parse(&text, flags).and_then(|number| {
            let value = number.signed().ok_or(ERANGE)?;
            Ok((value, number.end))
        });
        give(number, to)
    }
}

/// `bpf_strtoul(buf, buf_len, flags, res)`: returns the bytes that the number takes, or `-EINVAL`
/// for one with a minus sign.
pub unsafe extern "sysv64" fn strtoul(
    buf: u64,
    len: u64,
    flags: u64,
    to: u64,
    _: u64,
    _: *const Run,
) -> u64 {
    // SAFETY: the program answers for the text and for a word at `to`.
    unsafe {
        (to as *mut u64).write(0);
        let text = Text::new(buf, len);
        let number = parse(&text, flags).and_then(|number| match number.is_negative {
            true => Err(EINVAL),
            false => Ok((number.value, number.end)),
        });
        give(number, to)
    }
}

unsafe fn give(number: Result<(u64, usize), i32>, to: u64) -> u64 {
    match number {
        Ok((value, end)) => {
            // SAFETY: both callers pass the address of a word that the program answers for.
            unsafe { (to as *mut u64).write(value) };
            end as u64
        }
        Err(errno) => failed(errno),
    }
}

struct Text {
    at: *const u8,
    len: usize,
}

impl Text {
    /// Wraps a text of the program's.
    ///
    /// # Safety
    ///
    /// `len` bytes at `at` must be readable.
    unsafe fn new(at: u64, len: u64) -> Self {
        Self {
            at: at as *const u8,
            len: len as usize & 0xffff_ffff,
        }
    }

    /// Returns the byte at a place; 0 at the end and after it.
    fn byte(&self, i: usize) -> u8 {
        if i < self.len {
            // SAFETY: the index is inside the text.
            unsafe { self.at.add(i).read() }
        } else {
            0
        }
    }
}

struct Number {
    is_negative: bool,
    value: u64,
    /// The place behind it.
    end: usize,
}

impl Number {
    /// Returns it as a signed number; `None` if it does not fit.
    fn signed(&self) -> Option<u64> {
        let (value, fits) = match self.is_negative {
            true => (
                self.value.wrapping_neg(),
                self.value.wrapping_neg() as i64 <= 0,
            ),
            false => (self.value, self.value as i64 >= 0),
        };
        fits.then_some(value)
    }
}

fn parse(text: &Text, flags: u64) -> Result<Number, i32> {
    let base = flags & BASE_MASK;
    if text.len == 0 || !matches!(base, 0 | 8 | 10 | 16) || flags & !BASE_MASK != 0 {
        return Err(EINVAL);
    }
    let mut start = 0;
    while start < text.len && is_space(text.byte(start)) {
        start += 1;
    }
    let is_negative = text.byte(start) == b'-';
    start += usize::from(is_negative);
    let text = Text {
        at: text.at,
        len: text.len.min(start + LONGEST),
    };
    let (base, first) = base_at(&text, base, start);
    let (mut value, mut end) = (0u64, first);
    let mut fits = true;
    while let Some(digit) = digit(text.byte(end)).filter(|digit| *digit < base) {
        let next = value
            .checked_mul(base)
            .and_then(|next| next.checked_add(digit));
        fits &= next.is_some();
        value = next.unwrap_or(value);
        end += 1;
    }
    match (fits, end == first) {
        (false, _) => Err(ERANGE),
        (_, true) => Err(EINVAL),
        _ => Ok(Number {
            is_negative,
            value,
            end,
        }),
    }
}

fn digit(byte: u8) -> Option<u64> {
    let digit = match byte {
        b'0'..=b'9' => byte - b'0',
        b'a'..=b'f' => byte - b'a' + 10,
        b'A'..=b'F' => byte - b'A' + 10,
        _ => return None,
    };
    Some(digit.into())
}

/// Returns the base of a number and the start of its digits. A base of 0 is taken from the number's
/// prefix.
fn base_at(text: &Text, base: u64, start: usize) -> (u64, usize) {
    let is_zero = text.byte(start) == b'0';
    let is_x = is_zero && text.byte(start + 1) | 0x20 == b'x';
    let base = match base {
        0 if is_x && text.byte(start + 2).is_ascii_hexdigit() => 16,
        0 if is_zero => 8,
        0 => 10,
        given => given,
    };
    (base, start + if base == 16 && is_x { 2 } else { 0 })
}
