//! Finds changes in the code of a process.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use crate::process::{Mapping, mappings};

const INT3: u8 = 0xcc;
/// The instruction that the kernel turns into a call when it probes it.
const NOP5: [u8; 5] = [0x0f, 0x1f, 0x44, 0, 0];
const CALL: u8 = 0xe8;
/// A kernel uprobe may come or go between two looks.
const LOOKS: usize = 4;

/// Returns every place where the executable memory of a process differs from the files that it was
/// mapped from, as "path+offset".
///
/// Changes by kernel uprobes for all processes do not count. The result is empty for a process that
/// is not patched.
pub fn altered_text(pid: u32) -> Vec<String> {
    let mut altered = altered_now(pid);
    for _ in 1..LOOKS {
        if altered.is_empty() {
            break;
        }
        let again = altered_now(pid);
        altered.retain(|place| again.contains(place));
    }
    altered
}

fn altered_now(pid: u32) -> Vec<String> {
    let memory = File::open(format!("/proc/{pid}/mem")).expect("cannot open the target's memory");
    let mappings = mappings(pid);
    let is_kernels = |address: u64| {
        mappings
            .iter()
            .any(|one| one.path.starts_with("[uprobes") && one.has(address))
    };
    let mut altered = Vec::new();
    for mapping in &mappings {
        if !mapping.flags.contains('x') || !mapping.path.starts_with('/') {
            continue;
        }
        let Ok(file) = File::open(&mapping.path) else {
            continue; // deleted or not ours to read: nothing to compare with
        };
        let length =
            usize::try_from(mapping.end - mapping.start).expect("a mapping fits in memory");
        let (mut now, mut original) = (vec![0; length], vec![0; length]);
        memory
            .read_exact_at(&mut now, mapping.start)
            .expect("cannot read the target's text");
        let _ = file
            .read_at(&mut original, mapping.offset)
            .expect("cannot read a mapped file");
        let differs = |at: &usize| now[*at] != original[*at];
        if !(0..length).any(|at| differs(&at)) {
            continue;
        }
        let probed = probed(&file, mapping, &original);
        let is_by_kernel = |at: &usize| {
            let call = |start: usize| is_call(&now, start, mapping, &is_kernels);
            let called = |start: &usize| original[*start..].starts_with(&NOP5) && call(*start);
            let covering = probed
                .iter()
                .filter(|start| (**start..**start + NOP5.len()).contains(at));
            probed.contains(at) && now[*at] == INT3 || covering.into_iter().any(called)
        };
        let mut differing = (0..length).filter(differs);
        let first = differing.find(|at| !is_by_kernel(at));
        altered
            .extend(first.map(|at| format!("{}+{:#x}", mapping.path, mapping.offset + at as u64)));
    }
    altered
}

/// Returns the places of kernel uprobes. The kernel stores them in every mapping of a file that
/// might run, including one of our own that nothing else changes.
fn probed(file: &File, mapping: &Mapping, original: &[u8]) -> Vec<usize> {
    let (len, none) = (original.len(), std::ptr::null_mut());
    let offset = i64::try_from(mapping.offset).expect("an offset fits");
    // SAFETY: this is a new mapping of a file at an address that the kernel chooses.
    let seen = unsafe {
        libc::mmap(
            none,
            len,
            libc::PROT_READ,
            libc::MAP_PRIVATE,
            file.as_raw_fd(),
            offset,
        )
    };
    assert_ne!(
        seen,
        libc::MAP_FAILED,
        "{}: {}",
        mapping.path,
        io::Error::last_os_error()
    );
    let mut probed = Vec::new();
    // Memory behind the last page of the file cannot be read.
    let in_file = file
        .metadata()
        .map_or(0, |facts| facts.len().saturating_sub(mapping.offset));
    for (at, byte) in original.iter().enumerate().take(in_file as usize) {
        // SAFETY: the address is within the mapping, and within the file, which nothing shortens;
        // the kernel may change it meanwhile.
        let seen = unsafe { seen.cast::<u8>().add(at).read_volatile() };
        if seen != *byte && seen == INT3 {
            probed.push(at);
        }
    }
    // SAFETY: the mapping was made above, and nothing refers to it.
    unsafe { libc::munmap(seen, len) };
    probed
}

/// Returns whether there is a call to the place to which the kernel sends its uprobes.
fn is_call(now: &[u8], at: usize, mapping: &Mapping, is_kernels: &dyn Fn(u64) -> bool) -> bool {
    let Some([CALL, distance @ ..]) = now.get(at..at + NOP5.len()) else {
        return false;
    };
    let distance = i32::from_le_bytes(distance.try_into().expect("four bytes"));
    let behind = mapping.start + (at + NOP5.len()) as u64;
    is_kernels(behind.wrapping_add_signed(distance.into()))
}
