//! Accept or reject, and what was seen on the way.

use std::collections::BTreeSet;
use std::fmt;

use beeline_isa::{FRAME_POINTER, Imm64, Insn, Op, Operand, STACK_BYTES, helper};

use crate::flow::{Flow, Function};
use crate::registers;
use crate::reject::{EACCES, EBADF, EINVAL, ENOTSUPP, EPROTO, Reject};

/// What programs may refer to.
#[derive(Clone, Copy)]
pub struct Rules<'a> {
    /// May programs of this type call the helper of this number?
    pub helper: &'a dyn Fn(u32) -> bool,
    /// What a descriptor in the tool's process is, if it is a map.
    pub map: &'a dyn Fn(i32) -> Option<MapFacts>,
}

impl fmt::Debug for Rules<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rules").finish_non_exhaustive()
    }
}

/// What matters about a map here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MapFacts {
    /// Bytes that may be addressed directly (an array of one element: its value size); `None` for other maps.
    pub direct_value_bytes: Option<u32>,
}

/// What an accepted program is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// Numbers of the helpers that reachable code calls, ascending.
    pub helpers: Vec<u32>,
    /// The maps, each once, in the order of first use.
    pub maps: Vec<MapUse>,
    /// Does the program use what r1 points to at its start, or hand it on?
    pub reads_context: bool,
    /// Bytes of eBPF stack of the function that needs most: at most 512.
    pub stack_bytes: u32,
    /// Has the program more functions than one that can be reached?
    pub calls_subprograms: bool,
    /// Functions in the longest chain of calls, 1 where there are no calls.
    pub frame_depth: usize,
}

/// How a program uses a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MapUse {
    /// As the tool wrote it.
    pub fd: i32,
    /// The map itself is loaded, as an argument of helpers.
    pub by_handle: bool,
    /// The address of its first value is loaded.
    pub by_value: bool,
}

/// Accepts or rejects a program.
pub fn check(insns: &[Insn], rules: &Rules<'_>) -> Result<Summary, Reject> {
    let flow = Flow::of(insns)?;
    let maps = maps(insns, &flow, rules)?;
    if let Some(index) = flow.first_unreachable() {
        return Err(Reject::program(EINVAL, format!("unreachable insn {index}")));
    }
    if let Some(index) = flow.first_endless() {
        return Err(Reject::program(
            EINVAL,
            format!("infinite loop detected at insn {index}"),
        ));
    }
    let frame_depth = flow.frame_depth()?;
    let helpers = helpers(insns, &flow, rules)?;
    let reads_context = registers::follow(insns, &flow)?;
    check_stack(insns, &flow)?;
    let called = flow
        .functions()
        .iter()
        .filter(|function| flow.is_reachable(function.start));
    Ok(Summary {
        helpers: helpers.into_iter().collect(),
        maps,
        reads_context,
        stack_bytes: called
            .clone()
            .map(|&function| flow.stack_bytes(function))
            .max()
            .unwrap_or(0),
        calls_subprograms: called.count() > 1,
        frame_depth,
    })
}

/// As the kernel does, looks at unreachable instructions too: a map's descriptor must be good wherever it stands.
fn maps(insns: &[Insn], flow: &Flow, rules: &Rules<'_>) -> Result<Vec<MapUse>, Reject> {
    let mut maps: Vec<MapUse> = Vec::new();
    for (index, pair) in insns.windows(2).enumerate() {
        let (Some(Op::Imm64 { kind, low: fd, .. }), &[insn, second]) = (flow.op(index), pair)
        else {
            continue;
        };
        let by_value = match kind {
            Imm64::Map => false,
            Imm64::MapValue => true,
            Imm64::MapIndex | Imm64::MapIndexValue => {
                return Err(Reject::insn(
                    EPROTO,
                    index,
                    insn,
                    "fd_idx without fd_array is invalid",
                ));
            }
            Imm64::Number | Imm64::Function | Imm64::KernelVariable => continue,
        };
        let facts = (rules.map)(fd).ok_or_else(|| {
            Reject::insn(
                EBADF,
                index,
                insn,
                format!("fd {fd} is not pointing to valid bpf_map"),
            )
        })?;
        if by_value {
            check_direct_value(facts, second.imm.cast_unsigned())
                .map_err(|(errno, why)| Reject::insn(errno, index, insn, why))?;
        }
        match maps.iter_mut().find(|map| map.fd == fd) {
            Some(map) if by_value => map.by_value = true,
            Some(map) => map.by_handle = true,
            None => maps.push(MapUse {
                fd,
                by_handle: !by_value,
                by_value,
            }),
        }
    }
    Ok(maps)
}

