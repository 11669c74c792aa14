//! Functions' frames, where they end.

use iced_x86::{Code, Mnemonic, OpKind, Register};

use super::instruction::Instruction;
use crate::exits::{Exit, UnwinderExit};
use crate::plan::Function;
use crate::survey::Survey;

/// Returns the exit at the first of the instructions that tear a frame down and end with the last
/// of these.
pub(crate) fn torn_down(before: &[Instruction]) -> Option<Exit> {
    let (last, rest) = before.split_last()?;
    let (last, before_last) = (last.decoded(), rest.last().map(Instruction::decoded));
    let pops_frame_pointer = last.code() == Code::Pop_r64 && last.op0_register() == Register::RBP;
    let (add, popped) = match pops_frame_pointer {
        true => (before_last?, WORD),
        false => (last, 0),
    };
    let is_frame = add.op_count() == 2
        && add.op0_kind() == OpKind::Register
        && add.op0_register() == Register::RSP
        && add.op1_kind() != OpKind::Register
        && add.op1_kind() != OpKind::Memory;
    let bytes = match add.mnemonic() {
        Mnemonic::Add if is_frame => add.immediate(1) as i64,
        // The shorter encoding for 128.
        Mnemonic::Sub if is_frame => (add.immediate(1) as i64).checked_neg()?,
        _ => return None,
    };
    let frame = u32::try_from(bytes.checked_add(popped)?).ok()?;
    (frame % WORD as u32 == 0 && frame < FRAME_LIMIT).then_some(Exit {
        site: add.ip(),
        frame,
        pops_frame_pointer,
    })
}

/// Bytes that `pop` takes from the stack.
const WORD: i64 = 8;
/// An upper bound for the size of a frame.
const FRAME_LIMIT: u32 = 1 << 24;

/// Returns where an unwinder's function leaves the stack that it has unwound, with all registers
/// but the stack pointer set; and how.
pub fn unwinder_exits(function: &Function) -> Vec<(u64, UnwinderExit)> {
    let instructions = Survey::of(function).instructions;
    let exit = |at: usize| {
        let (this, next) = (instructions.get(at)?, instructions.get(at + 1)?);
        let this = this.decoded();
        let is_of_sp = this.op_count() == 2 && this.op0_register() == Register::RSP;
        match this.mnemonic() {
            Mnemonic::Mov if is_of_sp && this.op1_register() == Register::RCX => {
                let jumps = returns_by_jump(Some(next), instructions.get(at + 2)?);
                (jumps || next.is_return()).then_some(UnwinderExit::Lands)
            }
            Mnemonic::Add if is_of_sp => {
                let mut rest = instructions[at + 1..].iter();
                let tears_down = |one: &&Instruction| {
                    matches!(one.decoded().mnemonic(), Mnemonic::Pop | Mnemonic::Mov)
                };
                let last = rest.find(|one| !tears_down(one))?;
                last.is_return().then_some(UnwinderExit::Returns)
            }
            _ => None,
        }
    };
    (0..instructions.len())
        .filter_map(|at| Some((instructions[at].address(), exit(at)?)))
        .collect()
}

/// True if it is a jump to an address that the instruction before has taken from the stack.
/// Unwinders go on in this way where an exception is caught.
#[inline]
pub(crate) fn returns_by_jump(before: Option<&Instruction>, jump: &Instruction) -> bool {
    let jump = jump.decoded();
    before.map(Instruction::decoded).is_some_and(|pop| {
        pop.code() == Code::Pop_r64
            && jump.code() == Code::Jmp_rm64
            && jump.op0_kind() == OpKind::Register
            && jump.op0_register() == pop.op0_register()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Kind, plan};

    #[test]
    fn an_unwinder_is_left_where_it_lands_and_where_it_returns() {
        let code = [
            0x48, 0x81, 0xc4, 0x78, 0x02, 0, 0, // add rsp, 0x278
            0x5b, 0x5d, 0xc3, // pop rbx; pop rbp; ret
            0x48, 0x83, 0xc4, 0x08, // add rsp, 8
            0xff, 0xd0, // call rax
            0x48, 0x89, 0xcc, // mov rsp, rcx
            0x59, 0xff, 0xe1, // pop rcx; jmp rcx
        ];
        let start = 0x1000;
        let function = Function { start, code: &code };
        assert_eq!(
            unwinder_exits(&function),
            [
                (start, UnwinderExit::Returns),
                (start + 16, UnwinderExit::Lands)
            ]
        );
        assert_eq!(plan(start + 16, &function).unwrap().kind, Kind::Jump);
    }
}
