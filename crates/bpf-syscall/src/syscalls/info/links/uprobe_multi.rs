//! The part on a link of many uprobes (`bpf_uprobe_multi_link_fill_link_info`).

use std::path::Path;

use beeline_runtime::backend::ProbeSpec;
use beeline_uapi::info::LinkInfoUprobeMulti;
use beeline_uapi::{Errno, flags};

use super::Buffers;

/// The places of a link.
pub(super) struct Uprobes<'a> {
    pub path: &'a Path,
    pub retprobe: bool,
    pub pid: Option<i32>,
    pub probes: &'a [ProbeSpec],
}

impl Uprobes<'_> {
    /// Fills the structure and the buffers that it points to.
    pub(super) fn describe(
        &self,
        buffers: Buffers<'_>,
        info: &mut LinkInfoUprobeMulti,
    ) -> Result<(), Errno> {
        let (room, path_room) = (info.count as usize, info.path_size);
        let arrays = [info.offsets, info.ref_ctr_offsets, info.cookies];
        let is_asked = arrays.iter().any(|array| *array != 0);
        if (info.path != 0) != (path_room != 0) || (is_asked && room == 0) {
            return Err(Errno::EINVAL);
        }
        info.count = self.probes.len() as u32;
        info.flags = if self.retprobe {
            flags::UPROBE_MULTI_RETURN
        } else {
            0
        };
        info.pid = self.pid.unwrap_or(0) as u32;
        info.path_size = self.fill_path(buffers, (info.path, path_room))?;
        let of_probe: [fn(&ProbeSpec) -> u64; 3] = [
            |probe| probe.offset,
            |probe| probe.semaphore,
            |probe| probe.cookie,
        ];
        for (array, value) in arrays.into_iter().zip(of_probe) {
            let given = self.probes.iter().take(room);
            let bytes: Vec<u8> = given.flat_map(|one| value(one).to_ne_bytes()).collect();
            if array != 0 {
                buffers.write_bytes(array, &bytes)?;
            }
        }
        match is_asked && room < self.probes.len() {
            true => Err(Errno::ENOSPC),
            false => Ok(()),
        }
    }

    /// Writes the file's path, and returns its length with the NUL.
    fn fill_path(&self, buffers: Buffers<'_>, (address, room): (u64, u32)) -> Result<u32, Errno> {
        let path = std::fs::canonicalize(self.path);
        let path = path.as_deref().unwrap_or(self.path);
        let mut text = path.as_os_str().as_encoded_bytes().to_vec();
        text.push(0);
        let longest = libc::PATH_MAX as usize;
        let room = match room {
            0 => longest,
            room => (room as usize).min(longest),
        };
        if text.len() > room {
            return Err(Errno(libc::ENAMETOOLONG));
        }
        if address != 0 {
            buffers.write_bytes(address, &text)?;
        }
        Ok(text.len() as u32)
    }
}
