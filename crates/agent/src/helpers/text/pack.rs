//! The first half of formatting, as in the kernel's `bpf_bprintf_prepare`: the format is checked,
//! and the arguments are packed in the order of its conversions. Data behind pointers are copied
//! now, so nothing can fault or change in the second half ([`super::print`]).

use core::mem::MaybeUninit;

use beeline_uapi::Errno;

use super::format::{Format, is_boundary, is_text};
use super::print::{self, Out};
use crate::abi::Context;
use crate::helpers::read;

/// `MAX_BPRINTF_BIN_ARGS`.
const ROOM: usize = 512;

/// The memory for packed arguments. It is separate from [`Packed`], which moves: moving this would
/// call `memcpy`.
pub type Room = MaybeUninit<[u8; ROOM]>;

/// The arguments of a format's conversions.
pub struct Packed<'r> {
    room: &'r mut Room,
    len: usize,
}

/// The type of a conversion's argument.
#[derive(Clone, Copy)]
enum Conversion {
    /// Eight bytes: `%lx`, `%p`.
    Word,
    /// Four bytes: `%d`.
    Half,
    /// `%c`.
    Char,
    /// A string behind a pointer: `%s`, `%pks`, `%pus`.
    Text,
    /// A place in code: `%pB`.
    Place,
    /// An IP address behind a pointer; `letter` is `i` or `I`.
    Address { letter: u8, is_v6: bool },
}

impl<'r> Packed<'r> {
    /// Checks a format and packs its arguments: `count` of them at `args`.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a format that the kernel does not take or that has more conversions than
    /// arguments; `ENOSPC` if they need more room than the kernel has.
    ///
    /// # Safety
    ///
    /// `count` words at `args` must be readable, and the context's slot must be leased.
    pub unsafe fn new(
        room: &'r mut Room,
        context: &mut Context,
        format: &Format,
        args: *const u64,
        count: usize,
    ) -> Result<Self, Errno> {
        let mut packed = Self { room, len: 0 };
        let (mut i, mut taken) = (0, 0);
        while i < format.len() {
            let byte = format.byte(i);
            if !is_text(byte) {
                return Err(Errno::EINVAL);
            }
            i += 1;
            if byte != b'%' {
                continue;
            }
            if format.byte(i) == b'%' {
                i += 1;
                continue;
            }
            if taken >= count {
                return Err(Errno::EINVAL);
            }
            let conversion;
            (conversion, i) = conversion_at(format, i).ok_or(Errno::EINVAL)?;
            // SAFETY: the index is below `count`.
            let value = unsafe { args.add(taken).read_unaligned() };
            packed.pack(context, conversion, value)?;
            taken += 1;
        }
        Ok(packed)
    }

    fn pack(
        &mut self,
        context: &mut Context,
        conversion: Conversion,
        value: u64,
    ) -> Result<(), Errno> {
        match conversion {
            Conversion::Word => self.pack_word(value, 8),
            Conversion::Half => self.pack_word(value, 4),
            Conversion::Char => self.pack_char(value as u8),
            Conversion::Text => self.pack_text(context, value),
            Conversion::Place => {
                self.print(|out| print::place(out, value));
                Ok(())
            }
            Conversion::Address { letter, is_v6 } => {
                self.pack_address(context, value, letter, is_v6)
            }
        }
    }

    fn pack_word(&mut self, value: u64, bytes: usize) -> Result<(), Errno> {
        let start = self.len.next_multiple_of(4);
        let end = start + bytes;
        if end > ROOM {
            return Err(Errno::ENOSPC);
        }
        for i in 0..bytes {
            // SAFETY: the place is below the room's end.
            unsafe { self.at(start + i).write((value >> (8 * i)) as u8) };
        }
        self.len = end;
        Ok(())
    }

    fn pack_char(&mut self, value: u8) -> Result<(), Errno> {
        if self.len >= ROOM {
            return Err(Errno::ENOSPC);
        }
        // SAFETY: there is room for one.
        unsafe { self.at(self.len).write(value) };
        self.len += 1;
        Ok(())
    }

    /// Packs a string. One that cannot be read is empty.
    fn pack_text(&mut self, context: &mut Context, from: u64) -> Result<(), Errno> {
        let room = ROOM.checked_sub(self.len).filter(|room| *room > 0);
        let room = room.ok_or(Errno::ENOSPC)?;
        let to = self.at(self.len);
        // SAFETY: there is this much room, and the slot is leased.
        let copied = unsafe { read::copy_string(context, to, from, room as u64) };
        match copied {
            Some(bytes) => self.len += bytes as usize,
            None => self.pack_char(0)?,
        }
        Ok(())
    }

