//! Special fields of structures: locks, timers, owned pointers, lists, trees (`btf_parse_fields`).

use beeline_btf::{Type, kind};
use beeline_uapi::Errno;
use beeline_uapi::limits::{BTF_FIELDS_MAX, MAX_RESOLVE_DEPTH};
use beeline_uapi::object::{FieldHolder, SpecialField};

use super::KernelTypes;
use super::table::{TypeTable, is_struct, text};
use crate::program::{FieldKind, MapField};

/// The most members that one look visits: a type may hold others many times over.
const MOST_VISITS: u32 = 100_000;
/// Structures of the kernel with owned pointers that may be kept in maps, because a destructor
/// releases them (`register_btf_id_dtor_kfuncs`).
const KEPT: [&str; 6] = [
    "task_struct",
    "cgroup",
    "bpf_cpumask",
    "bpf_crypto_ctx",
    "prog_test_ref_kfunc",
    "prog_test_member",
];

/// Returns the kind of a special field; that of a list or tree leads nowhere yet.
fn kind_of(field: SpecialField) -> FieldKind {
    const NOWHERE: u32 = 0;
    match field {
        SpecialField::SpinLock => FieldKind::SpinLock,
        SpecialField::ResSpinLock => FieldKind::ResilientSpinLock,
        SpecialField::Timer => FieldKind::Timer,
        SpecialField::Workqueue => FieldKind::Workqueue,
        SpecialField::TaskWork => FieldKind::TaskWork,
        SpecialField::ListHead => FieldKind::ListHead {
            btf_id: NOWHERE,
            node: NOWHERE,
        },
        SpecialField::ListNode => FieldKind::ListNode,
        SpecialField::RbRoot => FieldKind::RbRoot {
            btf_id: NOWHERE,
            node: NOWHERE,
        },
        SpecialField::RbNode => FieldKind::RbNode,
        SpecialField::Refcount => FieldKind::RefCount,
    }
}

/// Returns the fields of a type, ascending by offset; an errno if the type makes no sense.
pub(super) fn parse(
    types: &TypeTable,
    of: u32,
    holder: FieldHolder,
    kernel: Option<&KernelTypes>,
) -> Result<Vec<MapField>, Errno> {
    let mut search = Search {
        types,
        holder,
        kernel,
        visits: MOST_VISITS,
    };
    let (id, it) = types.skip_modifiers(of);
    let mut fields = match it.kind {
        kind::STRUCT | kind::UNION => search.structure(id, it, 0)?,
        kind::DATASEC => search.section(it)?,
        _ => return Err(Errno::EINVAL),
    };
    check(&fields)?;
    fields.sort_by_key(|field| field.offset);
    Ok(fields)
}

/// Checks that fields are at their proper places, without overlap, and that a list or tree has a
/// lock beside it.
fn check(fields: &[MapField]) -> Result<(), Errno> {
    let mut next = 0;
    for field in fields {
        if field.offset < next {
            return Err(Errno::EEXIST);
        }
        next = field.offset.checked_add(field.size).ok_or(Errno::EINVAL)?;
    }
    let has = |kind: fn(&FieldKind) -> bool| fields.iter().any(|field| kind(&field.kind));
    let lock = has(|kind| *kind == FieldKind::SpinLock);
    let resilient = has(|kind| *kind == FieldKind::ResilientSpinLock);
    let roots = has(|kind| matches!(kind, FieldKind::ListHead { .. } | FieldKind::RbRoot { .. }));
    let both = has(|kind| *kind == FieldKind::ListNode) && has(|kind| *kind == FieldKind::RbNode);
    let counted = has(|kind| *kind == FieldKind::RefCount);
    if lock && resilient || roots && !lock && !resilient || both && !counted {
        return Err(Errno::EINVAL);
    }
    Ok(())
}

struct Search<'a> {
    types: &'a TypeTable,
    holder: FieldHolder,
    kernel: Option<&'a KernelTypes>,
    visits: u32,
}

/// A member of a structure, or a variable of a section.
struct Place<'a> {
    /// The declaration with the tags that say what a list holds, and its component.
    declaration: (u32, i32),
    it: Type<'a>,
    offset: u32,
    /// The size of a variable.
    size: Option<u32>,
}

