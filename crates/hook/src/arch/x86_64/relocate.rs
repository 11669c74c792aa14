//! Moving instructions to another address without changing what they do.
//!
//! Bytes are copied as they are wherever possible, so that redundant prefixes and odd encodings
//! survive.

use std::borrow::Cow;
use std::sync::Arc;

use iced_x86::{
    Code, Decoder, DecoderOptions, Encoder, FlowControl, Instruction as Decoded, OpKind, Register,
};

use super::instruction::Instruction;
use super::jump::{JUMP_LEN, displacement, far_jump, jump_anywhere};
use crate::patch::ReachError;
use crate::trampoline::RelocateError;

/// An instruction that a hook displaces.
#[derive(Debug, Clone)]
pub(crate) struct Displaced {
    /// Decoded at its original address.
    pub instruction: Instruction,
    /// As found there.
    pub bytes: Arc<[u8]>,
    /// The offset in `bytes` of a 32-bit memory displacement.
    displacement: Option<usize>,
}

impl Displaced {
    /// Decodes the first instruction of code that is mapped at `address`. `None` if that has no
    /// instruction there.
    pub fn first_of(code: &[u8], address: u64) -> Option<Self> {
        let mut decoder = Decoder::with_ip(64, code, address, DecoderOptions::NONE);
        let decoded = decoder.decode();
        let constants = decoder.get_constant_offsets(&decoded);
        let displacement = (constants.has_displacement() && constants.displacement_size() == 4)
            .then(|| constants.displacement_offset());
        Some(Self {
            instruction: Instruction::new(decoded),
            bytes: code.get(..decoded.len())?.into(),
            displacement,
        })
    }

    /// The same instruction of a text that is mapped `bias` bytes higher (wrapping).
    pub fn shifted(&self, bias: u64) -> Self {
        let mut decoded = *self.instruction.decoded();
        decoded.set_ip(decoded.ip().wrapping_add(bias));
        if let Some(target) = self.instruction.target() {
            let target = target.wrapping_add(bias);
            if decoded.op0_kind() == OpKind::NearBranch64 {
                decoded.set_near_branch64(target);
            } else {
                decoded.set_memory_displacement64(target);
            }
        }
        Self {
            instruction: Instruction::new(decoded),
            ..self.clone()
        }
    }

    /// True if it does nothing but load the number of a system call, and a jump takes just its
    /// place.
    pub fn loads_number(&self) -> bool {
        self.instruction.decoded().code() == Code::Mov_r32_imm32 && self.bytes.len() == JUMP_LEN
    }
}

/// The way an instruction is moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Movement {
    /// It does not depend on where it is.
    Copy,
    /// Its memory operand is relative to its address.
    Operand,
    /// A jump, conditional or not, that has a form with a 32-bit displacement.
    Branch,
    /// `loop` or `jrcxz`, which only reach 127 bytes.
    ShortBranch,
    /// A call: it has to leave its original return address on the stack.
    Call,
    /// The start of a transaction, with the address to go to when it fails.
    Transaction,
}

/// Returns the way the instruction is moved, or, as a phrase, why it cannot be.
pub(super) fn movement(instruction: &Decoded) -> Result<Movement, &'static str> {
    if instruction.is_privileged()
        || matches!(
            instruction.flow_control(),
            FlowControl::Exception | FlowControl::Interrupt
        )
    {
        return Err("the address it faults at is seen by the process");
    }
    if instruction.is_call_far() || instruction.is_call_far_indirect() {
        return Err("a far call leaves its own address on the stack");
    }
    if instruction.is_call_near() || instruction.is_call_near_indirect() {
        return call_movement(instruction);
    }
    if instruction.op_count() > 0 && instruction.op0_kind() == OpKind::NearBranch64 {
        return Ok(match instruction.code() {
            Code::Xbegin_rel32 => Movement::Transaction,
            _ if instruction.is_jcc_short_or_near() || instruction.is_jmp_short_or_near() => {
                Movement::Branch
            }
            _ if instruction.is_loop() || instruction.is_loopcc() || instruction.is_jcx_short() => {
                Movement::ShortBranch
            }
            _ => return Err("this kind of branch has no moved form"),
        });
    }
    let has_branch = instruction.op_kinds().any(|kind| {
        matches!(
            kind,
            OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::FarBranch16 | OpKind::FarBranch32
        )
    });
    if has_branch || instruction.code() == Code::Xbegin_rel16 {
        return Err("its target is cut off to fewer than 64 bits");
    }
    operand_movement(instruction)
}

fn operand_movement(instruction: &Decoded) -> Result<Movement, &'static str> {
    if !instruction.is_ip_rel_memory_operand() {
        return Ok(Movement::Copy);
    }
    match instruction.memory_base() {
        Register::RIP => Ok(Movement::Operand),
        _ => Err("its operand's address is cut off to 32 bits"),
    }
}

fn call_movement(instruction: &Decoded) -> Result<Movement, &'static str> {
    match instruction.code() {
        Code::Call_rel32_64 => Ok(Movement::Call),
        Code::Call_rm64 if instruction.op0_kind() == OpKind::Register => {
            match instruction.op0_register() {
                Register::RSP => Err("its target is the stack pointer"),
                _ => Ok(Movement::Call),
            }
        }
        Code::Call_rm64 => {
            operand_movement(instruction).and_then(|_| match instruction.memory_base() {
                Register::ESP => Err("its operand's address is cut off to 32 bits"),
                _ => Ok(Movement::Call),
            })
        }
        _ => Err("this kind of call has no moved form"),
    }
}

