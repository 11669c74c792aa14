//! Compares the meaning of moved instructions with the originals', by decoding both, independently
//! of how they were moved.

use beeline_hook::{Plan, Trampoline};
use iced_x86::{Code, Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};

/// Checks a trampoline's body against the plan it was made from.
pub fn check(plan: &Plan, trampoline: &Trampoline, at: u64) -> Result<(), String> {
    let mut map = trampoline.resume_map.iter();
    let mut last = None;
    for original in plan.instructions().map(beeline_hook::Instruction::decoded) {
        let &(address, moved) = map.next().ok_or("an instruction is not in the map")?;
        if address != original.ip() {
            return Err(format!(
                "{address:#x} in the map, {:#x} in the plan",
                original.ip()
            ));
        }
        let code = from(trampoline, at, moved).ok_or("moved outside the trampoline")?;
        same(original, code, moved).map_err(|why| format!("{original} at {address:#x}: {why}"))?;
        last = Some(*original);
    }
    let last = last.ok_or("an empty plan")?;
    let ends = matches!(
        last.mnemonic(),
        Mnemonic::Ret | Mnemonic::Retf | Mnemonic::Jmp | Mnemonic::Call | Mnemonic::Iretq
    ) || matches!(
        last.mnemonic(),
        Mnemonic::Iret | Mnemonic::Iretd | Mnemonic::Uiret | Mnemonic::Sysret | Mnemonic::Sysexit
    );
    match map.next() {
        None if ends => Ok(()),
        Some(&(behind, jump)) if !ends && behind == plan.site + plan.window_len as u64 => {
            let code = from(trampoline, at, jump).ok_or("jump outside the trampoline")?;
            let instruction = decode(code, jump);
            (instruction.code() == Code::Jmp_rel32_64 && instruction.near_branch_target() == behind)
                .then_some(())
                .ok_or(format!("jumps back by {instruction}"))
        }
        other => Err(format!("after {last}: {other:x?}")),
    }
}

fn from(trampoline: &Trampoline, at: u64, address: u64) -> Option<&[u8]> {
    trampoline.bytes.get(address.checked_sub(at)? as usize..)
}

/// Bytes of a jump with the address behind it.
const FAR_JUMP: usize = 14;

/// A jump by the address right behind it is returned as one to there, which is as long as both.
fn decode(code: &[u8], at: u64) -> Instruction {
    let plain = Decoder::with_ip(64, code, at, DecoderOptions::NONE).decode();
    let is_far = plain.code() == Code::Jmp_rm64
        && plain.is_ip_rel_memory_operand()
        && plain.ip_rel_memory_address() == plain.next_ip();
    let literal = code.get(plain.len()..plain.len() + 8).filter(|_| is_far);
    let Some(literal) = literal else { return plain };
    let target = u64::from_le_bytes(literal.try_into().unwrap());
    let mut far = Instruction::with_branch(Code::Jmp_rel32_64, target).unwrap();
    far.set_len(plain.len() + literal.len());
    far.set_ip(at);
    far
}

/// Fails unless the code at `at` means the same as the original instruction.
pub fn same(original: &Instruction, code: &[u8], at: u64) -> Result<(), String> {
    let moved = decode(code, at);
    match original.mnemonic() {
        Mnemonic::Call => same_call(original, code, at),
        mnemonic if is_short(original, &moved) => {
            // The taken path leads over the jump of the other.
            let skip = decode(&code[moved.len()..], moved.next_ip());
            let jump = decode(&code[moved.len() + skip.len()..], skip.next_ip());
            let right = moved.mnemonic() == mnemonic
                && moved.near_branch_target() == jump.ip()
                && skip.mnemonic() == Mnemonic::Jmp
                && skip.near_branch_target() == jump.next_ip()
                && jump.mnemonic() == Mnemonic::Jmp
                && jump.near_branch_target() == original.near_branch_target();
            right
                .then_some(())
                .ok_or(format!("became {moved}; {skip}; {jump}"))
        }
        _ => same_operands(original, &moved),
    }
}

/// True for a branch that reaches 127 bytes only, or a conditional one made from such a branch.
fn is_short(original: &Instruction, moved: &Instruction) -> bool {
    original.is_loop()
        || original.is_loopcc()
        || original.is_jcx_short()
        || original.is_jcc_short_or_near() && moved.is_jcc_short()
}

fn same_call(original: &Instruction, code: &[u8], at: u64) -> Result<(), String> {
    let push = decode(code, at);
    let jump = decode(&code[push.len()..], push.next_ip());
    let literal = (push.memory_displacement64() - at) as usize;
    let pushed = code
        .get(literal..literal + 8)
        .map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap()));
    if push.code() != Code::Push_rm64
        || push.memory_base() != Register::RIP
        || pushed != Some(original.next_ip())
    {
        return Err(format!("pushes {pushed:x?} by {push}"));
    }
    let mut wanted = *original;
    if original.op0_kind() == OpKind::Memory && original.memory_base() == Register::RSP {
        wanted.set_memory_displacement64(original.memory_displacement64().wrapping_add(8));
    }
    match jump.mnemonic() {
        Mnemonic::Jmp => same_operands_but_mnemonic(&wanted, &jump),
        _ => Err(format!("goes on by {jump}")),
    }
}

fn same_operands(original: &Instruction, moved: &Instruction) -> Result<(), String> {
    if moved.mnemonic() != original.mnemonic() {
        return Err(format!("became {moved}"));
    }
    same_operands_but_mnemonic(original, moved)
}

fn same_operands_but_mnemonic(original: &Instruction, moved: &Instruction) -> Result<(), String> {
    // A far branch has no prefixes, which mean nothing to it.
    if moved.code() == Code::Jmp_rel32_64 && moved.len() == FAR_JUMP {
        let is_same = moved.near_branch_target() == original.near_branch_target();
        return is_same.then_some(()).ok_or(format!("became {moved}"));
    }
    let same = moved.op_count() == original.op_count()
        && (0..original.op_count()).all(|i| same_operand(original, moved, i))
        && moved.segment_prefix() == original.segment_prefix()
        && moved.has_lock_prefix() == original.has_lock_prefix()
        && moved.has_rep_prefix() == original.has_rep_prefix()
        && moved.op_mask() == original.op_mask();
    same.then_some(()).ok_or(format!("became {moved}"))
}

fn same_operand(original: &Instruction, moved: &Instruction, i: u32) -> bool {
    if moved.op_kind(i) != original.op_kind(i) {
        return false;
    }
    match original.op_kind(i) {
        OpKind::Register => moved.op_register(i) == original.op_register(i),
        OpKind::NearBranch64 => moved.near_branch_target() == original.near_branch_target(),
        OpKind::Memory => {
            moved.memory_base() == original.memory_base()
                && moved.memory_index() == original.memory_index()
                && moved.memory_index_scale() == original.memory_index_scale()
                && moved.memory_segment() == original.memory_segment()
                && moved.memory_size() == original.memory_size()
                && moved.memory_displacement64() == original.memory_displacement64()
        }
        _ => match original.try_immediate(i) {
            Ok(value) => moved.try_immediate(i).is_ok_and(|moved| moved == value),
            Err(_) => true,
        },
    }
}
