//! Compares whole types of the file's and of the kernel's, for existence and equality.

use beeline_btf::{Btf, Type, int, kind};

use super::{Senseless, Sensible, are_comparable, bare, essential};

/// The most types behind and inside one another that are compared: libbpf's number, as the
/// kernel compares fewer.
const DEEPEST: u32 = 32;
/// The most types that one comparison looks at: members may have members, many times over.
const MOST: u32 = 100_000;

/// Returns whether neither is a bit field as old compilers made them.
pub(super) fn are_whole(one: Type<'_>, other: Type<'_>) -> bool {
    one.int_bit_offset() == Some(0) && other.int_bit_offset() == Some(0)
}

/// Implements `bpf_core_type_exists`: names are alike already; kinds must be, too, also behind
/// pointers and in functions.
pub(super) fn are_compatible(
    btf: &Btf<'_>,
    local: u32,
    kernel: &Btf<'_>,
    target: u32,
) -> Sensible<bool> {
    let (mut visits, at) = (MOST, (local, target));
    compatible(btf, kernel, at, DEEPEST, &mut visits)
}

fn compatible(
    btf: &Btf<'_>,
    kernel: &Btf<'_>,
    (mut local, mut target): (u32, u32),
    depth: u32,
    visits: &mut u32,
) -> Sensible<bool> {
    for _ in 0..DEEPEST {
        *visits = visits.checked_sub(1).ok_or(Senseless)?;
        let (_, ours) = bare(btf, local)?;
        let (_, theirs) = bare(kernel, target)?;
        if !are_comparable(ours, theirs) {
            return Ok(false);
        }
        match ours.kind {
            0 | kind::STRUCT | kind::UNION | kind::ENUM | kind::ENUM64 | kind::FWD => {
                return Ok(true);
            }
            kind::INT => return Ok(are_whole(ours, theirs)),
            kind::PTR => (local, target) = (ours.refers_to(), theirs.refers_to()),
            kind::ARRAY => {
                let (ours, theirs) = (ours.array(), theirs.array());
                (local, target) = (ours.ok_or(Senseless)?.0, theirs.ok_or(Senseless)?.0);
            }
            kind::FUNC_PROTO => {
                if ours.count() != theirs.count() {
                    return Ok(false);
                }
                for (ours, theirs) in btf.params(ours).zip(kernel.params(theirs)) {
                    let depth = depth.checked_sub(1).ok_or(Senseless)?;
                    let at = (ours.type_id, theirs.type_id);
                    if !compatible(btf, kernel, at, depth, visits)? {
                        return Ok(false);
                    }
                }
                (local, target) = (ours.refers_to(), theirs.refers_to());
            }
            _ => return Ok(false),
        }
    }
    Err(Senseless)
}

/// Implements `bpf_core_type_matches`: every member of the file's type is in the kernel's, under
/// its name and with a matching type; behind pointers, names are enough.
pub(super) fn are_alike(
    btf: &Btf<'_>,
    local: u32,
    kernel: &Btf<'_>,
    target: u32,
) -> Sensible<bool> {
    let mut comparison = Comparison {
        btf,
        kernel,
        visits: MOST,
    };
    comparison.alike(local, target, false, DEEPEST)
}

struct Comparison<'a> {
    btf: &'a Btf<'a>,
    kernel: &'a Btf<'a>,
    visits: u32,
}

impl Comparison<'_> {
    fn alike(
        &mut self,
        mut local: u32,
        mut target: u32,
        mut behind_pointer: bool,
        depth: u32,
    ) -> Sensible<bool> {
        let depth = depth.checked_sub(1).ok_or(Senseless)?;
        for _ in 0..DEEPEST {
            self.visits = self.visits.checked_sub(1).ok_or(Senseless)?;
            let (_, ours) = bare(self.btf, local)?;
            let (_, theirs) = bare(self.kernel, target)?;
            if !same_name(ours.name, theirs.name) {
                return Ok(false);
            }
            let same_kind = ours.kind == theirs.kind;
            match ours.kind {
                0 => return Ok(same_kind),
                kind::FWD if same_kind => return Ok(ours.is_flagged() == theirs.is_flagged()),
                // A flag says whether a declaration is of a union.
                kind::FWD => return Ok(behind_pointer && is_declared(ours, theirs)),
                kind::ENUM | kind::ENUM64 => return Ok(self.enums(ours, theirs)),
                kind::STRUCT | kind::UNION if behind_pointer => {
                    return Ok(same_kind || is_declared(theirs, ours));
                }
                kind::STRUCT | kind::UNION => {
                    return Ok(same_kind && self.members(ours, theirs, depth)?);
                }
                kind::INT => {
                    let signed =
                        |it: Type<'_>| it.int_encoding().map(|encoding| encoding & int::SIGNED);
                    let same = ours.size() == theirs.size() && signed(ours) == signed(theirs);
                    return Ok(same_kind && same);
                }
                kind::PTR if same_kind => {
                    behind_pointer = true;
                    (local, target) = (ours.refers_to(), theirs.refers_to());
                }
                kind::ARRAY if same_kind => {
                    let (ours, theirs) = (ours.array(), theirs.array());
                    let (ours, theirs) = (ours.ok_or(Senseless)?, theirs.ok_or(Senseless)?);
                    if ours.1 != theirs.1 {
                        return Ok(false);
                    }
                    (local, target) = (ours.0, theirs.0);
                }
                kind::FUNC_PROTO if same_kind && ours.count() == theirs.count() => {
                    for (ours, theirs) in self.btf.params(ours).zip(self.kernel.params(theirs)) {
                        if !self.alike(ours.type_id, theirs.type_id, behind_pointer, depth)? {
                            return Ok(false);
                        }
                    }
                    (local, target) = (ours.refers_to(), theirs.refers_to());
                }
                _ => return Ok(false),
            }
        }
        Err(Senseless)
    }

    fn enums(&self, ours: Type<'_>, theirs: Type<'_>) -> bool {
        let has = |name| {
            let mut values = self.kernel.enumerators(theirs);
            values.any(|value| same_name(name, value.name))
        };
        are_comparable(ours, theirs)
            && ours.size() == theirs.size()
            && ours.count() <= theirs.count()
            && self.btf.enumerators(ours).all(|value| has(value.name))
    }

    fn members(&mut self, ours: Type<'_>, theirs: Type<'_>, depth: u32) -> Sensible<bool> {
        if ours.count() > theirs.count() {
            return Ok(false);
        }
        for member in self.btf.bit_members(ours) {
            let mut is_there = false;
            for other in self.kernel.bit_members(theirs) {
                self.visits = self.visits.checked_sub(1).ok_or(Senseless)?;
                if same_name(member.name, other.name)
                    && self.alike(member.type_id, other.type_id, false, depth)?
                {
                    is_there = true;
                    break;
                }
            }
            if !is_there {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Returns whether one is the declaration of the other, a structure or union.
fn is_declared(declaration: Type<'_>, it: Type<'_>) -> bool {
    let kind = if declaration.is_flagged() {
        kind::UNION
    } else {
        kind::STRUCT
    };
    declaration.kind == kind::FWD && it.kind == kind
}

fn same_name(local: &[u8], target: &[u8]) -> bool {
    match target {
        [] => local.is_empty(),
        _ => essential(local) == essential(target),
    }
}
