//! Parts of a machine's memory as the user describes them.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// `PATH[@ADDRESS[,LENGTH[,OFFSET]]]`: a file holds guest-physical memory from an address on, or a
/// part of the file does. Numbers are decimal, or hexadecimal behind `0x`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The path of the file.
    pub path: PathBuf,
    /// The address where the guest has it; `None` if none was given.
    pub address: Option<u64>,
    /// Bytes; `None` for everything that the file has.
    pub len: Option<u64>,
    /// The offset of the part in the file, in bytes.
    pub offset: u64,
}

impl FromStr for Part {
    type Err = String;

    /// Parses a part. Text behind an `@` without a number belongs to the path.
    fn from_str(text: &str) -> Result<Self, String> {
        let whole = |path: &str| Part {
            path: path.into(),
            address: None,
            len: None,
            offset: 0,
        };
        if text.is_empty() {
            return Err("a path is needed".into());
        }
        let Some((path, place)) = text.rsplit_once('@') else {
            return Ok(whole(text));
        };
        if path.is_empty() || !place.starts_with(|first: char| first.is_ascii_digit()) {
            return Ok(whole(text));
        }
        let numbers: Option<Vec<u64>> = place.split(',').map(number).collect();
        match numbers.as_deref() {
            Some(&[address, ref rest @ ..]) if rest.len() <= 2 => Ok(Part {
                address: Some(address),
                len: rest.first().copied(),
                offset: rest.get(1).copied().unwrap_or(0),
                ..whole(path)
            }),
            _ => Err(format!(
                "{place:?} is not ADDRESS, ADDRESS,LENGTH or ADDRESS,LENGTH,OFFSET"
            )),
        }
    }
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        if let Some(address) = self.address {
            write!(f, "@{address:#x}")?;
        }
        if let Some(len) = self.len {
            write!(f, ",{len:#x},{:#x}", self.offset)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_and_where_it_is() {
        let part = |path: &str, address, len, offset| Part {
            path: path.into(),
            address,
            len,
            offset,
        };
        for (text, expected) in [
            ("/dev/shm/m", part("/dev/shm/m", None, None, 0)),
            ("m@0", part("m", Some(0), None, 0)),
            (
                "/m@0x100000000,0x80000000,2147483648",
                part("/m", Some(1 << 32), Some(1 << 31), 1 << 31),
            ),
            ("a@b", part("a@b", None, None, 0)),
            ("a@1@2,3", part("a@1", Some(2), Some(3), 0)),
        ] {
            let read: Part = text.parse().unwrap();
            assert_eq!(read, expected);
            assert_eq!(read.to_string().parse(), Ok(read));
        }
        for bad in ["", "m@0,", "m@0,1,2,3", "m@0x", "m@1k"] {
            assert!(bad.parse::<Part>().is_err(), "{bad}");
        }
    }
}