fn check_direct_value(facts: MapFacts, offset: u32) -> Result<(), (i32, String)> {
    const WHAT: &str = "invalid access to map value pointer";
    match facts.direct_value_bytes {
        None => Err((
            ENOTSUPP,
            format!("{WHAT}: only arrays of one element have direct values"),
        )),
        Some(bytes) if offset >= bytes => {
            Err((EINVAL, format!("{WHAT}, value_size={bytes} off={offset}")))
        }
        Some(_) => Ok(()),
    }
}

fn helpers(insns: &[Insn], flow: &Flow, rules: &Rules<'_>) -> Result<BTreeSet<u32>, Reject> {
    let mut helpers = BTreeSet::new();
    for &function in flow.functions() {
        for (index, op) in flow.reachable_ops(function) {
            let refused = match op {
                Op::CallHelper { id } if (rules.helper)(id) => {
                    helpers.insert(id);
                    continue;
                }
                Op::CallHelper { id } => match helper::name(id) {
                    Some(name) => format!("program of this type cannot use helper bpf_{name}#{id}"),
                    None => format!("invalid func unknown#{}", id.cast_signed()),
                },
                Op::CallKernel { btf_id } => {
                    format!("calling kernel function #{btf_id} is not allowed")
                }
                Op::Imm64 {
                    kind: Imm64::KernelVariable,
                    low,
                    ..
                } => {
                    format!("kernel variable #{low} cannot be reached from user space")
                }
                _ => continue,
            };
            let insn = insns.get(index).copied().unwrap_or_default();
            return Err(Reject::insn(EINVAL, index, insn, refused));
        }
    }
    Ok(helpers)
}

/// Accesses through r10 itself must stay in the frame, and constants that no operation takes are refused.
fn check_stack(insns: &[Insn], flow: &Flow) -> Result<(), Reject> {
    for (index, op) in flow
        .functions()
        .iter()
        .flat_map(|&function| flow.reachable_ops(function))
    {
        let refuse = |errno, why: String| {
            Err(Reject::insn(
                errno,
                index,
                insns.get(index).copied().unwrap_or_default(),
                why,
            ))
        };
        if let Some((off, bytes)) = stack_access(&op) {
            let verb = if matches!(op, Op::Load { .. } | Op::LoadAcquire { .. }) {
                "read from"
            } else {
                "write to"
            };
            if off % bytes != 0 {
                return refuse(
                    EACCES,
                    format!("misaligned stack access off 0+0+{off} size {bytes}"),
                );
            }
            if off < -STACK_BYTES || off + bytes > 0 {
                return refuse(
                    EACCES,
                    format!("invalid {verb} stack R10 off={off} size={bytes}"),
                );
            }
        }
        if let Some(why) = impossible_constant(&op) {
            return refuse(EINVAL, why);
        }
    }
    Ok(())
}

/// Offset and width of an access whose base is r10.
fn stack_access(op: &Op) -> Option<(i32, i32)> {
    let (base, off, bytes) = match *op {
        Op::Load { size, src, off, .. } | Op::LoadAcquire { size, src, off, .. } => {
            (src, off, size.bytes())
        }
        Op::Store { size, dst, off, .. } | Op::StoreRelease { size, dst, off, .. } => {
            (dst, off, size.bytes())
        }
        Op::Atomic { wide, dst, off, .. } => (dst, off, if wide { 8 } else { 4 }),
        _ => return None,
    };
    (base == FRAME_POINTER).then_some((off.into(), bytes.into()))
}

fn impossible_constant(op: &Op) -> Option<String> {
    use beeline_isa::Alu::{Arsh, Div, Lsh, Mod, Rsh, SignedDiv, SignedMod};
    match *op {
        Op::Alu {
            op: Div | Mod | SignedDiv | SignedMod,
            src: Operand::Imm(0),
            ..
        } => Some("div by zero".to_owned()),
        Op::Alu {
            op: Lsh | Rsh | Arsh,
            wide,
            src: Operand::Imm(count),
            ..
        } if !(0..if wide { 64 } else { 32 }).contains(&count) => {
            Some(format!("invalid shift {count}"))
        }
        _ => None,
    }
}

impl Flow {
    /// Bytes of stack below r10 that a function may touch: as deep as its accesses through r10 go, or all of it
    /// where the address leaves r10.
    pub fn stack_bytes(&self, function: Function) -> u32 {
        let mut deepest = 0;
        for (_, op) in self.reachable_ops(function) {
            let direct = stack_access(&op);
            let uses = op
                .read()
                .filter(|&register| register == FRAME_POINTER)
                .count();
            // Any use but as the base of an access hands the address on.
            let escapes = uses > usize::from(direct.is_some());
            let deep = if escapes {
                -STACK_BYTES
            } else {
                direct.map_or(0, |(off, _)| off)
            };
            deepest = deepest.min(deep.max(-STACK_BYTES));
        }
        deepest.unsigned_abs()
    }
}
