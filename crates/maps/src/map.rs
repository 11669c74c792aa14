//! The handle on a map, and its operations: those of programs first, then those of the system
//! calls.

mod values;

use beeline_uapi::Errno;

use crate::{Caller, Fields, Kind, Layout, Spec, flags};

/// A map as one process has mapped it.
///
/// It is plain data without pointers to anything but the map's own memory, so a handle for another
/// address space can be made here and copied there ([`Map::as_bytes`]).
///
/// Operations that take pointers are those that programs call through helpers. Operations that take
/// slices stand behind the system calls, and return the errors of those.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Map {
    pub(crate) base: *mut u8,
    pub(crate) spec: Spec,
    pub(crate) fields: Fields,
    reserved: u32,
    pub(crate) layout: Layout,
}

// A handle is copied as bytes: no padding may be in it.
const _: () = assert!(size_of::<Map>() == 8 + size_of::<Spec>() + 8 + 4 + size_of::<Layout>());
const _: () = assert!(size_of::<Layout>() == 8 * 8 + 4 * 4);

// SAFETY: the memory behind `base` is shared between processes, so all access to it is by atomic
// words.
unsafe impl Send for Map {}
// SAFETY: the memory behind `base` is shared between processes, so all access to it is by atomic
// words.
unsafe impl Sync for Map {}

impl Map {
    /// Creates a handle on the map with its file mapped at `base`. A fresh, zeroed file is an empty
    /// map.
    ///
    /// # Errors
    ///
    /// Those of [`Layout::new`].
    ///
    /// # Safety
    ///
    /// For as long as the handle or a copy of it is used, the file is mapped shared, readable and
    /// writable, at `base`, a page's start, for [`Layout::len`] bytes. A handle for another address
    /// space is only used there. All handles on one file are made from the same `spec` and `cpus`.
    pub unsafe fn attach(spec: &Spec, cpus: u32, base: *mut u8) -> Result<Self, Errno> {
        Ok(Self {
            base,
            spec: *spec,
            fields: Fields::EMPTY,
            reserved: 0,
            layout: Layout::new(spec, cpus)?,
        })
    }

    /// The same map in an address space where it is mapped at `base`.
    ///
    /// # Safety
    ///
    /// As for [`Map::attach`].
    pub unsafe fn rebased(&self, base: *mut u8) -> Self {
        Self { base, ..*self }
    }

    /// Makes this a handle for the place where the map is mapped at `base`.
    ///
    /// # Safety
    ///
    /// As for [`Map::attach`].
    pub unsafe fn rebase(&mut self, base: *mut u8) {
        self.base = base;
    }

    /// Returns the handle as bytes, to be copied to an 8-aligned place in another process.
    pub fn as_bytes(&self) -> &[u8; size_of::<Map>()] {
        // SAFETY: plain data without padding, as the assertions above say.
        unsafe { &*core::ptr::from_ref(self).cast() }
    }

    /// Returns the map's description.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Returns the positions of its parts.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Returns the address where it is mapped.
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    /// Returns the first value of an array: the base of `BPF_PSEUDO_MAP_VALUE`. Null for other
    /// types.
    pub fn direct_values(&self) -> *mut u8 {
        if self.kind() == Some(Kind::Array) {
            self.value(0, 0)
        } else {
            core::ptr::null_mut()
        }
    }

    /// Returns the size in bytes of a value as the system calls see it: `value_size`, or for
    /// per-CPU maps `cpus * round_up(value_size, 8)`.
    pub fn value_len(&self) -> usize {
        let (copies, each) = self.copies();
        each.wrapping_mul(copies as usize)
    }

    #[inline]
    pub(crate) fn kind(&self) -> Option<Kind> {
        self.spec.kind()
    }
}

