//! Split BTF: a kernel module's types, which continue where those of the kernel itself end.
//!
//! Each module numbers its first type with the number behind the kernel's last one, so numbers of
//! several modules conflict. Here all of them follow each other in one BTF. [`Joined::number`]
//! finds a module's type N in it, and [`Joined::place`] returns the module of a number.

use std::mem::offset_of;

use beeline_uapi::btf::{
    BtfArray, BtfEnum, BtfEnum64, BtfMember, BtfParam, BtfType, BtfVarSecinfo, info_kind, rest_len,
};

use crate::{Btf, TYPE, info_at, kind, sections, to_bytes, u32_at};

/// The types of a kernel and of some of its modules.
#[derive(Debug, Clone)]
pub struct Joined {
    types: Vec<u8>,
    strings: Vec<u8>,
    layout: Layout,
    /// The bytes of the kernel's own strings.
    base_strings: u32,
}

/// The owners of the types in a [`Joined`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Layout {
    /// The number of the kernel's own types, `void` among them.
    base: u32,
    /// The first number behind each module's types.
    ends: Vec<u32>,
}

/// The distance by which a module's own numbers and strings move.
struct Shift {
    base: u32,
    types: u32,
    base_strings: u32,
    strings: u32,
    /// The limits, which must not be reached.
    ends: (u32, u32),
}

impl Joined {
    /// Starts with the kernel's own types (`/sys/kernel/btf/vmlinux`); `None` if the data is no
    /// BTF.
    pub fn new(kernel: &[u8]) -> Option<Self> {
        let btf = Btf::parse(kernel)?;
        Some(Self {
            types: btf.types.to_vec(),
            strings: btf.strings.to_vec(),
            layout: Layout {
                base: btf.len(),
                ends: Vec::new(),
            },
            base_strings: u32::try_from(btf.strings.len()).ok()?,
        })
    }

    /// Appends a module's types (`/sys/kernel/btf/MODULE`), and returns its place among the
    /// modules.
    ///
    /// Returns `None`, and adds nothing, if the data is no BTF that continues where this kernel's
    /// ends.
    pub fn add(&mut self, module: &[u8]) -> Option<usize> {
        let (types, strings) = sections(module)?;
        let (types, strings) = (module.get(types)?, module.get(strings)?);
        let first = self.layout.end();
        let count = count(types)?;
        let string_count = u32::try_from(strings.len()).ok()?;
        let shift = Shift {
            base: self.layout.base,
            types: first - self.layout.base,
            base_strings: self.base_strings,
            strings: u32::try_from(self.strings.len()).ok()? - self.base_strings,
            ends: (
                self.layout.base.checked_add(count)?,
                self.base_strings.checked_add(string_count)?,
            ),
        };
        let moved = shift.all(types)?;
        self.types.extend(moved);
        self.strings.extend(strings);
        self.layout.ends.push(first.checked_add(count)?);
        Some(self.layout.ends.len() - 1)
    }

    /// Returns the owners of the types.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Returns all of it as BTF that stands by itself.
    pub fn into_bytes(self) -> Vec<u8> {
        to_bytes(&self.types, &self.strings)
    }
}

impl Layout {
    /// Returns the number of a module's type `id`, one of the kernel's or its own; `None` if it has
    /// no such type.
    pub fn number(&self, module: usize, id: u32) -> Option<u32> {
        let end = *self.ends.get(module)?;
        if id < self.base {
            return Some(id);
        }
        let start = self.start(module);
        let number = (id - self.base).checked_add(start)?;
        (number < end).then_some(number)
    }

    /// Returns the module that has a type, `None` for the kernel itself, and the type's number
    /// there.
    pub fn place(&self, number: u32) -> (Option<usize>, u32) {
        if number < self.base {
            return (None, number);
        }
        let module = self.ends.partition_point(|end| *end <= number);
        (Some(module), number - self.start(module) + self.base)
    }

    /// Returns the first number that is not the kernel's own.
    pub fn base(&self) -> u32 {
        self.base
    }

    fn start(&self, module: usize) -> u32 {
        match module.checked_sub(1) {
            Some(before) => self.ends.get(before).copied().unwrap_or(self.end()),
            None => self.base,
        }
    }

    fn end(&self) -> u32 {
        self.ends.last().copied().unwrap_or(self.base)
    }
}

/// Returns the number of types.
fn count(types: &[u8]) -> Option<u32> {
    let (mut at, mut count) = (0, 0);
    while at < types.len() {
        at += TYPE + rest_len(info_at(types, at)?)?;
        count += 1;
    }
    (at == types.len()).then_some(count)
}

impl Shift {
    fn all(&self, types: &[u8]) -> Option<Vec<u8>> {
        let mut moved = types.to_vec();
        let mut at = 0;
        while at < types.len() {
            let info = info_at(types, at)?;
            let end = at + TYPE + rest_len(info)?;
            self.one(moved.get_mut(at..end)?, info_kind(info))?;
            at = end;
        }
        Some(moved)
    }

