//! The header of BTF, with the kernel's names (`linux/btf.h`). What follows it is for `beeline-btf`.

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
