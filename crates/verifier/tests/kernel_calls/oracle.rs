//! The kernel's verdict beside Beeline's.

use std::fmt::Write as _;

use beeline_fuzz::kernel::{self, Trial};
use beeline_isa::{
    Insn,
    opcode::{CALL, JMP, PSEUDO_KFUNC_CALL},
};
use beeline_uapi::flags::SLEEPABLE;
use beeline_uapi::{AttachType, ProgramType};
use beeline_verifier::program::{Kind, Program};
use beeline_verifier::types::KernelTypes;
use beeline_verifier::verdict::LogLevel;
use beeline_verifier::verify;

use crate::asm::{END, R0_IS_0, insn};

/// The kernel as an oracle, with its types.
pub struct Oracle {
    pub types: KernelTypes,
    compared: usize,
    accepted: usize,
    differences: String,
}

impl Oracle {
    /// `None` where the kernel loads nothing for us.
    pub fn new() -> Option<Self> {
        let btf = std::fs::read("/sys/kernel/btf/vmlinux").ok()?;
        kernel::is_usable().then(|| Self {
            types: KernelTypes::new(btf).expect("good BTF"),
            compared: 0,
            accepted: 0,
            differences: String::new(),
        })
    }

    pub fn call(&self, name: &str) -> Insn {
        let id = self.types.function(name).expect(name);
        insn(JMP | CALL, 0, PSEUDO_KFUNC_CALL, 0, id as i32)
    }

    /// A program on a tracepoint.
    pub fn tracepoint(&self, name: &str) -> Kind {
        let name = format!("btf_trace_{name}");
        Kind {
            prog_type: ProgramType::TRACING,
            attach_type: AttachType::TRACE_RAW_TP,
            attach_btf_id: self.types.typedef(&name).expect("a tracepoint"),
            ..Kind::default()
        }
    }

    pub fn iterator(&self, name: &str, flags: u32) -> Kind {
        let name = format!("bpf_iter_{name}");
        Kind {
            prog_type: ProgramType::TRACING,
            attach_type: AttachType::TRACE_ITER,
            flags,
            attach_btf_id: self.types.function(&name).expect("an iterator"),
            ..Kind::default()
        }
    }

    /// Returns whether the kernel loads programs of this kind for us.
    pub fn takes(&self, kind: Kind) -> bool {
        let insns = [R0_IS_0, END];
        let trial = Trial {
            prog_type: kind.prog_type,
            attach_type: kind.attach_type,
            flags: kind.flags,
            attach_btf_id: kind.attach_btf_id,
            insns: &insns,
            ..Trial::default()
        };
        kernel::verdict(&trial, 0).0 == 0
    }

    /// Compares the verdicts on a program that ends with `r0 = 0`.
    pub fn try_one(&mut self, what: &str, kind: Kind, parts: &[&[Insn]]) {
        let insns = [&parts.concat()[..], &[R0_IS_0, END]].concat();
        self.try_whole(what, kind, &insns);
    }

    pub fn try_whole(&mut self, what: &str, kind: Kind, insns: &[Insn]) {
        let trial = Trial {
            prog_type: kind.prog_type,
            attach_type: kind.attach_type,
            flags: kind.flags,
            attach_btf_id: kind.attach_btf_id,
            insns,
            ..Trial::default()
        };
        let (errno, log) = kernel::verdict(&trial, 1);
        let program = Program {
            kind,
            gpl: true,
            insns,
            maps: &[],
            types: None,
            kernel: Some(&self.types),
            ..Default::default()
        };
        let ours = verify(&program, LogLevel(LogLevel::PATH));
        self.compared += 1;
        self.accepted += usize::from(errno == 0);
        let same = match &ours.result {
            Ok(_) => errno == 0,
            Err(refusal) => {
                let is_same =
                    refusal.errno.0 == errno && last_line(&refusal.reason) == last_words(&log);
                is_same || errno != 0 && last_words(&log).starts_with(NULL_REFUSED)
            }
        };
        if same {
            return;
        }
        let ours = match &ours.result {
            Ok(_) => "accepted".to_owned(),
            Err(refusal) => format!("errno {}: {}", refusal.errno.0, refusal.reason),
        };
        let _ = writeln!(
            self.differences,
            "{what}: the kernel errno {errno}: {}; here {ours}\n{}",
            last_words(&log),
            beeline_isa::Listing(insns),
        );
    }

    pub fn check(&self) {
        println!("{} compared, {} accepted", self.compared, self.accepted);
        assert!(self.differences.is_empty(), "{}", self.differences);
    }
}

/// Later kernels of 6.18 ask all their functions' arguments to be trusted, and so refuse a null
/// pointer before they look at anything else.
const NULL_REFUSED: &str = "Possibly NULL pointer passed to trusted arg";

fn last_line(text: &str) -> &str {
    text.lines().next_back().unwrap_or_default()
}

/// Returns the last line of a log that is neither statistics nor states.
fn last_words(log: &str) -> &str {
    const OTHER: [&str; 4] = [
        "processed ",
        "verification time",
        "cur state: ",
        "old state: ",
    ];
    let is_other = |line: &&str| OTHER.iter().any(|start| line.starts_with(start));
    log.lines()
        .rfind(|line| !is_other(line))
        .unwrap_or_default()
}

pub fn plain(prog_type: ProgramType) -> Kind {
    Kind {
        prog_type,
        flags: if prog_type == ProgramType::SYSCALL {
            SLEEPABLE
        } else {
            0
        },
        ..Kind::default()
    }
}
