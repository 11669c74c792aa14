//! Guards: jumps that live beside kernel uprobes, which come and go at the same instructions.
//!
//! The kernel attaches a uprobe by storing `int3` over an instruction's first byte, whatever stands
//! there. When that is hit it runs the *file's* instruction out of line and goes on behind it,
//! which is inside Beeline's jump. When the probe is removed the file's first byte comes back, and
//! the rest of the jump stays (`kernel/events/uprobes.c`: `set_swbp`, `set_orig_insn`). A `nop` of
//! five bytes may become a call and come back whole (`arch_uprobe_optimize`).
//!
//! So the bytes behind the first one are chosen such that the processor, wherever it arrives in
//! these states, meets an `int3` before it meets any byte of the jump that means something else.
//! The first four are the jump's displacement. They decide where the jump leads, and so where there
//! must be memory (instruction punning, as in Chamith et al., PLDI 2017). A kernel uprobe further
//! inside the jump changes one byte of the displacement, so there must also be memory where the
//! jump leads then.

use iced_x86::{Code, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register};

use crate::patch::{INT3, JUMP_LEN};
use crate::relocate::{self, Displaced};
use crate::trampoline::Registers;

/// One way to lay a jump over a site so that kernel uprobes there do no harm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guard {
    /// Bytes 1 to 4 of the patch, the jump's displacement. `None` where any byte will do.
    pub fixed: [Option<u8>; 4],
    /// The bytes behind the jump, up to the end of the window.
    pub tail: Vec<u8>,
    /// The places where a thread traps, and what it has done by then: see [`Trap`].
    pub traps: Vec<Trap>,
    /// Offsets of further instructions with first bytes that are part of the displacement, with the
    /// file's byte there: a kernel uprobe puts `int3` there, and later puts the file's byte back.
    pub inner: Vec<(usize, u8)>,
    /// Two kernel uprobes, one at the site and one further inside, do no harm either when the latter has gone: what it has put back is
    /// a whole instruction of the file's, or leads to an `int3`.
    pub stands_two: bool,
}

/// An `int3` that is reached by a thread that went through a site beside a kernel uprobe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trap {
    /// The instruction pointer behind the `int3`, less the site's address.
    pub behind: usize,
    /// Offset of the displaced instruction to run next: 0 or that of the second.
    pub resume: usize,
    /// The amount to add to the stack pointer to get its value at the site.
    pub stack: i32,
    /// Registers that differ from what they were at the site.
    pub lost: Registers,
}

/// The most values of one displacement that are tried for one guard.
const MANY: usize = 1 << 12;

impl Guard {
    /// Returns where the jump may lead so that its displacement has the fixed bytes: addresses from
    /// `low` to `high`, ascending, at most some thousands of them.
    pub fn targets(&self, site: u64, low: u64, high: u64) -> impl Iterator<Item = u64> {
        let end = site.wrapping_add(JUMP_LEN as u64);
        let (value, mask) = self.pattern();
        // The fixed bytes come before the free ones, except for the last: a sum on the free bits
        // alone, with carries over the fixed ones.
        let wanted = move |displacement: u32| displacement & mask == value;
        let first = clamp(low.wrapping_sub(end));
        let last = clamp(high.wrapping_sub(end));
        let mut next = raise(first, value, mask);
        std::iter::from_fn(move || {
            let this = next?;
            if this > last || !wanted(this.cast_unsigned()) {
                return None;
            }
            next = this
                .checked_add(1)
                .and_then(|from| raise(from, value, mask));
            Some(end.wrapping_add_signed(this.into()))
        })
        .take(MANY)
    }

    /// Returns where else the jump to `target` may lead while there are kernel uprobes inside it,
    /// or have been.
    pub fn variants(&self, site: u64, target: u64) -> Vec<u64> {
        let end = site.wrapping_add(JUMP_LEN as u64);
        let displacement = target.wrapping_sub(end) as u32;
        let mut all = vec![displacement];
        for (offset, original) in &self.inner {
            let shift = (offset - 1) * 8;
            let with =
                |byte: u8| move |one: &u32| one & !(0xff << shift) | u32::from(byte) << shift;
            let more: Vec<u32> = all
                .iter()
                .map(with(INT3))
                .chain(all.iter().map(with(*original)))
                .collect();
            all.extend(more);
            all.sort_unstable();
            all.dedup();
        }
        all.retain(|one| *one != displacement);
        let address = |one: u32| end.wrapping_add_signed(i64::from(one.cast_signed()));
        all.into_iter().map(address).collect()
    }

