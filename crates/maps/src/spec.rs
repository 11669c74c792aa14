//! The description of a map: the arguments of `BPF_MAP_CREATE`, and the kernel's rules for them.

use beeline_uapi::limits::{
    BPF_LOCAL_STORAGE_MAX_VALUE_SIZE, HTAB_ELEM_SIZE, KMALLOC_MAX_SIZE, LPM_KEY_SIZE_MAX,
    LPM_KEY_SIZE_MIN, LPM_VAL_SIZE_MAX, MAX_BLOOM_HASH_FUNCS, PCPU_MIN_UNIT_SIZE,
};
use beeline_uapi::perf::PERF_MAX_STACK_DEPTH;
use beeline_uapi::{Errno, MapType, flags};

use crate::layout::PAGE;

/// The supported map types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // The names are the kernel's.
pub enum Kind {
    Hash,
    Array,
    ProgArray,
    PerfEventArray,
    PercpuHash,
    PercpuArray,
    StackTrace,
    CgroupArray,
    LruHash,
    LruPercpuHash,
    LpmTrie,
    ArrayOfMaps,
    HashOfMaps,
    Queue,
    Stack,
    Ringbuf,
    TaskStorage,
    BloomFilter,
    UserRingbuf,
}

impl Kind {
    /// True if the elements are objects (programs, maps, cgroups), kept as their ids. See
    /// [`Map::object`].
    ///
    /// [`Map::object`]: crate::Map::object
    pub fn holds_objects(self) -> bool {
        matches!(
            self,
            Self::ProgArray | Self::CgroupArray | Self::ArrayOfMaps | Self::HashOfMaps
        )
    }

    /// True if the elements are kept in a hash.
    pub const fn is_hash(self) -> bool {
        matches!(
            self,
            Self::Hash
                | Self::PercpuHash
                | Self::LruHash
                | Self::LruPercpuHash
                | Self::HashOfMaps
                | Self::TaskStorage
        )
    }

    /// True for a hash that, when it is full, makes room for a new element by dropping one that was
    /// not used for long.
    pub const fn is_lru(self) -> bool {
        matches!(self, Self::LruHash | Self::LruPercpuHash)
    }

    /// True if every CPU has values of its own.
    pub const fn is_percpu(self) -> bool {
        matches!(
            self,
            Self::PercpuHash | Self::PercpuArray | Self::LruPercpuHash
        )
    }
}

/// The description of a map: the arguments of `BPF_MAP_CREATE`.
///
/// Packed so that it has no padding: it is part of a handle, which is copied as bytes.
#[repr(C, packed(4))]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spec {
    /// Its type; see [`Kind`].
    pub map_type: MapType,
    /// Bytes.
    pub key_size: u32,
    /// Bytes.
    pub value_size: u32,
    /// Elements; bytes of data for a ring buffer; 0 for a task storage.
    pub max_entries: u32,
    /// `BPF_F_*`; see [`flags`].
    pub flags: u32,
    /// The number of hash functions of a Bloom filter, or 0 for the kernel's default; 0 for other
    /// types.
    pub map_extra: u64,
}

/// The largest key and value of a hash, together: they are in one block with the element's header.
const MAX_HASH_ELEMENT: u64 = (KMALLOC_MAX_SIZE - HTAB_ELEM_SIZE) as u64;

impl Spec {
    /// Returns the type of the map, if it is supported.
    pub fn kind(&self) -> Option<Kind> {
        Some(match self.map_type {
            MapType::HASH => Kind::Hash,
            MapType::ARRAY => Kind::Array,
            MapType::PROG_ARRAY => Kind::ProgArray,
            MapType::PERF_EVENT_ARRAY => Kind::PerfEventArray,
            MapType::PERCPU_HASH => Kind::PercpuHash,
            MapType::PERCPU_ARRAY => Kind::PercpuArray,
            MapType::STACK_TRACE => Kind::StackTrace,
            MapType::CGROUP_ARRAY => Kind::CgroupArray,
            MapType::LRU_HASH => Kind::LruHash,
            MapType::LRU_PERCPU_HASH => Kind::LruPercpuHash,
            MapType::LPM_TRIE => Kind::LpmTrie,
            MapType::ARRAY_OF_MAPS => Kind::ArrayOfMaps,
            MapType::HASH_OF_MAPS => Kind::HashOfMaps,
            MapType::QUEUE => Kind::Queue,
            MapType::STACK => Kind::Stack,
            MapType::RINGBUF => Kind::Ringbuf,
            MapType::TASK_STORAGE => Kind::TaskStorage,
            MapType::BLOOM_FILTER => Kind::BloomFilter,
            MapType::USER_RINGBUF => Kind::UserRingbuf,
            _ => return None,
        })
    }

