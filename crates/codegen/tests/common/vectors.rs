//! The vectors of the public conformance suite; see `conformance/README.md`.

use beeline_isa::Insn;

/// A program, and its expected result.
pub struct Vector {
    pub name: &'static str,
    pub expected: u64,
    /// The memory at r1; r2 is its length.
    pub memory: Vec<u8>,
    pub insns: Vec<Insn>,
}

pub fn all() -> Vec<Vector> {
    include_str!("../conformance/bpf_conformance.tsv")
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(vector)
        .collect()
}

fn vector(line: &'static str) -> Vector {
    let fields: Vec<_> = line.split('\t').collect();
    let [name, _version, expected, "-", memory, program] = fields[..] else {
        panic!("bad line: {line}")
    };
    let expected = u64::from_str_radix(expected.trim_start_matches("0x"), 16).expect("hex");
    let insns = Insn::decode_all(&hex(program))
        .expect("whole instructions")
        .collect();
    Vector {
        name,
        expected,
        memory: hex(memory),
        insns,
    }
}

fn hex(text: &str) -> Vec<u8> {
    let digits = if text == "-" { "" } else { text };
    (0..digits.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).expect("hex"))
        .collect()
}
