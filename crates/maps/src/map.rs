//! The handle on a map. Its operations are those of programs and those of the system calls, in the
//! modules below, and the repair after a death.

mod program;
mod syscall;

use core::sync::atomic::Ordering::{Acquire, Release};

use beeline_uapi::Errno;

use crate::{
    Caller, Fields, Kind, Layout, Spec, hash, memory::Memory, queue::Queue, ringbuf::Ring,
    stack::StackTraces, trie::Trie, user_ringbuf::UserRing, values::Values,
};

/// A map as one process has mapped it.
///
/// It is plain data without pointers to anything but the map's own memory, so a handle for another
/// address space can be made here and copied there ([`Map::as_bytes`]).
///
/// Operations that take pointers are those that programs call through helpers. Operations that take
/// slices stand behind the system calls, and return the errors of those. Each leaves the work to
/// the implementation of the map's type. What only one type can do is an operation of that type:
/// [`ringbuf::Ring`], [`user_ringbuf::UserRing`], [`StackTraces`], [`TaskStorage`].
///
/// [`ringbuf::Ring`]: crate::ringbuf::Ring
/// [`user_ringbuf::UserRing`]: crate::user_ringbuf::UserRing
/// [`TaskStorage`]: crate::TaskStorage
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct Map {
    pub(crate) memory: Memory,
}

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
        // SAFETY: the caller promises that the file stays mapped at `base`, shared, readable and
        // writable, for `Layout::len` bytes, as long as a handle is used. `Memory::attach` asks for
        // this, and only stores the address.
        let memory = unsafe { Memory::attach(spec, cpus, base)? };
        Ok(Self { memory })
    }

    /// The same map in an address space where it is mapped at `base`.
    ///
    /// # Safety
    ///
    /// As for [`Map::attach`].
    pub unsafe fn rebased(&self, base: *mut u8) -> Self {
        let mut map = *self;
        map.memory.base = base;
        map
    }

    /// Makes this a handle for the place where the map is mapped at `base`.
    ///
    /// # Safety
    ///
    /// As for [`Map::attach`].
    pub unsafe fn rebase(&mut self, base: *mut u8) {
        self.memory.base = base;
    }

    /// Returns the handle as bytes, to be copied to an 8-aligned place in another process.
    pub fn as_bytes(&self) -> &[u8; size_of::<Map>()] {
        // SAFETY: a `Map` is a `Memory`, which is plain data. The assertions beside its definition
        // check that it has no padding, so every byte is initialized.
        unsafe { &*core::ptr::from_ref(self).cast() }
    }

    /// Returns the map's description.
    pub fn spec(&self) -> &Spec {
        &self.memory.spec
    }

    /// Returns the positions of its parts.
    pub fn layout(&self) -> &Layout {
        &self.memory.layout
    }

    /// Returns the address where it is mapped.
    pub fn base(&self) -> *mut u8 {
        self.memory.base
    }

    /// The same map, with special fields in its values.
    pub fn with_fields(mut self, fields: Fields) -> Self {
        self.memory.fields = fields;
        self
    }

    /// The same map, whose stacks have ids from `first` on if it is a stack map. So several maps can
    /// have different ids for what the tool takes to be one.
    pub fn with_first_id(mut self, first: u32) -> Self {
        self.memory.first_id = first;
        self
    }

    /// Returns the special fields of its values.
    pub fn fields(&self) -> &Fields {
        &self.memory.fields
    }

    /// Returns the size in bytes of a value as the system calls see it: `value_size`, or for
    /// per-CPU maps `cpus * round_up(value_size, 8)`.
    pub fn value_len(&self) -> usize {
        Values::new(&self.memory).element_len()
    }

    /// True if the elements of a hash are kept elsewhere: operations here find none.
    #[inline]
    pub fn is_elsewhere(&self) -> bool {
        self.memory.kind() == Some(Kind::Hash) && self.hash_is_elsewhere()
    }

    /// [`Map::is_elsewhere`] for a map that is known to be a hash.
    #[inline(always)]
    pub fn hash_is_elsewhere(&self) -> bool {
        hash::elsewhere(&self.memory).load(Acquire) != 0
    }

    /// Tells all that have a hash's memory that its elements are kept elsewhere from now on. They have
    /// to be moved there before, and no program may be working on it.
    pub fn note_elsewhere(&self) {
        if self.memory.kind() == Some(Kind::Hash) {
            hash::elsewhere(&self.memory).store(1, Release);
        }
    }

    /// Frees everything that dead processes held: those with a tag for which `dead` returns true.
    ///
    /// Locks are released, nodes in hand go back, and ring buffer records in the making are
    /// discarded. Returns whether a ring buffer's consumer must be woken for that.
    ///
    /// Call it after a process has died or has replaced itself by `exec`; it may be called any
    /// number of times. For a hash, the time does not depend on the size. `dead` may also return
    /// true for every unknown tag: that frees overwritten locks, too, once a thread has waited for
    /// them.
    ///
    /// The CPU slots of the dead may be given to others only after this was successful for all
    /// maps.
    ///
    /// # Errors
    ///
    /// `EBUSY` if a process that is not `dead` does not let go of a lock. Call it again later.
    pub fn release(&self, dead: &dyn Fn(u32) -> bool, caller: &Caller) -> Result<bool, Errno> {
        let memory = &self.memory;
        match memory.kind() {
            Some(kind) if kind.is_hash() => hash::Repair::new(memory, dead, caller).run()?,
            Some(Kind::Array) => Values::new(memory).release_locks(memory.spec.max_entries, dead),
            Some(Kind::StackTrace) => StackTraces::new(memory).release(dead),
            Some(Kind::Ringbuf) => return Ring::new(memory).release(dead, caller),
            Some(Kind::LpmTrie) => Trie::new(memory).release(dead, caller),
            Some(Kind::Queue | Kind::Stack) => Queue::new(memory).release(dead),
            Some(Kind::UserRingbuf) => UserRing::new(memory).release(dead),
            _ => {}
        }
        Ok(false)
    }

    /// True if a caller has waited for a lock of one that had died before, and that
    /// [`Map::release`] has not found: callers without a CPU slot can hide each other's. It has to be
    /// called again.
    pub fn is_left_locked(&self, dead: &dyn Fn(u32) -> bool, caller: &Caller) -> bool {
        let memory = &self.memory;
        let is_hash = memory.kind().is_some_and(Kind::is_hash);
        is_hash && hash::Repair::new(memory, dead, caller).is_waited_for()
    }

    /// Calls [`Map::release`] for one process.
    ///
    /// # Errors
    ///
    /// As for [`Map::release`].
    pub fn release_owner(&self, owner: u32, caller: &Caller) -> Result<bool, Errno> {
        self.release(&|tag| tag == owner, caller)
    }
}
