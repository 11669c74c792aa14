//! Random programs, run with one table and with shards: no difference may show.
//!
//! A small interpreter runs each program several times for two processes. Programs that do what the
//! verifier forbids are left out when it happens.

use std::collections::BTreeMap;

use beeline_isa::{Alu, Atomic, Cond, Imm64, Insn, Op, Operand, opcode::*};
use beeline_uapi::{HelperId, MapType, flags};
use beeline_verifier::program::Map;
use beeline_verifier::sharding::{Sharing, uses};
use proptest::prelude::*;

use crate::assembly::*;
use crate::objects::map;

const STACK: u64 = 1 << 40;
const VALUE: u64 = 1 << 41;
const HANDLE: u64 = 1 << 42;

/// The contents of a map: values of 8 bytes.
type Table = BTreeMap<u64, u64>;

/// The maps as one process sees them; tables by descriptor.
type World = BTreeMap<i32, Table>;

/// Returns whether a value is no pointer. Negative numbers are numbers, too.
fn is_number(value: u64) -> bool {
    !(STACK..=1 << 60).contains(&value)
}

struct Run<'a> {
    insns: &'a [Insn],
    world: &'a mut World,
    regs: [u64; 11],
    stack: [u8; 64],
    /// The element behind each pointer: its number is part of the address.
    elements: Vec<(i32, u64)>,
    id: u64,
    clock: u64,
    seen: Vec<u64>,
}

