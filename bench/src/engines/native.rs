//! The same C, compiled for this machine.

use super::contest::{Contestant, Outcome, Prepared, timed_calls};
use super::programs::Program;
use super::workshop::{Memory, Workshop};
use anyhow::bail;
use beeline_isa::abi::Entry;
use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// clang -O2, with some of the machine's registers or all.
pub struct Native {
    name: &'static str,
    options: &'static [&'static str],
}

impl Native {
    /// With the registers that compiled programs may use: the general ones.
    pub const GENERAL_REGISTERS: Native = Native {
        name: "native",
        options: &["-shared", "-fPIC", "-mgeneral-regs-only"],
    };
    /// With vector registers too, which a probe would have to save.
    pub const ALL_REGISTERS: Native = Native {
        name: "with vectors",
        options: &["-shared", "-fPIC"],
    };
}

impl Contestant for Native {
    fn name(&self) -> &'static str {
        self.name
    }

    fn prepare(&self, program: &Program, workshop: &Workshop) -> anyhow::Result<Box<dyn Prepared>> {
        let kind = format!("{}.so", self.name.replace(' ', "-"));
        let library = workshop.compile(program, &kind, self.options)?;
        Ok(Box::new(Loaded {
            run: find_run(&library)?,
            memory: Memory::of(&program.memory()),
        }))
    }
}

struct Loaded {
    run: Entry,
    memory: Memory,
}

impl Prepared for Loaded {
    fn run(&mut self, times: u32) -> anyhow::Result<Outcome> {
        // SAFETY: the program works on its memory only.
        Ok(unsafe { timed_calls(self.run, self.memory.start(), times) })
    }
}

/// Loads a library, for good, and finds its function.
fn find_run(library: &Path) -> anyhow::Result<Entry> {
    let path = CString::new(library.as_os_str().as_bytes())?;
    // SAFETY: the library contains nothing but one function.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() {
        // SAFETY: after a failure there is a message, which stays until the next call.
        let why = unsafe { CStr::from_ptr(libc::dlerror()) };
        bail!("{}", why.to_string_lossy());
    }
    // SAFETY: the handle is valid: `dlopen` has just returned it, and it was not null.
    let symbol = unsafe { libc::dlsym(handle, c"run".as_ptr()) };
    if symbol.is_null() {
        bail!("{} has no function run", library.display());
    }
    // SAFETY: the programs define this function with that type, except for the second argument,
    // which it then does not look at.
    Ok(unsafe { std::mem::transmute::<*mut libc::c_void, Entry>(symbol) })
}