/// The operations of programs. The program has leased the CPU slot that it names; nobody else
/// writes that slot's values.
impl Map {
    /// `bpf_map_lookup_elem`: the value (of CPU slot `cpu`, in a per-CPU map) or null.
    ///
    /// # Safety
    ///
    /// `key` is readable for `key_size` bytes.
    #[inline]
    pub unsafe fn lookup(&self, key: *const u8, cpu: u32) -> *mut u8 {
        // SAFETY: the caller promises that `key` is readable for `key_size` bytes; this is only
        // called for types with keys of 4 bytes.
        let index = || unsafe { key.cast::<u32>().read_unaligned() };
        let found = match self.kind() {
            // SAFETY: the caller promises that `key` is readable for `key_size` bytes.
            Some(Kind::Hash | Kind::PercpuHash | Kind::TaskStorage) => unsafe {
                self.hash_find(key)
            },
            // SAFETY: the caller promises that `key` is readable for `key_size` bytes.
            Some(Kind::LruHash | Kind::LruPercpuHash) => unsafe { self.lru_find(key) },
            // SAFETY: the caller promises that `key` is readable for `key_size` bytes.
            Some(Kind::LpmTrie) => unsafe { self.trie_find(key) },
            Some(Kind::Array | Kind::PercpuArray) => self.array_index(index()),
            _ => None,
        };
        match found {
            Some(index) => self.value(index, cpu),
            None => core::ptr::null_mut(),
        }
    }

