//! Calls of helpers and of the program's own functions.

use beeline_uapi::helper::{self, Arg};
use beeline_uapi::{HelperId, MapType, flags};

use super::record;
use super::step::*;
use super::value::*;

/// Helpers that do nothing to the world: they may be called whether or not an element exists.
const PURE: &[HelperId] = &[
    HelperId::MAP_LOOKUP_ELEM,
    HelperId::MAP_UPDATE_ELEM,
    HelperId::KTIME_GET_NS,
    HelperId::KTIME_GET_BOOT_NS,
    HelperId::KTIME_GET_COARSE_NS,
    HelperId::KTIME_GET_TAI_NS,
    HelperId::JIFFIES64,
    HelperId::GET_PRANDOM_U32,
    HelperId::GET_SMP_PROCESSOR_ID,
    HelperId::GET_NUMA_NODE_ID,
    HelperId::GET_CURRENT_PID_TGID,
    HelperId::GET_CURRENT_UID_GID,
    HelperId::GET_CURRENT_COMM,
    HelperId::GET_CURRENT_TASK,
    HelperId::GET_CURRENT_TASK_BTF,
    HelperId::GET_CURRENT_CGROUP_ID,
    HelperId::CURRENT_TASK_UNDER_CGROUP,
    HelperId::GET_FUNC_IP,
    HelperId::GET_ATTACH_COOKIE,
    HelperId::PROBE_READ,
    HelperId::PROBE_READ_STR,
    HelperId::PROBE_READ_USER,
    HelperId::PROBE_READ_USER_STR,
    HelperId::PROBE_READ_KERNEL,
    HelperId::PROBE_READ_KERNEL_STR,
];

/// Helpers that read memory at an address that is not one of their typed arguments.
const READS: &[HelperId] = &[
    HelperId::PROBE_READ,
    HelperId::PROBE_READ_STR,
    HelperId::PROBE_READ_USER,
    HelperId::PROBE_READ_USER_STR,
    HelperId::PROBE_READ_KERNEL,
    HelperId::PROBE_READ_KERNEL_STR,
];

