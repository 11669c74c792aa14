//! The kernel's vDSO: the same ELF file in every process, at an address of its own.

use beeline_inject::Process;
use object::{Object, ObjectSymbol};

use crate::error::Error;

const NAME: &str = "__vdso_clock_gettime";

/// Where the target can call `clock_gettime` without a system call; `None` if it has no vDSO.
pub fn clock_gettime(process: &Process) -> Result<Option<u64>, Error> {
    let regions = process.regions()?;
    let Some(vdso) = regions
        .iter()
        .find(|region| region.path.as_os_str() == "[vdso]")
    else {
        return Ok(None);
    };
    let mut bytes = vec![0; (vdso.end - vdso.start) as usize];
    process.read_memory(vdso.start, &mut bytes)?;
    Ok(offset(&bytes).map(|offset| vdso.start + offset))
}

/// The function's offset from the start of the vDSO, which is linked at address 0.
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

    /// The image saves no vector register, so nothing that it calls may touch one. (Others of the vDSO's functions
    /// do: getrandom's cipher.)
    #[test]
    fn the_clock_uses_general_registers_only() {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let line = maps
            .lines()
            .find(|line| line.ends_with("[vdso]"))
            .expect("a vDSO");
        let (start, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        let start = u64::from_str_radix(start, 16).unwrap();
        let len = (u64::from_str_radix(end, 16).unwrap() - start) as usize;
        // SAFETY: the vDSO is mapped readable for the life of the process.
        let bytes = unsafe { std::slice::from_raw_parts(start as *const u8, len) };
        let reached = reachable(bytes, offset(bytes).expect("the vDSO has a clock"));
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

    /// The instructions that a function may come to, by branches and calls too. The vDSO is linked at 0, so that an
    /// offset in it is an address.
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
