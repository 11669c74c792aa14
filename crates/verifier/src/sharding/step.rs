//! The effect of one instruction on the abstract state.

use std::collections::BTreeMap;

use beeline_isa::{Atomic, Imm64, Op, Operand, Size};
use beeline_uapi::MapType;

use super::arithmetic;
use super::record::{self, Records};
use super::regions::Region;
use super::state::{Open, State};
use super::value::*;
use crate::program::Map;

/// One step: the state before the instruction becomes the one after it.
pub(super) struct Step<'a> {
    pub maps: &'a Maps<'a>,
    pub records: &'a mut Records,
    pub regions: &'a BTreeMap<usize, Region>,
    pub at: usize,
    pub state: State,
}

/// The maps of a program, each once.
#[derive(Debug)]
pub(super) struct Maps<'a> {
    pub all: Vec<&'a Map>,
    /// The number of the map behind each descriptor.
    pub numbers: BTreeMap<i32, usize>,
}

/// Returns whether elements of such a map come and go.
pub(super) fn has_keys(map: &Map) -> bool {
    !matches!(map.map_type, MapType::ARRAY | MapType::PERCPU_ARRAY)
}

pub(super) const BRANCHES: &str = "a program branches on its values";
pub(super) const ADDRESSES: &str = "a program computes an address from its values";
pub(super) const STORES: &str = "a program stores its values elsewhere";
pub(super) const PASSES: &str = "a program passes its values to a helper";
pub(super) const POINTERS: &str = "a program passes pointers to its values around";
pub(super) const OVERWRITES: &str = "a program overwrites its values";
pub(super) const MISSING: &str = "a program does something else if an element is missing";
pub(super) const UNKNOWN: &str = "a program uses it in a way that is not understood";

