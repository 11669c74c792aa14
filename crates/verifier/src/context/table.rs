//! A structure as a table: its fields, and the programs that may read and write them, in which
//! sizes.

use super::Field;

/// One field. A structure may list one twice, with different sizes.
pub(super) struct Row {
    /// The offset from the structure's start.
    offset: u32,
    /// The bytes from there within which accesses stay.
    bytes: u32,
    read: Sizes,
    readers: u32,
    write: Sizes,
    writers: u32,
    gives: Field,
}

/// All families of programs that share the structure.
pub(super) const ALL: u32 = u32::MAX;

/// Returns the offset and the bytes of a structure's field.
macro_rules! at {
    ($of:ident.$field:ident) => {
        (
            std::mem::offset_of!($of, $field) as u32,
            $crate::context::table::bytes_of(|it: $of| it.$field),
        )
    };
}

pub(super) use at;

/// Returns the bytes of a result.
pub(super) const fn bytes_of<S, T>(_: fn(S) -> T) -> u32 {
    size_of::<T>() as u32
}

/// Creates a field that no program may access yet.
pub(super) const fn row((offset, bytes): (u32, u32)) -> Row {
    Row {
        offset,
        bytes,
        read: NONE,
        readers: 0,
        write: NONE,
        writers: 0,
        gives: Field::Scalar { whole: 0 },
    }
}

impl Row {
    /// Sets the bytes from the field's start: a part of it, or its padding as well.
    pub const fn first(self, bytes: u32) -> Self {
        Self { bytes, ..self }
    }

    /// Lets these families read it.
    pub const fn read(self, read: Sizes, readers: u32) -> Self {
        Self {
            read,
            readers,
            ..self
        }
    }

    /// Lets these families write it.
    pub const fn write(self, write: Sizes, writers: u32) -> Self {
        Self {
            write,
            writers,
            ..self
        }
    }

    /// Sets the content, if it is not a number.
    pub const fn gives(self, gives: Field) -> Self {
        Self { gives, ..self }
    }
}

/// The sizes with which a field may be accessed, always aligned to themselves.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    /// The set of sizes. A size is a power of two, so each stands for itself.
    set: u32,
    /// The size that the kernel loads in any case, to take a part of it; 0 if it loads the size
    /// that the program has.
    whole: u32,
    /// True if accesses must start at the field's first byte.
    first: bool,
}

const NONE: Sizes = only(0);
/// All sizes, because the memory looks as it does to programs.
pub(super) const ANY: Sizes = only(1 | 2 | 4 | 8);
/// One byte.
pub(super) const B1: Sizes = only(1);
/// Four bytes at once.
pub(super) const B4: Sizes = only(4);
/// Eight bytes at once.
pub(super) const B8: Sizes = only(8);
/// Any part of two bytes.
pub(super) const PART_OF_2: Sizes = part_of(2);
/// Any part of four bytes.
pub(super) const PART_OF_4: Sizes = part_of(4);
/// Any part of eight bytes.
pub(super) const PART_OF_8: Sizes = part_of(8);
/// The low bytes of four.
pub(super) const LOW_OF_4: Sizes = Sizes {
    first: true,
    ..PART_OF_4
};
/// Four bytes or half of them.
pub(super) const HALF_OF_4: Sizes = Sizes {
    set: 2 | 4,
    ..PART_OF_4
};

const fn only(set: u32) -> Sizes {
    Sizes {
        set,
        whole: 0,
        first: false,
    }
}

const fn part_of(whole: u32) -> Sizes {
    Sizes {
        set: 2 * whole - 1,
        whole,
        first: false,
    }
}

/// Returns the content that a family of programs gets for an access; `None` if it is not allowed.
pub(super) fn find(rows: &[Row], family: u32, off: i32, size: u32, write: bool) -> Option<Field> {
    let off = u32::try_from(off).ok()?;
    if !size.is_power_of_two() || !off.is_multiple_of(size) {
        return None;
    }
    rows.iter().find_map(|row| {
        let (sizes, families) = if write {
            (row.write, row.writers)
        } else {
            (row.read, row.readers)
        };
        let skipped = off.checked_sub(row.offset)?;
        let is_inside = skipped + size <= row.bytes && !(sizes.first && skipped > 0);
        if !is_inside || sizes.set & size == 0 || families & family == 0 {
            return None;
        }
        Some(match row.gives {
            Field::Scalar { .. } => Field::Scalar {
                whole: if size < sizes.whole { sizes.whole } else { 0 },
            },
            pointer => pointer,
        })
    })
}
