//! The subject of a relocation, in the file's types and in the kernel's: the path from a type to
//! one of its fields.

use beeline_btf::{Btf, Type, kind};
use beeline_uapi::limits::BPF_CORE_SPEC_MAX_LEN;

use super::{Relocation, Senseless, Sensible, What, are_comparable, bare, essential, types};

/// The most members that one search visits: anonymous structures may hold each other many times
/// over.
const MEMBERS_VISITED: u32 = 100_000;

/// One step with a meaning: into a field with a name, to an element of an array, to an enumerator.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step<'a> {
    /// For a field or enumerator, the type that has it; for an element, its own.
    pub(super) type_id: u32,
    /// The member, element or enumerator.
    pub(super) index: u32,
    /// The name; none for an element.
    pub(super) name: Option<&'a [u8]>,
}

/// The path from a type to one of its fields.
#[derive(Debug, Clone)]
pub(super) struct Spec<'a> {
    pub(super) what: What,
    /// The type at the start.
    pub(super) root: u32,
    /// Empty if it is about the type itself.
    pub(super) steps: Vec<Step<'a>>,
    /// The bits from the root's start.
    pub(super) bit_offset: u64,
}

impl<'a> Spec<'a> {
    fn at(what: What, root: u32) -> Self {
        Self {
            what,
            root,
            steps: Vec::new(),
            bit_offset: 0,
        }
    }

    /// Follows the file's types: a relocation's access consists of the numbers of members and
    /// elements, including anonymous members.
    pub(super) fn of(btf: &Btf<'a>, relocation: &Relocation<'a>) -> Sensible<Self> {
        let Relocation {
            type_id,
            access,
            what,
            ..
        } = *relocation;
        let mut spec = Self::at(what, type_id);
        if what.is_of_type() {
            return (access == b"0").then_some(spec).ok_or(Senseless);
        }
        let numbers = numbers(access)?;
        let (&first, rest) = numbers.split_first().ok_or(Senseless)?;
        let (mut id, it) = bare(btf, type_id)?;
        if what.is_of_enumerator() {
            let values: Vec<_> = btf.enumerators(it).collect();
            let value = values.get(first as usize).ok_or(Senseless)?;
            rest.is_empty().then_some(()).ok_or(Senseless)?;
            spec.steps.push(Step {
                type_id: id,
                index: first,
                name: Some(value.name),
            });
            return Ok(spec);
        }
        spec.element(btf, id, first)?;
        for &number in rest {
            let (holder, it) = bare(btf, id)?;
            id = match it.kind {
                kind::STRUCT | kind::UNION => {
                    let member = btf.bit_members(it).nth(number as usize).ok_or(Senseless)?;
                    spec.bit_offset += u64::from(member.bit_offset);
                    if !member.name.is_empty() {
                        let name = Some(member.name);
                        spec.steps.push(Step {
                            type_id: holder,
                            index: number,
                            name,
                        });
                    }
                    member.type_id
                }
                kind::ARRAY => {
                    let (element, _) = it.array().ok_or(Senseless)?;
                    spec.has_element(btf, it, number)
                        .then_some(())
                        .ok_or(Senseless)?;
                    let (element, _) = bare(btf, element)?;
                    spec.element(btf, element, number)?;
                    element
                }
                _ => return Err(Senseless),
            };
        }
        Ok(spec)
    }

    /// Adds a step to an element of a type.
    fn element(&mut self, btf: &Btf<'_>, type_id: u32, index: u32) -> Sensible<()> {
        let size = btf.size(type_id).ok_or(Senseless)?;
        self.bit_offset += u64::from(index) * u64::from(size) * 8;
        self.steps.push(Step {
            type_id,
            index,
            name: None,
        });
        Ok(())
    }

    /// Returns whether an array has such an element. The last field of a structure may be an array
    /// of any length.
    fn has_element(&self, btf: &Btf<'_>, array: Type<'_>, index: u32) -> bool {
        let Some((_, count)) = array.array() else {
            return false;
        };
        let is_last = |step: &Step<'_>| {
            let holder = btf.get(step.type_id);
            step.name.is_some() && holder.is_some_and(|it| step.index as usize + 1 == it.count())
        };
        index < count || count == 0 && self.steps.last().is_some_and(is_last)
    }
}

fn numbers(access: &[u8]) -> Sensible<Vec<u32>> {
    let parts = access.split(|byte| *byte == b':');
    let number = |part: &[u8]| std::str::from_utf8(part).ok()?.parse().ok();
    let numbers: Option<Vec<u32>> = parts.map(number).collect();
    numbers
        .filter(|it| it.len() <= BPF_CORE_SPEC_MAX_LEN)
        .ok_or(Senseless)
}

/// Returns the same path from a type of the kernel's, if it has one.
pub(super) fn matching<'a>(
    btf: &Btf<'_>,
    local: &Spec<'_>,
    kernel: &Btf<'a>,
    candidate: u32,
) -> Sensible<Option<Spec<'a>>> {
    let mut target = Spec::at(local.what, candidate);
    let fits = if local.what == What::TypeMatches {
        types::are_alike(btf, local.root, kernel, candidate)?
    } else if local.what.is_of_type() {
        types::are_compatible(btf, local.root, kernel, candidate)?
    } else if local.what.is_of_enumerator() {
        enumerator(local, kernel, &mut target)?
    } else {
        field(btf, local, kernel, &mut target)?
    };
    Ok(fits.then_some(target))
}

