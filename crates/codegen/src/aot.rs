//! Programs compiled ahead of time: a file with code that runs where there is no compiler.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::code::Code;
use crate::container::{self, Damaged, Kind};
use crate::cpu;
use crate::digest::Digest;
use crate::engine::Machine;

const KIND: Kind = *b"bee aot\x02";

/// The content of a file with compiled programs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Aot {
    /// The machine that all code is for.
    pub machine: Machine,
    /// The extensions that its processor must have: [`cpu::needed`] of all code.
    pub features: BTreeSet<String>,
    /// The helper table that the code calls through: [`Digest::of_helpers`].
    pub helpers: Digest,
    /// The license, as in the object's `license` section.
    pub license: String,
    /// The types of maps' values and programs' functions; empty if the object has none.
    pub btf: Vec<u8>,
    /// The maps that programs use.
    pub maps: Vec<AotMap>,
    /// The programs.
    pub programs: Vec<AotProgram>,
}

/// A map as its object file defines it; names as in `union bpf_attr`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names are bpf()'s")]
pub struct AotMap {
    pub name: String,
    pub map_type: u32,
    pub key_size: u32,
    pub value_size: u32,
    pub max_entries: u32,
    pub map_flags: u32,
    pub map_extra: u64,
    /// The type of the values in [`Aot::btf`]; 0 if not known.
    pub value_type: u32,
    /// For a map of maps, the place in [`Aot::maps`] of the map that later inner maps must
    /// resemble.
    pub inner: Option<u32>,
    /// The initial content of the first value, for data sections. Empty for zeros.
    pub contents: Vec<u8>,
}

/// A compiled program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AotProgram {
    /// The object's section that it was in.
    pub section: String,
    /// Its function's name.
    pub name: String,
    /// `BPF_PROG_TYPE_*`.
    pub prog_type: u32,
    /// `BPF_*`.
    pub expected_attach_type: u32,
    /// `prog_flags`.
    pub flags: u32,
    /// A type in the kernel's BTF, or 0.
    pub attach_btf_id: u32,
    /// The start of each function, and its type in [`Aot::btf`].
    pub functions: Vec<[u32; 2]>,
    /// [`Digest::of_program`].
    pub digest: Digest,
    /// Its instructions, 8 bytes each, which name maps by their places in [`Aot::maps`].
    ///
    /// With them the program can be verified before it runs.
    pub insns: Vec<u8>,
    /// Its maps, by their places in [`Aot::maps`], in the order in which the code numbers them.
    pub maps: Vec<u32>,
    /// `baseline` or `llvm`.
    pub engine: String,
    /// The code.
    pub code: Code,
}

/// The reasons why a file cannot be used here. Each message says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum Unusable {
    #[error(
        "this is no file of `beeline compile` that this version can read: {0}; compile it again"
    )]
    Damaged(#[from] Damaged),
    #[error("a program in it names a map that it does not hold; compile it again")]
    NoSuchMap,
    #[error("it holds code for {theirs}, and this is {here}; compile it with --machine {here}")]
    Machine {
        theirs: &'static str,
        here: &'static str,
    },
    #[error("its code needs {missing}, which this processor lacks; compile it on this machine")]
    Features { missing: String },
    #[error(
        "it was made for another version of Beeline, whose helpers differ; compile it again with this one"
    )]
    Helpers,
}

impl Aot {
    /// Creates a file without programs.
    pub fn new(machine: Machine, helpers: Digest, license: String, btf: Vec<u8>) -> Self {
        Self {
            machine,
            features: BTreeSet::new(),
            helpers,
            license,
            btf,
            maps: Vec::new(),
            programs: Vec::new(),
        }
    }

    /// Adds a program, and the processor features that its code needs.
    pub fn add(&mut self, program: AotProgram) {
        let needed = cpu::needed(self.machine, &program.code.bytes);
        self.features.extend(needed.into_iter().map(str::to_owned));
        self.programs.push(program);
    }

