//! eBPF object files, as `clang -target bpf` makes them, in; programs that can be verified, compiled and run, out.
//!
//! [`Object::parse`] does what libbpf does between opening a file and handing its programs to the kernel: it finds the
//! programs and their types by the names of sections ([`SectionKind`]), the maps, the variables and what they begin
//! with; relocates fields to the kernel at hand; appends called functions to each program; and resolves references. Where libbpf
//! puts a map's descriptor, an instruction here has the map's place in [`Object::maps`].
//!
//! Files are not trusted: whatever the bytes, the answer is an [`Object`] or an [`Error`]. Not supported are big-endian files,
//! and maps of the `.struct_ops` sections (their programs are there). What is nowhere defined
//! makes only those programs unusable that cannot do without it ([`Object::absent`]).

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
    /// In the order of the file.
    pub programs: Vec<Program>,
    /// Instructions name them by their place here.
    pub maps: Vec<MapDefinition>,
    /// Of section `license`; empty without one.
    pub license: String,
    /// Of section `version`.
    pub kernel_version: Option<u32>,
    /// The file's own type information, as a kernel takes it; empty without one.
    pub btf: Vec<u8>,
    /// What programs use that is nowhere defined, by number: calls of functions that there are not stand in the place
    /// of what uses it ([`Object::why_absent`]).
    pub absent: Vec<(u32, String)>,
    /// The kernel's modules that programs use something of. Where libbpf puts a module's descriptor (of a variable), or its place in
    /// the array of descriptors (of a function), an instruction here has the module's place in this list and 1 more.
    pub modules: Vec<String>,
}

/// A program.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Program {
    /// Of its function.
    pub name: String,
    /// The section that it stands in, such as `uprobe//bin/bash:readline`.
    pub section: String,
    /// What the section's name says.
    pub kind: SectionKind,
    /// Loaded unless its user says otherwise? Not if the section's name begins with `?`.
    pub autoload: bool,
    /// With all functions that it calls.
    pub insns: Vec<Insn>,
    /// Where its functions begin, and their names; the first is its own.
    pub functions: Vec<(usize, String)>,
    /// Source lines, by instruction; empty if the file does not know them.
    pub lines: Vec<Line>,
    /// `struct bpf_func_info` of each function: its slot, and its type in the file's BTF.
    pub func_info: Vec<[u32; 2]>,
    /// `struct bpf_line_info`, what [`Program::lines`] is made from.
    pub line_info: Vec<[u32; 4]>,
    /// What it attaches to by the kernel's types.
    pub target: AttachTarget,
    /// Instructions that ask for what the kernel's types do not have, and for what, such as `struct task_struct.pid`. Whoever
    /// comes to one is refused.
    pub unrelocated: Vec<(usize, String)>,
}

/// Why a file is not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Something else altogether.
    #[error("this is no ELF file; give the output of clang -target bpf -c")]
    NotElf,
    /// A program for another machine.
    #[error("this ELF file is not for eBPF; compile it with clang -target bpf -c")]
    NotBpf,
    /// For machines of the other byte order.
    #[error(
        "this is a big-endian object file; compile it with clang -target bpfel, or -target bpf on a machine like this one"
    )]
    BigEndian,
    /// The file is not what the format's description says.
    #[error("the object file is broken: {0}")]
    Broken(String),
    /// The end is missing; how many bytes there are.
    #[error("the object file is cut short: its sections go on behind its {0} bytes")]
    CutShort(usize),
    /// Type information is needed and not there.
    #[error(
        "the object file has no type information (.BTF), which its maps or externs need; compile it with -g"
    )]
    NoBtf,
    /// Fields have to be relocated, and there is nothing to relocate them to.
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
        /// What is wrong.
        what: String,
    },
    /// A reference of an instruction.
    #[error("function {function}, insn {insn}: a reference to {symbol}: {what}")]
    Relocation {
        /// The function that holds the instruction.
        function: String,
        /// The slot in it.
        insn: usize,
        /// What is referred to.
        symbol: String,
        /// What is wrong.
        what: &'static str,
    },
    /// The programs together, with what they call, are larger than any that a kernel takes.
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
    /// What a call of a function that there is not stands for, and why there is no such thing.
    pub fn why_absent(&self, function: i32) -> Option<&str> {
        let number = function
            .checked_sub(POISON_FUNCTION)
            .filter(|number| *number >= 0)
            .or_else(|| function.checked_sub(POISON_EXTERN));
        let mut absent = self.absent.iter();
        let found = absent.find(|(it, _)| Some(it.cast_signed()) == number);
        found.map(|(_, why)| why.as_str())
    }

    /// Reads a file, for programs that run on `kernel`.
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
            programs.push(Program {
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

/// The instructions of each section of code, by section.
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

/// The functions that are programs: those outside `.text` that others can see; or the only one of the file.
fn entries(elf: &Elf<'_>, functions: &[link::Function<'_>]) -> Vec<usize> {
    let in_text = |it: &link::Function<'_>| {
        let section = elf.sections.get(it.section);
        // A section for each function is how other compilers than clang have it.
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
