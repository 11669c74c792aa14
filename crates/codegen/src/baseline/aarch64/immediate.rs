//! Constants of bitwise instructions: a run of ones, rotated, in an element of 2 to 64 bits,
//! repeated over the register.

/// Returns the 13 bits that name a constant (N, immr, imms); `None` if it has no such form. 0 and
/// all ones have none.
pub(crate) fn bit_mask(value: u64, wide: bool) -> Option<u32> {
    let value = if wide {
        value
    } else {
        let low = value & 0xffff_ffff;
        low << 32 | low
    };
    let bits = element_bits(value);
    let mask = u64::MAX >> (64 - bits);
    let element = value & mask;
    let ones = element.count_ones();
    if ones == 0 || ones == bits {
        return None;
    }
    // Rotated right so that the run begins at bit 0: by its place, or, if it wraps around, by the
    // end of the zeros.
    let start = if element & 1 == 0 {
        element.trailing_zeros()
    } else {
        let zeros = !element & mask;
        (zeros.ilog2() + 1) % bits
    };
    let rotated = (element >> start | element << ((bits - start) % bits)) & mask;
    if rotated != mask >> (bits - ones) {
        return None;
    }
    let rotation = (bits - start) % bits;
    // The ones above the length of the run tell the size of the element.
    let length = (!(bits * 2 - 1) & 0x3f) | (ones - 1);
    Some(u32::from(bits == 64) << 12 | rotation << 6 | length)
}

/// Returns the length of the shortest piece, a power of two, that gives the value by repetition.
fn element_bits(value: u64) -> u32 {
    let mut bits = 64;
    while bits > 2 && value.rotate_right(bits / 2) == value {
        bits /= 2;
    }
    bits
}
