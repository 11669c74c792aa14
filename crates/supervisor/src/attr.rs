//! `union bpf_attr` and `struct perf_event_attr`, parsed from a tool's bytes.
//!
//! Layouts are those of the kernel's UAPI (`linux/bpf.h`, `linux/perf_event.h`): fields sit at
//! fixed offsets and later kernels only append. Bytes that a tool did not pass are zero; bytes
//! behind the last field that a command knows must be zero, or the tool asks for something that
//! this kernel does not have.

use beeline_uapi::Errno;

const EINVAL: Errno = Errno(libc::EINVAL);
const E2BIG: Errno = Errno(libc::E2BIG);

/// Longest `bpf_attr` or `perf_event_attr` that the kernel looks at: a page.
pub const ATTR_LIMIT: usize = 4096;
/// Bytes of `union bpf_attr` known here (Linux 6.18).
const BPF_ATTR: usize = 168;
/// A name's bytes with its NUL.
const NAME: usize = 16;

/// A `union bpf_attr`, zero-extended.
#[derive(Debug, Clone)]
pub struct BpfAttr {
    bytes: [u8; BPF_ATTR],
    /// Bytes that the tool has for answers; a field beyond them is not written back.
    pub size: usize,
}

impl BpfAttr {
    /// From all the bytes that the tool passed. E2BIG if those beyond the known ones are not zero.
    pub fn parse(passed: &[u8]) -> Result<Self, Errno> {
        if passed.len() > ATTR_LIMIT {
            return Err(E2BIG);
        }
        let known = passed.len().min(BPF_ATTR);
        let (head, tail) = passed.split_at(known);
        if tail.iter().any(|&byte| byte != 0) {
            return Err(E2BIG);
        }
        let mut bytes = [0; BPF_ATTR];
        for (to, from) in bytes.iter_mut().zip(head) {
            *to = *from;
        }
        Ok(BpfAttr { bytes, size: known })
    }

    /// EINVAL if there is anything at or behind `end`, where the command's last field ends.
    pub fn ends_at(&self, end: usize) -> Result<&Self, Errno> {
        if self.bytes.iter().skip(end).any(|&byte| byte != 0) {
            Err(EINVAL)
        } else {
            Ok(self)
        }
    }

    /// The 32 bits at an offset.
    pub fn u32(&self, offset: usize) -> u32 {
        u32_at(&self.bytes, offset)
    }

    /// The same, signed: a descriptor.
    pub fn i32(&self, offset: usize) -> i32 {
        self.u32(offset) as i32
    }

    /// The 64 bits at an offset.
    pub fn u64(&self, offset: usize) -> u64 {
        u64_at(&self.bytes, offset)
    }

    /// An object's name: letters, digits, `_` and `.`, and a NUL within the field.
    pub fn name(&self, offset: usize) -> Result<String, Errno> {
        let field = self.bytes.get(offset..offset + NAME).ok_or(EINVAL)?;
        let end = field.iter().position(|&byte| byte == 0).ok_or(EINVAL)?;
        let name = field.get(..end).ok_or(EINVAL)?;
        let fits = |&byte: &u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'.';
        if !name.iter().all(fits) {
            return Err(EINVAL);
        }
        Ok(name.iter().map(|&byte| char::from(byte)).collect())
    }
}

/// `perf_event_open`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PerfAttr {
    /// `PERF_TYPE_*`, or a number from sysfs.
    pub event_type: u32,
    /// Says which event it is, by its type.
    pub config: u64,
    /// The event begins disabled.
    pub disabled: bool,
    /// Its samples.
    pub sampling: Sampling,
    /// Of a probe: address of the path or the function's name.
    pub config1: u64,
    /// Of a probe: offset.
    pub config2: u64,
}

/// `sample_period` or `sample_freq`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sampling {
    /// For the CPU clock: nanoseconds.
    Period(u64),
    /// Hertz.
    Frequency(u64),
}

impl PerfAttr {
    /// The oldest layout's bytes, which an attribute without a size has.
    pub const SIZE_VER0: u32 = 64;
    /// Bytes known here, `PERF_ATTR_SIZE_VER8`.
    pub const SIZE: u32 = 136;
    /// Where the attribute's own size is.
    pub const SIZE_AT: u64 = 4;

    /// The bytes to read, given the attribute's own size; E2BIG if no attribute has that size.
    pub fn len(size: u32) -> Result<usize, Errno> {
        match size {
            0 => Ok(Self::SIZE_VER0 as usize),
            Self::SIZE_VER0..=4096 => Ok(size as usize),
            _ => Err(E2BIG),
        }
    }

    /// From as many bytes as [`Self::len`] says.
    pub fn parse(bytes: &[u8]) -> Result<Self, Errno> {
        const DISABLED: u64 = 1;
        const FREQ: u64 = 1 << 10;
        if bytes
            .iter()
            .skip(Self::SIZE as usize)
            .any(|&byte| byte != 0)
        {
            return Err(E2BIG);
        }
        let (flags, period) = (u64_at(bytes, 40), u64_at(bytes, 16));
        Ok(PerfAttr {
            event_type: u32_at(bytes, 0),
            config: u64_at(bytes, 8),
            disabled: flags & DISABLED != 0,
            sampling: if flags & FREQ != 0 {
                Sampling::Frequency(period)
            } else {
                Sampling::Period(period)
            },
            config1: u64_at(bytes, 56),
            config2: u64_at(bytes, 64),
        })
    }
}

/// Little- or big-endian as the machine; bytes that are not there count as 0.
pub fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from_ne_bytes(array_at(bytes, offset))
}

/// As [`u32_at`], 64 bits.
pub fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    u64::from_ne_bytes(array_at(bytes, offset))
}

fn array_at<const N: usize>(bytes: &[u8], offset: usize) -> [u8; N] {
    let mut array = [0; N];
    for (to, from) in array.iter_mut().zip(bytes.iter().skip(offset)) {
        *to = *from;
    }
    array
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
