//! The layout of a map in its file.

use beeline_uapi::Errno;
use beeline_uapi::linux::PAGE_SIZE;

use crate::{Kind, Spec};

/// Bytes of a page; every part that a tool maps by itself begins on one.
pub const PAGE: u64 = PAGE_SIZE;

/// The largest file that a map may have. Files are sparse, so this bounds address space rather than
/// memory.
const MAX_FILE: u64 = 1 << 36;
/// The most buckets. Beyond this chains grow, so that looking through all buckets stays affordable.
const MAX_BUCKETS: u32 = 1 << 22;
/// Free lists of a hash: one for each CPU up to this many.
const MAX_SHARDS: u32 = 32;
/// The most tasks that a task storage has room for. The kernel's has no limit. Memory is taken only
/// for existing ones.
const TASKS: u32 = 1 << 16;
/// The most bytes of a trie's nodes. Its creator may name any number of elements, as the kernel
/// takes memory for them one by one. An element that would not fit is `ENOMEM` on update.
const MAX_TRIE: u64 = 1 << 32;

/// The positions of the parts of a map in its file. All offsets and strides are bytes; parts that a
/// type lacks are 0.
///
/// | type | file |
/// | --- | --- |
/// | array; program array, cgroup array, array of maps | values |
/// | per-CPU array | values of CPU 0, values of CPU 1, ..., each on its own pages |
/// | hash, LRU hash; hash of maps, task storage | control area, buckets, nodes with values inside |
/// | per-CPU hash, per-CPU LRU hash | control area, buckets, nodes; values as in a per-CPU array |
/// | stack trace | table of slot states, instruction pointers of every slot |
/// | trie | control page, nodes (with key and value inside) |
/// | queue, stack | control page, values and one more |
/// | Bloom filter | bits |
/// | ring buffer, user ring buffer | consumer page, producer page, data twice, control page |
/// | perf event array | one page, unused |
///
/// Per-CPU values are on pages of their own so that CPUs share no cache line.
///
/// A ring buffer's data has room for a second copy, as tools map it. A record that begins before
/// the end of the first copy runs on into the second, so that both sides see it in one piece and
/// nothing needs to be mapped twice.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Bytes of the file; whole pages.
    pub len: u64,
    /// Offset of the first value; of the instruction pointers of a stack map; of a ring's data.
    pub values: u64,
    /// From a value to the next (for one CPU).
    pub stride: u64,
    /// From a value to that of the next CPU.
    pub cpu_stride: u64,
    /// Offset of the buckets of a hash, or of a stack map's slot states.
    pub table: u64,
    /// Offset of a hash's nodes.
    pub nodes: u64,
    /// From a node to the next.
    pub node_size: u64,
    /// Offset of the control area.
    pub control: u64,
    /// Buckets or slots, less one; bytes of a ring's data, less one; bits of a filter, less one.
    pub mask: u32,
    /// A hash's free lists, less one.
    pub shard_mask: u32,
    /// CPUs that per-CPU values are kept for.
    pub cpus: u32,
    /// The number of elements or nodes that there is room for.
    pub entries: u32,
}

impl Layout {
    /// Checks `spec` and lays the map out for `cpus` CPUs (the count of possible ones).
    ///
    /// # Errors
    ///
    /// Those of [`Spec::check`]; `EINVAL` for no CPUs; `ENOMEM` for a file larger than 64 GiB.
    pub fn new(spec: &Spec, cpus: u32) -> Result<Self, Errno> {
        let kind = spec.check()?;
        if cpus == 0 {
            return Err(Errno::EINVAL);
        }
        let plan = Self {
            cpus,
            entries: spec.max_entries,
            len: PAGE,
            ..Self::EMPTY
        };
        let plan = match kind {
            Kind::Array | Kind::PercpuArray => plan.array(spec, kind),
            Kind::Hash | Kind::PercpuHash | Kind::LruHash | Kind::LruPercpuHash => {
                plan.hash(spec, kind)
            }
            Kind::StackTrace => plan.stack(spec),
            Kind::Ringbuf | Kind::UserRingbuf => plan.ring(spec),
            Kind::PerfEventArray => Some(plan),
            Kind::ProgArray | Kind::CgroupArray | Kind::ArrayOfMaps => plan.array(spec, kind),
            Kind::HashOfMaps => plan.hash(spec, kind),
            Kind::TaskStorage => {
                let entries = TASKS;
                Self { entries, ..plan }.hash(spec, kind)
            }
            Kind::LpmTrie => plan.trie(spec),
            Kind::Queue | Kind::Stack => plan.queue(spec),
            Kind::BloomFilter => plan.bloom(spec),
        };
        plan.filter(|plan| plan.len <= MAX_FILE)
            .ok_or(Errno::ENOMEM)
    }

    /// Returns the number of buckets, of a hash.
    pub fn buckets(&self) -> u32 {
        self.mask.saturating_add(1)
    }

