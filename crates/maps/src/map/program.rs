//! The operations of programs.

use beeline_uapi::Errno;

use super::Map;
use crate::{
    Caller, Kind, TaskStorage,
    array::Array,
    bloom::Bloom,
    flags,
    hash::{Elements, HashTable},
    objects::Objects,
    queue::Queue,
    stack::StackTraces,
    trie::Trie,
    values::Values,
};

/// The operations of programs. The program has leased the CPU slot that it names; no other program
/// writes that slot's values.
impl Map {
    /// `bpf_map_lookup_elem`: the value (of CPU slot `cpu`, in a per-CPU map) or null.
    ///
    /// # Safety
    ///
    /// `key` is readable for `key_size` bytes.
    #[inline]
    pub unsafe fn lookup(&self, key: *const u8, cpu: u32) -> *mut u8 {
        let memory = &self.memory;
        let table = HashTable::new(memory);
        // SAFETY: the caller promises that `key` is readable for `key_size` bytes; this is only
        // called for types with keys of 4 bytes.
        let index = || unsafe { key.cast::<u32>().read_unaligned() };
        let found = match memory.kind() {
            // SAFETY: the caller promises that `key` is readable for `key_size` bytes.
            Some(Kind::Hash | Kind::PercpuHash | Kind::TaskStorage) => unsafe { table.find(key) },
            // SAFETY: the caller promises that `key` is readable for `key_size` bytes.
            Some(Kind::LruHash | Kind::LruPercpuHash) => unsafe { table.find_and_touch(key) },
            // SAFETY: the caller promises that `key` is readable for `key_size` bytes.
            Some(Kind::LpmTrie) => unsafe { Trie::new(memory).find(key) },
            Some(Kind::Array | Kind::PercpuArray) => Array::new(memory).index(index()),
            _ => None,
        };
        match found {
            Some(index) => memory.value(index, cpu),
            None => core::ptr::null_mut(),
        }
    }

    /// [`Map::lookup`] in a hash with keys of `KEY` bytes: a per-CPU one or not, an LRU one or not.
    ///
    /// # Safety
    ///
    /// The map is of that kind, and `key` is readable for `KEY` bytes.
    #[inline(always)]
    pub unsafe fn lookup_hash<const KEY: usize, const PER_CPU: bool, const LRU: bool>(
        &self,
        key: *const u8,
        cpu: u32,
    ) -> *mut u8 {
        let table = HashTable::new(&self.memory);
        // SAFETY: the caller promises that the map is of that kind, and `key` is readable for `KEY`
        // bytes.
        unsafe { table.lookup_sized::<KEY, PER_CPU, LRU>(key, cpu) }
    }

    /// `bpf_map_lookup_percpu_elem`: the value of one CPU slot; null in maps that are not per CPU.
    ///
    /// # Safety
    ///
    /// `key` is readable for `key_size` bytes.
    pub unsafe fn lookup_percpu(&self, key: *const u8, cpu: u32) -> *mut u8 {
        if self.memory.layout.cpu_stride == 0 {
            return core::ptr::null_mut();
        }
        // SAFETY: the caller promises that `key` is readable for `key_size` bytes.
        unsafe { self.lookup(key, cpu) }
    }