impl<'a> Search<'a> {
    fn structure(&mut self, id: u32, it: Type<'a>, depth: u32) -> Result<Vec<MapField>, Errno> {
        let (mut found, mut seen) = (Vec::new(), Vec::new());
        for (member, component) in self.types.members(it).zip(0..) {
            if member.bit_offset % 8 != 0 {
                return Err(Errno::EINVAL);
            }
            let place = Place {
                declaration: (id, component),
                it: self.types.at(member.type_id),
                offset: member.bit_offset / 8,
                size: None,
            };
            let fields = self.one(&place, member.type_id, &mut seen, depth)?;
            extend(&mut found, fields)?;
        }
        Ok(found)
    }

    fn section(&mut self, it: Type<'a>) -> Result<Vec<MapField>, Errno> {
        let (mut found, mut seen) = (Vec::new(), Vec::new());
        for variable in self.types.view().variables(it) {
            let of = self.types.at(variable.type_id).refers_to();
            let place = Place {
                declaration: (variable.type_id, -1),
                it: self.types.at(of),
                offset: variable.offset,
                size: Some(variable.size),
            };
            let fields = self.one(&place, of, &mut seen, 0)?;
            extend(&mut found, fields)?;
        }
        Ok(found)
    }

    /// Finds the fields that a member or variable is or holds; for an array, once for each element.
    fn one(
        &mut self,
        place: &Place<'a>,
        type_id: u32,
        seen: &mut Vec<SpecialField>,
        depth: u32,
    ) -> Result<Vec<MapField>, Errno> {
        self.visits = self.visits.checked_sub(1).ok_or(Errno::E2BIG)?;
        let (mut id, mut it, mut count) = (type_id, place.it, 1u32);
        let mut arrays = 0;
        while let Some((element, elements)) = it.array() {
            arrays += 1;
            if arrays == MAX_RESOLVE_DEPTH {
                return Err(Errno::E2BIG);
            }
            count = count.wrapping_mul(elements);
            (id, it) = (element, self.types.at(element));
        }
        if count == 0 {
            return Ok(Vec::new());
        }
        let fits = |bytes: u32| {
            let size = place.size.unwrap_or(bytes.wrapping_mul(count));
            size == bytes.wrapping_mul(count)
        };
        match self.special(it) {
            Some(special) => {
                if special.is_unique() {
                    if seen.contains(&special) {
                        return Err(Errno::E2BIG);
                    }
                    seen.push(special);
                }
                let bytes = special.size();
                let good = fits(bytes)
                    && place.offset.is_multiple_of(special.align())
                    && is_struct(it)
                    && it.size() == bytes;
                let kind = if good {
                    Some(self.filled(kind_of(special), place.declaration)?)
                } else {
                    None
                };
                repeated(place.offset, kind, bytes, count)
            }
            None if is_struct(it) && fits(it.size()) => {
                self.nested(place, (id, it), count, depth + 1)
            }
            None if !is_struct(it) && fits(8) && place.offset.is_multiple_of(8) => {
                repeated(place.offset, self.pointer(it)?, 8, count)
            }
            None => Ok(Vec::new()),
        }
    }

    /// Returns the special field that a structure of this name is here.
    fn special(&self, it: Type<'a>) -> Option<SpecialField> {
        SpecialField::named(it.name).filter(|special| special.is_special_in(self.holder))
    }

    /// Returns a list or tree, with its content.
    fn filled(&self, kind: FieldKind, declaration: (u32, i32)) -> Result<FieldKind, Errno> {
        Ok(match kind {
            FieldKind::ListHead { .. } => {
                let (btf_id, node) = self.contained(declaration, SpecialField::ListNode)?;
                FieldKind::ListHead { btf_id, node }
            }
            FieldKind::RbRoot { .. } => {
                let (btf_id, node) = self.contained(declaration, SpecialField::RbNode)?;
                FieldKind::RbRoot { btf_id, node }
            }
            kind => kind,
        })
    }

