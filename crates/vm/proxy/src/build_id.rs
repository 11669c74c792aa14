//! Build ids of executables. They tell whether a file of the guest's is the one that the host's
//! tool has looked at.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use object::read::elf::NoteIterator;
use object::{LittleEndian, elf, pod};

use crate::refusal::Refusal;

/// The most program headers, and the most bytes of notes, that are read; no file has more.
const HEADERS: usize = 128;
const NOTES: usize = 64 << 10;

type Header = elf::FileHeader64<LittleEndian>;
type ProgramHeader = elf::ProgramHeader64<LittleEndian>;

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
    let mut room = Vec::new();
    let head = read(&file, 0, size_of::<Header>(), &mut room)?;
    let (header, _) = pod::from_bytes::<Header>(head).ok()?;
    let ident = &header.e_ident;
    if ident.magic != elf::ELFMAG
        || ident.class != elf::ELFCLASS64
        || ident.data != elf::ELFDATA2LSB
    {
        return None;
    }
    let count = usize::from(header.e_phnum.get(LittleEndian)).min(HEADERS);
    let table = header.e_phoff.get(LittleEndian);
    let mut room = Vec::new();
    let table = read(&file, table, count * size_of::<ProgramHeader>(), &mut room)?;
    let (headers, _) = pod::slice_from_bytes::<ProgramHeader>(table, count).ok()?;
    headers.iter().find_map(|header| {
        if header.p_type.get(LittleEndian) != elf::PT_NOTE {
            return None;
        }
        let len = header.p_filesz.get(LittleEndian).min(NOTES as u64) as usize;
        let start = header.p_offset.get(LittleEndian);
        build_id(read(&file, start, len, &mut Vec::new())?)
    })
}

/// Reads a part of a file into room that is aligned for any structure.
fn read<'a>(file: &File, at: u64, len: usize, room: &'a mut Vec<u64>) -> Option<&'a [u8]> {
    room.resize(len.div_ceil(size_of::<u64>()), 0);
    let bytes = &mut pod::bytes_of_slice_mut(room)[..len];
    file.read_exact_at(bytes, at).ok()?;
    Some(bytes)
}

fn build_id(notes: &[u8]) -> Option<Vec<u8>> {
    // Notes of other alignments have other segments.
    let mut notes = NoteIterator::<Header>::new(LittleEndian, 4, notes).ok()?;
    while let Some(note) = notes.next().ok()? {
        if note.name() == elf::ELF_NOTE_GNU && note.n_type(LittleEndian) == elf::NT_GNU_BUILD_ID {
            return Some(note.desc().to_vec());
        }
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
        for number in [4_u32, 20, elf::NT_GNU_BUILD_ID.0] {
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
