//! The kernel function that a program stands in for. The variables of sections such as
//! `.struct_ops` are structures of functions, and a function that is put into a member of one is a
//! program of its kind.

use std::collections::HashMap;

use beeline_btf::{Btf, Type, kind};

use crate::attach::AttachTarget;
use crate::co_re::essential;
use crate::elf::Elf;
use crate::kernel::KernelNames;
use crate::maps::variables_of;

/// The sections. Those that begin with `?` are not made unless their user says so.
const SECTIONS: &[&str] = &[
    ".struct_ops",
    ".struct_ops.link",
    "?.struct_ops",
    "?.struct_ops.link",
];

/// The operation that a program stands in for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Operation {
    /// The kernel's structure.
    pub(crate) target: AttachTarget,
    /// The member's number in it: `expected_attach_type` of `BPF_PROG_LOAD`.
    pub(crate) member: u32,
}

/// Returns the operations by section and offset of the functions.
pub(crate) fn operations(
    elf: &Elf<'_>,
    btf: Option<&Btf<'_>>,
    kernel: &KernelNames<'_>,
) -> HashMap<(usize, u64), Operation> {
    let mut found = HashMap::new();
    let Some(btf) = btf else {
        return found;
    };
    for name in SECTIONS {
        let Some((number, section)) = elf.section(name) else {
            continue;
        };
        for (name, variable) in variables_of(btf, name) {
            let place = elf.symbol_in(number, &name).map(|symbol| symbol.value);
            let structure = btf.resolve(variable.refers_to());
            let (Some(start), Some((_, structure))) = (place, structure) else {
                continue;
            };
            let relocations = section.relocations.iter().filter_map(|it| {
                let offset = it.offset.checked_sub(start)?;
                let inside = offset < u64::from(structure.size());
                inside.then_some((offset, elf.symbols.get(it.symbol)?))
            });
            for (offset, function) in relocations {
                let member = btf
                    .members(structure)
                    .find(|member| u64::from(member.offset) == offset);
                if let (Some(member), Some(section)) = (member, function.section) {
                    found.insert(
                        (section, function.value),
                        operation(structure, member.name, kernel),
                    );
                }
            }
        }
    }
    found
}

fn operation(structure: Type<'_>, member: &[u8], kernel: &KernelNames<'_>) -> Operation {
    let text = |name: &[u8]| String::from_utf8_lossy(essential(name)).into_owned();
    let (structure, member) = (text(structure.name), text(member));
    let missing = |what: String| Operation {
        target: AttachTarget::Missing(format!("the kernel's BTF has no {what}")),
        member: 0,
    };
    let Some(found) = kernel.find_anywhere(kind::STRUCT, &structure, None) else {
        return missing(format!("struct {structure}"));
    };
    let members = kernel.member_names(found).into_iter().zip(0..);
    let number = members
        .filter(|(name, _)| *name == member)
        .map(|(_, number)| number)
        .next();
    match number {
        Some(member) => Operation {
            target: AttachTarget::of(found),
            member,
        },
        None => missing(format!("{structure}.{member}")),
    }
}
