//! The exits of a function, for functions with a return address that must stay as it is.

use crate::arch;
use crate::incoming::Incoming;
use crate::plan::{Function, Kind, plan_among};
use crate::survey::Survey;

/// A place that a call passes as it returns: a `ret`, or the code before it that tears the frame
/// down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exit {
    /// The address of the instruction to hook.
    pub site: u64,
    /// Bytes between the stack pointer there and the return address.
    pub frame: u32,
    /// True if the frame pointer becomes the caller's only behind the site: it lies below the
    /// return address.
    pub pops_frame_pointer: bool,
}

/// The ways out of a function.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Exits {
    /// By returning to its caller.
    pub returns: Vec<Exit>,
    /// By jumps to other functions, which return in its place: the addresses of the jumps.
    pub jumps: Vec<u64>,
    /// The first byte that is no instruction, if code may follow it.
    pub hidden: Option<u64>,
}

/// Finds a function's exits. The last instructions of the frame are hooked, where a jump can do
/// that.
pub fn exits(function: &Function, incoming: &Incoming) -> Exits {
    let survey = Survey::of(function);
    let code = function.start..function.start.saturating_add(function.code.len() as u64);
    let mut exits = Exits {
        hidden: survey.hidden,
        ..Exits::default()
    };
    for (index, instruction) in survey.instructions.iter().enumerate() {
        if instruction.is_return() {
            let before = &survey.instructions[..index];
            let by_jump = |exit: &Exit| {
                let plan = plan_among(exit.site, function, incoming);
                plan.is_ok_and(|plan| plan.kind == Kind::Jump)
            };
            let bare = Exit {
                site: instruction.address(),
                frame: 0,
                pops_frame_pointer: false,
            };
            let early = arch::torn_down(before).filter(by_jump);
            exits.returns.push(early.unwrap_or(bare));
        } else if let Some(target) = instruction.jump_target()
            && !code.contains(&target)
        {
            exits.jumps.push(instruction.address());
        }
    }
    exits
}

/// The destination of an unwinder that leaves the stack that it has unwound; see
/// [`unwinder_exits`](crate::unwinder_exits).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnwinderExit {
    /// The landing pad that catches the exception or cleans up. rcx points to the stack slot with
    /// the landing pad's address.
    Lands,
    /// The unwinder's caller.
    Returns,
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn frames_are_left_before_they_are_torn_down_if_there_is_room() {
        let code = [
            0x74, 0x06, // je to the first ret's frame
            0x48, 0x83, 0xc4, 0x18, 0x5d, 0xc3, // add rsp, 0x18; pop rbp; ret
            0x48, 0x83, 0xec, 0x80, 0x90, 0xc3, // sub rsp, -128; nop; ret
            0x5d, 0xc3, // pop rbp; ret
            0xe9, 0, 1, 0, 0, // jmp elsewhere
            0x48, 0x83, 0xec, 0x80, 0xc3, // sub rsp, -128; ret
        ];
        let start = 0x1000;
        let function = Function { start, code: &code };
        let found = exits(&function, &Incoming::default());
        let exit = |offset: u64, frame, pops_frame_pointer| Exit {
            site: start + offset,
            frame,
            pops_frame_pointer,
        };
        let returns = [
            exit(2, 0x20, true),
            exit(13, 0, false),
            exit(15, 0, false),
            exit(21, 128, false),
        ];
        assert_eq!(found.returns, returns);
        assert_eq!((found.jumps, found.hidden), (vec![start + 16], None));
    }
}