    /// `bpf_map_update_elem`. In a per-CPU map only the caller's CPU slot gets the value; if the
    /// element is new the others are zero.
    ///
    /// # Errors
    ///
    /// `EINVAL` for unknown flags or a type without such updates, `EEXIST`, `ENOENT` as the flags
    /// say, `E2BIG` when the map is full (an LRU hash never is) or an array's index is out of
    /// range, `EBUSY` when another holds the element's lock for too long.
    ///
    /// # Safety
    ///
    /// `key` is readable for `key_size` bytes, `value` for `value_size`.
    pub unsafe fn update(
        &self,
        key: *const u8,
        value: *const u8,
        flags: u64,
        caller: &Caller,
    ) -> Result<(), Errno> {
        let memory = &self.memory;
        let values = Values::new(memory);
        match memory.kind() {
            Some(Kind::Hash | Kind::PercpuHash | Kind::LruHash | Kind::LruPercpuHash) => {
                let (flags, locked) = memory.fields.lock_flag(flags)?;
                // SAFETY: the caller promises that `key` is readable for `key_size` bytes, `value`
                // for `value_size`.
                unsafe {
                    HashTable::new(memory).update(key, flags, caller, |index, new| {
                        values.guarded(locked && !new, index, caller, || {
                            values.put_one(index, new, value, caller.cpu)
                        })
                    })
                }
            }
            Some(Kind::Array | Kind::PercpuArray) => {
                // SAFETY: the caller promises that `key` is readable for `key_size` bytes, `value`
                // for `value_size`; keys of arrays have 4 bytes.
                let key = unsafe { key.cast::<u32>().read_unaligned() };
                let index = Array::new(memory).admits(key, flags & !flags::LOCK)?;
                let (_, locked) = memory.fields.lock_flag(flags)?;
                values.guarded(locked, index, caller, || {
                    values.put_one(index, false, value, caller.cpu)
                })
            }
            // SAFETY: the caller promises that `key` is readable for `key_size` bytes, `value` for
            // `value_size`.
            Some(Kind::LpmTrie) => unsafe { Trie::new(memory).update(key, value, flags, caller) },
            // SAFETY: the caller promises that `key` is readable for `key_size` bytes, `value` for
            // `value_size`.
            Some(Kind::TaskStorage) => unsafe {
                let (flags, locked) = memory.fields.lock_flag(flags)?;
                TaskStorage::new(memory).update(key, flags, caller, |index, new| {
                    values.guarded(locked && !new, index, caller, || {
                        values.put_one(index, new, value, caller.cpu)
                    })
                })
            },
            Some(Kind::Ringbuf | Kind::UserRingbuf) => Err(Errno::ENOTSUPP),
            _ => Err(Errno::EINVAL),
        }
    }

