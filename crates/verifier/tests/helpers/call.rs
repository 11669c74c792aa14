//! Programs that make one call.

use std::fs::File;

use beeline_isa::{Insn, imm64, opcode::*};
use beeline_uapi::{HelperId, MapType, ProgramType};
use beeline_verifier::helpers::{Arg, Dynptr, Helper, helper};

use crate::load::{self, Subject};

const CONTEXT: u8 = 6;
const SOCKET: u8 = 7;
const TASK: u8 = 8;
const MEMORY: u8 = 9;
const FRAME: u8 = 10;

/// The stack slot of an unknown number; above it are zeros.
const UNKNOWN: i16 = -72;
/// The stack slot that keeps a pointer to a packet over the call.
const PACKET: i16 = -80;
/// The stack slot of a dynptr of a map's value.
const DYNPTR: i32 = -96;
/// An unwritten stack slot.
const UNWRITTEN: i32 = -160;
/// Bytes of the map's value that [`MEMORY`] points to.
const MEMORY_BYTES: u32 = 64;

pub fn insn(code: u8, dst: u8, src: u8, off: i16, imm: i32) -> Insn {
    Insn {
        code,
        dst,
        src,
        off,
        imm,
    }
}

pub fn call(id: HelperId) -> Insn {
    insn(JMP | CALL, 0, HELPER_CALL, 0, id.0.cast_signed())
}

pub fn number(dst: u8, value: i32) -> Insn {
    insn(ALU64 | K | MOV, dst, 0, 0, value)
}

pub fn copy(dst: u8, src: u8) -> Insn {
    insn(ALU64 | X | MOV, dst, src, 0, 0)
}

pub fn end() -> Insn {
    insn(JMP | EXIT, 0, 0, 0, 0)
}

/// A call with the context in r1 and nothing in r2 to r5.
pub fn bare(id: HelperId) -> Vec<Insn> {
    vec![number(0, 0), call(id), number(0, 0), end()]
}

/// An argument to try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Given {
    /// A valid one for the helper.
    Right,
    /// 0.
    Null,
    /// Any other number.
    Number(i32),
    /// An unknown number.
    Unknown,
    /// A pointer to zeros on the stack.
    Stack,
    /// A pointer to unwritten stack.
    Unwritten,
    /// `struct task_struct`, trusted.
    Task,
    /// So many bytes before the end of a map's value; programs may not do with it what the map's
    /// flags forbid.
    Value { bytes: u32 },
    /// A packet.
    Packet,
}

/// A call by programs of a type.
pub struct Call<'a> {
    subject: &'a Subject,
    helper: &'static Helper,
    map: File,
    memory: File,
    words: File,
}

impl<'a> Call<'a> {
    pub fn new(subject: &'a Subject, helper: &'static Helper) -> Option<Self> {
        Self::with_memory(subject, helper, 0)
    }

    /// With a map of these flags behind [`Given::Value`].
    pub fn with_memory(subject: &'a Subject, helper: &'static Helper, flags: u32) -> Option<Self> {
        Some(Self {
            subject,
            helper,
            map: map_for(helper.id, subject.kind.is_sleepable())?,
            memory: load::array(MEMORY_BYTES, flags).ok()?,
            words: load::constant().ok()?,
        })
    }

    /// Returns the program with these arguments; `None` if programs of this type have no such
    /// things.
    pub fn program(&self, given: &[Given]) -> Option<Vec<Insn>> {
        self.calling(self.prologue(), given, &[])
    }

    /// Returns the same for a process with few rights, which has no task, no memory of a map and no
    /// unknown number to give.
    pub fn simple_program(&self, given: &[Given]) -> Option<Vec<Insn>> {
        let mut insns = self.zeros();
        insns.extend(self.socket());
        self.calling(insns, given, &[])
    }

    /// Returns the same with a look into an earlier packet afterwards; `None` if there are no
    /// packets.
    pub fn packet_program(&self, given: &[Given]) -> Option<Vec<Insn>> {
        let mut insns = self.prologue();
        insns.extend(self.packet(1)?);
        insns.push(insn(STX | MEM | DW, FRAME, 1, PACKET, 0));
        let look = [
            insn(LDX | MEM | DW, 1, FRAME, PACKET, 0),
            insn(LDX | MEM | B, 1, 1, 0, 0),
        ];
        self.calling(insns, given, &look)
    }

    fn calling(&self, mut insns: Vec<Insn>, given: &[Given], after: &[Insn]) -> Option<Vec<Insn>> {
        for (at, &given) in given.iter().enumerate() {
            let register = at as u8 + 1;
            insns.extend(match given {
                Given::Right => self.right(at, register)?,
                other => self.other(other, register)?,
            });
        }
        insns.push(call(self.helper.id));
        insns.extend(after);
        insns.extend([number(0, self.result()), end()]);
        Some(insns)
    }

