//! Types by number and by name: the queries that all code here makes of BTF.

use std::sync::OnceLock;

use beeline_btf::{BitMember, Btf, OwnedBtf, Param, Type, kind};
use beeline_uapi::Errno;
use beeline_uapi::limits::MAX_RESOLVE_DEPTH;

/// BTF with an index of its names, which is built when the first name is looked up.
#[derive(Debug)]
pub(super) struct TypeTable {
    btf: OwnedBtf,
    /// The indexes of functions, and of all other types: a kernel has several times as many
    /// functions, and they are rarely looked up.
    functions: OnceLock<Index>,
    names: OnceLock<Index>,
    tags: OnceLock<Vec<u32>>,
}

/// Types by their names.
#[derive(Debug)]
struct Index {
    /// An open hash table of numbers. They were inserted in ascending order, so the first of equal
    /// ones is found first.
    slots: Vec<u32>,
    /// Types with `___` in their names, which distinguishes several types of a name.
    flavors: Vec<u32>,
}

/// A type with its size, seen through its qualifiers and arrays (`btf_resolve_size`).
#[derive(Debug, Clone, Copy)]
pub(super) struct Sized<'a> {
    /// The bytes of the whole.
    pub(super) bytes: u32,
    /// The type at the end of the arrays.
    pub(super) element: Type<'a>,
    /// Its number, which may be that of a `typedef` of it.
    pub(super) element_id: u32,
    /// The number of all elements, 1 if it is not an array.
    pub(super) count: u32,
}

impl TypeTable {
    /// Indexes the data; `None` if it is no BTF.
    pub(super) fn new(data: Vec<u8>) -> Option<Self> {
        Some(Self {
            btf: OwnedBtf::parse(data)?,
            functions: OnceLock::new(),
            names: OnceLock::new(),
            tags: OnceLock::new(),
        })
    }

    pub(super) fn view(&self) -> Btf<'_> {
        self.btf.view()
    }

    /// Returns the type with a number, including 0, which is `void`.
    pub(super) fn get(&self, id: u32) -> Option<Type<'_>> {
        if id == 0 {
            return Some(Type::VOID);
        }
        self.view().get(id)
    }

    /// Returns the type with a number; a missing type is `void`.
    pub(super) fn at(&self, id: u32) -> Type<'_> {
        self.get(id).unwrap_or(Type::VOID)
    }

    /// Returns a type's name, for messages.
    pub(super) fn name(&self, id: u32) -> &str {
        text(self.at(id).name)
    }

    /// Returns the type behind `typedef`s and qualifiers, with its number.
    pub(super) fn skip_modifiers(&self, mut id: u32) -> (u32, Type<'_>) {
        for _ in 0..MAX_RESOLVE_DEPTH {
            let it = self.at(id);
            if !is_modifier(it) {
                return (id, it);
            }
            id = it.refers_to();
        }
        (0, Type::VOID)
    }

    /// Returns the type that a pointer leads to, behind qualifiers of both.
    pub(super) fn target(&self, pointer: Type<'_>) -> (u32, Type<'_>) {
        self.skip_modifiers(pointer.refers_to())
    }

    /// Returns the first type of this kind and name.
    pub(super) fn find(&self, kind: u8, name: &str) -> Option<u32> {
        self.all(kind, name.as_bytes()).next()
    }

    /// Returns all types of this kind and name.
    pub(super) fn all<'a>(&'a self, kind: u8, name: &'a [u8]) -> impl Iterator<Item = u32> + 'a {
        let slots = &self.index_of(kind).slots;
        let mask = slots.len() - 1;
        let first = hash(name) & mask;
        let numbers = (0..slots.len()).map(move |step| slots[(first + step) & mask]);
        numbers.take_while(|id| *id != 0).filter(move |id| {
            let it = self.at(*id);
            it.kind == kind && it.name == name
        })
    }

    /// Returns all types of this kind and name, which is compared up to `___`.
    pub(super) fn all_flavors(&self, kind: u8, name: &str) -> Vec<u32> {
        let wanted = essential(name.as_bytes());
        let flavors = self.index_of(kind).flavors.iter().copied();
        let flavors = flavors.filter(|id| {
            let it = self.at(*id);
            it.kind == kind && essential(it.name) == wanted
        });
        self.all(kind, wanted).chain(flavors).collect()
    }

    fn index_of(&self, kind: u8) -> &Index {
        if kind == kind::FUNC {
            let is_function = |it| it == kind::FUNC;
            self.functions.get_or_init(|| self.index(is_function))
        } else {
            self.names.get_or_init(|| self.index(|it| it != kind::FUNC))
        }
    }

    /// Builds the index of types of these kinds that have names.
    fn index(&self, wanted: fn(u8) -> bool) -> Index {
        let btf = self.view();
        let is_wanted = |id: &u32| btf.kind(*id).is_some_and(wanted);
        let name = |id: u32| Some((id, btf.get(id)?.name)).filter(|(_, name)| !name.is_empty());
        let named: Vec<_> = (1..btf.len()).filter(is_wanted).filter_map(name).collect();
        let mut slots = vec![0; (2 * named.len() + 1).next_power_of_two()];
        let mask = slots.len() - 1;
        let mut flavors = Vec::new();
        for (id, name) in named {
            let mut slot = hash(name) & mask;
            while slots[slot] != 0 {
                slot = (slot + 1) & mask;
            }
            slots[slot] = id;
            if essential(name).len() != name.len() {
                flavors.push(id);
            }
        }
        Index { slots, flavors }
    }

    /// Returns the values of the tags of a declaration's component (-1 for the whole) that begin
    /// with `key`, without it.
    pub(super) fn tags<'a>(
        &'a self,
        declaration: u32,
        component: i32,
        key: &'a str,
    ) -> impl Iterator<Item = &'a str> {
        self.all_tags().filter_map(move |tag| {
            let wanted = tag.refers_to() == declaration && tag.component() == Some(component);
            text(tag.name).strip_prefix(key).filter(|_| wanted)
        })
    }

    /// Returns the declarations that have a tag as a whole.
    pub(super) fn tagged(&self, name: &str) -> impl Iterator<Item = u32> {
        let is_it =
            move |tag: &Type<'_>| tag.name == name.as_bytes() && tag.component() == Some(-1);
        self.all_tags().filter(is_it).map(|tag| tag.refers_to())
    }

    fn all_tags(&self) -> impl Iterator<Item = Type<'_>> {
        let all = self.tags.get_or_init(|| {
            let btf = self.view();
            let is_tag = |id: &u32| btf.kind(*id) == Some(kind::DECL_TAG);
            (1..btf.len()).filter(is_tag).collect()
        });
        all.iter().map(|id| self.at(*id))
    }

    /// Returns the members of a structure or union.
    pub(super) fn members<'a>(&'a self, of: Type<'a>) -> impl Iterator<Item = BitMember<'a>> {
        self.view().bit_members(of)
    }

    /// Returns the parameters of a function's prototype.
    pub(super) fn params<'a>(&'a self, of: Type<'a>) -> impl Iterator<Item = Param<'a>> {
        self.view().params(of)
    }

    /// Returns a function's prototype.
    pub(super) fn prototype(&self, function: u32) -> Option<Type<'_>> {
        let it = self.get(function).filter(|it| it.kind == kind::FUNC)?;
        self.get(it.refers_to())
            .filter(|it| it.kind == kind::FUNC_PROTO)
    }

    /// Returns the bytes of a type and of the elements of arrays; the error is an errno.
    pub(super) fn sized(&self, mut id: u32) -> Result<Sized<'_>, Errno> {
        let (mut in_array, mut count, mut element_id) = (false, 1u32, id);
        for _ in 0..MAX_RESOLVE_DEPTH {
            let it = self.at(id);
            let size = match it.kind {
                kind::PTR => 8,
                kind::ARRAY => {
                    let (element, elements) = it.array().ok_or(Errno::EINVAL)?;
                    count = count.checked_mul(elements).ok_or(Errno::EINVAL)?;
                    in_array = true;
                    (id, element_id) = (element, element);
                    continue;
                }
                _ if is_modifier(it) => {
                    id = it.refers_to();
                    if !in_array {
                        element_id = id;
                    }
                    continue;
                }
                _ if has_size(it) => it.size(),
                _ => return Err(Errno::EINVAL),
            };
            return Ok(Sized {
                bytes: size.checked_mul(count).ok_or(Errno::EINVAL)?,
                element: it,
                element_id,
                count,
            });
        }
        Err(Errno::EINVAL)
    }
}

