//! Types: the functions and lines in a program's own BTF, and the structures in the kernel's BTF
//! that a program may look at (`kernel/bpf/btf.c`, Linux 6.18).
//!
//! | module | content |
//! | --- | --- |
//! | `program` | the functions and source lines of the program |
//! | `arguments` | the arguments of the program's functions |
//! | `fields` | the parts of a map's value or an allocated object that need helpers |
//! | `kernel` | the memory behind a pointer into the kernel, and the pointer's trust |
//! | `walk` | the member at an offset of a structure |
//! | `writes` | the members that a program may write |
//! | `context` | the context of a program that is attached by BTF |
//! | `attach` | the places to which a program may attach |
//! | `replace` | the functions of another program that it may replace |
//! | [`kernel_functions`] | the functions of the kernel that it may call, and their requirements |
//!
//! No BTF is trusted: a look-up of something that is missing says so, and walks are bounded.

mod arguments;
mod attach;
mod context;
mod fields;
mod kernel;
mod kernel_function_table;
pub mod kernel_functions;
mod lsm;
mod module_function_table;
mod nullable;
mod program;
mod prototype;
mod replace;
mod table;
mod walk;
mod writes;

use beeline_uapi::Errno;

pub use arguments::FunctionArg;
pub use kernel::{KernelTypes, Member, Trust};
pub use program::{FileTypes, FunctionType, ProgramTypes, Returns, SourceLine};
pub use prototype::{Annotation, KernelParam, ParamType, Prototype};

/// An errno and a line of the log, without a newline; the line is empty if the kernel prints
/// nothing.
pub type Refused = (Errno, String);
