//! The errors during compilation.

use beeline_codegen::Error;
use inkwell::builder::BuilderError;
use inkwell::support::LLVMString;
use inkwell::values::InstructionValueError;

/// The reason that ends a compilation.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// The program is at fault.
    Program(Error),
    /// LLVM is at fault, or this crate.
    Llvm(String),
}

impl Trouble {
    /// Creates a defect from its text.
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self::Llvm(what.into())
    }
}

impl From<Trouble> for Error {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Program(error) => error,
            Trouble::Llvm(what) => Self::Llvm(what),
        }
    }
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Program(error)
    }
}

impl From<BuilderError> for Trouble {
    fn from(error: BuilderError) -> Self {
        Self::Llvm(error.to_string())
    }
}

impl From<InstructionValueError> for Trouble {
    fn from(error: InstructionValueError) -> Self {
        Self::Llvm(error.to_string())
    }
}

impl From<LLVMString> for Trouble {
    fn from(error: LLVMString) -> Self {
        Self::Llvm(error.to_string())
    }
}

impl From<object::Error> for Trouble {
    fn from(error: object::Error) -> Self {
        Self::Llvm(format!("the object file: {error}"))
    }
}

impl From<gimli::Error> for Trouble {
    fn from(error: gimli::Error) -> Self {
        Self::Llvm(format!("the frame table: {error}"))
    }
}
