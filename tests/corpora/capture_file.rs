//! The record format of `capture.c`: one call of `BPF_PROG_LOAD`.

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use beeline_isa::{Imm64, Insn, Op};
use beeline_kernel::{MapSpec, ProgramSpec, ProgramTypes};
use beeline_uapi::{AttachType, MapType, ProgramType};
use beeline_verifier::Flow;
use beeline_verifier::program::{Kind, Map, Program};
use beeline_verifier::types::{self, KernelTypes};
use beeline_verifier::verdict::LogLevel;

use crate::{Said, Verdict};

/// `BPF_LOG_STATS`.
const STATISTICS: u32 = 4;

/// A program as a tool loaded it.
#[derive(Debug, Default)]
pub struct Captured {
    pub name: String,
    pub kind: Kind,
    license: String,
    pub insns: Vec<Insn>,
    /// By the tool's descriptors.
    maps: Vec<(i32, Map)>,
    btf: Vec<u8>,
    functions: Vec<[u32; 2]>,
    lines: Vec<[u32; 4]>,
}

impl Captured {
    /// Reads a file; `None` for one that a killed tool left half written.
    pub fn parse(text: &str) -> Option<Self> {
        let mut program = Self::default();
        for line in text.lines() {
            let (what, rest) = line.split_once(' ')?;
            let words: Vec<&str> = rest.split(' ').collect();
            let number = |at: usize| words.get(at)?.parse::<u32>().ok();
            match what {
                "program" => {
                    program.kind = Kind {
                        prog_type: ProgramType(number(0)?),
                        attach_type: AttachType(number(1)?),
                        flags: number(2)?,
                        attach_btf_id: number(3)?,
                        ..Kind::default()
                    };
                    program.name = words.get(4)?.to_string();
                }
                "license" => program.license = rest.to_owned(),
                "insns" => program.insns = Insn::decode_all(&bytes(rest)?).ok()?.collect(),
                "map" => program.add_map(words.first()?.parse().ok()?, number, words.get(6)?)?,
                "constant" => {
                    let (_, map) = program.maps.last_mut()?;
                    map.constant = Some(bytes(rest)?);
                }
                "btf" => program.btf = bytes(rest)?,
                "functions" => program.functions = records(&bytes(rest)?),
                "lines" => program.lines = records(&bytes(rest)?),
                _ => return None,
            }
        }
        (!program.insns.is_empty()).then_some(program)
    }

    fn add_map(
        &mut self,
        fd: i32,
        number: impl Fn(usize) -> Option<u32>,
        name: &str,
    ) -> Option<()> {
        if self.maps.iter().any(|(known, _)| *known == fd) {
            return Some(());
        }
        let map = Map {
            id: self.maps.len() as u32 + 1,
            name: name.to_owned(),
            map_type: MapType(number(1)?),
            key_size: number(2)?,
            value_size: number(3)?,
            max_entries: number(4)?,
            flags: number(5)?,
            ..Map::default()
        };
        self.maps.push((fd, map));
        Some(())
    }

    /// Returns the instructions with each map's number in place of its descriptor: the same for the
    /// same program.
    pub fn normal(&self) -> (ProgramType, Vec<Insn>) {
        let number = |fd: i32| self.maps.iter().position(|(it, _)| *it == fd);
        let insns = with_maps(&self.insns, |fd| number(fd).map(|it| it as i32));
        (self.kind.prog_type, insns)
    }

    /// Returns the kernel's verdict.
    pub fn ask_kernel(&self) -> Said {
        let mut made = HashMap::new();
        for (fd, map) in &self.maps {
            match make(map) {
                Ok(map) => made.insert(*fd, map),
                Err(error) => {
                    return Said {
                        reason: format!("map {}: {error}", map.name),
                        ..Said::default()
                    };
                }
            };
        }
        let insns = with_maps(&self.insns, |fd| made.get(&fd).map(AsRawFd::as_raw_fd));
        let btf = (!self.btf.is_empty()).then(|| beeline_kernel::load_types(&self.btf));
        let btf = btf.and_then(Result::ok);
        let loaded = beeline_kernel::load_program(&ProgramSpec {
            prog_type: self.kind.prog_type,
            expected_attach_type: self.kind.attach_type,
            flags: self.kind.flags,
            attach_btf_id: self.kind.attach_btf_id,
            license: &self.license,
            insns: &insns,
            types: btf.as_ref().map(|btf| ProgramTypes {
                btf: btf.as_fd(),
                functions: &self.functions,
                lines: &self.lines,
            }),
            log_level: STATISTICS,
            ..ProgramSpec::default()
        });
        match loaded {
            Ok((_, log)) => Said {
                verdict: Verdict::Accept,
                reason: String::new(),
                processed: processed(&log),
            },
            Err(refusal) => refused(refusal.errno, &refusal.log),
        }
    }