    /// Checks the arguments as the kernel does, and returns the type.
    ///
    /// Checks of things that are not part of a spec are left to the caller: a map of maps has an
    /// inner map, and a task storage has BTF types for its key and value; otherwise the result is
    /// `EINVAL`.
    ///
    /// # Errors
    ///
    /// The kernel's for the same arguments: `EINVAL` for arguments that make no sense or have an
    /// unknown flag, `E2BIG` for those that are too large. A type that is not supported is
    /// `EINVAL`, as on a kernel without it.
    pub fn check(&self) -> Result<Kind, Errno> {
        let kind = self.kind().ok_or(Errno::EINVAL)?;
        let both = |a, b| self.flags & (a | b) == a | b;
        if both(flags::RDONLY, flags::WRONLY) {
            return Err(Errno::EINVAL);
        }
        // For a filter the kernel checks this before all else.
        if kind == Kind::BloomFilter && self.value_size > KMALLOC_MAX_SIZE {
            return Err(Errno::E2BIG);
        }
        if self.map_extra > self.largest_extra(kind)
            || both(flags::RDONLY_PROG, flags::WRONLY_PROG)
            || self.flags & !(allowed_flags(kind) | flags::TOKEN_FD) != 0
        {
            return Err(Errno::EINVAL);
        }
        match kind {
            Kind::Hash | Kind::PercpuHash | Kind::LruHash | Kind::LruPercpuHash => {
                self.check_hash(kind)?
            }
            Kind::HashOfMaps if self.value_size != 4 => return Err(Errno::EINVAL),
            Kind::HashOfMaps => self.check_hash(kind)?,
            Kind::Array | Kind::PercpuArray => self.check_array(kind)?,
            Kind::PerfEventArray | Kind::CgroupArray => self.check_array(kind)?,
            Kind::ProgArray | Kind::ArrayOfMaps => self.check_array(kind)?,
            Kind::StackTrace => self.check_stack()?,
            Kind::Ringbuf | Kind::UserRingbuf => self.check_ring()?,
            Kind::Queue | Kind::Stack | Kind::BloomFilter => self.check_queue()?,
            Kind::LpmTrie => self.check_trie()?,
            Kind::TaskStorage => self.check_storage()?,
        }
        // As in the kernel the token is checked last, and there is none.
        if self.flags & flags::TOKEN_FD != 0 {
            return Err(Errno::EINVAL);
        }
        Ok(kind)
    }

    fn largest_extra(&self, kind: Kind) -> u64 {
        if kind == Kind::BloomFilter {
            MAX_BLOOM_HASH_FUNCS
        } else {
            0
        }
    }

    fn check_hash(&self, kind: Kind) -> Result<(), Errno> {
        let has = |flag| self.flags & flag != 0;
        if kind.is_lru() && has(flags::NO_PREALLOC) {
            return Err(Errno::ENOTSUPP);
        }
        if has(flags::NUMA_NODE) && (kind.is_percpu() || has(flags::NO_COMMON_LRU)) {
            return Err(Errno::EINVAL);
        }
        if self.max_entries == 0 || self.key_size == 0 || self.value_size == 0 {
            return Err(Errno::EINVAL);
        }
        let element = u64::from(self.key_size) + u64::from(self.value_size);
        let percpu = kind.is_percpu() && self.value_size > PCPU_MIN_UNIT_SIZE;
        // The kernel's table of 16-byte buckets, a power of two of them, must stay below 4 GiB.
        if element >= MAX_HASH_ELEMENT || percpu || self.max_entries > 1 << 27 {
            return Err(Errno::E2BIG);
        }
        Ok(())
    }

