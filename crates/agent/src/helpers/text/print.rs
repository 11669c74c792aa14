//! The second half of formatting, as in the kernel's `bstr_printf`: text from a checked format and
//! packed arguments.

use super::format::{Format, is_alphanumeric};
use super::pack::{Arguments, Packed};

const LEFT: u8 = 1;
const PLUS: u8 = 2;
const SPACE: u8 = 4;
const ZEROS: u8 = 8;
const SIGNED: u8 = 16;
/// Hexadecimal digits of a pointer.
const POINTER_DIGITS: i32 = 16;

/// The destination of text. Text that finds no room is only counted.
pub struct Out {
    at: *mut u8,
    size: usize,
    len: usize,
}

impl Out {
    /// Creates a destination for text of at most `size` bytes with its terminator; `at` may be
    /// null, to find the length of the text.
    ///
    /// # Safety
    ///
    /// `at` must be null or writable for `size` bytes.
    pub unsafe fn new(at: *mut u8, size: usize) -> Self {
        Self { at, size, len: 0 }
    }

    /// Ends the text. Returns the bytes that it has, or would have with enough room.
    pub fn finish(self) -> usize {
        if let Some(last) = self.size.checked_sub(1)
            && !self.at.is_null()
        {
            // SAFETY: the index is inside the room.
            unsafe { self.at.add(self.len.min(last)).write(0) };
        }
        self.len
    }

    fn put(&mut self, byte: u8) {
        if self.len < self.size && !self.at.is_null() {
            // SAFETY: the index is inside the room.
            unsafe { self.at.add(self.len).write(byte) };
        }
        self.len = self.len.saturating_add(1);
    }

    fn fill(&mut self, byte: u8, count: i32) {
        let count = usize::try_from(count).unwrap_or(0);
        let shown = count.min(self.size.saturating_sub(self.len));
        for _ in 0..shown {
            self.put(byte);
        }
        self.len = self.len.saturating_add(count - shown);
    }
}

/// The style of one conversion.
struct Style {
    flags: u8,
    /// -1 if none was given.
    width: i32,
}

/// Prints, and returns the bytes of the whole text.
pub fn print(format: &Format, packed: &Packed<'_>, mut out: Out) -> usize {
    let mut arguments = packed.arguments();
    let mut i = 0;
    while i < format.len() {
        let byte = format.byte(i);
        i += 1;
        if byte != b'%' {
            out.put(byte);
            continue;
        }
        let style;
        (style, i) = style_at(format, i);
        let letters = format.skip(i, |byte| byte == b'l').min(i + 2);
        let bytes = if letters == i { 4 } else { 8 };
        let letter = format.byte(letters);
        i = letters + 1;
        match letter {
            b'%' => out.put(b'%'),
            b'c' => char(&mut out, arguments.byte(), &style),
            b's' => string(&mut out, &mut arguments, &style),
            b'p' => {
                pointer(&mut out, format.byte(i), &mut arguments, &style);
                i = format.skip(i, is_alphanumeric);
            }
            b'd' | b'i' | b'u' | b'x' | b'X' => {
                let value = arguments.word(bytes);
                integer(&mut out, letter, value, bytes, style);
            }
            // A format that has been checked has no other conversions.
            _ => break,
        }
    }
    out.finish()
}

/// Returns the flags and the width that begin at `i`, and the place behind them.
fn style_at(format: &Format, mut i: usize) -> (Style, usize) {
    let mut flags = 0;
    loop {
        flags |= match format.byte(i) {
            b'-' => LEFT,
            b'+' => PLUS,
            b' ' => SPACE,
            b'0' => ZEROS,
            _ => break,
        };
        i += 1;
    }
    let end = format.skip(i, |byte| byte.is_ascii_digit());
    let digits = (i..end).map(|i| i32::from(format.byte(i) - b'0'));
    let width = digits.fold(0i32, |width, digit| {
        width.wrapping_mul(10).wrapping_add(digit)
    });
    let width = if end == i { -1 } else { width };
    (Style { flags, width }, end)
}

fn char(out: &mut Out, value: u8, style: &Style) {
    let padding = style.width.saturating_sub(1);
    let is_left = style.flags & LEFT != 0;
    out.fill(b' ', if is_left { 0 } else { padding });
    out.put(value);
    out.fill(b' ', if is_left { padding } else { 0 });
}

fn string(out: &mut Out, arguments: &mut Arguments<'_>, style: &Style) {
    let len = arguments.string_len();
    padded(out, len, style, |out| take(out, arguments, len));
}

/// Takes a string's bytes and its terminator.
fn take(out: &mut Out, arguments: &mut Arguments<'_>, len: usize) {
    for _ in 0..len {
        out.put(arguments.byte());
    }
    arguments.byte();
}

