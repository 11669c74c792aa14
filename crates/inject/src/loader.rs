//! The places where a program's dynamic loader says that the libraries are mapped.
//!
//! By an old agreement with debuggers a loader keeps a `struct r_debug` and calls an empty function
//! whenever the list of libraries has changed: `_dl_debug_state`, with glibc and musl alike.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use object::elf::FileHeader64;
use object::read::elf::{ElfFile64, FileHeader, ProgramHeader};
use object::{NativeEndian, Object, ObjectSymbol, ReadCache};

use crate::{Error, Process};

/// The place to wait for a program's libraries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rendezvous {
    /// An instruction that is run when the libraries may have been mapped.
    pub address: u64,
    /// The address of an `int` that is 0 exactly if they all have been mapped (`r_state`,
    /// `RT_CONSISTENT`), if that has to be checked.
    pub state: Option<u64>,
}

/// Finds the place for a process that has just run `execve`. `None` if the program has no loader:
/// everything is mapped already.
pub(crate) fn find(process: &Process) -> Result<Option<Rendezvous>, Error> {
    let bad = |what: &str, error: object::Error| {
        process.inspect_error(what, std::io::Error::other(error))
    };
    let auxv = Auxv(process.read_file("auxv")?);
    let program = ReadCache::new(process.program()?);
    let header = FileHeader64::<NativeEndian>::parse(&program)
        .map_err(|error| bad("parse the program", error))?;
    let Some(interpreter) =
        interpreter(header, &program).map_err(|error| bad("parse the program", error))?
    else {
        // The loader itself may be what was started, with the program as its argument.
        let base = auxv
            .get(libc::AT_ENTRY)
            .wrapping_sub(header.e_entry.get(NativeEndian));
        let elf = ElfFile64::<NativeEndian, _>::parse(&program)
            .map_err(|error| bad("parse the program", error))?;
        return Ok(debug_state(elf.dynamic_symbols(), base));
    };
    let loader = ReadCache::new(process.open_in_root(&interpreter)?);
    let elf = ElfFile64::<NativeEndian, _>::parse(&loader)
        .map_err(|error| bad("parse the loader", error))?;
    let base = auxv.get(libc::AT_BASE);
    let found = debug_state(elf.dynamic_symbols().chain(elf.symbols()), base);
    // For a loader without the function, the program's first instruction is the next best.
    // Constructors of libraries have run by then.
    let entry = Rendezvous {
        address: auxv.get(libc::AT_ENTRY),
        state: None,
    };
    Ok(Some(found.unwrap_or(entry)))
}

/// True if the kernel has mapped a loader beside the program.
pub(crate) fn is_there(process: &Process) -> Result<bool, Error> {
    let auxv = Auxv(process.read_file("auxv")?);
    Ok(auxv.get(libc::AT_BASE) != 0)
}

fn debug_state<'data, S: ObjectSymbol<'data>>(
    symbols: impl Iterator<Item = S>,
    base: u64,
) -> Option<Rendezvous> {
    // r_version, padding, r_map and r_brk come before r_state, of <link.h>.
    const R_STATE: u64 = 24;
    let (mut function, mut state) = (None, None);
    for symbol in symbols.filter(|symbol| symbol.is_definition() || symbol.address() != 0) {
        match symbol.name() {
            Ok("_dl_debug_state") => function = Some(base.wrapping_add(symbol.address())),
            Ok("_r_debug") => {
                state = Some(base.wrapping_add(symbol.address()).wrapping_add(R_STATE))
            }
            _ => {}
        }
    }
    Some(Rendezvous {
        address: function?,
        state,
    })
}

fn interpreter(
    header: &FileHeader64<NativeEndian>,
    data: &ReadCache<std::fs::File>,
) -> object::Result<Option<PathBuf>> {
    for segment in header.program_headers(NativeEndian, data)? {
        if let Some(path) = segment.interpreter(NativeEndian, data)? {
            return Ok(Some(PathBuf::from(OsStr::from_bytes(path))));
        }
    }
    Ok(None)
}

/// `/proc/PID/auxv`: pairs of words.
struct Auxv(Vec<u8>);

impl Auxv {
    /// Returns an entry's value, 0 if it is not there.
    fn get(&self, key: u64) -> u64 {
        let words: Vec<u64> = self
            .0
            .as_chunks::<8>()
            .0
            .iter()
            .map(|&bytes| u64::from_ne_bytes(bytes))
            .collect();
        words
            .as_chunks::<2>()
            .0
            .iter()
            .find(|pair| pair[0] == key)
            .map_or(0, |pair| pair[1])
    }
}
