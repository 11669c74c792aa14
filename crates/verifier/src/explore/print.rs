//! The log, as the kernel writes it (`kernel/bpf/log.c`, `print_verifier_state`).

use std::fmt::Write as _;

use beeline_isa::{Alu, FRAME_POINTER, Imm64, Op};

use super::Explorer;
use super::log_text::Text;
use super::state_text::{StateText, frame_prefix};
use crate::state::{Frame, Type};
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

impl<'a> Explorer<'a> {
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
                let _ = write!(
                    text,
                    " R{number}={}",
                    self.text().reg(reg, self.cur.depth())
                );
                any = true;
            }
        }
        for (slot, content) in frame.stack.iter().enumerate() {
            let is_touched = self.log.touched_slots & 1 << slot != 0;
            if (is_touched || last.stack.get(slot) != Some(content))
                && let Some(slot) = self.text().slot(slot, content, self.cur.depth())
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
        let caller = self.text().frame(&self.cur, depth - 1);
        let callee = self.text().frame(&self.cur, depth);
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
        let caller = self.text().frame(&self.cur, depth);
        self.log.line("returning from callee:");
        self.log.line(callee);
        self.log.line(&format!("to caller at {insn}:"));
        self.log.line(&caller);
        self.log.last = Some((depth, self.cur.frame().clone()));
        self.log.print_state = true;
        self.log.returned = true;
    }

    /// Returns the writer of registers and stacks.
    pub(super) fn text(&self) -> StateText<'a> {
        StateText {
            program: self.program,
        }
    }

    /// Returns the innermost frame, as the log shows it.
    pub(super) fn state_text(&self) -> String {
        self.text().frame(&self.cur, self.cur.depth())
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
