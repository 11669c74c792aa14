//! Text that helpers make and read, against the kernel's: same bytes, same result, same refusals.

mod common;

use beeline_uapi::{Errno, HelperId, MapType, flags};
use common::maps::kernel::{KernelMap, call, insn, is_missing, move_imm, try_run, value_address};
use common::maps::spec;
use common::{Environment, Random};

const SNPRINTF: u32 = HelperId::SNPRINTF.0;
const STRTOL: u32 = HelperId::STRTOL.0;
const STRTOUL: u32 = HelperId::STRTOUL.0;
/// Bytes of the map that holds arguments and the data that they point to.
const DATA: usize = 4096;
/// The offset of the strings in it.
const STRINGS: usize = 128;
const OUT: usize = 4096;

/// A pattern behind the text that formatting has to leave alone.
const UNTOUCHED: u8 = 0xaa;

/// One argument.
#[derive(Clone, Copy, Debug)]
enum Arg {
    Value(u64),
    /// Returns the address of the data map's byte.
    Data(usize),
}

#[derive(Debug)]
struct Case {
    format: Vec<u8>,
    args: Vec<Arg>,
    data: Vec<u8>,
    size: usize,
}

fn array(value: &[u8], flags: u32) -> KernelMap {
    let mut spec = spec(MapType::ARRAY, 4, value.len() as u32, 1);
    spec.flags = flags;
    let map = KernelMap::new(&spec).unwrap();
    map.update(&[0; 4], value, 0).unwrap();
    map
}

/// Returns the kernel's result and buffer; `Err` if it refuses the program.
fn kernel(case: &Case) -> Result<(i32, Vec<u8>), Errno> {
    let format = array(&case.format, flags::RDONLY_PROG);
    format.freeze().unwrap();
    let data = array(&case.data, 0);
    let out = array(&[UNTOUCHED; OUT], 0);
    let mut program = value_address(6, &data, 0).to_vec();
    for (i, arg) in case.args.iter().enumerate() {
        match *arg {
            Arg::Value(value) => program.extend([
                insn(0x18, 1, 0, 0, value as i32),
                insn(0, 0, 0, 0, (value >> 32) as i32),
            ]),
            Arg::Data(offset) => {
                program.push(insn(0xbf, 1, 6, 0, 0));
                program.push(insn(0x07, 1, 0, 0, offset as i32));
            }
        }
        program.push(insn(0x7b, 6, 1, 8 * i as i16, 0));
    }
    program.extend(value_address(1, &out, 0));
    program.push(move_imm(2, case.size as i32));
    program.extend(value_address(3, &format, 0));
    program.push(insn(0xbf, 4, 6, 0, 0));
    program.push(move_imm(5, 8 * case.args.len() as i32));
    program.extend(call(HelperId::SNPRINTF));
    let result = try_run(&program, &mut [0; 1 << 16])?;
    let mut text = vec![0; OUT];
    out.lookup(&[0; 4], &mut text).unwrap();
    Ok((result, text))
}

fn ours(case: &Case, environment: &mut Environment) -> Result<(i32, Vec<u8>), Errno> {
    let base = case.data.as_ptr() as u64;
    let values: Vec<u64> = case
        .args
        .iter()
        .map(|arg| match *arg {
            Arg::Value(value) => value,
            Arg::Data(offset) => base + offset as u64,
        })
        .collect();
    let mut text = vec![UNTOUCHED; OUT];
    let args = [
        text.as_mut_ptr() as u64,
        case.size as u64,
        case.format.as_ptr() as u64,
        values.as_ptr() as u64,
        8 * values.len() as u64,
    ];
    let result = environment.call(SNPRINTF, args) as i64;
    // Beeline checks the format when it is used, the kernel's verifier beforehand.
    if result == -i64::from(libc::EINVAL) {
        return Err(Errno(libc::EINVAL));
    }
    Ok((result as i32, text))
}

fn number(random: &mut Random) -> u64 {
    let bits = random.below(65) as u32;
    let value = random.next() & 1u64.checked_shl(bits).map_or(u64::MAX, |end| end - 1);
    random.one_of(&[value, value.wrapping_neg(), 0, 9, u64::MAX, i64::MIN as u64])
}

