//! Externs: options of the kernel's configuration, and the kernel's variables and functions.

use std::collections::HashMap;

use beeline_btf::{Btf, Type, int, kind};
use beeline_uapi::MapType;
use beeline_uapi::flags::{MMAPABLE, RDONLY_PROG};

use crate::co_re::{are_compatible, essential};
use crate::elf::{Elf, Symbol};
use crate::kernel::{Found, Kernel, KernelNames};
use crate::maps::{Contents, MapDefinition, variables_of};

/// The section of configuration options.
const CONFIG: &str = ".kconfig";

/// The resolution of an extern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extern {
    /// A place in the map of configuration values.
    Config { map: usize, offset: u32 },
    /// An address in the kernel; 0 for a weak extern that is missing.
    Address(u64),
    /// A variable or function of the kernel or one of its modules.
    Typed(Found),
    /// A missing weak function, by its number among all externs.
    Missing(u32),
    /// A missing extern that programs cannot do without, by its number among all externs.
    Absent(u32),
}

/// The places of the kernel's configuration options in their map, by name.
pub(crate) type OptionPlaces = Vec<(String, u32)>;

/// All externs of a file.
#[derive(Debug, Default)]
pub(crate) struct Externs {
    /// The externs by their symbols.
    pub(crate) resolved: HashMap<usize, Extern>,
    /// The places of configuration options.
    pub(crate) options: OptionPlaces,
    /// The missing externs that programs cannot do without, by their numbers, with the reasons.
    /// libbpf refuses the file for one; here only the programs that use it are affected.
    pub(crate) absent: Vec<(u32, String)>,
}

/// Resolves all externs of a file.
pub(crate) fn resolve(
    elf: &Elf<'_>,
    btf: Option<&Btf<'_>>,
    kernel: &dyn Kernel,
    names: &KernelNames<'_>,
    maps: &mut Vec<MapDefinition>,
) -> Externs {
    let is_extern = |it: &Symbol<'_>| {
        it.section.is_none() && !it.is_local && !it.is_function && !it.name.is_empty()
    };
    let symbols = elf.symbols.iter().enumerate();
    let externs: Vec<_> = symbols.filter(|(_, it)| is_extern(it)).collect();
    if externs.is_empty() {
        return Externs::default();
    }
    let types = |section| {
        let found = btf.map(|btf| variables_of(btf, section));
        found.unwrap_or_default().into_iter().collect()
    };
    let of_config: HashMap<String, Type<'_>> = types(CONFIG);
    let of_kernel: HashMap<String, Type<'_>> = types(".ksyms");
    let mut resolved = HashMap::new();
    let mut config = Vec::new();
    let mut absent = Vec::new();
    for (place, (number, symbol)) in externs.into_iter().enumerate() {
        let place = place as u32; // fewer than symbols
        let found = match (btf, of_config.get(symbol.name), of_kernel.get(symbol.name)) {
            (Some(btf), Some(option), _) => {
                match ConfigOption::of(btf, number, symbol, *option, kernel) {
                    Ok(option) => {
                        config.push(option);
                        continue;
                    }
                    Err(why) => Err(why),
                }
            }
            (Some(btf), None, Some(wanted)) => {
                in_kernel(btf, symbol, *wanted, place, kernel, names)
            }
            _ => Err("the file's BTF does not describe it"),
        };
        let found = found.unwrap_or_else(|why| {
            absent.push((place, format!("extern {}: {why}", symbol.name)));
            Extern::Absent(place)
        });
        resolved.insert(number, found);
    }
    let mut options = Vec::new();
    if !config.is_empty() {
        let map = maps.len();
        let (definition, offsets) = config_map(config);
        maps.push(MapDefinition {
            value_type: btf.map_or(0, |btf| btf.find([(kind::DATASEC, CONFIG)])[0]),
            ..definition
        });
        for (number, offset) in offsets {
            resolved.insert(number, Extern::Config { map, offset });
            let name = elf.symbols.get(number).map_or("", |it| it.name);
            options.push((name.to_owned(), offset));
        }
    }
    Externs {
        resolved,
        options,
        absent,
    }
}

/// Resolves an extern in the kernel. The error says why a program cannot have it.
fn in_kernel(
    btf: &Btf<'_>,
    symbol: &Symbol<'_>,
    wanted: Type<'_>,
    place: u32,
    kernel: &dyn Kernel,
    names: &KernelNames<'_>,
) -> Result<Extern, &'static str> {
    let is_function = wanted.kind == kind::FUNC;
    if !is_function && btf.resolve(wanted.refers_to()).is_none() {
        // `extern const void name`: no type, only an address.
        return match kernel.symbol(symbol.name) {
            Some(address) => Ok(Extern::Address(address)),
            None if symbol.is_weak => Ok(Extern::Address(0)),
            None => Err("the kernel has no such symbol"),
        };
    }
    // The part behind three underscores of a function's name is the program's own.
    let found = match is_function {
        true => essential_name(symbol).and_then(|name| names.find_anywhere(kind::FUNC, name, None)),
        false => names.find_anywhere(kind::VAR, symbol.name, None),
    };
    let fits = |found: Found| {
        names.among_types(found, |kernel, id| {
            let its = kernel.get(id)?.refers_to();
            are_compatible(btf, wanted.refers_to(), kernel, its).then_some(())
        })
    };
    match found {
        Some(found) if fits(found).is_some() => Ok(Extern::Typed(found)),
        // By weak functions, programs find out which of several prototypes the kernel has.
        Some(_) | None if symbol.is_weak && is_function => Ok(Extern::Missing(place)),
        Some(_) => Err("the kernel has it with another type"),
        None if symbol.is_weak => Ok(Extern::Address(0)),
        None => Err("neither the kernel's BTF nor a module's has it"),
    }
}

