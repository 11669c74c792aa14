//! Walks a structure down to the member at an offset (`btf_struct_walk`).

use beeline_btf::{BitMember, Type, kind};
use beeline_uapi::Errno;
use beeline_uapi::limits::MAX_RESOLVE_DEPTH;

use super::Refused;
use super::table::{Sized, TypeTable, is_struct, shown, text};

/// The end of a walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step<'a> {
    /// A number, or a part of one.
    Scalar,
    /// A pointer to a structure.
    Pointer {
        id: u32,
        /// The type tag behind it: `user`, `percpu`, `rcu`; else empty.
        tag: &'a str,
        /// The member's name.
        field: &'a str,
        /// True if the way led through a union of several members: any of them may be there.
        untrusted: bool,
    },
    /// A pointer to anything else.
    OtherPointer,
    /// A structure in the structure begins just there.
    Struct { id: u32 },
}

impl TypeTable {
    /// Returns the content of `size` bytes at `off` of a structure; continues into structures that
    /// begin there.
    pub(super) fn walk(&self, structure: u32, off: u32, size: u32) -> Result<Step<'_>, Refused> {
        let (mut id, mut off, mut untrusted) = (structure, off, false);
        for _ in 0..MAX_RESOLVE_DEPTH {
            match self.step(id, off, size, &mut untrusted)? {
                Step::Struct { id: inner } => (id, off) = (inner, 0),
                end => return Ok(end),
            }
        }
        Err((Errno::EINVAL, String::new()))
    }

    /// Returns whether a pointer to `have`, `off` bytes on, may stand for one to `want`
    /// (`btf_struct_ids_match`). It may if a structure begins with the wanted one, unless they must
    /// be the same (`strict`).
    pub(super) fn matches(&self, have: u32, off: i32, want: u32, strict: bool) -> bool {
        if off == 0 && have == want {
            return true;
        }
        let (mut id, mut off) = (have, off.cast_unsigned());
        if strict {
            return false;
        }
        for _ in 0..MAX_RESOLVE_DEPTH {
            let Ok(Step::Struct { id: inner }) = self.step(id, off, 1, &mut false) else {
                return false;
            };
            if inner == want {
                return true;
            }
            (id, off) = (inner, 0);
        }
        false
    }

    /// Walks to the first structure that begins at the offset.
    fn step(
        &self,
        structure: u32,
        mut off: u32,
        size: u32,
        untrusted: &mut bool,
    ) -> Result<Step<'_>, Refused> {
        let (_, mut it) = self.skip_modifiers(structure);
        for _ in 0..MAX_RESOLVE_DEPTH {
            if !is_struct(it) {
                return Err((
                    Errno::EINVAL,
                    format!("Type '{}' is not a struct", shown(it.name)),
                ));
            }
            *untrusted |= it.kind == kind::UNION && it.count() != 1;
            if u64::from(off) + u64::from(size) > it.size().into() {
                let beyond = || beyond(it, off, size);
                let (element, inner_off) = self.flexible(it, off).ok_or_else(beyond)?;
                match element.kind {
                    kind::INT => return Ok(Step::Scalar),
                    _ => (it, off) = (element, inner_off),
                }
                continue;
            }
            match self.place(it, off, size)? {
                Place::Bits => return Ok(Step::Scalar),
                Place::In(member) if is_struct(member.element) => {
                    if member.off == off {
                        let id = member.element_id;
                        return Ok(Step::Struct { id });
                    }
                    (it, off) = (member.element, off - member.off);
                }
                Place::In(member) => return self.leaf(it, &member, off, size, *untrusted),
            }
        }
        Err((Errno::EINVAL, String::new()))
    }

    /// Returns the element of an array without a length at the structure's end, and the offset in
    /// it.
    fn flexible<'a>(&'a self, of: Type<'a>, off: u32) -> Option<(Type<'a>, u32)> {
        let last = self.members(of).last()?;
        let (_, array) = self.skip_modifiers(last.type_id);
        let (element, 0) = array.array()? else {
            return None;
        };
        let past = off.checked_sub(last.bit_offset / 8)?;
        let (_, element) = self.skip_modifiers(element);
        if element.kind == kind::INT {
            return Some((element, 0));
        }
        is_struct(element).then_some(())?;
        Some((element, past.checked_rem(element.size())?))
    }

    /// Returns the member that contains the bytes.
    fn place<'a>(&'a self, it: Type<'a>, off: u32, size: u32) -> Result<Place<'a>, Refused> {
        for member in self.members(it) {
            let start = member.bit_offset / 8;
            let end = off.saturating_add(size);
            if end <= start {
                break;
            }
            if member.bits != 0 {
                // All of a bit field or nothing of it.
                let last = (member.bit_offset + member.bits).div_ceil(8);
                if off <= start && last <= end {
                    return Ok(Place::Bits);
                }
                continue;
            }
            if off < start {
                break;
            }
            let sized = self.sized(member.type_id).map_err(|_| {
                let name = shown(member.name);
                (Errno::EFAULT, format!("field {name} doesn't have size"))
            })?;
            let true_end = start.saturating_add(sized.bytes);
            if off < true_end {
                return Ok(Place::In(InMember::new(member, &sized, off, true_end)));
            }
        }
        let name = shown(it.name);
        let line = format!(
            "struct {name} doesn't have field at offset {}",
            off.cast_signed()
        );
        Err((Errno::EINVAL, line))
    }

    /// A pointer or a number.
    fn leaf<'a>(
        &'a self,
        it: Type<'a>,
        member: &InMember<'a>,
        off: u32,
        size: u32,
        untrusted: bool,
    ) -> Result<Step<'a>, Refused> {
        let (name, structure) = (shown(member.name), shown(it.name));
        if member.element.kind == kind::PTR {
            if member.bytes != size || member.off != off {
                let start = member.off;
                let line = format!(
                    "cannot access ptr member {name} with moff {start} in struct {structure} with off {off} size {size}"
                );
                return Err((Errno::EACCES, line));
            }
            let (id, target) = self.target(member.element);
            if !is_struct(target) {
                return Ok(Step::OtherPointer);
            }
            return Ok(Step::Pointer {
                id,
                tag: self.pointer_tag(member.element),
                field: text(member.name),
                untrusted,
            });
        }
        if u64::from(off) + u64::from(size) > member.true_end.into() && !untrusted {
            let end = member.true_end;
            let line = format!(
                "access beyond the end of member {name} (mend:{end}) in struct {structure} with off {off} size {size}"
            );
            return Err((Errno::EACCES, line));
        }
        Ok(Step::Scalar)
    }

    /// Returns the tag just behind a pointer.
    pub(super) fn pointer_tag(&self, pointer: Type<'_>) -> &str {
        let tag = self.at(pointer.refers_to());
        match tag.kind {
            kind::TYPE_TAG if !tag.is_flagged() => text(tag.name),
            _ => "",
        }
    }
}

fn beyond(it: Type<'_>, off: u32, size: u32) -> Refused {
    let name = shown(it.name);
    let line = format!("access beyond struct {name} at off {off} size {size}");
    (Errno::EACCES, line)
}

enum Place<'a> {
    /// A whole bit field.
    Bits,
    In(InMember<'a>),
}

/// The member, or the element of an array, that contains an offset.
struct InMember<'a> {
    name: &'a [u8],
    /// The offset from the structure's start.
    off: u32,
    bytes: u32,
    /// The end of the whole member: an array of numbers may be accessed like one big number.
    true_end: u32,
    element: Type<'a>,
    element_id: u32,
}

impl<'a> InMember<'a> {
    fn new(member: BitMember<'a>, sized: &Sized<'a>, off: u32, true_end: u32) -> Self {
        let start = member.bit_offset / 8;
        let bytes = sized.bytes.checked_div(sized.count).unwrap_or(0);
        let index = (off - start).checked_div(bytes).unwrap_or(0);
        Self {
            name: member.name,
            off: start + index * bytes,
            bytes,
            true_end,
            element: sized.element,
            element_id: sized.element_id,
        }
    }
}
