//! The small part of BTF that Beeline reads: the fields of structures, the variables of sections.
//!
//! It reads two kinds: the kernel's own BTF, followed by that of its modules ([`Joined`]), and that
//! of tools and of object files, which describes the maps, and where the kernel would keep a lock
//! in a map's value. Neither is trusted: every offset is checked, every walk is bounded, and
//! malformed data is simply not found.
//!
//! The format is that of `Documentation/bpf/btf.rst`.
//!
//! Its terms are in docs/glossary.md.

#![forbid(unsafe_code)]

use std::borrow::Cow;
use std::mem::offset_of;
use std::ops::Range;

/// Returns a field of a structure that begins the bytes.
macro_rules! field {
    ($bytes:expr, $of:ident.$field:ident) => {
        u32_at($bytes, offset_of!($of, $field))
    };
}

mod joined;

use beeline_uapi::btf::{
    BTF_MAGIC, BTF_VERSION, BtfArray, BtfDeclTag, BtfEnum, BtfEnum64, BtfHeader, BtfMember,
    BtfParam, BtfType, BtfVar, BtfVarSecinfo, info_kflag, info_kind, info_vlen, member_bit_offset,
    member_bitfield_size, rest_len,
};
use beeline_uapi::limits::MAX_RESOLVE_DEPTH;

pub use beeline_uapi::btf::{int, kind, linkage};
pub use joined::{Joined, Layout};

/// `BTF_MAGIC` and `BTF_VERSION`: the first bytes of BTF, and of `.BTF.ext` in object files.
pub const MAGIC_AND_VERSION: [u8; 3] = {
    let [low, high] = BTF_MAGIC.to_le_bytes();
    [low, high, BTF_VERSION]
};
/// The bytes of a header.
const HEADER: usize = size_of::<BtfHeader>();
/// The bytes of a type's start.
const TYPE: usize = size_of::<BtfType>();
/// The most members that one look-up visits: anonymous structures may hold each other many times
/// over.
const MEMBERS_VISITED: u32 = 100_000;

/// Type information, with an index of its types.
#[derive(Debug)]
pub struct Btf<'a> {
    types: &'a [u8],
    strings: &'a [u8],
    /// The start of each type in `types`; the first is number 1.
    starts: Cow<'a, [u32]>,
}

/// Type information that keeps its own bytes, for repeated use.
#[derive(Debug)]
pub struct OwnedBtf {
    data: Vec<u8>,
    types: Range<usize>,
    strings: Range<usize>,
    starts: Vec<u32>,
}

/// One type.
#[derive(Debug, Clone, Copy)]
pub struct Type<'a> {
    /// The kind: [`kind`].
    pub kind: u8,
    /// The name; empty if it has none.
    pub name: &'a [u8],
    /// The bytes, or the type that this one refers to.
    size_or_type: u32,
    /// The low half of the second word: the number of members, or a function's linkage.
    count: u16,
    /// True if members have sizes in bits.
    bitfields: bool,
    /// The data behind it: members, or an array's description.
    rest: &'a [u8],
}

/// A member of a structure, or a variable of a section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member<'a> {
    /// The name; empty for an anonymous structure or union, and for a variable.
    pub name: &'a [u8],
    /// Its type's number.
    pub type_id: u32,
    /// The offset from the structure's start.
    pub offset: u32,
}

/// A member of a structure or union in full, including bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BitMember<'a> {
    /// The name; empty for an anonymous structure or union.
    pub name: &'a [u8],
    /// Its type's number.
    pub type_id: u32,
    /// The bits from the structure's start.
    pub bit_offset: u32,
    /// The number of bits, if it is a bit field; else 0.
    pub bits: u32,
}

/// A variable of a section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Variable {
    /// The number of the `VAR`.
    pub type_id: u32,
    /// The offset from the section's start.
    pub offset: u32,
    /// The bytes of the variable.
    pub size: u32,
}

/// A value of an enumeration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Enumerator<'a> {
    /// Its name.
    pub name: &'a [u8],
    /// Its value; values of 32 bits are sign-extended.
    pub value: u64,
}

/// A parameter of a function's prototype.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Param<'a> {
    /// The name; empty if it has none.
    pub name: &'a [u8],
    /// Its type's number; 0 for the last one means variable arguments.
    pub type_id: u32,
}

/// A field that was looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    /// The offset from the start of the structure in which the look-up began.
    pub offset: u32,
    /// The bytes of the field.
    pub size: u32,
}