    /// Returns Beeline's verdict.
    pub fn ask_beeline(&self, kernel: Option<&KernelTypes>) -> Said {
        let starts: Vec<usize> = match Flow::of(&self.insns) {
            Ok(flow) => flow.functions().iter().map(|it| it.start).collect(),
            Err(_) => vec![0],
        };
        let types = (!self.btf.is_empty()).then(|| {
            types::ProgramTypes::new(
                &self.btf,
                &self.functions,
                &self.lines,
                &self.kind,
                &self.insns,
                &starts,
                kernel,
            )
        });
        let types = match types.transpose() {
            Ok(types) => types,
            Err((_, reason)) => {
                return Said {
                    verdict: Verdict::Reject,
                    reason,
                    processed: 0,
                };
            }
        };
        let maps: Vec<_> = self.maps.iter().map(|(fd, map)| (*fd, map)).collect();
        let program = Program {
            kind: self.kind,
            gpl: self.license.contains("GPL"),
            insns: &self.insns,
            maps: &maps,
            types: types.as_ref(),
            kernel,
            ..Default::default()
        };
        let verdict = beeline_verifier::verify(&program, LogLevel::default());
        Said {
            verdict: match verdict.result {
                Ok(_) => Verdict::Accept,
                Err(_) => Verdict::Reject,
            },
            processed: verdict.effort.insns_processed.into(),
            reason: verdict
                .result
                .err()
                .map_or_else(String::new, |it| it.reason),
        }
    }
}

fn make(map: &Map) -> std::io::Result<OwnedFd> {
    let made = beeline_kernel::create_map(&MapSpec {
        map_type: map.map_type,
        key_size: map.key_size,
        value_size: map.value_size,
        max_entries: map.max_entries,
        flags: map.flags,
        ..MapSpec::default()
    })?;
    if let Some(value) = &map.constant {
        beeline_kernel::update(&made, &0u32.to_ne_bytes(), value)?;
        beeline_kernel::freeze(&made)?;
    }
    Ok(made)
}

/// Returns instructions with other numbers for their maps.
fn with_maps(insns: &[Insn], number: impl Fn(i32) -> Option<i32>) -> Vec<Insn> {
    let mut insns = insns.to_vec();
    for insn in &mut insns {
        if let Ok(Op::Imm64 {
            kind: Imm64::Map | Imm64::MapValue,
            low,
            ..
        }) = insn.op()
            && let Some(number) = number(low)
        {
            insn.imm = number;
        }
    }
    insns
}

fn refused(errno: i32, log: &str) -> Said {
    let is_statistic = |line: &&str| {
        let known = ["processed ", "verification time ", "stack depth "];
        known.iter().any(|it| line.starts_with(it))
    };
    let error = std::io::Error::from_raw_os_error(errno).to_string();
    let said = log.lines().rev().find(|line| !is_statistic(line));
    Said {
        // Without any message from the verifier, loading is not permitted at all.
        verdict: match said {
            None if errno == 1 => Verdict::None,
            _ => Verdict::Reject,
        },
        reason: said.map_or(error, str::to_owned),
        processed: processed(log),
    }
}

fn processed(log: &str) -> u64 {
    let mut lines = log.lines();
    let line = lines.find_map(|line| line.strip_prefix("processed "));
    let number = line.and_then(|line| line.split(' ').next()?.parse().ok());
    number.unwrap_or(0)
}

fn bytes(hex: &str) -> Option<Vec<u8>> {
    let digits = (0..hex.len()).step_by(2);
    digits
        .map(|at| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok())
        .collect()
}

fn records<const WORDS: usize>(bytes: &[u8]) -> Vec<[u32; WORDS]> {
    let (words, _) = bytes.as_chunks::<4>();
    let words: Vec<u32> = words.iter().map(|it| u32::from_le_bytes(*it)).collect();
    let (records, _) = words.as_chunks::<WORDS>();
    records.to_vec()
}
