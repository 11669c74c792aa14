//! What an object file wants to know of the kernel that its programs are for.

use std::fs;
use std::sync::OnceLock;

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
        let read = || fs::read_to_string(format!("/boot/config-{}", release()));
        let config = self.config.get_or_init(|| read().unwrap_or_default());
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

fn release() -> String {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease");
    release.unwrap_or_default().trim().to_owned()
}