fn width(random: &mut Random) -> String {
    let flags = [
        "", "", "", "-", "0", "+", " ", "-0", "0-", "+ ", " +0", "00",
    ];
    let width = random.below(40).to_string();
    let width = random.one_of(&["".into(), "".into(), width, "123".into()]);
    random.one_of(&flags).to_string() + &width
}

/// A conversion with its argument.
fn conversion(random: &mut Random, data: &mut Vec<u8>) -> (String, Arg) {
    let width = width(random);
    let mut thing = |random: &mut Random, bytes: Vec<u8>| {
        if data.len() + bytes.len() + 1 > DATA || random.below(12) == 0 {
            return Arg::Value(random.one_of(&[0, 1, 0xfff0_0000_0000_1000]));
        }
        let at = data.len();
        data.extend(bytes);
        data.push(0);
        Arg::Data(at)
    };
    match random.below(8) {
        0 => {
            let len = random.one_of(&[0, 1, 3, 20, 20, 200, 600]);
            let bytes = (0..len).map(|_| random.next() as u8 | 1).collect();
            let letters = random.one_of(&["s", "s", "pks"]);
            (format!("%{width}{letters}"), thing(random, bytes))
        }
        1 => {
            let bytes = (0..16).map(|_| random.next() as u8).collect();
            let letters = random.one_of(&["pI4", "pi4", "pI6", "pi6"]);
            (format!("%{width}{letters}"), thing(random, bytes))
        }
        2 => {
            let letters = random.one_of(&["px", "ps", "pS", "pB"]);
            let address = random.next() >> 20;
            (format!("%{width}{letters}"), Arg::Value(address))
        }
        // Others would be hashed there.
        3 => (format!("%{width}p "), Arg::Value(0)),
        4 => (format!("%{width}c"), Arg::Value(random.next())),
        _ => {
            let length = random.one_of(&["", "", "l", "ll"]);
            let letter = random.one_of(&["d", "i", "u", "x", "X"]);
            (
                format!("%{width}{length}{letter}"),
                Arg::Value(number(random)),
            )
        }
    }
}

fn random_case(random: &mut Random) -> Case {
    let literals = [
        "", "", "", " ", "a", "%%", ", ", "x4", "4s", "100%% ", "\n\t", "]", "$", "é", "\u{a0}",
        "\u{83}", "\u{d7}", "\u{ed}",
    ];
    let wrong = [
        "%", "%q", "%hd", "%.3d", "%#x", "%5%", "%p%", "%p%%", "%pa", "%pe", "%lls ", "%llld",
        "%lc", "%sx", "\u{1}", "\u{7f}", "%*d", "%pks1", "%pI5", "%n", "%-",
    ];
    let (mut format, mut args, mut data) = (String::new(), Vec::new(), vec![0; STRINGS]);
    for _ in 0..random.one_of(&[0, 1, 1, 2, 2, 3, 5, 12]) {
        format += random.one_of(&literals);
        let (text, arg) = conversion(random, &mut data);
        format += &text;
        args.push(arg);
    }
    format += random.one_of(&literals);
    match random.below(12) {
        0 => {
            format += random.one_of(&wrong);
            args.push(Arg::Value(0));
        }
        1 => args.push(Arg::Value(0)),
        2 => drop(args.pop()),
        _ => {}
    }
    args.truncate(12);
    // With one of these behind a string that fills its room the kernel overruns it.
    let overruns = ["pB", "pI", "pi"].iter().any(|it| format.contains(it));
    if overruns && data.len() > STRINGS + 400 {
        return random_case(random);
    }
    data.resize(DATA, 0);
    // With too little room the kernel mixes up arguments that come after one of these.
    let mixes_up = ["pB", "pI", "pi", "pks"]
        .iter()
        .any(|it| format.contains(it));
    let sizes: &[usize] = match mixes_up {
        true => &[4000],
        false => &[0, 1, 2, 10, 40, 256, 1400],
    };
    let size = random.one_of(sizes);
    // As Latin-1, in which the kernel sorts bytes into letters and punctuation.
    let mut format: Vec<u8> = format.chars().map(|letter| letter as u8).collect();
    format.push(0);
    Case {
        format,
        args,
        data,
        size,
    }
}