    /// Returns a value that a program of this type may always return.
    fn result(&self) -> i32 {
        let by_btf = [ProgramType::TRACING, ProgramType::LSM];
        i32::from(!by_btf.contains(&self.subject.kind.prog_type))
    }

    fn prologue(&self) -> Vec<Insn> {
        let mut insns = self.zeros();
        insns.extend([
            call(HelperId::GET_PRANDOM_U32),
            insn(STX | MEM | DW, FRAME, 0, UNKNOWN, 0),
        ]);
        insns.extend([call(HelperId::GET_CURRENT_TASK_BTF), copy(TASK, 0)]);
        insns.extend(imm64(1, PSEUDO_MAP_FD, load::number(&self.memory)));
        insns.extend(frame(2, -64));
        insns.extend([call(HelperId::MAP_LOOKUP_ELEM), copy(MEMORY, 0)]);
        insns.extend(self.unless_null(MEMORY));
        insns.extend(self.socket());
        if self.helper.args.contains(&Arg::Dynptr(Dynptr::Any)) {
            insns.extend([
                copy(1, MEMORY),
                number(2, MEMORY_BYTES as i32),
                number(3, 0),
            ]);
            insns.extend(frame(4, DYNPTR));
            insns.push(call(HelperId::DYNPTR_FROM_MEM));
        }
        insns
    }

    /// The context kept, and zeros on the stack.
    fn zeros(&self) -> Vec<Insn> {
        let zero = |slot: i16| insn(ST | MEM | DW, FRAME, 0, -8 * slot, 0);
        [copy(CONTEXT, 1)]
            .into_iter()
            .chain((1..=8).map(zero))
            .collect()
    }

    fn socket(&self) -> Vec<Insn> {
        const SK: i16 = 168;
        if !self.has_socket() {
            return Vec::new();
        }
        let mut insns = vec![insn(LDX | MEM | DW, SOCKET, CONTEXT, SK, 0)];
        insns.extend(self.unless_null(SOCKET));
        insns
    }

    fn unless_null(&self, register: u8) -> [Insn; 3] {
        [
            insn(JMP | K | JNE, register, 0, 2, 0),
            number(0, self.result()),
            end(),
        ]
    }

    /// Returns whether its context's first argument is a TCP socket.
    fn is_congestion_control(&self) -> bool {
        self.subject.target == Some("tcp_congestion_ops")
    }

    /// Returns whether its context has `sk`.
    fn has_socket(&self) -> bool {
        matches!(
            self.subject.kind.prog_type,
            ProgramType::SCHED_CLS | ProgramType::SCHED_ACT | ProgramType::CGROUP_SKB
        )
    }

    /// Puts a pointer to a packet of some length into a register, by way of r0 and the next
    /// register.
    fn packet(&self, register: u8) -> Option<Vec<Insn>> {
        const BYTES: i32 = 64;
        let (size, data, data_end) = match self.subject.kind.prog_type {
            ProgramType::SCHED_CLS
            | ProgramType::SCHED_ACT
            | ProgramType::CGROUP_SKB
            | ProgramType::LWT_IN
            | ProgramType::LWT_OUT
            | ProgramType::LWT_XMIT
            | ProgramType::SK_SKB
            | ProgramType::LWT_SEG6LOCAL => (W, 76, 80),
            ProgramType::XDP => (W, 0, 4),
            ProgramType::SK_MSG => (DW, 0, 8),
            _ => return None,
        };
        let end_of_data = register + 1;
        Some(vec![
            insn(LDX | MEM | size, register, CONTEXT, data, 0),
            insn(LDX | MEM | size, end_of_data, CONTEXT, data_end, 0),
            copy(0, register),
            insn(ALU64 | K | ADD, 0, 0, 0, BYTES),
            insn(JMP | X | JLE, 0, end_of_data, 2, 0),
            number(0, self.result()),
            end(),
        ])
    }

    fn other(&self, given: Given, register: u8) -> Option<Vec<Insn>> {
        Some(match given {
            Given::Right => unreachable!("depends on the argument"),
            Given::Null => vec![number(register, 0)],
            Given::Number(value) => vec![number(register, value)],
            Given::Unknown => vec![insn(LDX | MEM | DW, register, FRAME, UNKNOWN, 0)],
            Given::Stack => frame(register, -64).into(),
            Given::Unwritten => frame(register, UNWRITTEN).into(),
            Given::Task => vec![copy(register, TASK)],
            Given::Value { bytes } => vec![
                copy(register, MEMORY),
                insn(
                    ALU64 | K | ADD,
                    register,
                    0,
                    0,
                    (MEMORY_BYTES - bytes) as i32,
                ),
            ],
            Given::Packet => self.packet(register)?,
        })
    }

