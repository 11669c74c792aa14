//! Code linked into traced processes must not be able to panic, format text or touch vector
//! registers.

use std::{path::PathBuf, process::Command};

#[test]
fn freestanding_build_holds_no_panic() {
    const TARGET: &str = "x86_64-unknown-none";
    let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("freestanding");
    let build = Command::new(env!("CARGO"))
        .args([
            "rustc",
            "--offline",
            "--release",
            "--lib",
            "--target",
            TARGET,
            "--manifest-path",
        ])
        .args([
            concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"),
            "--",
            "--emit=obj",
        ])
        .args(["-Ccodegen-units=1", "-Cdebuginfo=0"])
        .env("CARGO_TARGET_DIR", &out)
        .output()
        .expect("cargo runs");
    let errors = String::from_utf8_lossy(&build.stderr);
    if errors.contains("target may not be installed") {
        eprintln!("skipped: no {TARGET} target; `rustup target add {TARGET}` installs it");
        return;
    }
    assert!(build.status.success(), "{errors}");
    let object = std::fs::read_dir(out.join(TARGET).join("release/deps"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.extension().is_some_and(|extension| extension == "o"))
        .expect("an object file");
    let bytes = std::fs::read(object).unwrap();
    for word in ["panic", "core3fmt", "len_mismatch"] {
        let holds = bytes
            .windows(word.len())
            .any(|window| window == word.as_bytes());
        assert!(
            !holds,
            "a symbol with `{word}` is in the freestanding object"
        );
    }
}
