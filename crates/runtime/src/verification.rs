//! Verification of programs, before anything else is done with them.
//!
//! A program that the verifier accepts may still need more than user space has: the kernel's
//! functions and variables are not there, nor its own structures of maps, nor sockets. Programs of
//! types that are attached nowhere here may use those: they are loaded, and cannot be run. Other
//! programs are refused. For each refusal the tool gets the kernel's errno and a log in the
//! kernel's manner.

use std::collections::HashMap;
use std::sync::Arc;

use beeline_agent::helpers;
use beeline_isa::{Imm64, Insn, Op, opcode};
use beeline_uapi::{Errno, HelperId, ProgramType};
use beeline_verifier::program::{self, Kind, Map, Policy, is_gpl_compatible};
use beeline_verifier::sharding::{self, Use};
use beeline_verifier::types::{KernelTypes, ProgramTypes};
use beeline_verifier::verdict::{LogLevel, MapUse, ProgramSummary, Verdict};
use beeline_verifier::{
    Flow, MOST_LOG, Reject, function_starts, lower_for_packets, verify_with_room,
};

use crate::backend::{LoadError, ProgramSpec, VerifierLog};
use crate::map::MapObject;
use crate::program::forbidden;

/// The maps that a program's descriptors name.
pub type Maps = HashMap<i32, Arc<MapObject>>;

/// A program that may run.
#[derive(Debug)]
pub struct Accepted {
    /// Its instructions, except for those that no path reaches.
    pub insns: Vec<Insn>,
    /// The summary of what it does.
    pub facts: ProgramSummary,
    /// The log for the tool.
    pub log: VerifierLog,
    /// The reason why it cannot run here, such as that it needs what exists in the kernel only. If
    /// so, there is no code for it.
    pub missing: Option<String>,
    /// False if only the kernel's verifier can say what it does.
    pub is_understood: bool,
}

/// Types of programs for packets that are run here, in test runs.
pub const ON_PACKETS: [ProgramType; 9] = [
    ProgramType::SOCKET_FILTER,
    ProgramType::SCHED_CLS,
    ProgramType::SCHED_ACT,
    ProgramType::XDP,
    ProgramType::CGROUP_SKB,
    ProgramType::LWT_IN,
    ProgramType::LWT_OUT,
    ProgramType::LWT_XMIT,
    ProgramType::FLOW_DISSECTOR,
];

/// Types of programs that are attached or run here, or could be mistaken for such.
const HERE: [ProgramType; 8] = [
    ProgramType::KPROBE,
    ProgramType::TRACEPOINT,
    ProgramType::PERF_EVENT,
    ProgramType::RAW_TRACEPOINT,
    ProgramType::RAW_TRACEPOINT_WRITABLE,
    ProgramType::TRACING,
    ProgramType::LSM,
    ProgramType::SYSCALL,
];

/// Verifies a program as the kernel with these types would, under the session's policy. Unless it is
/// to run `only_here`, it may need what exists in the kernel only.
///
/// `memory` returns whether this many bytes may be taken for the states of its paths.
///
/// # Errors
///
/// [`LoadError`] with the verifier's errno for a program that it refuses, and with `EINVAL` for one
/// that cannot be decoded or, if its type is attached here, needs what exists in the kernel only.
pub fn judge(
    spec: &ProgramSpec,
    maps: &Maps,
    kernel: Option<&KernelTypes>,
    (policy, only_here): (Policy, bool),
    memory: &dyn Fn(usize) -> bool,
) -> Result<Accepted, LoadError> {
    let mut insns = decode(spec)?;
    if HERE.contains(&spec.prog_type) {
        forget_functions(&mut insns, kernel);
    }
    let Verdict {
        result,
        log,
        longest_log,
        ..
    } = verdict(spec, &insns, maps, kernel, (policy, only_here), memory);
    let log = VerifierLog {
        text: log,
        longest: longest_log,
    };
    let facts = match result {
        Ok(facts) => facts,
        Err(refusal) => {
            return Err(LoadError {
                errno: refusal.errno,
                reason: refusal.reason,
                log,
            });
        }
    };
    let insns = alive(&insns, &facts.dead);
    let map_structure = check_map_structure(&insns, &facts);
    let lowered = if ON_PACKETS.contains(&spec.prog_type) {
        lower_for_packets(&insns, &facts.context_stores)
    } else {
        Some(insns.clone())
    };
    let missing = lowered
        .is_none()
        .then(|| "it is too long with its classic loads spelt out".to_owned());
    let insns = lowered.unwrap_or(insns);
    let place = check_place(&insns, kernel).and(map_structure);
    match place {
        Err(reject) if only_here && HERE.contains(&spec.prog_type) => {
            Err(refused(reject, spec.log_level, log))
        }
        place => Ok(Accepted {
            missing: missing
                .or_else(|| place.err().map(|reject| reason(&reject)))
                .or_else(|| first_missing(&facts)),
            insns,
            facts,
            log,
            is_understood: true,
        }),
    }
}

