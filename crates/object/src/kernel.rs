//! The facts that an object file needs about the kernel that its programs are for.

use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::fs;
use std::sync::OnceLock;

use beeline_btf::{Btf, Joined, Layout, OwnedBtf, kind};

/// A kernel, as object files see it.
pub trait Kernel {
    /// Returns the content of its `/sys/kernel/btf/vmlinux`.
    fn btf(&self) -> Option<&[u8]>;
    /// Returns the names of its modules, with the content of `/sys/kernel/btf/MODULE` of each.
    ///
    /// Called only if something is missing in [`Kernel::btf`].
    fn modules(&self) -> &[(String, Vec<u8>)] {
        &[]
    }
    /// Returns `LINUX_VERSION_CODE` of `linux/version.h`: `major << 16 | minor << 8 | patch`.
    fn version(&self) -> u32;
    /// Returns the value of a `CONFIG_*` option as its configuration has it: `y`, `"text"`, `17`.
    fn config(&self, name: &str) -> Option<String>;
    /// Returns the address of a symbol.
    fn symbol(&self, name: &str) -> Option<u64>;
}

/// A kernel that is described by its files.
///
/// `read` returns their contents. Each is read on first use, and once.
#[derive(Debug)]
pub struct FileKernel<R> {
    read: R,
    btf: OnceLock<Option<Vec<u8>>>,
    modules: OnceLock<Vec<(String, Vec<u8>)>>,
    config: OnceLock<String>,
    symbols: OnceLock<String>,
}

impl<R: Fn(&str) -> Option<Vec<u8>>> FileKernel<R> {
    /// Creates a kernel with files that `read` reads by their paths.
    pub fn new(read: R) -> Self {
        Self {
            read,
            btf: OnceLock::new(),
            modules: OnceLock::new(),
            config: OnceLock::new(),
            symbols: OnceLock::new(),
        }
    }

    fn text(&self, path: &str) -> Option<String> {
        String::from_utf8((self.read)(path)?).ok()
    }

    fn release(&self) -> String {
        let release = self.text("/proc/sys/kernel/osrelease");
        release.unwrap_or_default().trim().to_owned()
    }

    /// Returns the types of the modules that are loaded now, by name.
    fn loaded_modules(&self) -> Vec<(String, Vec<u8>)> {
        let list = self.text("/proc/modules").unwrap_or_default();
        let names = list.lines().filter_map(|line| line.split(' ').next());
        // A module that is unloaded meanwhile is missing.
        let with_types = names.filter_map(|name| {
            let types = (self.read)(&format!("/sys/kernel/btf/{name}"))?;
            Some((name.to_owned(), types))
        });
        let mut modules: Vec<_> = with_types.collect();
        modules.sort();
        modules
    }

    /// Returns the kernel's configuration, from the files that libbpf uses.
    fn configuration(&self) -> Option<String> {
        let file = self.text(&format!("/boot/config-{}", self.release()));
        file.or_else(|| {
            let packed = (self.read)("/proc/config.gz")?;
            String::from_utf8(unpacked(&packed)?).ok()
        })
    }
}

impl<R: Fn(&str) -> Option<Vec<u8>>> Kernel for FileKernel<R> {
    fn btf(&self) -> Option<&[u8]> {
        let read = || (self.read)("/sys/kernel/btf/vmlinux");
        self.btf.get_or_init(read).as_deref()
    }

    fn modules(&self) -> &[(String, Vec<u8>)] {
        self.modules.get_or_init(|| self.loaded_modules())
    }

    fn version(&self) -> u32 {
        let release = self.release();
        let mut numbers = release
            .split(|it: char| !it.is_ascii_digit())
            .map(|it| it.parse::<u32>().unwrap_or(0));
        let mut next = || numbers.next().unwrap_or(0);
        next() << 16 | (next() & 0xff) << 8 | next().min(255)
    }

    fn config(&self, name: &str) -> Option<String> {
        let read = || self.configuration().unwrap_or_default();
        let config = self.config.get_or_init(read);
        let mut lines = config.lines().filter_map(|line| line.split_once('='));
        let (_, value) = lines.find(|(key, _)| *key == name)?;
        Some(value.to_owned())
    }

