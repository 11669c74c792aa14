//! Comparisons: their possible outcomes, and the facts that each one tells (`check_cond_jmp_op`).

use beeline_isa::{Cond, FRAME_POINTER, Operand};
use beeline_uapi::MapType;
use beeline_uapi::limits::MAX_PACKET_OFF;
use beeline_uapi::verifier::{AT_PKT_END, BEYOND_PKT_END, BPF_ADD_CONST, BPF_ADD_CONST32};

use super::shape::target;
use super::{Check, Explorer, Next};
use crate::program::Map;
use crate::scalar::Comparison;
use crate::state::{Flags, HeldKind, Linked, LinkedPlace, MapId, Reg, State, Type};

/// A conditional jump.
#[derive(Clone, Copy)]
struct Test {
    cond: Cond,
    wide: bool,
    dst: u8,
    src: Operand,
}

impl Test {
    fn of_numbers(self) -> Comparison {
        Comparison {
            cond: self.cond,
            wide: self.wide,
        }
    }
}

impl Explorer<'_> {
    pub(super) fn branch(
        &mut self,
        cond: Cond,
        wide: bool,
        dst: u8,
        src: Operand,
        off: i16,
    ) -> Check<Next> {
        let test = Test {
            cond,
            wide,
            dst,
            src,
        };
        self.jumps += 1;
        self.read_reg(dst)?;
        if let Operand::Reg(src) = src {
            self.read_reg(src)?;
        }
        let left = *self.cur.reg(dst);
        let right = self.right(test);
        let (dst_is_stack, src_is_stack) = (is_stack(&left), is_stack(&right));
        if dst_is_stack || src_is_stack {
            self.remember(|step| {
                step.dst_is_stack = dst_is_stack;
                step.src_is_stack = src_is_stack;
            });
        }
        let taken = target(self.insn, off.into());
        if let Some(holds) = decide(test, &left, &right) {
            if !left.is_pointer() {
                self.mark_precise(dst)?;
            }
            if let (Operand::Reg(src), false) = (src, right.is_pointer()) {
                self.mark_precise(src)?;
            }
            self.print_after();
            return Ok(Next::Insn(if holds { taken } else { self.insn + 1 }));
        }
        self.both_ways(test, taken)?;
        self.print_after();
        Ok(Next::Insn(self.insn + 1))
    }

    fn right(&self, test: Test) -> Reg {
        match test.src {
            Operand::Reg(src) => *self.cur.reg(src),
            Operand::Imm(imm) => Reg::known(i64::from(imm).cast_unsigned()),
        }
    }

    /// Puts off the way on which the condition holds, and continues where it does not.
    fn both_ways(&mut self, test: Test, taken: usize) -> Check {
        let left = *self.cur.reg(test.dst);
        let right = self.right(test);
        let mut linked = Linked::default();
        if let Operand::Reg(_) = test.src {
            self.collect_linked(&right, &mut linked);
        }
        self.collect_linked(&left, &mut linked);
        if linked.len() > 1 {
            self.remember(|step| step.linked = linked);
        }
        self.put_off(taken)?;
        let Some(mut other) = self.pending.pop() else {
            return Ok(());
        };
        let rules = Rules { test, linked };
        rules.learn(&mut other.state, &left, &right, true);
        rules.learn(&mut self.cur, &left, &right, false);
        self.learn_of_pointers(test, &mut other.state);
        self.pending.push(other);
        Ok(())
    }

    /// Learns from a comparison of pointers: that they are null or not, or the length of a packet.
    fn learn_of_pointers(&mut self, test: Test, other: &mut State) {
        let left = *self.cur.reg(test.dst);
        let right = self.right(test);
        let equality = matches!(test.cond, Cond::Equal | Cond::NotEqual);
        let is_structure = |reg: &Reg| matches!(reg.kind, Type::Btf(_));
        if let Operand::Reg(src) = test.src
            && test.wide
            && equality
            && left.is_pointer()
            && right.is_pointer()
            && left.may_be_null() != right.may_be_null()
            && !is_structure(&left)
            && !is_structure(&right)
        {
            let number = if right.may_be_null() { src } else { test.dst };
            let mut reg = *self.cur.reg(number);
            self.not_null(&mut reg);
            let state = match test.cond {
                Cond::Equal => &mut *other,
                _ => &mut self.cur,
            };
            *state.reg_mut(number) = reg;
        }
        let with_null = test.wide && test.src == Operand::Imm(0) && equality;
        if with_null && left.may_be_null() {
            let null_if_not = test.cond == Cond::NotEqual;
            let mut this = self.take_state();
            self.null_or_not(&mut this, test.dst, null_if_not);
            self.null_or_not(other, test.dst, !null_if_not);
            self.cur = this;
        } else if let (Operand::Reg(src), true) = (test.src, test.wide) {
            learn_of_packets(&mut self.cur, other, test.cond, test.dst, src);
        }
    }

    /// Makes every register that came from the same place null, or not null
    /// (`mark_ptr_or_null_regs`).
    fn null_or_not(&self, state: &mut State, number: u8, is_null: bool) {
        let reg = *state.reg(number);
        let id = reg.id;
        if reg.ref_id != 0 && reg.ref_id == id && is_null {
            state.drop_held(HeldKind::Object, id);
        }
        state.for_each_reg(|reg| {
            if !reg.may_be_null() || reg.id != id {
                return;
            }
            if is_null {
                *reg = Reg {
                    precise: reg.precise,
                    ..Reg::known(0)
                };
                return;
            }
            self.not_null(reg);
            if !self.may_point_to_lock(reg) {
                reg.id = 0;
            }
        });
    }

    /// Implements `mark_ptr_not_null_reg`.
    pub(super) fn not_null(&self, reg: &mut Reg) {
        use crate::context::SocketKind;
        if let Type::MapValue(id) = reg.kind {
            let map = self.program.map(id);
            if map.inner.is_some() && !id.inner {
                let unique = if has_timer(map.inner.as_deref()) {
                    reg.id
                } else {
                    0
                };
                reg.kind = Type::Map(MapId {
                    inner: true,
                    unique,
                    ..id
                });
            } else {
                match map.map_type {
                    MapType::XSKMAP => reg.kind = Type::Socket(SocketKind::Xdp),
                    MapType::SOCKMAP | MapType::SOCKHASH => {
                        reg.kind = Type::Socket(SocketKind::Socket);
                        // The kernel's register still has the map that it came from, and is
                        // compared with that.
                        reg.range = i32::from(id.index) + 1;
                    }
                    _ => {}
                }
            }
        }
        reg.flags = reg.flags.without(Flags::MAYBE_NULL);
    }

    /// Implements `reg_may_point_to_spin_lock`.
    fn may_point_to_lock(&self, reg: &Reg) -> bool {
        use crate::program::{FieldKind, MapField};
        let is_lock = |field: &MapField| {
            matches!(
                field.kind,
                FieldKind::SpinLock | FieldKind::ResilientSpinLock
            )
        };
        match reg.kind {
            Type::MapValue(id) => self.program.map(id).fields.iter().any(is_lock),
            Type::Btf(_) => self.fields_behind(reg).iter().any(is_lock),
            _ => false,
        }
    }

    /// Collects every place that holds the same number, or a number at a constant distance
    /// (`collect_linked_regs`).
    fn collect_linked(&self, reg: &Reg, linked: &mut Linked) {
        if !reg.is_scalar() || reg.id == 0 {
            return;
        }
        let same = |other: &Reg| other.is_scalar() && (other.id ^ reg.id) & !BPF_ADD_CONST == 0;
        for (number, frame) in self.cur.frames.iter().enumerate().rev() {
            let live = self.shape.at(self.cur.insn_of(number)).live;
            for register in 0..FRAME_POINTER {
                if live & 1 << register != 0 && same(&frame.regs[usize::from(register)]) {
                    linked.push(LinkedPlace {
                        frame: number as u8,
                        number: register,
                        is_slot: false,
                    });
                }
            }
            for (slot, content) in frame.stack.iter().enumerate() {
                if content.is_spilled_scalar() && same(&content.reg) {
                    linked.push(LinkedPlace {
                        frame: number as u8,
                        number: slot as u8,
                        is_slot: true,
                    });
                }
            }
        }
    }

    pub(super) fn may_goto(&mut self, off: i16) -> Check<Next> {
        self.jumps += 1;
        let next = self.insn + 1;
        // The state that was just kept is this turn's.
        let kept = self
            .cur
            .parent
            .map_or(0, |parent| self.explored.state(parent).dfs_depth);
        let earlier = self.earlier_turn(self.insn, kept);
        let earlier = earlier.map(|id| self.explored.state(id).clone());
        let queued = self.put_off(next)?;
        queued.may_goto_depth += 1;
        if let Some(earlier) = earlier {
            super::equal::widen(&earlier, queued);
        }
        Ok(Next::Insn(target(self.insn, off.into())))
    }
}

