//! Reads eBPF object files, as `clang -target bpf` makes them, and returns programs that can be
//! verified, compiled and run.
//!
//! [`Object::parse`] does the same as libbpf between opening a file and loading its programs. It
//! finds the programs and their types by the names of sections ([`SectionKind`]), the maps, the
//! variables and their initial values; relocates fields to the kernel at hand; appends called
//! functions to each program; and resolves references. An instruction has a map's place in
//! [`Object::maps`], in place of the descriptor that libbpf puts there.
//!
//! Files are not trusted: for any bytes, the answer is an [`Object`] or an [`Error`]. Big-endian
//! files are not supported, nor are maps of the `.struct_ops` sections (their programs are). A
//! symbol without a definition makes only those programs unusable that cannot do without it
//! ([`Object::absent`]).
//!
//! Its terms are in docs/glossary.md.

#![forbid(unsafe_code)]

mod attach;
mod co_re;
mod elf;
mod ext;
mod externs;
mod kernel;
mod lines;
mod link;
mod maps;
mod section;
mod struct_ops;
mod types;

use beeline_btf::Btf;
use beeline_isa::opcode::POISON_EXTERN;
use beeline_isa::{INSN_BYTES, Insn};
use beeline_uapi::{AttachType, ProgramType};

pub use attach::AttachTarget;
pub use kernel::{FileKernel, Kernel, RunningKernel};
pub use lines::Line;
pub use maps::{Contents, MapDefinition};
pub use section::SectionKind;

use elf::Elf;
use ext::Ext;
use externs::Externs;
use kernel::KernelNames;
use link::{Linker, POISON_FUNCTION};

/// An object file, ready for use.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Object {
    /// The programs, in the order of the file.
    pub programs: Vec<ObjectProgram>,
    /// The maps. Instructions name them by their place here.
    pub maps: Vec<MapDefinition>,
    /// The content of section `license`; empty without one.
    pub license: String,
    /// The content of section `version`.
    pub kernel_version: Option<u32>,
    /// The file's own type information, as a kernel takes it; empty without one.
    pub btf: Vec<u8>,
    /// Things that programs use and that are not defined, by number.
    ///
    /// Instructions that use one are replaced by calls of functions that do not exist
    /// ([`Object::why_absent`]).
    pub absent: Vec<(u32, String)>,
    /// The kernel's modules that programs use something of.
    ///
    /// An instruction has a module's place in this list plus 1, in place of the descriptor that
    /// libbpf puts there for a variable, or of the place in `fd_array` for a function.
    pub modules: Vec<String>,
}

/// A program.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ObjectProgram {
    /// The name of its function.
    pub name: String,
    /// The section that it is in, such as `kprobe/vfs_read`.
    pub section: String,
    /// The meaning of the section's name.
    pub kind: SectionKind,
    /// True if it is loaded by default. It is not if the section's name begins with `?`.
    pub autoload: bool,
    /// The instructions, with all functions that it calls.
    pub insns: Vec<Insn>,
    /// The starts of its functions, and their names; the first is its own.
    pub functions: Vec<(usize, String)>,
    /// The source lines, by instruction; empty if the file does not have them.
    pub lines: Vec<Line>,
    /// `struct bpf_func_info` of each function: its slot, and its type in the file's BTF.
    pub func_info: Vec<[u32; 2]>,
    /// `struct bpf_line_info`, from which [`ObjectProgram::lines`] is made.
    pub line_info: Vec<[u32; 4]>,
    /// The target in the kernel's types.
    pub target: AttachTarget,
    /// Instructions that need something which the kernel's types do not have, such as `struct
    /// task_struct.pid`.
    ///
    /// A program that reaches one is refused.
    pub unrelocated: Vec<(usize, String)>,
}

