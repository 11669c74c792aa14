//! Fields of the kernel's structures in bytes of any length, in the machine's byte order.

/// Returns 32 bits at an offset; bytes that are not there count as 0.
pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(array_at(bytes, at))
}

/// Returns 64 bits at an offset; bytes that are not there count as 0.
pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(array_at(bytes, at))
}

fn array_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let rest = bytes.get(at..).unwrap_or_default();
    rest.first_chunk().copied().unwrap_or_else(|| {
        let mut array = [0; N];
        array[..rest.len()].copy_from_slice(rest);
        array
    })
}

/// Stores 32 bits at an offset, if they are inside.
pub fn put_u32(bytes: &mut [u8], at: usize, value: u32) {
    put(bytes, at, value.to_ne_bytes());
}

/// Stores 64 bits at an offset, if they are inside.
pub fn put_u64(bytes: &mut [u8], at: usize, value: u64) {
    put(bytes, at, value.to_ne_bytes());
}

fn put<const N: usize>(bytes: &mut [u8], at: usize, value: [u8; N]) {
    let field = bytes.get_mut(at..).and_then(<[u8]>::first_chunk_mut);
    if let Some(field) = field {
        *field = value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_bytes_are_zeros() {
        let bytes = [1, 2, 3, 4, 5, 6];
        assert_eq!(u32_at(&bytes, 1), u32::from_ne_bytes([2, 3, 4, 5]));
        assert_eq!(u32_at(&bytes, 4), u32::from_ne_bytes([5, 6, 0, 0]));
        assert_eq!(u32_at(&bytes, 6), 0);
        assert_eq!(u64_at(&bytes, usize::MAX), 0);
        assert_eq!(
            u64_at(&bytes, 0),
            u64::from_ne_bytes([1, 2, 3, 4, 5, 6, 0, 0])
        );
    }

    #[test]
    fn nothing_is_stored_in_part() {
        let mut bytes = [0; 6];
        put_u32(&mut bytes, 3, u32::MAX);
        put_u64(&mut bytes, 0, u64::MAX);
        put_u32(&mut bytes, usize::MAX, u32::MAX);
        assert_eq!(bytes, [0; 6]);
        put_u32(&mut bytes, 2, u32::from_ne_bytes([1, 2, 3, 4]));
        assert_eq!(bytes, [0, 0, 1, 2, 3, 4]);
    }
}
