//! The same C as WebAssembly, by wasmtime with its optimizing compiler.

use anyhow::Context;
use beeline_bench::engines::{
    Contestant, Outcome, Prepared, Program, Workshop, run_to_success, timed,
};
use std::path::{Path, PathBuf};
use std::process::Command;
use wasmtime::{Engine, Instance, Module, Store, TypedFunc};

/// wasmtime.
pub struct Wasmtime;

/// Bytes of a page of WebAssembly's memory.
const PAGE: usize = 1 << 16;

impl Contestant for Wasmtime {
    fn name(&self) -> &'static str {
        "wasmtime"
    }

    fn prepare(&self, program: &Program, workshop: &Workshop) -> anyhow::Result<Box<dyn Prepared>> {
        let object = workshop.compile(program, "wasm.o", &["--target=wasm32", "-c"])?;
        let engine = Engine::default();
        let module = Module::new(&engine, std::fs::read(link(&object)?)?)?;
        let mut store = Store::new(&engine, ());
        let instance = Instance::new(&mut store, &module, &[])?;
        let run = instance.get_typed_func::<u32, u64>(&mut store, "run")?;
        let memory = instance
            .get_memory(&mut store, "memory")
            .context("the module has no memory")?;
        // A page to itself, so that it is as well aligned as everybody's.
        let bytes = program.memory();
        let start = memory.data_size(&store);
        memory.grow(&mut store, bytes.len().div_ceil(PAGE) as u64)?;
        memory.write(&mut store, start, &bytes)?;
        Ok(Box::new(Loaded {
            store,
            run,
            start: u32::try_from(start)?,
        }))
    }
}

/// Links an object into a module, by the linker that comes with Rust.
fn link(object: &Path) -> anyhow::Result<PathBuf> {
    let sysroot = Command::new("rustc")
        .args(["--print", "sysroot"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .context("rustc is needed for its linker")?;
    let sysroot = String::from_utf8(sysroot.stdout)?;
    let linker = format!(
        "{}/lib/rustlib/{}-unknown-linux-gnu/bin/rust-lld",
        sysroot.trim(),
        std::env::consts::ARCH
    );
    let module = object.with_extension("wasm");
    let mut command = Command::new(linker);
    command
        .args(["-flavor", "wasm", "--no-entry", "--export=run", "-o"])
        .arg(&module)
        .arg(object);
    run_to_success(&mut command)?;
    Ok(module)
}

struct Loaded {
    store: Store<()>,
    run: TypedFunc<u32, u64>,
    start: u32,
}

impl Prepared for Loaded {
    fn run(&mut self, times: u32) -> anyhow::Result<Outcome> {
        let mut failure = None;
        let outcome = timed(times, || {
            let result = self.run.call(&mut self.store, self.start);
            result.unwrap_or_else(|why| {
                failure = Some(why);
                0
            })
        });
        failure.map_or(Ok(outcome), |why| Err(why.into()))
    }
}
