//! Calls of kernel functions (`check_kfunc_call`).
//!
//! | part | job |
//! | --- | --- |
//! | [`arguments`] | checks arguments, by the types and names of the parameters |
//! | [`iterators`] | iterators on the stack, and the two outcomes of `bpf_iter_*_next` |
//! | [`sections`] | RCU, preemption, interrupts, resilient locks |
//! | [`objects`] | objects of the program's own types, in lists and trees |
//! | [`work`] | functions that are called later |
//! | [`result`] | the content of r0 afterwards |

mod arguments;
mod iterators;
mod objects;
mod result;
mod sections;
mod work;

use beeline_isa::Op;
use beeline_uapi::{Errno, HelperId};

use super::{Check, Explorer, Next, no};
use crate::program::{MapField, Program};
use crate::state::{DynptrKind, MapId};
use crate::types::kernel_functions::{KernelFunction, flags};
use crate::types::{KernelParam, KernelTypes, ParamType};

/// Returns the function behind a call, if there is one that programs may call.
fn function(program: &Program<'_>, btf_id: i32) -> Option<&'static KernelFunction> {
    let name = program.kernel?.function_name(btf_id.cast_unsigned())?;
    KernelFunction::named(name)
}

/// Returns whether this advances an iterator.
pub(super) fn is_next(program: &Program<'_>, op: &Op) -> bool {
    match *op {
        Op::CallKernel { btf_id } => {
            function(program, btf_id).is_some_and(|function| function.has(flags::ITER_NEXT))
        }
        _ => false,
    }
}

/// Returns whether it calls a function of the program during its own run.
pub(super) fn calls_back(program: &Program<'_>, btf_id: i32) -> bool {
    function(program, btf_id).is_some_and(|function| function.name == RBTREE_ADD)
}

/// Returns whether it has a function called later.
pub(super) fn calls_back_later(program: &Program<'_>, btf_id: i32) -> bool {
    function(program, btf_id)
        .is_some_and(|function| function.name == WQ_SET_CALLBACK || is_task_work(function))
}

/// Returns whether it ends the program (`is_bpf_throw_kfunc`).
pub(super) fn throws(program: &Program<'_>, op: &Op) -> bool {
    match *op {
        Op::CallKernel { btf_id } => {
            function(program, btf_id).is_some_and(|function| function.name == THROW)
        }
        _ => false,
    }
}

/// Returns the number of its arguments, if the program may call it.
pub(super) fn parameters(program: &Program<'_>, btf_id: i32) -> Option<u8> {
    function(program, btf_id).filter(|function| function.may_be_called_by(&program.kind))?;
    let prototype = program.kernel?.prototype(btf_id.cast_unsigned())?;
    u8::try_from(prototype.params.len().min(5)).ok()
}

/// Returns whether it may sleep.
pub(super) fn might_sleep(program: &Program<'_>, btf_id: i32) -> bool {
    function(program, btf_id).is_some_and(|function| function.has(flags::SLEEPABLE))
}

/// Returns whether it voids pointers into the packet.
pub(super) fn changes_packet(program: &Program<'_>, btf_id: i32) -> bool {
    function(program, btf_id).is_some_and(|function| function.name == XDP_PULL_DATA)
}

const RBTREE_ADD: &str = "bpf_rbtree_add_impl";
const WQ_SET_CALLBACK: &str = "bpf_wq_set_callback_impl";
const XDP_PULL_DATA: &str = "bpf_xdp_pull_data";
const THROW: &str = "bpf_throw";

fn is_task_work(function: &KernelFunction) -> bool {
    function.name.starts_with("bpf_task_work_schedule_")
}

/// The call that is being checked.
struct Call<'a> {
    function: &'static KernelFunction,
    kernel: &'a KernelTypes,
    params: Vec<KernelParam<'a>>,
    result: ParamType,
}

impl Call<'_> {
    fn is(&self, name: &str) -> bool {
        self.function.name == name
    }

    fn has(&self, flags: u32) -> bool {
        self.function.has(flags)
    }

    /// Returns whether pointers must be trusted (`is_kfunc_trusted_args`).
    fn wants_trust(&self) -> bool {
        self.has(flags::TRUSTED_ARGS | flags::RELEASE)
    }
}

/// The facts that the arguments tell (`struct bpf_kfunc_call_arg_meta`).
#[derive(Debug, Default)]
struct Meta {
    constant: Option<u64>,
    /// The bytes of the memory that is returned, and whether they may be written.
    result_bytes: Option<(u64, bool)>,
    ref_id: u32,
    /// The register that is given back.
    release: Option<u8>,
    map: Option<MapId>,
    function: Option<usize>,
    /// The frame, and the slot of the lowest address.
    iterator: Option<(usize, usize)>,
    dynptr: Option<Initialised>,
    /// The list or tree.
    root: Option<MapField>,
    /// The program's own structure that is passed.
    object: u32,
    /// True if a counted object is passed by its owner.
    owned: bool,
}