/// Finds out what it can about a program of which the kernel's verdict counts.
///
/// # Errors
///
/// [`LoadError`] with `EINVAL` for a program that cannot be decoded, and with the verifier's errno
/// for one that does what the policy forbids.
pub fn leave_to_kernel(
    spec: &ProgramSpec,
    maps: &Maps,
    kernel: Option<&KernelTypes>,
    policy: Policy,
    memory: &dyn Fn(usize) -> bool,
) -> Result<Accepted, LoadError> {
    let accepted = match judge(spec, maps, kernel, (policy, false), memory) {
        Ok(accepted) => accepted,
        // The kernel would accept it.
        Err(refused)
            if policy == Policy::ObserveOnly && forbidden(&spec.insns).next().is_some() =>
        {
            return Err(refused);
        }
        Err(_) => {
            let insns = decode(spec)?;
            Accepted {
                facts: facts_of(&insns, 0..insns.len()),
                insns,
                log: VerifierLog::default(),
                missing: None,
                is_understood: false,
            }
        }
    };
    Ok(Accepted {
        missing: Some("it is one that only the kernel runs".to_owned()),
        ..accepted
    })
}

/// Returns the helpers and maps in these instructions.
fn facts_of(insns: &[Insn], indexes: impl Iterator<Item = usize>) -> ProgramSummary {
    let mut facts = ProgramSummary {
        reads_context: true,
        ..ProgramSummary::default()
    };
    for op in indexes.filter_map(|index| insns.get(index)?.op().ok()) {
        match op {
            Op::CallHelper { id } => facts.helpers.push(id),
            Op::Imm64 {
                kind: kind @ (Imm64::Map | Imm64::MapValue),
                low: fd,
                ..
            } => facts.maps.push(MapUse {
                fd,
                by_handle: kind == Imm64::Map,
                by_value: kind == Imm64::MapValue,
            }),
            _ => {}
        }
    }
    facts
}

/// Returns the reason why the first helper that is not served cannot be called.
fn first_missing(facts: &ProgramSummary) -> Option<String> {
    let missing = facts.helpers.iter().find(|&&helper| !is_served(helper))?;
    let name = missing.name().unwrap_or("unknown");
    Some(format!("helper bpf_{name} is not served"))
}

