//! Functions of files that a guest and its host both have.
//!
//! A guest shows none of its programs' files. A function's place is looked up in the host's file of
//! the same path, and the guest refuses the probe if its own file is of another build.

use object::{Object as _, ObjectSegment as _, ObjectSymbol as _, ReadCache};

/// A place in a file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// Bytes from the file's start.
    pub(crate) offset: u64,
    /// The build id of the file here; empty if the offset is not from a file here.
    pub(crate) build_id: Vec<u8>,
}

/// Parses a number as C writes it.
pub(crate) fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Finds a function of a file, perhaps with `+OFFSET` behind it; or an offset in the file itself.
pub(crate) fn find(path: &str, function: &str) -> Result<Found, String> {
    if let Some(offset) = number(function) {
        return Ok(Found {
            offset,
            build_id: Vec::new(),
        });
    }
    let (name, behind) = function.split_once('+').unwrap_or((function, "0"));
    let behind = number(behind).ok_or_else(|| format!("{function}: behind + stands a number"))?;
    let hint = "give the offset in the guest's file, as in uprobe/PATH:0x1234";
    let missing = |why| format!("{path} is not on this host to look {name} up in ({why}); {hint}");
    // A pipe would be waited for.
    let kind = std::fs::metadata(path).map_err(|error| missing(error.to_string()))?;
    if !kind.is_file() {
        return Err(missing("it is no regular file".into()));
    }
    let file = std::fs::File::open(path).map_err(|error| missing(error.to_string()))?;
    // Programs may be large, and little of one is needed.
    let file = ReadCache::new(file);
    let elf = object::File::parse(&file).map_err(|error| format!("{path}: {error}"))?;
    let mut symbols = elf.symbols().chain(elf.dynamic_symbols());
    let address = symbols
        .find(|it| it.name() == Ok(name) && it.is_definition() && it.address() != 0)
        .map(|it| it.address())
        .ok_or_else(|| format!("{path} has no function {name}; {hint}"))?;
    let mut segments = elf.segments();
    let segment = segments.find(|it| (it.address()..it.address() + it.size()).contains(&address));
    let offset = segment.map(|it| address - it.address() + it.file_range().0);
    let build_id = elf.build_id().ok().flatten();
    Ok(Found {
        offset: offset.ok_or_else(|| format!("{path}: {name} is in none of its segments"))?
            + behind,
        build_id: build_id.unwrap_or_default().to_vec(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_found_in_files() {
        let path = std::env::current_exe().expect("this test");
        let path = path.to_str().expect("a path of text");
        let main = find(path, "main").expect("it has one");
        assert!(main.offset > 0);
        let behind = find(path, "main+0x4").expect("it has one");
        assert_eq!(behind.offset, main.offset + 4);
        let plain = Found {
            offset: 18,
            build_id: Vec::new(),
        };
        assert_eq!(find("/nonexistent", "0x12"), Ok(plain));
        let error = find("/nonexistent", "main").expect_err("there is no such file");
        assert!(error.contains("uprobe/PATH:0x1234"), "{error}");
        let error = find(path, "no_such_function").expect_err("it has none");
        assert!(error.contains("no function no_such_function"), "{error}");
        assert!(find(path, "main+x").is_err());
        let error = find("/dev/zero", "main").expect_err("it has no end");
        assert!(error.contains("no regular file"), "{error}");
    }
}
