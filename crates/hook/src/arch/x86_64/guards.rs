//! The ways to guard a jump.

use iced_x86::{Code, OpKind};

use super::effects::effects;
use super::instruction::Instruction;
use super::jump::{DISPLACEMENT_LEN, INT3, JUMP_LEN};
use super::registers::Registers;
use super::relocate::Displaced;
use crate::guard::{Guard, Live, Trap};

/// The length of a first instruction behind which there is one byte of the jump.
const JUMP_PREFIXED: usize = JUMP_LEN - 1;

/// Returns the number of bytes that instructions should fill, from `first` on, so that the best
/// guards are possible: an `int3` follows the first one, behind a prefix if need be.
pub(crate) fn guarded_len(first: &Displaced) -> usize {
    match first.bytes.len() {
        JUMP_PREFIXED => JUMP_LEN + 1,
        len => JUMP_LEN.max(len + 1),
    }
}

/// Returns all ways to guard a jump over these instructions, the best first. There is none if a
/// thread would run bytes beside a kernel uprobe that are no instruction of the file's or of
/// Beeline's.
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
    let mut fixed = [None; DISPLACEMENT_LEN];
    for (place, byte) in fixed.iter_mut().zip(&first.bytes[1..]) {
        *place = Some(*byte);
    }
    let tail = tail(code);
    let goes_on = first.instruction.goes_on();
    if !goes_on {
        // It leads elsewhere, in the kernel's hands as in the processor's.
        let plain = Guard {
            fixed,
            tail,
            traps: Vec::new(),
            inner: inner(code),
            stands_two: true,
        };
        return if first.instruction.is_call() {
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
    let goes_on = first.instruction.goes_on();
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
        _ if first.instruction.decoded().code() == Code::Jmp_rel32_64 => [None; DISPLACEMENT_LEN],
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
            let register = first.instruction.decoded().op0_register();
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
            [None; DISPLACEMENT_LEN]
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
    let instruction = instruction.decoded();
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
