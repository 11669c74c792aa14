//! Iterators: links to a function that the kernel calls for each of some things, and
//! `BPF_ITER_CREATE`, which makes a file of what the program writes for all of them.

use std::os::fd::{AsRawFd, OwnedFd};

use beeline_kernel::link;
use beeline_supervisor::attr::BpfAttr;
use beeline_supervisor::{Answer, Call, Reply};
use beeline_uapi::Errno;
use beeline_uapi::attr::{IterCreate, LinkCreateIter};
use beeline_uapi::fields::u32_at;

use super::Links;
use crate::host_kernel;
use crate::kernel_places::Place;
use crate::objects::{LinkTo, Object, ProgramObject};
use crate::refused::by_kernel_only;

/// `union bpf_iter_link_info`, with descriptors of Beeline's.
#[derive(Default)]
pub(super) struct IteratorInfo {
    /// Empty for all things.
    pub(super) bytes: Vec<u8>,
    /// The file that it names.
    _file: Option<OwnedFd>,
}

/// The bytes of `union bpf_iter_link_info`.
const INFO: usize = 16;
/// The offset of the union's `cgroup.cgroup_fd`.
const CGROUP_FD: usize = 4;
/// The offset of the union's `task.pid_fd`.
const PID_FD: usize = 8;

impl Links<'_> {
    /// Returns the things that an iterator is to go through.
    ///
    /// # Errors
    ///
    /// `E2BIG` for unknown fields, `EBUSY` for a map that cannot be in the kernel, and those of
    /// [`Call::tool_file`].
    pub(super) fn iterator_info(
        &self,
        call: &Call<'_>,
        attr: &BpfAttr,
        program: &ProgramObject,
    ) -> Result<IteratorInfo, Errno> {
        let wanted: LinkCreateIter = attr.view();
        let len = wanted.iter_info_len as usize;
        if (wanted.iter_info == 0) != (len == 0) {
            return Err(Errno::EINVAL);
        }
        if len > beeline_supervisor::attr::ATTR_LIMIT {
            return Err(Errno::E2BIG);
        }
        let mut bytes = self.memory.bytes(wanted.iter_info, len)?;
        if bytes.iter().skip(INFO).any(|&byte| byte != 0) {
            return Err(Errno::E2BIG);
        }
        // A field that is there in part is there: its descriptor must not be taken for one of Beeline's.
        if !bytes.is_empty() {
            bytes.resize(INFO, 0);
        }
        let name = self.attach_name(program).unwrap_or_default();
        let at = match name.strip_prefix("bpf_iter_") {
            Some("cgroup") => CGROUP_FD,
            Some("task" | "task_file" | "task_vma") => PID_FD,
            Some("bpf_map_elem" | "bpf_sk_storage_map" | "sockmap") => {
                return self.over_map(bytes);
            }
            // The kernel refuses any info for the others.
            _ if bytes.iter().any(|&byte| byte != 0) => return Err(Errno::EINVAL),
            _ => return Ok(IteratorInfo::default()),
        };
        let fd = u32_at(&bytes, at).cast_signed();
        if fd == 0 {
            return Ok(IteratorInfo { bytes, _file: None });
        }
        let file = call.tool_file(fd)?;
        bytes[at..][..size_of::<u32>()].copy_from_slice(&file.as_raw_fd().to_ne_bytes());
        Ok(IteratorInfo {
            bytes,
            _file: Some(file),
        })
    }

    /// Returns the map whose elements an iterator is to go through. Without one it is 0, which the
    /// kernel refuses.
    fn over_map(&self, mut bytes: Vec<u8>) -> Result<IteratorInfo, Errno> {
        let fd = bytes.get(..size_of::<u32>()).map(|fd| u32_at(fd, 0));
        let Some(fd @ 1..) = fd else {
            return Ok(IteratorInfo { bytes, _file: None });
        };
        let map = self.fds.map(fd.cast_signed())?;
        let file = self.backend.map_in_kernel(map.held.id)?;
        bytes[..size_of::<u32>()].copy_from_slice(&file.as_raw_fd().to_ne_bytes());
        Ok(IteratorInfo {
            bytes,
            _file: Some(file),
        })
    }

    /// Carries out `BPF_ITER_CREATE`.
    pub(in crate::syscalls) fn iterate(&self, attr: &BpfAttr) -> Answer {
        let wanted: IterCreate = attr.ends_at(size_of::<IterCreate>())?.view();
        if wanted.flags != 0 {
            return Err(Errno::EINVAL);
        }
        if let Err(why) = Place::Iterator.check(self.fds.tid) {
            self.backend
                .unsupported(&by_kernel_only("an iterator", why));
            return Err(Errno::EINVAL);
        }
        let Some(Object::Link(link)) = self.fds.find(wanted.link_fd)? else {
            return Err(Errno::EINVAL);
        };
        let LinkTo::Kernel(kernels) = &link.to else {
            return Err(Errno::EINVAL);
        };
        let tid = self.fds.tid;
        let file = kernels.with(|link| host_kernel::in_network_of(tid, || link::iterate(link)))?;
        Ok(Reply::Descriptor {
            file,
            cloexec: true,
        })
    }
}
