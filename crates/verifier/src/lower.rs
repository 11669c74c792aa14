//! Converts instructions of programs for packets to such as engines know: classic loads
//! (`bpf_gen_ld_abs`), and stores to fields of the context that are smaller than they look
//! (`bpf_convert_ctx_access`).

use std::mem::offset_of;

use beeline_isa::abi::packet_load;
use beeline_isa::opcode::*;
use beeline_isa::{BadInsn, Imm64, Insn, Op};
use beeline_uapi::context::SkBuff;
use beeline_uapi::packet::NO_QUEUE_MAPPING;

/// The context, while a program uses classic loads.
const SKB: u8 = 6;

/// Converts a program for packets.
///
/// Each `BPF_LD | BPF_ABS` and `BPF_LD | BPF_IND` becomes a call that does the same: r0 becomes the
/// number, or the function returns 0 if the packet is too short. `stores` are the instructions, in
/// ascending order, that store to a `struct __sk_buff`, with the offsets there; those to fields of 16 bits in the kernel
/// become such stores.
///
/// Returns `None` if a jump would then be too far for its instruction.
pub fn lower_for_packets(insns: &[Insn], stores: &[(usize, u32)]) -> Option<Vec<Insn>> {
    let mut places = Vec::with_capacity(insns.len() + 1);
    let mut lowered = Vec::with_capacity(insns.len());
    let mut is_second = false;
    for (index, insn) in insns.iter().enumerate() {
        places.push(lowered.len());
        let stored = stores.binary_search_by_key(&index, |(store, _)| *store);
        let stored = stored.ok().and_then(|at| stores.get(at));
        if !is_second && insn.op() == Err(BadInsn::Packet) {
            lowered.extend(call(insn)?);
        } else if let Some((_, offset)) = stored {
            lowered.extend(store(insn, *offset));
        } else {
            lowered.push(*insn);
        }
        is_second = !is_second && insn.is_imm64();
    }
    places.push(lowered.len());
    for (index, insn) in insns.iter().enumerate() {
        redirect(&mut lowered, &places, index, insn)?;
    }
    Some(lowered)
}

/// Lets an instruction lead to the same one as before.
fn redirect(lowered: &mut [Insn], places: &[usize], index: usize, insn: &Insn) -> Option<()> {
    let Ok(op) = insn.op() else { return Some(()) };
    let place = *places.get(index)?;
    let to = |off: i64| {
        let target = usize::try_from(index as i64 + 1 + off).ok()?;
        Some(*places.get(target)? as i64 - (place as i64 + 1))
    };
    let moved = lowered.get_mut(place)?;
    match op {
        Op::CallLocal { off }
        | Op::Imm64 {
            kind: Imm64::Function,
            low: off,
            ..
        } => moved.imm = to(off.into())?.try_into().ok()?,
        Op::Jump { off } if insn.code == JMP32 | JA => {
            moved.imm = to(off.into())?.try_into().ok()?;
        }
        Op::Jump { off } => moved.off = to(off.into())?.try_into().ok()?,
        Op::Branch { off, .. } | Op::MayGoto { off } => {
            moved.off = to(off.into())?.try_into().ok()?;
        }
        _ => {}
    }
    Some(())
}

fn insn(code: u8, dst: u8, src: u8, off: i16, imm: i32) -> Insn {
    Insn {
        code,
        dst,
        src,
        off,
        imm,
    }
}

/// Returns the instructions in place of a store to a field.
fn store(store: &Insn, offset: u32) -> Vec<Insn> {
    const QUEUE: u32 = offset_of!(SkBuff, queue_mapping) as u32;
    const INDEX: u32 = offset_of!(SkBuff, tc_index) as u32;
    const CLASS: u32 = offset_of!(SkBuff, tc_classid) as u32;
    const NO_QUEUE: i32 = NO_QUEUE_MAPPING.cast_signed();
    let short = Insn {
        code: store.code & !SIZE_MASK | H,
        ..*store
    };
    match offset {
        INDEX | CLASS => vec![short],
        QUEUE if store.code & CLASS_MASK == STX => {
            vec![insn(JMP | JGE | K, store.src, 0, 1, NO_QUEUE), short]
        }
        QUEUE if store.imm >= NO_QUEUE => vec![insn(JMP | JA, 0, 0, 0, 0)],
        QUEUE => vec![short],
        _ => vec![*store],
    }
}

/// Returns the instructions in place of a load.
fn call(load: &Insn) -> Option<Vec<Insn>> {
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

    const END: Insn = Insn {
        code: JMP | EXIT,
        dst: 0,
        src: 0,
        off: 0,
        imm: 0,
    };

    #[test]
    fn a_program_without_such_instructions_stays_as_it_is() {
        let program = [insn(ALU64 | MOV | K, 0, 0, 0, 1), END];
        assert_eq!(
            lower_for_packets(&program, &[]).as_deref(),
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
        let replaced = lower_for_packets(&program, &[]).expect("short jumps");
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
        assert_eq!(lower_for_packets(&program, &[]), None);
    }

    #[test]
    fn fields_of_16_bits_are_stored_so() {
        let at = |field| field as i16;
        let mark = insn(STX | MEM | W, 6, 7, at(offset_of!(SkBuff, mark)), 0);
        let class = insn(ST | MEM | W, 6, 0, at(offset_of!(SkBuff, tc_classid)), 5);
        let queue = insn(
            STX | MEM | W,
            6,
            7,
            at(offset_of!(SkBuff, queue_mapping)),
            0,
        );
        let none = insn(ST | MEM | W, 6, 0, queue.off, 0xffff);
        let program = [mark, class, queue, none, END];
        let stores: Vec<_> = (0..4)
            .map(|index| (index, program[index].off as u32))
            .collect();
        let short = |insn: Insn| Insn {
            code: insn.code | H,
            ..insn
        };
        let guard = insn(JMP | JGE | K, 7, 0, 1, 0xffff);
        let nothing = insn(JMP | JA, 0, 0, 0, 0);
        let expected = [mark, short(class), guard, short(queue), nothing, END];
        assert_eq!(
            lower_for_packets(&program, &stores).as_deref(),
            Some(&expected[..])
        );
        // Elsewhere the same bytes are other fields.
        assert_eq!(
            lower_for_packets(&program, &[]).as_deref(),
            Some(&program[..])
        );
    }
}