impl<'a> Btf<'a> {
    /// Indexes the types; `None` if the data is no BTF.
    pub fn parse(data: &'a [u8]) -> Option<Self> {
        let (types, strings) = sections(data)?;
        let (types, strings) = (data.get(types)?, data.get(strings)?);
        let mut starts = Vec::with_capacity(types.len() / (2 * TYPE));
        let mut at = 0;
        while at < types.len() {
            starts.push(u32::try_from(at).ok()?);
            let info = info_at(types, at)?;
            at = at.checked_add(TYPE + rest_len(info)?)?;
        }
        (at == types.len()).then_some(Self {
            types,
            strings,
            starts: starts.into(),
        })
    }

    /// Returns the number of types, `void` among them: type numbers are less than this.
    #[allow(clippy::len_without_is_empty)] // `void` is always there.
    pub fn len(&self) -> u32 {
        self.starts.len() as u32 + 1
    }

    /// Returns the kind of a type, without reading the rest of it.
    pub fn kind(&self, id: u32) -> Option<u8> {
        let start = *self.starts.get(id.checked_sub(1)? as usize)? as usize;
        info_at(self.types, start).map(info_kind)
    }

    /// Returns the type with a number; `None` for 0, which is `void`.
    pub fn get(&self, id: u32) -> Option<Type<'a>> {
        let start = *self.starts.get(id.checked_sub(1)? as usize)? as usize;
        let it = self.types.get(start..)?;
        let info = field!(it, BtfType.info)?;
        let rest = start + TYPE;
        Some(Type {
            kind: info_kind(info),
            name: self.string(field!(it, BtfType.name_off)?)?,
            size_or_type: field!(it, BtfType.size_or_type)?,
            count: info_vlen(info),
            bitfields: info_kflag(info),
            rest: self.types.get(rest..rest + rest_len(info)?)?,
        })
    }

    /// Returns the numbers of the first types with these names and kinds; 0 if there is none.
    ///
    /// Makes one pass over all types.
    pub fn find<const N: usize>(&self, wanted: [(u8, &str); N]) -> [u32; N] {
        let mut found = [0; N];
        for id in 1..=self.starts.len() as u32 {
            let Some(it) = self.get(id) else { continue };
            for (place, (kind, name)) in found.iter_mut().zip(wanted) {
                if *place == 0 && it.kind == kind && it.name == name.as_bytes() {
                    *place = id;
                }
            }
        }
        found
    }

    /// Returns the type behind `typedef`s and qualifiers.
    pub fn resolve(&self, mut id: u32) -> Option<(u32, Type<'a>)> {
        for _ in 0..MAX_RESOLVE_DEPTH {
            let it = self.get(id)?;
            match it.kind {
                kind::TYPEDEF
                | kind::VOLATILE
                | kind::CONST
                | kind::RESTRICT
                | kind::TYPE_TAG
                | kind::VAR => id = it.size_or_type,
                _ => return Some((id, it)),
            }
        }
        None
    }

    /// Returns the bytes of a type.
    pub fn size(&self, id: u32) -> Option<u32> {
        let (mut id, mut count) = (id, 1u32);
        for _ in 0..MAX_RESOLVE_DEPTH {
            let (_, it) = self.resolve(id)?;
            match it.kind {
                kind::PTR => return count.checked_mul(8),
                kind::ARRAY => {
                    count = count.checked_mul(field!(it.rest, BtfArray.nelems)?)?;
                    id = field!(it.rest, BtfArray.r#type)?;
                }
                kind::INT
                | kind::STRUCT
                | kind::UNION
                | kind::ENUM
                | kind::ENUM64
                | kind::FLOAT
                | kind::DATASEC => return count.checked_mul(it.size_or_type),
                _ => return None,
            }
        }
        None
    }

    /// Returns the members of a structure or union, including bit fields.
    pub fn bit_members(&self, of: Type<'a>) -> impl Iterator<Item = BitMember<'a>> + use<'a> {
        let strings = self.strings;
        let rest = match of.kind {
            kind::STRUCT | kind::UNION => of.rest,
            _ => &[],
        };
        rest.chunks_exact(size_of::<BtfMember>())
            .filter_map(move |member| {
                let (bit_offset, bits) = bits(field!(member, BtfMember.offset)?, of.bitfields);
                Some(BitMember {
                    name: string_at(strings, field!(member, BtfMember.name_off)?)?,
                    type_id: field!(member, BtfMember.r#type)?,
                    bit_offset,
                    bits,
                })
            })
    }

    /// Returns the variables of a section.
    pub fn variables(&self, of: Type<'a>) -> impl Iterator<Item = Variable> + use<'a> {
        let rest = match of.kind {
            kind::DATASEC => of.rest,
            _ => &[],
        };
        rest.chunks_exact(size_of::<BtfVarSecinfo>())
            .filter_map(|variable| {
                Some(Variable {
                    type_id: field!(variable, BtfVarSecinfo.r#type)?,
                    offset: field!(variable, BtfVarSecinfo.offset)?,
                    size: field!(variable, BtfVarSecinfo.size)?,
                })
            })
    }

    /// Returns the parameters of a function's prototype.
    pub fn params(&self, of: Type<'a>) -> impl Iterator<Item = Param<'a>> + use<'a> {
        let strings = self.strings;
        let rest = match of.kind {
            kind::FUNC_PROTO => of.rest,
            _ => &[],
        };
        rest.chunks_exact(size_of::<BtfParam>())
            .filter_map(move |param| {
                Some(Param {
                    name: string_at(strings, field!(param, BtfParam.name_off)?)?,
                    type_id: field!(param, BtfParam.r#type)?,
                })
            })
    }

    /// Returns the values of an enumeration.
    pub fn enumerators(&self, of: Type<'a>) -> impl Iterator<Item = Enumerator<'a>> + use<'a> {
        let strings = self.strings;
        let (rest, size) = match of.kind {
            kind::ENUM => (of.rest, size_of::<BtfEnum>()),
            kind::ENUM64 => (of.rest, size_of::<BtfEnum64>()),
            _ => (&[][..], size_of::<BtfEnum>()),
        };
        rest.chunks_exact(size).filter_map(move |it| {
            // Both kinds have the name first, then the low half.
            let low = field!(it, BtfEnum64.val_lo32)?;
            let value = match field!(it, BtfEnum64.val_hi32) {
                Some(high) => u64::from(high) << 32 | u64::from(low),
                None => i64::from(low.cast_signed()).cast_unsigned(),
            };
            Some(Enumerator {
                name: string_at(strings, field!(it, BtfEnum64.name_off)?)?,
                value,
            })
        })
    }

    /// Returns the members of a structure or union that begin at whole bytes, or the variables of a
    /// section.
    pub fn members(&self, of: Type<'a>) -> impl Iterator<Item = Member<'a>> + '_ {
        let (members, variables) = match of.kind {
            kind::STRUCT | kind::UNION => (of.rest, &[][..]),
            kind::DATASEC => (&[][..], of.rest),
            _ => (&[][..], &[][..]),
        };
        let members = members
            .chunks_exact(size_of::<BtfMember>())
            .filter_map(move |member| {
                let (offset, size) = bits(field!(member, BtfMember.offset)?, of.bitfields);
                (offset % 8 == 0 && size == 0).then_some(Member {
                    name: self.string(field!(member, BtfMember.name_off)?)?,
                    type_id: field!(member, BtfMember.r#type)?,
                    offset: offset / 8,
                })
            });
        let variables = variables
            .chunks_exact(size_of::<BtfVarSecinfo>())
            .filter_map(|variable| {
                Some(Member {
                    name: &[],
                    type_id: field!(variable, BtfVarSecinfo.r#type)?,
                    offset: field!(variable, BtfVarSecinfo.offset)?,
                })
            });
        members.chain(variables)
    }

    /// Returns the field that a path such as `ns.inum` leads to, through anonymous members too.
    ///
    /// In an array, the path continues in the first element.
    pub fn field(&self, structure: u32, path: &str) -> Option<Field> {
        let (mut id, mut offset, mut visits) = (structure, 0u32, MEMBERS_VISITED);
        for name in path.split('.') {
            let member = self.member(id, name.as_bytes(), MAX_RESOLVE_DEPTH, &mut visits)?;
            offset = offset.checked_add(member.offset)?;
            id = member.type_id;
        }
        Some(Field {
            offset,
            size: self.size(id)?,
        })
    }

    fn member(&self, id: u32, name: &[u8], depth: u32, visits: &mut u32) -> Option<Member<'a>> {
        let (_, mut it) = self.resolve(id)?;
        if it.kind == kind::ARRAY {
            it = self.resolve(field!(it.rest, BtfArray.r#type)?)?.1;
        }
        let depth = depth.checked_sub(1)?;
        for member in self.members(it) {
            *visits = visits.checked_sub(1)?;
            if member.name == name {
                return Some(member);
            }
            if member.name.is_empty()
                && let Some(inner) = self.member(member.type_id, name, depth, visits)
            {
                return Some(Member {
                    offset: member.offset.checked_add(inner.offset)?,
                    ..inner
                });
            }
        }
        None
    }

    /// Returns the string at an offset of the string section.
    pub fn string(&self, offset: u32) -> Option<&'a [u8]> {
        string_at(self.strings, offset)
    }
}

impl OwnedBtf {
    /// Indexes the types; `None` if the data is no BTF.
    pub fn parse(data: Vec<u8>) -> Option<Self> {
        let starts = Btf::parse(&data)?.starts.into_owned();
        let (types, strings) = sections(&data)?;
        Some(Self {
            data,
            types,
            strings,
            starts,
        })
    }

    /// Returns a view for look-ups.
    pub fn view(&self) -> Btf<'_> {
        Btf {
            types: self.data.get(self.types.clone()).unwrap_or_default(),
            strings: self.data.get(self.strings.clone()).unwrap_or_default(),
            starts: Cow::Borrowed(&self.starts),
        }
    }
}

impl Type<'_> {
    /// Number 0, `void`.
    pub const VOID: Self = Self {
        kind: 0,
        name: &[],
        size_or_type: 0,
        count: 0,
        bitfields: false,
        rest: &[],
    };

    /// Returns the bytes of a type that has a size of its own; for others it means nothing.
    pub fn size(&self) -> u32 {
        self.size_or_type
    }

    /// Returns the number of members, parameters or values (`BTF_INFO_VLEN`).
    pub fn count(&self) -> usize {
        self.count.into()
    }

    /// Returns the flag `BTF_INFO_KFLAG`, which means something else for each kind.
    pub fn is_flagged(&self) -> bool {
        self.bitfields
    }

    /// Returns the member or parameter that a declaration's tag is for; -1 for the whole.
    pub fn component(&self) -> Option<i32> {
        (self.kind == kind::DECL_TAG)
            .then(|| field!(self.rest, BtfDeclTag.component_idx).map(u32::cast_signed))?
    }

    /// Returns the number of the type that a variable, pointer or qualifier refers to; for others
    /// it means nothing.
    pub fn refers_to(&self) -> u32 {
        self.size_or_type
    }

    /// Returns the place of a variable's or function's definition: [`linkage`].
    pub fn linkage(&self) -> Option<u32> {
        match self.kind {
            kind::VAR => field!(self.rest, BtfVar.linkage),
            kind::FUNC => Some(self.count.into()),
            _ => None,
        }
    }

    /// Returns an integer's encoding: bits of [`int`].
    pub fn int_encoding(&self) -> Option<u32> {
        self.int_word().map(int::encoding)
    }

    /// Returns the bit of its bytes at which an integer begins, as old compilers described bit
    /// fields; else 0.
    pub fn int_bit_offset(&self) -> Option<u32> {
        self.int_word().map(int::offset)
    }

    fn int_word(&self) -> Option<u32> {
        (self.kind == kind::INT).then(|| u32_at(self.rest, 0))?
    }

    /// Returns an array's element type and count.
    pub fn array(&self) -> Option<(u32, u32)> {
        (self.kind == kind::ARRAY).then_some(())?;
        Some((
            field!(self.rest, BtfArray.r#type)?,
            field!(self.rest, BtfArray.nelems)?,
        ))
    }
}

/// Returns BTF of these sections of types and strings, with a header (`struct btf_header`).
pub fn to_bytes(types: &[u8], strings: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER + types.len() + strings.len());
    bytes.extend(MAGIC_AND_VERSION);
    // No flags.
    bytes.push(0);
    let (type_len, string_len) = (types.len() as u32, strings.len() as u32);
    let words = [HEADER as u32, 0, type_len, type_len, string_len];
    bytes.extend(words.into_iter().flat_map(u32::to_le_bytes));
    bytes.extend(types);
    bytes.extend(strings);
    bytes
}

fn string_at(strings: &[u8], offset: u32) -> Option<&[u8]> {
    let rest = strings.get(offset as usize..)?;
    rest.split(|byte| *byte == 0).next()
}

/// Returns the places of the types and the strings.
fn sections(data: &[u8]) -> Option<(Range<usize>, Range<usize>)> {
    if !data.starts_with(&MAGIC_AND_VERSION) {
        return None;
    }
    let header = field!(data, BtfHeader.hdr_len)?;
    let section = |at: usize| {
        let start = (header as usize).checked_add(u32_at(data, at)? as usize)?;
        Some(start..start.checked_add(u32_at(data, at + 4)? as usize)?)
    };
    let (types, strings) = (
        offset_of!(BtfHeader, type_off),
        offset_of!(BtfHeader, str_off),
    );
    Some((section(types)?, section(strings)?))
}

/// Returns a member's offset and size in bits, by its last word.
fn bits(offset: u32, bitfields: bool) -> (u32, u32) {
    if bitfields {
        (member_bit_offset(offset), member_bitfield_size(offset))
    } else {
        (offset, 0)
    }
}

/// Returns the second word of the type that begins at an offset.
fn info_at(types: &[u8], at: usize) -> Option<u32> {
    u32_at(types, at + offset_of!(BtfType, info))
}

fn u32_at(data: &[u8], at: usize) -> Option<u32> {
    let bytes = data.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

#[cfg(test)]
mod tests;
