//! Machine code that runs in this process.

use std::{io, ptr};

use beeline_isa::abi::{Entry, Run};

use crate::code::{Code, Error};
use crate::engine::{Context, Fault, Runnable};

/// Compiled code in executable memory.
#[derive(Debug)]
pub struct Executable {
    memory: *mut libc::c_void,
    code: Code,
}

// SAFETY: the memory is only read and executed, from any thread.
unsafe impl Send for Executable {}
// SAFETY: the memory is only read and executed, from any thread.
unsafe impl Sync for Executable {}

impl Executable {
    /// Maps code of this process's machine.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub fn of(code: Code) -> Result<Self, Error> {
        let failed = || Error::NoMemory(io::Error::last_os_error().to_string());
        let bytes = code.bytes.len().max(1);
        // SAFETY: a new anonymous mapping touches no existing memory.
        let memory = unsafe {
            libc::mmap(
                ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if memory == libc::MAP_FAILED {
            return Err(failed());
        }
        let executable = Self { memory, code };
        // SAFETY: the mapping is writable, at least as long as the code, and nothing else refers to
        // it. The kernel takes care of instruction fetches past the bytes just written when it
        // makes pages executable.
        let protected = unsafe {
            ptr::copy_nonoverlapping(
                executable.code.bytes.as_ptr(),
                memory.cast(),
                executable.code.bytes.len(),
            );
            libc::mprotect(memory, bytes, libc::PROT_READ | libc::PROT_EXEC)
        };
        if protected != 0 {
            return Err(failed());
        }
        Ok(executable)
    }

    /// Returns the address of the first instruction.
    pub fn entry(&self) -> usize {
        self.memory.expose_provenance()
    }

    /// Returns the code.
    pub fn code(&self) -> &Code {
        &self.code
    }

    /// Runs the program.
    ///
    /// # Safety
    /// The program accesses only its stack and what `context` and `run` lead to.
    #[inline]
    pub unsafe fn call(&self, context: *const u8, run: *const Run) -> u64 {
        // SAFETY: the memory holds a compiled program, which is entered at its first byte.
        let entry: Entry = unsafe { std::mem::transmute(self.memory) };
        // SAFETY: the caller of `call` promises that the program accesses only its stack and what
        // `context` and `run` lead to.
        unsafe { entry(context, run) }
    }
}

impl Runnable for Executable {
    unsafe fn run(&self, context: Context, run: &Run) -> Result<u64, Fault> {
        // SAFETY: the caller of `run` promises that `run` is whole, and that the program accesses
        // only its stack and what `context` and `run` lead to.
        Ok(unsafe { self.call(context.start, run) })
    }

    fn code(&self) -> Option<&Code> {
        Some(&self.code)
    }
}

impl Drop for Executable {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing points into it any more.
        unsafe { libc::munmap(self.memory, self.code.bytes.len().max(1)) };
    }
}
