//! The same operation on a map of Beeline's and on one of the kernel's.

use std::{
    os::fd::{AsRawFd, OwnedFd},
    time::{Duration, Instant},
};

use beeline_maps::{Kind, Spec};
use beeline_uapi::HelperId;

use super::{
    Ours, caller,
    kernel::{self, KernelMap},
};

/// Calls `sequence` with different seeds: for as many seconds as `BEELINE_SOAK` says, or else
/// `times`.
pub fn soak(times: u64, mut sequence: impl FnMut(&mut Random)) {
    let seconds =
        std::env::var("BEELINE_SOAK").map(|text| text.parse().expect("BEELINE_SOAK is a number"));
    let start = Instant::now();
    for seed in 0.. {
        let enough = match seconds {
            Ok(seconds) => start.elapsed() > Duration::from_secs(seconds),
            Err(_) => seed == times,
        };
        if enough {
            break;
        }
        sequence(&mut Random::new(seed));
    }
}

/// A generator of random numbers (splitmix64).
#[derive(Debug)]
pub struct Random {
    /// The seed.
    pub seed: u64,
    state: u64,
}

impl Random {
    pub fn new(seed: u64) -> Self {
        Self { seed, state: seed }
    }

    pub fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}

/// A system call on a map, or with `by_program` the helper of that name.
#[derive(Debug, Clone)]
pub struct Op {
    pub command: Command,
    pub key: Vec<u8>,
    pub value: Vec<u8>,
    pub flags: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    Lookup,
    LookupAndDelete,
    Update,
    Delete,
    FirstKey,
    NextKey,
    /// `bpf_map_push_elem`, by a program, as are the ones below.
    Push,
    Pop,
    Peek,
    ProgramLookup,
    ProgramUpdate,
    ProgramDelete,
}

/// Performs the operation as system calls do.
pub const CALLS: [Command; 6] = [
    Command::Lookup,
    Command::LookupAndDelete,
    Command::Update,
    Command::Delete,
    Command::FirstKey,
    Command::NextKey,
];

/// One thing's counterparts on both sides: Beeline's element, the kernel's input, and the kernel's
/// output.
#[derive(Debug)]
pub struct Name {
    pub ours: u32,
    pub taken: OwnedFd,
    pub given: u32,
}

/// A map on both sides.
pub struct Pair {
    pub ours: Ours,
    pub theirs: KernelMap,
    /// The counterparts of the values of maps of objects.
    pub values: Vec<Name>,
    /// The counterparts of the keys of task storages.
    pub keys: Vec<Name>,
}

impl Pair {
    pub fn new(spec: &Spec) -> Self {
        Self {
            ours: Ours::new(spec, kernel::cpus()).unwrap(),
            theirs: KernelMap::new(spec).unwrap(),
            values: Vec::new(),
            keys: Vec::new(),
        }
    }

    /// Does the operation on both sides. Returns the two results: 0 or an error, and the bytes
    /// copied out or returned.
    pub fn both(&self, op: &Op) -> [(i32, Vec<u8>); 2] {
        match op.command {
            Command::Push | Command::Pop | Command::Peek => self.by_helper(op),
            Command::ProgramLookup | Command::ProgramUpdate | Command::ProgramDelete => {
                self.by_program(op)
            }
            _ => self.by_call(op),
        }
    }

    fn by_call(&self, op: &Op) -> [(i32, Vec<u8>); 2] {
        let me = caller(7, 0);
        let (map, theirs) = (&self.ours.map, &self.theirs);
        let Op {
            key, value, flags, ..
        } = op;
        let their_key = translate(key, &self.keys);
        let their_value = translate(value, &self.values);
        let asks = map.spec().kind() == Some(Kind::BloomFilter) && op.command == Command::Lookup;
        let len = if matches!(op.command, Command::FirstKey | Command::NextKey) {
            key.len()
        } else {
            value.len()
        };
        let blank = if asks { value.clone() } else { vec![0; len] };
        let (mut a, mut b) = (blank.clone(), blank);
        let results = match op.command {
            Command::Lookup => (
                map.lookup_copy(key, &mut a, 0, &me),
                theirs.lookup(&their_key, &mut b),
            ),
            Command::LookupAndDelete => (
                map.lookup_and_delete(key, &mut a, 0, &me),
                theirs.lookup_and_delete(&their_key, &mut b),
            ),
            Command::Update => (
                map.update_copy(key, value, *flags, &me),
                theirs.update(&their_key, &their_value, *flags),
            ),
            Command::Delete => (map.delete_key(key, &me), theirs.delete(&their_key)),
            Command::FirstKey => (
                map.next_key(None, &mut a, &me),
                theirs.next_key(None, &mut b),
            ),
            _ => (
                map.next_key(Some(key), &mut a, &me),
                theirs.next_key(Some(&their_key), &mut b),
            ),
        };
        let code =
            |result: Result<(), beeline_uapi::Errno>| result.map_or_else(|error| error.0, |()| 0);
        let (ours, theirs) = (code(results.0), code(results.1));
        // After a failed call the buffer's contents do not depend on the map.
        if ours != 0 {
            a.fill(0);
        }
        if theirs != 0 {
            b.fill(0);
        }
        if op.command == Command::Lookup
            && let Some(name) = self
                .values
                .iter()
                .find(|name| b == name.given.to_ne_bytes())
        {
            b = name.ours.to_ne_bytes().to_vec();
        }
        [(ours, a), (theirs, b)]
    }

