//! Calls of kernel functions: the same verdict, error number and last words from the kernel and
//! from here.

mod asm;
mod dynptrs;
mod ends;
mod iterators;
mod objects;
mod oracle;
mod sections;
