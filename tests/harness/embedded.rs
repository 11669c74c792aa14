//! Object files inside other files: libbpf's skeletons keep them as plain data.

/// The bytes of an ELF header.
const HEADER: usize = 64;

/// Returns the eBPF object files inside a file.
pub fn embedded_objects(data: &[u8]) -> impl Iterator<Item = &[u8]> {
    let starts = (0..data.len().saturating_sub(HEADER)).filter(|&at| {
        let header = &data[at..at + HEADER];
        // ELF of 64 bits, little-endian; relocatable, for eBPF.
        header.starts_with(b"\x7fELF\x02\x01\x01") && header[16..20] == [1, 0, 247, 0]
    });
    starts.filter_map(|start| {
        let number = |at: usize, len: usize| {
            let mut bytes = [0; 8];
            bytes[..len].copy_from_slice(&data[start + at..][..len]);
            u64::from_le_bytes(bytes) as usize
        };
        // The section headers come last.
        let end = number(40, 8) + number(58, 2) * number(60, 2);
        data.get(start..start.checked_add(end)?)
    })
}
