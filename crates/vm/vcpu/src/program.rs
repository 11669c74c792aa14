//! The programs that run in the guest. They keep the mask of each thread that has called
//! `sched_setaffinity`, and ring a bell when that changes. The masks are the truth, and the bell
//! only says when to look: one that is not heard loses nothing.
//!
//! They are four programs at tracepoints. At a call's entry its arguments are kept, as they are not
//! there at its end. At its end, if it succeeded, they become the thread's mask. A thread's end
//! removes its mask. A thread that runs another program while it is not its process's first thread
//! takes the first one's number, and its mask along.

use std::mem::offset_of;

use beeline_isa::{FRAME_POINTER, Insn, opcode};
use beeline_object::{MapDefinition, Object, ObjectProgram, SectionKind};
use beeline_uapi::tracepoint::{SchedProcessExec, SyscallTraceEnter, SyscallTraceExit};
use beeline_uapi::{HelperId, MapType};

/// Bytes of a mask: 1,024 CPUs.
pub(crate) const MASK: usize = 128;
/// The number of threads with masks that are kept; further ones are not followed.
pub(crate) const THREADS: u32 = 512;
/// The map of masks, by threads' numbers, and the bell.
pub(crate) const WISHES: &str = "wishes";
pub(crate) const BELL: &str = "bell";

/// The maps' places in the object.
const WISHES_AT: i32 = 0;
const CALLS_AT: i32 = 1;
const BELL_AT: i32 = 2;
/// The smallest ring. A record that does not fit only means that a bell rings again.
const BELL_BYTES: u32 = 4096;
/// Bytes before the mask in what is kept of a call: the thread's number, and room that aligns the
/// mask.
const CALL_HEAD: i16 = 8;

/// Returns the offset of an argument in the record of a call's entry.
const fn argument(number: usize) -> i16 {
    (offset_of!(SyscallTraceEnter, args) + number * size_of::<u64>()) as i16
}

/// The offset of the result in the record of a call's exit.
const RESULT: i16 = offset_of!(SyscallTraceExit, ret) as i16;
/// The offsets in the record of `sched_process_exec` of a thread's number and the one that it had.
const NEW_NUMBER: i16 = offset_of!(SchedProcessExec, pid) as i16;
const OLD_NUMBER: i16 = offset_of!(SchedProcessExec, old_pid) as i16;

/// Offsets in the stack frame, below r10: a key, another one, and what is kept of a call.
const KEY: i16 = -8;
const OTHER_KEY: i16 = -16;
const CALL: i16 = OTHER_KEY - CALL_HEAD - MASK as i16;
const CALL_MASK: i16 = CALL + CALL_HEAD;

/// Returns the object, as if it came from a file.
pub(crate) fn object() -> Object {
    let map = |name: &str, map_type, key_size, value_size, max_entries| MapDefinition {
        name: name.into(),
        map_type,
        key_size,
        value_size,
        max_entries,
        ..MapDefinition::default()
    };
    let mask = MASK as u32;
    Object {
        programs: vec![
            program(
                "wish_begins",
                "tracepoint/syscalls/sys_enter_sched_setaffinity",
                begins(),
            ),
            program(
                "wish_ends",
                "tracepoint/syscalls/sys_exit_sched_setaffinity",
                ends(),
            ),
            program(
                "thread_ends",
                "tracepoint/sched/sched_process_exit",
                thread_ends(),
            ),
            program(
                "thread_runs",
                "tracepoint/sched/sched_process_exec",
                thread_runs(),
            ),
        ],
        maps: vec![
            map(WISHES, MapType::HASH, 4, mask, THREADS),
            map("calls", MapType::HASH, 8, mask + CALL_HEAD as u32, THREADS),
            map(BELL, MapType::RINGBUF, 0, 0, BELL_BYTES),
        ],
        // Reading a process's memory needs a license of this kind.
        license: "Dual MIT/GPL".into(),
        ..Object::default()
    }
}

fn program(name: &str, section: &str, code: Code) -> ObjectProgram {
    ObjectProgram {
        name: name.into(),
        section: section.into(),
        kind: SectionKind::of(section),
        autoload: true,
        insns: code.finish(),
        ..ObjectProgram::default()
    }
}

