//! The running kernel's answer.

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use beeline_isa::{Imm64, Insn, Op};
use beeline_kernel::{MapSpec, ProgramSpec, Refusal, create_map, load_program};
use beeline_uapi::log;
use beeline_verifier::program::Map;

use crate::Answer;
use crate::corpus::Row;

/// Loads the program. Errors: its maps cannot be made.
pub fn ask(row: &Row, level: u32) -> Result<Answer, String> {
    let mut maps = HashMap::new();
    for (fd, map) in &row.maps {
        let made = make(map).map_err(|error| format!("map {}: {error}", map.name))?;
        maps.insert(*fd, made);
    }
    let insns: Vec<Insn> = row.insns.iter().map(|insn| real(*insn, &maps)).collect();
    let loaded = load_program(&ProgramSpec {
        prog_type: row.kind.prog_type,
        expected_attach_type: row.kind.attach_type,
        flags: row.kind.flags,
        license: "GPL",
        insns: &insns,
        log_level: level | log::STATS,
        ..ProgramSpec::default()
    });
    let (accepted, errno, log) = match loaded {
        Ok((_, log)) => (true, 0, log),
        Err(Refusal { errno, log, .. }) => (false, errno, log),
    };
    Ok(Answer {
        accepted,
        reason: match accepted {
            true => String::new(),
            false => format!("{} (errno {errno})", reason(&log)),
        },
        processed: processed(&log),
        log,
    })
}

fn make(map: &Map) -> std::io::Result<OwnedFd> {
    let inner = map.inner.as_deref().map(make).transpose()?;
    create_map(&MapSpec {
        map_type: map.map_type,
        key_size: map.key_size,
        value_size: map.value_size,
        max_entries: map.max_entries,
        flags: map.flags,
        inner: inner.as_ref().map(AsFd::as_fd),
        ..MapSpec::default()
    })
}

fn real(mut insn: Insn, maps: &HashMap<i32, OwnedFd>) -> Insn {
    if let Ok(Op::Imm64 {
        kind: Imm64::Map | Imm64::MapValue,
        low,
        ..
    }) = insn.op()
        && let Some(map) = maps.get(&low)
    {
        insn.imm = map.as_raw_fd();
    }
    insn
}

/// Returns the last line before the statistics, and before compared states.
fn reason(log: &str) -> &str {
    let lines = log.lines().rev();
    let mut said = lines.skip_while(|line| is_aside(line));
    said.next().unwrap_or_default()
}

fn is_aside(line: &str) -> bool {
    let known = [
        "processed ",
        "verification time ",
        "stack depth ",
        "cur state:",
        "old state:",
    ];
    known.iter().any(|it| line.starts_with(it))
}

fn processed(log: &str) -> Option<u32> {
    let line = log.lines().find(|line| line.starts_with("processed "))?;
    line.split(' ').nth(1)?.parse().ok()
}
