//! `union bpf_attr` and `struct perf_event_attr`, parsed from a tool's bytes.
//!
//! The layouts are those of [`beeline_uapi::attr`]. Later kernels only append fields. Bytes that a
//! tool did not pass are zero. Bytes behind the last field that a command knows must be zero;
//! otherwise the tool asks for something that this kernel does not have.

use std::mem::offset_of;

use beeline_uapi::Errno;
pub use beeline_uapi::attr::ATTR_LIMIT;
use beeline_uapi::attr::{BPF_ATTR_SIZE, BPF_OBJ_NAME_LEN, PerfEvent};
use zerocopy::{FromBytes, IntoBytes};

const EINVAL: Errno = Errno(libc::EINVAL);
const E2BIG: Errno = Errno(libc::E2BIG);

/// A `union bpf_attr`, zero-extended.
#[derive(Debug, Clone)]
pub struct BpfAttr {
    bytes: [u8; BPF_ATTR_SIZE],
    /// The bytes that the tool has for answers. A field beyond them is not written back.
    pub size: usize,
}

impl BpfAttr {
    /// Parses all the bytes that the tool passed.
    ///
    /// # Errors
    /// E2BIG if the bytes beyond the known ones are not zero.
    pub fn parse(passed: &[u8]) -> Result<Self, Errno> {
        if passed.len() > ATTR_LIMIT {
            return Err(E2BIG);
        }
        let known = passed.len().min(BPF_ATTR_SIZE);
        let (head, tail) = passed.split_at(known);
        if tail.iter().any(|&byte| byte != 0) {
            return Err(E2BIG);
        }
        let mut bytes = [0; BPF_ATTR_SIZE];
        for (to, from) in bytes.iter_mut().zip(head) {
            *to = *from;
        }
        Ok(BpfAttr { bytes, size: known })
    }

    /// Checks that nothing is set at or behind `end`, where the command's last field ends.
    ///
    /// # Errors
    /// EINVAL if something is.
    pub fn ends_at(&self, end: usize) -> Result<&Self, Errno> {
        if self.bytes.iter().skip(end).any(|&byte| byte != 0) {
            Err(EINVAL)
        } else {
            Ok(self)
        }
    }

    /// Returns the structure of a command.
    pub fn view<T: FromBytes + IntoBytes>(&self) -> T {
        let mut view = T::new_zeroed();
        let both = view.as_mut_bytes().iter_mut().zip(&self.bytes);
        both.for_each(|(to, from)| *to = *from);
        view
    }
}

/// Returns an object's name: letters, digits, `_` and `.`, and a NUL within the field.
///
/// # Errors
/// EINVAL for other names.
pub fn object_name(field: &[u8; BPF_OBJ_NAME_LEN]) -> Result<String, Errno> {
    let end = field.iter().position(|&byte| byte == 0).ok_or(EINVAL)?;
    let name = field.get(..end).ok_or(EINVAL)?;
    let fits = |&byte: &u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'.';
    if !name.iter().all(fits) {
        return Err(EINVAL);
    }
    Ok(name.iter().map(|&byte| char::from(byte)).collect())
}

/// The attribute of `perf_event_open`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PerfAttr {
    /// `PERF_TYPE_*`, or a number from sysfs.
    pub event_type: u32,
    /// Selects the event; the meaning depends on the type.
    pub config: u64,
    /// True if the event starts disabled.
    pub disabled: bool,
    /// True if its samples or its count are to be read.
    pub is_read: bool,
    /// The sampling period or frequency.
    pub sampling: Sampling,
    /// For a probe: the address of the path or of the function's name.
    pub config1: u64,
    /// For a probe: the offset.
    pub config2: u64,
}

/// `sample_period` or `sample_freq`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sampling {
    /// For the CPU clock: a period in nanoseconds.
    Period(u64),
    /// A frequency in hertz.
    Frequency(u64),
}

impl PerfAttr {
    /// The size of the oldest layout, which an attribute without a size has.
    pub const SIZE_VER0: u32 = PerfEvent::SIZE_VER0;
    /// The bytes that are known here, `PERF_ATTR_SIZE_VER8`.
    pub const SIZE: u32 = size_of::<PerfEvent>() as u32;
    /// The offset of the attribute's own size.
    pub const SIZE_AT: u64 = offset_of!(PerfEvent, size) as u64;

    /// Returns the number of bytes to read, given the attribute's own size.
    ///
    /// # Errors
    /// E2BIG if no attribute has that size.
    pub fn len(size: u32) -> Result<usize, Errno> {
        match size {
            0 => Ok(Self::SIZE_VER0 as usize),
            Self::SIZE_VER0.. if size as usize <= ATTR_LIMIT => Ok(size as usize),
            _ => Err(E2BIG),
        }
    }

    /// Parses as many bytes as [`Self::len`] returns.
    ///
    /// # Errors
    /// E2BIG if the bytes beyond the known ones are not zero.
    pub fn parse(bytes: &[u8]) -> Result<Self, Errno> {
        let (known, unknown) = bytes.split_at(bytes.len().min(Self::SIZE as usize));
        if unknown.iter().any(|&byte| byte != 0) {
            return Err(E2BIG);
        }
        let mut attr = PerfEvent::default();
        let both = attr.as_mut_bytes().iter_mut().zip(known);
        both.for_each(|(to, from)| *to = *from);
        Ok(PerfAttr {
            event_type: attr.r#type,
            config: attr.config,
            disabled: attr.bits & PerfEvent::DISABLED != 0,
            is_read: attr.sample_type != 0 || attr.read_format != 0,
            sampling: match attr.bits & PerfEvent::FREQ {
                0 => Sampling::Period(attr.sample_period),
                _ => Sampling::Frequency(attr.sample_period),
            },
            config1: attr.config1,
            config2: attr.config2,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_bytes_make_a_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..5000)) {
            let _ = (PerfAttr::parse(&bytes), BpfAttr::parse(&bytes));
        }

        #[test]
        fn a_zero_tail_changes_nothing(head in proptest::collection::vec(any::<u8>(), 0..168), tail in 0usize..3000) {
            let short = BpfAttr::parse(&head).unwrap();
            let mut long = head.clone();
            long.resize(head.len() + tail, 0);
            let long = BpfAttr::parse(&long).unwrap();
            prop_assert_eq!(short.bytes, long.bytes);
        }
    }

    #[test]
    fn a_tail_that_is_not_zero_is_too_big() {
        let mut bytes = vec![0; 200];
        bytes[199] = 1;
        assert_eq!(BpfAttr::parse(&bytes).unwrap_err(), E2BIG);
        assert_eq!(PerfAttr::parse(&bytes).unwrap_err(), E2BIG);
        assert_eq!(BpfAttr::parse(&vec![0; 4097]).unwrap_err(), E2BIG);
        assert!(BpfAttr::parse(&vec![0; 4096]).is_ok());
    }
}
