//! Files that hold code: a kind, a checksum, and a value. For any bytes, reading returns the value
//! that was written, or an error.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::digest::Digest;

/// The first bytes of a file: its kind, and the version of its layout.
pub type Kind = [u8; 8];

/// The reasons why a file's bytes are not valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Damaged {
    /// Another kind of file, or another version of the kind.
    #[error("it is no such file, or of another version")]
    Kind,
    /// The checksum does not match.
    #[error("it is damaged: its checksum is wrong")]
    Checksum,
    /// The checksum matches, but the content is no such value.
    #[error("it is damaged: its contents make no sense")]
    Contents,
}

/// Returns the bytes for a value.
pub fn seal(kind: Kind, value: &impl Serialize) -> Vec<u8> {
    // A vector has room for everything, and values sealed here always have lengths, so this cannot
    // fail.
    let contents = postcard::to_stdvec(value).unwrap_or_default();
    let checksum = Digest::of_bytes(&contents);
    [&kind[..], checksum.bytes(), &contents].concat()
}

/// Reads the value that [`seal`] has written.
///
/// # Errors
///
/// [`Damaged`], by the first check that fails.
pub fn unseal<T: DeserializeOwned>(kind: Kind, bytes: &[u8]) -> Result<T, Damaged> {
    let (found, rest) = bytes.split_at_checked(kind.len()).ok_or(Damaged::Kind)?;
    if found != kind {
        return Err(Damaged::Kind);
    }
    let (checksum, contents) = rest.split_at_checked(32).ok_or(Damaged::Checksum)?;
    if checksum != Digest::of_bytes(contents).bytes() {
        return Err(Damaged::Checksum);
    }
    match postcard::take_from_bytes(contents) {
        Ok((value, [])) => Ok(value),
        _ => Err(Damaged::Contents),
    }
}
