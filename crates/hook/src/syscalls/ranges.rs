//! Ranges of addresses that can be asked quickly if they hold one.

/// Ranges of addresses.
pub(crate) struct Ranges {
    /// First and last address; ascending, and apart.
    ranges: Vec<(u64, u64)>,
    /// A bit for each [`GRANULE`] that contains one, by the low bits of its number.
    granules: Vec<u64>,
}

const GRANULE: u32 = 6;
/// The number of granules that can be distinguished: 64 MB of text.
const GRANULES: u64 = 1 << 20;

impl Ranges {
    /// Merges ranges, each given by its first and last address, in any order.
    pub fn of(mut all: Vec<(u64, u64)>) -> Self {
        all.sort_unstable();
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for (low, high) in all {
            match ranges.last_mut() {
                Some(before) if low <= before.1 => before.1 = before.1.max(high),
                _ => ranges.push((low, high)),
            }
        }
        let mut granules = vec![0; (GRANULES / 64) as usize];
        for (low, high) in &ranges {
            for granule in low >> GRANULE..=high >> GRANULE {
                granules[(granule % GRANULES / 64) as usize] |= 1 << (granule % 64);
            }
        }
        Self { ranges, granules }
    }

    /// Returns the first and the last address of each, ascending.
    pub fn bounds(&self) -> &[(u64, u64)] {
        &self.ranges
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// True if one of them holds the address.
    #[inline]
    pub fn hold(&self, address: u64) -> bool {
        let granule = address >> GRANULE;
        self.granules[(granule % GRANULES / 64) as usize] >> (granule % 64) & 1 != 0 && {
            let next = self.ranges.partition_point(|(_, high)| *high < address);
            self.ranges
                .get(next)
                .is_some_and(|(low, _)| *low <= address)
        }
    }
}
