//! Reading and writing the memory of a tool that waits in a system call.

use std::fs::File;
use std::os::unix::fs::FileExt;

use beeline_runtime::backend::Errno;

use crate::notify::{Listener, Request};

const PAGE: u64 = 4096;

/// The memory of the thread that made one call. Every access ends with a check that the call still
/// waits, so never is another process's memory taken for the tool's when a thread id is used again.
#[derive(Clone, Copy)]
pub(crate) struct Memory<'a> {
    listener: &'a Listener,
    request: &'a Request,
}

impl<'a> Memory<'a> {
    pub(crate) fn new(listener: &'a Listener, request: &'a Request) -> Self {
        Memory { listener, request }
    }

    /// Fills `buffer` from `address`, or EFAULT.
    pub(crate) fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), Errno> {
        if buffer.is_empty() {
            return Ok(());
        }
        read_process(self.request.tid, address, buffer)?;
        self.still_waits()
    }

    /// `len` bytes from `address`. The caller has bounded `len`.
    pub(crate) fn bytes(&self, address: u64, len: usize) -> Result<Vec<u8>, Errno> {
        let mut buffer = vec![0; len];
        self.read(address, &mut buffer)?;
        Ok(buffer)
    }

    pub(crate) fn read_u32(&self, address: u64) -> Result<u32, Errno> {
        let mut buffer = [0; 4];
        self.read(address, &mut buffer)?;
        Ok(u32::from_ne_bytes(buffer))
    }

    /// The bytes before the first NUL, at most `limit`; a longer string is cut there. Never reads
    /// into a page behind the string's.
    pub(crate) fn string(&self, address: u64, limit: usize) -> Result<Vec<u8>, Errno> {
        let mut text = Vec::new();
        while text.len() < limit {
            let at = address
                .checked_add(text.len() as u64)
                .ok_or(Errno(libc::EFAULT))?;
            let in_page = (PAGE - at % PAGE) as usize;
            let chunk = self.bytes(at, in_page.min(limit - text.len()).min(256))?;
            match chunk.iter().position(|&byte| byte == 0) {
                Some(end) => {
                    text.extend(chunk.into_iter().take(end));
                    break;
                }
                None => text.extend(chunk),
            }
        }
        Ok(text)
    }

    /// Writes `bytes` to `address`, or EFAULT.
    pub(crate) fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Errno> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.still_waits()?;
        write_process(self.request.tid, address, bytes)
    }

    pub(crate) fn write_u32(&self, address: u64, value: u32) -> Result<(), Errno> {
        self.write(address, &value.to_ne_bytes())
    }

    fn still_waits(&self) -> Result<(), Errno> {
        // Nobody is there to see the number.
        if self.listener.waits(self.request.id) {
            Ok(())
        } else {
            Err(Errno(libc::ESRCH))
        }
    }
}

fn read_process(tid: i32, address: u64, buffer: &mut [u8]) -> Result<(), Errno> {
    let local = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    let remote = libc::iovec {
        iov_base: address as *mut _,
        iov_len: buffer.len(),
    };
    // SAFETY: `local` is the whole of `buffer`, exclusively borrowed; `remote` is an address in the
    // other process, checked by the kernel.
    let done = unsafe { libc::process_vm_readv(tid, &raw const local, 1, &raw const remote, 1, 0) };
    if done >= 0 || !forbidden() {
        return all(done, buffer.len());
    }
    let memory = File::open(format!("/proc/{tid}/mem")).map_err(|_| Errno(libc::EFAULT))?;
    memory
        .read_exact_at(buffer, address)
        .map_err(|_| Errno(libc::EFAULT))
}

fn write_process(tid: i32, address: u64, bytes: &[u8]) -> Result<(), Errno> {
    let local = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    let remote = libc::iovec {
        iov_base: address as *mut _,
        iov_len: bytes.len(),
    };
    // SAFETY: `local` is the whole of `bytes`, which the call only reads; `remote` is an address in
    // the other process, checked by the kernel.
    let done =
        unsafe { libc::process_vm_writev(tid, &raw const local, 1, &raw const remote, 1, 0) };
    if done >= 0 || !forbidden() {
        return all(done, bytes.len());
    }
    let memory = File::options()
        .write(true)
        .open(format!("/proc/{tid}/mem"))
        .map_err(|_| Errno(libc::EFAULT))?;
    memory
        .write_all_at(bytes, address)
        .map_err(|_| Errno(libc::EFAULT))
}

/// Was the call itself refused (a kernel built without it, a sandbox around Beeline) rather than
/// the address?
fn forbidden() -> bool {
    matches!(
        std::io::Error::last_os_error().raw_os_error(),
        Some(libc::ENOSYS | libc::EPERM)
    )
}

fn all(done: isize, wanted: usize) -> Result<(), Errno> {
    if usize::try_from(done) == Ok(wanted) {
        Ok(())
    } else {
        Err(Errno(libc::EFAULT))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own_tid() -> i32 {
        // SAFETY: gettid has no arguments and cannot fail.
        unsafe { libc::gettid() }
    }

    #[test]
    fn reads_and_writes_across() {
        let text = *b"straight line";
        let mut copy = [0; 13];
        read_process(own_tid(), text.as_ptr() as u64, &mut copy).unwrap();
        assert_eq!(copy, text);

        let mut target = [0u8; 4];
        write_process(own_tid(), target.as_mut_ptr() as u64, &[1, 2, 3, 4]).unwrap();
        assert_eq!(target, [1, 2, 3, 4]);
    }

    #[test]
    fn a_bad_address_is_a_fault() {
        let mut byte = [0];
        assert_eq!(
            read_process(own_tid(), 8, &mut byte),
            Err(Errno(libc::EFAULT))
        );
        assert_eq!(
            read_process(own_tid(), u64::MAX, &mut byte),
            Err(Errno(libc::EFAULT))
        );
        assert_eq!(write_process(own_tid(), 8, &byte), Err(Errno(libc::EFAULT)));
    }
}
