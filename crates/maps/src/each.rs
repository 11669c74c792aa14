//! Iteration over every element, for a program's callback.

use beeline_uapi::Errno;

use crate::{Kind, Map};

impl Map {
    /// `bpf_for_each_map_elem`: calls `each` with a pointer to the key and one to the value (of CPU
    /// slot `cpu`, in a per-CPU map) of every element, until it returns false. Returns the number
    /// of calls.
    ///
    /// No lock is held meanwhile: `each` may change the map, and delete the element that it was
    /// given, as others may. An element that is there from the beginning to the end is seen once;
    /// one that comes or goes meanwhile may be seen or not. The key must not be written; it stays
    /// for as long as its element does.
    ///
    /// # Errors
    ///
    /// `EINVAL` for flags, `ENOTSUPP` for a type that the kernel does not iterate over.
    pub fn for_each(
        &self,
        flags: u64,
        cpu: u32,
        mut each: impl FnMut(*const u8, *mut u8) -> bool,
    ) -> Result<u32, Errno> {
        let seen = match self.kind() {
            Some(Kind::Hash | Kind::PercpuHash | Kind::LruHash | Kind::LruPercpuHash)
                if flags == 0 =>
            {
                self.hash_for_each(cpu, each)
            }
            Some(Kind::Array | Kind::PercpuArray) if flags == 0 => {
                let mut index = 0_u32;
                while index < self.spec.max_entries {
                    // A copy, so that a callback which writes to its key does not make the
                    // iteration end later.
                    let key = index;
                    index = index.wrapping_add(1);
                    if !each((&raw const key).cast(), self.value(key, cpu)) {
                        break;
                    }
                }
                index
            }
            Some(
                Kind::Hash
                | Kind::PercpuHash
                | Kind::LruHash
                | Kind::LruPercpuHash
                | Kind::Array
                | Kind::PercpuArray,
            ) => {
                return Err(Errno::EINVAL);
            }
            _ => return Err(Errno::ENOTSUPP),
        };
        Ok(seen)
    }
}