    /// Returns the bytes to store for a jump to `target`, which is one of [`Self::targets`].
    pub fn patch(&self, site: u64, target: u64) -> Vec<u8> {
        const JMP_REL32: u8 = 0xe9;
        let displacement = target.wrapping_sub(site.wrapping_add(JUMP_LEN as u64)) as u32;
        let mut bytes = vec![JMP_REL32];
        bytes.extend(displacement.to_le_bytes());
        bytes.extend(&self.tail);
        bytes
    }

    /// The same for a jump that lies over another one, `patch`, which is laid in this way: only the
    /// jump's own bytes change. Returns `None` if `patch` is not laid so.
    pub fn over(mut self, patch: &[u8]) -> Option<Self> {
        let (jump, tail) = patch.split_at_checked(JUMP_LEN)?;
        let mut fixed = self.fixed.iter().zip(&jump[1..]);
        let is_laid_so = fixed.all(|(fixed, byte)| fixed.is_none_or(|fixed| fixed == *byte));
        let is_whole = tail == self.tail;
        self.tail.clear();
        (is_laid_so && is_whole).then_some(self)
    }

    fn pattern(&self) -> (u32, u32) {
        let byte = |fixed: &Option<u8>| fixed.map_or((0, 0), |byte| (byte, 0xff));
        let pairs = self.fixed.each_ref().map(byte);
        let value = u32::from_le_bytes(pairs.map(|(value, _)| value));
        let mask = u32::from_le_bytes(pairs.map(|(_, mask)| mask));
        (value, mask)
    }
}

/// Returns the lowest number from `from` on with the bits `value` under `mask`.
fn raise(from: i32, value: u32, mask: u32) -> Option<i32> {
    // The order is that of unsigned numbers, which is that of signed ones with the sign bit
    // flipped.
    const SIGN: u32 = 1 << 31;
    let flip = |number: u32| number ^ SIGN;
    let from = flip(from.cast_unsigned());
    let (value, mask) = (if mask & SIGN != 0 { flip(value) } else { value }, mask);
    let mut best: Option<u32> = None;
    let mut consider = |candidate: u32| {
        if candidate >= from && best.is_none_or(|best| candidate < best) {
            best = Some(candidate);
        }
    };
    consider(from & !mask | value);
    // Otherwise some free bit above the place of the difference has to be raised, and all free ones
    // below it can be zero.
    for bit in (0..32).filter(|bit| mask >> bit & 1 == 0 && from >> bit & 1 == 0) {
        let above = from & !mask & !((2u64.pow(bit + 1) - 1) as u32);
        consider(above | value | 1 << bit);
    }
    best.map(|best| flip(best).cast_signed())
}

fn clamp(distance: u64) -> i32 {
    let distance = distance.cast_signed();
    i32::try_from(distance).unwrap_or(if distance < 0 { i32::MIN } else { i32::MAX })
}

/// State that must not be changed at a site.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Live {
    /// The flags.
    pub flags: bool,
    /// The bytes below the stack pointer.
    pub red_zone: bool,
}

/// Returns all ways to guard a jump over these instructions, the best first. There is none if a
/// thread would run bytes beside a kernel uprobe that nobody wrote.
///
/// `padding` stands in the window behind the instructions. A kernel uprobe may be there as well,
/// and one that the kernel refuses leaves the file's byte.
pub(crate) fn guards(window: &[Displaced], padding: &[Displaced], live: Live) -> Vec<Guard> {
    let Some(first) = window.first() else {
        return Vec::new();
    };
    let code = [window, padding].concat();
    let mut ways = match first.bytes.len() {
        0..JUMP_LEN => short(first, &code),
        _ => long(first, &code, live).into_iter().collect(),
    };
    let whole = ways
        .first()
        .map(|way| whole(way, &code))
        .unwrap_or_default();
    if let Some(way) = ways.first_mut() {
        way.stands_two |= whole.is_empty();
    }
    ways.splice(0..0, whole);
    ways.iter_mut().for_each(|way| trap_further(way, window));
    ways.dedup_by(|next, way| {
        let as_other = Guard {
            stands_two: way.stands_two,
            ..next.clone()
        };
        as_other == *way
    });
    ways
}

