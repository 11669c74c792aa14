//! A directory for one test, and the programs built in it.

use crate::find_program;
use object::{Object, ObjectSegment, ObjectSymbol};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A directory that any user can read, removed at the end of the test.
pub struct Scratch(tempfile::TempDir);

impl Scratch {
    /// Creates an empty directory.
    pub fn new() -> Scratch {
        let directory = tempfile::Builder::new().prefix("beeline-e2e-").tempdir();
        let directory = directory.expect("cannot make a temporary directory");
        let everybody = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(directory.path(), everybody)
            .expect("cannot open the directory to all");
        Scratch(directory)
    }

    /// Returns the directory.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Builds `workloads/NAME` as the usual position-independent program.
    ///
    /// Each test builds its own copy: the kernel's probes belong to the file, so two tests must not
    /// share one.
    pub fn build(&self, name: &str) -> PathBuf {
        self.build_with(name, &[])
    }

    /// Builds `workloads/NAME` (C, or C++ by its suffix) with more options for the compiler.
    pub fn build_with(&self, name: &str, options: &[&str]) -> PathBuf {
        let is_cpp = name.ends_with(".cpp");
        self.build_by(Path::new(if is_cpp { "g++" } else { "gcc" }), name, options)
    }

    /// Builds like [`Scratch::build_with`], with another compiler that takes gcc's options.
    pub fn build_by(&self, compiler: &Path, name: &str, options: &[&str]) -> PathBuf {
        let (source, built) = (workload(name), self.built(name));
        let mut compiler = Command::new(compiler);
        compiler
            .args(["-O1", "-fno-omit-frame-pointer", "-fcf-protection", "-o"])
            .arg(&built);
        compiler
            .arg(&source)
            .args(options)
            .args(["-lpthread", "-ldl"]);
        run_to_success(compiler);
        built
    }

    /// Builds `workloads/NAME`, a Go program, by itself: no module, no network.
    pub fn build_go(&self, go: &Path, name: &str) -> PathBuf {
        let built = self.built(name);
        let mut compiler = Command::new(go);
        compiler
            .args(["build", "-o"])
            .arg(&built)
            .arg(workload(name));
        compiler
            .env("CGO_ENABLED", "0")
            .env("GO111MODULE", "off")
            .current_dir(self.path());
        if std::env::var_os("HOME").is_none() {
            compiler.env("GOCACHE", self.path().join("cache"));
        }
        run_to_success(compiler);
        built
    }

    /// Builds `workloads/NAME`, a Rust program of one file.
    pub fn build_rust(&self, rustc: &Path, name: &str) -> PathBuf {
        let built = self.built(name);
        let mut compiler = Command::new(rustc);
        compiler
            .args(["-O", "--edition", "2024", "-o"])
            .arg(&built)
            .arg(workload(name));
        run_to_success(compiler);
        built
    }

    /// Builds `workloads/NAME`, eBPF programs in C, to an object file with types.
    ///
    /// # Errors
    /// There is no compiler.
    pub fn build_bpf(&self, name: &str) -> Result<PathBuf, String> {
        let built = self.built(name).with_extension("o");
        let mut compiler = Command::new(find_program("clang")?);
        compiler
            .args(["-target", "bpf", "-g", "-O2", "-D__TARGET_ARCH_x86"])
            .args(["-I/usr/include/x86_64-linux-gnu", "-c", "-o"])
            .arg(&built)
            .arg(workload(name));
        run_to_success(compiler);
        Ok(built)
    }

    /// Returns the path of the program of a source file.
    fn built(&self, name: &str) -> PathBuf {
        self.path()
            .join(Path::new(name).file_stem().unwrap_or_default())
    }

    /// Builds a 32-bit program from assembly with no library, for machines without 32-bit
    /// libraries.
    pub fn build_32_bit(&self, name: &str) -> PathBuf {
        let (object, built) = (
            self.path().join("object32.o"),
            self.path().join("program32"),
        );
        let mut assembler = Command::new("as");
        assembler
            .args(["--32", "-o"])
            .arg(&object)
            .arg(workload(name));
        run_to_success(assembler);
        let mut linker = Command::new("ld");
        linker
            .args(["-m", "elf_i386", "-o"])
            .arg(&built)
            .arg(object);
        run_to_success(linker);
        built
    }
}

impl Default for Scratch {
    fn default() -> Self {
        Scratch::new()
    }
}

/// Returns the source of a workload.
pub fn workload(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("workloads")
        .join(name)
}

fn run_to_success(mut command: Command) {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?} failed: {said}");
}

/// Returns the offset of a function in its ELF file, which `perf_event_open` needs.
///
/// # Errors
/// Fails if the file cannot be read, is no ELF file, or does not define the function.
pub fn file_offset(file: &Path, symbol: &str) -> Result<u64, String> {
    let bytes =
        std::fs::read(file).map_err(|error| format!("cannot read {}: {error}", file.display()))?;
    let elf =
        object::File::parse(&*bytes).map_err(|error| format!("{}: {error}", file.display()))?;
    let address = elf
        .symbols()
        .chain(elf.dynamic_symbols())
        .find(|s| s.name() == Ok(symbol) && s.is_definition())
        .ok_or_else(|| format!("{} has no symbol {symbol}", file.display()))?
        .address();
    elf.segments()
        .find(|s| (s.address()..s.address() + s.size()).contains(&address))
        .map(|s| address - s.address() + s.file_range().0)
        .ok_or_else(|| format!("{symbol} is in no segment of {}", file.display()))
}
