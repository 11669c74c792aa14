//! Build ids of executables. They tell whether a file of the guest's is the one that the host's
//! tool has looked at.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::refusal::Refusal;
use beeline_uapi::fields::{u32_at, u64_at};

/// The most bytes of an ELF file's headers and notes that are read; no file has more.
const HEADERS: usize = 128;
const NOTES: usize = 64 << 10;
const HEADER_BYTES: usize = 56;
const PT_NOTE: u32 = 4;
const NT_GNU_BUILD_ID: u32 = 3;

/// Compares the id that the host has of its file with the guest's file's. If the host has none
/// there is nothing to compare.
///
/// # Errors
///
/// `ENOEXEC` if they differ.
pub fn compare(path: &str, host: &[u8]) -> Result<(), Refusal> {
    if host.is_empty() {
        return Ok(());
    }
    let why = match of(Path::new(path)) {
        Some(guest) if guest == host => return Ok(()),
        Some(guest) => format!(
            "{path} is another file in the guest than on the host (build id {}, here {}): its functions are elsewhere; give the \
             tool a copy of the guest's",
            digits(host),
            digits(&guest)
        ),
        None => format!(
            "{path} has a build id on the host ({}) and none in the guest: it is another file",
            digits(host)
        ),
    };
    Err(Refusal::new(libc::ENOEXEC, why))
}

fn digits(id: &[u8]) -> String {
    let most = id.len().min(32);
    id[..most]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Returns the build id in a 64-bit ELF file's notes.
pub fn of(path: &Path) -> Option<Vec<u8>> {
    let file = File::open(path).ok()?;
    let head = read(&file, 0, 64)?;
    if !head.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let table = u64_at(&head, 32);
    let count = u32_at(&head, 56) as u16 as usize;
    let headers = read(&file, table, count.min(HEADERS) * HEADER_BYTES)?;
    let mut notes = headers.chunks_exact(HEADER_BYTES);
    notes.find_map(|header| {
        if u32_at(header, 0) != PT_NOTE {
            return None;
        }
        let len = u64_at(header, 32).min(NOTES as u64) as usize;
        build_id(&read(&file, u64_at(header, 8), len)?)
    })
}

fn read(file: &File, at: u64, len: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, at).ok()?;
    Some(bytes)
}

fn build_id(mut notes: &[u8]) -> Option<Vec<u8>> {
    while notes.len() >= 12 {
        let [name, len, kind] = [0, 4, 8].map(|at| u32_at(notes, at));
        let (name, len) = (name as usize, len as usize);
        let start = name.checked_next_multiple_of(4)?.checked_add(12)?;
        let content = notes.get(start..)?.get(..len)?;
        if kind == NT_GNU_BUILD_ID && notes[12..start].starts_with(b"GNU\0") {
            return Some(content.to_vec());
        }
        notes = notes.get(start + len.checked_next_multiple_of(4)?..)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_files_id_is_found_and_compared() {
        let me = std::env::current_exe().unwrap();
        // The linker made it, or there is none.
        let id = of(Path::new("/bin/bash")).unwrap();
        assert_eq!(id.len(), 20);
        assert_eq!(compare("/bin/bash", &id), Ok(()));
        assert_eq!(compare("/bin/bash", &[]), Ok(()));
        let refused = compare("/bin/bash", &[1; 20]).unwrap_err();
        assert_eq!(refused.errno, libc::ENOEXEC);
        assert_ne!(of(&me), Some(id));
    }

    #[test]
    fn notes_that_are_cut_off_are_none() {
        let mut notes = Vec::new();
        for number in [4_u32, 20, NT_GNU_BUILD_ID] {
            notes.extend(number.to_le_bytes());
        }
        notes.extend(b"GNU\0");
        notes.extend([9; 20]);
        assert_eq!(build_id(&notes), Some(vec![9; 20]));
        for len in 0..notes.len() {
            assert_eq!(build_id(&notes[..len]), None);
        }
        let far = [0xff; 64];
        assert_eq!(build_id(&far), None);
    }
}
