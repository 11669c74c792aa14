//! The number that a relocation puts into its instruction.

use beeline_btf::{Btf, Type, int, kind};

use super::spec::Spec;
use super::{Senseless, Sensible, What, bare};

/// The number for an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Number {
    /// The number by the file's types; None if compilers and libbpf may compute it differently.
    pub(super) old: Option<u64>,
    /// The number by the kernel's types. None if the kernel does not have it: then a program that
    /// reaches the instruction is refused.
    pub(super) new: Option<u64>,
    /// The bytes of the field by the file's types, and by the kernel's.
    pub(super) old_size: u32,
    pub(super) new_size: u32,
    /// True if a load may take the new size in place of the old one.
    pub(super) may_load: bool,
}

impl Number {
    pub(super) fn unchecked(new: u64) -> Self {
        Self {
            old: None,
            new: Some(new),
            old_size: 0,
            new_size: 0,
            may_load: true,
        }
    }
}

/// One side's part of a number.
#[derive(Debug, Clone, Copy, Default)]
struct Side {
    value: u64,
    /// The bytes and type of the accessed field; or 0.
    size: u32,
    type_id: u32,
    /// True if there is only one way to compute it.
    is_clear: bool,
}

/// Computes the number by the file's types, and by the kernel's if it has such a thing.
pub(super) fn number(
    btf: &Btf<'_>,
    local: &Spec<'_>,
    target: Option<(&Btf<'_>, &Spec<'_>)>,
) -> Sensible<Number> {
    let what = local.what;
    let old = side(btf, local)?;
    let absent = match what {
        What::FieldExists | What::EnumeratorExists => Some(0),
        _ if what.is_of_type() => Some(0),
        _ => None,
    };
    let (new, new_side) = match target {
        None => (absent, Side::default()),
        Some((kernel, target)) => {
            let new = side(kernel, target)?;
            (Some(new.value), new)
        }
    };
    let may_load = match target {
        Some((kernel, _)) if old.size != new_side.size => {
            let (ours, theirs) = (btf.get(old.type_id), kernel.get(new_side.type_id));
            let both = ours.zip(theirs);
            both.is_some_and(|(ours, theirs)| may_be_resized(ours, theirs))
        }
        _ => true,
    };
    Ok(Number {
        old: old.is_clear.then_some(old.value),
        new,
        old_size: old.size,
        new_size: new_side.size,
        may_load,
    })
}

/// Returns whether zeros may be prepended: pointers and unsigned integers stay the same.
fn may_be_resized(ours: Type<'_>, theirs: Type<'_>) -> bool {
    let is_pointer = |it: Type<'_>| it.kind == kind::PTR;
    let is_unsigned = |it: Type<'_>| {
        it.int_encoding()
            .is_some_and(|encoding| encoding != int::SIGNED)
    };
    is_pointer(ours) && is_pointer(theirs) || is_unsigned(ours) && is_unsigned(theirs)
}

fn side(btf: &Btf<'_>, spec: &Spec<'_>) -> Sensible<Side> {
    let clear = |value: u64| Side {
        value,
        is_clear: true,
        ..Side::default()
    };
    let root = || btf.size(spec.root).map(u64::from).ok_or(Senseless);
    match spec.what {
        What::FieldExists | What::TypeExists | What::TypeMatches | What::EnumeratorExists => {
            Ok(clear(1))
        }
        What::TypeSize => Ok(clear(root()?)),
        // Linkers of object files change types' numbers.
        What::LocalType | What::TargetType => Ok(Side {
            value: spec.root.into(),
            ..Side::default()
        }),
        What::EnumeratorValue => {
            let step = spec.steps.first().ok_or(Senseless)?;
            let it = btf.get(step.type_id).ok_or(Senseless)?;
            let value = btf
                .enumerators(it)
                .nth(step.index as usize)
                .ok_or(Senseless)?;
            Ok(clear(value.value))
        }
        _ => field(btf, spec),
    }
}

fn field(btf: &Btf<'_>, spec: &Spec<'_>) -> Sensible<Side> {
    let last = spec.steps.last().ok_or(Senseless)?;
    if last.name.is_none() {
        let value = match spec.what {
            What::FieldOffset => return offset(btf, spec.bit_offset / 8, last.type_id),
            What::FieldSize => btf.size(last.type_id).ok_or(Senseless)?.into(),
            _ => return Err(Senseless),
        };
        return Ok(Side {
            value,
            is_clear: true,
            ..Side::default()
        });
    }
    let holder = btf.get(last.type_id).ok_or(Senseless)?;
    let member = btf
        .bit_members(holder)
        .nth(last.index as usize)
        .ok_or(Senseless)?;
    let (type_id, it) = bare(btf, member.type_id)?;
    let is_bit_field = member.bits > 0;
    let place = if is_bit_field {
        Place::of_bits(it.size(), spec.bit_offset, member.bits)?
    } else {
        let size = btf.size(type_id).ok_or(Senseless)?;
        Place {
            offset: spec.bit_offset / 8,
            size,
            bits: size.checked_mul(8).ok_or(Senseless)?,
        }
    };
    let shift = |by: u64| 64u64.wrapping_sub(by);
    let (value, is_clear) = match spec.what {
        What::FieldOffset if !is_bit_field => return offset(btf, place.offset, type_id),
        What::FieldOffset => (place.offset, false),
        What::FieldSize => (place.size.into(), !is_bit_field),
        What::FieldSigned => {
            let is_signed = match it.kind {
                kind::ENUM | kind::ENUM64 => it.is_flagged(),
                _ => it
                    .int_encoding()
                    .is_some_and(|encoding| encoding & int::SIGNED != 0),
            };
            (is_signed.into(), true)
        }
        What::FieldLeftShift => {
            let end = spec.bit_offset + u64::from(place.bits) - place.offset * 8;
            (shift(end), !is_bit_field)
        }
        What::FieldRightShift => (shift(place.bits.into()), true),
        _ => return Err(Senseless),
    };
    Ok(Side {
        value,
        is_clear,
        ..Side::default()
    })
}

/// Returns an offset, and the size of the field there; for an array, of an element.
fn offset(btf: &Btf<'_>, value: u64, type_id: u32) -> Sensible<Side> {
    let (mut element, mut it) = bare(btf, type_id)?;
    // More dimensions than any language has.
    for _ in 0..64 {
        let Some((inner, _)) = it.array() else {
            break;
        };
        (element, it) = bare(btf, inner)?;
    }
    Ok(Side {
        value,
        size: btf.size(element).ok_or(Senseless)?,
        type_id,
        is_clear: true,
    })
}

/// The place of a field: the bytes to load, and the number of its bits.
struct Place {
    offset: u64,
    size: u32,
    bits: u32,
}

impl Place {
    /// Returns the smallest aligned load that has all bits.
    fn of_bits(size: u32, bit_offset: u64, bits: u32) -> Sensible<Self> {
        let mut size = size;
        loop {
            let bytes = u64::from(size);
            let offset = (bit_offset / 8).checked_div(bytes).ok_or(Senseless)? * bytes;
            if bit_offset + u64::from(bits) - offset * 8 <= bytes * 8 {
                return Ok(Self { offset, size, bits });
            }
            if size >= 8 {
                return Err(Senseless);
            }
            size *= 2;
        }
    }
}