/// The program for the entry of `sched_setaffinity(pid, len, mask)`.
fn begins() -> Code {
    let mut code = Code::default();
    code.copy(6, 1);
    code.call(HelperId::GET_CURRENT_PID_TGID);
    code.store(opcode::DW, KEY, 0);
    code.load(opcode::W, 7, 6, argument(0));
    // 0 is the caller.
    code.skip_if(opcode::JNE, 7, 0, "named");
    code.copy_low(7, 0);
    code.label("named");
    code.store(opcode::DW, CALL, 7);
    code.number(1, 0);
    for at in (0..MASK as i16).step_by(8) {
        code.store(opcode::DW, CALL_MASK + at, 1);
    }
    // As in the kernel: a short mask has zeros behind it, and the rest of a long one does not
    // matter.
    code.load(opcode::W, 2, 6, argument(1));
    code.skip_if(opcode::JLE, 2, MASK as i32, "short");
    code.number(2, MASK as i32);
    code.label("short");
    code.address(1, CALL_MASK);
    code.load(opcode::DW, 3, 6, argument(2));
    code.call(HelperId::PROBE_READ_USER);
    code.skip_if(opcode::JNE, 0, 0, "end");
    code.map(1, CALLS_AT);
    code.address(2, KEY);
    code.address(3, CALL);
    code.number(4, 0);
    code.call(HelperId::MAP_UPDATE_ELEM);
    code.end()
}

/// The program for its return.
fn ends() -> Code {
    let mut code = Code::default();
    code.copy(6, 1);
    code.call(HelperId::GET_CURRENT_PID_TGID);
    code.store(opcode::DW, KEY, 0);
    code.map(1, CALLS_AT);
    code.address(2, KEY);
    code.call(HelperId::MAP_LOOKUP_ELEM);
    code.skip_if(opcode::JEQ, 0, 0, "end");
    code.copy(7, 0);
    code.load(opcode::DW, 1, 6, RESULT);
    code.skip_if(opcode::JNE, 1, 0, "forget");
    code.map(1, WISHES_AT);
    code.copy(2, 7);
    code.copy(3, 7);
    code.add(3, CALL_HEAD.into());
    code.number(4, 0);
    code.call(HelperId::MAP_UPDATE_ELEM);
    code.ring_the_bell();
    code.label("forget");
    code.map(1, CALLS_AT);
    code.address(2, KEY);
    code.call(HelperId::MAP_DELETE_ELEM);
    code.end()
}

fn thread_ends() -> Code {
    let mut code = Code::default();
    code.call(HelperId::GET_CURRENT_PID_TGID);
    code.store(opcode::DW, KEY, 0);
    code.store(opcode::W, OTHER_KEY, 0);
    // It may have ended inside the call.
    code.map(1, CALLS_AT);
    code.address(2, KEY);
    code.call(HelperId::MAP_DELETE_ELEM);
    code.map(1, WISHES_AT);
    code.address(2, OTHER_KEY);
    code.call(HelperId::MAP_DELETE_ELEM);
    code.skip_if(opcode::JNE, 0, 0, "end");
    code.ring_the_bell();
    code.end()
}

fn thread_runs() -> Code {
    let mut code = Code::default();
    code.load(opcode::W, 7, 1, NEW_NUMBER);
    code.load(opcode::W, 8, 1, OLD_NUMBER);
    code.skip_if_same(7, 8, "end");
    code.store(opcode::DW, KEY, 7);
    code.store(opcode::DW, OTHER_KEY, 8);
    code.map(1, WISHES_AT);
    code.address(2, OTHER_KEY);
    code.call(HelperId::MAP_LOOKUP_ELEM);
    code.skip_if(opcode::JEQ, 0, 0, "end");
    code.map(1, WISHES_AT);
    code.address(2, KEY);
    code.copy(3, 0);
    code.number(4, 0);
    code.call(HelperId::MAP_UPDATE_ELEM);
    code.map(1, WISHES_AT);
    code.address(2, OTHER_KEY);
    code.call(HelperId::MAP_DELETE_ELEM);
    code.ring_the_bell();
    code.end()
}