/// Prints text of a known length, with spaces up to the width.
fn padded(out: &mut Out, len: usize, style: &Style, text: impl FnOnce(&mut Out)) {
    let padding = style.width.saturating_sub(len as i32);
    let is_left = style.flags & LEFT != 0;
    out.fill(b' ', if is_left { 0 } else { padding });
    text(out);
    out.fill(b' ', if is_left { padding } else { 0 });
}

/// Prints a `p` and what follows it. The kernel prints `%p` and `%pK` hashed or restricted, to hide
/// its addresses. Here pointers are the traced process's own, and print as `%px` does.
fn pointer(out: &mut Out, letter: u8, arguments: &mut Arguments<'_>, style: &Style) {
    match letter {
        b's' | b'S' => {
            let value = arguments.word(8);
            padded(out, 2 + digits(value, 16), style, |out| place(out, value));
        }
        b'x' | b'K' => address(out, arguments.word(8), style),
        _ if !is_alphanumeric(letter) => address(out, arguments.word(8), style),
        // Packed as text, and, as in the kernel, without a width. (The kernel does not take it when
        // there is no room left, and then takes everything that follows from wrong places.)
        _ => {
            let len = arguments.string_len();
            take(out, arguments, len);
        }
    }
}

fn address(out: &mut Out, value: u64, style: &Style) {
    let style = match style.width {
        -1 => Style {
            flags: style.flags | ZEROS,
            width: POINTER_DIGITS,
        },
        width => Style {
            flags: style.flags,
            width,
        },
    };
    number(out, value, 16, false, &style);
}

fn integer(out: &mut Out, letter: u8, value: u64, bytes: usize, mut style: Style) {
    let is_signed = matches!(letter, b'd' | b'i');
    if is_signed {
        style.flags |= SIGNED;
    }
    let value = match (is_signed, bytes) {
        (true, 4) => i64::from(value as i32) as u64,
        _ => value,
    };
    let base = if matches!(letter, b'x' | b'X') {
        16
    } else {
        10
    };
    number(out, value, base, letter == b'X', &style);
}

fn number(out: &mut Out, mut value: u64, base: u64, upper: bool, style: &Style) {
    let (flags, mut width) = (style.flags, style.width);
    let mut sign = 0;
    if flags & SIGNED != 0 {
        if (value as i64) < 0 {
            sign = b'-';
            value = value.wrapping_neg();
        } else if flags & PLUS != 0 {
            sign = b'+';
        } else if flags & SPACE != 0 {
            sign = b' ';
        }
    }
    width = width.saturating_sub(i32::from(sign != 0));
    let count = digits(value, base);
    let padding = width.saturating_sub(count as i32);
    let (is_left, is_zeros) = (flags & LEFT != 0, flags & ZEROS != 0);
    if !is_left && !is_zeros {
        out.fill(b' ', padding);
    }
    if sign != 0 {
        out.put(sign);
    }
    if !is_left && is_zeros {
        out.fill(b'0', padding);
    }
    put_digits(out, value, base, count, upper);
    if is_left {
        out.fill(b' ', padding);
    }
}

/// Returns the number of digits of a value.
fn digits(mut value: u64, base: u64) -> usize {
    let mut count = 1;
    while let Some(rest) = value.checked_div(base).filter(|rest| *rest != 0) {
        value = rest;
        count += 1;
    }
    count
}

/// Prints the last `count` digits of a value.
fn put_digits(out: &mut Out, value: u64, base: u64, count: usize, upper: bool) {
    for place in (0..count as u32).rev() {
        let shifted = value
            .checked_div(base.wrapping_pow(place))
            .unwrap_or_default();
        let digit = shifted.checked_rem(base).unwrap_or_default() as u8;
        out.put(match (digit, upper) {
            (0..10, _) => b'0' + digit,
            (_, false) => b'a' - 10 + digit,
            (_, true) => b'A' - 10 + digit,
        });
    }
}

/// Prints a place in code for which no symbol is known.
pub fn place(out: &mut Out, value: u64) {
    out.put(b'0');
    out.put(b'x');
    put_digits(out, value, 16, digits(value, 16), false);
}

/// Prints an IPv4 address as it lies in memory.
pub fn ipv4(out: &mut Out, address: u32, leading_zeros: bool) {
    for i in 0..4 {
        let byte = u64::from(address >> (8 * i) & 0xff);
        let count = if leading_zeros { 3 } else { digits(byte, 10) };
        if i > 0 {
            out.put(b'.');
        }
        put_digits(out, byte, 10, count, false);
    }
}

/// Prints an IPv6 address as it lies in memory.
pub fn ipv6(out: &mut Out, address: [u64; 2], colons: bool) {
    for i in 0..16 {
        let half = if i < 8 { address[0] } else { address[1] };
        let byte = half >> (8 * (i % 8)) & 0xff;
        if colons && i > 0 && i % 2 == 0 {
            out.put(b':');
        }
        put_digits(out, byte, 16, 2, false);
    }
}
