//! Builds the freestanding image and leaves it as `image.bin` for the runtime to embed.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use object::{Object, ObjectSection, ObjectSymbol};

const TARGET: &str = "x86_64-unknown-none";

fn main() {
    let image =
        PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("set by cargo")).join("../image");
    for part in [
        "../image/src",
        "../image/image.ld",
        "../image/Cargo.toml",
        "../maps/src",
        "../uapi/src",
        "../isa/src/abi.rs",
    ] {
        println!("cargo::rerun-if-changed={part}");
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo"));
    let elf = build(&image, &out.join("image"));
    fs::write(out.join("image.bin"), blob(&elf)).expect("image.bin is writable");
}

/// Compiles the image; gives the path of the linked file.
fn build(image: &Path, target_dir: &Path) -> PathBuf {
    let script = image
        .join("image.ld")
        .canonicalize()
        .expect("image.ld is there");
    let flags = [
        "-Crelocation-model=pie",
        "-Clink-arg=--no-pie",
        "-Clink-arg=--gc-sections",
        "-Clink-arg=-znognustack",
        &format!("-Clink-arg=-T{}", script.display()),
    ];
    let mut cargo = Command::new(env::var_os("CARGO").expect("set by cargo"));
    cargo
        .args([
            "build",
            "--package",
            "beeline-image",
            "--bin",
            "beeline-image",
            "--release",
            "--target",
            TARGET,
        ])
        .args([
            "--config",
            "profile.release.lto=\"fat\"",
            "--config",
            "profile.release.codegen-units=1",
        ])
        .args(["--config", "profile.release.panic=\"abort\""])
        .arg("--target-dir")
        .arg(target_dir)
        .current_dir(image)
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"));
    // A lint run must not lint through this build, nor hand its own wrapper down.
    for variable in [
        "RUSTC_WORKSPACE_WRAPPER",
        "RUSTC_WRAPPER",
        "CARGO_BUILD_TARGET",
        "RUSTFLAGS",
    ] {
        cargo.env_remove(variable);
    }
    let status = cargo.status().expect("cargo runs");
    assert!(
        status.success(),
        "the image does not build; is the target there? (rustup target add {TARGET})"
    );
    target_dir.join(TARGET).join("release/beeline-image")
}

/// The blob's bytes, if the file is fit for a target.
fn blob(path: &Path) -> Vec<u8> {
    let bytes = fs::read(path).expect("the image was linked");
    let elf = object::File::parse(&*bytes).expect("the image is an ELF file");
    let panics: Vec<_> = elf
        .symbols()
        .filter_map(|s| s.name().ok().map(str::to_owned))
        .filter(|name| name.contains("panic"))
        .collect();
    assert!(
        panics.is_empty(),
        "the image holds a way to a panic: {panics:?}"
    );
    let text = elf.section_by_name(".text").expect("the image has code");
    assert_eq!(text.address(), 0, "the image starts at its table");
    assert!(
        text.relocations().next().is_none(),
        "the image needs no relocation"
    );
    text.data().expect("the code is in the file").to_vec()
}