/// Returns the second trap of a breakpoint, if its instruction has another one behind it in the
/// window: that one's first byte is a breakpoint as well.
pub(crate) fn second_trap(first: &Displaced) -> Option<Trap> {
    let len = first.bytes.len();
    let (stack, lost) = effects(&first.instruction)?;
    Some(Trap {
        behind: len + 1,
        resume: len,
        stack,
        lost,
    })
}

/// Guards for a first instruction that is shorter than the jump. An `int3` stands behind it, inside
/// the displacement. All of its own bytes except the first stay as they are, so that it is whole
/// when the first comes back.
fn short(first: &Displaced, code: &[Displaced]) -> Vec<Guard> {
    let len = first.bytes.len();
    let mut fixed = [None; 4];
    for (place, byte) in fixed.iter_mut().zip(&first.bytes[1..]) {
        *place = Some(*byte);
    }
    let tail = tail(code);
    let goes_on = relocate::goes_on(&first.instruction);
    if !goes_on {
        // It leads elsewhere, in the kernel's hands as in the processor's.
        let plain = Guard {
            fixed,
            tail,
            traps: Vec::new(),
            inner: inner(code),
            stands_two: true,
        };
        return if relocate::is_call(&first.instruction) {
            Vec::new()
        } else {
            vec![deepened(&plain), plain]
        };
    }
    let Some((stack, lost)) = effects(&first.instruction) else {
        return Vec::new();
    };
    let trap = |behind: usize| Trap {
        behind,
        resume: len,
        stack,
        lost,
    };
    fixed[len - 1] = Some(INT3);
    let plain = Guard {
        fixed,
        tail: tail.clone(),
        traps: vec![trap(len + 1)],
        inner: inner(code),
        stands_two: false,
    };
    let mut ways = vec![deepened(&plain), plain];
    // The last byte says how far away the jump leads, and there may be no room where an int3 leads.
    // A prefix before an int3 will do.
    if len == JUMP_LEN - 1 && !tail.is_empty() {
        let mut tail = tail;
        tail[0] = INT3;
        ways.extend(PREFIXES.iter().map(|prefix| {
            fixed[len - 1] = Some(*prefix);
            Guard {
                fixed,
                tail: tail.clone(),
                traps: vec![trap(len + 2)],
                inner: inner(code),
                stands_two: false,
            }
        }));
    }
    ways
}

/// The guard for a first instruction that is at least as long as the jump. When its first byte
/// comes back, that byte begins another instruction, which the displacement completes. This
/// instruction must do no harm, and have an `int3` behind it.
fn long(first: &Displaced, code: &[Displaced], live: Live) -> Option<Guard> {
    let len = first.bytes.len();
    let opcode = *first.bytes.first()?;
    let goes_on = relocate::goes_on(&first.instruction);
    let mut tail = tail(code);
    let mut traps = Vec::new();
    let second = tail.get_mut(len - JUMP_LEN).filter(|_| goes_on);
    let has_second = second.is_some();
    if let Some(byte) = second {
        *byte = INT3;
        let (stack, lost) = effects(&first.instruction)?;
        traps.push(Trap {
            behind: len + 1,
            resume: len,
            stack,
            lost,
        });
    }
    let early = |behind: usize, stack: i32| Trap {
        behind,
        resume: 0,
        stack,
        lost: Registers::NONE,
    };
    let int3 = Some(INT3);
    let fixed = match opcode {
        // The jump itself is what is restored.
        _ if first.instruction.code() == Code::Jmp_rel32_64 => [None; 4],
        // A prefix, followed by the int3.
        opcode if PREFIXES.contains(&opcode) || REPEATS.contains(&opcode) => {
            traps.push(early(2, 0));
            [int3, None, None, None]
        }
        // nop eax
        0x0f => {
            traps.push(early(4, 0));
            [Some(0x1f), Some(0xc0), int3, None]
        }
        // cmp al, imm8; cmp eax, imm8
        0x80 | 0x83 if !live.flags => {
            traps.push(early(4, 0));
            [Some(0xf8), None, int3, None]
        }
        // test al, imm8
        0xf6 if !live.flags => {
            traps.push(early(4, 0));
            [Some(0xc0), None, int3, None]
        }
        // test and cmp of a register with itself
        0x84 | 0x85 | 0x38..=0x3b if !live.flags => {
            traps.push(early(3, 0));
            [Some(0xc0), int3, None, None]
        }
        // mov al, al
        0x88 | 0x8a => {
            traps.push(early(3, 0));
            [Some(0xc0), int3, None, None]
        }
        // mov r32, r32, of the register that the instruction is about to write
        0x8b => {
            let register = first.instruction.op0_register();
            let number = (register.number() & 7) as u8;
            traps.push(Trap {
                lost: Registers::of(register),
                ..early(3, 0)
            });
            [Some(0xc0 | number << 3 | number), int3, None, None]
        }
        // push rax
        0xff if !live.red_zone => {
            traps.push(early(3, 8));
            [Some(0xf0), int3, None, None]
        }
        // mov r32, imm32; push imm32; cmp and test of eax with imm32: all do their work again, with
        // the right number
        0xb8..=0xbf | 0x68 | 0x3d | 0xa9 if has_second => {
            traps.iter_mut().for_each(|trap| trap.resume = 0);
            [None; 4]
        }
        // The same with a register of their choice, and instructions that can be done twice
        0xf7 | 0x81 | 0xc7
            if len == JUMP_LEN + 1 && has_second && is_repeatable(&first.instruction) =>
        {
            traps.iter_mut().for_each(|trap| trap.resume = 0);
            [first.bytes.get(1).copied(), None, None, None]
        }
        _ => return None,
    };
    Some(Guard {
        fixed,
        tail,
        traps,
        inner: Vec::new(),
        stands_two: false,
    })
}

