//! Translates bytecode to LLVM's IR.
//!
//! Each function of the program becomes one of the module's. The entry takes `(context, run)`. The
//! others take r1 to r5 and the run, as helpers do, so that helpers can call them. Registers are
//! variables on the stack, which LLVM's first pass turns into values.

mod arithmetic;
mod division;
mod function;
mod function_calls;
mod inline;
mod ir;
mod memory;
mod registers;
mod run;

use std::collections::{BTreeMap, HashMap};

use beeline_codegen::{Bytecode, Inline, Machine, inlines};
use beeline_isa::{Insn, Op};
use beeline_verifier::Flow;
use inkwell::attributes::{Attribute, AttributeLoc};
use inkwell::context::ContextRef;
use inkwell::module::{Linkage, Module};
use inkwell::types::FunctionType;
use inkwell::values::FunctionValue;

use crate::origin::Origins;
use crate::trouble::Trouble;
use function::Body;
use ir::Ir;

/// The name of the program's entry in the object file.
pub(crate) const ENTRY: &str = "entry";
/// The name of the function that runs the next program in place of a function that made a tail
/// call.
pub(crate) const TAIL: &str = "tail";

/// Returns the name of a function of the program that is not its entry, or of its copies up to a
/// dot.
pub(crate) fn function_name(number: usize) -> String {
    format!("f{number}")
}

/// Returns the name of the thunk that helpers call to call a function, if it is not the function
/// itself.
pub(crate) fn callback_name(number: usize) -> String {
    format!("callback{number}")
}

/// Fills a module with a program.
pub(crate) fn program(
    module: &Module<'_>,
    program: &Bytecode<'_>,
    flow: &Flow,
    machine: Machine,
) -> Result<(), Trouble> {
    let mut translation = Translation::new(module, program, flow, machine);
    translation.declare();
    for (number, &function) in flow.functions().iter().enumerate() {
        if let Some(&value) = translation.functions.get(&number) {
            Body::new(&translation, number, function, value)?.translate()?;
        }
    }
    translation.thunks()
}

/// The state that all functions share.
struct Translation<'a, 'c> {
    context: ContextRef<'c>,
    module: &'a Module<'c>,
    ir: Ir<'c>,
    insns: &'a [Insn],
    flow: &'a Flow,
    origins: Origins,
    /// By slot: the code in place of a helper's call.
    inlines: HashMap<usize, Inline>,
    machine: Machine,
    /// The reachable functions by number.
    functions: BTreeMap<usize, FunctionValue<'c>>,
    /// True if poison in a called function must end the program. Functions then also return whether
    /// it did.
    unwinds: bool,
}

impl<'a, 'c> Translation<'a, 'c> {
    fn new(
        module: &'a Module<'c>,
        program: &Bytecode<'a>,
        flow: &'a Flow,
        machine: Machine,
    ) -> Self {
        let context = module.get_context();
        let is_poison = |(_, op)| matches!(op, Op::Poison { .. });
        Self {
            ir: Ir::new(context),
            context,
            module,
            insns: program.insns,
            flow,
            origins: Origins::of(flow),
            inlines: inlines(program, flow),
            machine,
            functions: BTreeMap::new(),
            unwinds: flow
                .functions()
                .iter()
                .skip(1)
                .any(|&function| flow.reachable_ops(function).any(is_poison)),
        }
    }

    /// Declares all functions. The entry comes first, because it must be first in the code.
    fn declare(&mut self) {
        for (number, function) in self.flow.functions().iter().enumerate() {
            if !self.flow.is_reachable(function.start) {
                continue;
            }
            let value = if number == 0 {
                self.function(ENTRY, self.ir.types.entry, Linkage::External)
            } else {
                self.function(&function_name(number), self.called(), Linkage::Internal)
            };
            self.functions.insert(number, value);
        }
    }

    /// Returns the type of functions that the program calls.
    fn called(&self) -> FunctionType<'c> {
        if self.unwinds {
            let arguments = self.ir.types.helper.get_param_types();
            let arguments: Vec<_> = arguments.into_iter().collect();
            self.ir.types.outcome.fn_type(&arguments, false)
        } else {
            self.ir.types.helper
        }
    }

    fn function(&self, name: &str, ty: FunctionType<'c>, linkage: Linkage) -> FunctionValue<'c> {
        let function = self.module.add_function(name, ty, Some(linkage));
        for (attribute, value) in [
            ("nounwind", 0),
            ("null_pointer_is_valid", 0),
            ("noimplicitfloat", 0),
            // Stack below the stack pointer would not be counted.
            ("noredzone", 0),
            // Makes a table of the stack's depth at each instruction.
            ("uwtable", 2),
        ] {
            let kind = Attribute::get_named_enum_kind_id(attribute);
            let attribute = self.context.create_enum_attribute(kind, value);
            function.add_attribute(AttributeLoc::Function, attribute);
        }
        // There is no memcpy to call.
        let attribute = self.context.create_string_attribute("no-builtins", "");
        function.add_attribute(AttributeLoc::Function, attribute);
        function
    }
}
