//! Type information made by hand.
#![allow(dead_code)] // Each test uses a part of it.

use beeline_btf::{kind, to_bytes};

pub const INT: u32 = kind::INT as u32;
pub const PTR: u32 = kind::PTR as u32;
pub const ARRAY: u32 = kind::ARRAY as u32;
pub const STRUCT: u32 = kind::STRUCT as u32;
pub const FWD: u32 = kind::FWD as u32;
pub const TYPEDEF: u32 = kind::TYPEDEF as u32;
pub const VOLATILE: u32 = kind::VOLATILE as u32;
pub const CONST: u32 = kind::CONST as u32;
pub const FUNC: u32 = kind::FUNC as u32;
pub const FUNC_PROTO: u32 = kind::FUNC_PROTO as u32;
pub const FLOAT: u32 = kind::FLOAT as u32;
pub const DECL_TAG: u32 = kind::DECL_TAG as u32;
pub const TYPE_TAG: u32 = kind::TYPE_TAG as u32;

/// BTF under construction.
pub struct Builder {
    types: Vec<u32>,
    count: u32,
    strings: Vec<u8>,
    /// The length of the strings before these.
    base_strings: u32,
}

impl Builder {
    pub fn new() -> Self {
        Self {
            types: Vec::new(),
            count: 0,
            strings: vec![0],
            base_strings: 0,
        }
    }

    /// Types that follow those of a kernel, as a module's do.
    pub fn after(kernel: &[u8]) -> Self {
        let word = |at: usize| u32::from_le_bytes(kernel[at..at + 4].try_into().expect("four"));
        let types = beeline_btf::Btf::parse(kernel).expect("good BTF").len();
        Self {
            types: Vec::new(),
            count: types - 1,
            strings: Vec::new(),
            base_strings: word(20),
        }
    }

    pub fn string(&mut self, text: &str) -> u32 {
        if text.is_empty() {
            return 0;
        }
        let at = self.base_strings + self.strings.len() as u32;
        self.strings.extend(text.bytes().chain([0]));
        at
    }

    pub fn add(&mut self, name: &str, kind: u32, count: u32, word: u32, rest: &[u32]) -> u32 {
        let name = self.string(name);
        self.types.extend([name, (kind << 24) | count, word]);
        self.types.extend(rest);
        self.count += 1;
        self.count
    }

    pub fn int(&mut self, name: &str, bytes: u32) -> u32 {
        self.add(name, INT, 0, bytes, &[(1 << 24) | (bytes * 8)])
    }

    pub fn refer(&mut self, kind: u32, to: u32) -> u32 {
        self.add("", kind, 0, to, &[])
    }

    pub fn structure(&mut self, name: &str, bytes: u32, members: &[(&str, u32, u32)]) -> u32 {
        let mut rest = Vec::new();
        for (name, id, offset) in members {
            rest.extend([self.string(name), *id, offset * 8]);
        }
        self.add(name, STRUCT, members.len() as u32, bytes, &rest)
    }

    pub fn function(&mut self, name: &str, linkage: u32, result: u32, params: &[u32]) -> u32 {
        let mut rest = Vec::new();
        for id in params {
            rest.extend([self.string("a"), *id]);
        }
        let prototype = self.add("", FUNC_PROTO, params.len() as u32, result, &rest);
        self.add(name, FUNC, linkage, prototype, &[])
    }

    pub fn tag(&mut self, text: &str, of: u32, component: i32) {
        self.add(text, DECL_TAG, 0, of, &[component.cast_unsigned()]);
    }

    pub fn bytes(&self) -> Vec<u8> {
        let types: Vec<u8> = self
            .types
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect();
        to_bytes(&types, &self.strings)
    }
}
