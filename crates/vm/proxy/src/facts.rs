//! Facts about the guest's kernel that hosts need.

use std::io;

use beeline_vm_protocol::VERSION;
use beeline_vm_protocol::messages::Welcome;

use crate::fs_roots::Root;

/// Facts that do not change until the next boot.
#[derive(Debug, Clone)]
pub struct Facts {
    /// The number of CPUs that per-CPU values are given for.
    pub possible_cpus: u32,
    boot_id: String,
}

impl Facts {
    /// Asks the kernel.
    ///
    /// # Errors
    ///
    /// The number of possible CPUs is not available.
    pub fn new() -> io::Result<Self> {
        let possible = Root::Sys.read("devices/system/cpu/possible")?;
        let possible_cpus = cpus(possible.trim()).ok_or_else(|| {
            let why = format!("the kernel's list of possible CPUs, {possible:?}, makes no sense");
            io::Error::new(io::ErrorKind::InvalidData, why)
        })?;
        let boot_id = Root::Proc.read("sys/kernel/random/boot_id");
        Ok(Self {
            possible_cpus,
            boot_id: boot_id.unwrap_or_default().trim().to_owned(),
        })
    }

    /// Returns the answer to a host's first message.
    pub fn welcome(&self, policy: String, token: &[u8]) -> Welcome {
        let names = rustix::system::uname();
        let text = |name: &std::ffi::CStr| name.to_string_lossy().into_owned();
        Welcome {
            version: VERSION,
            sysname: text(names.sysname()),
            nodename: text(names.nodename()),
            release: text(names.release()),
            kernel_version: text(names.version()),
            machine: text(names.machine()),
            possible_cpus: self.possible_cpus,
            boot_id: self.boot_id.clone(),
            page_size: rustix::param::page_size() as u32,
            policy,
            token: token.to_vec(),
        }
    }
}

/// Returns one more than the last of a list such as `0-3,8-11`: per-CPU values have room for those
/// in between as well.
fn cpus(list: &str) -> Option<u32> {
    let mut ends = list
        .split([',', '-'])
        .map(|number| number.parse::<u32>().ok());
    ends.try_fold(0, |most, end| Some(most.max(end?)))?
        .checked_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_are_read() {
        assert_eq!(cpus("0"), Some(1));
        assert_eq!(cpus("0-3"), Some(4));
        assert_eq!(cpus("0-1,4-5"), Some(6));
        assert_eq!(cpus(""), None);
        assert_eq!(cpus("0-x"), None);
    }
}
