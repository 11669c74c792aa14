//! Numbers from text.

use beeline_uapi::Errno;
use beeline_uapi::flags::STRTOX_BASE_MASK;

use super::convention::{Readable, Writable};
use super::text::is_space;
use crate::abi::Context;

/// The most characters that a number may have behind its sign.
const LONGEST: usize = 63;

/// `bpf_strtol(buf, buf_len, flags, res)`: returns the bytes that the number takes.
///
/// # Errors
///
/// `EINVAL` for no text, no digits, an unknown base or flags; `ERANGE` for a number that does not
/// fit.
pub fn strtol(
    _: &mut Context,
    buf: Readable,
    len: u32,
    flags: u64,
    to: Writable,
) -> Result<u64, Errno> {
    take_number(buf, len, flags, to, |number| {
        number.signed().ok_or(Errno::ERANGE)
    })
}

/// `bpf_strtoul(buf, buf_len, flags, res)`: returns the bytes that the number takes, or `-EINVAL`
/// for one with a minus sign.
///
/// # Errors
///
/// Those of [`strtol`].
pub fn strtoul(
    _: &mut Context,
    buf: Readable,
    len: u32,
    flags: u64,
    to: Writable,
) -> Result<u64, Errno> {
    take_number(buf, len, flags, to, |number| match number.is_negative {
        true => Err(Errno::EINVAL),
        false => Ok(number.value),
    })
}

/// Stores the number that a text begins with, or 0 if there is none that fits. Returns the bytes
/// that it takes.
fn take_number(
    buf: Readable,
    len: u32,
    flags: u64,
    to: Writable,
    fit: impl FnOnce(&Number) -> Result<u64, Errno>,
) -> Result<u64, Errno> {
    let to = to.as_mut_ptr().cast::<u64>();
    // SAFETY: the program answers for a word.
    unsafe { to.write(0) };
    let text = Text {
        at: buf.as_ptr(),
        len: len as usize,
    };
    let number = parse(&text, flags)?;
    let value = fit(&number)?;
    // SAFETY: the program answers for a word.
    unsafe { to.write(value) };
    Ok(number.end as u64)
}

/// A text of the program's.
struct Text {
    at: *const u8,
    len: usize,
}

impl Text {
    /// Returns the byte at a place; 0 at the end and after it.
    fn byte(&self, i: usize) -> u8 {
        if i < self.len {
            // SAFETY: the index is inside the text, for which the program answers.
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

fn parse(text: &Text, flags: u64) -> Result<Number, Errno> {
    let base = flags & STRTOX_BASE_MASK;
    if text.len == 0 || !matches!(base, 0 | 8 | 10 | 16) || flags & !STRTOX_BASE_MASK != 0 {
        return Err(Errno::EINVAL);
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
        (false, _) => Err(Errno::ERANGE),
        (_, true) => Err(Errno::EINVAL),
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
