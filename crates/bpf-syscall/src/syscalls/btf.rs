//! `BPF_BTF_LOAD`: keeps the type information of a tool's maps and programs.

use std::sync::Arc;

use beeline_runtime::backend::Backend;
use beeline_supervisor::attr::BpfAttr;
use beeline_supervisor::{Answer, Call, Memory};
use beeline_uapi::Errno;
use beeline_uapi::btf::{BTF_MAGIC, BTF_VERSION, BtfHeader};
use beeline_uapi::limits::BTF_MAX_SIZE;
use zerocopy::FromBytes;

use super::attr::BtfLoad;
use super::descriptors::NewDescriptors;
use crate::local::Local;
use crate::objects::{Btf, Numbers, Object};

/// Loads BTF.
pub(super) struct BtfObjects<'a> {
    memory: Memory<'a>,
    backend: &'a dyn Backend,
    numbers: &'a Numbers,
    descriptors: NewDescriptors<'a>,
}

impl<'a> BtfObjects<'a> {
    pub(super) fn new(local: &'a Local, call: &'a Call<'a>) -> Self {
        Self {
            memory: call.memory,
            backend: &*local.backend,
            numbers: &local.numbers,
            descriptors: NewDescriptors::new(local, call),
        }
    }

    /// Carries out `BPF_BTF_LOAD`.
    pub(super) fn load(&self, attr: &BpfAttr) -> Answer {
        let wanted = BtfLoad::parse(attr)?;
        if wanted.size > BTF_MAX_SIZE {
            return Err(Errno::E2BIG);
        }
        // The data is copied once.
        let mut charge = self.backend.charge(2 * u64::from(wanted.size))?;
        let data = self.memory.bytes(wanted.data, wanted.size as usize)?;
        check_btf(&data)?;
        let mut btf = Btf::of_tool(self.numbers.next(), data);
        charge.resize(wanted.size.into())?;
        btf.charge = charge;
        self.descriptors.first(Object::Btf(Arc::new(btf)))
    }
}

/// Checks the header, `struct btf_header`, and that both sections are within the data. The content
/// of the types is between the tool and the programs that show them; the supervisor only keeps
/// them.
fn check_btf(data: &[u8]) -> Result<(), Errno> {
    let (header, _) = BtfHeader::read_from_prefix(data).map_err(|_| Errno::EINVAL)?;
    let is_known = header.magic == BTF_MAGIC && header.version == BTF_VERSION && header.flags == 0;
    let is_whole = header.hdr_len as usize >= size_of::<BtfHeader>();
    if !is_known || !is_whole || !header.type_off.is_multiple_of(4) {
        return Err(Errno::EINVAL);
    }
    let section = |offset: u32, len: u32| {
        let start = (header.hdr_len as usize).checked_add(offset as usize)?;
        data.get(start..start.checked_add(len as usize)?)
    };
    section(header.type_off, header.type_len).ok_or(Errno::EINVAL)?;
    let strings = section(header.str_off, header.str_len).ok_or(Errno::EINVAL)?;
    if strings.first() != Some(&0) || strings.last() != Some(&0) {
        return Err(Errno::EINVAL);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns an empty type section and a string section with one empty string.
    fn smallest_btf() -> Vec<u8> {
        let mut btf = vec![0x9f, 0xeb, 1, 0];
        for field in [24u32, 0, 0, 0, 1] {
            btf.extend(field.to_ne_bytes());
        }
        btf.push(0);
        btf
    }

    #[test]
    fn btf_headers_are_checked() {
        let good = smallest_btf();
        assert_eq!(check_btf(&good), Ok(()));
        for (at, byte) in [(0, 0), (2, 2), (4, 200), (8, 3), (12, 9), (20, 9)] {
            let mut bad = good.clone();
            bad[at] = byte;
            assert_eq!(check_btf(&bad), Err(Errno::EINVAL), "byte {at}");
        }
        assert_eq!(check_btf(&[]), Err(Errno::EINVAL));
    }

    proptest! {
        #[test]
        fn no_btf_makes_the_check_panic(mut data in proptest::collection::vec(any::<u8>(), 0..64), good_start: bool) {
            if good_start {
                data.splice(0..data.len().min(4), [0x9f, 0xeb, 1, 0]);
            }
            let _ = check_btf(&data);
        }
    }
}
