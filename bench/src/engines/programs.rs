//! The programs, and the memory that they work on.

/// A program in C, `programs/NAME.c`, and the memory that it is given.
#[derive(Debug, Clone, Copy)]
pub struct Program {
    /// The name, also that of its file.
    pub name: &'static str,
    memory: fn() -> Vec<u8>,
}

impl Program {
    /// Returns the memory that each run is given, as it is before the first run.
    ///
    /// The changes that a run makes do not change its result.
    pub fn memory(&self) -> Vec<u8> {
        (self.memory)()
    }
}

/// The programs of figure 3 of the bpftime paper, written anew.
pub const PROGRAMS: [Program; 8] = [
    Program {
        name: "simple",
        memory: || vec![0; 16],
    },
    Program {
        name: "memory_a_plus_b",
        memory: || numbers([0x1234_5678, 0x8765_4321], u64::to_le_bytes),
    },
    LOG2_INT,
    Program {
        name: "prime",
        memory: || vec![0; 16],
    },
    Program {
        name: "memcpy",
        memory: || {
            let mut random = Random::default();
            let mut bytes: Vec<u8> = (0..MIB).map(|_| random.next() as u8).collect();
            bytes.resize(2 * MIB, 0);
            bytes
        },
    },
    Program {
        name: "strcmp_fail",
        memory: || {
            let mut bytes = strings();
            bytes[MIB + MIB / 4] ^= 1;
            bytes
        },
    },
    Program {
        name: "strcmp_full",
        memory: strings,
    },
    Program {
        name: "switch",
        memory: || {
            let mut random = Random::default();
            let choices = (0..COUNT).map(|_| random.next() as u32 % 64);
            numbers([COUNT as u32].into_iter().chain(choices), u32::to_le_bytes)
        },
    },
];

/// The one of them with some sixty instructions.
pub(crate) const LOG2_INT: Program = Program {
    name: "log2_int",
    memory: || {
        let mut random = Random::default();
        let values = (0..COUNT).map(|_| random.next() >> (random.next() % 64));
        numbers([COUNT].into_iter().chain(values), u64::to_le_bytes)
    },
};

/// A program for compilers only: more than ten thousand instructions, with calls of helpers.
pub(crate) const FRAMES: Program = Program {
    name: "frames",
    memory: Vec::new,
};

const MIB: usize = 1 << 20;

/// The numbers that a program goes through.
const COUNT: u64 = 1024;

/// Returns two equal strings of a MiB each, with the zero at their end.
fn strings() -> Vec<u8> {
    let mut random = Random::default();
    let mut string: Vec<u8> = (1..MIB).map(|_| 1 + (random.next() % 255) as u8).collect();
    string.push(0);
    string.repeat(2)
}

fn numbers<T, const BYTES: usize>(
    values: impl IntoIterator<Item = T>,
    encode: fn(T) -> [u8; BYTES],
) -> Vec<u8> {
    values.into_iter().flat_map(encode).collect()
}

/// Random numbers that are the same in each run (splitmix64).
#[derive(Default)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }
}