/// Returns the bytes that do at `at` what the instruction did at its own address.
///
/// A call becomes the last thing that runs there: it returns to its original successor.
///
/// # Errors
///
/// [`RelocateError`] if the instruction has to stay, its moved form has no encoding, or what it
/// addresses is too far from there.
pub(crate) fn relocate(displaced: &Displaced, at: u64) -> Result<Cow<'_, [u8]>, RelocateError> {
    let Displaced {
        instruction, bytes, ..
    } = displaced;
    let decoded = instruction.decoded();
    let movement = movement(decoded).map_err(|why| encode_error(decoded, why))?;
    let target = instruction.target().unwrap_or_default();
    let moved = match movement {
        Movement::Copy => return Ok(Cow::Borrowed(bytes)),
        Movement::Operand => move_operand(displaced, at, target),
        Movement::Branch => move_branch(decoded, at, target),
        Movement::Transaction => encode(decoded, decoded, at),
        Movement::ShortBranch => Ok(move_short_branch(bytes, at, target)),
        Movement::Call => move_call(decoded, at),
    };
    moved.map(Cow::Owned)
}

fn move_operand(displaced: &Displaced, at: u64, target: u64) -> Result<Vec<u8>, RelocateError> {
    let Displaced {
        instruction,
        bytes,
        displacement: offset,
    } = displaced;
    let value = displacement(at.wrapping_add(bytes.len() as u64), target).map_err(|source| {
        RelocateError::Reach {
            instruction: instruction.to_string(),
            address: instruction.address(),
            source,
        }
    })?;
    let mut bytes = bytes.to_vec();
    let field = offset.and_then(|offset| bytes.get_mut(offset..offset + 4));
    field
        .ok_or_else(|| encode_error(instruction.decoded(), "its displacement was not found"))?
        .copy_from_slice(&value.to_le_bytes());
    Ok(bytes)
}

/// True if a near branch of any length at `at` reaches.
fn reaches(at: u64, target: u64) -> bool {
    const LONGEST: u64 = 16;
    [at, at.wrapping_add(LONGEST)]
        .into_iter()
        .all(|end| displacement(end, target).is_ok())
}

fn move_branch(branch: &Decoded, at: u64, target: u64) -> Result<Vec<u8>, RelocateError> {
    if reaches(at, target) {
        let mut near = *branch;
        near.as_near_branch();
        return encode(&near, branch, at);
    }
    if branch.is_jmp_short_or_near() {
        return Ok(far_jump(target));
    }
    let mut short = *branch;
    short.as_short_branch();
    short.set_near_branch64(at);
    let bytes = encode(&short, branch, at)?;
    Ok(move_short_branch(&bytes, at, target))
}

/// `loop taken; jmp short behind; taken: jmp target; behind:`
fn move_short_branch(original: &[u8], at: u64, target: u64) -> Vec<u8> {
    const JMP_REL8: u8 = 0xeb;
    const JMP_REL8_LEN: usize = 2;
    let mut bytes = original.to_vec();
    if let Some(rel8) = bytes.last_mut() {
        *rel8 = JMP_REL8_LEN as u8;
    }
    let jump = jump_anywhere(at.wrapping_add((bytes.len() + JMP_REL8_LEN) as u64), target);
    bytes.extend([JMP_REL8, jump.len() as u8]);
    bytes.extend(jump);
    bytes
}

/// `push qword [rip+literal]; jmp target; literal: dq original return address`
fn move_call(call: &Decoded, at: u64) -> Result<Vec<u8>, RelocateError> {
    const PUSH_LITERAL: [u8; 2] = [0xff, 0x35];
    const PUSH_LEN: u64 = 6;
    let jump = call_as_jump(call)?;
    let jump_at = at.wrapping_add(PUSH_LEN);
    let far = |target: &u64| call.is_call_near() && !reaches(jump_at, *target);
    let jump_bytes = match Instruction::new(*call).target().filter(far) {
        Some(target) => far_jump(target),
        None => encode(&jump, call, jump_at)?,
    };
    let mut bytes = PUSH_LITERAL.to_vec();
    bytes.extend((jump_bytes.len() as u32).to_le_bytes());
    bytes.extend(jump_bytes);
    bytes.extend(call.next_ip().to_le_bytes());
    Ok(bytes)
}

/// Returns the jump that goes where the call goes, when the return address is already on the stack.
fn call_as_jump(call: &Decoded) -> Result<Decoded, RelocateError> {
    const PUSHED: i64 = 8;
    let mut jump = *call;
    if call.is_call_near() {
        jump.set_code(Code::Jmp_rel32_64);
        return Ok(jump);
    }
    jump.set_code(Code::Jmp_rm64);
    if call.op0_kind() == OpKind::Memory && call.memory_base() == Register::RSP {
        let moved = (call.memory_displacement64() as i64).wrapping_add(PUSHED);
        if i32::try_from(moved).is_err() {
            return Err(encode_error(
                call,
                "its operand is too far from the stack pointer",
            ));
        }
        jump.set_memory_displacement64(moved as u64);
        jump.set_memory_displ_size(8);
    }
    Ok(jump)
}

/// Encodes `moved` at `at`; `original` is for the error message.
fn encode(moved: &Decoded, original: &Decoded, at: u64) -> Result<Vec<u8>, RelocateError> {
    let mut encoder = Encoder::new(64);
    encoder
        .encode(moved, at)
        .map_err(|error| match Instruction::new(*original).target() {
            Some(target) if displacement(at, target).is_err() => RelocateError::Reach {
                instruction: original.to_string(),
                address: original.ip(),
                source: ReachError { from: at, target },
            },
            _ => encode_error(original, &error.to_string()),
        })?;
    Ok(encoder.take_buffer())
}

fn encode_error(instruction: &Decoded, why: &str) -> RelocateError {
    RelocateError::Encode {
        instruction: instruction.to_string(),
        address: instruction.ip(),
        why: why.to_owned(),
    }
}
