//! Unwind information of targets' files, and walks along stacks by the tables that are made of it.

use std::ops::Range;

use beeline_agent::frames::{Frame, Stack};
use beeline_agent::unwind_table::UnwindTable;
use beeline_runtime::fuzz_api::unwind_table;

/// The code that the information is about.
const CODE: Range<u64> = 0x1000..0x4_0000;
/// The most frames of a walk.
const MOST: usize = 127;
/// The distance between the places that walks begin at.
const STEP: usize = 509;

/// A stack of arbitrary bytes, which begins again at its end.
struct Bytes<'a>(&'a [u8]);

impl Stack for Bytes<'_> {
    fn word(&mut self, at: u64) -> Option<u64> {
        let start = usize::try_from(at).ok()? % self.0.len().max(1);
        let word = self.0.get(start..start.checked_add(8)?)?;
        Some(u64::from_le_bytes(word.try_into().ok()?))
    }

    fn pair(&mut self, at: u64) -> Option<[u64; 2]> {
        Some([self.word(at)?, self.word(at.checked_add(8)?)?])
    }

    fn original(&mut self, _: u64, now: u64) -> u64 {
        now
    }
}

/// Makes a table of a section, and walks by it from everywhere, and by the bytes as if they were a
/// table themselves.
pub fn unwind_info(data: &[u8]) {
    frames_walked(data);
    let words: Vec<u32> = data
        .chunks_exact(4)
        .map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
        .collect();
    walk(UnwindTable::of(&words), CODE.start, data, 0);
}

/// Returns the number of frames behind those that walks begin at.
pub fn frames_walked(data: &[u8]) -> usize {
    let Some((origin, words)) = unwind_table(data, &CODE) else {
        return 0;
    };
    let starts = CODE.step_by(STEP);
    let table = UnwindTable::of(&words);
    starts.map(|start| walk(table, start, data, origin)).sum()
}

fn walk(table: UnwindTable<'_>, start: u64, stack: &[u8], origin: u64) -> usize {
    let mut frame = Frame {
        ip: start,
        sp: 8,
        fp: 16,
        is_exact: true,
    };
    for count in 0..MOST {
        let rule = table.rule(frame.inside().wrapping_sub(origin));
        match frame.caller(rule, &mut Bytes(stack)) {
            Some(caller) => frame = caller,
            None => return count,
        }
    }
    MOST
}

/// Returns what all functions have in common, as of compilers for x86-64, but with absolute
/// addresses of four bytes.
fn common() -> Vec<u8> {
    let body = [
        &[0, 0, 0, 0, 1][..],
        b"zR\0",
        &[1, 0x78, 16, 1, 0x03, 0x0c, 7, 8, 0x90, 1],
    ];
    record(&body.concat())
}

/// Returns an entry of the section at an offset: for a page of code from an address on.
fn function(offset: usize, address: u32, instructions: &[u8]) -> Vec<u8> {
    let to_common = offset as u32 + 4;
    let body = [
        &to_common.to_le_bytes()[..],
        &address.to_le_bytes(),
        &0x1000u32.to_le_bytes(),
        &[0],
        instructions,
    ];
    record(&body.concat())
}

fn record(body: &[u8]) -> Vec<u8> {
    let len = body.len().next_multiple_of(4);
    let mut record = (len as u32).to_le_bytes().to_vec();
    record.extend(body);
    // DW_CFA_nop
    record.resize(4 + len, 0);
    record
}

/// Returns the seeds: functions with the instructions that tables are made of.
pub fn unwind_seeds() -> Vec<(String, Vec<u8>)> {
    let usual: &[u8] = &[
        0x41, 0x0e, 16, 0x86, 2, 0x43, 0x0d, 6, 0x02, 0x50, 0x0c, 7, 8,
    ];
    // DW_CFA_def_cfa_expression: rbp - 8, dereferenced; rbp at rbp + 0.
    let realigned: &[u8] = &[0x0f, 3, 0x76, 0x78, 0x06, 0x10, 6, 2, 0x76, 0];
    // rsp + 8 + ((rip & 15) >= 11) * 8.
    let linkage: &[u8] = &[
        0x0f, 11, 0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22,
    ];
    // The outermost function; registers that tables do not have.
    let outermost: &[u8] = &[0x07, 16, 0x44, 0x0c, 3, 8, 0x44, 0x0a, 0x0b];
    let functions = [usual, realigned, linkage, outermost];
    let mut all = common();
    for (number, instructions) in functions.iter().enumerate() {
        let entry = function(all.len(), 0x1000 + 0x1_0000 * number as u32, instructions);
        all.extend(entry);
    }
    let one = [common(), function(common().len(), 0x1000, usual)].concat();
    vec![("one".to_owned(), one), ("all".to_owned(), all)]
}