impl Step<'_> {
    /// Carries out an instruction that neither branches nor calls.
    pub fn run(&mut self, op: &Op, high: i32) {
        match *op {
            Op::Load {
                size,
                signed,
                dst,
                src,
                off,
            } => self.load(dst, src, off, size, signed),
            Op::LoadAcquire {
                size,
                dst,
                src,
                off,
            } => self.load(dst, src, off, size, false),
            Op::Store {
                size,
                dst,
                src,
                off,
            } => self.store(dst, &self.operand(src), off, size),
            Op::StoreRelease {
                size,
                dst,
                src,
                off,
            } => {
                let value = self.state.reg(src).blurred(Def::Stale);
                self.store(dst, &value, off, size);
            }
            Op::Atomic {
                op,
                fetch,
                wide,
                dst,
                src,
                off,
            } => {
                self.atomic(op, fetch, wide, dst, src, off);
            }
            Op::Imm64 { kind, dst, low } => {
                let value = self.imm64(kind, low, high);
                self.state.set(dst, value);
            }
            Op::Alu { op, wide, dst, src } => {
                let (one, two) = (self.state.reg(dst), self.operand(src));
                let value = arithmetic::alu(op, wide, one, &two, Def::Insn(self.at));
                self.state.set(dst, value);
            }
            Op::Move { wide, dst, src } => {
                let value = arithmetic::moved(wide, &self.operand(src), Def::Insn(self.at));
                self.state.set(dst, value);
            }
            Op::MoveSigned {
                dst,
                src,
                from,
                wide,
            } => {
                let def = Def::Insn(self.at);
                let value = arithmetic::sign_extended(wide, from, self.state.reg(src), def);
                self.state.set(dst, value);
            }
            Op::Neg { dst, .. } | Op::Swap { dst, .. } => {
                let value = self.state.reg(dst).blurred(Def::Insn(self.at));
                self.state.set(dst, value);
            }
            _ => {}
        }
    }

    pub fn operand(&self, operand: Operand) -> Value {
        match operand {
            Operand::Reg(reg) => self.state.reg(reg).clone(),
            Operand::Imm(imm) => Value::constant(i64::from(imm) as u64),
        }
    }

    fn imm64(&mut self, kind: Imm64, low: i32, high: i32) -> Value {
        let map = match kind {
            Imm64::Number => {
                let number = u64::from(high.cast_unsigned()) << 32 | u64::from(low.cast_unsigned());
                return Value::constant(number);
            }
            Imm64::Map | Imm64::MapValue => self.maps.numbers.get(&low).copied(),
            _ => None,
        };
        match (kind, map) {
            (Imm64::Map, Some(map)) => Value::new(Kind::Map(map)),
            (Imm64::MapValue, Some(map)) => {
                self.records.key(map, Vec::new());
                Value::new(Kind::Element {
                    place: record::direct(map),
                    offset: Offset::At(high.cast_unsigned().into()),
                    null: Null::Never,
                })
            }
            _ => Value::unknown(Def::Insn(self.at)),
        }
    }

    fn load(&mut self, dst: u8, base: u8, off: i16, size: Size, signed: bool) {
        let base = self.state.reg(base).clone();
        let (def, bytes) = (Def::Insn(self.at), size.bytes());
        let loaded = match &base.kind {
            Kind::Frame(Some(at)) => {
                let read = self.state.read(at + i32::from(off), bytes.into(), def);
                let keeps = !signed || matches!(read.kind, Kind::Id(Id::One(_)) | Kind::Sum(_));
                if keeps { read } else { read.blurred(def) }
            }
            Kind::Frame(None) => self.state.stack().mix(&base, def),
            Kind::Element { place, offset, .. } => {
                self.records.leak(base.taint, ADDRESSES);
                let offset = arithmetic::moved_by(*offset, off.into());
                let sum = Sum {
                    place: place.clone(),
                    offset,
                    size: bytes,
                    plus: Addend::Const(0),
                    def,
                };
                match bytes {
                    4 | 8 => Value::new(Kind::Sum(sum)),
                    _ => Value {
                        taint: MapSet::one(place.map),
                        ..Value::unknown(def)
                    },
                }
            }
            _ => {
                self.give_up(&base, ADDRESSES);
                Value::unknown(def)
            }
        };
        self.state.set(dst, loaded);
    }

    fn store(&mut self, base: u8, value: &Value, off: i16, size: Size) {
        let base = self.state.reg(base).clone();
        let bytes = size.bytes();
        match &base.kind {
            Kind::Frame(Some(at)) => {
                let kept = if bytes == 8 {
                    value.clone()
                } else {
                    truncated(value, bytes)
                };
                self.state
                    .write(at + i32::from(off), bytes.into(), kept, self.at);
            }
            Kind::Frame(None) => {
                let smeared = value.mix(&base, Def::Stale);
                self.state.smear(&smeared, self.at);
            }
            Kind::Element { place, offset, .. } => {
                self.records.leak(base.taint, ADDRESSES);
                self.records.in_place(place.map);
                let offset = arithmetic::moved_by(*offset, off.into());
                match &value.kind {
                    Kind::Sum(sum)
                        if sum.place.is(place) && sum.offset.is(offset) && sum.size == bytes =>
                    {
                        self.records.leak(value.taint, STORES);
                        self.add(place, offset, bytes, sum.plus);
                    }
                    _ => {
                        self.give_up(value, STORES);
                        self.records.write(place.map, OVERWRITES);
                        self.effect();
                    }
                }
            }
            _ => {
                self.give_up(&base, ADDRESSES);
                self.give_up(value, STORES);
                self.effect();
            }
        }
    }

    fn atomic(&mut self, op: Atomic, fetch: bool, wide: bool, base: u8, src: u8, off: i16) {
        let bytes = if wide { 8 } else { 4 };
        let (base, value) = (self.state.reg(base).clone(), self.state.reg(src).clone());
        let mut old = Value::unknown(Def::Insn(self.at));
        match &base.kind {
            Kind::Frame(Some(at)) => {
                let at = at + i32::from(off);
                old = self
                    .state
                    .within(at..at + bytes)
                    .blurred(Def::Insn(self.at));
                let new = old
                    .mix(&value, Def::Stale)
                    .mix(self.state.reg(0), Def::Stale);
                self.state.write(at, bytes as u32, new, self.at);
            }
            Kind::Frame(None) => {
                let new = base
                    .mix(&value, Def::Stale)
                    .mix(self.state.reg(0), Def::Stale);
                self.state.smear(&new, self.at);
                old = self.state.stack().blurred(Def::Insn(self.at));
            }
            Kind::Element { place, offset, .. } => {
                self.records.leak(base.taint, ADDRESSES);
                self.records.in_place(place.map);
                self.give_up(&value, STORES);
                old.taint = MapSet::one(place.map);
                if op == Atomic::Add {
                    let offset = arithmetic::moved_by(*offset, off.into());
                    let plus = arithmetic::addend(&value, Def::Insn(self.at));
                    self.add(place, offset, bytes as u8, plus);
                } else {
                    let expected = self.state.reg(0).clone();
                    self.give_up(&expected, STORES);
                    self.records.write(place.map, OVERWRITES);
                    self.effect();
                }
            }
            _ => {
                let expected = self.state.reg(0).clone();
                for value in [&base, &value, &expected] {
                    self.give_up(value, STORES);
                }
                self.effect();
            }
        }
        match op {
            Atomic::CompareExchange => self.state.set(0, old),
            _ if fetch => self.state.set(src, old),
            _ => {}
        }
    }

    /// Takes note of an addition to a word of an element.
    pub fn add(&mut self, place: &Place, offset: Offset, size: u8, plus: Addend) {
        let map = self.maps.all[place.map];
        self.records.add(place.map, map.value_size, offset, size);
        let mut conditional = Vec::new();
        for open in &mut self.state.open {
            let region = self.regions.get(&open.branch);
            let is_outer = match plus {
                Addend::Const(_) => true,
                Addend::Def(def) => match (def.site(), region) {
                    (Some(Site::Entry), _) => true,
                    (Some(Site::At(at)), Some(region)) => !region.has(at),
                    _ => false,
                },
            };
            match (offset, open.effect.as_mut()) {
                (Offset::At(at), Some(effect)) if is_outer && open.place.is(place) => {
                    note(effect, at as u32, size, plus);
                }
                _ => conditional.push(open.place.map),
            }
        }
        for map in conditional {
            self.records.leak(MapSet::one(map), MISSING);
        }
    }

    /// Takes note of something that must not depend on whether an element exists.
    pub fn effect(&mut self) {
        for Open { place, .. } in &self.state.open {
            self.records.leak(MapSet::one(place.map), MISSING);
        }
    }

    /// Takes note that a value goes where it is not followed.
    pub fn give_up(&mut self, value: &Value, why: &'static str) {
        self.records.leak(value.all_taint(), why);
        self.records.escape(value.all_elements(), POINTERS);
        self.records.ruin(value.all_handles(), UNKNOWN);
        if matches!(value.kind, Kind::Frame(_)) {
            self.records.leak(self.state.stack().taint, why);
        }
    }
}

/// Returns the low bytes of a value as the stack holds them.
fn truncated(value: &Value, bytes: u8) -> Value {
    match &value.kind {
        // The origin of a key's piece counts with its length.
        Kind::Unknown(_) | Kind::Const(_) | Kind::Id(_) => value.clone(),
        Kind::Sum(sum) if sum.size == bytes => value.clone(),
        _ => value.blurred(Def::Stale),
    }
}

/// Adds to what a way has added to an element. Constants are noted in words of 4 bytes: a way that
/// creates the element may store them in other sizes than those that are added.
pub(super) fn note(effect: &mut Vec<(u32, u8, Addend)>, at: u32, size: u8, plus: Addend) {
    match plus {
        Addend::Const(number) => {
            for word in 0..u32::from(size / 4) {
                let half = number >> (32 * word) & u64::from(u32::MAX);
                if half != 0 {
                    effect.push((at + 4 * word, 4, Addend::Const(half)));
                }
            }
        }
        Addend::Def(_) => effect.push((at, size, plus)),
    }
    effect.sort_by_key(|(at, size, _)| (*at, *size));
}