    fn symbol(&self, name: &str) -> Option<u64> {
        let read = || self.text("/proc/kallsyms").unwrap_or_default();
        let symbols = self.symbols.get_or_init(read);
        let line = symbols.lines().find(|line| {
            // The fourth word is a module's name.
            line.split_whitespace().nth(2) == Some(name)
        })?;
        u64::from_str_radix(line.split_whitespace().next()?, 16).ok()
    }
}

type Read = fn(&str) -> Option<Vec<u8>>;

/// The kernel that this process runs on.
#[derive(Debug)]
pub struct RunningKernel(FileKernel<Read>);

impl Default for RunningKernel {
    fn default() -> Self {
        Self(FileKernel::new(|path| fs::read(path).ok()))
    }
}

impl Kernel for RunningKernel {
    fn btf(&self) -> Option<&[u8]> {
        self.0.btf()
    }

    fn modules(&self) -> &[(String, Vec<u8>)] {
        self.0.modules()
    }

    fn version(&self) -> u32 {
        self.0.version()
    }

    fn config(&self, name: &str) -> Option<String> {
        self.0.config(name)
    }

    fn symbol(&self, name: &str) -> Option<u64> {
        self.0.symbol(name)
    }
}

/// Returns the content of a gzip file (RFC 1952) without optional header fields, as kernels make
/// it.
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

/// The kernel's types by their names, for many look-ups.
pub(crate) struct KernelNames<'a> {
    kernel: &'a dyn Kernel,
    index: OnceCell<Option<Index<'a>>>,
    modules: OnceCell<Option<ModuleTypes>>,
    /// The modules in which something was found, in this order.
    used: RefCell<Vec<usize>>,
}

struct Index<'a> {
    btf: Btf<'a>,
    /// The first type of each kind and name.
    numbers: HashMap<(u8, &'a [u8]), u32>,
}

/// The types of all modules behind the kernel's.
struct ModuleTypes {
    btf: OwnedBtf,
    layout: Layout,
    /// The places in [`Kernel::modules`], by places in the layout.
    modules: Vec<usize>,
}

/// Something in the kernel's types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Found {
    /// The number, in the module's BTF if it is a module's.
    pub(crate) id: u32,
    /// The module's place among the used ones.
    pub(crate) module: Option<usize>,
}

impl<'a> KernelNames<'a> {
    pub(crate) fn of(kernel: &'a dyn Kernel) -> Self {
        Self::with_used(kernel, &[])
    }

    /// Creates them with modules that are used already, by name.
    pub(crate) fn with_used(kernel: &'a dyn Kernel, used: &[String]) -> Self {
        let place = |name: &String| kernel.modules().iter().position(|(it, _)| it == name);
        Self {
            kernel,
            index: OnceCell::new(),
            modules: OnceCell::new(),
            used: RefCell::new(used.iter().filter_map(place).collect()),
        }
    }