/// A dynptr that has been initialised.
#[derive(Debug, Clone, Copy)]
pub(super) struct Initialised {
    pub kind: DynptrKind,
    pub id: u32,
    pub ref_id: u32,
}

impl<'a> Explorer<'a> {
    pub(super) fn call_kernel(&mut self, btf_id: i32) -> Check<Next> {
        let call = self.find_kernel_function(btf_id)?;
        self.uses.kernel_functions.insert(btf_id.cast_unsigned());
        if call.function.name.starts_with("bpf_res_spin_lock") {
            self.put_off_failed_lock()?;
        }
        if call.has(flags::SLEEPABLE) && !self.cur.in_sleepable {
            return no(
                Errno::EACCES,
                format!(
                    "program must be sleepable to call sleepable kfunc {}",
                    call.function.name
                ),
            );
        }
        let mut meta = Meta::default();
        self.check_kernel_arguments(&call, &mut meta)?;
        self.have_called_back(&call, &meta)?;
        self.pass_sections(&call)?;
        self.release_kernel_argument(&call, &meta)?;
        if objects::is_given_to(call.function) {
            self.give_object()?;
        }
        if call.is(THROW) {
            return self.throw();
        }
        let depth = self.cur.depth();
        self.forget_caller_saved(depth);
        self.set_kernel_result(&call, &meta)?;
        if call.is(XDP_PULL_DATA) {
            self.forget_packet_pointers();
        }
        if call.has(flags::ITER_NEXT) {
            self.advance_iterator(&meta)?;
        }
        Ok(Next::Insn(self.insn + 1))
    }

    /// Implements `fetch_kfunc_meta`, and the checks of calls that come before their arguments.
    fn find_kernel_function(&self, btf_id: i32) -> Check<Call<'a>> {
        let id = btf_id.cast_unsigned();
        let unknown = || {
            no(
                Errno::EINVAL,
                format!("kernel btf_id {id} is not a function"),
            )
        };
        let Some(kernel) = self.program.kernel else {
            return unknown();
        };
        let (Some(name), Some(prototype)) = (kernel.function_name(id), kernel.prototype(id)) else {
            return unknown();
        };
        let allowed = KernelFunction::named(name)
            .filter(|function| function.may_be_called_by(&self.program.kind));
        let Some(function) = allowed else {
            return no(
                Errno::EACCES,
                format!("calling kernel function {name} is not allowed"),
            );
        };
        if function.needs_device() {
            return no(
                Errno::EINVAL,
                "metadata kfuncs require device-bound program",
            );
        }
        if self.cur.locks > 0 && !is_allowed_under_lock(function) {
            return no(
                Errno::EINVAL,
                "function calls are not allowed while holding a lock",
            );
        }
        if function.name == "__bpf_trap" {
            return no(
                Errno::EFAULT,
                "unexpected __bpf_trap() due to uninitialized variable?",
            );
        }
        Ok(Call {
            function,
            kernel,
            params: prototype.params,
            result: prototype.result,
        })
    }

    fn have_called_back(&mut self, call: &Call<'_>, meta: &Meta) -> Check {
        let function = meta.function.unwrap_or(0);
        if call.is(RBTREE_ADD) {
            self.compare_in_tree(function, meta)
        } else if call.is(WQ_SET_CALLBACK) {
            self.call_back(HelperId::TIMER_SET_CALLBACK, function, meta.map)?;
            self.callback_may_sleep();
            Ok(())
        } else if is_task_work(call.function) {
            self.put_off_task_work(function, meta.map)?;
            self.callback_may_sleep();
            Ok(())
        } else {
            Ok(())
        }
    }

    fn release_kernel_argument(&mut self, call: &Call<'_>, meta: &Meta) -> Check {
        let Some(register) = meta.release else {
            return Ok(());
        };
        let ref_id = self.cur.reg(register).ref_id;
        if self.release(ref_id) {
            return Ok(());
        }
        no(
            Errno::EINVAL,
            format!(
                "kfunc {}#{} reference has not been acquired before",
                call.function.name,
                call.kernel
                    .own_number(self.insn_at(self.insn).imm.cast_unsigned())
            ),
        )
    }

    /// Implements `bpf_throw`: the program ends here, in whichever frame it is, with r1 as its
    /// result, or with the result of its own function for exceptions.
    fn throw(&mut self) -> Check<Next> {
        if self.exception_callback().is_none() {
            self.check_program_result(1)?;
        }
        self.check_nothing_is_held_at_throw()?;
        Ok(Next::End)
    }
}

/// Implements `kfunc_spin_allowed`.
fn is_allowed_under_lock(function: &KernelFunction) -> bool {
    let name = function.name;
    name.starts_with("bpf_iter_num_")
        || name.starts_with("bpf_res_spin_")
        || name.starts_with("bpf_list_")
        || name.starts_with("bpf_rbtree_")
        || name == "bpf_refcount_acquire_impl"
}
