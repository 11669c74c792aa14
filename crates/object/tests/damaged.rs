//! A file of any bytes is either read or refused.

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use beeline_object::{Kernel, Object};
use proptest::prelude::*;

/// A kernel with the types of the given file.
#[derive(Clone)]
struct Same(Vec<u8>);

impl Kernel for Same {
    fn btf(&self) -> Option<&[u8]> {
        Some(&self.0)
    }

    fn version(&self) -> u32 {
        0x06_0c_00
    }

    fn config(&self, _: &str) -> Option<String> {
        Some("\"some text\"".into())
    }

    fn symbol(&self, _: &str) -> Option<u64> {
        None
    }
}

fn sample(name: &str) -> Vec<u8> {
    let file = format!("damaged-{}.o", name.replace('/', "-"));
    let object = Path::new(env!("CARGO_TARGET_TMPDIR")).join(file);
    // Older kernels know no arenas.
    let done = Command::new("clang-19")
        .args(["-target", "bpf", "-mcpu=v3", "-g", "-O2", "-c", "-o"])
        .arg(&object)
        .arg(format!(
            "{}/tests/programs/{name}.c",
            env!("CARGO_MANIFEST_DIR")
        ))
        .arg("-I/usr/include/x86_64-linux-gnu")
        .status()
        .unwrap();
    assert!(done.success());
    std::fs::read(object).unwrap()
}

const SOURCES: [&str; 7] = [
    "linked",
    "fields",
    "externs",
    "sizes",
    "operations",
    "newer/arena",
    "old/maps",
];

fn samples() -> &'static [(Vec<u8>, Same)] {
    static SAMPLES: OnceLock<Vec<(Vec<u8>, Same)>> = OnceLock::new();
    SAMPLES.get_or_init(|| {
        let with_types = |name| {
            let data = sample(name);
            let btf = Object::parse(&data, &Same(Vec::new())).map(|object| object.btf);
            let btf = btf.unwrap_or_else(|_| std::fs::read("/sys/kernel/btf/vmlinux").unwrap());
            (data, Same(btf))
        };
        SOURCES.map(with_types).to_vec()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn damaged_files_are_read_or_refused(
        which in 0..SOURCES.len(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
        cut in proptest::option::of(any::<prop::sample::Index>()),
    ) {
        let (data, kernel) = &samples()[which];
        let mut data = data.clone();
        for (place, byte) in changes {
            let place = place.index(data.len());
            data[place] = byte;
        }
        if let Some(cut) = cut {
            data.truncate(cut.index(data.len()));
        }
        if let Ok(object) = Object::parse(&data, kernel) {
            for program in &object.programs {
                prop_assert!(!program.insns.is_empty());
                prop_assert!(program.lines.iter().all(|line| line.insn < program.insns.len()));
            }
        }
    }
}