fn enumerator<'a>(local: &Spec<'_>, kernel: &Btf<'a>, target: &mut Spec<'a>) -> Sensible<bool> {
    let wanted = local
        .steps
        .first()
        .and_then(|step| step.name)
        .ok_or(Senseless)?;
    let (type_id, it) = bare(kernel, target.root)?;
    let mut values = kernel.enumerators(it).zip(0..);
    let found = values.find(|(value, _)| essential(value.name) == essential(wanted));
    let Some((value, index)) = found else {
        return Ok(false);
    };
    target.steps.push(Step {
        type_id,
        index,
        name: Some(value.name),
    });
    Ok(true)
}

fn field<'a>(
    btf: &Btf<'_>,
    local: &Spec<'_>,
    kernel: &Btf<'a>,
    target: &mut Spec<'a>,
) -> Sensible<bool> {
    let mut id = target.root;
    for (number, step) in local.steps.iter().enumerate() {
        let (at, it) = bare(kernel, id)?;
        if step.name.is_some() {
            let mut search = Search {
                btf,
                step,
                kernel,
                visits: MEMBERS_VISITED,
            };
            let Some(found) = search.member(at, BPF_CORE_SPEC_MAX_LEN)? else {
                return Ok(false);
            };
            target.bit_offset += found.bit_offset;
            target.steps.push(found.step);
            id = found.type_id;
            continue;
        }
        id = at;
        // The first number counts whole structures.
        if number > 0 {
            let Some((element, _)) = it.array() else {
                return Ok(false);
            };
            if !target.has_element(kernel, it, step.index) {
                return Ok(false);
            }
            id = bare(kernel, element)?.0;
        }
        target.element(kernel, id, step.index)?;
    }
    Ok(true)
}

/// A search for a field that the file's types have.
struct Search<'b, 'a, 's> {
    btf: &'b Btf<'b>,
    step: &'s Step<'s>,
    kernel: &'b Btf<'a>,
    visits: u32,
}

/// A field of the kernel's.
struct Found<'a> {
    step: Step<'a>,
    type_id: u32,
    /// The offset from the start of the type that the search began at.
    bit_offset: u64,
}

impl<'a> Search<'_, 'a, '_> {
    /// Searches a type and its anonymous members. A field with the name but an incompatible type
    /// ends the search.
    fn member(&mut self, holder: u32, depth: usize) -> Sensible<Option<Found<'a>>> {
        let (holder, it) = bare(self.kernel, holder)?;
        let depth = depth.checked_sub(1).ok_or(Senseless)?;
        for (member, index) in self.kernel.bit_members(it).zip(0..) {
            self.visits = self.visits.checked_sub(1).ok_or(Senseless)?;
            let bit_offset = u64::from(member.bit_offset);
            if member.name.is_empty() {
                if let Some(found) = self.member(member.type_id, depth)? {
                    let bit_offset = bit_offset + found.bit_offset;
                    return Ok(Some(Found {
                        bit_offset,
                        ..found
                    }));
                }
            } else if Some(member.name) == self.step.name {
                let wanted = self.btf.get(self.step.type_id).ok_or(Senseless)?;
                let wanted = self.btf.bit_members(wanted).nth(self.step.index as usize);
                let wanted = wanted.ok_or(Senseless)?.type_id;
                let fits = are_compatible(self.btf, wanted, self.kernel, member.type_id)?;
                let step = Step {
                    type_id: holder,
                    index,
                    name: Some(member.name),
                };
                let type_id = member.type_id;
                return Ok(fits.then_some(Found {
                    step,
                    type_id,
                    bit_offset,
                }));
            }
        }
        Ok(None)
    }
}

/// Returns whether one field may stand for another. Structures always may, as may integers of any
/// size and sign, pointers, and arrays of compatible elements; enumerations may if their names do
/// not differ.
fn are_compatible(btf: &Btf<'_>, local: u32, kernel: &Btf<'_>, target: u32) -> Sensible<bool> {
    let (mut local, mut target) = (local, target);
    for _ in 0..BPF_CORE_SPEC_MAX_LEN {
        let (_, ours) = bare(btf, local)?;
        let (_, theirs) = bare(kernel, target)?;
        let is_composite = |it: Type<'_>| matches!(it.kind, kind::STRUCT | kind::UNION);
        if is_composite(ours) && is_composite(theirs) {
            return Ok(true);
        }
        if !are_comparable(ours, theirs) {
            return Ok(false);
        }
        match ours.kind {
            kind::PTR | kind::FLOAT => return Ok(true),
            kind::FWD | kind::ENUM | kind::ENUM64 => {
                let (one, other) = (essential(ours.name), essential(theirs.name));
                return Ok(one.is_empty() || other.is_empty() || one == other);
            }
            kind::INT => return Ok(types::are_whole(ours, theirs)),
            kind::ARRAY => {
                (local, target) = match (ours.array(), theirs.array()) {
                    (Some((local, _)), Some((target, _))) => (local, target),
                    _ => return Err(Senseless),
                };
            }
            _ => return Ok(false),
        }
    }
    Err(Senseless)
}
