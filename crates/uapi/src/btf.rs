//! The layouts and numbers of BTF, with the kernel's names (`linux/btf.h`). `beeline-btf` reads it.

#![allow(missing_docs, reason = "the names are the kernel's")]

use crate::layout;

/// In [`BtfHeader::magic`].
pub const BTF_MAGIC: u16 = 0xeb9f;
/// In [`BtfHeader::version`].
pub const BTF_VERSION: u8 = 1;

layout! {
    /// `struct btf_header`. Offsets count from the header's end.
    pub struct BtfHeader {
        magic: u16,
        version: u8,
        flags: u8,
        hdr_len: u32,
        type_off: u32,
        type_len: u32,
        str_off: u32,
        str_len: u32,
    }
}

layout! {
    /// `struct btf_type`; the last field is a size or a type, by the kind in `info`.
    pub struct BtfType {
        name_off: u32,
        info: u32,
        size_or_type: u32,
    }
}

layout! {
    /// `struct btf_member`, of a structure or union.
    pub struct BtfMember {
        name_off: u32,
        r#type: u32,
        offset: u32,
    }
}

/// `BTF_KIND_*`.
pub mod kind {
    pub const INT: u8 = 1;
    pub const PTR: u8 = 2;
    pub const ARRAY: u8 = 3;
    pub const STRUCT: u8 = 4;
    pub const UNION: u8 = 5;
    pub const ENUM: u8 = 6;
    pub const FWD: u8 = 7;
    pub const TYPEDEF: u8 = 8;
    pub const VOLATILE: u8 = 9;
    pub const CONST: u8 = 10;
    pub const RESTRICT: u8 = 11;
    pub const FUNC: u8 = 12;
    pub const FUNC_PROTO: u8 = 13;
    pub const VAR: u8 = 14;
    pub const DATASEC: u8 = 15;
    pub const FLOAT: u8 = 16;
    pub const DECL_TAG: u8 = 17;
    pub const TYPE_TAG: u8 = 18;
    pub const ENUM64: u8 = 19;
}

/// `BTF_INT_*`: the bits of an integer's encoding.
pub mod int {
    pub const SIGNED: u32 = 1 << 0;
    pub const CHAR: u32 = 1 << 1;
    pub const BOOL: u32 = 1 << 2;
}

/// `BTF_VAR_*` and `BTF_FUNC_*`.
pub mod linkage {
    pub const STATIC: u32 = 0;
    pub const GLOBAL: u32 = 1;
    pub const EXTERN: u32 = 2;
}