impl Run<'_> {
    /// Runs the program; returns what it did to the world apart from maps. `None` if it is not one
    /// that the verifier accepts.
    fn go(mut self) -> Option<Vec<u64>> {
        let mut at = 0;
        self.regs[10] = STACK + 64;
        for _ in 0..1000 {
            let op = self.insns.get(at)?.op().ok()?;
            at += 1;
            match op {
                Op::Exit => {
                    self.seen.push(self.number(0)?);
                    return Some(self.seen);
                }
                Op::Jump { off } => at = at.checked_add_signed(off as isize)?,
                Op::Branch {
                    cond,
                    dst,
                    src,
                    off,
                    ..
                } => {
                    let one = self.regs[usize::from(dst)];
                    let two = self.operand(src);
                    if one >= STACK && two != 0 {
                        return None;
                    }
                    let taken = match cond {
                        Cond::Equal => one == two,
                        Cond::NotEqual => one != two,
                        _ => one > two,
                    };
                    if taken {
                        at = at.checked_add_signed(off as isize)?;
                    }
                }
                Op::CallHelper { id } => self.call(id)?,
                Op::Imm64 { kind, dst, low } => {
                    self.regs[usize::from(dst)] = match kind {
                        Imm64::Map => HANDLE + low as u64,
                        _ => self.pointer(low, 0),
                    };
                    at += 1;
                }
                op => self.simple(op)?,
            }
        }
        None
    }

    /// Returns a register's value, if it is no pointer.
    fn number(&self, reg: u8) -> Option<u64> {
        let value = self.regs[usize::from(reg)];
        is_number(value).then_some(value)
    }

    fn operand(&self, operand: Operand) -> u64 {
        match operand {
            Operand::Reg(reg) => self.regs[usize::from(reg)],
            Operand::Imm(imm) => i64::from(imm) as u64,
        }
    }

    fn pointer(&mut self, fd: i32, key: u64) -> u64 {
        self.elements.push((fd, key));
        VALUE + (self.elements.len() as u64 - 1) * 16
    }

    fn load(&self, address: u64) -> Option<u64> {
        if (VALUE..HANDLE).contains(&address) && address.is_multiple_of(16) {
            let (fd, key) = self.elements.get(((address - VALUE) / 16) as usize)?;
            return self.world[fd].get(key).copied();
        }
        let at = address.checked_sub(STACK)? as usize;
        let bytes = self.stack.get(at..at.checked_add(8)?)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    }

    fn store(&mut self, address: u64, value: u64) -> Option<()> {
        if (VALUE..HANDLE).contains(&address) && address.is_multiple_of(16) {
            let (fd, key) = self.elements.get(((address - VALUE) / 16) as usize)?;
            let number = is_number(value);
            *self.world.get_mut(fd)?.get_mut(key)? = number.then_some(value)?;
            return Some(());
        }
        let at = address.checked_sub(STACK)? as usize;
        let bytes = self.stack.get_mut(at..at.checked_add(8)?)?;
        bytes.copy_from_slice(&value.to_le_bytes());
        Some(())
    }

    fn simple(&mut self, op: Op) -> Option<()> {
        match op {
            Op::Move { dst, src, .. } => self.regs[usize::from(dst)] = self.operand(src),
            Op::Alu { op, dst, src, .. } => {
                let (one, two) = (self.regs[usize::from(dst)], self.operand(src));
                let numbers = self.number(dst).is_some() && is_number(two);
                if !numbers && dst != 2 && dst != 3 {
                    return None;
                }
                self.regs[usize::from(dst)] = match op {
                    Alu::Add => one.wrapping_add(two),
                    Alu::Sub => one.wrapping_sub(two),
                    Alu::Rsh => one >> (two & 63),
                    _ => one & two,
                };
            }
            Op::Load { dst, src, off, .. } => {
                let address = self.regs[usize::from(src)].wrapping_add_signed(off.into());
                self.regs[usize::from(dst)] = self.load(address)?;
            }
            Op::Store { dst, src, off, .. } => {
                let address = self.regs[usize::from(dst)].wrapping_add_signed(off.into());
                self.store(address, self.operand(src))?;
            }
            Op::Atomic {
                op: Atomic::Add,
                fetch,
                dst,
                src,
                off,
                ..
            } => {
                let address = self.regs[usize::from(dst)].wrapping_add_signed(off.into());
                let old = self.load(address)?;
                self.store(address, old.wrapping_add(self.number(src)?))?;
                if fetch {
                    self.regs[usize::from(src)] = old;
                }
            }
            _ => return None,
        }
        Some(())
    }

    fn call(&mut self, id: HelperId) -> Option<()> {
        let fd = self.regs[1].wrapping_sub(HANDLE) as i32;
        self.regs[0] = match id {
            HelperId::GET_CURRENT_PID_TGID => self.id,
            HelperId::KTIME_GET_NS => self.clock,
            HelperId::RINGBUF_OUTPUT => {
                let sent = self.load(self.regs[2])?;
                self.seen.push(is_number(sent).then_some(sent)?);
                0
            }
            _ => {
                let key = self.load(self.regs[2])?;
                if !is_number(key) {
                    return None;
                }
                self.map_call(id, fd, key)?
            }
        };
        // Registers that a call destroys must not be read.
        self.regs[1..6].fill(u64::from(u32::MAX));
        Some(())
    }

    fn map_call(&mut self, id: HelperId, fd: i32, key: u64) -> Option<u64> {
        let exists = self.world.get(&fd)?.contains_key(&key);
        match id {
            HelperId::MAP_LOOKUP_ELEM if exists => Some(self.pointer(fd, key)),
            HelperId::MAP_LOOKUP_ELEM => Some(0),
            HelperId::MAP_DELETE_ELEM => match self.world.get_mut(&fd)?.remove(&key) {
                Some(_) => Some(0),
                None => Some(-2i64 as u64),
            },
            _ if exists && self.regs[4] == flags::NOEXIST => Some(-17i64 as u64),
            _ => {
                let value = self.load(self.regs[3])?;
                if !is_number(value) {
                    return None;
                }
                self.world.get_mut(&fd)?.insert(key, value);
                Some(0)
            }
        }
    }
}

