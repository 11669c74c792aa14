//! Adding values, word by word.

use beeline_maps::Map;

/// The addends in the values of a map.
#[derive(Debug, Clone, Copy)]
pub(in crate::map) struct Addends<'a> {
    halves: &'a [bool],
    /// Bytes of a value.
    size: usize,
    /// Bytes from a CPU's value to the next one's.
    stride: usize,
}

impl<'a> Addends<'a> {
    pub(in crate::map) fn new(map: &Map, halves: &'a [bool]) -> Self {
        let size = map.spec().value_size as usize;
        let is_percpu = map.layout().cpu_stride != 0;
        let stride = if is_percpu {
            size.next_multiple_of(8)
        } else {
            size
        };
        Self {
            halves,
            size,
            stride,
        }
    }

    /// Adds an element's value to another, each CPU's to the same one's. Sums wrap, as those of
    /// programs do.
    pub(in crate::map) fn add(&self, sum: &mut [u8], value: &[u8]) {
        let copies = sum.chunks_mut(self.stride).zip(value.chunks(self.stride));
        for (sum, value) in copies {
            // Bytes behind the value are none of it.
            let size = self.size.min(sum.len());
            let words = sum[..size].chunks_mut(8).zip(value[..size].chunks(8));
            for (n, (sum, value)) in words.enumerate() {
                let is_two = self.halves.get(n).copied().unwrap_or(false);
                let width = if is_two { 4 } else { 8 };
                let addends = sum.chunks_mut(width).zip(value.chunks(width));
                addends.for_each(|(sum, value)| add(sum, value));
            }
        }
    }
}

/// Adds numbers of at most 8 bytes, least significant byte first: that is the order of all machines
/// that programs run on.
fn add(sum: &mut [u8], value: &[u8]) {
    let read = |bytes: &[u8]| {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(word)
    };
    let total = read(sum).wrapping_add(read(value)).to_le_bytes();
    sum.copy_from_slice(&total[..sum.len()]);
}
