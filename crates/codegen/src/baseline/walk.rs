//! The walk over a program: functions, their exits and calls. The machine chooses the code for an
//! instruction.

use beeline_isa::Op;
use beeline_uapi::HelperId;
use beeline_verifier::Function;

use super::outline::{Labels, Outline};
use crate::code::Error;

/// Makes the code for one machine.
pub(crate) trait Target {
    /// A place in the code, known or not yet.
    type Label: Copy;
    /// The layout of a function's stack frame.
    type Frame;

    fn create_label(&mut self) -> Self::Label;

    /// Returns how much code there is, in a unit of the machine's.
    fn position(&self) -> usize;

    /// Puts a label here. Several may stand at one place.
    fn bind(&mut self, label: Self::Label) -> Result<(), Error>;

    /// Begins a function.
    fn enter(&mut self, frame: &Self::Frame) -> Result<(), Error>;

    /// Leaves a function, with r0 as its result. If `aborted`, poison has ended the program.
    fn exit(&mut self, function: usize, frame: &Self::Frame, aborted: bool) -> Result<(), Error>;

    /// Puts 0 into r0.
    fn clear_result(&mut self) -> Result<(), Error>;

    /// Calls a function of the program. Goes to `aborted` if poison has ended the program there;
    /// this is requested only if the program unwinds.
    fn call_local(&mut self, entry: Self::Label, aborted: Option<Self::Label>)
    -> Result<(), Error>;

    /// Emits a tail call by the program; the next program takes its place.
    fn tail_call(&mut self, index: usize, frame: &Self::Frame) -> Result<(), Error>;

    /// Emits a tail call in a called function: the next program takes the function's place, and
    /// returns into this program.
    fn tail_call_in_function(&mut self, index: usize, frame: &Self::Frame) -> Result<(), Error>;

    /// Counts, and from a number of times on goes to `target`.
    fn may_goto(&mut self, target: Self::Label, frame: &Self::Frame) -> Result<(), Error>;

    /// Emits the thunk that helpers call to call a function.
    fn callback(&mut self, entry: Self::Label) -> Result<(), Error>;

    /// Emits any other instruction, and maybe some that follow it; returns the slot to continue at.
    fn ops(&mut self, index: usize, op: Op) -> Result<usize, Error>;
}

/// Makes a program's code; `frames` are those of its functions, by their numbers. Returns the
/// position of each instruction's code, and its slot.
pub(crate) fn walk<M: Target>(
    machine: &mut M,
    outline: &Outline<'_>,
    labels: &Labels<M::Label>,
    frames: &[M::Frame],
) -> Result<Vec<(usize, usize)>, Error> {
    let mut starts = Vec::new();
    let functions = outline.flow.functions().iter().zip(&labels.entries);
    for (number, ((&function, &entry), frame)) in functions.zip(frames).enumerate() {
        if outline.flow.is_reachable(function.start) {
            machine.bind(entry)?;
            let function = (number, function);
            walk_function(machine, outline, labels, function, frame, &mut starts)?;
        }
    }
    for (&number, &callback) in &labels.callbacks {
        if let Some(&entry) = labels.entries.get(number) {
            machine.bind(callback)?;
            machine.callback(entry)?;
        }
    }
    Ok(starts)
}

fn walk_function<M: Target>(
    machine: &mut M,
    outline: &Outline<'_>,
    labels: &Labels<M::Label>,
    (number, function): (usize, Function),
    frame: &M::Frame,
    starts: &mut Vec<(usize, usize)>,
) -> Result<(), Error> {
    // The prologue counts as part of the first instruction.
    let mut start = Some(machine.position());
    machine.enter(frame)?;
    // The destination of this function after poison in a called one.
    let mut aborted = None;
    let mut done = function.start;
    for (index, op) in outline.flow.reachable_ops(function) {
        if index < done {
            continue;
        }
        starts.push((start.take().unwrap_or_else(|| machine.position()), index));
        if let Some(label) = labels.at(index) {
            machine.bind(label)?;
        }
        match op {
            Op::Exit => machine.exit(number, frame, false)?,
            Op::Poison { .. } => abort(machine, number, frame)?,
            Op::CallLocal { .. } => {
                if outline.unwinds && aborted.is_none() {
                    aborted = Some(machine.create_label());
                }
                let callee = outline.callee(index);
                if let Some(&entry) = callee.and_then(|number| labels.entries.get(number)) {
                    machine.call_local(entry, aborted)?;
                }
            }
            Op::MayGoto { off } => {
                if let Some(target) = labels.target(index, off.into()) {
                    machine.may_goto(target, frame)?;
                }
            }
            Op::CallHelper {
                id: HelperId::TAIL_CALL,
            } if number == 0 => machine.tail_call(index, frame)?,
            Op::CallHelper {
                id: HelperId::TAIL_CALL,
            } => machine.tail_call_in_function(index, frame)?,
            _ => done = machine.ops(index, op)?,
        }
    }
    if let Some(aborted) = aborted {
        machine.bind(aborted)?;
        abort(machine, number, frame)?;
    }
    Ok(())
}

/// Ends the program with r0 = 0.
fn abort<M: Target>(machine: &mut M, function: usize, frame: &M::Frame) -> Result<(), Error> {
    machine.clear_result()?;
    machine.exit(function, frame, true)
}
