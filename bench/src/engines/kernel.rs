//! The kernel's compiler, by `BPF_PROG_TEST_RUN`.

use anyhow::{Context, anyhow};
use beeline_fuzz::kernel as bpf;
use beeline_isa::{Insn, opcode};
use beeline_uapi::ProgramType;
use object::{Object, ObjectSection};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::time::Duration;

use super::contest::{Contestant, Outcome, Prepared};
use super::programs::Program;
use super::workshop::Workshop;

/// The running kernel.
///
/// Its programs have bounds and ends of loops that its verifier can see, so they are not quite the
/// same; and a test run costs some 20 ns besides.
pub struct Kernel;

impl Contestant for Kernel {
    fn name(&self) -> &'static str {
        "kernel"
    }

    fn prepare(&self, program: &Program, workshop: &Workshop) -> anyhow::Result<Box<dyn Prepared>> {
        let options = ["-target", "bpf", "-mcpu=v3", "-c", "-DFOR_KERNEL"];
        let file = std::fs::read(workshop.compile(program, "kernel", &options)?)?;
        let object = object::File::parse(&*file)?;
        let global = object
            .section_by_name(".bss")
            .context("the object has no global variable")?;
        let mut value = program.memory();
        value.resize(global.size() as usize, 0);
        let memory = bpf::array(value.len() as u32, 1)?;
        bpf::set_bytes(&memory, 0, &value)?;

        let section = object
            .section_by_name("socket")
            .context("the object has no program")?;
        let mut insns: Vec<Insn> = Insn::decode_all(section.data()?)?.collect();
        for (at, _) in section.relocations() {
            refer(&mut insns, at as usize / beeline_isa::INSN_BYTES, &memory)?;
        }
        let loaded = bpf::load(ProgramType::SOCKET_FILTER, &insns)
            .map_err(|refusal| anyhow!("errno {}: {}", refusal.errno, refusal.log))?;
        Ok(Box::new(Loaded(loaded)))
    }
}

/// Makes a 64-bit immediate load an address in the map's value; the offset is in its low half.
fn refer(insns: &mut [Insn], at: usize, memory: &File) -> anyhow::Result<()> {
    let [first, second] = insns
        .get_mut(at..at + 2)
        .and_then(|slots| slots.as_mut_array())
        .context("a relocation lies outside of the program")?;
    second.imm = first.imm;
    (first.src, first.imm) = (opcode::PSEUDO_MAP_VALUE, memory.as_raw_fd());
    Ok(())
}

struct Loaded(File);

impl Prepared for Loaded {
    fn run(&mut self, times: u32) -> anyhow::Result<Outcome> {
        let (result, each_ns) = bpf::timed_run(&self.0, times)?;
        Ok(Outcome {
            result: u64::from(result),
            took: Duration::from_nanos(u64::from(each_ns) * u64::from(times)),
        })
    }
}