    /// `bpf_map_delete_elem`.
    ///
    /// # Errors
    ///
    /// `ENOENT` if there is no such element, `EINVAL` for arrays, `EBUSY` as for [`Map::update`].
    ///
    /// # Safety
    ///
    /// `key` is readable for `key_size` bytes.
    pub unsafe fn delete(&self, key: *const u8, caller: &Caller) -> Result<(), Errno> {
        let memory = &self.memory;
        // SAFETY: the caller promises that `key` is readable for `key_size` bytes; this is only
        // called for types with keys of 4 bytes.
        let index = || unsafe { key.cast::<u32>().read_unaligned() };
        match memory.kind() {
            // SAFETY: the caller promises that `key` is readable for `key_size` bytes.
            Some(kind) if kind.is_hash() => unsafe {
                HashTable::new(memory).delete(key, caller, |_| Ok(()))
            },
            // SAFETY: the caller promises that `key` is readable for `key_size` bytes.
            Some(Kind::LpmTrie) => unsafe { Trie::new(memory).delete(key, caller) },
            Some(Kind::StackTrace) => StackTraces::new(memory).delete(index(), caller),
            Some(Kind::ProgArray | Kind::CgroupArray | Kind::ArrayOfMaps) => {
                Objects::new(memory).clear_in_array(index())
            }
            Some(Kind::PerfEventArray) => match Array::new(memory).index(index()) {
                Some(_) => Err(Errno::ENOENT),
                None => Err(Errno::E2BIG),
            },
            Some(Kind::Ringbuf | Kind::UserRingbuf) => Err(Errno::ENOTSUPP),
            Some(Kind::BloomFilter) => Err(Errno::EOPNOTSUPP),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Returns the id of the object that the element holds. A program's look-up in a map of maps, a
    /// tail call or a test of a cgroup starts from it. `None` if the element is empty or not there,
    /// and in maps without objects.
    ///
    /// # Safety
    ///
    /// `key` is readable for `key_size` bytes.
    #[inline]
    pub unsafe fn object(&self, key: *const u8) -> Option<u32> {
        let memory = &self.memory;
        let index = match memory.kind()? {
            // SAFETY: the caller promises that `key` is readable for `key_size` bytes.
            Kind::HashOfMaps => unsafe { HashTable::new(memory).find(key) },
            Kind::ProgArray | Kind::CgroupArray | Kind::ArrayOfMaps => {
                // SAFETY: the caller promises that `key` is readable for `key_size` bytes; keys of
                // arrays have 4 bytes.
                Array::new(memory).index(unsafe { key.cast::<u32>().read_unaligned() })
            }
            _ => None,
        };
        Objects::new(memory).get(index?)
    }

    /// Puts a value into a queue, a stack or a Bloom filter. With [`EXIST`](crate::flags::EXIST)
    /// the oldest value of a full queue or stack makes room.
    ///
    /// # Errors
    ///
    /// `E2BIG` for a full queue or stack; `EINVAL` for other flags or another type; `EBUSY` as for
    /// [`Map::update`].
    ///
    /// # Safety
    ///
    /// `value` is readable for `value_size` bytes.
    pub unsafe fn push_elem(
        &self,
        value: *const u8,
        flags: u64,
        caller: &Caller,
    ) -> Result<(), Errno> {
        let memory = &self.memory;
        match memory.kind() {
            // SAFETY: the caller promises that `value` is readable for `value_size` bytes.
            Some(Kind::Queue | Kind::Stack) => unsafe {
                Queue::new(memory).push(value, flags, caller)
            },
            // SAFETY: the caller promises that `value` is readable for `value_size` bytes.
            Some(Kind::BloomFilter) => unsafe { Bloom::new(memory).push(value, flags) },
            _ => Err(Errno::EINVAL),
        }
    }

    /// Takes the oldest value of a queue, or the newest of a stack.
    ///
    /// # Errors
    ///
    /// `ENOENT` for an empty one, with `out` zeroed; `EOPNOTSUPP` for a Bloom filter, `EINVAL` for
    /// another type; `EBUSY` as for [`Map::update`].
    ///
    /// # Safety
    ///
    /// `out` is writable for `value_size` bytes.
    pub unsafe fn pop_elem(&self, out: *mut u8, caller: &Caller) -> Result<(), Errno> {
        let memory = &self.memory;
        match memory.kind() {
            // SAFETY: the caller promises that `out` is writable for `value_size` bytes.
            Some(Kind::Queue | Kind::Stack) => unsafe { Queue::new(memory).get(out, true, caller) },
            Some(Kind::BloomFilter) => Err(Errno::EOPNOTSUPP),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Copies the value that [`Map::pop_elem`] would take. In a Bloom filter it looks up the value
    /// in `value`.
    ///
    /// # Errors
    ///
    /// `ENOENT` for an empty queue or stack, with `value` zeroed, and for a value that was never
    /// put into a filter; `EINVAL` for another type; `EBUSY` as for [`Map::update`].
    ///
    /// # Safety
    ///
    /// `value` is readable and writable for `value_size` bytes.
    pub unsafe fn peek_elem(&self, value: *mut u8, caller: &Caller) -> Result<(), Errno> {
        let memory = &self.memory;
        match memory.kind() {
            // SAFETY: the caller promises that `value` is readable and writable for `value_size`
            // bytes.
            Some(Kind::Queue | Kind::Stack) => unsafe {
                Queue::new(memory).get(value, false, caller)
            },
            // SAFETY: the caller promises that `value` is readable and writable for `value_size`
            // bytes.
            Some(Kind::BloomFilter) => unsafe { Bloom::new(memory).peek(value) },
            _ => Err(Errno::EINVAL),
        }
    }

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
        each: impl FnMut(*const u8, *mut u8) -> bool,
    ) -> Result<u32, Errno> {
        let memory = &self.memory;
        match memory.kind() {
            Some(
                Kind::Hash
                | Kind::PercpuHash
                | Kind::LruHash
                | Kind::LruPercpuHash
                | Kind::Array
                | Kind::PercpuArray,
            ) if flags != 0 => Err(Errno::EINVAL),
            Some(Kind::Hash | Kind::PercpuHash | Kind::LruHash | Kind::LruPercpuHash) => {
                Ok(Elements::new(memory).for_each(cpu, each))
            }
            Some(Kind::Array | Kind::PercpuArray) => Ok(Array::new(memory).for_each(cpu, each)),
            _ => Err(Errno::ENOTSUPP),
        }
    }
}