    fn right(&self, at: usize, register: u8) -> Option<Vec<Insn>> {
        Some(match self.helper.args[at] {
            Arg::Any => vec![number(register, 0)],
            Arg::Context | Arg::ContextOrNull => vec![copy(register, CONTEXT)],
            Arg::Map => imm64(register, PSEUDO_MAP_FD, load::number(&self.map)).into(),
            Arg::Key | Arg::Value | Arg::UninitValue | Arg::ValueOrNull => {
                frame(register, -64).into()
            }
            Arg::Mem { .. } => vec![copy(register, MEMORY)],
            Arg::Size | Arg::SizeOrZero | Arg::AllocSizeOrZero => vec![number(register, 8)],
            Arg::SockCommon | Arg::BtfSockCommon { release: false, .. } if self.has_socket() => {
                vec![copy(register, SOCKET)]
            }
            Arg::BtfSockCommon { release: false, .. } if self.is_congestion_control() => {
                vec![insn(LDX | MEM | DW, register, CONTEXT, 0, 0)]
            }
            Arg::Btf {
                name: "task_struct",
                ..
            } => vec![copy(register, TASK)],
            Arg::Btf {
                name: "tcp_sock", ..
            } if self.is_congestion_control() => {
                vec![insn(LDX | MEM | DW, register, CONTEXT, 0, 0)]
            }
            // `ctx->meta->seq`.
            Arg::Btf {
                name: "seq_file", ..
            } => vec![
                insn(LDX | MEM | DW, register, CONTEXT, 0, 0),
                insn(LDX | MEM | DW, register, register, 0, 0),
            ],
            Arg::ConstStr => imm64(register, PSEUDO_MAP_VALUE, load::number(&self.words)).into(),
            Arg::Dynptr(Dynptr::Any) => frame(register, DYNPTR).into(),
            Arg::Btf { or_null: true, .. }
            | Arg::BtfSockCommon { or_null: true, .. }
            | Arg::Socket { or_null: true } => vec![number(register, 0)],
            Arg::Dynptr(Dynptr::NewLocal | Dynptr::NewRingbuf) => frame(register, -64).into(),
            _ => return None,
        })
    }
}

fn frame(register: u8, off: i32) -> [Insn; 2] {
    [
        copy(register, FRAME),
        insn(ALU64 | K | ADD, register, 0, 0, off),
    ]
}

/// Returns a map that this helper takes, or an array.
fn map_for(id: HelperId, sleepable: bool) -> Option<File> {
    let name = id.name()?;
    // Programs that may sleep have few types of maps; this one's fault is detected after the
    // arguments.
    let name = if sleepable && !name.starts_with("ringbuf") {
        ""
    } else {
        name
    };
    let (map_type, key_size, value_size, max_entries) = match name {
        "tail_call" => (MapType::PROG_ARRAY, 4, 4, 4),
        "perf_event_read"
        | "perf_event_read_value"
        | "perf_event_output"
        | "skb_output"
        | "xdp_output" => (MapType::PERF_EVENT_ARRAY, 4, 4, 4),
        "get_stackid" => (MapType::STACK_TRACE, 4, 64, 4),
        "skb_under_cgroup" | "current_task_under_cgroup" => (MapType::CGROUP_ARRAY, 4, 4, 4),
        "redirect_map" => (MapType::DEVMAP, 4, 4, 4),
        "sk_redirect_map" | "sock_map_update" | "msg_redirect_map" => (MapType::SOCKMAP, 4, 4, 4),
        "sk_redirect_hash" | "sock_hash_update" | "msg_redirect_hash" => {
            (MapType::SOCKHASH, 4, 4, 4)
        }
        "sk_select_reuseport" => (MapType::REUSEPORT_SOCKARRAY, 4, 8, 4),
        "map_push_elem" | "map_pop_elem" | "map_peek_elem" => (MapType::QUEUE, 0, 8, 4),
        "map_lookup_percpu_elem" => (MapType::PERCPU_ARRAY, 4, 8, 4),
        "get_local_storage" => (MapType::CGROUP_STORAGE, 16, 8, 0),
        "ringbuf_output" | "ringbuf_reserve" | "ringbuf_query" | "ringbuf_reserve_dynptr" => {
            (MapType::RINGBUF, 0, 0, 4096)
        }
        _ => (MapType::ARRAY, 4, 8, 4),
    };
    load::map(map_type, key_size, value_size, max_entries, 0).ok()
}

/// Returns whether a program type has everything that every program here does first.
pub fn has_prologue(subject: &Subject) -> bool {
    [
        HelperId::MAP_LOOKUP_ELEM,
        HelperId::GET_PRANDOM_U32,
        HelperId::GET_CURRENT_TASK_BTF,
    ]
    .iter()
    .all(|&id| helper(id, &subject.kind, subject.target).is_ok())
}