/// Accepts any program that is well formed and calls helpers that exist. It is for the interpreter,
/// which checks what the program does.
///
/// # Errors
///
/// [`LoadError`] with the errno of [`Flow::of`] for a program that is not well formed, and with
/// `EINVAL` for one that cannot be decoded or calls or reads what is not there.
pub fn trust_nothing(spec: &ProgramSpec) -> Result<Accepted, LoadError> {
    let insns = decode(spec)?;
    let refuse = |reject| refused(reject, spec.log_level, VerifierLog::default());
    let flow = Flow::of(&insns).map_err(refuse)?;
    check_place(&insns, None).map_err(refuse)?;
    let functions = flow.functions().iter();
    let reachable: Vec<_> = functions
        .flat_map(|&function| flow.reachable_ops(function))
        .collect();
    for &(index, op) in &reachable {
        if let Op::CallHelper { id } = op
            && !is_served(id)
        {
            let name = id.name().unwrap_or("unknown");
            let why = format!("program of this type cannot use helper bpf_{name}#{}", id.0);
            let insn = insns[index];
            return Err(refuse(Reject::insn(Errno::EINVAL, index, insn, why)));
        }
    }
    Ok(Accepted {
        facts: facts_of(&insns, reachable.iter().map(|(index, _)| *index)),
        insns,
        log: VerifierLog::default(),
        missing: None,
        is_understood: true,
    })
}

/// Finds out how an accepted program that may run, here or in the kernel, uses its maps, each by its
/// descriptor. With `only_here` none runs in the kernel.
pub fn uses(
    spec: &ProgramSpec,
    accepted: &Accepted,
    maps: &Maps,
    kernel: Option<&KernelTypes>,
    only_here: bool,
) -> Vec<(i32, Use)> {
    if !accepted.is_understood {
        let whole = Use::whole("only the kernel knows what a program does with it");
        return maps.keys().map(|fd| (*fd, whole.clone())).collect();
    }
    let runs_here = HERE.contains(&spec.prog_type) || ON_PACKETS.contains(&spec.prog_type);
    if !runs_here && only_here {
        return Vec::new();
    }
    let maps = as_verified(maps, kernel);
    let maps: Vec<(i32, &Map)> = maps.iter().map(|(fd, map)| (*fd, map)).collect();
    sharding::uses(&accepted.insns, &maps)
}

fn as_verified(maps: &Maps, kernel: Option<&KernelTypes>) -> Vec<(i32, Map)> {
    let each = maps.iter();
    each.map(|(fd, map)| (*fd, map.as_verified(kernel)))
        .collect()
}

fn is_served(helper: HelperId) -> bool {
    helpers::ALL.iter().any(|served| served.number == helper.0)
}

fn decode(spec: &ProgramSpec) -> Result<Vec<Insn>, LoadError> {
    match Insn::decode_all(&spec.insns) {
        Ok(insns) => Ok(insns.collect()),
        Err(error) => Err(LoadError::new(libc::EINVAL, error.to_string())),
    }
}

fn verdict(
    spec: &ProgramSpec,
    insns: &[Insn],
    maps: &Maps,
    kernel: Option<&KernelTypes>,
    (policy, only_here): (Policy, bool),
    memory: &dyn Fn(usize) -> bool,
) -> Verdict {
    let level = LogLevel(spec.log_level);
    let kind = Kind {
        prog_type: spec.prog_type,
        attach_type: spec.expected_attach_type,
        flags: spec.flags,
        attach_btf_id: spec.attach_btf_id,
        policy,
    };
    let types = match types(spec, &kind, insns, kernel) {
        Ok(types) => types,
        Err(reject) => return Verdict::refused(reject, level),
    };
    let maps = as_verified(maps, kernel);
    let maps: Vec<(i32, &Map)> = maps.iter().map(|(fd, map)| (*fd, map)).collect();
    let program = program::Program {
        kind,
        gpl: is_gpl_compatible(&spec.license),
        insns,
        maps: &maps,
        types: types.as_ref(),
        kernel,
        memory: Some(memory),
        helpers: (only_here && HERE.contains(&spec.prog_type)).then_some(&is_served),
        ..Default::default()
    };
    verify_with_room(&program, level, spec.log_room.unwrap_or(MOST_LOG))
}