impl Step<'_> {
    pub fn call_helper(&mut self, id: HelperId) {
        if !PURE.contains(&id) {
            self.effect();
        }
        let result = match (id, &self.state.reg(1).kind) {
            (HelperId::MAP_LOOKUP_ELEM, &Kind::Map(map)) => self.look_up(map),
            (HelperId::MAP_UPDATE_ELEM, &Kind::Map(map)) => self.update(map),
            (HelperId::MAP_DELETE_ELEM, &Kind::Map(map)) => self.delete(map),
            _ => {
                self.arguments(id);
                match id {
                    HelperId::GET_CURRENT_PID_TGID => Value::new(Kind::Id(Id::Both)),
                    _ => Value::unknown(Def::Insn(self.at)),
                }
            }
        };
        self.end_call(result);
    }

    fn end_call(&mut self, result: Value) {
        self.state.set(0, result);
        for reg in 1..=5 {
            self.state.set(reg, Value::unknown(Def::Stale));
        }
    }

    /// Calls a function of the program: it may do anything with what it gets.
    pub fn call_local(&mut self) {
        self.effect();
        let arguments: Vec<Value> = (1..=5).map(|reg| self.state.reg(reg).clone()).collect();
        for value in &arguments {
            self.give_up(value, "a program passes its values to a function");
            if matches!(value.kind, Kind::Frame(_)) {
                self.share_stack();
            }
        }
        self.end_call(Value::unknown(Def::Insn(self.at)));
    }

    /// Calls a function of the kernel, of which nothing is known.
    pub fn call_kernel(&mut self) {
        for map in 0..self.maps.all.len() {
            let all = MapSet::one(map);
            self.records
                .ruin(all, "a program calls a function of the kernel");
        }
        self.share_stack();
        self.end_call(Value::unknown(Def::Insn(self.at)));
    }

    /// Gives the stack to code that may read and write all of it.
    fn share_stack(&mut self) {
        let all = self.state.stack();
        self.give_up(&all, PASSES);
        self.state.smear(&Value::unknown(Def::Stale), self.at);
    }

    fn arguments(&mut self, id: HelperId) {
        let Some(prototype) = helper::prototype(id) else {
            return self.call_local();
        };
        // What the arguments are is decided before any of them is filled.
        let values: Vec<Value> = (1..=5).map(|reg| self.state.reg(reg).clone()).collect();
        let size_after = |index: usize| {
            let size = values.get(index + 1).and_then(Value::as_const)?;
            u32::try_from(size).ok()
        };
        let mut filled = 0;
        for (index, (arg, value)) in prototype.args.iter().zip(&values).enumerate() {
            match *arg {
                Arg::Map => self.map_argument(id, value),
                Arg::Mem {
                    write: false,
                    fixed,
                    ..
                } => {
                    self.reads(value, fixed.or_else(|| size_after(index)));
                }
                Arg::Mem {
                    write: true,
                    uninit,
                    fixed,
                    ..
                } => {
                    if !uninit {
                        self.reads(value, fixed.or_else(|| size_after(index)));
                    }
                    filled += 1;
                    let def = if filled == 1 {
                        Def::Buffer(self.at)
                    } else {
                        Def::Stale
                    };
                    self.fills(value, fixed.or_else(|| size_after(index)), def);
                }
                Arg::Key | Arg::Value | Arg::ValueOrNull | Arg::ConstStr => self.reads(value, None),
                Arg::Any if READS.contains(&id) => self.reads(value, None),
                _ => {
                    self.give_up(value, PASSES);
                    if matches!(value.kind, Kind::Frame(_)) || *arg == Arg::Func {
                        self.share_stack();
                    }
                }
            }
        }
    }

    fn map_argument(&mut self, id: HelperId, value: &Value) {
        let Kind::Map(map) = value.kind else {
            return self.give_up(value, UNKNOWN);
        };
        match (self.maps.all[map].map_type, id) {
            (MapType::RINGBUF, HelperId::RINGBUF_OUTPUT | HelperId::RINGBUF_RESERVE)
            | (MapType::RINGBUF, HelperId::RINGBUF_RESERVE_DYNPTR)
            | (MapType::PERF_EVENT_ARRAY, HelperId::PERF_EVENT_OUTPUT) => self.records.stream(map),
            // These look into the map only.
            (_, HelperId::TAIL_CALL | HelperId::CURRENT_TASK_UNDER_CGROUP) => {}
            // Of a stack map this is the only use.
            (MapType::STACK_TRACE, HelperId::GET_STACKID) => {}
            _ => self.records.ruin(MapSet::one(map), UNKNOWN),
        }
    }

    /// Lets a helper read memory.
    fn reads(&mut self, pointer: &Value, len: Option<u32>) {
        match &pointer.kind {
            Kind::Frame(Some(at)) => {
                let end = len
                    .and_then(|len| at.checked_add_unsigned(len))
                    .unwrap_or(0);
                let read = self.state.within(*at..end.min(0).max(*at));
                self.give_up(&read, PASSES);
            }
            Kind::Frame(None) => {
                let all = self.state.stack();
                self.give_up(&all, PASSES);
            }
            Kind::Element { place, .. } => {
                self.records.leak(MapSet::one(place.map), PASSES);
                self.records.escape(pointer.elements, POINTERS);
                self.records.ruin(pointer.handles, UNKNOWN);
            }
            _ => self.give_up(pointer, PASSES),
        }
        self.records.leak(pointer.taint, PASSES);
    }

    /// Lets a helper write memory. It may leave some of it as it was.
    fn fills(&mut self, pointer: &Value, len: Option<u32>, def: Def) {
        match pointer.kind {
            Kind::Frame(Some(at)) => {
                let room = at.min(0).unsigned_abs();
                let len = len.unwrap_or(room).min(room);
                if len > 0 {
                    let old = self.state.within(at..at + len as i32).blurred(def);
                    self.state.write(at, len, old, self.at);
                }
            }
            Kind::Frame(None) => self.state.smear(&Value::unknown(Def::Stale), self.at),
            _ => {
                let why = "a helper writes into its values";
                self.records.escape(pointer.all_elements(), why);
                self.give_up(pointer, PASSES);
                self.effect();
            }
        }
        self.records.leak(pointer.taint, PASSES);
    }

    /// Takes note of a use of an element by its key in r2.
    fn key(&mut self, map: usize) -> Option<Key> {
        let pointer = self.state.reg(2).clone();
        let len = self.maps.all[map].key_size;
        self.reads(&pointer, Some(len));
        let Kind::Frame(Some(at)) = pointer.kind else {
            self.records.key(map, Vec::new());
            return None;
        };
        self.records.key(map, self.state.ids(at, len));
        self.state.key(at, len)
    }

    fn look_up(&mut self, map: usize) -> Value {
        let map_type = self.maps.all[map].map_type;
        if matches!(map_type, MapType::LRU_HASH | MapType::LRU_PERCPU_HASH) {
            // Such a table knows which elements were looked up last.
            self.effect();
        }
        let place = Place {
            map,
            key: self.key(map),
            site: Some(self.at),
        };
        let null = match self.state.exists(&place) {
            Some(true) => Null::NoRoom,
            _ => Null::Missing,
        };
        Value::new(Kind::Element {
            place,
            offset: Offset::At(0),
            null,
        })
    }

    fn delete(&mut self, map: usize) -> Value {
        self.key(map);
        self.effect();
        self.records.write(map, "a program deletes its elements");
        self.state.facts.retain(|fact| fact.place.map != map);
        Value {
            taint: MapSet::one(map),
            ..Value::unknown(Def::Insn(self.at))
        }
    }

    fn update(&mut self, map: usize) -> Value {
        let place = Place {
            map,
            key: self.key(map),
            site: None,
        };
        let (value, flag) = (self.state.reg(3).clone(), self.state.reg(4).clone());
        self.give_up(&flag, PASSES);
        let flag = flag.as_const();
        let exists = self.state.exists(&place);
        self.records.change(map);
        let kind = self.content(&value, map, &place);
        let creates = matches!(flag, Some(flags::ANY | flags::NOEXIST));
        match kind {
            Content::Sums(sums) if flag == Some(flags::ANY) => {
                for (sum, offset) in sums {
                    self.add(&place, Offset::At(offset.into()), sum.size, sum.plus);
                }
            }
            Content::Numbers(numbers)
                if creates && has_keys(self.maps.all[map]) && exists == Some(false)
                    || flag == Some(flags::NOEXIST)
                        && has_keys(self.maps.all[map])
                        && numbers.is_empty() =>
            {
                self.create(&place, &numbers);
            }
            _ => {
                self.give_up_buffer(&value, map);
                self.records.write(map, OVERWRITES);
                self.effect();
            }
        }
        self.state.create_any(map);
        self.state.learn(&place, true);
        // An element that was missing is not there because of this program's like, at most.
        let tells =
            has_keys(self.maps.all[map]) && flag != Some(flags::ANY) && exists != Some(false);
        match tells {
            true => Value {
                taint: MapSet::one(map),
                ..Value::unknown(Def::Insn(self.at))
            },
            false => Value::new(Kind::Done { map, site: self.at }),
        }
    }

    fn give_up_buffer(&mut self, value: &Value, map: usize) {
        self.reads(value, Some(self.maps.all[map].value_size));
    }

    /// Creates an element that was missing, or one of zeros that may be there.
    fn create(&mut self, place: &Place, numbers: &[(u32, u8, u64)]) {
        let mut conditional = Vec::new();
        let mut is_balanced = numbers.is_empty();
        for open in &mut self.state.open {
            if !open.place.is(place) {
                conditional.push(open.place.map);
            } else if let Some(effect) = &mut open.effect {
                is_balanced = true;
                for &(at, size, number) in numbers {
                    note(effect, at, size, Addend::Const(number));
                }
            }
        }
        for map in conditional {
            self.records.leak(MapSet::one(map), MISSING);
        }
        if !is_balanced {
            self.records.write(place.map, OVERWRITES);
        }
    }

    /// Returns what an update would store.
    fn content(&mut self, pointer: &Value, map: usize, place: &Place) -> Content {
        let len = self.maps.all[map].value_size;
        match &pointer.kind {
            Kind::Frame(Some(at)) => self.stack_content(*at, len, place),
            // Constants of the program.
            Kind::Element {
                place,
                offset: Offset::At(at),
                ..
            } if *place == record::direct(place.map) => {
                let (Some(constant), Ok(at)) =
                    (&self.maps.all[place.map].constant, usize::try_from(*at))
                else {
                    return Content::Other;
                };
                match constant.get(at..at + len as usize) {
                    Some(bytes) if bytes.iter().all(|&byte| byte == 0) => {
                        self.records.leak(MapSet::one(place.map), PASSES);
                        Content::Numbers(Vec::new())
                    }
                    _ => Content::Other,
                }
            }
            _ => Content::Other,
        }
    }

    fn stack_content(&mut self, start: i32, len: u32, place: &Place) -> Content {
        let end = start + len as i32;
        let (mut sums, mut numbers) = (Vec::new(), Vec::new());
        let (mut next, mut words) = (start, 0);
        let mut taint = MapSet::default();
        for (at, length, value) in self.state.overlapping(start..end) {
            let offset = (at - start) as u32;
            let is_word = length == 4 || length == 8;
            if at != next || at < start || at + length as i32 > end {
                return Content::Other;
            }
            match &value.kind {
                Kind::Sum(sum)
                    if sum.place.is(place)
                        && u32::from(sum.size) == length
                        && sum.offset == Offset::At(offset.into()) =>
                {
                    sums.push((sum.clone(), offset));
                    taint = taint.with(value.taint);
                }
                Kind::Const(0) if value.taint == MapSet::default() => {}
                Kind::Const(number) if is_word && value.taint == MapSet::default() => {
                    numbers.push((offset, length as u8, *number));
                }
                _ => return Content::Other,
            }
            (next, words) = (at + length as i32, words + 1);
        }
        if next < end {
            Content::Other
        } else if sums.len() == words && words > 0 {
            self.records.leak(taint, STORES);
            Content::Sums(sums)
        } else if sums.is_empty() {
            Content::Numbers(numbers)
        } else {
            Content::Other
        }
    }
}

/// The value that an update stores.
enum Content {
    /// The element's own words, each with something added, at these offsets.
    Sums(Vec<(Sum, u32)>),
    /// Numbers other than 0, with their offsets and sizes; the rest is 0.
    Numbers(Vec<(u32, u8, u64)>),
    Other,
}
