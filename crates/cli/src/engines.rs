//! Chooses the engines of a session.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use beeline_codegen::aot::Aot;
use beeline_codegen::worker::LLVM;
use beeline_codegen::{CodeStore, Worker};
use beeline_runtime::engines::{Choice, Engines, Optimizer};
use beeline_trusted_dir::Distrust;
use clap::{Args, ValueEnum};

use crate::say;

/// Options for a session's engines.
#[derive(Debug, Args)]
#[group(id = "engine-options")]
pub struct Options {
    /// The engine whose code programs run
    #[arg(long, value_enum, default_value_t, env = "BEELINE_ENGINE")]
    engine: Engine,
    /// A file made by `beeline compile`: programs that it was made from run its code
    #[arg(long, value_name = "FILE")]
    aot: Option<PathBuf>,
    /// Report each compilation
    #[arg(long)]
    verbose: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Engine {
    /// The baseline compiler's code at once, and LLVM's as soon as it is ready, if LLVM is
    /// installed
    #[default]
    Auto,
    /// The baseline compiler's code
    #[value(alias = "light")]
    Baseline,
    /// LLVM's code, which programs wait for
    Llvm,
}

impl Options {
    /// Returns the engines of a session.
    ///
    /// # Errors
    ///
    /// Fails if LLVM is asked for and not installed, or the compiled file cannot be used here.
    pub fn engines(&self) -> anyhow::Result<Engines> {
        let choice = match self.engine {
            Engine::Auto => Choice::Auto,
            Engine::Baseline => Choice::Baseline,
            Engine::Llvm => Choice::Optimized,
        };
        let mut engines = Engines::new(choice, Arc::new(say)).verbose(self.verbose);
        if self.engine != Engine::Baseline {
            engines = match (optimizer(), self.engine) {
                (Ok(optimizer), _) => engines.with_optimizer(optimizer),
                (Err(_), Engine::Auto) => engines,
                (Err(missing), _) => return Err(missing),
            };
            if let Some(store) = self.store() {
                engines = engines.with_store(store);
            }
        }
        match &self.aot {
            None => Ok(engines),
            Some(file) => with_aot(engines, file).with_context(|| file.display().to_string()),
        }
    }

    /// Opens the directory for compiled code. Without it, programs are compiled at each start.
    fn store(&self) -> Option<CodeStore> {
        let store = CodeStore::standard()?;
        // The other reasons are told in any case.
        if let Err(error) = &store
            && self.verbose
            && Distrust::of(error).is_none()
        {
            say(&format!("compiled code is not kept: {error}"));
        }
        store.ok()
    }
}

fn with_aot(engines: Engines, file: &Path) -> anyhow::Result<Engines> {
    let aot = Aot::from_bytes(&beeline_trusted_dir::read_file(file)?)?;
    Ok(engines.with_aot(aot)?)
}

/// Returns LLVM's compiler.
///
/// # Errors
/// Fails if it is not installed.
pub fn optimizer() -> anyhow::Result<Optimizer> {
    match Worker::beside_this() {
        Some(worker) => Ok(Box::new(worker)),
        None => {
            anyhow::bail!(
                "there is no {LLVM} beside beeline; install it, or give --engine baseline"
            )
        }
    }
}
