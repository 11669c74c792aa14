//! LLVM's side: target machines, the pipeline, object files.

use std::sync::Once;

use beeline_codegen::Machine;
use inkwell::llvm_sys::target_machine::{
    LLVMCodeGenOptLevel, LLVMCodeModel, LLVMCreateTargetMachine, LLVMRelocMode,
};
use inkwell::memory_buffer::MemoryBuffer;
use inkwell::module::Module;
use inkwell::passes::PassBuilderOptions;
use inkwell::targets::{FileType, InitializationConfig, TargetMachine, TargetTriple};

use crate::trouble::Trouble;

/// The pipeline of clang's -O2, without the parts that need vector registers.
const PIPELINE: &str = "default<O2>";

/// A machine as LLVM describes it.
pub(crate) struct Target {
    triple: TargetTriple,
    machine: TargetMachine,
}

impl Target {
    /// Creates a target with the general registers of the architecture's first generation only.
    pub(crate) fn new(machine: Machine) -> Result<Self, Trouble> {
        initialise();
        let (triple, cpu, features, model) = match machine {
            Machine::X86_64 => (
                "x86_64-unknown-linux-gnu",
                c"x86-64",
                c"-x87,-mmx,-sse,+soft-float",
                LLVMCodeModel::LLVMCodeModelSmall,
            ),
            // The small model counts addresses in pages, which code that may lie anywhere does not
            // know.
            Machine::Aarch64 => (
                "aarch64-unknown-linux-gnu",
                c"generic",
                c"-fp-armv8,-neon,+reserve-x18",
                LLVMCodeModel::LLVMCodeModelTiny,
            ),
        };
        let triple = TargetTriple::create(triple);
        let target = inkwell::targets::Target::from_triple(&triple)?;
        // SAFETY: the target and the strings are valid; LLVM copies the strings. (inkwell does not
        // support the tiny code model.)
        let machine = unsafe {
            LLVMCreateTargetMachine(
                target.as_mut_ptr(),
                triple.as_ptr(),
                cpu.as_ptr(),
                features.as_ptr(),
                LLVMCodeGenOptLevel::LLVMCodeGenLevelDefault,
                LLVMRelocMode::LLVMRelocPIC,
                model,
            )
        };
        if machine.is_null() {
            return Err(Trouble::new("no such target"));
        }
        // SAFETY: the call above has just created the target machine, and nothing else owns it.
        let machine = unsafe { TargetMachine::new(machine) };
        Ok(Self { triple, machine })
    }

    /// Sets a module's machine.
    pub(crate) fn prepare(&self, module: &Module<'_>) {
        module.set_triple(&self.triple);
        module.set_data_layout(&self.machine.get_target_data().get_data_layout());
    }

    /// Optimizes the module and returns it as an object file.
    pub(crate) fn object(&self, module: &Module<'_>) -> Result<MemoryBuffer<'static>, Trouble> {
        if cfg!(debug_assertions) {
            module.verify()?;
        }
        let options = PassBuilderOptions::create();
        options.set_loop_vectorization(false);
        options.set_loop_slp_vectorization(false);
        module.run_passes(PIPELINE, &self.machine, options)?;
        Ok(self
            .machine
            .write_to_memory_buffer(module, FileType::Object)?)
    }
}

fn initialise() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let config = InitializationConfig {
            disassembler: false,
            ..InitializationConfig::default()
        };
        inkwell::targets::Target::initialize_x86(&config);
        inkwell::targets::Target::initialize_aarch64(&config);
    });
}