/// Returns `None` for a program without types.
fn types(
    spec: &ProgramSpec,
    kind: &Kind,
    insns: &[Insn],
    kernel: Option<&KernelTypes>,
) -> Result<Option<ProgramTypes>, Reject> {
    let Some(types) = &spec.types else {
        return Ok(None);
    };
    let starts = function_starts(insns)?;
    let (functions, lines) = (&types.functions, &types.lines);
    ProgramTypes::new(&types.btf, functions, lines, kind, insns, &starts, kernel)
        .map(Some)
        .map_err(|(errno, why)| Reject::program(errno, why))
}

/// Makes the addresses of the kernel's functions 0, which they are to a program where the kernel is
/// too old to have them. Programs look if a function is there before they call it, and do without
/// otherwise.
fn forget_functions(insns: &mut [Insn], kernel: Option<&KernelTypes>) {
    for at in 1..insns.len() {
        let [first, second] = [insns[at - 1], insns[at]];
        let is_function = || {
            let name = kernel.and_then(|kernel| kernel.function_name(first.imm.cast_unsigned()));
            name.is_some()
        };
        let is_of_kernel = first.src == opcode::PSEUDO_BTF_ID && second.imm == 0;
        if first.is_imm64() && is_of_kernel && is_function() {
            (insns[at - 1].src, insns[at - 1].imm) = (0, 0);
        }
    }
}

/// Returns the program without the instructions that no path reaches, which need not be valid.
/// Exits stand in their place, and a branch that goes one way only becomes a jump.
fn alive(insns: &[Insn], dead: &[usize]) -> Vec<Insn> {
    const END: Insn = Insn {
        code: opcode::JMP | opcode::EXIT,
        dst: 0,
        src: 0,
        off: 0,
        imm: 0,
    };
    let mut is_dead = vec![false; insns.len()];
    for &index in dead {
        let slots = 1 + usize::from(insns.get(index).is_some_and(|insn| insn.is_imm64()));
        is_dead
            .iter_mut()
            .skip(index)
            .take(slots)
            .for_each(|slot| *slot = true);
    }
    let goes = |slot: Option<usize>| slot.and_then(|slot| is_dead.get(slot)) == Some(&false);
    let mut alive = insns.to_vec();
    for (index, insn) in alive.iter_mut().enumerate() {
        if is_dead[index] {
            *insn = END;
        } else if let Ok(Op::Branch { off, .. }) = insn.op() {
            let target = (index + 1).checked_add_signed(off.into());
            let taken = match (goes(target), goes(Some(index + 1))) {
                (true, false) => off,
                (false, true) => 0,
                _ => continue,
            };
            *insn = Insn {
                code: opcode::JMP | opcode::JA,
                off: taken,
                ..END
            };
        }
    }
    alive
}

/// Refuses what exists in the kernel only.
fn check_place(insns: &[Insn], kernel: Option<&KernelTypes>) -> Result<(), Reject> {
    let flow = Flow::of(insns)?;
    let functions = flow.functions().iter();
    for (index, op) in functions.flat_map(|&function| flow.reachable_ops(function)) {
        let why = match op {
            Op::CallKernel { btf_id } => {
                let name = kernel.and_then(|kernel| kernel.function_name(btf_id.cast_unsigned()));
                match name {
                    Some(name) => format!("calling kernel function {name} is not allowed"),
                    None => format!("calling kernel function #{btf_id} is not allowed"),
                }
            }
            Op::Imm64 {
                kind: Imm64::KernelVariable,
                low,
                ..
            } => format!("kernel variable #{low} cannot be reached from user space"),
            _ => continue,
        };
        return Err(Reject::insn(Errno::EINVAL, index, insns[index], why));
    }
    Ok(())
}

/// Refuses access through a map's address: what is behind it here is not what the kernel's types
/// say.
fn check_map_structure(insns: &[Insn], facts: &ProgramSummary) -> Result<(), Reject> {
    match facts.map_structure {
        None => Ok(()),
        Some(index) => Err(Reject::insn(
            Errno::EINVAL,
            index,
            insns.get(index).copied().unwrap_or_default(),
            "the kernel's own structure of a map cannot be reached from user space",
        )),
    }
}

