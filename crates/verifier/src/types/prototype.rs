//! The arguments and the result of a kernel function, from its prototype and the suffixes of its
//! parameters' names.

use beeline_btf::{Type, kind};
use beeline_uapi::ProgramType;
use beeline_uapi::limits::MAX_SCALAR_STRUCT_DEPTH;

use super::table::{TypeTable, is_number, is_struct, text};
use super::{KernelTypes, ProgramTypes, arguments};
use crate::program::Kind;

/// A kernel function's prototype.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prototype<'a> {
    /// The parameters in r1 ... r5.
    pub params: Vec<KernelParam<'a>>,
    /// The result in r0.
    pub result: ParamType,
}

/// A parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelParam<'a> {
    /// The name with its suffix.
    pub name: &'a str,
    /// The meaning of the suffix.
    pub annotation: Option<Annotation>,
    /// The type of the argument.
    pub is: ParamType,
}

/// The type of an argument or a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParamType {
    /// Nothing.
    Void,
    /// A number of so many bytes.
    Number {
        /// 1, 2, 4 or 8.
        bytes: u32,
    },
    /// `void *`.
    Anything,
    /// A pointer to a number, or to an array of some.
    Numbers {
        /// The type it points to, in the kernel's BTF.
        btf_id: u32,
        /// The bytes of that type.
        bytes: u32,
    },
    /// A pointer to a structure or union.
    Structure {
        /// The structure, in the kernel's BTF.
        btf_id: u32,
        /// The bytes; `None` for a structure that is only named.
        bytes: Option<u32>,
        /// True if it contains only numbers. Then any memory of its size will do.
        only_numbers: bool,
    },
    /// A pointer to a function.
    Callback,
    /// A structure itself, a pointer to a pointer ...
    Other,
}

/// The meaning of the end of a parameter's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Annotation {
    /// `__sz`: the size of the parameter before it.
    Size,
    /// `__szk`: the size of the parameter before it, a constant.
    ConstantSize,
    /// `__k`: a constant.
    Constant,
    /// `__ign`: anything.
    Ignored,
    /// `__uninit`: it is filled in.
    Uninit,
    /// `__opt`: its size says whether it is there.
    Optional,
    /// `__nullable`.
    Nullable,
    /// `__str`: a constant string.
    String,
    /// `__map`.
    Map,
    /// `__alloc`: an object that the program allocated.
    Allocated,
    /// `__refcounted_kptr`: an object with a reference count.
    RefCounted,
    /// `__irq_flag`.
    IrqFlag,
    /// `__prog`: the verifier passes the program itself.
    Program,
    /// A parameter named `rdonly_buf_size`: the bytes of read-only memory that is returned.
    ReadOnlyResultSize,
    /// A parameter named `rdwr_buf_size`.
    ResultSize,
}

/// The suffixes; if one ends with another, the longer one comes first.
const SUFFIXES: [(&str, Annotation); 13] = [
    ("__szk", Annotation::ConstantSize),
    ("__sz", Annotation::Size),
    ("__k", Annotation::Constant),
    ("__ign", Annotation::Ignored),
    ("__uninit", Annotation::Uninit),
    ("__opt", Annotation::Optional),
    ("__nullable", Annotation::Nullable),
    ("__str", Annotation::String),
    ("__map", Annotation::Map),
    ("__alloc", Annotation::Allocated),
    ("__refcounted_kptr", Annotation::RefCounted),
    ("__irq_flag", Annotation::IrqFlag),
    ("__prog", Annotation::Program),
];

impl KernelTypes {
    /// Returns the prototype of a function (`FUNC`).
    pub fn prototype(&self, function: u32) -> Option<Prototype<'_>> {
        let prototype = self.types.prototype(function)?;
        let params = self.types.params(prototype).map(|param| {
            let name = text(param.name);
            KernelParam {
                name,
                annotation: annotation(name),
                is: self.passed(param.type_id),
            }
        });
        Some(Prototype {
            params: params.collect(),
            result: self.passed(prototype.refers_to()),
        })
    }

    fn passed(&self, id: u32) -> ParamType {
        let (_, it) = self.types.skip_modifiers(id);
        match it.kind {
            0 => ParamType::Void,
            kind::PTR => self.pointer(it),
            _ if is_number(it) => ParamType::Number { bytes: it.size() },
            _ => ParamType::Other,
        }
    }

    fn pointer(&self, pointer: Type<'_>) -> ParamType {
        let (btf_id, target) = self.types.target(pointer);
        let bytes = self.size(btf_id);
        match target.kind {
            0 => ParamType::Anything,
            kind::FUNC_PROTO => ParamType::Callback,
            kind::FWD => ParamType::Structure {
                btf_id,
                bytes: None,
                only_numbers: false,
            },
            _ if is_struct(target) => ParamType::Structure {
                btf_id,
                bytes,
                only_numbers: has_only_numbers(&self.types, target, MAX_SCALAR_STRUCT_DEPTH),
            },
            _ => match bytes {
                Some(bytes) if target.kind != kind::PTR => ParamType::Numbers { btf_id, bytes },
                _ => ParamType::Other,
            },
        }
    }

    /// Returns the result of the function that a program of this kind stands for; `None` if it
    /// stands for none.
    pub fn hook_result(&self, kind: &Kind) -> Option<ParamType> {
        match kind.prog_type {
            ProgramType::LSM => Some(self.prototype(kind.attach_btf_id)?.result),
            ProgramType::STRUCT_OPS => {
                let mut members = self.types.members(self.types.at(kind.attach_btf_id));
                let member = members.nth(kind.attach_type.0 as usize)?;
                let (_, pointer) = self.types.skip_modifiers(member.type_id);
                let (_, prototype) = self.types.target(pointer);
                (prototype.kind == kind::FUNC_PROTO).then(|| self.passed(prototype.refers_to()))
            }
            _ => None,
        }
    }

    /// Returns whether a pointer to this structure is the context of programs of the type
    /// (`btf_is_prog_ctx_type`).
    pub fn is_context(&self, structure: u32, prog_type: ProgramType) -> bool {
        arguments::is_named_as_context(self.name(structure), prog_type)
    }
}

impl ProgramTypes {
    /// Returns whether it is a structure without pointers.
    pub fn has_only_numbers(&self, structure: u32) -> bool {
        has_only_numbers(
            &self.types,
            self.types.at(structure),
            MAX_SCALAR_STRUCT_DEPTH,
        )
    }
}

/// Implements `__btf_type_is_scalar_struct`; to the kernel a union is a structure.
fn has_only_numbers(types: &TypeTable, it: Type<'_>, depth: u32) -> bool {
    let Some(depth) = depth.checked_sub(1) else {
        return false;
    };
    is_struct(it)
        && types.members(it).all(|member| {
            let (_, mut it) = types.skip_modifiers(member.type_id);
            if is_struct(it) {
                return has_only_numbers(types, it, depth);
            }
            if let Some((element, count)) = it.array() {
                if count == 0 {
                    return false;
                }
                it = types.skip_modifiers(element).1;
            }
            is_number(it)
        })
}

fn annotation(name: &str) -> Option<Annotation> {
    match name {
        "rdonly_buf_size" => return Some(Annotation::ReadOnlyResultSize),
        "rdwr_buf_size" => return Some(Annotation::ResultSize),
        _ => {}
    }
    let found = SUFFIXES.iter().find(|(suffix, _)| name.ends_with(suffix));
    found.map(|(_, annotation)| *annotation)
}
