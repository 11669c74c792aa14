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

layout! {
    /// `struct btf_array`, behind an array.
    pub struct BtfArray {
        r#type: u32,
        index_type: u32,
        nelems: u32,
    }

    /// `struct btf_enum`, a value of an enumeration.
    pub struct BtfEnum {
        name_off: u32,
        val: i32,
    }

    /// `struct btf_enum64`, a value of an enumeration of 64 bits.
    pub struct BtfEnum64 {
        name_off: u32,
        val_lo32: u32,
        val_hi32: u32,
    }

    /// `struct btf_param`, of a function's prototype.
    pub struct BtfParam {
        name_off: u32,
        r#type: u32,
    }

    /// `struct btf_var`, behind a variable: its [`linkage`].
    pub struct BtfVar {
        linkage: u32,
    }

    /// `struct btf_var_secinfo`, a variable of a section.
    pub struct BtfVarSecinfo {
        r#type: u32,
        offset: u32,
        size: u32,
    }

    /// `struct btf_decl_tag`, behind a declaration's tag.
    pub struct BtfDeclTag {
        component_idx: i32,
    }
}

/// Returns [`BtfType::info`] without the flag.
pub const fn info(kind: u8, vlen: u16) -> u32 {
    (kind as u32) << 24 | vlen as u32
}

/// `BTF_INFO_KIND`: the [`kind`] in [`BtfType::info`].
pub const fn info_kind(info: u32) -> u8 {
    (info >> 24) as u8 & 0x1f
}

/// `BTF_INFO_VLEN`: the number of members, parameters or values in [`BtfType::info`], or a
/// function's [`linkage`].
pub const fn info_vlen(info: u32) -> u16 {
    info as u16
}

/// `BTF_INFO_KFLAG`: the flag in [`BtfType::info`], which means something else for each kind.
pub const fn info_kflag(info: u32) -> bool {
    info >> 31 != 0
}

/// `BTF_MEMBER_BITFIELD_SIZE`: the bits of a bit field in [`BtfMember::offset`], if the structure
/// has the flag; 0 for other members.
pub const fn member_bitfield_size(offset: u32) -> u32 {
    offset >> 24
}

/// `BTF_MEMBER_BIT_OFFSET`: the offset in [`BtfMember::offset`], if the structure has the flag.
pub const fn member_bit_offset(offset: u32) -> u32 {
    offset & 0xff_ffff
}

/// Returns the bytes behind a [`BtfType`], by its `info`; `None` for an unknown kind.
pub const fn rest_len(info: u32) -> Option<usize> {
    let vlen = info_vlen(info) as usize;
    Some(match info_kind(info) {
        kind::INT => size_of::<u32>(),
        kind::VAR => size_of::<BtfVar>(),
        kind::DECL_TAG => size_of::<BtfDeclTag>(),
        kind::ARRAY => size_of::<BtfArray>(),
        kind::STRUCT | kind::UNION => vlen * size_of::<BtfMember>(),
        kind::DATASEC => vlen * size_of::<BtfVarSecinfo>(),
        kind::ENUM => vlen * size_of::<BtfEnum>(),
        kind::ENUM64 => vlen * size_of::<BtfEnum64>(),
        kind::FUNC_PROTO => vlen * size_of::<BtfParam>(),
        kind::PTR
        | kind::FWD
        | kind::TYPEDEF
        | kind::VOLATILE
        | kind::CONST
        | kind::RESTRICT
        | kind::FUNC
        | kind::FLOAT
        | kind::TYPE_TAG => 0,
        _ => return None,
    })
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

/// `BTF_INT_*`: the word behind an integer, and the bits of its encoding.
pub mod int {
    /// Returns the word of an integer that begins with the first bit of its bytes.
    pub const fn word(encoding: u32, bits: u8) -> u32 {
        encoding << 24 | bits as u32
    }

    /// `BTF_INT_ENCODING`.
    pub const fn encoding(word: u32) -> u32 {
        word >> 24 & 0xf
    }

    /// `BTF_INT_OFFSET`, in bits.
    pub const fn offset(word: u32) -> u32 {
        word >> 16 & 0xff
    }

    /// `BTF_INT_BITS`.
    pub const fn bits(word: u32) -> u32 {
        word & 0xff
    }

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
