//! Data that a tool reads from a descriptor: the output of iterators, the values of perf events,
//! and the kernel's facts about an object's descriptor.

use std::os::fd::AsRawFd;

use beeline_vm_protocol::info::Kind;
use beeline_vm_protocol::messages::{Content, Described, Read};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::fs_roots::Root;
use crate::handles::Handles;
use crate::refusal::Refusal;

/// Bytes of one answer.
pub const MOST: usize = 256 << 10;
/// Lines of fdinfo about the descriptor, not about its object.
const OF_DESCRIPTOR: [&str; 4] = ["pos:", "flags:", "mnt_id:", "ino:"];

/// Returns the next bytes of an iterator, or the values of an event.
///
/// # Errors
///
/// `EBADF` for an unknown handle, `EINVAL` for an object that is neither, and the kernel's errors.
pub fn read(request: &Read, handles: &Handles) -> Result<Content, Refusal> {
    let object = handles.get(request.handle)?;
    if object.kind != Kind::Event {
        return match request.room {
            0 => read_iterator(request.handle, handles),
            // Only for events: other reads may take long, and would be waited for.
            _ => Err(Errno::INVAL.into()),
        };
    }
    // The room is only a limit: the kernel reports if it is too little, and has no more than that.
    let mut data = Vec::with_capacity((request.room as usize).min(MOST));
    let room = rustix::buffer::spare_capacity(&mut data);
    rustix::io::read(&object.fd, room)?;
    Ok(Content { data, end: true })
}

fn read_iterator(handle: u32, handles: &Handles) -> Result<Content, Refusal> {
    let iterator = handles.of_kind(handle, Kind::Other)?;
    let mut data = Vec::with_capacity(MOST);
    loop {
        let room = rustix::buffer::spare_capacity(&mut data);
        match rustix::io::read(&iterator.fd, room) {
            Ok(0) => return Ok(Content { data, end: true }),
            Ok(_) if data.len() == MOST => return Ok(Content { data, end: false }),
            Ok(_) => {}
            // It has passed very many objects without output by its program, or there is no room
            // for the next.
            Err(Errno::AGAIN) => return Ok(Content { data, end: false }),
            Err(_) if !data.is_empty() => return Ok(Content { data, end: false }),
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Returns the lines on an object.
///
/// # Errors
///
/// `EBADF` for an unknown handle, and the kernel's errors.
pub fn describe(handle: u32, handles: &Handles) -> Result<Described, Refusal> {
    let object = handles.get(handle)?;
    let name = object.fd.as_raw_fd().to_string();
    let file = Root::Proc.open_behind("self/fdinfo", &name, OFlags::RDONLY)?;
    let text = std::io::read_to_string(std::fs::File::from(file))?;
    let lines = text.lines();
    let lines = lines.filter(|line| !OF_DESCRIPTOR.iter().any(|name| line.starts_with(name)));
    let text = lines.map(|line| format!("{line}\n")).collect();
    Ok(Described { text })
}