/// Instructions that are written one after the other; jumps go forward, to labels.
#[derive(Default)]
struct Code {
    insns: Vec<Insn>,
    jumps: Vec<(usize, &'static str)>,
    labels: Vec<(&'static str, usize)>,
}

impl Code {
    fn push(&mut self, code: u8, dst: u8, src: u8, off: i16, imm: i32) {
        self.insns.push(Insn {
            code,
            dst,
            src,
            off,
            imm,
        });
    }

    fn copy(&mut self, dst: u8, src: u8) {
        self.push(opcode::ALU64 | opcode::MOV | opcode::X, dst, src, 0, 0);
    }

    /// Copies the low 32 bits.
    fn copy_low(&mut self, dst: u8, src: u8) {
        self.push(opcode::ALU | opcode::MOV | opcode::X, dst, src, 0, 0);
    }

    fn number(&mut self, dst: u8, number: i32) {
        self.push(opcode::ALU64 | opcode::MOV | opcode::K, dst, 0, 0, number);
    }

    fn add(&mut self, dst: u8, number: i32) {
        self.push(opcode::ALU64 | opcode::ADD | opcode::K, dst, 0, 0, number);
    }

    /// Loads the address of a place in the stack frame.
    fn address(&mut self, dst: u8, place: i16) {
        self.copy(dst, FRAME_POINTER);
        self.add(dst, place.into());
    }

    /// Loads a map, by its place in the object.
    fn map(&mut self, dst: u8, map: i32) {
        self.push(opcode::LD_IMM64, dst, opcode::PSEUDO_MAP_FD, 0, map);
        self.push(0, 0, 0, 0, 0);
    }

    fn load(&mut self, size: u8, dst: u8, src: u8, off: i16) {
        self.push(opcode::LDX | opcode::MEM | size, dst, src, off, 0);
    }

    /// Stores into the stack frame.
    fn store(&mut self, size: u8, place: i16, src: u8) {
        self.push(
            opcode::STX | opcode::MEM | size,
            FRAME_POINTER,
            src,
            place,
            0,
        );
    }

    fn call(&mut self, helper: HelperId) {
        self.push(
            opcode::JMP | opcode::CALL,
            0,
            opcode::HELPER_CALL,
            0,
            helper.0 as i32,
        );
    }

    fn skip_if(&mut self, condition: u8, dst: u8, number: i32, to: &'static str) {
        self.jumps.push((self.insns.len(), to));
        self.push(opcode::JMP | condition | opcode::K, dst, 0, 0, number);
    }

    fn skip_if_same(&mut self, dst: u8, src: u8, to: &'static str) {
        self.jumps.push((self.insns.len(), to));
        self.push(opcode::JMP | opcode::JEQ | opcode::X, dst, src, 0, 0);
    }

    fn label(&mut self, name: &'static str) {
        self.labels.push((name, self.insns.len()));
    }

    /// Sends the 8 bytes at [`KEY`], which are not read.
    fn ring_the_bell(&mut self) {
        self.map(1, BELL_AT);
        self.address(2, KEY);
        self.number(3, 8);
        self.number(4, 0);
        self.call(HelperId::RINGBUF_OUTPUT);
    }

    fn end(mut self) -> Self {
        self.label("end");
        self.number(0, 0);
        self.push(opcode::JMP | opcode::EXIT, 0, 0, 0, 0);
        self
    }

    fn finish(mut self) -> Vec<Insn> {
        for (at, name) in &self.jumps {
            let label = self.labels.iter().find(|(label, _)| label == name);
            if let (Some((_, target)), Some(jump)) = (label, self.insns.get_mut(*at)) {
                jump.off = (target - at - 1) as i16; // some dozen
            }
        }
        self.insns
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use beeline_isa::Op;
    use beeline_kernel::{MapSpec, ProgramSpec, create_map, load_program};
    use std::os::fd::AsRawFd;

    #[test]
    fn jumps_lead_to_instructions_of_the_program() {
        for program in object().programs {
            let insns = &program.insns;
            let mut jumps = 0;
            for (at, insn) in insns.iter().enumerate() {
                if let Ok(Op::Branch { off, .. }) = insn.op() {
                    jumps += 1;
                    // Each leads forward: a label that was not found would be the next instruction.
                    assert!(off > 0, "{}: {at}", program.name);
                    assert!(
                        at + 1 + (off as usize) < insns.len(),
                        "{}: {at}",
                        program.name
                    );
                }
            }
            assert!(jumps > 0, "{}", program.name);
            assert_eq!(insns.last().map(|insn| insn.op()), Some(Ok(Op::Exit)));
        }
    }

    /// The kernel of this machine takes them, if it may be asked.
    #[test]
    fn a_kernel_accepts_the_programs() {
        let object = object();
        let made = object.maps.iter().map(|map| {
            create_map(&MapSpec {
                map_type: map.map_type,
                key_size: map.key_size,
                value_size: map.value_size,
                max_entries: map.max_entries,
                flags: map.flags,
                ..MapSpec::default()
            })
        });
        let maps: Vec<_> = match made.collect() {
            Ok(maps) => maps,
            Err(error) => return eprintln!("not tried: {error}"),
        };
        for program in &object.programs {
            let mut insns = program.insns.clone();
            for insn in &mut insns {
                if insn.code == opcode::LD_IMM64 {
                    insn.imm = maps[insn.imm as usize].as_raw_fd();
                }
            }
            let loaded = load_program(&ProgramSpec {
                prog_type: program.kind.prog_type,
                license: &object.license,
                insns: &insns,
                log_level: 1,
                ..ProgramSpec::default()
            });
            if let Err(refusal) = loaded {
                panic!("{}: {}", program.name, refusal.log);
            }
        }
    }
}