/// The parts of random programs; a branch goes over some of the parts that follow.
fn part() -> impl Strategy<Value = (Vec<Insn>, usize)> {
    let slot = prop_oneof![Just(-8i16), Just(-16), Just(-24)];
    let table = prop_oneof![3 => Just(TABLE), 1 => Just(OTHER)];
    let reg = 6u8..9;
    let plain = prop_oneof![
        6 => (table.clone(), slot.clone(), reg.clone()).prop_map(|(fd, key, reg)| {
            [look_up(fd, key.into()), copy(reg, 0)].concat()
        }),
        5 => (table.clone(), slot.clone(), slot.clone(), prop_oneof![2 => Just(0), 1 => Just(1)]).prop_map(
            |(fd, key, value, flags)| update(fd, key.into(), value.into(), flags)
        ),
        1 => (table, slot.clone()).prop_map(|(fd, key)| {
            [map_fd(1, fd), frame(2, key.into()), call(HelperId::MAP_DELETE_ELEM)].concat()
        }),
        2 => slot.clone().prop_map(|from| send(from.into())),
        3 => (slot.clone(), 0..2i32).prop_map(|(to, number)| store_imm(DW, 10, to, number)),
        3 => (slot.clone(), reg.clone()).prop_map(|(to, reg)| store(DW, 10, to, reg)),
        1 => slot.clone().prop_map(|to| store(DW, 10, to, 0)),
        2 => (slot.clone(), reg.clone()).prop_map(|(from, reg)| load(DW, reg, 10, from)),
        5 => (reg.clone(), reg.clone()).prop_map(|(reg, from)| load(DW, reg, from, 0)),
        3 => reg.clone().prop_map(|to| [mov(1, 1), add(DW, to, 0, 1)].concat()),
        1 => (reg.clone(), reg.clone()).prop_map(|(to, from)| add(DW, to, 0, from)),
        2 => (reg.clone(), reg.clone()).prop_map(|(to, from)| store(DW, to, 0, from)),
        3 => (reg.clone(), 0..2i32).prop_map(|(reg, number)| mov(reg, number)),
        3 => reg.clone().prop_map(|reg| alu(ADD, reg, 1)),
        1 => (reg.clone(), reg.clone()).prop_map(|(to, from)| alu_reg(ADD, to, from)),
        1 => (reg.clone(), reg.clone()).prop_map(|(to, from)| copy(to, from)),
        1 => reg.clone().prop_map(|reg| [call(HelperId::KTIME_GET_NS), copy(reg, 0)].concat()),
        2 => (slot, any::<bool>()).prop_map(|(to, high)| {
            let which = if high { alu(RSH, 0, 32) } else { vec![] };
            [call(HelperId::GET_CURRENT_PID_TGID), which, store(DW, 10, to, 0)].concat()
        }),
        1 => Just(map_value(6, ARRAY, 0)),
        1 => Just(end()),
    ];
    let over = prop_oneof![
        4 => (reg.clone(), 1..4usize).prop_map(|(reg, over)| (branch(JEQ, reg, 0, 0), over)),
        4 => (reg, 1..4usize).prop_map(|(reg, over)| (branch(JNE, reg, 0, 0), over)),
        2 => (1..4usize).prop_map(|over| (branch(JNE, 0, 0, 0), over)),
        2 => (1..4usize).prop_map(|over| (jump(0), over)),
    ];
    prop_oneof![4 => plain.prop_map(|insns| (insns, 0)), 1 => over]
}

/// A part that is likely to be right.
fn idiom() -> impl Strategy<Value = Vec<(Vec<Insn>, usize)>> {
    let count = [
        (look_up(TABLE, -8), 0),
        (mov(6, 1), 0),
        (branch(JEQ, 0, 0, 0), 2),
        (load(DW, 6, 0, 0), 0),
        (alu(ADD, 6, 1), 0),
        (store(DW, 10, -16, 6), 0),
        (update(TABLE, -8, -16, 0), 0),
    ];
    let create = [
        (store_imm(DW, 10, -16, 1), 0),
        (look_up(TABLE, -8), 0),
        (branch(JNE, 0, 0, 0), 2),
        (update(TABLE, -8, -16, 0), 0),
        (jump(0), 1),
        ([mov(1, 1), add(DW, 0, 0, 1)].concat(), 0),
    ];
    let zeros = [
        (store_imm(DW, 10, -16, 0), 0),
        (look_up(TABLE, -8), 0),
        (copy(6, 0), 0),
        (branch(JNE, 6, 0, 0), 5),
        (update(TABLE, -8, -16, 1), 0),
        (look_up(TABLE, -8), 0),
        (copy(6, 0), 0),
        (branch(JNE, 6, 0, 0), 1),
        (end(), 0),
        ([mov(1, 1), add(DW, 6, 0, 1)].concat(), 0),
    ];
    prop_oneof![
        Just(count.to_vec()),
        Just(create.to_vec()),
        Just(zeros.to_vec()),
        prop::collection::vec(part(), 1..4),
    ]
}

fn program() -> impl Strategy<Value = Vec<Insn>> {
    let mixed = (
        prop::collection::vec(idiom(), 1..4),
        prop::collection::vec((any::<prop::sample::Index>(), part()), 0..4),
    )
        .prop_map(|(idioms, more)| {
            let mut parts = idioms.concat();
            for (index, part) in more {
                let at = index.index(parts.len() + 1);
                parts.insert(at, part);
            }
            parts
        });
    let random = prop::collection::vec(part(), 4..24);
    prop_oneof![3 => mixed, 1 => random].prop_map(|parts| {
        let mut insns: Vec<Insn> = [
            mov(0, 0),
            mov(6, 0),
            mov(7, 0),
            mov(8, 0),
            store_imm(DW, 10, -8, 0),
            store_imm(DW, 10, -16, 0),
            store_imm(DW, 10, -24, 0),
        ]
        .concat();
        let mut starts = Vec::new();
        let mut length = insns.len();
        for (part, _) in &parts {
            starts.push(length);
            length += part.len();
        }
        starts.push(length);
        for (index, (part, over)) in parts.iter().enumerate() {
            let mut part = part.clone();
            if *over > 0 {
                let target = starts[(index + 1 + over).min(parts.len())];
                part[0].off = (target - starts[index] - 1) as i16;
            }
            insns.extend(part);
        }
        insns.extend(end());
        insns
    })
}

