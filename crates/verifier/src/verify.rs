//! Computes the verdict on a program.

use beeline_isa::{Imm64, Insn, Op};
use beeline_uapi::linux::PAGE_SIZE;
use beeline_uapi::{Errno, HelperId, MapType, ProgramType};

use crate::context::attach;
use crate::explore::Explorer;
use crate::flow::{Flow, Odd};
use crate::program::Program;
use crate::reject::Reject;
use crate::types::{ProgramTypes, Returns};
use crate::verdict::{LogLevel, MapUse, Verdict};
use crate::{modules, replace};

/// Judges a program as the kernel does (`bpf_check`).
///
/// A refusal has the errno of `BPF_PROG_LOAD`: [`Refusal::errno`](crate::verdict::Refusal::errno).
///
/// `level` says how much of a log to write; if the log is longer than [`MOST_LOG`] bytes, a part is
/// left out. For any bytes, there is an answer after at most 1,000,000 instructions looked at.
pub fn verify(program: &Program<'_>, level: LogLevel) -> Verdict {
    verify_within(program, level, MOST_LOG, None)
}

/// The bytes of log that are kept if no size is given: the end, or with [`LogLevel::FIXED`] the
/// beginning.
pub const MOST_LOG: usize = 16 << 20;

/// Judges a program with a log of at most `room` bytes (`log_size`).
pub fn verify_with_room(program: &Program<'_>, level: LogLevel, room: usize) -> Verdict {
    verify_within(program, level, room, None)
}

/// Judges a program with fewer instructions to be looked at, if a limit is given.
pub(crate) fn verify_within(
    program: &Program<'_>,
    level: LogLevel,
    room: usize,
    most: Option<u32>,
) -> Verdict {
    let insns = match modules::resolve(program) {
        Ok(insns) => insns,
        Err(reject) => return Verdict::refused(reject, level),
    };
    let program = &Program {
        insns: &insns,
        ..*program
    };
    let before = structure(program).and_then(|flow| {
        let maps = maps(program, &flow)?;
        Ok((flow, maps))
    });
    let (flow, maps) = match before {
        Ok(good) => good,
        Err(reject) => return Verdict::refused(reject, level),
    };
    let program = &as_its_target(program);
    let mut explorer = Explorer::new(program, &flow, level, room);
    explorer.most_insns = most.unwrap_or(explorer.most_insns);
    explorer.print_shape();
    let result = explorer.program();
    let result = result.map(|()| explorer.summary(maps));
    let (longest_log, log) = explorer.take_log();
    Verdict {
        result,
        effort: explorer.effort(),
        longest_log,
        log,
    }
}

/// Returns a program that replaces a function as one of the kind of that function's program.
fn as_its_target<'a>(program: &Program<'a>) -> Program<'a> {
    match program.target {
        Some(target) if program.kind.prog_type == ProgramType::EXT => Program {
            kind: program.kind.replacing(&target.kind),
            ..*program
        },
        _ => Program {
            target: None,
            ..*program
        },
    }
}

/// Returns the starts of a program's functions, called or not, ascending.
///
/// Its type information must describe them. If that names one that runs when the program throws,
/// that one is included.
///
/// # Errors
/// `E2BIG` if the program is empty or longer than [`MAX_INSNS`](crate::MAX_INSNS). `EINVAL` if an
/// opcode is undefined, a jump leaves its function, a call leads to no instruction, or a function
/// ends without an exit or a jump. Dead code may be invalid otherwise.
pub fn function_starts(insns: &[Insn]) -> Result<Vec<usize>, Reject> {
    let flow = Flow::tolerant(insns, None)?;
    let functions = flow.functions().iter();
    Ok(functions.map(|function| function.start).collect())
}

/// Returns the shape of a program from its instructions and its types.
pub(crate) fn shape(program: &Program<'_>) -> Result<Flow, Reject> {
    let exception_callback = program.types.and_then(ProgramTypes::exception_start);
    Flow::tolerant(program.insns, exception_callback)
}

/// Makes the checks that need no explorer: the kind of program, its instructions, jumps and
/// functions.
fn structure(program: &Program<'_>) -> Result<Flow, Reject> {
    let kind = &program.kind;
    if !attach::is_loadable(kind) {
        return Err(Reject::program(Errno::EINVAL, ""));
    }
    if let Some(kernel) = program.kernel
        && kind.prog_type == ProgramType::LIRC_MODE2
        && kernel.function("lirc_mode2_func_proto").is_none()
    {
        // Built without CONFIG_BPF_LIRC_MODE2.
        return Err(Reject::program(Errno::EINVAL, ""));
    }
    if kind.is_sleepable()
        && let Err(why) = attach::check_sleepable(kind)
    {
        return Err(Reject::program(Errno::EINVAL, why));
    }
    let replaced = program
        .target
        .filter(|_| kind.prog_type == ProgramType::EXT);
    if replaced.is_none()
        && let Some(kernel) = program.kernel
        && let Err((errno, why)) = kernel.check_attach(kind)
    {
        return Err(Reject::program(errno, why));
    }
    let flow = shape(program)?;
    if let Some(target) = replaced {
        replace::check(program, &flow, target)?;
    }
    let calls_kernel = |index: usize| matches!(flow.op(index), Some(Op::CallKernel { .. }));
    if !program.gpl && (0..flow.len()).any(calls_kernel) {
        let why = "cannot call kernel function from non-GPL compatible program";
        return Err(Reject::program(Errno::EINVAL, why));
    }
    if let Some(index) = flow.first_unreachable() {
        return Err(Reject::program(
            Errno::EINVAL,
            format!("unreachable insn {index}"),
        ));
    }
    check_early_returns(program, &flow)?;
    check_owned_arguments(program, &flow)?;
    Ok(flow)
}

