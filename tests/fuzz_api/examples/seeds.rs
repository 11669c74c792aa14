//! Writes the seeds for fuzzing: `seeds DIRECTORY [FILE ...]` makes a folder for each target in the
//! directory. The files are programs with embedded eBPF object files, such as libbpf's tools.

#[path = "../../harness/embedded.rs"]
mod embedded;

use std::path::Path;
use std::{env, fs, io};

use beeline_fuzz_api::{TARGETS, seeds};
use embedded::embedded_objects;

fn main() -> io::Result<()> {
    let mut arguments = env::args().skip(1);
    let directory = arguments.next().ok_or(io::ErrorKind::InvalidInput)?;
    for (target, _) in TARGETS {
        let folder = Path::new(&directory).join(target);
        fs::create_dir_all(&folder)?;
        for (name, bytes) in seeds::of(target) {
            fs::write(folder.join(name), bytes)?;
        }
    }
    for file in arguments {
        let data = fs::read(&file)?;
        for (number, object) in embedded_objects(&data).enumerate() {
            let name = Path::new(&file).file_name().unwrap_or_default();
            let name = format!("{}-{number}", name.to_string_lossy());
            fs::write(Path::new(&directory).join("object").join(name), object)?;
        }
    }
    Ok(())
}