/// Adds an int3 at the start of each further instruction: two kernel uprobes, one at the site and
/// one behind it, bring a thread to the third.
fn deepened(guard: &Guard) -> Guard {
    let mut deeper = guard.clone();
    for (offset, _) in &guard.inner {
        deeper.fixed[offset - 1] = Some(INT3);
    }
    deeper
}

/// Returns guards under which further instructions do no harm when the kernel has restored only
/// their first bytes: an int3 behind a prefix follows, or the rest of the instruction. Returns none
/// if that is so anyway.
fn whole(guard: &Guard, code: &[Displaced]) -> Vec<Guard> {
    const LAST: usize = JUMP_LEN - 2;
    let mut whole = guard.clone();
    let (mut at, mut ends_behind_prefix) = (0, false);
    for one in code {
        let (start, rest) = (at, &one.bytes[1..]);
        at += one.bytes.len();
        if start == 0 || rest.is_empty() || start > LAST {
            continue;
        }
        if PREFIXES.contains(&one.bytes[0]) {
            whole.fixed[start] = Some(INT3);
            ends_behind_prefix = start == LAST;
            continue;
        }
        let places = whole.fixed.iter_mut().skip(start);
        places
            .zip(rest)
            .for_each(|(place, byte)| *place = Some(*byte));
    }
    if whole == *guard {
        return Vec::new();
    }
    whole.stands_two = true;
    let mut ways = vec![whole.clone()];
    // As where the int3 behind the first instruction is the last byte: there may be no room, and a
    // second prefix will do.
    if ends_behind_prefix && !whole.tail.is_empty() {
        whole.tail[0] = INT3;
        ways.extend(PREFIXES.iter().map(|prefix| {
            whole.fixed[LAST] = Some(*prefix);
            whole.clone()
        }));
    }
    ways
}

/// Adds the traps behind the second instruction and those after it, where there is an int3.
fn trap_further(guard: &mut Guard, window: &[Displaced]) {
    let (mut at, mut stack, mut lost) = (0, 0, Registers::NONE);
    for (index, one) in window.iter().enumerate() {
        let byte_at = |at: usize| match at {
            0 => None,
            1..JUMP_LEN => guard.fixed[at - 1],
            _ => guard.tail.get(at - JUMP_LEN).copied(),
        };
        let is_prefix = |byte: Option<u8>| byte.is_some_and(|byte| PREFIXES.contains(&byte));
        let is_put_back = index > 0 && at < JUMP_LEN && is_prefix(one.bytes.first().copied());
        let is_long = |len: usize| is_put_back && one.bytes.len() > len;
        let here = [
            (at, index > 1),
            (at + 1, is_long(1)),
            (at + 2, is_long(2) && is_prefix(byte_at(at + 1))),
        ];
        let trapping = here.map(|(at, wanted)| (at, wanted && byte_at(at) == Some(INT3)));
        for (int3, _) in trapping.into_iter().filter(|(_, traps)| *traps) {
            guard.traps.push(Trap {
                behind: int3 + 1,
                resume: at,
                stack,
                lost,
            });
        }
        let Some(effects) = effects(&one.instruction) else {
            return;
        };
        stack += effects.0;
        lost = lost | effects.1;
        at += one.bytes.len();
    }
}

