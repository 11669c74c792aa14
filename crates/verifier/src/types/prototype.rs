//! What a kernel function takes and gives, by its prototype and the suffixes of its parameters'
//! names.

use beeline_btf::{Type, kind};
use beeline_uapi::ProgramType;

use super::table::{TypeTable, is_number, is_struct, text};
use super::{KernelTypes, ProgramTypes, arguments};
use crate::program::Kind;

/// A kernel function's prototype.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prototype<'a> {
    /// Of r1 ... r5.
    pub params: Vec<KernelParam<'a>>,
    /// Of r0.
    pub result: ParamType,
}

/// A parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelParam<'a> {
    /// With its suffix.
    pub name: &'a str,
    /// What the suffix says.
    pub annotation: Option<Annotation>,
    /// What is passed.
    pub is: ParamType,
}

/// What is passed or returned.
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
        /// What it leads to, in the kernel's BTF.
        btf_id: u32,
        /// Bytes.
        bytes: u32,
    },
    /// A pointer to a structure or union.
    Structure {
        /// Which, in the kernel's BTF.
        btf_id: u32,
        /// Bytes; `None` for a structure that is only named.
        bytes: Option<u32>,
        /// Are there only numbers in it? Then any memory of its size will do.
        only_numbers: bool,
    },
    /// A pointer to a function.
    Callback,
    /// A structure itself, a pointer to a pointer ...
    Other,
}

/// What the end of a parameter's name says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Annotation {
    /// `__sz`: the size of the parameter before it.
    Size,
    /// `__szk`: the same, a constant.
    ConstantSize,
    /// `__k`: a constant.
    Constant,
    /// `__ign`: anything.
    Ignored,
    /// `__uninit`: it is filled in.
    Uninit,
    /// `__opt`: its size says if it is there.
    Optional,
    /// `__nullable`.
    Nullable,
    /// `__str`: a constant string.
    String,
    /// `__map`.
    Map,
    /// `__alloc`: an object that the program allocated.
    Allocated,
    /// `__refcounted_kptr`: one with a reference count.
    RefCounted,
    /// `__irq_flag`.
    IrqFlag,
    /// `__prog`: the verifier passes the program itself.
    Program,
    /// A parameter by the name `rdonly_buf_size`: bytes of read-only memory that is returned.
    ReadOnlyResultSize,
    /// A parameter by the name `rdwr_buf_size`.
    ResultSize,
}

/// Suffixes; the longer ones first where one ends with another.
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

/// Structures in structures that are looked into (`__btf_type_is_scalar_struct`).
const DEEPEST: u32 = 4;

impl KernelTypes {
    /// The prototype of a function (`FUNC`).
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
                only_numbers: has_only_numbers(&self.types, target, DEEPEST),
            },
            _ => match bytes {
                Some(bytes) if target.kind != kind::PTR => ParamType::Numbers { btf_id, bytes },
                _ => ParamType::Other,
            },
        }
    }

    /// What the function returns that a program of this kind stands for; `None` where it stands for
    /// none.
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

    /// Is a pointer to this structure what programs of the type have for a context
    /// (`btf_is_prog_ctx_type`)?
    pub fn is_context(&self, structure: u32, prog_type: ProgramType) -> bool {
        arguments::is_named_as_context(self.name(structure), prog_type)
    }
}

impl ProgramTypes {
    /// Is it a structure without pointers?
    pub fn has_only_numbers(&self, structure: u32) -> bool {
        has_only_numbers(&self.types, self.types.at(structure), DEEPEST)
    }
}

/// `__btf_type_is_scalar_struct`; to the kernel a union is a structure.
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