/// The reasons why a file is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// It is not an ELF file.
    #[error("this is no ELF file; give the output of clang -target bpf -c")]
    NotElf,
    /// It is a program for another machine.
    #[error("this ELF file is not for eBPF; compile it with clang -target bpf -c")]
    NotBpf,
    /// It is for machines of the other byte order.
    #[error(
        "this is a big-endian object file; compile it with clang -target bpfel, or -target bpf on a machine like this one"
    )]
    BigEndian,
    /// The file does not follow the format's description.
    #[error("the object file is broken: {0}")]
    Broken(String),
    /// The end is missing; the number is the bytes that there are.
    #[error("the object file is cut short: its sections go on behind its {0} bytes")]
    CutShort(usize),
    /// Type information is needed and missing.
    #[error(
        "the object file has no type information (.BTF), which its maps or externs need; compile it with -g"
    )]
    NoBtf,
    /// Fields must be relocated, and there are no types to relocate them to.
    #[error(
        "the object file asks how the kernel lays out its structures, and there is no BTF of a kernel; is /sys/kernel/btf/vmlinux there?"
    )]
    NoKernelBtf,
    /// A relocation of a field, type or enumerator failed.
    #[error("relocating to the kernel's types failed: {0}")]
    Core(String),
    /// A map's description.
    #[error("map {name}: {what}")]
    Map {
        /// The map.
        name: String,
        /// The problem.
        what: String,
    },
    /// A reference of an instruction.
    #[error("function {function}, insn {insn}: a reference to {symbol}: {what}")]
    Relocation {
        /// The function that holds the instruction.
        function: String,
        /// The slot in that function.
        insn: usize,
        /// The symbol that is referred to.
        symbol: String,
        /// The problem.
        what: &'static str,
    },
    /// The programs together, with their callees, are larger than any that a kernel takes.
    #[error("the file's programs are too large together")]
    TooLarge,
}

impl Error {
    pub(crate) fn map(name: &str, what: impl Into<String>) -> Self {
        let (name, what) = (name.to_owned(), what.into());
        Self::Map { name, what }
    }
}

impl Object {
    /// Returns what a call of a non-existent function stands for, with the reason why it is
    /// missing.
    pub fn why_absent(&self, function: i32) -> Option<&str> {
        let number = function
            .checked_sub(POISON_FUNCTION)
            .filter(|number| *number >= 0)
            .or_else(|| function.checked_sub(POISON_EXTERN));
        let mut absent = self.absent.iter();
        let found = absent.find(|(it, _)| Some(it.cast_signed()) == number);
        found.map(|(_, why)| why.as_str())
    }

