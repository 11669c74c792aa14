//! Accept or reject an eBPF program, and say what it uses.
//!
//! [`check`] looks at a program's structure: every instruction is defined, every jump lands inside its function,
//! every call goes somewhere, no register is read that was never written, the frame pointer stays within its
//! stack, and the program names only helpers and maps that exist. What it refuses the kernel refuses too, with the
//! same error number and a log in the same manner. It does not yet follow values: pointer arithmetic, bounds of memory
//! accesses, argument types and the end of loops are taken on trust.
//!
//! [`Flow`] is what it learns about the shape of a program; the compiler starts from the same. [`resolve`] turns the
//! map descriptors of an accepted program into the indexes that compiled code uses.

mod check;
mod flow;
mod registers;
mod reject;
mod resolve;

pub use check::{MapFacts, MapUse, Rules, Summary, check};
pub use flow::{Flow, Function, MAX_FRAMES, MAX_INSNS};
pub use reject::{E2BIG, EACCES, EBADF, EINVAL, ENOTSUPP, EPROTO, Reject};
pub use resolve::{Unresolved, resolve};
