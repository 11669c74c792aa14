//! A program's own BTF, with its descriptions of functions and lines (`check_btf_func`,
//! `check_btf_line`).

use std::sync::Arc;

use beeline_btf::{kind, linkage};
use beeline_isa::Insn;
use beeline_uapi::object::FieldHolder;
use beeline_uapi::{Errno, info};

use super::fields;
use super::table::{TypeTable, is_number, text};
use super::walk::Step;
use super::{FunctionArg, KernelTypes, Member, Refused, arguments};
use crate::program::{Kind, MapField};

/// A program's BTF with its `func_info` and `line_info`, checked (`check_btf_info`).
#[derive(Debug)]
pub struct ProgramTypes {
    pub(super) types: Arc<TypeTable>,
    /// The functions by their first instructions, ascending.
    functions: Vec<(usize, FunctionType)>,
    /// `struct bpf_line_info`, ascending by instruction.
    lines: Vec<[u32; 4]>,
    /// The start of the function that runs when the program throws.
    exception_callback: Option<usize>,
}

/// The BTF of a file, which its programs and maps share.
#[derive(Debug, Clone)]
pub struct FileTypes(Arc<TypeTable>);

impl FileTypes {
    /// Parses a file's BTF; `None` if the data is no BTF.
    pub fn parse(btf: Vec<u8>) -> Option<Self> {
        TypeTable::new(btf).map(|types| Self(Arc::new(types)))
    }

    /// Returns the special fields of a map's value (`btf_parse_fields`).
    ///
    /// If they make no sense, the kernel takes the map for one without.
    pub fn map_fields(&self, value_type: u32, kernel: Option<&KernelTypes>) -> Vec<MapField> {
        fields::parse(&self.0, value_type, FieldHolder::Value, kernel).unwrap_or_default()
    }
}

/// A source line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceLine<'a> {
    /// The file's name, as the compiler was given it.
    pub file: &'a str,
    /// The text of the line, with its white space.
    pub text: &'a str,
    /// The line, from 1.
    pub line: u32,
    /// The column, from 1.
    pub column: u32,
}

/// A function of the program as its BTF describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FunctionType {
    /// Its number in the BTF.
    pub id: u32,
    /// Its name.
    pub name: String,
    /// True if it is not static: it is verified on its own, for any arguments of these types.
    pub global: bool,
    /// Its parameters (`btf_prepare_func_args`); the error says why a global function cannot have
    /// them.
    pub args: Result<Vec<FunctionArg>, Refused>,
    /// The kind of result. A global function must return a number (`int`, an enumeration ...).
    pub returns: Returns,
}

/// The result of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Returns {
    /// An integer or an enumeration.
    Scalar,
    /// Nothing.
    Void,
    /// A pointer, a structure.
    Other,
}

/// A `struct bpf_func_info`: the first instruction of a function, and its type.
type FuncInfo = [u32; 2];
/// A `struct bpf_line_info`: instruction, file name, text, line and column.
type LineInfo = [u32; 4];

impl ProgramTypes {
    /// Checks `func_info` and `line_info` as in `union bpf_attr` (`check_btf_info`).
    ///
    /// `starts` are the starts of the program's functions. `kernel` is for arguments that point to
    /// its structures.
    ///
    /// # Errors
    /// `EINVAL` if `btf` is no BTF; the others are those of [`ProgramTypes::of`].
    pub fn new(
        btf: &[u8],
        func_info: &[FuncInfo],
        line_info: &[LineInfo],
        kind: &Kind,
        insns: &[Insn],
        starts: &[usize],
        kernel: Option<&KernelTypes>,
    ) -> Result<Self, Refused> {
        let types = FileTypes::parse(btf.to_vec()).ok_or((Errno::EINVAL, String::new()))?;
        Self::of(&types, func_info, line_info, kind, insns, starts, kernel)
    }

    /// Checks them for several programs with one BTF.
    ///
    /// # Errors
    /// `EINVAL` if they do not describe the functions at `starts`, or are not ascending; those of
    /// [`ProgramTypes::exception_callback`].
    pub fn of(
        types: &FileTypes,
        func_info: &[FuncInfo],
        line_info: &[LineInfo],
        kind: &Kind,
        insns: &[Insn],
        starts: &[usize],
        kernel: Option<&KernelTypes>,
    ) -> Result<Self, Refused> {
        let types = types.0.clone();
        let exception_callback = exception_callback(&types, func_info)?;
        let mut starts = starts.to_vec();
        if let Some(start) = exception_callback
            && let Err(place) = starts.binary_search(&start)
        {
            starts.insert(place, start);
        }
        let starts = &starts;
        check_functions(&types, func_info, starts)?;
        check_lines(&types, line_info, insns, starts)?;
        let function = |info: &FuncInfo| {
            let start = info[0] as usize;
            (start, describe(&types, info[1], kind, kernel))
        };
        let functions = func_info.iter().map(function).collect();
        Ok(Self {
            types,
            functions,
            lines: line_info.to_vec(),
            exception_callback,
        })
    }

