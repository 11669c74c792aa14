//! Builds the freestanding agent and leaves it as `agent.bin` for the runtime to embed.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use object::{Object, ObjectSection, ObjectSymbol};

const TARGET: &str = "x86_64-unknown-none";

fn main() {
    let agent =
        PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("set by cargo")).join("../agent");
    for part in [
        "../agent/src",
        "../agent/agent.ld",
        "../agent/Cargo.toml",
        "../maps/src",
        "../uapi/src",
        "../isa/src/abi.rs",
    ] {
        println!("cargo::rerun-if-changed={part}");
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo"));
    let elf = build(&agent, &out.join("agent"));
    fs::write(out.join("agent.bin"), blob(&elf)).expect("agent.bin is writable");
}

/// Compiles the agent; gives the path of the linked file.
fn build(agent: &Path, target_dir: &Path) -> PathBuf {
    let script = agent
        .join("agent.ld")
        .canonicalize()
        .expect("agent.ld is there");
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
            "beeline-agent",
            "--bin",
            "beeline-agent",
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
        .current_dir(agent)
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
        "the agent does not build; is the target there? (rustup target add {TARGET})"
    );
    target_dir.join(TARGET).join("release/beeline-agent")
}

/// The blob's bytes, if the file is fit for a target.
fn blob(path: &Path) -> Vec<u8> {
    let bytes = fs::read(path).expect("the agent was linked");
    let elf = object::File::parse(&*bytes).expect("the agent is an ELF file");
    let panics: Vec<_> = elf
        .symbols()
        .filter_map(|s| s.name().ok().map(str::to_owned))
        .filter(|name| name.contains("panic"))
        .collect();
    assert!(
        panics.is_empty(),
        "the agent holds a way to a panic: {panics:?}"
    );
    let text = elf.section_by_name(".text").expect("the agent has code");
    assert_eq!(text.address(), 0, "the agent starts at its table");
    assert!(
        text.relocations().next().is_none(),
        "the agent needs no relocation"
    );
    text.data().expect("the code is in the file").to_vec()
}