    /// Returns the file's bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        container::seal(KIND, self)
    }

    /// Reads a file; never panics.
    ///
    /// The file may still be for another machine: [`Self::check`].
    ///
    /// # Errors
    ///
    /// [`Unusable::Damaged`], or [`Unusable::NoSuchMap`] if a program or a map names one that is
    /// not there.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Unusable> {
        let aot: Self = container::unseal(KIND, bytes)?;
        let named = aot.programs.iter().flat_map(|program| &program.maps);
        let inner = aot.maps.iter().filter_map(|map| map.inner.as_ref());
        if named
            .chain(inner)
            .any(|map| *map as usize >= aot.maps.len())
        {
            return Err(Unusable::NoSuchMap);
        }
        Ok(aot)
    }

    /// Checks that its code can run in this process, with these helpers.
    ///
    /// # Errors
    ///
    /// [`Unusable::Machine`], [`Unusable::Features`] or [`Unusable::Helpers`].
    pub fn check(&self, helpers: &Digest) -> Result<(), Unusable> {
        self.check_for(Machine::HERE, &cpu::here(), helpers)
    }

    fn check_for(
        &self,
        machine: Option<Machine>,
        features: &[&str],
        helpers: &Digest,
    ) -> Result<(), Unusable> {
        if Some(self.machine) != machine {
            return Err(Unusable::Machine {
                theirs: self.machine.name(),
                here: machine.map_or("another machine", Machine::name),
            });
        }
        let lacking = |feature: &&String| !features.contains(&feature.as_str());
        let missing: Vec<_> = self.features.iter().filter(lacking).cloned().collect();
        if !missing.is_empty() {
            let missing = missing.join(", ");
            return Err(Unusable::Features { missing });
        }
        if self.helpers != *helpers {
            return Err(Unusable::Helpers);
        }
        Ok(())
    }

    /// Finds the code of a program that was compiled from the same instructions, over the same
    /// shapes of maps.
    pub fn find(&self, digest: &Digest) -> Option<&AotProgram> {
        let mut programs = self.programs.iter();
        programs.find(|program| program.digest == *digest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registers::RegisterSet;

    fn sample() -> Aot {
        let mut aot = Aot::new(Machine::X86_64, helpers("one"), "GPL".into(), Vec::new());
        aot.maps.push(AotMap {
            name: "counts".into(),
            map_type: 2,
            key_size: 4,
            value_size: 8,
            max_entries: 1,
            map_flags: 0,
            map_extra: 0,
            value_type: 0,
            inner: None,
            contents: vec![1, 2],
        });
        let insns = [beeline_isa::Insn::default()];
        aot.add(AotProgram {
            section: "uprobe".into(),
            name: "probe".into(),
            prog_type: 2,
            expected_attach_type: 0,
            flags: 0,
            attach_btf_id: 0,
            functions: Vec::new(),
            digest: Digest::of_program(&crate::Bytecode::new(&insns)),
            insns: Vec::new(),
            maps: vec![0],
            engine: "baseline".into(),
            code: Code {
                bytes: vec![0xc4, 0xe2, 0xe9, 0xf7, 0xc1, 0xc3], // shlx rax, rcx, rdx; ret
                clobbers: RegisterSet::EMPTY,
                uses_run: false,
                stack_bytes: 8,
                insns: Vec::new(),
            },
        });
        aot
    }

    fn helpers(name: &str) -> Digest {
        Digest::of_helpers([(1, name)])
    }

    #[test]
    fn it_runs_only_where_it_can() {
        let aot = Aot::from_bytes(&sample().to_bytes()).expect("a good file");
        assert_eq!(aot, sample());
        let ours = helpers("one");
        let check = |machine, features: &[&str], helpers| aot.check_for(machine, features, helpers);
        assert_eq!(
            check(Some(Machine::X86_64), &["adx", "bmi2"], &ours),
            Ok(())
        );
        let refused = check(Some(Machine::X86_64), &["adx"], &ours).unwrap_err();
        assert_eq!(
            refused,
            Unusable::Features {
                missing: "bmi2".into()
            }
        );
        let refused = check(Some(Machine::Aarch64), &["bmi2"], &ours).unwrap_err();
        assert!(
            refused.to_string().contains("--machine aarch64"),
            "{refused}"
        );
        let refused = check(Some(Machine::X86_64), &["bmi2"], &helpers("other"));
        assert_eq!(refused, Err(Unusable::Helpers));
    }

    #[test]
    fn a_program_cannot_name_a_map_that_is_not_there() {
        let mut aot = sample();
        aot.programs[0].maps.push(1);
        assert_eq!(Aot::from_bytes(&aot.to_bytes()), Err(Unusable::NoSuchMap));
    }

    #[test]
    fn every_changed_or_missing_byte_is_noticed() {
        let whole = sample().to_bytes();
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x10;
            assert!(Aot::from_bytes(&bytes).is_err(), "byte {at}");
            assert!(Aot::from_bytes(&whole[..at]).is_err(), "length {at}");
        }
    }
}