/// Returns a name as text. Names are ASCII; others are not shown.
pub(super) fn text(name: &[u8]) -> &str {
    std::str::from_utf8(name).unwrap_or_default()
}

/// Returns a name without the part that distinguishes several types of the name
/// (`bpf_core_essential_name_len`).
fn essential(name: &[u8]) -> &[u8] {
    let is_mark = |it: &[u8]| matches!(it, [x, b'_', b'_', b'_', y] if *x != b'_' && *y != b'_');
    let last = name.windows(5).rposition(is_mark);
    last.map_or(name, |at| &name[..=at])
}

/// Returns a name for a line of the log.
pub(super) fn shown(name: &[u8]) -> &str {
    if name.is_empty() {
        "(anon)"
    } else {
        text(name)
    }
}

pub(super) fn is_modifier(it: Type<'_>) -> bool {
    matches!(
        it.kind,
        kind::TYPEDEF | kind::VOLATILE | kind::CONST | kind::RESTRICT | kind::TYPE_TAG
    )
}

/// Returns whether it is a structure or a union.
pub(super) fn is_struct(it: Type<'_>) -> bool {
    matches!(it.kind, kind::STRUCT | kind::UNION)
}

/// Returns whether it is an integer or an enumeration.
pub(super) fn is_number(it: Type<'_>) -> bool {
    matches!(it.kind, kind::INT | kind::ENUM | kind::ENUM64)
}

/// Returns whether it is an integer of 1, 2, 4 or 8 bytes.
pub(super) fn is_small_int(it: Type<'_>) -> bool {
    it.kind == kind::INT && matches!(it.size(), 1 | 2 | 4 | 8)
}

fn has_size(it: Type<'_>) -> bool {
    is_number(it) || is_struct(it) || it.kind == kind::FLOAT
}

/// Returns a kind as the kernel's log names it.
pub(super) fn kind_name(it: Type<'_>) -> &'static str {
    const NAMES: [&str; 20] = [
        "UNKNOWN",
        "INT",
        "PTR",
        "ARRAY",
        "STRUCT",
        "UNION",
        "ENUM",
        "FWD",
        "TYPEDEF",
        "VOLATILE",
        "CONST",
        "RESTRICT",
        "FUNC",
        "FUNC_PROTO",
        "VAR",
        "DATASEC",
        "FLOAT",
        "DECL_TAG",
        "TYPE_TAG",
        "ENUM64",
    ];
    NAMES.get(usize::from(it.kind)).unwrap_or(&NAMES[0])
}

/// FNV-1a: names are short.
fn hash(name: &[u8]) -> usize {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = name.iter().fold(0xcbf2_9ce4_8422_2325, step);
    (hash ^ hash >> 32) as usize
}