    const EMPTY: Self = Self {
        len: 0,
        values: 0,
        stride: 0,
        cpu_stride: 0,
        table: 0,
        nodes: 0,
        node_size: 0,
        control: 0,
        mask: 0,
        shard_mask: 0,
        cpus: 0,
        entries: 0,
    };

    fn array(mut self, spec: &Spec, kind: Kind) -> Option<Self> {
        self.place_values(0, spec, kind == Kind::PercpuArray)?;
        Some(self)
    }

    fn hash(mut self, spec: &Spec, kind: Kind) -> Option<Self> {
        // Two buckets for each element, so that most chains have at most one node.
        let buckets = self
            .entries
            .checked_next_power_of_two()?
            .saturating_mul(2)
            .min(MAX_BUCKETS);
        self.mask = buckets - 1;
        self.shard_mask = self.cpus.checked_next_power_of_two()?.min(MAX_SHARDS) - 1;
        self.table = round_up(crate::hash::control::len(self.cpus), PAGE)?;
        self.nodes = round_up(self.table + u64::from(buckets) * 8, 64)?;
        let percpu = kind.is_percpu();
        let key_end = crate::hash::NODE_KEY + round_up(spec.key_size.into(), 8)?;
        let value = if percpu {
            0
        } else {
            round_up(spec.value_size.into(), 8)?
        };
        self.node_size = key_end + value;
        let nodes_end = self
            .nodes
            .checked_add(self.node_size.checked_mul(self.entries.into())?)?;
        if percpu {
            self.place_values(nodes_end, spec, true)?;
        } else {
            self.values = self.nodes + key_end;
            self.stride = self.node_size;
            self.len = round_up(nodes_end, PAGE)?;
        }
        Some(self)
    }

    fn stack(mut self, spec: &Spec) -> Option<Self> {
        let slots = spec.max_entries.checked_next_power_of_two()?;
        self.mask = slots - 1;
        self.values = round_up(u64::from(slots) * crate::stack::SLOT, PAGE)?;
        self.stride = spec.value_size.into();
        let end = self
            .values
            .checked_add(self.stride.checked_mul(slots.into())?)?;
        self.len = round_up(end, PAGE)?;
        Some(self)
    }

    /// Intermediate nodes have two children each, so there is at least one less than there are
    /// elements.
    fn trie(mut self, spec: &Spec) -> Option<Self> {
        let key_end = crate::trie::NODE_DATA + round_up(spec.key_size.checked_sub(4)?.into(), 8)?;
        self.nodes = PAGE;
        self.node_size = key_end + round_up(spec.value_size.into(), 8)?;
        self.values = self.nodes + key_end;
        self.stride = self.node_size;
        let nodes = (2 * u64::from(spec.max_entries)).wrapping_sub(1);
        let nodes = nodes.min(MAX_TRIE / self.node_size);
        self.entries = u32::try_from(nodes).ok()?;
        self.len = round_up(self.nodes + self.node_size * nodes, PAGE)?;
        Some(self)
    }

    /// One value more than there are elements: a value that is written there does not show until it
    /// is published.
    fn queue(mut self, spec: &Spec) -> Option<Self> {
        self.values = PAGE;
        self.stride = round_up(spec.value_size.into(), 8)?;
        let values = self.stride.checked_mul(u64::from(spec.max_entries) + 1)?;
        self.len = round_up(self.values.checked_add(values)?, PAGE)?;
        Some(self)
    }

    fn bloom(mut self, spec: &Spec) -> Option<Self> {
        self.mask = u32::try_from(crate::bloom::bits(spec) - 1).ok()?;
        self.len = round_up((u64::from(self.mask) + 1) / 8, PAGE)?;
        Some(self)
    }

    fn ring(mut self, spec: &Spec) -> Option<Self> {
        self.mask = spec.max_entries.checked_sub(1)?;
        self.values = 2 * PAGE;
        self.control = self.values + 2 * u64::from(spec.max_entries);
        self.len = self.control + PAGE;
        Some(self)
    }

    /// Lays out `max_entries` values, once or for every CPU, from `start` to the end of the file.
    fn place_values(&mut self, start: u64, spec: &Spec, percpu: bool) -> Option<()> {
        self.values = round_up(start, PAGE)?;
        self.stride = round_up(spec.value_size.into(), 8)?;
        let one_cpu = round_up(self.stride.checked_mul(spec.max_entries.into())?, PAGE)?;
        self.cpu_stride = if percpu { one_cpu } else { 0 };
        let copies = if percpu { self.cpus } else { 1 };
        self.len = self
            .values
            .checked_add(one_cpu.checked_mul(copies.into())?)?;
        Some(())
    }
}

/// Returns `n` rounded up to a multiple of `to`, a power of two.
pub(crate) fn round_up(n: u64, to: u64) -> Option<u64> {
    Some(n.checked_add(to - 1)? & !(to - 1))
}