/// Checks tail calls: the program called by one does not have the objects that this program was
/// passed (`check_struct_ops_btf_id`).
fn check_owned_arguments(program: &Program<'_>, flow: &Flow) -> Result<(), Reject> {
    let calls = (0..flow.len()).any(|index| flow.op(index) == Some(TAIL_CALL));
    let Some(kernel) = program.kernel.filter(|_| calls) else {
        return Ok(());
    };
    if kernel.owned_arguments(&program.kind).is_empty() {
        return Ok(());
    }
    let why = "program with __ref argument cannot tail call";
    Err(Reject::program(Errno::EINVAL, why))
}

const TAIL_CALL: Op = Op::CallHelper {
    id: HelperId::TAIL_CALL,
};

/// Checks functions that may end in the middle, as by a tail call: that returns a number to the
/// caller, so the function must return one (`check_abnormal_return`).
fn check_early_returns(program: &Program<'_>, flow: &Flow) -> Result<(), Reject> {
    for function in flow.functions().iter().skip(1) {
        let mut insns = function.start..function.end;
        let what = insns.find_map(|index| match (flow.odd(index), flow.op(index)) {
            (Some(Odd::PacketLoad { .. }), _) => Some("LD_ABS"),
            (None, Some(TAIL_CALL)) => Some("tail_call"),
            _ => None,
        });
        let Some(what) = what else { continue };
        let described = program
            .types
            .and_then(|types| types.function(function.start));
        let why = match described.map(|described| described.returns) {
            Some(Returns::Scalar) => continue,
            Some(_) => format!("{what} is only allowed in functions that return 'int'."),
            None => format!("{what} is not allowed in subprogs without BTF"),
        };
        return Err(Reject::program(Errno::EINVAL, why));
    }
    Ok(())
}

/// Returns the maps that instructions name, reachable or not, each descriptor once
/// (`resolve_pseudo_ldimm64`).
fn maps(program: &Program<'_>, flow: &Flow) -> Result<Vec<MapUse>, Reject> {
    let mut uses: Vec<MapUse> = Vec::new();
    for (index, pair) in program.insns.windows(2).enumerate() {
        let (Some(Op::Imm64 { kind, low: fd, .. }), &[insn, second]) = (flow.op(index), pair)
        else {
            continue;
        };
        let by_value = match kind {
            Imm64::Map => false,
            Imm64::MapValue => true,
            Imm64::MapIndex | Imm64::MapIndexValue => {
                let why = "fd_idx without fd_array is invalid";
                return Err(Reject::insn(Errno::EPROTO, index, insn, why));
            }
            Imm64::KernelVariable => {
                let known = program
                    .kernel
                    .map(|kernel| kernel.check_addressable(fd.cast_unsigned()));
                match known {
                    Some(Err((errno, why))) => return Err(Reject::program(errno, why)),
                    _ => continue,
                }
            }
            Imm64::Number | Imm64::Function => continue,
        };
        let known = program.maps.iter().find(|(known, _)| *known == fd);
        let Some((_, map)) = known else {
            let why = format!("fd {fd} is not pointing to valid bpf_map");
            return Err(Reject::insn(Errno::EBADF, index, insn, why));
        };
        if by_value {
            let off = second.imm.cast_unsigned();
            let outside = || {
                format!(
                    "invalid access to map value pointer, value_size={} off={off}",
                    map.value_size
                )
            };
            let refused = match map.map_type {
                MapType::ARRAY if map.max_entries == 1 => {
                    (off >= map.value_size).then(|| (Errno::EINVAL, outside()))
                }
                MapType::ARENA => {
                    // An arena's elements are pages.
                    let is_outside = u64::from(off) > u64::from(map.max_entries) * PAGE_SIZE;
                    is_outside.then(|| (Errno::ERANGE, outside()))
                }
                _ => Some((
                    Errno::ENOTSUPP,
                    "invalid access to map value pointer".to_owned(),
                )),
            };
            if let Some((errno, why)) = refused {
                return Err(Reject::insn(errno, index, insn, why));
            }
        }
        match uses.iter_mut().find(|used| used.fd == fd) {
            Some(used) if by_value => used.by_value = true,
            Some(used) => used.by_handle = true,
            None => uses.push(MapUse {
                fd,
                by_handle: !by_value,
                by_value,
            }),
        }
    }
    Ok(uses)
}
