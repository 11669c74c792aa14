//! Look-ups for one kind of hash and one size of keys, for compilers that know both.

use core::sync::atomic::Ordering::Acquire;

use super::{HashTable, NODE_KEY, chains::Node, hash_words};

impl HashTable<'_> {
    /// A program's look-up with keys of `KEY` bytes: a per-CPU one or not, an LRU one or not.
    ///
    /// Most elements are the first of their bucket, and are found without a frame; the rest is left
    /// to `HashTable::look_on`.
    ///
    /// # Safety
    ///
    /// The map is of that kind, and `key` is readable for `KEY` bytes.
    #[inline(always)]
    pub(crate) unsafe fn lookup_sized<const KEY: usize, const PER_CPU: bool, const LRU: bool>(
        self,
        key: *const u8,
        cpu: u32,
    ) -> *mut u8 {
        // SAFETY: the caller promises that the map is of that kind, and `key` is readable for `KEY`
        // bytes.
        let hash = unsafe { hash_words(key, KEY) };
        let bucket = self.chains.bucket(hash);
        let link = bucket.head.load(Acquire);
        match self.chains.node(link) {
            // SAFETY: the caller promises that the map is of that kind, and `key` is readable for
            // `KEY` bytes.
            Some(node) if unsafe { node.has_key(key, KEY) } => {
                self.used::<KEY, PER_CPU, LRU>(node, cpu)
            }
            None if link == 0 || link == bucket.end() => core::ptr::null_mut(),
            // SAFETY: the caller promises that the map is of that kind, and `key` is readable for
            // `KEY` bytes.
            _ => unsafe { self.look_on::<KEY, PER_CPU, LRU>(key, cpu) },
        }
    }

    /// Searches the whole bucket.
    #[cold]
    #[inline(never)]
    unsafe fn look_on<const KEY: usize, const PER_CPU: bool, const LRU: bool>(
        self,
        key: *const u8,
        cpu: u32,
    ) -> *mut u8 {
        // SAFETY: the caller of `lookup_sized` promises that `key` is readable for `KEY` bytes.
        match unsafe { self.find_node_sized(key, KEY) } {
            Some(node) => self.used::<KEY, PER_CPU, LRU>(node, cpu),
            None => core::ptr::null_mut(),
        }
    }

    /// Returns a node's value.
    #[inline(always)]
    fn used<const KEY: usize, const PER_CPU: bool, const LRU: bool>(
        self,
        node: Node<'_>,
        cpu: u32,
    ) -> *mut u8 {
        if LRU {
            node.touch();
        }
        if PER_CPU {
            return self.chains.memory.value(node.index, cpu);
        }
        // The value is behind the key, as the layout has it.
        let key_end = const { NODE_KEY as usize + KEY.next_multiple_of(8) };
        node.at.wrapping_add(key_end)
    }
}