fn has_timer(map: Option<&Map>) -> bool {
    use crate::program::FieldKind::{TaskWork, Timer, Workqueue};
    map.is_some_and(|map| {
        map.fields
            .iter()
            .any(|field| matches!(field.kind, Timer | Workqueue | TaskWork))
    })
}

fn is_stack(reg: &Reg) -> bool {
    matches!(reg.kind, Type::Stack(_))
}

/// Returns whether the condition always holds, or never (`is_branch_taken`).
fn decide(test: Test, left: &Reg, right: &Reg) -> Option<bool> {
    if left.is_packet_or_end() && right.is_packet_or_end() && test.wide {
        return decide_packets(test.cond, left, right);
    }
    if !left.is_pointer() && !right.is_pointer() {
        return test.of_numbers().decide(&left.var, &right.var);
    }
    let constant = |reg: &Reg| {
        if !reg.is_scalar() {
            None
        } else if test.wide {
            reg.var.constant()
        } else {
            reg.var.constant32().map(u64::from)
        }
    };
    let (pointer, value) = match (constant(right), constant(left)) {
        (Some(value), _) => (left, value),
        (None, Some(value)) => (right, value),
        (None, None) => return None,
    };
    if value != 0 || !pointer.is_not_null() {
        return None;
    }
    match test.cond {
        Cond::Equal => Some(false),
        Cond::NotEqual => Some(true),
        _ => None,
    }
}

