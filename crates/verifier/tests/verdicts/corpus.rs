//! The file of programs.

use std::path::PathBuf;
use std::process::Command;

use beeline_isa::{Imm64, Insn, Op};
use beeline_uapi::{AttachType, MapType, ProgramType};
use beeline_verifier::program::{Kind, Map};
use serde_json::Value;

use crate::Answer;

/// The file in its directory.
const FILE: &str = "selftests.jsonl.xz";
/// Descriptors that stand for maps here: index plus this, so that a forgotten index is noticed.
const FIRST_FD: i32 = 1000;

/// A program with the kernel's verdict.
#[derive(Debug)]
pub struct Row {
    /// `selftests/FILE/PROGRAM`.
    pub id: String,
    pub kind: Kind,
    /// Maps by the descriptors of [`Row::maps`].
    pub insns: Vec<Insn>,
    pub maps: Vec<(i32, Map)>,
    /// Everything that the kernel was given is here.
    pub self_contained: bool,
    accepted: bool,
    processed: Option<u32>,
    reason: String,
}

impl Row {
    /// Returns the file that the program is from.
    pub fn category(&self) -> &str {
        self.id.split('/').nth(1).unwrap_or_default()
    }

    /// The kernel's answer when the file was made. It had type information then.
    pub fn recorded(&self) -> Answer {
        Answer {
            accepted: self.accepted,
            reason: self.reason.clone(),
            processed: self.processed,
            log: String::new(),
        }
    }
}

/// Reads all programs. Errors: the reason why they are not there.
pub fn read() -> Result<Vec<Row>, String> {
    let directory = std::env::var_os("BEELINE_VERDICTS").map_or_else(beside, PathBuf::from);
    let file = directory.join(FILE);
    if !file.is_file() {
        return Err(format!(
            "no {}; BEELINE_VERDICTS says where",
            file.display()
        ));
    }
    let unpacked = Command::new("xz")
        .arg("-dc")
        .arg(&file)
        .output()
        .map_err(|error| format!("xz, which unpacks {}: {error}", file.display()))?;
    let text = String::from_utf8_lossy(&unpacked.stdout).into_owned();
    let rows: Option<Vec<Row>> = text.lines().map(row).collect();
    rows.filter(|rows| !rows.is_empty())
        .ok_or_else(|| format!("{} is not what it should be", file.display()))
}

fn beside() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "../../../shared/verdicts"]
        .iter()
        .collect()
}

fn row(line: &str) -> Option<Row> {
    let row: Value = serde_json::from_str(line).ok()?;
    let number = |name: &str| row[name].as_u64().map(|it| it as u32);
    let maps = row["maps"].as_array()?.iter();
    let maps: Option<Vec<_>> = (0..).zip(maps).map(|(at, it)| map(at, it)).collect();
    let mut insns: Vec<Insn> = Insn::decode_all(&bytes(row["insns"].as_str()?)?)
        .ok()?
        .collect();
    for insn in &mut insns {
        if let Ok(Op::Imm64 {
            kind: Imm64::Map | Imm64::MapValue,
            low,
            ..
        }) = insn.op()
        {
            insn.imm = low + FIRST_FD;
        }
    }
    Some(Row {
        id: row["id"].as_str()?.to_owned(),
        kind: Kind {
            prog_type: ProgramType(number("type")?),
            attach_type: AttachType(number("attach")?),
            flags: number("flags")?,
            ..Kind::default()
        },
        insns,
        maps: maps?,
        self_contained: row["self_contained"].as_bool()?,
        accepted: row["kernel"] == "ACCEPT",
        processed: number("processed"),
        reason: row["err"].as_str().unwrap_or_default().to_owned(),
    })
}

fn map(at: u32, it: &Value) -> Option<(i32, Map)> {
    let number = |name: &str| it[name].as_u64().map(|it| it as u32);
    let map_type = MapType(number("type")?);
    let map = Map {
        id: at + 1,
        name: it["name"].as_str()?.to_owned(),
        map_type,
        key_size: number("key")?,
        value_size: number("value")?,
        max_entries: number("max")?,
        flags: number("flags")?,
        inner: matches!(map_type, MapType::ARRAY_OF_MAPS | MapType::HASH_OF_MAPS)
            .then(|| Box::new(inner())),
        ..Map::default()
    };
    Some((FIRST_FD + at.cast_signed(), map))
}

/// The inner map of the tests' maps of maps: an array of one number.
fn inner() -> Map {
    Map {
        map_type: MapType::ARRAY,
        key_size: 4,
        value_size: 4,
        max_entries: 1,
        ..Map::default()
    }
}

fn bytes(hex: &str) -> Option<Vec<u8>> {
    let digits = (0..hex.len()).step_by(2);
    digits
        .map(|at| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok())
        .collect()
}