#[test]
fn formatted_text_is_the_kernels() {
    if is_missing() {
        return;
    }
    let mut environment = Environment::new();
    let mut random = Random(0x5eed);
    let mut taken = 0;
    for round in 0..3000 {
        let case = random_case(&mut random);
        let format = String::from_utf8_lossy(&case.format).into_owned();
        let (theirs, ours) = (kernel(&case), ours(&case, &mut environment));
        // The kernel detects a bad format at load; here a long string before that may not fit
        // first.
        if theirs.is_err() && matches!(ours, Ok((error, _)) if error == -libc::ENOSPC) {
            continue;
        }
        let shown = |result: &Result<(i32, Vec<u8>), Errno>| {
            let text = |(r, text): &(i32, Vec<u8>)| {
                let end = text.iter().rposition(|byte| *byte != UNTOUCHED);
                (
                    *r,
                    text[..end.map_or(0, |last| last + 1)]
                        .escape_ascii()
                        .to_string(),
                )
            };
            result.as_ref().map(text).map_err(|error| *error)
        };
        assert_eq!(
            shown(&ours),
            shown(&theirs),
            "round {round}: {format:?} {:?} size {}",
            case.args,
            case.size
        );
        taken += usize::from(theirs.is_ok());
    }
    assert!(taken > 1500, "most formats are good ones: {taken}");
}

/// Returns r0 and the number.
fn kernel_number(helper: u32, text: &[u8], flags: u64) -> (i32, u64) {
    let data = array(text, 0);
    let out = array(&[UNTOUCHED; 8], 0);
    let mut program = value_address(1, &data, 0).to_vec();
    program.push(move_imm(2, text.len() as i32));
    program.extend([
        insn(0x18, 3, 0, 0, flags as i32),
        insn(0, 0, 0, 0, (flags >> 32) as i32),
    ]);
    // The result has to lie on the stack.
    program.push(insn(0x7a, 10, 0, -8, -1));
    program.push(insn(0xbf, 4, 10, 0, 0));
    program.push(insn(0x07, 4, 0, 0, -8));
    program.push(insn(0x85, 0, 0, 0, helper as i32));
    program.extend(value_address(1, &out, 0));
    program.push(insn(0x79, 2, 10, -8, 0));
    program.push(insn(0x7b, 1, 2, 0, 0));
    program.push(insn(0x95, 0, 0, 0, 0));
    let mut log = vec![0; 1 << 16];
    let result = try_run(&program, &mut log).unwrap_or_else(|error| {
        panic!("{error:?}: {}", String::from_utf8_lossy(&log));
    });
    let mut number = [0; 8];
    out.lookup(&[0; 4], &mut number).unwrap();
    (result, u64::from_ne_bytes(number))
}

fn our_number(environment: &mut Environment, helper: u32, text: &[u8], flags: u64) -> (i32, u64) {
    let mut number = u64::MAX;
    let args = [
        text.as_ptr() as u64,
        text.len() as u64,
        flags,
        (&raw mut number) as u64,
        0,
    ];
    (environment.call(helper, args) as i32, number)
}

#[test]
fn numbers_are_read_as_by_the_kernel() {
    if is_missing() {
        return;
    }
    let mut environment = Environment::new();
    let mut random = Random(0xbee);
    let prefixes = ["", "", " ", "\t\n ", "-", " -", "- ", "+", "\u{a0}", "--"];
    let bases = ["", "", "0", "0x", "0X", "00", "0xg"];
    let ends = ["", " ", "z", "\0", "9", "8", "-", "\u{e9}"];
    for round in 0..1500 {
        let digits = match random.below(4) {
            0 => format!("{}", number(&mut random)),
            1 => format!("{:x}", number(&mut random)),
            2 => format!("{:o}", number(&mut random)),
            _ => "0".repeat(random.below(70)) + &number(&mut random).to_string(),
        };
        let (prefix, base, end) = (
            random.one_of(&prefixes),
            random.one_of(&bases),
            random.one_of(&ends),
        );
        // Latin-1, as the kernel reads bytes.
        let text = format!("{prefix}{base}{digits}{end}");
        let mut text: Vec<u8> = text.chars().map(|letter| letter as u8).collect();
        if random.below(20) == 0 {
            text.truncate(1);
        }
        let flags = random.one_of(&[0, 0, 8, 10, 16, 16, 7, 32, 1 << 40]);
        let helper = random.one_of(&[STRTOL, STRTOUL]);
        assert_eq!(
            our_number(&mut environment, helper, &text, flags),
            kernel_number(helper, &text, flags),
            "round {round}: {helper} {:?} {flags}",
            text.escape_ascii().to_string()
        );
    }
}