    /// `bpf_map_lookup_percpu_elem`: the value of one CPU slot; null in maps that are not per CPU.
    ///
    /// # Safety
    ///
    /// `key` is readable for `key_size` bytes.
    pub unsafe fn lookup_percpu(&self, key: *const u8, cpu: u32) -> *mut u8 {
        if self.layout.cpu_stride == 0 {
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
        match self.kind() {
            Some(Kind::Hash | Kind::PercpuHash | Kind::LruHash | Kind::LruPercpuHash) => {
                let (flags, locked) = self.lock_flag(flags)?;
                // SAFETY: the caller promises that `key` is readable for `key_size` bytes, `value`
                // for `value_size`.
                unsafe {
                    self.hash_update(key, flags, caller, |index, new| {
                        self.guarded(locked && !new, index, caller, || {
                            self.put_one(index, new, value, caller.cpu)
                        })
                    })
                }
            }
            Some(Kind::Array | Kind::PercpuArray) => {
                // SAFETY: the caller promises that `key` is readable for `key_size` bytes, `value`
                // for `value_size`; keys of arrays have 4 bytes.
                let key = unsafe { key.cast::<u32>().read_unaligned() };
                let index = self.array_admits(key, flags & !flags::LOCK)?;
                let (_, locked) = self.lock_flag(flags)?;
                self.guarded(locked, index, caller, || {
                    self.put_one(index, false, value, caller.cpu)
                })
            }
            // SAFETY: the caller promises that `key` is readable for `key_size` bytes, `value` for
            // `value_size`.
            Some(Kind::LpmTrie) => unsafe { self.trie_update(key, value, flags, caller) },
            // SAFETY: the caller promises that `key` is readable for `key_size` bytes, `value` for
            // `value_size`.
            Some(Kind::TaskStorage) => unsafe {
                let (flags, locked) = self.lock_flag(flags)?;
                self.storage_update(key, flags, caller, |index, new| {
                    self.guarded(locked && !new, index, caller, || {
                        self.put_one(index, new, value, caller.cpu)
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
        // SAFETY: the caller promises that `key` is readable for `key_size` bytes; this is only
        // called for types with keys of 4 bytes.
        let index = || unsafe { key.cast::<u32>().read_unaligned() };
        match self.kind() {
            // SAFETY: the caller promises that `key` is readable for `key_size` bytes.
            Some(kind) if kind.is_hash() => unsafe { self.hash_delete(key, caller, |_| Ok(())) },
            // SAFETY: the caller promises that `key` is readable for `key_size` bytes.
            Some(Kind::LpmTrie) => unsafe { self.trie_delete(key, caller) },
            Some(Kind::StackTrace) => self.stack_delete(index(), caller),
            Some(Kind::ProgArray | Kind::CgroupArray | Kind::ArrayOfMaps) => {
                self.array_clear_object(index())
            }
            Some(Kind::PerfEventArray) => match self.array_index(index()) {
                Some(_) => Err(Errno::ENOENT),
                None => Err(Errno::E2BIG),
            },
            Some(Kind::Ringbuf | Kind::UserRingbuf) => Err(Errno::ENOTSUPP),
            Some(Kind::BloomFilter) => Err(Errno::EOPNOTSUPP),
            _ => Err(Errno::EINVAL),
        }
    }
}

/// The operations of system calls. Keys must have `key_size` bytes and values [`Map::value_len`];
/// otherwise the result is `EINVAL`.
impl Map {
    /// `BPF_MAP_LOOKUP_ELEM`: copies the value out. For a per-CPU map these are all CPUs' values,
    /// for a map of objects the id. For a map without keys this is [`Map::peek_elem`].
    ///
    /// # Errors
    ///
    /// `ENOENT` if there is no such element, `EINVAL` for flags, `ENOTSUPP` for a type without
    /// look-ups, `EBUSY` as for [`Map::update`].
    pub fn lookup_copy(
        &self,
        key: &[u8],
        out: &mut [u8],
        flags: u64,
        caller: &Caller,
    ) -> Result<(), Errno> {
        self.check_key(key)?;
        let (flags, locked) = self.lock_flag(flags)?;
        if flags != 0 || out.len() != self.value_len() {
            return Err(Errno::EINVAL);
        }
        let mut get = |index| self.guarded(locked, index, caller, || self.get_value(index, out));
        match self.kind() {
            // SAFETY: the key has key_size bytes.
            Some(Kind::Hash | Kind::PercpuHash | Kind::LruHash | Kind::LruPercpuHash) => unsafe {
                self.hash_with(key.as_ptr(), caller, get)
            },
            Some(Kind::Array | Kind::PercpuArray) => {
                get(self.array_index(index_of(key)?).ok_or(Errno::ENOENT)?)
            }
            Some(Kind::StackTrace) => self.stack_copy(index_of(key)?, out),
            Some(Kind::ProgArray | Kind::ArrayOfMaps) => {
                self.get_object(self.array_index(index_of(key)?).ok_or(Errno::ENOENT)?, out)
            }
            // SAFETY: the key has key_size bytes.
            Some(Kind::LpmTrie) => unsafe {
                self.trie_with(key.as_ptr(), caller, |index| self.get_value(index, out))
            },
            // SAFETY: `out` has value_size bytes.
            Some(Kind::Queue | Kind::Stack | Kind::BloomFilter) => unsafe {
                self.peek_elem(out.as_mut_ptr(), caller)
            },
            // SAFETY: the key has key_size bytes.
            Some(Kind::HashOfMaps) => unsafe {
                self.hash_with(key.as_ptr(), caller, |index| self.get_object(index, out))
            },
            // SAFETY: the key has key_size bytes.
            Some(Kind::TaskStorage) => unsafe { self.hash_with(key.as_ptr(), caller, get) },
            _ => Err(Errno::ENOTSUPP),
        }
    }

    /// `BPF_MAP_UPDATE_ELEM`. A per-CPU map's value holds all CPUs' values. In a map of objects it
    /// is the object's id ([`Map::object`]). For a map without keys this is [`Map::push_elem`]. The
    /// elements of a perf event array are descriptors, which are not kept here: the result is
    /// `EINVAL`.
    ///
    /// # Errors
    ///
    /// As for [`Map::update`].
    pub fn update_copy(
        &self,
        key: &[u8],
        value: &[u8],
        flags: u64,
        caller: &Caller,
    ) -> Result<(), Errno> {
        self.check_key(key)?;
        let (flags, locked) = self.lock_flag(flags)?;
        if value.len() != self.value_len() {
            return Err(Errno::EINVAL);
        }
        match self.kind() {
            Some(Kind::Hash | Kind::PercpuHash | Kind::LruHash | Kind::LruPercpuHash) => {
                // SAFETY: the key has key_size bytes.
                unsafe {
                    self.hash_update(key.as_ptr(), flags, caller, |index, new| {
                        self.guarded(locked && !new, index, caller, || {
                            self.put_value(index, new, value)
                        })
                    })
                }
            }
            Some(Kind::Array | Kind::PercpuArray) => {
                let index = self.array_admits(index_of(key)?, flags)?;
                self.guarded(locked, index, caller, || {
                    self.put_value(index, false, value)
                })
            }
            Some(Kind::ProgArray | Kind::CgroupArray | Kind::ArrayOfMaps) => {
                self.array_set_object(index_of(key)?, value, flags)
            }
            // SAFETY: the key has key_size bytes and the value value_size.
            Some(Kind::LpmTrie) => unsafe {
                self.trie_update(key.as_ptr(), value.as_ptr(), flags, caller)
            },
            // SAFETY: the value has value_size bytes.
            Some(Kind::Queue | Kind::Stack | Kind::BloomFilter) => unsafe {
                self.push_elem(value.as_ptr(), flags, caller)
            },
            // SAFETY: the key has key_size bytes.
            Some(Kind::HashOfMaps) => unsafe {
                self.hash_update(key.as_ptr(), flags, caller, |index, _| {
                    self.put_object(index, value)
                })
            },
            // SAFETY: the key has key_size bytes.
            Some(Kind::TaskStorage) => unsafe {
                self.storage_update(key.as_ptr(), flags, caller, |index, new| {
                    self.guarded(locked && !new, index, caller, || {
                        self.put_value(index, new, value)
                    })
                })
            },
            Some(Kind::Ringbuf | Kind::UserRingbuf) => Err(Errno::ENOTSUPP),
            _ => Err(Errno::EINVAL),
        }
    }

    /// `BPF_MAP_DELETE_ELEM`.
    ///
    /// # Errors
    ///
    /// As for [`Map::delete`].
    pub fn delete_key(&self, key: &[u8], caller: &Caller) -> Result<(), Errno> {
        self.check_key(key)?;
        // SAFETY: the key has key_size bytes.
        unsafe { self.delete(key.as_ptr(), caller) }
    }

    /// `BPF_MAP_LOOKUP_AND_DELETE_ELEM`, for hashes, stack maps, queues and stacks.
    ///
    /// # Errors
    ///
    /// `ENOENT` if there is no such element, `EINVAL` for flags, `ENOTSUPP` for other types,
    /// `EBUSY` as for [`Map::update`].
    pub fn lookup_and_delete(
        &self,
        key: &[u8],
        out: &mut [u8],
        flags: u64,
        caller: &Caller,
    ) -> Result<(), Errno> {
        self.check_key(key)?;
        let (flags, locked) = self.lock_flag(flags)?;
        if flags != 0 || out.len() != self.value_len() {
            return Err(Errno::EINVAL);
        }
        match self.kind() {
            Some(Kind::Hash | Kind::PercpuHash | Kind::LruHash | Kind::LruPercpuHash) => {
                let get =
                    |index| self.guarded(locked, index, caller, || self.get_value(index, out));
                // SAFETY: the key has key_size bytes.
                unsafe { self.hash_delete(key.as_ptr(), caller, get) }
            }
            Some(Kind::StackTrace) => self.stack_take(index_of(key)?, out, caller),
            // SAFETY: `out` has value_size bytes.
            Some(Kind::Queue | Kind::Stack) => unsafe { self.pop_elem(out.as_mut_ptr(), caller) },
            _ => Err(Errno::ENOTSUPP),
        }
    }

    /// `BPF_MAP_GET_NEXT_KEY`: returns the key after `key` in the map's own order; the first one if
    /// `key` is `None` or no longer there.
    ///
    /// # Errors
    ///
    /// `ENOENT` after the last, `ENOTSUPP` for a type without keys, `EBUSY` as for [`Map::update`].
    pub fn next_key(
        &self,
        key: Option<&[u8]>,
        out: &mut [u8],
        caller: &Caller,
    ) -> Result<(), Errno> {
        if let Some(key) = key {
            self.check_key(key)?;
        }
        self.check_key(out)?;
        let index = match key {
            Some(key) if self.spec.key_size == 4 => Some(index_of(key)?),
            _ => None,
        };
        let next = match self.kind() {
            Some(Kind::LpmTrie) => return self.trie_next(key, out, caller),
            Some(Kind::Queue | Kind::Stack) => return Err(Errno::EINVAL),
            Some(Kind::BloomFilter) => return Err(Errno::EOPNOTSUPP),
            Some(Kind::Ringbuf | Kind::UserRingbuf | Kind::TaskStorage) | None => {
                return Err(Errno::ENOTSUPP);
            }
            Some(
                Kind::Hash
                | Kind::PercpuHash
                | Kind::LruHash
                | Kind::LruPercpuHash
                | Kind::HashOfMaps,
            ) => return self.hash_next(key, out, caller),
            Some(Kind::StackTrace) => self.stack_next(index)?,
            Some(Kind::Array | Kind::PercpuArray | Kind::PerfEventArray) => {
                self.array_next(index)?
            }
            Some(Kind::ProgArray | Kind::CgroupArray | Kind::ArrayOfMaps) => {
                self.array_next(index)?
            }
        };
        let out: &mut [u8; 4] = out.try_into().map_err(|_| Errno::EINVAL)?;
        *out = next.to_ne_bytes();
        Ok(())
    }

    /// Frees everything that dead processes held: those with a tag for which `dead` returns true.
    ///
    /// Locks are released, nodes in hand go back, and ring buffer records in the making are
    /// discarded. Returns whether a ring buffer's consumer must be woken for that.
    ///
    /// Call it after a process has died or has replaced itself by `exec`; it may be called any
    /// number of times. For a hash, the time does not depend on the size. `dead` may also return
    /// true for every unknown tag: that frees overwritten locks, too, once somebody has waited for
    /// them.
    ///
    /// The CPU slots of the dead may be given to others only after this was successful for all
    /// maps.
    ///
    /// # Errors
    ///
    /// `EBUSY` if a process that is not `dead` does not let go of a lock. Call it again later.
    pub fn release(&self, dead: &dyn Fn(u32) -> bool, caller: &Caller) -> Result<bool, Errno> {
        match self.kind() {
            Some(kind) if kind.is_hash() => {
                self.release_values(self.used_nodes(), dead);
                self.hash_release(dead, caller).map(|()| false)
            }
            Some(Kind::Array) => {
                self.release_values(self.spec.max_entries, dead);
                Ok(false)
            }
            Some(Kind::StackTrace) => {
                self.stack_release(dead);
                Ok(false)
            }
            Some(Kind::Ringbuf) => self.ring_release(dead, caller),
            Some(Kind::LpmTrie) => {
                self.trie_release(dead, caller);
                Ok(false)
            }
            Some(Kind::Queue | Kind::Stack) => {
                self.queue_release(dead);
                Ok(false)
            }
            Some(Kind::UserRingbuf) => {
                self.user_ring_release(dead);
                Ok(false)
            }
            _ => Ok(false),
        }
    }

    /// Calls [`Map::release`] for one process.
    ///
    /// # Errors
    ///
    /// As for [`Map::release`].
    pub fn release_owner(&self, owner: u32, caller: &Caller) -> Result<bool, Errno> {
        self.release(&|tag| tag == owner, caller)
    }

    fn check_key(&self, key: &[u8]) -> Result<(), Errno> {
        if key.len() == self.spec.key_size as usize {
            Ok(())
        } else {
            Err(Errno::EINVAL)
        }
    }
}

fn index_of(key: &[u8]) -> Result<u32, Errno> {
    key.try_into()
        .map(u32::from_ne_bytes)
        .map_err(|_| Errno::EINVAL)
}
