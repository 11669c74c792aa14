//! The members of the kernel's structures that programs may write (`btf_struct_access` of each
//! `struct bpf_verifier_ops`).

use beeline_uapi::{Errno, ProgramType};

use super::{KernelTypes, Refused};
use crate::program::Kind;

/// Members of a connection that a congestion control sets.
const OF_TCP: [&str; 10] = [
    "inet_conn.icsk_inet.sk.sk_pacing_rate",
    "inet_conn.icsk_inet.sk.sk_pacing_status",
    "inet_conn.icsk_ca_priv",
    "inet_conn.icsk_ack.pending",
    "snd_cwnd",
    "snd_cwnd_cnt",
    "snd_cwnd_stamp",
    "snd_ssthresh",
    "ecn_flags",
    "app_limited",
];
/// Members of a task that a scheduler sets.
const OF_TASK: [&str; 3] = ["scx.slice", "scx.dsq_vtime", "scx.disallow"];
/// Members of a tracked connection that programs on packets set.
const OF_CONNECTION: [&str; 1] = ["mark"];

impl KernelTypes {
    /// Checks that a program of this kind may write `size` bytes at `off` of a structure of the
    /// kernel.
    ///
    /// # Errors
    /// `EACCES` if no writable member contains all of the bytes.
    pub fn may_write(
        &self,
        kind: &Kind,
        structure: u32,
        off: i32,
        size: u32,
    ) -> Result<(), Refused> {
        let name = self.name(structure);
        let members: &[&str] = match (kind.prog_type, self.operations(kind), name) {
            (ProgramType::STRUCT_OPS, "bpf_dummy_ops", "bpf_dummy_ops_state") => {
                // Any part of it.
                return match self.size(structure) {
                    Some(bytes) if i64::from(off) + i64::from(size) <= bytes.into() => Ok(()),
                    _ => refuse(format!("write access at off {off} with size {size}")),
                };
            }
            (ProgramType::STRUCT_OPS, "bpf_dummy_ops", _) => {
                return refuse("only access to bpf_dummy_ops_state is supported".to_owned());
            }
            (ProgramType::STRUCT_OPS, "tcp_congestion_ops", "tcp_sock") => &OF_TCP,
            (ProgramType::STRUCT_OPS, "sched_ext_ops", "task_struct") => &OF_TASK,
            (ProgramType::STRUCT_OPS, "sched_ext_ops", _) => return refuse(String::new()),
            (ProgramType::SCHED_CLS | ProgramType::XDP, _, "nf_conn" | "nf_conn___init") => {
                &OF_CONNECTION
            }
            _ => return refuse("only read is supported".to_owned()),
        };
        // A connection that is not yet inserted is the same structure under another name.
        let described = match name {
            "nf_conn___init" => self.structure("nf_conn").unwrap_or(structure),
            _ => structure,
        };
        let field = |path: &&str| self.types.view().field(described, path);
        let inside = |field: &beeline_btf::Field| {
            let end = field.offset.saturating_add(field.size);
            // Only the private area may be entered anywhere.
            let first = field.offset as i32;
            off == first || field.size > 8 && off > first && off < end as i32
        };
        let Some(field) = members.iter().filter_map(field).find(inside) else {
            return refuse(match name {
                "task_struct" => String::new(),
                _ => format!("no write support to {name} at off {off}"),
            });
        };
        let end = field.offset.saturating_add(field.size);
        if off.cast_unsigned().saturating_add(size) > end {
            return refuse(match name {
                "task_struct" => String::new(),
                _ => format!(
                    "write access at off {off} with size {size} beyond the member of {name} ended at {end}"
                ),
            });
        }
        Ok(())
    }

    /// Returns the structure with the operation that a program implements.
    fn operations(&self, kind: &Kind) -> &str {
        match kind.prog_type {
            ProgramType::STRUCT_OPS => self.name(kind.attach_btf_id),
            _ => "",
        }
    }
}

fn refuse(line: String) -> Result<(), Refused> {
    Err((Errno::EACCES, line))
}
