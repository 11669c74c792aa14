//! Converts the classic loads from packets to calls, which engines know (`bpf_gen_ld_abs`).

use beeline_isa::abi::packet_load;
use beeline_isa::opcode::*;
use beeline_isa::{BadInsn, Imm64, Insn, Op};

/// The context, while a program uses such loads.
const SKB: u8 = 6;

/// Replaces each `BPF_LD | BPF_ABS` and `BPF_LD | BPF_IND` of a program by a call that does the
/// same: r0 becomes the number, or the function returns 0 if the packet is too short.
///
/// Returns `None` if a jump would then be too far for its instruction.
pub fn replace_packet_loads(insns: &[Insn]) -> Option<Vec<Insn>> {
    let is_load = |insn: &Insn| insn.op() == Err(BadInsn::Packet);
    if !insns.iter().any(is_load) {
        return Some(insns.to_vec());
    }
    let mut places = Vec::with_capacity(insns.len() + 1);
    let mut replaced = Vec::new();
    let mut is_second = false;
    for insn in insns {
        places.push(replaced.len());
        if !is_second && is_load(insn) {
            replaced.extend(call(insn)?);
        } else {
            replaced.push(*insn);
        }
        is_second = !is_second && insn.is_imm64();
    }
    places.push(replaced.len());
    for (old, insn) in insns.iter().enumerate() {
        let Ok(op) = insn.op() else { continue };
        let moved = |off: i64| {
            let target = usize::try_from(old as i64 + 1 + off).ok()?;
            let place = *places.get(target)? as i64;
            Some(place - (places.get(old)? + 1).cast_signed() as i64)
        };
        let at = *places.get(old)?;
        match op {
            Op::CallLocal { off }
            | Op::Imm64 {
                kind: Imm64::Function,
                low: off,
                ..
            } => replaced.get_mut(at)?.imm = moved(off.into())?.try_into().ok()?,
            Op::Jump { off } if insn.code == JMP32 | JA => {
                replaced.get_mut(at)?.imm = moved(off.into())?.try_into().ok()?;
            }
            Op::Jump { off } => replaced.get_mut(at)?.off = moved(off.into())?.try_into().ok()?,
            Op::Branch { off, .. } | Op::MayGoto { off } => {
                replaced.get_mut(at)?.off = moved(off.into())?.try_into().ok()?;
            }
            _ => {}
        }
    }
    Some(replaced)
}

/// Returns the instructions in place of a load.
fn call(load: &Insn) -> Option<Vec<Insn>> {
    let insn = |code, dst, src, off, imm| Insn {
        code,
        dst,
        src,
        off,
        imm,
    };
    let bytes = match load.code & SIZE_MASK {
        B => 1,
        H => 2,
        _ => 4,
    };
    let helper = packet_load(bytes)?;
    let mut insns = Vec::new();
    if load.code & MODE_MASK == IND {
        insns.push(insn(ALU | MOV | X, 2, load.src, 0, 0));
        insns.push(insn(ALU | ADD | K, 2, 0, 0, load.imm));
    } else {
        insns.push(insn(ALU | MOV | K, 2, 0, 0, load.imm));
    }
    insns.push(insn(ALU64 | MOV | X, 1, SKB, 0, 0));
    insns.push(insn(JMP | CALL, 0, 0, 0, helper.cast_signed()));
    insns.push(insn(JMP | JSGE | K, 0, 0, 2, 0));
    insns.push(insn(ALU64 | MOV | K, 0, 0, 0, 0));
    insns.push(insn(JMP | EXIT, 0, 0, 0, 0));
    Some(insns)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn insn(code: u8, dst: u8, src: u8, off: i16, imm: i32) -> Insn {
        Insn {
            code,
            dst,
            src,
            off,
            imm,
        }
    }

    const END: Insn = Insn {
        code: JMP | EXIT,
        dst: 0,
        src: 0,
        off: 0,
        imm: 0,
    };

    #[test]
    fn a_program_without_such_loads_stays_as_it_is() {
        let program = [insn(ALU64 | MOV | K, 0, 0, 0, 1), END];
        assert_eq!(
            replace_packet_loads(&program).as_deref(),
            Some(&program[..])
        );
    }

    #[test]
    fn jumps_and_calls_lead_to_the_same_instructions_as_before() {
        let absolute = insn(LD | ABS | H, 0, 0, 0, 12);
        let indexed = insn(LD | IND | B, 0, 3, 0, -1);
        let program = [
            insn(JMP | CALL, 0, PSEUDO_CALL, 0, 4), // to the last function
            absolute,
            insn(JMP | JEQ | K, 0, 0, 1, 7), // over the next
            indexed,
            END,
            insn(JMP | JA, 0, 0, 0, 0), // the last function
            END,
        ];
        let replaced = replace_packet_loads(&program).expect("short jumps");
        assert_eq!(replaced.len(), program.len() + 5 + 6);
        let [first, ..] = replaced.as_slice() else {
            panic!("empty")
        };
        assert_eq!(first.imm, 4 + 5 + 6);
        assert_eq!((replaced[7].off, replaced[7].imm), (7, 7));
        assert_eq!(replaced[1], insn(ALU | MOV | K, 2, 0, 0, 12));
        assert_eq!(replaced[8], insn(ALU | MOV | X, 2, 3, 0, 0));
        assert_eq!(replaced[9], insn(ALU | ADD | K, 2, 0, 0, -1));
        assert!(replaced.iter().all(|insn| insn.op().is_ok()));
    }

    #[test]
    fn a_jump_that_would_be_too_far_is_noticed() {
        let load = insn(LD | ABS | W, 0, 0, 0, 0);
        let mut program = vec![insn(JMP | JEQ | K, 0, 0, 10_000, 0)];
        program.extend(std::iter::repeat_n(load, 10_000));
        program.push(END);
        assert_eq!(replace_packet_loads(&program), None);
    }
}
