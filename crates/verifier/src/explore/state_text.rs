//! The text of registers and of the stack in messages and in the log (`print_verifier_state`).

use std::fmt::Write as _;

use beeline_uapi::verifier::BPF_ADD_CONST;

use crate::context::SocketKind;
use crate::program::Program;
use crate::scalar::Signed;
use crate::state::{Byte, DynptrKind, Flags, Object, Reg, Slot, State, Type};
use crate::tnum::Unsigned;

/// Describes the registers and stacks of a program's states by the names of its maps and types.
#[derive(Clone, Copy)]
pub(super) struct StateText<'a> {
    pub program: &'a Program<'a>,
}

impl<'a> StateText<'a> {
    /// Returns the text of a frame: its registers and stack, and the references that the program
    /// holds.
    pub(super) fn frame(self, state: &State, depth: usize) -> String {
        let frame = &state.frames[depth];
        let mut text = frame_prefix(depth);
        for (number, reg) in frame.regs.iter().enumerate() {
            if reg.kind != Type::Uninit {
                let _ = write!(text, " R{number}={}", self.reg(reg, depth));
            }
        }
        for (slot, content) in frame.stack.iter().enumerate() {
            if let Some(slot) = self.slot(slot, content, depth) {
                text += &slot;
            }
        }
        let refs: Vec<_> = state.held.iter().map(|held| held.id.to_string()).collect();
        if !refs.is_empty() {
            let _ = write!(text, " refs={}", refs.join(","));
        }
        text
    }

    /// Returns the text of a slot of the stack of frame `own`, if there is anything in it.
    pub(super) fn slot(self, slot: usize, content: &Slot, own: usize) -> Option<String> {
        let at = -(slot as i64 + 1) * 8;
        match content.object {
            Object::Dynptr { first: true, kind } => {
                return Some(format!(" fp{at}=dynptr_{}()", dynptr_name(kind)));
            }
            Object::Dynptr { .. } => return None,
            Object::Iter { active, depth, .. } => {
                let what = if active { "active" } else { "drained" };
                return Some(format!(" fp{at}=iter({what},depth={depth})"));
            }
            _ => {}
        }
        if content.bytes.iter().all(|&byte| byte == Byte::Invalid) {
            return None;
        }
        let types: String = content
            .bytes
            .iter()
            .rev()
            .map(|&byte| byte_letter(byte))
            .collect();
        if content.is_whole_scalar() || content.is_spill() && content.reg.is_pointer() {
            return Some(format!(" fp{at}={}", self.reg(&content.reg, own)));
        }
        if content.is_spill() {
            let spilled = self.reg(&content.reg, own);
            return Some(format!(" fp{at}={}{spilled}", types.replace('r', "")));
        }
        Some(format!(" fp{at}={types}"))
    }

    /// Returns the text of a register of this frame. A pointer into a stack names the frame only if
    /// it is another one.
    pub(super) fn reg(self, reg: &Reg, own_frame: usize) -> String {
        let mark = if reg.precise { "P" } else { "" };
        if let Some(value) = reg.constant() {
            return format!("{mark}{}", Signed(value.cast_signed()));
        }
        let mut inside = String::new();
        let mut put = |text: String| {
            if !inside.is_empty() {
                inside.push(',');
            }
            inside += &text;
        };
        if reg.is_scalar() {
            if reg.id != 0 {
                let id = reg.id & !BPF_ADD_CONST;
                let more = if reg.id & BPF_ADD_CONST != 0 {
                    format!("+{}", reg.off)
                } else {
                    String::new()
                };
                put(format!("id={id}{more}"));
            }
            reg.var.describe(&mut inside);
            return format!("{mark}scalar({inside})");
        }
        let mut name = type_name(reg);
        if let Type::Btf(btf_id) = reg.kind {
            name += self.structure(reg, btf_id);
        }
        if let (Type::Stack(frame), Some(variable)) = (reg.kind, reg.var.constant()) {
            let own = usize::from(frame) == own_frame;
            let at = i64::from(reg.off) + variable.cast_signed();
            let name = if own {
                "fp".to_owned()
            } else {
                format!("fp[{frame}]")
            };
            return format!("{name}{at}");
        }
        if reg.id != 0 {
            put(format!("id={}", reg.id));
        }
        if reg.ref_id != 0 {
            put(format!("ref_obj_id={}", reg.ref_id));
        }
        match reg.kind {
            Type::Map(id) | Type::MapKey(id) | Type::MapValue(id) => {
                let map = self.program.map(id);
                if !map.name.is_empty() {
                    put(format!("map={}", map.name));
                }
                put(format!("ks={},vs={}", map.key_size, map.value_size));
            }
            _ => {}
        }
        if reg.off != 0 {
            put(format!("off={}", reg.off));
        }
        if reg.is_packet() {
            put(format!(
                "r={}",
                Unsigned(i64::from(reg.range).cast_unsigned())
            ));
        }
        if let Type::Mem(bytes) = reg.kind {
            put(format!("sz={bytes}"));
        }
        if reg.var.constant() != Some(0) {
            match reg.var.constant() {
                Some(value) => put(format!("imm={:#x}", value)),
                None => reg.var.describe(&mut inside),
            }
        }
        format!("{name}({inside})")
    }

