//! Programs and links beside which others are attached, as the tool names them: by a descriptor, or
//! by one of the session's ids, of which the kernel knows nothing.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use beeline_runtime::backend::Backend;
use beeline_supervisor::keys::errno;
use beeline_uapi::{Errno, flags};

use crate::fds::ThreadFds;
use crate::objects::{LinkTo, Object};

/// Returns the kernel's program or link in the place of the tool's, and the flags for the kernel,
/// to which it is named by its descriptor.
///
/// # Errors
///
/// `ENOENT` if the session has no such id, `EBADF` for a descriptor of something else, and those of
/// [`Backend::program_in_kernel`].
pub(crate) fn relative(
    backend: &dyn Backend,
    fds: ThreadFds<'_>,
    (named, asked): (i32, u32),
) -> Result<(Option<OwnedFd>, u32), Errno> {
    if named == 0 {
        return Ok((None, asked));
    }
    let object = match asked & flags::ID {
        0 => fds.find(named)?,
        _ => Some(by_id(fds, named.cast_unsigned(), asked).ok_or(Errno::ENOENT)?),
    };
    let copy = |file: BorrowedFd<'_>| file.try_clone_to_owned();
    let found = match object {
        Some(Object::Program(program)) => {
            let program = backend.program_in_kernel(program.held.id)?;
            copy(program.as_fd()).map_err(errno)
        }
        Some(Object::Link(link)) => match &link.to {
            LinkTo::Kernel(link) => link.with(copy),
            _ => Err(Errno::EBADF),
        },
        _ => Err(Errno::EBADF),
    };
    Ok((Some(found?), asked & !flags::ID))
}

/// Returns the program with an id, or the link if the flags say that it is one.
fn by_id(fds: ThreadFds<'_>, id: u32, asked: u32) -> Option<Object> {
    let number = |object: &Object| match object {
        Object::Link(link) if asked & flags::LINK != 0 => Some(link.id),
        Object::Program(program) if asked & flags::LINK == 0 => Some(program.held.id.0),
        _ => None,
    };
    let (found, object) = fds.table.next(id - 1, &[], number)?;
    (found == id).then_some(object)
}