    /// Returns the start of the function that runs when the program throws, if it has one
    /// (`exception_callback:` in its first function's tags).
    ///
    /// It begins a function even if nothing calls it, so this must be known before functions are
    /// counted.
    ///
    /// # Errors
    /// `EEXIST` if there are several tags, `ENOENT` if the types lack the named function, `EINVAL`
    /// if it is static or not in `func_info` (`bpf_find_exception_callback_insn_off`).
    pub fn exception_callback(
        btf: &[u8],
        func_info: &[FuncInfo],
    ) -> Result<Option<usize>, Refused> {
        let types = TypeTable::new(btf.to_vec());
        types.map_or(Ok(None), |types| exception_callback(&types, func_info))
    }

    /// Returns whether the function with this first instruction runs when the program throws.
    pub fn is_exception_callback(&self, start: usize) -> bool {
        self.exception_callback == Some(start)
    }

    /// Returns the start of that function.
    pub(crate) fn exception_start(&self) -> Option<usize> {
        self.exception_callback
    }

    /// Returns whether it describes functions. Some things are allowed only if it does.
    pub fn describes_functions(&self) -> bool {
        !self.functions.is_empty()
    }

    /// Returns the function that begins at an instruction.
    pub fn function(&self, start: usize) -> Option<&FunctionType> {
        let at = self.functions.binary_search_by_key(&start, |(at, _)| *at);
        self.functions.get(at.ok()?).map(|(_, function)| function)
    }

    /// Returns whether there is a type with this number.
    pub fn has(&self, id: u32) -> bool {
        self.types.get(id).is_some()
    }

    /// Returns the first instruction of the function with this number.
    pub fn start_of(&self, id: u32) -> Option<usize> {
        let mut functions = self.functions.iter();
        let (start, _) = functions.find(|(_, function)| function.id == id)?;
        Some(*start)
    }

    /// Returns the line that an instruction comes from: the last one at or before it.
    pub fn line(&self, insn: usize) -> Option<SourceLine<'_>> {
        let after = self.lines.partition_point(|info| info[0] as usize <= insn);
        let info = info::LineInfo::from(*self.lines.get(after.checked_sub(1)?)?);
        Some(SourceLine {
            file: text(self.types.view().string(info.file_name_off)?),
            text: text(self.types.view().string(info.line_off)?),
            line: info.line(),
            column: info.column(),
        })
    }

    /// Returns a structure's number by its name.
    pub fn structure(&self, name: &str) -> Option<u32> {
        self.types.find(kind::STRUCT, name)
    }

    /// Returns a type's name, for messages.
    pub fn name(&self, id: u32) -> &str {
        self.types.name(id)
    }

    /// Returns the bytes of a type.
    pub fn size(&self, id: u32) -> Option<u32> {
        self.types.sized(id).ok().map(|sized| sized.bytes)
    }

    /// Returns the size of a structure that programs may allocate (`bpf_obj_new`).
    pub fn object_size(&self, id: u32) -> Option<u32> {
        let it = self.types.get(id)?;
        (it.kind == kind::STRUCT).then_some(it.size())
    }

    /// Returns the special fields of a structure that programs allocate (`btf_parse_struct_metas`).
    pub fn object_fields(&self, id: u32, kernel: Option<&KernelTypes>) -> Vec<MapField> {
        fields::parse(&self.types, id, FieldHolder::Object, kernel).unwrap_or_default()
    }

    /// Returns the content of `size` bytes at `off` of an allocated structure: numbers, as far as
    /// they may be accessed at all.
    ///
    /// # Errors
    /// `EACCES` if a special field is there; else those of [`KernelTypes::member`].
    pub fn member(
        &self,
        structure: u32,
        off: u32,
        size: u32,
        kernel: Option<&KernelTypes>,
    ) -> Result<Member, Refused> {
        let end = off.saturating_add(size);
        for field in self.object_fields(structure, kernel) {
            if off < field.offset.saturating_add(field.size) && field.offset < end {
                let name = field.kind.name();
                return Err((
                    Errno::EACCES,
                    format!("direct access to {name} is disallowed"),
                ));
            }
        }
        match self.types.walk(structure, off, size)? {
            Step::OtherPointer => Ok(Member::UntrustedMem),
            _ => Ok(Member::Scalar),
        }
    }

    /// Implements `btf_struct_ids_match` among the program's own types.
    pub fn matches(&self, have: u32, off: i32, want: u32, strict: bool) -> bool {
        self.types.matches(have, off, want, strict)
    }

    /// Returns the special fields of a map's value (`btf_parse_fields`), for a type in any BTF.
    ///
    /// A map's BTF comes from the same file as the program's. If the fields make no sense, the
    /// kernel takes the map for one without.
    pub fn map_fields(btf: &[u8], value_type: u32, kernel: Option<&KernelTypes>) -> Vec<MapField> {
        FileTypes::parse(btf.to_vec())
            .map(|types| types.map_fields(value_type, kernel))
            .unwrap_or_default()
    }
}