    fn check_array(&self, kind: Kind) -> Result<(), Errno> {
        let descriptors = kind == Kind::PerfEventArray || kind.holds_objects();
        if self.max_entries == 0
            || self.key_size != 4
            || self.value_size == 0
            || (descriptors && self.value_size != 4)
        {
            return Err(Errno::EINVAL);
        }
        let percpu = kind == Kind::PercpuArray && self.value_size > PCPU_MIN_UNIT_SIZE;
        if self.value_size > i32::MAX as u32 || percpu {
            return Err(Errno::E2BIG);
        }
        Ok(())
    }

    fn check_stack(&self) -> Result<(), Errno> {
        let frames = self.value_size / 8;
        if self.max_entries == 0
            || self.key_size != 4
            || !self.value_size.is_multiple_of(8)
            || frames == 0
            || frames > PERF_MAX_STACK_DEPTH
        {
            return Err(Errno::EINVAL);
        }
        // The kernel rounds the number of slots up to a power of two of 32 bits.
        if self.max_entries > 1 << 31 {
            return Err(Errno::E2BIG);
        }
        Ok(())
    }

    fn check_ring(&self) -> Result<(), Errno> {
        let whole_pages = u64::from(self.max_entries).is_multiple_of(PAGE);
        if self.key_size != 0
            || self.value_size != 0
            || !self.max_entries.is_power_of_two()
            || !whole_pages
        {
            return Err(Errno::EINVAL);
        }
        Ok(())
    }

    /// Checks queues, stacks and Bloom filters: values without keys.
    fn check_queue(&self) -> Result<(), Errno> {
        if self.max_entries == 0 || self.key_size != 0 || self.value_size == 0 {
            return Err(Errno::EINVAL);
        }
        if self.value_size > KMALLOC_MAX_SIZE {
            return Err(Errno::E2BIG);
        }
        Ok(())
    }

    fn check_trie(&self) -> Result<(), Errno> {
        if self.max_entries == 0
            || self.flags & flags::NO_PREALLOC == 0
            || !(LPM_KEY_SIZE_MIN..=LPM_KEY_SIZE_MAX).contains(&self.key_size)
            || self.value_size == 0
            || self.value_size > LPM_VAL_SIZE_MAX
        {
            return Err(Errno::EINVAL);
        }
        Ok(())
    }

    fn check_storage(&self) -> Result<(), Errno> {
        if self.max_entries != 0
            || self.flags & flags::NO_PREALLOC == 0
            || self.key_size != 4
            || self.value_size == 0
        {
            return Err(Errno::EINVAL);
        }
        if self.value_size > BPF_LOCAL_STORAGE_MAX_VALUE_SIZE {
            return Err(Errno::E2BIG);
        }
        Ok(())
    }
}

fn allowed_flags(kind: Kind) -> u32 {
    let user = flags::RDONLY | flags::WRONLY;
    let access = user | flags::RDONLY_PROG | flags::WRONLY_PROG;
    match kind {
        Kind::Hash => flags::NO_PREALLOC | flags::NUMA_NODE | flags::ZERO_SEED | access,
        Kind::PercpuHash => flags::NO_PREALLOC | flags::ZERO_SEED | access,
        Kind::LruHash | Kind::LruPercpuHash => {
            let lru = flags::NO_PREALLOC | flags::NO_COMMON_LRU;
            lru | flags::NUMA_NODE | flags::ZERO_SEED | access
        }
        Kind::Array => flags::NUMA_NODE | flags::MMAPABLE | flags::INNER_MAP | access,
        Kind::PercpuArray => access,
        Kind::PerfEventArray => flags::NUMA_NODE | flags::PRESERVE_ELEMS | user,
        Kind::CgroupArray | Kind::StackTrace => flags::NUMA_NODE | user,
        Kind::ProgArray | Kind::ArrayOfMaps => flags::NUMA_NODE | user,
        Kind::HashOfMaps => flags::NO_PREALLOC | flags::NUMA_NODE | flags::ZERO_SEED | access,
        Kind::Ringbuf | Kind::UserRingbuf => flags::NUMA_NODE,
        Kind::Queue | Kind::Stack => flags::NUMA_NODE | access,
        Kind::BloomFilter => flags::NUMA_NODE | flags::ZERO_SEED | access,
        Kind::LpmTrie => flags::NO_PREALLOC | flags::NUMA_NODE | access,
        Kind::TaskStorage => flags::NO_PREALLOC | flags::CLONE,
    }
}