/// True if running it with any number in it, and then once more with the right one, has the effect
/// of running it once: only flags and a register that it writes anyway are changed.
fn is_repeatable(instruction: &Instruction) -> bool {
    matches!(
        instruction.code(),
        Code::Test_rm32_imm32 | Code::Cmp_rm32_imm32 | Code::Mov_rm32_imm32
    ) && instruction.op0_kind() == OpKind::Register
}

/// Prefixes that mean nothing to an `int3`: segments, operand and address size, REX.
const PREFIXES: [u8; 24] = [
    0x2e, 0x26, 0x36, 0x3e, 0x40, 0x41, 0x42, 0x43, 0x44, 0x45, 0x46, 0x47, 0x48, 0x49, 0x4a, 0x4b,
    0x4c, 0x4d, 0x4e, 0x4f, 0x64, 0x65, 0x66, 0x67,
];
/// Likewise.
const REPEATS: [u8; 2] = [0xf2, 0xf3];

/// Returns the bytes behind the jump: the file's, with each instruction begun by an int3.
fn tail(code: &[Displaced]) -> Vec<u8> {
    let with_breakpoint = |one: &Displaced| {
        let mut bytes = one.bytes.to_vec();
        bytes[0] = INT3;
        bytes
    };
    let mut bytes: Vec<u8> = code.iter().flat_map(with_breakpoint).collect();
    bytes.split_off(JUMP_LEN)
}

/// Returns where instructions begin inside the displacement.
fn inner(code: &[Displaced]) -> Vec<(usize, u8)> {
    let mut at = 0;
    let mut found = Vec::new();
    for one in code {
        if (1..JUMP_LEN).contains(&at) {
            found.extend(one.bytes.first().map(|byte| (at, *byte)));
        }
        at += one.bytes.len();
    }
    found
}

/// Returns the number that undoes what the instruction does to the stack pointer, and the registers
/// that it changes. `None` if the stack pointer is unknown.
fn effects(instruction: &Instruction) -> Option<(i32, Registers)> {
    let mut factory = InstructionInfoFactory::new();
    let mut lost = Registers::NONE;
    let mut moves_stack = false;
    for used in factory.info(instruction).used_registers() {
        let writes = !matches!(
            used.access(),
            OpAccess::None | OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess
        );
        let register = used.register();
        if !writes || !register.is_gpr() {
            continue;
        }
        match register.full_register() {
            Register::RSP => moves_stack = true,
            _ => lost = lost | Registers::of(register),
        }
    }
    let stack = match moves_stack {
        false => 0,
        true => -stack_change(instruction)?,
    };
    Some((stack, lost))
}

fn stack_change(instruction: &Instruction) -> Option<i32> {
    let is_rsp = |operand: u32| {
        instruction.op_kind(operand) == OpKind::Register
            && instruction.op_register(operand) == Register::RSP
    };
    match instruction.mnemonic() {
        Mnemonic::Push | Mnemonic::Pop | Mnemonic::Pushfq | Mnemonic::Popfq
            if !is_rsp(0) || instruction.mnemonic() == Mnemonic::Push =>
        {
            Some(instruction.stack_pointer_increment())
        }
        Mnemonic::Sub | Mnemonic::Add
            if is_rsp(0)
                && instruction.op_kind(1) != OpKind::Register
                && instruction.op_kind(1) != OpKind::Memory =>
        {
            let amount = i32::try_from(instruction.immediate(1).cast_signed()).ok()?;
            if instruction.mnemonic() == Mnemonic::Add {
                Some(amount)
            } else {
                amount.checked_neg()
            }
        }
        Mnemonic::Lea
            if is_rsp(0)
                && instruction.memory_base() == Register::RSP
                && instruction.memory_index() == Register::None =>
        {
            i32::try_from(instruction.memory_displacement64().cast_signed()).ok()
        }
        _ => None,
    }
}
