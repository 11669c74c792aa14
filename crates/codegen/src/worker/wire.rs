//! The format on the pipes: frames of four bytes of length, little-endian, and a value as postcard
//! writes it.

use std::io::{self, ErrorKind, Read, Write};

use beeline_isa::Insn;
use serde::{Deserialize, Serialize};

use crate::code::Code;
use crate::digest::Digest;
use crate::engine::{Bytecode, Compiler, Machine, MapShape};

/// The bytes of a frame's length.
pub(super) const HEADER: usize = 4;
/// The bytes of the longest frame: more than the longest program and its code take.
pub(super) const MAX_FRAME: usize = 64 << 20;

#[derive(Debug, Serialize, Deserialize)]
struct Request {
    /// The [`Digest::of_abi`] of the process that asks.
    abi: Digest,
    /// The instructions, of [`beeline_isa::INSN_BYTES`] each.
    insns: Vec<u8>,
    maps: Vec<MapShape>,
    in_agent: bool,
    machine: Machine,
}

#[derive(Debug, Serialize, Deserialize)]
struct Answer {
    /// The digest of the contents of the request's frame. An answer that was meant for another
    /// request would be another program's code.
    to: Digest,
    outcome: Outcome,
}

/// Code, or the reason why there is none.
pub(super) type Outcome = Result<Code, String>;

/// Returns a frame's length; `None` if it is too long.
pub(super) fn frame_length(header: [u8; HEADER]) -> Option<usize> {
    let length = usize::try_from(u32::from_le_bytes(header)).ok()?;
    (length <= MAX_FRAME).then_some(length)
}

/// Returns the contents of a request's frame.
pub(super) fn request(program: &Bytecode<'_>, machine: Machine) -> Vec<u8> {
    encode(&Request {
        abi: Digest::of_abi(),
        insns: program
            .insns
            .iter()
            .flat_map(|insn| insn.encode())
            .collect(),
        maps: program.maps.to_vec(),
        in_agent: program.in_agent,
        machine,
    })
}

/// Reads the contents of an answer's frame; returns `None` if they are no answer to this request.
pub(super) fn answer(bytes: &[u8], request: &[u8]) -> Option<Outcome> {
    match postcard::take_from_bytes::<Answer>(bytes) {
        Ok((answer, [])) => (answer.to == Digest::of_bytes(request)).then_some(answer.outcome),
        _ => None,
    }
}

fn encode(value: &impl Serialize) -> Vec<u8> {
    // A vector has room for everything, and values written here have lengths, so this cannot fail.
    postcard::to_stdvec(value).unwrap_or_default()
}

/// Answers requests with a compiler until there are no more.
///
/// # Errors
/// Those of the pipes, and `InvalidData` for input that is not a frame.
pub fn serve(
    compiler: &dyn Compiler,
    mut input: impl Read,
    mut output: impl Write,
) -> io::Result<()> {
    let mut header = [0; HEADER];
    loop {
        match input.read_exact(&mut header) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
            result => result?,
        }
        let length = frame_length(header).ok_or(ErrorKind::InvalidData)?;
        let mut bytes = Vec::new();
        input.by_ref().take(length as u64).read_to_end(&mut bytes)?;
        let answer = encode(&Answer {
            to: Digest::of_bytes(&bytes),
            outcome: compile(compiler, &bytes),
        });
        let length = u32::try_from(answer.len()).map_err(|_| ErrorKind::InvalidData)?;
        output.write_all(&length.to_le_bytes())?;
        output.write_all(&answer)?;
        output.flush()?;
    }
}

fn compile(compiler: &dyn Compiler, request: &[u8]) -> Outcome {
    const OTHER_VERSION: &str =
        "beeline and the compiler beside it are of different versions; install both from one build";
    let request: Request = postcard::from_bytes(request).map_err(|_| OTHER_VERSION.to_owned())?;
    if request.abi != Digest::of_abi() {
        return Err(OTHER_VERSION.to_owned());
    }
    let insns: Vec<_> = Insn::decode_all(&request.insns)
        .map_err(|error| error.to_string())?
        .collect();
    let program = Bytecode {
        insns: &insns,
        maps: &request.maps,
        in_agent: request.in_agent,
    };
    compiler
        .compile(&program, request.machine)
        .map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::baseline::Baseline;

    const EXIT: u64 = 0x95;

    /// Returns the request for a program that returns a number, and its answer.
    fn exchange(number: i32) -> (Vec<u8>, Vec<u8>) {
        let mov = 0xb7 | (number as u64) << 32;
        let bytes = [mov, EXIT].map(u64::to_le_bytes).concat();
        let insns: Vec<_> = Insn::decode_all(&bytes).expect("whole").collect();
        let request = request(&Bytecode::new(&insns), Machine::X86_64);
        (request.clone(), served(&request))
    }

    fn served(request: &[u8]) -> Vec<u8> {
        let frame = [&(request.len() as u32).to_le_bytes()[..], request].concat();
        let mut output = Vec::new();
        serve(&Baseline, &frame[..], &mut output).expect("served");
        output.split_off(HEADER)
    }

    #[test]
    fn an_answer_counts_for_its_request_only() {
        let (seven, eight) = (exchange(7), exchange(8));
        assert!(matches!(answer(&seven.1, &seven.0), Some(Ok(_))));
        assert_eq!(answer(&seven.1, &eight.0), None);
        assert_eq!(answer(&[&seven.1[..], &[0]].concat(), &seven.0), None);
        assert_eq!(answer(&[], &seven.0), None);
    }

    #[test]
    fn a_worker_of_another_abi_is_refused() {
        let (mut request, _) = exchange(7);
        request[0] ^= 1; // A byte of the digest, which comes first.
        let Some(Err(why)) = answer(&served(&request), &request) else {
            panic!("compiled for another ABI");
        };
        assert!(why.contains("different versions"), "{why}");
    }
}