    /// Packs an address. One that cannot be read is 0.
    fn pack_address(
        &mut self,
        context: &mut Context,
        from: u64,
        letter: u8,
        is_v6: bool,
    ) -> Result<(), Errno> {
        let len = if is_v6 { 16 } else { 4 };
        if ROOM.checked_sub(self.len).is_none_or(|room| room < len) {
            return Err(Errno::ENOSPC);
        }
        let mut address = [0u64; 2];
        let to = (&raw mut address).cast::<u8>();
        // SAFETY: there are 16 bytes; the slot is leased.
        if !unsafe { read::copy(context, to, from, len as u64) } {
            address = [0; 2];
        }
        let has_separators = letter == b'I';
        self.print(|out| match is_v6 {
            true => print::ipv6(out, address, has_separators),
            false => print::ipv4(out, address[0] as u32, !has_separators),
        });
        Ok(())
    }

    /// Packs text that is made here. Even if it was cut, the kernel goes on behind what it would
    /// have taken.
    fn print(&mut self, text: impl FnOnce(&mut Out)) {
        let room = ROOM.saturating_sub(self.len);
        // SAFETY: there is this much room.
        let mut out = unsafe { Out::new(self.at(self.len), room) };
        text(&mut out);
        self.len += out.finish() + 1;
    }

    fn at(&mut self, i: usize) -> *mut u8 {
        self.room.as_mut_ptr().cast::<u8>().wrapping_add(i)
    }

    /// Returns the arguments, to be taken from the first on.
    pub fn arguments(&self) -> Arguments<'_> {
        Arguments {
            packed: self,
            next: 0,
        }
    }
}

/// The position up to which packed arguments have been taken.
pub struct Arguments<'p> {
    packed: &'p Packed<'p>,
    next: usize,
}

impl Arguments<'_> {
    /// Returns a number of four or eight bytes.
    pub fn word(&mut self, bytes: usize) -> u64 {
        self.next = self.next.next_multiple_of(4);
        (0..bytes).fold(0, |word, i| word | u64::from(self.byte()) << (8 * i))
    }

    /// Returns the next byte; 0 after the last.
    pub fn byte(&mut self) -> u8 {
        let i = self.next;
        self.next += 1;
        if i >= self.packed.len.min(ROOM) {
            return 0;
        }
        // SAFETY: the index is inside the room. Bytes that padding skipped were never written, but
        // taking them in the order of the format skips them too.
        unsafe { self.packed.room.as_ptr().cast::<u8>().add(i).read() }
    }

    /// Returns the number of bytes of the next string.
    pub fn string_len(&self) -> usize {
        let mut ahead = Arguments {
            packed: self.packed,
            next: self.next,
        };
        while ahead.byte() != 0 {}
        ahead.next - 1 - self.next
    }
}

/// Returns the conversion with a width that begins at `i`, and the place behind it; `None` if the
/// kernel has no such conversion.
fn conversion_at(format: &Format, i: usize) -> Option<(Conversion, usize)> {
    let mut i = format.skip(i, |byte| matches!(byte, b'0' | b'+' | b'-' | b' '));
    i = format.skip(i, |byte| byte.is_ascii_digit());
    let byte = format.byte(i);
    match byte {
        b'p' => return pointer_at(format, i + 1),
        b's' => return is_boundary(format.byte(i + 1)).then_some((Conversion::Text, i + 1)),
        b'c' => return Some((Conversion::Char, i + 1)),
        _ => {}
    }
    let number = format.skip(i, |byte| byte == b'l').min(i + 2);
    let conversion = if number == i {
        Conversion::Half
    } else {
        Conversion::Word
    };
    matches!(format.byte(number), b'i' | b'd' | b'u' | b'x' | b'X')
        .then_some((conversion, number + 1))
}

/// Returns the conversion after a `p` that stands before `i`.
fn pointer_at(format: &Format, i: usize) -> Option<(Conversion, usize)> {
    let (first, second) = (format.byte(i), format.byte(i + 1));
    if is_boundary(first) {
        return Some((Conversion::Word, i));
    }
    match (first, second) {
        (b'k' | b'u', b's') => is_boundary(format.byte(i + 2)).then_some((Conversion::Text, i + 2)),
        (b'K' | b'x' | b's' | b'S', _) => Some((Conversion::Word, i + 1)),
        (b'B', _) => Some((Conversion::Place, i + 1)),
        (b'i' | b'I', b'4' | b'6') => {
            let address = Conversion::Address {
                letter: first,
                is_v6: second == b'6',
            };
            Some((address, i + 2))
        }
        _ => None,
    }
}