fn essential_name<'a>(symbol: &Symbol<'a>) -> Option<&'a str> {
    std::str::from_utf8(essential(symbol.name.as_bytes())).ok()
}

/// An option of the kernel's configuration.
struct ConfigOption {
    symbol: usize,
    name: String,
    align: u32,
    value: Vec<u8>,
}

impl ConfigOption {
    fn of(
        btf: &Btf<'_>,
        number: usize,
        symbol: &Symbol<'_>,
        variable: Type<'_>,
        kernel: &dyn Kernel,
    ) -> Result<Self, &'static str> {
        let size = btf
            .size(variable.refers_to())
            .filter(|size| (1..=4096).contains(size))
            .ok_or("its type has no size")?;
        let text = match symbol.name {
            "LINUX_KERNEL_VERSION" => Some(kernel.version().to_string()),
            // Programs in Beeline have cookies, and find system calls' arguments where kernels
            // since 4.17 have them.
            "LINUX_HAS_BPF_COOKIE" | "LINUX_HAS_SYSCALL_WRAPPER" => Some("1".to_owned()),
            name => kernel.config(name),
        };
        let (_, it) = btf.resolve(variable.refers_to()).ok_or("it has no type")?;
        let value = match text {
            Some(text) => config_value(btf, it, size, &text)
                .ok_or("its value in the kernel's configuration is not of its type")?,
            None if symbol.is_weak => vec![0; size as usize],
            None => return Err("the kernel's configuration does not have it"),
        };
        let align = match it.array() {
            Some((element, _)) => btf.size(element).unwrap_or(1),
            None => size,
        };
        Ok(Self {
            symbol: number,
            name: symbol.name.to_owned(),
            align: align.clamp(1, 8),
            value,
        })
    }
}

/// Returns a value as the program has it: `y`, `m` and `n`, text in quotes, or a number.
fn config_value(btf: &Btf<'_>, it: Type<'_>, size: u32, text: &str) -> Option<Vec<u8>> {
    let size = size as usize;
    let encoding = it.int_encoding().unwrap_or(0);
    let (is_bool, is_signed) = (encoding & int::BOOL != 0, encoding & int::SIGNED != 0);
    let number = match text {
        "y" | "m" | "n" if it.kind == kind::INT && size == 1 && !is_bool => {
            i128::from(*text.as_bytes().first()?)
        }
        "n" => 0,
        "y" => 1,
        "m" if !is_bool => 2,
        _ => {
            if let Some(text) = text.strip_prefix('"') {
                let (element, count) = it.array()?;
                (btf.size(element) == Some(1)).then_some(())?;
                let mut value = text.trim_end_matches('"').as_bytes().to_vec();
                value.truncate((count as usize).saturating_sub(1));
                value.resize(size, 0);
                return Some(value);
            }
            match text.strip_prefix("0x") {
                Some(digits) => i128::from_str_radix(digits, 16).ok()?,
                None => text.parse().ok()?,
            }
        }
    };
    let bits = 8 * u32::try_from(size).ok().filter(|size| *size <= 8)?;
    let (least, most) = match is_signed {
        true => (-(1i128 << (bits - 1)), (1 << (bits - 1)) - 1),
        false => (0, (1i128 << bits) - 1),
    };
    (least..=most).contains(&number).then_some(())?;
    number.to_le_bytes().get(..size).map(<[u8]>::to_vec)
}

/// Orders options by alignment, the largest first, then by size, then by name; returns the place of
/// each, by its symbol.
fn config_map(mut options: Vec<ConfigOption>) -> (MapDefinition, Vec<(usize, u32)>) {
    options.sort_by(|a, b| {
        let by_align = b.align.cmp(&a.align);
        let by_size = || a.value.len().cmp(&b.value.len());
        by_align
            .then_with(by_size)
            .then_with(|| a.name.cmp(&b.name))
    });
    let (mut value, mut offsets) = (Vec::new(), Vec::new());
    for option in options {
        value.resize(value.len().next_multiple_of(option.align as usize), 0);
        offsets.push((option.symbol, value.len() as u32));
        value.extend(option.value);
    }
    let definition = MapDefinition {
        name: CONFIG.to_owned(),
        map_type: MapType::ARRAY,
        key_size: 4,
        value_size: value.len() as u32,
        max_entries: 1,
        flags: RDONLY_PROG | MMAPABLE,
        contents: Contents::Value(value),
        ..MapDefinition::default()
    };
    (definition, offsets)
}
