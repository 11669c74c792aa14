//! The jumps that have certain bytes in their displacement.

use super::jump::{DISPLACEMENT_LEN, INT3, JUMP_LEN, behind_jump, jump_by, jump_displacement};

/// The most values of one displacement that are tried for one guard.
const MANY: usize = 1 << 12;

/// Returns a jump to `target`, to be placed at `site`, which reaches it.
pub(crate) fn guarded_jump(site: u64, target: u64) -> [u8; JUMP_LEN] {
    jump_by(jump_displacement(site, target))
}

/// Returns where a jump at `site` may lead so that its displacement has the fixed bytes: addresses
/// from `low` to `high`, ascending, at most some thousands of them.
pub(crate) fn guarded_targets(
    fixed: &[Option<u8>; DISPLACEMENT_LEN],
    site: u64,
    low: u64,
    high: u64,
) -> impl Iterator<Item = u64> + use<> {
    let end = behind_jump(site);
    let (value, mask) = pattern(fixed);
    // The fixed bytes come before the free ones, except for the last: a sum on the free bits
    // alone, with carries over the fixed ones.
    let wanted = move |displacement: u32| displacement & mask == value;
    let first = clamp(low.wrapping_sub(end));
    let last = clamp(high.wrapping_sub(end));
    let mut next = raise(first, value, mask);
    std::iter::from_fn(move || {
        let this = next?;
        if this > last || !wanted(this.cast_unsigned()) {
            return None;
        }
        next = this
            .checked_add(1)
            .and_then(|from| raise(from, value, mask));
        Some(end.wrapping_add_signed(this.into()))
    })
    .take(MANY)
}

/// Returns where else the jump at `site` to `target` leads while there are kernel uprobes inside
/// it, or when there have been: they change bytes at these offsets, where the file has these bytes.
pub(crate) fn disturbed_targets(inner: &[(usize, u8)], site: u64, target: u64) -> Vec<u64> {
    let end = behind_jump(site);
    let displacement = jump_displacement(site, target).cast_unsigned();
    let mut all = vec![displacement];
    for (offset, original) in inner {
        let shift = (offset - 1) * 8;
        let with = |byte: u8| move |one: &u32| one & !(0xff << shift) | u32::from(byte) << shift;
        let more: Vec<u32> = all
            .iter()
            .map(with(INT3))
            .chain(all.iter().map(with(*original)))
            .collect();
        all.extend(more);
        all.sort_unstable();
        all.dedup();
    }
    all.retain(|one| *one != displacement);
    let address = |one: u32| end.wrapping_add_signed(i64::from(one.cast_signed()));
    all.into_iter().map(address).collect()
}

/// Returns the fixed bits, and the mask of their places.
fn pattern(fixed: &[Option<u8>; DISPLACEMENT_LEN]) -> (u32, u32) {
    let byte = |fixed: &Option<u8>| fixed.map_or((0, 0), |byte| (byte, 0xff));
    let pairs = fixed.each_ref().map(byte);
    let value = u32::from_le_bytes(pairs.map(|(value, _)| value));
    let mask = u32::from_le_bytes(pairs.map(|(_, mask)| mask));
    (value, mask)
}

/// Returns the lowest number from `from` on with the bits `value` under `mask`.
fn raise(from: i32, value: u32, mask: u32) -> Option<i32> {
    // The order is that of unsigned numbers, which is that of signed ones with the sign bit
    // flipped.
    const SIGN: u32 = 1 << 31;
    let flip = |number: u32| number ^ SIGN;
    let from = flip(from.cast_unsigned());
    let (value, mask) = (if mask & SIGN != 0 { flip(value) } else { value }, mask);
    let mut best: Option<u32> = None;
    let mut consider = |candidate: u32| {
        if candidate >= from && best.is_none_or(|best| candidate < best) {
            best = Some(candidate);
        }
    };
    consider(from & !mask | value);
    // Otherwise some free bit above the place of the difference has to be raised, and all free ones
    // below it can be zero.
    for bit in (0..32).filter(|bit| mask >> bit & 1 == 0 && from >> bit & 1 == 0) {
        let above = from & !mask & !((2u64.pow(bit + 1) - 1) as u32);
        consider(above | value | 1 << bit);
    }
    best.map(|best| flip(best).cast_signed())
}

fn clamp(distance: u64) -> i32 {
    let distance = distance.cast_signed();
    i32::try_from(distance).unwrap_or(if distance < 0 { i32::MIN } else { i32::MAX })
}
