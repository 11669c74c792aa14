//! The log, as the kernel writes it (`kernel/bpf/log.c`, `print_verifier_state`).

use std::fmt::Write as _;

use beeline_isa::{Alu, FRAME_POINTER, Imm64, Op};

use super::Explorer;
use super::log_text::Text;
use crate::context::SocketKind;
use crate::scalar::Signed;
use crate::state::{Byte, DynptrKind, Flags, Frame, Object, Reg, State, Type};
use crate::tnum::Unsigned;
use crate::verdict::LogLevel;

#[derive(Debug)]
pub(super) struct Log {
    pub level: LogLevel,
    text: Text,
    /// True if the next instruction's state is printed whole, because the path is a new one.
    pub print_state: bool,
    /// True if that is because a function has returned: then once is enough.
    returned: bool,
    /// The state that was printed last; only changes from it are printed.
    last: Option<(usize, Frame)>,
    /// The source line that was printed last.
    line: Option<u32>,
    /// The registers that the current instruction reads or writes, a bit each.
    touched: u16,
    /// The slots of the stack that the current instruction reads or writes.
    touched_slots: u64,
    /// The end of the current instruction's line, without its newline.
    insn_end: usize,
}

impl LogLevel {
    pub(super) fn paths(self) -> bool {
        self.0 & (Self::PATH | Self::ALL) != 0
    }

    pub(super) fn all(self) -> bool {
        self.0 & Self::ALL != 0
    }
}

impl Log {
    /// Creates a log with room for so many bytes.
    pub(super) fn new(level: LogLevel, room: usize) -> Self {
        Self {
            level,
            text: Text::new(room, level.0 & LogLevel::FIXED != 0),
            print_state: false,
            returned: false,
            last: None,
            line: None,
            touched: 0,
            touched_slots: 0,
            insn_end: 0,
        }
    }

    /// Returns the bytes of memory.
    pub(super) fn bytes(&self) -> usize {
        self.text.bytes()
    }

    pub(super) fn len(&self) -> usize {
        self.text.len()
    }

    pub(super) fn back_to(&mut self, len: usize) {
        self.text.back_to(len);
    }

    /// Drops the text of paths that were good; they are not shown.
    pub(super) fn forget_paths(&mut self) {
        self.text.back_to(0);
    }

    pub(super) fn line(&mut self, line: &str) {
        if self.level.0 != 0 && !line.is_empty() {
            self.text.line(line);
        }
    }

    /// Records that the current instruction reads or writes a slot of the stack.
    pub(super) fn touch_slot(&mut self, slot: usize) {
        self.touched_slots |= 1 << slot;
    }

    pub(super) fn safe(&mut self, previous: Option<usize>, insn: usize) {
        if !self.level.paths() {
            return;
        }
        if self.print_state {
            let from = previous.map_or(-1, |insn| insn as i64);
            self.line(&format!("\nfrom {from} to {insn}: safe"));
        } else {
            self.line(&format!("{insn}: safe"));
        }
    }

    pub(super) fn global_is_safe(&mut self, number: usize, name: &str) {
        if self.level.paths() {
            self.line(&format!(
                "Func#{number} ('{name}') is safe for any args that match its prototype"
            ));
        }
    }
}