/// Implements `is_pkt_ptr_branch_taken`: uses only the result of an earlier comparison with the
/// end.
fn decide_packets(cond: Cond, left: &Reg, right: &Reg) -> Option<bool> {
    let (packet, cond) = match (left.kind, right.kind) {
        (_, Type::PacketEnd) => (left, cond),
        (Type::PacketEnd, _) => (right, flipped(cond)),
        _ => return None,
    };
    match (cond, packet.range) {
        (Cond::LessEqual | Cond::Greater, BEYOND_PKT_END) => Some(cond == Cond::Greater),
        (Cond::Less | Cond::GreaterEqual, BEYOND_PKT_END | AT_PKT_END) => {
            Some(cond == Cond::GreaterEqual)
        }
        _ => None,
    }
}

/// Returns the condition for exchanged operands.
fn flipped(cond: Cond) -> Cond {
    match cond {
        Cond::Greater => Cond::Less,
        Cond::Less => Cond::Greater,
        Cond::GreaterEqual => Cond::LessEqual,
        Cond::LessEqual => Cond::GreaterEqual,
        Cond::SignedGreater => Cond::SignedLess,
        Cond::SignedLess => Cond::SignedGreater,
        Cond::SignedGreaterEqual => Cond::SignedLessEqual,
        Cond::SignedLessEqual => Cond::SignedGreaterEqual,
        same => same,
    }
}

struct Rules {
    test: Test,
    linked: Linked,
}

impl Rules {
    /// Learns from an outcome about numbers, and so about those that equal them (`reg_set_min_max`,
    /// `sync_linked_regs`).
    fn learn(&self, state: &mut State, left: &Reg, right: &Reg, holds: bool) {
        let Test { dst, src, .. } = self.test;
        let comparison = self.test.of_numbers();
        if !left.is_scalar() || !right.is_scalar() {
            return;
        }
        if src == Operand::Reg(dst) {
            let reg = state.reg_mut(dst);
            comparison.refine_same(holds, &mut reg.var);
            if reg.var.contradiction().is_some() {
                reg.var.forget_bounds();
            }
            return;
        }
        let (mut left, mut right) = (*left, *right);
        comparison.refine(holds, &mut left.var, &mut right.var);
        for var in [&mut left.var, &mut right.var] {
            if var.contradiction().is_some() {
                var.forget_bounds();
            }
        }
        *state.reg_mut(dst) = left;
        if let Operand::Reg(src) = src {
            *state.reg_mut(src) = right;
            if right.id != 0 {
                self.share(state, &right, src);
            }
        }
        let left = *state.reg(dst);
        if left.id != 0 {
            self.share(state, &left, dst);
        }
    }