    /// Reads a file, for programs that run on `kernel` (libbpf's `bpf_object__open` and the part of
    /// `bpf_object__load` that comes before any system call).
    ///
    /// # Errors
    /// [`Error::NotElf`], [`Error::NotBpf`], [`Error::BigEndian`], [`Error::CutShort`] and
    /// [`Error::Broken`] if it is no complete eBPF object file of this byte order;
    /// [`Error::NoBtf`] and [`Error::Map`] for its maps; [`Error::NoKernelBtf`] and
    /// [`Error::Core`] for relocations to the kernel's types; [`Error::Relocation`] for other
    /// references; [`Error::TooLarge`] if the programs are too large together.
    pub fn parse(data: &[u8], kernel: &dyn Kernel) -> Result<Self, Error> {
        let elf = Elf::parse(data)?;
        let section_data = |name| elf.section(name).map(|(_, section)| section.data);
        let btf_data = section_data(".BTF").unwrap_or_default();
        let btf = match btf_data {
            [] => None,
            data => Some(Btf::parse(data).ok_or_else(|| Error::Broken("its .BTF".into()))?),
        };
        let ext = match (&btf, section_data(".BTF.ext")) {
            (Some(btf), Some(data)) => {
                Ext::parse(data, btf).ok_or_else(|| Error::Broken("its .BTF.ext".into()))?
            }
            _ => Ext::default(),
        };
        let mut code = code(&elf)?;
        let names = KernelNames::of(kernel);
        let unrelocated = co_re::relocate(&elf, &mut code, btf.as_ref(), &ext, kernel, &names)?;
        let functions = link::functions(&elf, &code)?;
        let mut maps = maps::Maps::of(&elf, btf.as_ref())?;
        let Externs {
            resolved,
            options,
            absent,
        } = externs::resolve(&elf, btf.as_ref(), kernel, &names, &mut maps.all);
        let operations = struct_ops::operations(&elf, btf.as_ref(), &names);
        let mut linker = Linker::new(&elf, &code, &functions, &maps, &resolved);
        let mut programs = Vec::new();
        for main in entries(&elf, &functions) {
            let callback = functions
                .get(main)
                .zip(btf.as_ref())
                .and_then(|(main, btf)| link::exception_callback(btf, &functions, main.name));
            let (insns, parts) = linker.link(main, callback)?;
            let Some((function, section)) = functions
                .get(main)
                .and_then(|function| Some((function, elf.sections.get(function.section)?.name)))
            else {
                continue;
            };
            let failed = unrelocated.iter().filter_map(|it| {
                let slot = link::slot_of(&functions, &parts, it.section, it.slot)?;
                Some((slot, it.what.clone()))
            });
            let bare = section.trim_start_matches('?');
            let line_info = lines::records_of_program(&elf, &ext.lines, &functions, &parts);
            let named = parts.iter().filter_map(|part| {
                let function = functions.get(part.function)?;
                Some((part.at, function.name.to_owned()))
            });
            let mut kind = SectionKind::of(bare);
            let mut target = attach::find(bare, &names);
            let start = (function.start * INSN_BYTES) as u64;
            if let Some(operation) = operations.get(&(function.section, start))
                && kind.prog_type == ProgramType::STRUCT_OPS
            {
                kind.expected_attach_type = AttachType(operation.member);
                target = operation.target.clone();
            }
            programs.push(ObjectProgram {
                name: function.name.to_owned(),
                section: bare.to_owned(),
                kind,
                autoload: bare.len() == section.len(),
                insns,
                functions: named.collect(),
                lines: btf
                    .as_ref()
                    .map_or_else(Vec::new, |btf| lines::lines(btf, &line_info)),
                func_info: lines::records_of_program(&elf, &ext.functions, &functions, &parts),
                line_info,
                target,
                unrelocated: failed.collect(),
            });
        }
        let license = section_data("license").unwrap_or_default();
        let license = license.split(|byte| *byte == 0).next().unwrap_or_default();
        let types = btf.as_ref().map_or_else(Vec::new, |btf| {
            types::complete(btf_data, btf, &elf, &maps.all, &options)
        });
        Ok(Self {
            programs,
            maps: maps.all,
            license: String::from_utf8_lossy(license).into_owned(),
            kernel_version: section_data("version").and_then(|data| ext::word(data, 0)),
            btf: types,
            absent,
            modules: names.used(),
        })
    }
}

/// Returns the instructions of each section of code, by section.
fn code(elf: &Elf<'_>) -> Result<Vec<Vec<Insn>>, Error> {
    let sections = elf.sections.iter();
    let decoded = sections.map(|section| {
        if !section.holds_code {
            return Ok(Vec::new());
        }
        let insns = Insn::decode_all(section.data);
        let insns = insns.map_err(|it| Error::Broken(format!("section {}: {it}", section.name)))?;
        Ok(insns.collect())
    });
    decoded.collect()
}

/// Returns the functions that are programs: those outside `.text` that are visible to others, or
/// the only one of the file.
fn entries(elf: &Elf<'_>, functions: &[link::Function<'_>]) -> Vec<usize> {
    let in_text = |it: &link::Function<'_>| {
        let section = elf.sections.get(it.section);
        // Other compilers than clang make a section for each function.
        section.is_none_or(|it| it.name == ".text" || it.name.starts_with(".text."))
    };
    let is_program = |it: &link::Function<'_>| match functions.len() {
        1 => true,
        _ => !in_text(it) && !it.is_local,
    };
    let numbered = functions.iter().enumerate();
    numbered
        .filter(|(_, function)| is_program(function))
        .map(|(number, _)| number)
        .collect()
}
