//! Programs that replace a function of another program (`BPF_PROG_TYPE_EXT`;
//! `bpf_check_attach_target`).

use beeline_uapi::{AttachType, Errno, ProgramType};

use crate::explore::changes_packet;
use crate::flow::Flow;
use crate::program::Program;
use crate::reject::Reject;
use crate::types::FunctionArg;
use crate::verify::shape;

/// Checks whether `program`, which has the shape `flow`, may take the place of the function of
/// `target` that it names.
pub(crate) fn check(
    program: &Program<'_>,
    flow: &Flow,
    target: &Program<'_>,
) -> Result<(), Reject> {
    let refuse = |why: &str| Err(Reject::program(Errno::EINVAL, why));
    let id = program.kind.attach_btf_id;
    if id == 0 {
        return refuse("Tracing programs must provide btf_id");
    }
    let Some(types) = target.types else {
        return refuse(
            "FENTRY/FEXIT program can only be attached to another program annotated with BTF",
        );
    };
    if !types.has(id) {
        return refuse(&format!("attach_btf_id {id} is invalid"));
    }
    let Some(start) = types.start_of(id) else {
        return refuse(&format!("Subprog {} doesn't exist", types.name(id)));
    };
    if types.is_exception_callback(start) {
        return refuse("Extension programs cannot attach to exception callback");
    }
    let takes_context = types
        .function(start)
        .is_some_and(|main| main.args.as_deref() == Ok(&[FunctionArg::Context][..]));
    if start == 0 && !takes_context {
        return refuse("Cannot replace static functions");
    }
    let as_target = Program {
        kind: program.kind.replacing(&target.kind),
        ..*program
    };
    if changes_packet(&as_target, flow, 0) && !target_changes_packet(target, start)? {
        return refuse("Extension program changes packet data, while original does not");
    }
    if target.kind.prog_type == ProgramType::EXT {
        return refuse("Cannot recursively attach");
    }
    let observes = matches!(
        target.kind.attach_type,
        AttachType::TRACE_FENTRY | AttachType::TRACE_FEXIT
    );
    if target.kind.prog_type == ProgramType::TRACING && observes {
        return refuse("Cannot extend fentry/fexit");
    }
    let Some(own) = program.types else {
        return refuse("Program extension requires BTF");
    };
    own.may_replace(types, id)
        .map_err(|(errno, why)| Reject::program(errno, why))
}

fn target_changes_packet(target: &Program<'_>, start: usize) -> Result<bool, Reject> {
    let flow = shape(target)?;
    let function = flow.function_at(start);
    Ok(function.is_some_and(|function| changes_packet(target, &flow, function)))
}