    /// Operates on maps without keys by a program: returns its result and the value that it is left
    /// with.
    fn by_helper(&self, op: &Op) -> [(i32, Vec<u8>); 2] {
        let me = caller(7, 0);
        let map = &self.ours.map;
        let mut value = op.value.clone();
        // SAFETY: the value has value_size bytes.
        let ours = unsafe {
            match op.command {
                Command::Push => map.push_elem(value.as_ptr(), op.flags, &me),
                Command::Pop => map.pop_elem(value.as_mut_ptr(), &me),
                _ => map.peek_elem(value.as_mut_ptr(), &me),
            }
        };
        let helper = match op.command {
            Command::Push => HelperId::MAP_PUSH_ELEM,
            Command::Pop => HelperId::MAP_POP_ELEM,
            _ => HelperId::MAP_PEEK_ELEM,
        };
        let mut insns = kernel::stack_bytes(40, &op.value);
        insns.extend(kernel::map_address(1, &self.theirs));
        insns.extend(kernel::stack_address(2, 40));
        insns.push(kernel::move_imm(3, op.flags as i32));
        let [call, exit] = kernel::call(helper);
        // The result in the upper half, the value's first bytes in the lower.
        insns.extend([call, kernel::insn(0x67, 0, 0, 0, 16)]);
        insns.push(kernel::insn(0x69, 1, 10, -40, 0));
        insns.extend([kernel::insn(0x4f, 0, 1, 0, 0), exit]);
        let both = kernel::run(&insns);
        let ours = ours.map_or_else(|error| error.0, |()| 0);
        [
            (ours, value[..2].to_vec()),
            (-(both >> 16), (both as u16).to_ne_bytes().to_vec()),
        ]
    }

    /// Operates on maps with keys by a program: returns its result, or the first word of the value
    /// found.
    fn by_program(&self, op: &Op) -> [(i32, Vec<u8>); 2] {
        let me = caller(7, 0);
        let map = &self.ours.map;
        let mut insns = kernel::stack_bytes(272, &op.key);
        insns.extend(kernel::stack_bytes(312, &op.value));
        insns.extend(kernel::map_address(1, &self.theirs));
        insns.extend(kernel::stack_address(2, 272));
        insns.extend(kernel::stack_address(3, 312));
        insns.push(kernel::move_imm(4, op.flags as i32));
        let (helper, ours) = match op.command {
            Command::ProgramLookup => {
                let found = self.ours.get(&op.key, 0);
                let word = found.map(|value| u32::from_ne_bytes(value[..4].try_into().unwrap()));
                (HelperId::MAP_LOOKUP_ELEM, word.unwrap_or(0) as i32)
            }
            Command::ProgramUpdate => (
                HelperId::MAP_UPDATE_ELEM,
                code_of(self.ours.set(&op.key, &op.value, op.flags, &me)),
            ),
            // SAFETY: the key has key_size bytes.
            _ => (
                HelperId::MAP_DELETE_ELEM,
                code_of(unsafe { map.delete(op.key.as_ptr(), &me) }),
            ),
        };
        let [call, exit] = kernel::call(helper);
        insns.push(call);
        if helper == HelperId::MAP_LOOKUP_ELEM {
            insns.extend([
                kernel::insn(0x15, 0, 0, 1, 0),
                kernel::insn(0x61, 0, 0, 0, 0),
            ]);
        }
        insns.push(exit);
        [(ours, Vec::new()), (kernel::run(&insns), Vec::new())]
    }
}

fn code_of(result: Result<(), beeline_uapi::Errno>) -> i32 {
    result.map_or_else(|error| -error.0, |()| 0)
}

/// Returns the kernel's input for a name of Beeline's.
fn translate(bytes: &[u8], names: &[Name]) -> Vec<u8> {
    let name = names.iter().find(|name| bytes == name.ours.to_ne_bytes());
    name.map_or_else(
        || bytes.to_vec(),
        |name| name.taken.as_raw_fd().to_ne_bytes().to_vec(),
    )
}
