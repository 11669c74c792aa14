//! Object files from sources in tests.

use std::fs;
use std::path::Path;
use std::process::Command;

/// Compiles a source with clang 19; returns `None`, with a message, without it.
pub fn compiled(name: &str, source: &str) -> Option<Vec<u8>> {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let source_file = directory.join(name).with_extension("c");
    let object = source_file.with_extension("o");
    fs::write(&source_file, source).expect("the target directory can be written to");
    let clang = Command::new("clang-19")
        .args(["-target", "bpf", "-g", "-O2", "-c", "-o"])
        .args([&object, &source_file])
        .status();
    match clang {
        Ok(status) => assert!(status.success(), "clang-19 fails"),
        Err(_) => {
            eprintln!("skipped: there is no clang-19");
            return None;
        }
    }
    Some(fs::read(object).expect("clang made it"))
}