    fn share(&self, state: &mut State, known: &Reg, number: u8) {
        let depth = state.depth();
        for place in self.linked.iter() {
            let itself =
                usize::from(place.frame) == depth && !place.is_slot && place.number == number;
            let Some(frame) = state.frames.get_mut(usize::from(place.frame)) else {
                continue;
            };
            let reg = if place.is_slot {
                match frame.stack.get_mut(usize::from(place.number)) {
                    Some(slot) => &mut slot.reg,
                    None => continue,
                }
            } else {
                &mut frame.regs[usize::from(place.number)]
            };
            if itself || !reg.is_scalar() || (reg.id ^ known.id) & !BPF_ADD_CONST != 0 {
                continue;
            }
            // A constant added in 32 bits and one added in 64 say nothing of each other.
            if (reg.id ^ known.id) & BPF_ADD_CONST == BPF_ADD_CONST {
                continue;
            }
            let both_plain = (reg.id | known.id) & BPF_ADD_CONST == 0;
            if both_plain || reg.off == known.off {
                *reg = *known;
            } else {
                let (off, id) = (reg.off, reg.id);
                let delta = i64::from(off) - i64::from(known.off);
                let var = known.var.plus(delta);
                let narrow = (id | known.id) & BPF_ADD_CONST32 != 0;
                *reg = Reg {
                    off,
                    id,
                    var: if narrow { var.zero_extended() } else { var },
                    ..*known
                };
            }
        }
    }
}

/// Implements `try_match_pkt_pointers`: a comparison with the packet's end shows that some bytes
/// are there.
fn learn_of_packets(this: &mut State, other: &mut State, cond: Cond, dst: u8, src: u8) {
    let (left, right) = (*this.reg(dst), *this.reg(src));
    let comparable = |packet: &Reg, end: &Reg| {
        matches!(
            (packet.kind, end.kind),
            (Type::Packet, Type::PacketEnd) | (Type::PacketMeta, Type::Packet)
        ) && (packet.kind == Type::Packet || is_packet_start(end))
    };
    // On `this`, the condition does not hold.
    if comparable(&left, &right) {
        match cond {
            Cond::Greater => {
                extend(this, &left, false);
                compared(other, dst, true);
            }
            Cond::Less => {
                extend(other, &left, true);
                compared(this, dst, false);
            }
            Cond::GreaterEqual => {
                extend(this, &left, true);
                compared(other, dst, false);
            }
            Cond::LessEqual => {
                extend(other, &left, false);
                compared(this, dst, true);
            }
            _ => {}
        }
    } else if comparable(&right, &left) {
        match cond {
            Cond::Greater => {
                extend(other, &right, true);
                compared(this, src, false);
            }
            Cond::Less => {
                extend(this, &right, false);
                compared(other, src, true);
            }
            Cond::GreaterEqual => {
                extend(other, &right, false);
                compared(this, src, true);
            }
            Cond::LessEqual => {
                extend(this, &right, true);
                compared(other, src, false);
            }
            _ => {}
        }
    }
}

/// Implements `reg_is_init_pkt_pointer`: detects the packet's very beginning, which ends the
/// metadata.
fn is_packet_start(reg: &Reg) -> bool {
    reg.off == 0 && reg.id == 0 && reg.var.constant() == Some(0)
}

/// Records that the bytes up to `at` are there, for every pointer of the same base
/// (`find_good_pkt_pointers`).
fn extend(state: &mut State, at: &Reg, open: bool) {
    let at = *at;
    if at.off < 0 || (at.off == 0 && open) {
        return;
    }
    if at.var.wide.umax > MAX_PACKET_OFF as u64
        || i64::from(at.off) + at.var.wide.umax as i64 > MAX_PACKET_OFF
    {
        return;
    }
    // If it is less than the end, the byte that it points to is there too.
    let range = at.off + i32::from(open);
    state.for_each_reg(|reg| {
        if reg.kind == at.kind && reg.id == at.id {
            reg.range = reg.range.max(range);
        }
    });
}

/// Implements `mark_pkt_end`: the pointer is beyond the end, or beyond or at it.
fn compared(state: &mut State, number: u8, beyond: bool) {
    let reg = state.reg_mut(number);
    if reg.kind == Type::Packet {
        reg.range = if beyond { BEYOND_PKT_END } else { AT_PKT_END };
    }
}