    /// Returns the BTF; None if there is none at all.
    pub(crate) fn btf(&self) -> Option<&Btf<'a>> {
        self.index().map(|index| &index.btf)
    }

    /// Returns the number of a function, variable, structure or type's name in the kernel itself.
    pub(crate) fn find(&self, kind: u8, name: &str) -> Option<u32> {
        let numbers = &self.index()?.numbers;
        numbers.get(&(kind, name.as_bytes())).copied()
    }

    /// Returns the number in the kernel or in one of its modules: in the named one, if one is
    /// named.
    pub(crate) fn find_anywhere(
        &self,
        kind: u8,
        name: &str,
        wanted: Option<&str>,
    ) -> Option<Found> {
        if wanted.is_none_or(|wanted| wanted == "vmlinux")
            && let Some(id) = self.find(kind, name)
        {
            return Some(Found { id, module: None });
        }
        let types = self.modules()?;
        let btf = types.btf.view();
        let found = (types.layout.base()..btf.len()).find_map(|number| {
            btf.get(number)
                .filter(|it| it.kind == kind && it.name == name.as_bytes())?;
            let (Some(place), id) = types.layout.place(number) else {
                return None;
            };
            let module = *types.modules.get(place)?;
            let (of, _) = self.kernel.modules().get(module)?;
            wanted
                .is_none_or(|wanted| wanted == of)
                .then_some((module, id))
        });
        let (module, id) = found?;
        let module = Some(self.used_as(module));
        Some(Found { id, module })
    }

    /// Returns the kernel's types followed by those of all modules; None without modules.
    pub(crate) fn with_modules(&self) -> Option<Btf<'_>> {
        self.modules().map(|types| types.btf.view())
    }

    /// Returns the number of a type of [`KernelNames::with_modules`] in the BTF that it comes from.
    pub(crate) fn own_number(&self, id: u32) -> u32 {
        let types = self.modules.get().and_then(Option::as_ref);
        types.map_or(id, |types| types.layout.place(id).1)
    }

    /// Returns the members of a structure that was found.
    pub(crate) fn member_names(&self, of: Found) -> Vec<String> {
        let text = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
        let names = self.among_types(of, |btf, id| {
            let it = btf.get(id)?;
            Some(btf.bit_members(it).map(|it| text(it.name)).collect())
        });
        names.unwrap_or_default()
    }

    /// Calls a function with a found type, in BTF that has everything it refers to, under its
    /// number there.
    pub(crate) fn among_types<T>(
        &self,
        found: Found,
        look: impl FnOnce(&Btf<'_>, u32) -> Option<T>,
    ) -> Option<T> {
        match found.module {
            None => look(self.btf()?, found.id),
            Some(place) => {
                let (types, number) = self.number(place, found.id)?;
                look(&types.btf.view(), number)
            }
        }
    }

    fn number(&self, used: usize, id: u32) -> Option<(&ModuleTypes, u32)> {
        let module = *self.used.borrow().get(used)?;
        let types = self.modules()?;
        let place = types.modules.iter().position(|it| *it == module)?;
        Some((types, types.layout.number(place, id)?))
    }

    /// Returns the names of the modules in which something was found.
    pub(crate) fn used(&self) -> Vec<String> {
        let used = self.used.borrow();
        let modules = self.kernel.modules();
        let names = used.iter().filter_map(|place| modules.get(*place));
        names.map(|(name, _)| name.clone()).collect()
    }

    fn used_as(&self, module: usize) -> usize {
        let mut used = self.used.borrow_mut();
        let known = used.iter().position(|it| *it == module);
        known.unwrap_or_else(|| {
            used.push(module);
            used.len() - 1
        })
    }

    /// Builds the index when the first name is looked up: most files need none.
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

    /// Reads the modules when something is not in the kernel itself. A module with malformed types
    /// counts as having none.
    fn modules(&self) -> Option<&ModuleTypes> {
        let make = || {
            let all = self.kernel.modules();
            if all.is_empty() {
                return None;
            }
            let mut joined = Joined::new(self.kernel.btf()?)?;
            let added = all.iter().enumerate();
            let modules = added
                .filter_map(|(place, (_, btf))| joined.add(btf).map(|_| place))
                .collect();
            Some(ModuleTypes {
                layout: joined.layout().clone(),
                btf: OwnedBtf::parse(joined.into_bytes())?,
                modules,
            })
        };
        self.modules.get_or_init(make).as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_is_known_by_its_files() {
        let kernel = FileKernel::new(|path: &str| {
            let content = match path {
                "/proc/sys/kernel/osrelease" => "6.12.95+deb12-cloud-amd64\n",
                "/boot/config-6.12.95+deb12-cloud-amd64" => {
                    "CONFIG_HZ=250\n# CONFIG_X is not set\n"
                }
                "/proc/kallsyms" => "ffffffff81000000 T _text\nffffffffc0000000 t x [m]\n",
                _ => return None,
            };
            Some(content.into())
        });
        assert_eq!(kernel.version(), 6 << 16 | 12 << 8 | 95);
        assert_eq!(kernel.config("CONFIG_HZ").as_deref(), Some("250"));
        assert_eq!(kernel.config("CONFIG_X"), None);
        assert_eq!(kernel.symbol("x"), Some(0xffff_ffff_c000_0000));
        assert_eq!((kernel.symbol("y"), kernel.btf()), (None, None));
    }

    #[test]
    fn the_kernels_packed_configuration_is_read() {
        // The output of `printf 'CONFIG_HZ=250\n' | gzip -n`.
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
