//! What an object file wants to know of the kernel that its programs are for.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::fs;
use std::sync::OnceLock;

use beeline_btf::{Btf, kind};

/// A kernel, as far as object files ask.
pub trait Kernel {
    /// The content of its `/sys/kernel/btf/vmlinux`.
    fn btf(&self) -> Option<&[u8]>;
    /// `LINUX_VERSION_CODE`: `major << 16 | minor << 8 | patch`.
    fn version(&self) -> u32;
    /// The value of a `CONFIG_*` option as its configuration has it: `y`, `"text"`, `17`.
    fn config(&self, name: &str) -> Option<String>;
    /// The address of a symbol.
    fn symbol(&self, name: &str) -> Option<u64>;
}

/// The kernel that this process runs on.
#[derive(Debug, Default)]
pub struct RunningKernel {
    btf: OnceLock<Option<Vec<u8>>>,
    config: OnceLock<String>,
}

impl Kernel for RunningKernel {
    fn btf(&self) -> Option<&[u8]> {
        let read = || fs::read("/sys/kernel/btf/vmlinux").ok();
        self.btf.get_or_init(read).as_deref()
    }

    fn version(&self) -> u32 {
        let release = release();
        let mut numbers = release
            .split(|it: char| !it.is_ascii_digit())
            .map(|it| it.parse::<u32>().unwrap_or(0));
        let mut next = || numbers.next().unwrap_or(0);
        next() << 16 | (next() & 0xff) << 8 | next().min(255)
    }

    fn config(&self, name: &str) -> Option<String> {
        let config = self
            .config
            .get_or_init(|| configuration().unwrap_or_default());
        let mut lines = config.lines().filter_map(|line| line.split_once('='));
        let (_, value) = lines.find(|(key, _)| *key == name)?;
        Some(value.to_owned())
    }

    fn symbol(&self, name: &str) -> Option<u64> {
        let symbols = fs::read_to_string("/proc/kallsyms").ok()?;
        let line = symbols.lines().find(|line| {
            // The fourth word is a module's name.
            line.split_whitespace().nth(2) == Some(name)
        })?;
        u64::from_str_radix(line.split_whitespace().next()?, 16).ok()
    }
}

/// The kernel's configuration, from where libbpf has it.
fn configuration() -> Option<String> {
    let file = fs::read_to_string(format!("/boot/config-{}", release())).ok();
    file.or_else(|| {
        let packed = fs::read("/proc/config.gz").ok()?;
        String::from_utf8(unpacked(&packed)?).ok()
    })
}

/// The content of a gzip file (RFC 1952) whose header has nothing optional, as kernels make it.
fn unpacked(file: &[u8]) -> Option<Vec<u8>> {
    /// More than any configuration.
    const MOST: usize = 16 << 20;
    let [0x1f, 0x8b, 8, 0, rest @ ..] = file else {
        return None;
    };
    // A time, two words about its maker; and at the end a checksum and the length.
    let packed = rest.get(6..rest.len().checked_sub(8)?)?;
    miniz_oxide::inflate::decompress_to_vec_with_limit(packed, MOST).ok()
}

fn release() -> String {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease");
    release.unwrap_or_default().trim().to_owned()
}

/// The kernel's types by their names, for those who ask for many.
pub(crate) struct KernelNames<'a> {
    kernel: &'a dyn Kernel,
    index: OnceCell<Option<Index<'a>>>,
}

struct Index<'a> {
    btf: Btf<'a>,
    /// The first of each kind and name.
    numbers: HashMap<(u8, &'a [u8]), u32>,
}

impl<'a> KernelNames<'a> {
    pub(crate) fn of(kernel: &'a dyn Kernel) -> Self {
        let index = OnceCell::new();
        Self { kernel, index }
    }

    /// None if there is no BTF at all.
    pub(crate) fn btf(&self) -> Option<&Btf<'a>> {
        self.index().map(|index| &index.btf)
    }

    /// The number of a function, variable, structure or type's name.
    pub(crate) fn find(&self, kind: u8, name: &str) -> Option<u32> {
        let numbers = &self.index()?.numbers;
        numbers.get(&(kind, name.as_bytes())).copied()
    }

    /// Made when the first name is asked for: most files ask for none.
    fn index(&self) -> Option<&Index<'a>> {
        let make = || {
            let btf = self.kernel.btf().and_then(Btf::parse)?;
            let mut numbers = HashMap::new();
            for id in 1..btf.len() {
                if let Some(kind::FUNC | kind::VAR | kind::TYPEDEF | kind::STRUCT) = btf.kind(id)
                    && let Some(it) = btf.get(id)
                {
                    numbers.entry((it.kind, it.name)).or_insert(id);
                }
            }
            Some(Index { btf, numbers })
        };
        self.index.get_or_init(make).as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_packed_configuration_is_read() {
        // What `printf 'CONFIG_HZ=250\n' | gzip -n` says.
        let packed = [
            0x1f, 0x8b, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x03, 0x73, 0xf6, 0xf7, 0x73,
            0xf3, 0x74, 0x8f, 0xf7, 0x88, 0xb2, 0x35, 0x32, 0x35, 0xe0, 0x02, 0x00, 0xfb, 0x5f,
            0x3a, 0x01, 0x0e, 0x00, 0x00, 0x00,
        ];
        assert_eq!(unpacked(&packed).as_deref(), Some(&b"CONFIG_HZ=250\n"[..]));
        assert_eq!(unpacked(&packed[..12]), None);
        assert_eq!(unpacked(b""), None);
    }
}