fn maps() -> Vec<(i32, Map)> {
    let table = |fd: i32, map_type, key_size| Map {
        id: fd as u32,
        ..map(map_type, key_size, 8)
    };
    vec![
        (TABLE, table(TABLE, MapType::HASH, 8)),
        (OTHER, table(OTHER, MapType::HASH, 8)),
        (ARRAY, table(ARRAY, MapType::ARRAY, 4)),
        (RING, table(RING, MapType::RINGBUF, 0)),
    ]
}

const TABLES: [i32; 3] = [TABLE, OTHER, ARRAY];

/// Runs the program for two processes in turn. `split` are the maps of which each has a shard.
/// Returns what could be seen of the runs, and the worlds of the two.
fn run(
    insns: &[Insn],
    turns: &[(bool, u64)],
    split: &[i32],
) -> Option<(Vec<Vec<u64>>, [World; 2])> {
    let empty = |fd: i32| {
        (
            fd,
            if fd == ARRAY {
                Table::from([(0, 0)])
            } else {
                Table::new()
            },
        )
    };
    let mut worlds = [
        World::from(TABLES.map(empty)),
        World::from(TABLES.map(empty)),
    ];
    let mut seen = Vec::new();
    for &(second, clock) in turns {
        let own = usize::from(second);
        if second {
            share(&mut worlds, 0, 1, split);
        }
        let id = if second { 9 << 32 | 11 } else { 5 << 32 | 6 };
        let run = Run {
            insns,
            world: &mut worlds[own],
            regs: [0; 11],
            stack: [0; 64],
            elements: Vec::new(),
            id,
            clock,
            seen: Vec::new(),
        };
        seen.push(run.go()?);
        if second {
            share(&mut worlds, 1, 0, split);
        }
    }
    share(&mut worlds, 0, 1, split);
    Some((seen, worlds))
}

/// Copies the tables that are not split.
fn share(worlds: &mut [World; 2], from: usize, to: usize, split: &[i32]) {
    for fd in TABLES.iter().filter(|fd| !split.contains(fd)) {
        let table = worlds[from][fd].clone();
        worlds[to].insert(*fd, table);
    }
}

fn together(shards: [&Table; 2], sharing: &Sharing) -> Table {
    let mut all = shards[0].clone();
    for (key, value) in shards[1] {
        let sum = |old: u64| match sharing {
            Sharing::Summed(words) if !words.is_empty() => old.wrapping_add(*value),
            _ => old,
        };
        all.entry(*key)
            .and_modify(|old| *old = sum(*old))
            .or_insert(*value);
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, max_shrink_iters: 20_000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn splitting_makes_no_difference(
        insns in program(),
        turns in prop::collection::vec((any::<bool>(), 0..2u64), 3..7),
    ) {
        let maps = maps();
        let maps: Vec<(i32, &Map)> = maps.iter().map(|(fd, map)| (*fd, map)).collect();
        let sharing: BTreeMap<i32, Sharing> = uses(&insns, &maps)
            .into_iter()
            .map(|(fd, used)| (fd, used.sharing()))
            .collect();
        let is_split = |fd: &&i32| !matches!(sharing[*fd], Sharing::Whole(_));
        let split: Vec<i32> = TABLES.iter().filter(is_split).copied().collect();
        let (Some((seen, [one, _])), Some((seen2, shards))) =
            (run(&insns, &turns, &[]), run(&insns, &turns, &split))
        else {
            return Ok(());
        };
        let text: String = insns.iter().enumerate().map(|(at, insn)| match insn.op() {
            Ok(op) => format!("{at}: {op:?}\n"),
            Err(_) => String::new(),
        }).collect();
        prop_assert_eq!(seen, seen2, "{}{:?}", text, sharing);
        for fd in TABLES {
            let both = together([&shards[0][&fd], &shards[1][&fd]], &sharing[&fd]);
            if split.contains(&fd) {
                prop_assert_eq!(&one[&fd], &both, "map {} is {}\n{}", fd, &sharing[&fd], text);
            }
        }
    }
}