impl Explorer<'_> {
    /// Returns the log with the line of figures at its end.
    ///
    /// Also returns its largest length at any time.
    pub(crate) fn take_log(&mut self) -> (usize, String) {
        let level = self.log.level;
        if level.0 != 0 {
            let line = self.effort.to_string();
            self.log.line(&line);
        }
        let log = std::mem::replace(&mut self.log, Log::new(level, 0));
        log.text.finish()
    }

    /// Prints the path's place and its next instruction.
    pub(super) fn print_before(&mut self) {
        if !self.log.level.paths() {
            return;
        }
        if self.log.print_state {
            let state = self.state_text();
            let from = self.previous.map_or(-1, |insn| insn as i64);
            if self.previous.is_some() {
                let line = format!("\nfrom {from} to {}:{state}", self.insn);
                self.log.line(&line);
            }
            if !std::mem::take(&mut self.log.returned) {
                let line = format!("{}:{state}", self.insn);
                self.log.line(&line);
            }
            self.log.print_state = false;
            (self.log.touched, self.log.touched_slots) = (0, 0);
            self.log.last = Some((self.cur.depth(), self.cur.frame().clone()));
        } else {
            self.print_after();
        }
        self.print_source();
        let line = format!("{}: {}", self.insn, self.insn_text(self.insn));
        self.log.line(&line);
        self.log.touched = self.op_at(self.insn).map_or(0, |op| touched_by(&op));
        self.log.insn_end = self.log.text.len().saturating_sub(1);
    }

    /// Returns an instruction's text, with its code.
    pub(super) fn insn_text(&self, index: usize) -> String {
        let insn = self.insn_at(index);
        match self.op_at(index) {
            Some(Op::Imm64 {
                kind: Imm64::Number,
                dst,
                low,
            }) => {
                let high = self.insn_at(index + 1).imm.cast_unsigned();
                let number = u64::from(high) << 32 | u64::from(low.cast_unsigned());
                format!("({:02x}) r{dst} = {number:#x}", insn.code)
            }
            _ => format!("({:02x}) {insn}", insn.code),
        }
    }

    /// Prints an instruction's changes, behind its line.
    pub(super) fn print_after(&mut self) {
        if !self.log.level.paths() {
            return;
        }
        let depth = self.cur.depth();
        let text = match &self.log.last {
            Some((last_depth, last)) if *last_depth == depth => self.changes(last),
            _ => String::new(),
        };
        self.log.last = Some((depth, self.cur.frame().clone()));
        (self.log.touched, self.log.touched_slots) = (0, 0);
        if text.is_empty() {
            return;
        }
        let end = self.log.insn_end;
        if end > 0 && end + 1 == self.log.text.len() {
            let padding = padding(self.log.text.column(end));
            let text = format!("{:padding$};{text}", "");
            self.log.text.continue_line(end, &text);
            self.log.insn_end = 0;
        } else {
            let line = format!("{}:{text}", self.insn);
            self.log.line(&line);
        }
    }

    /// Returns the registers that the instruction touched, and the slots of the stack that have
    /// changed.
    fn changes(&self, last: &Frame) -> String {
        let frame = self.cur.frame();
        let mut text = frame_prefix(self.cur.depth());
        let mut any = false;
        for number in 0..=FRAME_POINTER {
            let reg = &frame.regs[usize::from(number)];
            if self.log.touched & 1 << number != 0 && reg.kind != Type::Uninit {
                let _ = write!(text, " R{number}={}", self.reg_text(reg));
                any = true;
            }
        }
        for (slot, content) in frame.stack.iter().enumerate() {
            let is_touched = self.log.touched_slots & 1 << slot != 0;
            if (is_touched || last.stack.get(slot) != Some(content))
                && let Some(slot) = self.slot_text(slot, content, self.cur.depth())
            {
                text += &slot;
                any = true;
            }
        }
        if any { text } else { String::new() }
    }

    fn print_source(&mut self) {
        let Some(line) = self.program.types.and_then(|types| types.line(self.insn)) else {
            return;
        };
        if self.log.line == Some(line.line) {
            return;
        }
        self.log.line = Some(line.line);
        let file = line.file.rsplit('/').next().unwrap_or_default();
        let text = format!("; {} @ {file}:{}", line.text.trim(), line.line);
        self.log.line(&text);
    }

    pub(super) fn print_call(&mut self) {
        if !self.log.level.paths() {
            return;
        }
        let depth = self.cur.depth();
        let caller = self.frame_text(&self.cur, depth - 1);
        let callee = self.frame_text(&self.cur, depth);
        self.log.touched |= 1 << FRAME_POINTER;
        self.log.line("caller:");
        self.log.line(&caller);
        self.log.line("callee:");
        self.log.line(&callee);
        self.log.last = Some((depth, self.cur.frame().clone()));
    }

    /// Prints the return from a function, with its last state, to this instruction.
    pub(super) fn print_return(&mut self, callee: &str, insn: usize) {
        if !self.log.level.paths() {
            return;
        }
        let depth = self.cur.depth();
        let caller = self.frame_text(&self.cur, depth);
        self.log.line("returning from callee:");
        self.log.line(callee);
        self.log.line(&format!("to caller at {insn}:"));
        self.log.line(&caller);
        self.log.last = Some((depth, self.cur.frame().clone()));
        self.log.print_state = true;
        self.log.returned = true;
    }

    /// Returns the innermost frame, as the log shows it.
    pub(super) fn state_text(&self) -> String {
        self.frame_text(&self.cur, self.cur.depth())
    }

    pub(super) fn frame_text(&self, state: &State, depth: usize) -> String {
        let frame = &state.frames[depth];
        let mut text = frame_prefix(depth);
        for (number, reg) in frame.regs.iter().enumerate() {
            if reg.kind != Type::Uninit {
                let _ = write!(text, " R{number}={}", self.reg_text_in(reg, depth));
            }
        }
        for (slot, content) in frame.stack.iter().enumerate() {
            if let Some(slot) = self.slot_text(slot, content, depth) {
                text += &slot;
            }
        }
        let refs: Vec<_> = state.held.iter().map(|held| held.id.to_string()).collect();
        if !refs.is_empty() {
            let _ = write!(text, " refs={}", refs.join(","));
        }
        text
    }

    fn slot_text(&self, slot: usize, content: &crate::state::Slot, own: usize) -> Option<String> {
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
            return Some(format!(" fp{at}={}", self.reg_text_in(&content.reg, own)));
        }
        if content.is_spill() {
            let spilled = self.reg_text_in(&content.reg, own);
            return Some(format!(" fp{at}={}{spilled}", types.replace('r', "")));
        }
        Some(format!(" fp{at}={types}"))
    }

    pub(super) fn reg_text(&self, reg: &Reg) -> String {
        self.reg_text_in(reg, self.cur.depth())
    }

    /// Returns the text of a register of this frame. A pointer into a stack names the frame only if
    /// it is another one.
    fn reg_text_in(&self, reg: &Reg, own_frame: usize) -> String {
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
                let id = reg.id & !crate::state::ADD_CONST;
                let more = if reg.id & crate::state::ADD_CONST != 0 {
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
            name += self.structure_name(reg, btf_id);
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
                let map = self.map(id);
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
}

/// Returns the registers that an operation touches; for calls, also those that they destroy.
fn touched_by(op: &Op) -> u16 {
    let is_call = matches!(
        op,
        Op::CallHelper { .. } | Op::CallKernel { .. } | Op::CallLocal { .. }
    );
    let call = if is_call { 0b11_1111 } else { 0 };
    op.read()
        .chain(op.written())
        .fold(call, |touched, register| touched | 1 << register)
}

/// Returns the spaces between an instruction of so many characters and the text behind it
/// (`vlog_alignment`, which counts the newline too).
fn padding(column: usize) -> usize {
    (column + 5).max(40).next_multiple_of(8) - column - 2
}

fn frame_prefix(depth: usize) -> String {
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

/// Implements `bpf_alu_string`.
pub(super) fn alu_name(op: Alu) -> &'static str {
    match op {
        Alu::Add => "+=",
        Alu::Sub => "-=",
        Alu::Mul => "*=",
        Alu::Div | Alu::SignedDiv => "/=",
        Alu::Or => "|=",
        Alu::And => "&=",
        Alu::Lsh => "<<=",
        Alu::Rsh => ">>=",
        Alu::Mod | Alu::SignedMod => "%=",
        Alu::Xor => "^=",
        Alu::Arsh => "s>>=",
    }
}