/// Implements `bpf_find_exception_callback_insn_off`.
fn exception_callback(types: &TypeTable, func_info: &[FuncInfo]) -> Result<Option<usize>, Refused> {
    let Some(main) = func_info.first() else {
        return Ok(None);
    };
    let mut tags = types.tags(main[1], -1, "exception_callback:");
    let Some(name) = tags.next() else {
        return Ok(None);
    };
    let refuse = |errno, line: String| Err((errno, line));
    if tags.next().is_some() {
        let line = "multiple exception callback tags for main subprog";
        return refuse(Errno::EEXIST, line.to_owned());
    }
    let Some(id) = types.find(kind::FUNC, name) else {
        let line = format!("exception callback '{name}' could not be found in BTF");
        return refuse(Errno::ENOENT, line);
    };
    if types.at(id).linkage() != Some(linkage::GLOBAL) {
        let line = format!("exception callback '{name}' must have global linkage");
        return refuse(Errno::EINVAL, line);
    }
    let found = func_info.iter().find(|info| info[1] == id && info[0] != 0);
    let missing = "exception callback type id not found in func_info";
    found.map_or_else(
        || refuse(Errno::EINVAL, missing.to_owned()),
        |info| Ok(Some(info[0] as usize)),
    )
}

fn describe(types: &TypeTable, id: u32, kind: &Kind, kernel: Option<&KernelTypes>) -> FunctionType {
    let global = types.at(id).linkage() == Some(linkage::GLOBAL);
    let result = types.prototype(id).map_or(0, |it| it.refers_to());
    let returns = match types.skip_modifiers(result).1 {
        it if is_number(it) => Returns::Scalar,
        it if it.kind == 0 => Returns::Void,
        _ => Returns::Other,
    };
    FunctionType {
        id,
        name: types.name(id).to_owned(),
        global,
        args: arguments::of(types, id, global, kind, kernel),
        returns,
    }
}

/// Checks that every function is described, in order.
fn check_functions(types: &TypeTable, all: &[FuncInfo], starts: &[usize]) -> Result<(), Refused> {
    let refuse = |line: String| Err((Errno::EINVAL, line));
    let mut previous = 0;
    for (index, &[start, id]) in all.iter().enumerate() {
        if index == 0 && start != 0 {
            return refuse(format!(
                "nonzero insn_off {start} for the first func info record"
            ));
        }
        if index != 0 && start <= previous {
            return refuse(format!(
                "same or smaller insn offset ({start}) than previous func info record ({previous})"
            ));
        }
        previous = start;
        if types.get(id).is_none_or(|it| it.kind != kind::FUNC) {
            return refuse(format!("invalid type id {} in func info", id.cast_signed()));
        }
        if types.prototype(id).is_none() {
            return refuse(String::new());
        }
    }
    if all.is_empty() {
        return Ok(());
    }
    if all.len() != starts.len() {
        return refuse("number of funcs in func_info doesn't match number of subprogs".to_owned());
    }
    if all
        .iter()
        .zip(starts)
        .any(|(info, start)| info[0] as usize != *start)
    {
        return refuse(
            "func_info BTF section doesn't match subprog layout in BPF program".to_owned(),
        );
    }
    Ok(())
}

/// Checks that lines ascend, and that every function begins with one.
fn check_lines(
    types: &TypeTable,
    all: &[LineInfo],
    insns: &[Insn],
    starts: &[usize],
) -> Result<(), Refused> {
    let refuse = |line: String| Err((Errno::EINVAL, line));
    let (mut previous, mut function) = (0, 0);
    for (index, &[insn, file, line, _]) in all.iter().enumerate() {
        if index != 0 && insn <= previous || insn as usize >= insns.len() {
            let len = insns.len();
            return refuse(format!(
                "Invalid line_info[{index}].insn_off:{insn} (prev_offset:{previous} prog->len:{len})"
            ));
        }
        if insns.get(insn as usize).is_none_or(|insn| insn.code == 0) {
            return refuse(format!("Invalid insn code at line_info[{index}].insn_off"));
        }
        let strings = types.view();
        if strings.string(line).is_none() || strings.string(file).is_none() {
            return refuse(format!(
                "Invalid line_info[{index}].line_off or .file_name_off"
            ));
        }
        if let Some(&start) = starts.get(function) {
            if insn as usize == start {
                function += 1;
            } else if start < insn as usize {
                return refuse(format!("missing bpf_line_info for func#{function}"));
            }
        }
        previous = insn;
    }
    if !all.is_empty() && function != starts.len() {
        let missing = starts.len() - function;
        return refuse(format!(
            "missing bpf_line_info for {missing} funcs starting from func#{function}"
        ));
    }
    Ok(())
}
