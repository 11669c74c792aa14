//! The baseline compiler's code for aarch64, under qemu-user.

use beeline_aarch64::{Array, Image, Job, Runner};
use beeline_codegen::{Baseline, Bytecode, Compiler, Machine};
use beeline_fuzz::world::{CONSTANTS, MAPS, contents};
use beeline_isa::{Insn, opcode::*};

use crate::world::{CONTEXT, Element, Left, used};

/// The helpers that the runner implements as the kernel does: map look-up, `for_each_map_elem` and
/// `loop`.
const HELPERS: [i32; 3] = [1, 164, 181];

/// The process that runs programs.
pub struct Emulated(Runner);

impl Emulated {
    /// Starts a runner, or says what this machine lacks.
    pub fn start() -> Result<Self, String> {
        Runner::start().map(Self)
    }

    /// Returns whether a program uses only arrays and the available helpers.
    pub fn can_run(insns: &[Insn]) -> bool {
        let is_helper = |insn: &&Insn| insn.code == JMP | CALL && insn.src == HELPER_CALL;
        let mut helpers = insns.iter().filter(is_helper);
        helpers.all(|call| HELPERS.contains(&call.imm))
            && used(insns).iter().all(|&map| map <= CONSTANTS)
    }

    /// Runs a program once on fresh maps; returns r0 and the state that the run left.
    pub fn run(&mut self, insns: &[Insn]) -> Result<(u64, Left), String> {
        let code = Baseline.compile(&Bytecode::new(insns), Machine::Aarch64);
        let code = code.map_err(|error| format!("refuses the program: {error}"))?;
        let maps: Vec<Array> = (0..=CONSTANTS).map(array).collect();
        let image = Image {
            code: &code.bytes,
            maps: &maps,
        };
        let job = Job {
            programs: &[image],
            context: &CONTEXT,
            second: None,
        };
        let outcome = self.0.run(&job).map_err(|error| error.to_string())?;
        let result = outcome.result;
        let result = result.map_err(|signal| format!("a crash, signal {signal}"))?;
        let maps = used(insns)
            .into_iter()
            .map(|map| (map, elements(map, &outcome.maps[0][map])));
        let left = Left {
            maps: maps.collect(),
            context: outcome
                .context
                .try_into()
                .map_err(|_| "a context of another size")?,
        };
        Ok((result, left))
    }
}

/// An array as programs find it.
fn array(map: usize) -> Array {
    Array {
        value_bytes: MAPS[map].value as usize,
        values: contents(map)
            .into_iter()
            .flat_map(|(_, value)| value)
            .collect(),
    }
}

fn elements(map: usize, values: &[u8]) -> Vec<Element> {
    let keys = contents(map).into_iter().map(|(key, _)| key);
    let values = values.chunks_exact(MAPS[map].value as usize);
    keys.zip(values.map(<[u8]>::to_vec)).collect()
}
