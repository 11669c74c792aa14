//! Types: what a program's own BTF says of its functions and lines, and what the kernel's BTF says
//! of the structures that a program may look at (`kernel/bpf/btf.c`, Linux 6.18).
//!
//! | module | question |
//! | --- | --- |
//! | `program` | which functions and source lines has the program? |
//! | `arguments` | what does a function of the program take? |
//! | `fields` | which parts of a map's value or an allocated object need helpers? |
//! | `kernel` | what is behind a pointer into the kernel, and how far is it trusted? |
//! | `walk` | what stands at an offset of a structure? |
//! | `writes` | may a program write there? |
//! | `context` | what does a program get that is attached by BTF? |
//! | `attach` | may it attach there? |
//! | `replace` | may it stand in for a function of another program? |
//! | [`kernel_functions`] | which functions of the kernel may it call, and what do they ask? |
//!
//! No BTF is trusted: lookups of what is not there say so, walks are bounded.

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

pub use arguments::FunctionArg;
pub use kernel::{KernelTypes, Member, Trust};
pub use program::{FileTypes, FunctionType, ProgramTypes, Returns, SourceLine};
pub use prototype::{Annotation, KernelParam, ParamType, Prototype};

/// An errno and a line of the log, without a newline; empty where the kernel says nothing.
pub type Refused = (i32, String);

/// "No such file or directory".
const ENOENT: i32 = 2;
/// "No such process": several types have the name.
const ESRCH: i32 = 3;
/// "Bad address".
const EFAULT: i32 = 14;
/// "File exists": two of what there may be one of, or one over another.
const EEXIST: i32 = 17;
/// "Operation not supported".
const EOPNOTSUPP: i32 = 95;
