//! Functions of a shared library.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use object::{Object, ObjectSection, ObjectSymbol, SymbolKind};

/// A library's text, and the addresses of its functions. Addresses are those in the file.
pub struct Library {
    pub path: PathBuf,
    /// Start of the text section, and its bytes.
    pub text: (u64, Vec<u8>),
    /// Starts of functions in the text section, with the name if there is one.
    pub functions: BTreeMap<u64, Option<String>>,
    /// All sections with bytes, by address.
    sections: Vec<(u64, Vec<u8>)>,
}

impl Library {
    /// Finds the library at the first of the usual paths that has it.
    pub fn find(name: &str) -> Option<Self> {
        let path = [
            "/lib/x86_64-linux-gnu",
            "/usr/lib/x86_64-linux-gnu",
            "/lib64",
            "/usr/lib64",
            "/usr/lib",
        ]
        .iter()
        .map(|dir| Path::new(dir).join(name))
        .find(|path| path.exists())?;
        Self::read(&path)
    }

    /// Reads the file, if it is a valid one.
    pub fn read(path: &Path) -> Option<Self> {
        let data = std::fs::read(path).ok()?;
        let file = object::File::parse(&*data).ok()?;
        let section = file.section_by_name(".text")?;
        let text = (section.address(), section.data().ok()?.to_vec());
        let range = text.0..text.0 + text.1.len() as u64;
        let mut functions = BTreeMap::new();
        if let Some(table) = file.section_by_name(".eh_frame_hdr") {
            functions.extend(
                unwind_starts(table.address(), table.data().ok()?).map(|start| (start, None)),
            );
        }
        for symbol in file.dynamic_symbols().chain(file.symbols()) {
            if symbol.kind() == SymbolKind::Text && symbol.size() > 0 {
                functions.insert(symbol.address(), symbol.name().ok().map(str::to_owned));
            }
        }
        functions.retain(|start, _| range.contains(start));
        let sections = file
            .sections()
            .filter(|section| section.address() != 0)
            .filter_map(|section| Some((section.address(), section.data().ok()?.to_vec())))
            .collect();
        Some(Self {
            sections,
            path: path.to_owned(),
            text,
            functions,
        })
    }

    /// Returns the file's bytes from an address to the end of its section.
    pub fn data(&self, address: u64) -> Option<&[u8]> {
        self.sections
            .iter()
            .find_map(|(start, bytes)| bytes.get(address.checked_sub(*start)? as usize..))
    }

    /// Returns this process's mapping of it: the address of its file's byte 0.
    pub fn base(&self) -> u64 {
        let real = std::fs::canonicalize(&self.path).unwrap();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let line = maps
            .lines()
            .find(|line| {
                line.ends_with(real.to_str().unwrap()) && line.split(' ').nth(2) == Some("00000000")
            })
            .expect("library is mapped");
        u64::from_str_radix(line.split('-').next().unwrap(), 16).unwrap()
    }

    /// Makes its text in this process writable, too.
    pub fn unprotect(&self) {
        let (text, len) = (self.base() + self.text.0, self.text.1.len());
        let first_page = text & !0xfff;
        let protection = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        // SAFETY: whole pages of the library's text, which stays readable and executable.
        let done = unsafe {
            libc::mprotect(
                first_page as *mut libc::c_void,
                (text - first_page) as usize + len,
                protection,
            )
        };
        assert_eq!(done, 0, "mprotect");
    }

    /// Returns each function's start and its code up to the next.
    pub fn bodies(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let end = self.text.0 + self.text.1.len() as u64;
        let nexts = self.functions.keys().skip(1).copied().chain([end]);
        self.functions.keys().zip(nexts).map(|(&start, next)| {
            (
                start,
                &self.text.1[(start - self.text.0) as usize..(next - self.text.0) as usize],
            )
        })
    }
}

/// The sorted table of the linker's `.eh_frame_hdr` (LSB 10.6.2), in its one usual encoding.
fn unwind_starts(address: u64, data: &[u8]) -> impl Iterator<Item = u64> {
    const USUAL: [u8; 4] = [1, 0x1b, 0x03, 0x3b];
    assert_eq!(data[..4], USUAL, "unusual .eh_frame_hdr");
    data[12..].chunks_exact(8).map(move |entry| {
        let offset = i32::from_le_bytes(entry[..4].try_into().unwrap());
        address.wrapping_add_signed(i64::from(offset))
    })
}