/// Creates a refusal, appended to what the log says already.
fn refused(reject: Reject, level: u32, mut log: VerifierLog) -> LoadError {
    if level != 0 {
        log.text += &reject.log;
        log.longest = log.longest.max(log.text.len());
    }
    LoadError {
        errno: reject.errno,
        reason: reason(&reject),
        log,
    }
}

/// Returns the last line of a refusal.
fn reason(reject: &Reject) -> String {
    let line = reject.log.trim_end().lines().next_back();
    line.unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(prog_type: ProgramType, insns: &[[u8; 8]]) -> Result<Accepted, LoadError> {
        let spec = ProgramSpec {
            prog_type,
            insns: insns.concat(),
            license: "GPL".into(),
            ..ProgramSpec::default()
        };
        judge(
            &spec,
            &Maps::new(),
            None,
            (Policy::ObserveOnly, true),
            &|_| true,
        )
    }

    const R0_IS_0: [u8; 8] = [0xb7, 0, 0, 0, 0, 0, 0, 0];
    const END: [u8; 8] = [0x95, 0, 0, 0, 0, 0, 0, 0];

    fn call(helper: HelperId) -> [u8; 8] {
        [0x85, 0, 0, 0, helper.0 as u8, 0, 0, 0]
    }

    #[test]
    fn dead_code_is_replaced_and_its_branches_are_settled() {
        // if r0 == 0 goto +3; r1 = a variable of the kernel's; a move with a fault; exit
        let always = [0x15, 0, 3, 0, 0, 0, 0, 0];
        let variable = [[0x18, 0x31, 0, 0, 9, 0, 0, 0], [0; 8]];
        let faulty = [0xb7, 0x50, 0, 0, 0, 0, 0, 0];
        let program = [R0_IS_0, always, variable[0], variable[1], faulty, END];
        let accepted = judged(ProgramType::KPROBE, &program).expect("a good program");
        let insns: Vec<[u8; 8]> = accepted.insns.iter().map(|insn| insn.encode()).collect();
        let jump = [0x05, 0, 3, 0, 0, 0, 0, 0];
        assert_eq!(insns, [R0_IS_0, jump, END, END, END, END]);
    }

    #[test]
    fn programs_that_only_the_kernel_attaches_may_use_its_helpers() {
        // bpf_get_route_realm, which takes the context as its argument.
        let program = [call(HelperId::GET_ROUTE_REALM), R0_IS_0, END];
        let accepted = judged(ProgramType::SCHED_CLS, &program).expect("a good program");
        assert_eq!(
            accepted.missing.as_deref(),
            Some("helper bpf_get_route_realm is not served")
        );
        let refused = judged(
            ProgramType::KPROBE,
            &[R0_IS_0, call(HelperId::PROBE_WRITE_USER), END],
        )
        .expect_err("it writes to its target");
        assert_eq!(refused.errno, Errno(libc::EINVAL));
        assert!(
            refused.reason.contains("bpf_probe_write_user"),
            "{}",
            refused.reason
        );
        let r2_is_0 = [0xb7, 2, 0, 0, 0, 0, 0, 0];
        let program = [r2_is_0, call(HelperId::XDP_ADJUST_HEAD), R0_IS_0, END];
        let accepted = judged(ProgramType::XDP, &program).expect("a good program");
        assert_eq!(accepted.missing, None);
    }

    #[test]
    fn structures_of_maps_are_not_here() {
        let insns = [R0_IS_0, END].concat();
        let insns: Vec<Insn> = Insn::decode_all(&insns).expect("two").collect();
        let reads = |map_structure| ProgramSummary {
            map_structure,
            ..ProgramSummary::default()
        };
        assert!(check_map_structure(&insns, &reads(None)).is_ok());
        let refused = check_map_structure(&insns, &reads(Some(1)));
        let reject = refused.expect_err("there is none");
        assert!(reject.log.contains("structure of a map"), "{}", reject.log);
    }
}
