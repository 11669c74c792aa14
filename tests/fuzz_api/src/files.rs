//! Files with code: ahead-of-time files, and those of a store. Corrects their headers, as no fuzzer
//! finds a checksum.

use beeline_codegen::aot::Aot;
use beeline_codegen::container::{Kind, seal, unseal};
use beeline_codegen::{Code, Digest};

/// Any kind: a container's contents do not depend on it.
const KIND: Kind = *b"bee fuzz";

/// Reads an ahead-of-time file: the bytes as they are, and behind a valid header.
pub fn aot_file(data: &[u8]) {
    for bytes in [data.to_vec(), with_beginning(data, seeds_kind())] {
        if let Ok(aot) = Aot::from_bytes(&bytes) {
            let _ = aot.check(&Digest::of_bytes(b""));
            let again = Aot::from_bytes(&aot.to_bytes());
            assert_eq!(again.as_ref(), Ok(&aot));
        }
    }
}

/// Reads a file of a code store: its name and its code.
pub fn stored_code(data: &[u8]) {
    let _ = unseal::<(Digest, Code)>(KIND, data);
    let read = unseal::<(Digest, Code)>(KIND, &with_beginning(data, KIND));
    if let Ok(entry) = read {
        assert_eq!(
            unseal::<(Digest, Code)>(KIND, &seal(KIND, &entry)),
            Ok(entry)
        );
    }
}

/// The header of this version's files.
fn seeds_kind() -> Kind {
    let empty = crate::seeds::empty_aot_file();
    let mut kind = KIND;
    let (found, _) = empty.split_at(KIND.len());
    kind.copy_from_slice(found);
    kind
}

fn with_beginning(contents: &[u8], kind: Kind) -> Vec<u8> {
    let checksum = Digest::of_bytes(contents);
    [&kind[..], checksum.bytes(), contents].concat()
}