    /// Adjusts one type with the data behind it.
    fn one(&self, it: &mut [u8], kind: u8) -> Option<()> {
        self.string(it, 0)?;
        match kind {
            kind::PTR
            | kind::TYPEDEF
            | kind::VOLATILE
            | kind::CONST
            | kind::RESTRICT
            | kind::FUNC
            | kind::FUNC_PROTO
            | kind::VAR
            | kind::DECL_TAG
            | kind::TYPE_TAG => self.number(it, offset_of!(BtfType, size_or_type))?,
            _ => {}
        }
        let rest = it.get_mut(TYPE..)?;
        // The bytes of an entry, and the words in it that are strings and numbers of types.
        let (size, string, number) = match kind {
            kind::ARRAY => {
                self.number(rest, offset_of!(BtfArray, r#type))?;
                return self.number(rest, offset_of!(BtfArray, index_type));
            }
            kind::STRUCT | kind::UNION => (
                size_of::<BtfMember>(),
                Some(offset_of!(BtfMember, name_off)),
                Some(offset_of!(BtfMember, r#type)),
            ),
            kind::FUNC_PROTO => (
                size_of::<BtfParam>(),
                Some(offset_of!(BtfParam, name_off)),
                Some(offset_of!(BtfParam, r#type)),
            ),
            kind::ENUM => (
                size_of::<BtfEnum>(),
                Some(offset_of!(BtfEnum, name_off)),
                None,
            ),
            kind::ENUM64 => (
                size_of::<BtfEnum64>(),
                Some(offset_of!(BtfEnum64, name_off)),
                None,
            ),
            kind::DATASEC => (
                size_of::<BtfVarSecinfo>(),
                None,
                Some(offset_of!(BtfVarSecinfo, r#type)),
            ),
            _ => return Some(()),
        };
        for entry in rest.chunks_exact_mut(size) {
            if let Some(at) = string {
                self.string(entry, at)?;
            }
            if let Some(at) = number {
                self.number(entry, at)?;
            }
        }
        Some(())
    }

    fn number(&self, it: &mut [u8], at: usize) -> Option<()> {
        moved(it, at, self.base, self.types, self.ends.0)
    }

    fn string(&self, it: &mut [u8], at: usize) -> Option<()> {
        moved(it, at, self.base_strings, self.strings, self.ends.1)
    }
}

/// Moves a word that is not among the first `base`.
fn moved(it: &mut [u8], at: usize, base: u32, by: u32, end: u32) -> Option<()> {
    let word = u32_at(it, at)?;
    if word >= end {
        return None;
    }
    if word >= base {
        let word = word.checked_add(by)?;
        it.get_mut(at..at + 4)?.copy_from_slice(&word.to_le_bytes());
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns BTF of these words and strings.
    fn btf(types: &[u32], strings: &[u8]) -> Vec<u8> {
        let types: Vec<u8> = types.iter().flat_map(|word| word.to_le_bytes()).collect();
        to_bytes(&types, strings)
    }

    fn kernel() -> Vec<u8> {
        let int = [1, 1 << 24, 4, 32];
        btf(&int, b"\0int\0")
    }

    /// Returns `struct NAME { int first; struct NAME *next; }`: numbers 2 and 3, strings from 5.
    fn module(name: &str) -> Vec<u8> {
        let next = 5 + name.len() as u32 + 1;
        let structure = [5, 4 << 24 | 2, 16, next, 1, 0, next + 5, 3, 64];
        let pointer = [0, 2 << 24, 2];
        let types = [&structure[..], &pointer].concat();
        btf(&types, format!("{name}\0head\0tail\0").as_bytes())
    }

    #[test]
    fn modules_types_follow_the_kernels() {
        let mut joined = Joined::new(&kernel()).expect("good BTF");
        assert_eq!(joined.add(&module("one")), Some(0));
        assert_eq!(joined.add(&module("another")), Some(1));
        let layout = joined.layout().clone();
        let data = joined.into_bytes();
        let all = Btf::parse(&data).expect("good BTF");
        assert_eq!(all.len(), 6);
        for (module, name) in [(0, "one"), (1, "another")] {
            let [found] = all.find([(kind::STRUCT, name)]);
            assert_eq!(layout.number(module, 2), Some(found));
            assert_eq!(layout.place(found), (Some(module), 2));
            let structure = all.get(found).expect("a structure");
            let members: Vec<_> = all.bit_members(structure).collect();
            assert_eq!(members[0].name, b"head");
            assert_eq!(members[0].type_id, 1, "the kernel's int");
            assert_eq!(members[1].name, b"tail");
            let pointer = all.get(members[1].type_id).expect("a pointer");
            assert_eq!((pointer.kind, pointer.refers_to()), (kind::PTR, found));
        }
        assert_eq!(layout.number(0, 1), Some(1), "the kernel's type");
        assert_eq!(layout.number(0, 4), None, "it has two");
        assert_eq!(layout.number(2, 2), None, "there are two modules");
        assert_eq!(layout.place(1), (None, 1));
    }

    #[test]
    fn types_with_dangling_references_are_not_added() {
        let mut joined = Joined::new(&kernel()).expect("good BTF");
        let mut far = module("one");
        // The pointer leads to a type that neither has.
        let at = far.iter().rposition(|byte| *byte == 2).expect("its target");
        far[at] = 4;
        assert_eq!(joined.add(&far), None);
        assert_eq!(joined.add(b"no BTF"), None);
        assert_eq!(
            joined.layout(),
            &Layout {
                base: 2,
                ends: vec![]
            }
        );
        assert_eq!(joined.add(&module("one")), Some(0));
    }
}