    /// Returns the name of the structure that a pointer leads to.
    pub(super) fn structure(self, reg: &Reg, btf_id: u32) -> &'a str {
        // A pointer to the kernel's own per-CPU data is not trusted at all.
        let of_map =
            reg.flags.has(Flags::PERCPU) && reg.flags.has(Flags::RCU.with(Flags::UNTRUSTED));
        if reg.flags.has(Flags::ALLOC) || of_map {
            self.program.types.map_or("", |types| types.name(btf_id))
        } else {
            self.program.kernel.map_or("", |kernel| kernel.name(btf_id))
        }
    }
}

/// Returns the name of a frame before its registers; the outermost one has none.
pub(super) fn frame_prefix(depth: usize) -> String {
    if depth == 0 {
        String::new()
    } else {
        format!(" frame{depth}:")
    }
}

fn byte_letter(byte: Byte) -> char {
    match byte {
        Byte::Invalid => '?',
        Byte::Spill => 'r',
        Byte::Misc => 'm',
        Byte::Zero => '0',
        Byte::Dynptr => 'd',
        Byte::Iter => 'i',
        Byte::IrqFlag => 'f',
    }
}

fn dynptr_name(kind: DynptrKind) -> &'static str {
    match kind {
        DynptrKind::Local => "local",
        DynptrKind::Ringbuf => "ringbuf",
        DynptrKind::Skb => "skb",
        DynptrKind::Xdp => "xdp",
        DynptrKind::SkbMeta => "skb_meta",
        DynptrKind::Any => "invalid",
    }
}

/// Implements `reg_type_str`.
pub(super) fn type_name(reg: &Reg) -> String {
    let mut prefix = String::new();
    for (flag, name) in [
        (Flags::RDONLY, "rdonly_"),
        (Flags::RINGBUF, "ringbuf_"),
        (Flags::USER, "user_"),
        (Flags::PERCPU, "percpu_"),
        (Flags::UNTRUSTED, "untrusted_"),
        (Flags::TRUSTED, "trusted_"),
        (Flags::RCU, "rcu_"),
    ] {
        if reg.flags.has(flag) {
            prefix += name;
        }
    }
    let name = match reg.kind {
        Type::Uninit => "?".to_owned(),
        Type::Scalar => "scalar".to_owned(),
        Type::Context => "ctx".to_owned(),
        Type::Map(_) => "map_ptr".to_owned(),
        Type::MapValue(_) => "map_value".to_owned(),
        Type::MapKey(_) => "map_key".to_owned(),
        Type::Stack(_) => "fp".to_owned(),
        Type::Packet => "pkt".to_owned(),
        Type::PacketMeta => "pkt_meta".to_owned(),
        Type::PacketEnd => "pkt_end".to_owned(),
        Type::FlowKeys => "flow_keys".to_owned(),
        Type::Socket(SocketKind::Common) => "sock_common".to_owned(),
        Type::Socket(SocketKind::Socket) => "sock".to_owned(),
        Type::Socket(SocketKind::Tcp) => "tcp_sock".to_owned(),
        Type::Socket(SocketKind::Xdp) => "xdp_sock".to_owned(),
        Type::Btf(_) => {
            let postfix = if reg.may_be_null() { "or_null_" } else { "" };
            return format!("{prefix}ptr_{postfix}");
        }
        Type::Mem(_) => "mem".to_owned(),
        Type::Buffer => "buf".to_owned(),
        Type::TracepointBuffer => "tp_buffer".to_owned(),
        Type::Func(_) => "func".to_owned(),
        Type::Dynptr(_) => "dynptr_ptr".to_owned(),
        Type::Arena => "arena".to_owned(),
    };
    let postfix = if reg.may_be_null() { "_or_null" } else { "" };
    format!("{prefix}{name}{postfix}")
}