    fn nested(
        &mut self,
        place: &Place<'a>,
        (id, it): (u32, Type<'a>),
        count: u32,
        depth: u32,
    ) -> Result<Vec<MapField>, Errno> {
        if depth >= MAX_RESOLVE_DEPTH {
            return Err(Errno::E2BIG);
        }
        let inner = self.structure(id, it, depth)?;
        let mut found = Vec::new();
        for field in inner {
            let size = field.size;
            let fields = repeated_each(
                field.offset.wrapping_add(place.offset),
                (field.kind, size),
                it.size(),
                count,
            )?;
            extend(&mut found, fields)?;
        }
        found.sort_by_key(|field| field.offset);
        Ok(found)
    }

    /// Returns a pointer field, if a tag says which side owns the object (`btf_find_kptr`,
    /// `btf_parse_kptr`).
    fn pointer(&self, mut it: Type<'a>) -> Result<Option<FieldKind>, Errno> {
        if it.kind == kind::VOLATILE {
            it = self.types.at(it.refers_to());
        }
        if it.kind != kind::PTR {
            return Ok(None);
        }
        let tag = self.types.at(it.refers_to());
        if tag.kind != kind::TYPE_TAG || tag.is_flagged() {
            return Ok(None);
        }
        if self.types.at(tag.refers_to()).kind == kind::TYPE_TAG {
            return Err(Errno::EINVAL);
        }
        let name = text(tag.name);
        if !matches!(name, "kptr" | "kptr_untrusted" | "percpu_kptr" | "uptr") {
            return Err(Errno::EINVAL);
        }
        if name == "uptr" && self.holder == FieldHolder::Object {
            return Ok(None);
        }
        let (local, target) = self.types.skip_modifiers(tag.refers_to());
        if !is_struct(target) {
            return Err(Errno::EINVAL);
        }
        let of_kernel = self.kernel.and_then(|kernel| kernel.named(target));
        let btf_id = of_kernel.unwrap_or(local);
        if name == "kptr" && of_kernel.is_some() && !KEPT.contains(&text(target.name)) {
            return Err(Errno::ENOENT);
        }
        Ok(Some(match name {
            "kptr" => FieldKind::OwnedPointer {
                btf_id,
                local: of_kernel.is_none(),
            },
            "kptr_untrusted" => FieldKind::UntrustedPointer(btf_id),
            "percpu_kptr" => FieldKind::PerCpuPointer(btf_id),
            _ => FieldKind::UserPointer(btf_id),
        }))
    }

    /// Returns the content of a list or tree, by its tag `contains:STRUCTURE:MEMBER`: the
    /// structure, and the node's offset in it.
    fn contained(
        &self,
        (id, component): (u32, i32),
        node: SpecialField,
    ) -> Result<(u32, u32), Errno> {
        let mut tags = self.types.tags(id, component, "contains:");
        let (Some(tag), None) = (tags.next(), tags.next()) else {
            return Err(Errno::EINVAL);
        };
        let (structure, member) = tag.split_once(':').ok_or(Errno::EINVAL)?;
        let value = self
            .types
            .find(kind::STRUCT, structure)
            .ok_or(Errno::ENOENT)?;
        if member.is_empty() {
            return Err(Errno::EINVAL);
        }
        let named = |it: &beeline_btf::BitMember<'_>| it.name == member.as_bytes();
        let mut all = self.types.members(self.types.at(value)).filter(named);
        let (found, None) = (all.next().ok_or(Errno::ENOENT)?, all.next()) else {
            return Err(Errno::EINVAL);
        };
        let it = self.types.at(found.type_id);
        if !is_struct(it) || it.name != node.name().as_bytes() || found.bit_offset % 64 != 0 {
            return Err(Errno::EINVAL);
        }
        Ok((value, found.bit_offset / 8))
    }
}

fn extend(found: &mut Vec<MapField>, fields: Vec<MapField>) -> Result<(), Errno> {
    found.extend(fields);
    if found.len() > BTF_FIELDS_MAX {
        return Err(Errno::E2BIG);
    }
    Ok(())
}

fn repeated(
    offset: u32,
    kind: Option<FieldKind>,
    bytes: u32,
    count: u32,
) -> Result<Vec<MapField>, Errno> {
    kind.map_or(Ok(Vec::new()), |kind| {
        repeated_each(offset, (kind, bytes), bytes, count)
    })
}

/// Repeats a field for each element of an array; only some kinds may occur more than once.
fn repeated_each(
    offset: u32,
    (kind, size): (FieldKind, u32),
    stride: u32,
    count: u32,
) -> Result<Vec<MapField>, Errno> {
    let many = matches!(
        kind,
        FieldKind::UntrustedPointer(_)
            | FieldKind::OwnedPointer { .. }
            | FieldKind::PerCpuPointer(_)
            | FieldKind::UserPointer(_)
            | FieldKind::ListHead { .. }
            | FieldKind::RbRoot { .. }
    );
    if count > 1 && !many {
        return Err(Errno::EINVAL);
    }
    if count as usize > BTF_FIELDS_MAX {
        return Err(Errno::E2BIG);
    }
    let place = |index: u32| MapField {
        offset: offset.wrapping_add(index.wrapping_mul(stride)),
        size,
        kind,
    };
    Ok((0..count).map(place).collect())
}
