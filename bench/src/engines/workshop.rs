//! Programs compiled by clang, each for its contestants.

use super::programs::Program;
use anyhow::{Context, bail, ensure};
use beeline_e2e::Scratch;
use object::{Object, ObjectSection, ObjectSymbol};
use std::alloc::Layout;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The directory in which programs are compiled; removed at the end.
pub struct Workshop(Scratch);

impl Workshop {
    /// Creates an empty one.
    ///
    /// # Errors
    /// Fails if there is no clang.
    pub fn new() -> anyhow::Result<Workshop> {
        let version = Command::new("clang").arg("--version").output();
        version.context("clang is needed; install it")?;
        Ok(Workshop(Scratch::new()))
    }

    /// Compiles a program to `NAME.KIND`, optimized and with no calls to a C library.
    ///
    /// The loops stay loops: they do not become calls of `memcpy`.
    ///
    /// # Errors
    /// Fails if clang does: the text is clang's.
    pub fn compile(
        &self,
        program: &Program,
        kind: &str,
        options: &[&str],
    ) -> anyhow::Result<PathBuf> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("programs")
            .join(program.name)
            .with_extension("c");
        let built = self.0.path().join(format!("{}.{kind}", program.name));
        let mut clang = Command::new("clang");
        clang
            .args(["-O2", "-fno-builtin", "-Wall", "-Werror", "-o"])
            .arg(&built)
            .args(options)
            .arg(&source);
        run_to_success(&mut clang)?;
        Ok(built)
    }

    /// Returns its eBPF instructions, for a version of the instruction set: "v2", "v3".
    ///
    /// # Errors
    /// Fails if clang does, or if the program is more than one function.
    pub fn bytecode(&self, program: &Program, version: &str) -> anyhow::Result<Vec<u8>> {
        let cpu = format!("-mcpu={version}");
        let built = self.compile(program, version, &["-target", "bpf", "-c", &cpu])?;
        let file = std::fs::read(built)?;
        let object = object::File::parse(&*file)?;
        let run = object
            .symbol_by_name("run")
            .context("there is no function run")?;
        let section = run
            .section_index()
            .context("the function is in no section")?;
        let section = object.section_by_index(section)?;
        ensure!(
            run.address() == 0 && section.relocations().next().is_none(),
            "{} is more than one function and nothing else",
            program.name
        );
        Ok(section.data()?.to_vec())
    }
}

/// Runs a compiler or linker.
///
/// # Errors
/// Fails if the command does not succeed.
pub fn run_to_success(command: &mut Command) -> anyhow::Result<()> {
    let output = command
        .output()
        .with_context(|| format!("cannot run {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

/// A program's memory, on a page's boundary for each contestant alike.
pub struct Memory {
    start: *mut u8,
    layout: Layout,
}

impl Memory {
    /// Creates a copy.
    pub fn of(bytes: &[u8]) -> Memory {
        let layout = Layout::from_size_align(bytes.len().max(1), 4096)
            .expect("a page's size is a power of 2");
        // SAFETY: the layout's size is not zero.
        let start = unsafe { std::alloc::alloc(layout) };
        if start.is_null() {
            std::alloc::handle_alloc_error(layout);
        }
        // SAFETY: the memory is as long as the bytes, and has just been allocated, so it does not
        // overlap them.
        unsafe { start.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Memory { start, layout }
    }

    /// Returns its first byte.
    pub fn start(&self) -> *mut u8 {
        self.start
    }

    /// Returns its length.
    pub fn len(&self) -> usize {
        self.layout.size()
    }

    /// Returns false: there is always a byte.
    pub fn is_empty(&self) -> bool {
        false
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the memory was allocated with this layout, and is freed once.
        unsafe { std::alloc::dealloc(self.start, self.layout) };
    }
}
