//! The kernel's vDSO: the same ELF file in every process, at an address of its own.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use beeline_inject::Region;
use object::{Object, ObjectSection, ObjectSymbol};

use crate::error::{Error, os};

const NAME: &str = "__vdso_clock_gettime";

/// Its name in `/proc/PID/maps`.
const MAPPED_AS: &str = "[vdso]";

/// True if it is the mapping of the vDSO.
pub fn is_at(region: &Region) -> bool {
    region.path.as_os_str() == MAPPED_AS
}

/// Returns this process's vDSO: all that is mapped, which starts with the ELF file.
pub fn own() -> Option<Vec<u8>> {
    let regions = beeline_inject::regions_of(std::process::id() as i32).ok()?;
    let region = regions.iter().find(|region| is_at(region))?;
    let mut bytes = vec![0; (region.end - region.start) as usize];
    let memory = File::open("/proc/self/mem").ok()?;
    memory.read_exact_at(&mut bytes, region.start).ok()?;
    Some(bytes)
}

/// Returns where the target can call `clock_gettime` without a system call, or `None` if it has no
/// vDSO. `memory` is the target's.
///
/// # Errors
///
/// [`Error::Os`] if the vDSO cannot be read.
pub fn clock_gettime(memory: &File, regions: &[Region]) -> Result<Option<u64>, Error> {
    let Some(vdso) = regions.iter().find(|region| is_at(region)) else {
        return Ok(None);
    };
    let mut bytes = vec![0; (vdso.end - vdso.start) as usize];
    let read = memory.read_exact_at(&mut bytes, vdso.start);
    read.map_err(os("reading a target's vDSO"))?;
    Ok(offset(&bytes).map(|offset| vdso.start + offset))
}

/// Returns the range of its code. What lies behind that in the same mapping are tables for the
/// kernel.
pub fn code(elf: &[u8]) -> Option<Range<u64>> {
    let elf = object::File::parse(elf).ok()?;
    let text = elf.section_by_name(".text")?;
    Some(text.address()..text.address().checked_add(text.size())?)
}

/// Returns the function's offset from the start of the vDSO, which is linked at address 0.
fn offset(elf: &[u8]) -> Option<u64> {
    let elf = object::File::parse(elf).ok()?;
    elf.dynamic_symbols()
        .find(|symbol| symbol.name() == Ok(NAME))
        .map(|symbol| symbol.address())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory};

    /// The agent saves no vector register, so nothing that it calls may touch one. (Other functions
    /// of the vDSO do: getrandom's cipher.)
    #[test]
    fn the_clock_uses_general_registers_only() {
        let bytes = own().expect("a vDSO");
        let reached = reachable(&bytes, offset(&bytes).expect("the vDSO has a clock"));
        assert!(reached.len() > 10, "{reached:?}");
        let mut info = InstructionInfoFactory::new();
        for instruction in reached {
            for used in info.info(&instruction).used_registers() {
                assert!(
                    !used.register().is_vector_register(),
                    "{instruction} uses {:?}",
                    used.register()
                );
            }
        }
    }

    /// Returns the instructions that a function may reach, through branches and calls too. The vDSO
    /// is linked at 0, so an offset in it is an address.
    fn reachable(code: &[u8], entry: u64) -> Vec<Instruction> {
        let (mut seen, mut found, mut starts) = (BTreeSet::new(), Vec::new(), vec![entry]);
        while let Some(start) = starts.pop() {
            let mut decoder =
                Decoder::with_ip(64, &code[start as usize..], start, DecoderOptions::NONE);
            while decoder.can_decode() {
                let instruction = decoder.decode();
                if !seen.insert(instruction.ip()) {
                    break;
                }
                found.push(instruction);
                let flow = instruction.flow_control();
                assert!(
                    !matches!(
                        flow,
                        FlowControl::IndirectBranch | FlowControl::IndirectCall
                    ),
                    "{instruction}: where to?"
                );
                if instruction.near_branch_target() != 0 {
                    starts.push(instruction.near_branch_target());
                }
                let goes_on = [
                    FlowControl::Next,
                    FlowControl::ConditionalBranch,
                    FlowControl::Call,
                ];
                if !goes_on.contains(&flow) {
                    break;
                }
            }
        }
        found
    }
}
