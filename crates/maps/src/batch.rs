//! Many elements at once: the operations behind `BPF_MAP_LOOKUP_BATCH` and
//! `BPF_MAP_LOOKUP_AND_DELETE_BATCH`.

/// The result of one call of [`Map::read_batch`](crate::Map::read_batch).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batch {
    /// Elements that were read.
    pub count: u32,
    /// The cursor to go on from; `None` at the end of the map.
    pub next: Option<u32>,
}

/// Room for elements: keys one after the other, and values in the same order.
pub(crate) struct Room<'a> {
    keys: &'a mut [u8],
    values: &'a mut [u8],
    key_size: usize,
    value_len: usize,
    /// Elements that are there already.
    pub(crate) count: u32,
}

impl<'a> Room<'a> {
    pub(crate) fn new(
        keys: &'a mut [u8],
        values: &'a mut [u8],
        key_size: usize,
        value_len: usize,
    ) -> Self {
        Self {
            keys,
            values,
            key_size,
            value_len,
            count: 0,
        }
    }

    /// Returns the places for the next element, or `None` if there is no room for it. It counts
    /// once [`Room::count`] does.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<(&mut [u8], &mut [u8])> {
        let at = self.count as usize;
        let key = at.checked_mul(self.key_size)?;
        let value = at.checked_mul(self.value_len)?;
        let keys = self.keys.get_mut(key..key.checked_add(self.key_size)?)?;
        let values = self
            .values
            .get_mut(value..value.checked_add(self.value_len)?)?;
        Some((keys, values))
    }
}
