//! Reads and writes the memory of a tool that waits in a system call.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use beeline_uapi::Errno;
use beeline_uapi::linux::PAGE_SIZE;
use beeline_uapi::pagemap::{PM_FILE, PM_PRESENT, PM_UFFD_WP};

use crate::notify::{Listener, Request};

const PAGE: u64 = PAGE_SIZE;

/// The memory of the thread that made one call.
///
/// Every access ends with a check that the call still waits. Without it, another process's memory
/// could be taken for the tool's when a thread id is reused.
#[derive(Clone, Copy)]
pub struct Memory<'a>(Of<'a>);

/// The owner of the memory.
#[derive(Clone, Copy)]
enum Of<'a> {
    Thread {
        listener: &'a Listener,
        request: &'a Request,
    },
    /// Memory without an owner: bytes that begin at an address, and zeros up to the end of their
    /// last page. Writes to it are lost.
    Nobody { start: u64, bytes: &'a [u8] },
}

impl<'a> Memory<'a> {
    /// Refers to the memory of the thread that makes a call.
    pub fn new(listener: &'a Listener, request: &'a Request) -> Self {
        Memory(Of::Thread { listener, request })
    }

    /// Returns a handle for writing later, while the call still waits; `None` for memory without an
    /// owner.
    pub fn of_call(&self) -> Option<(Listener, Request)> {
        match self.0 {
            Of::Thread { listener, request } => Some((listener.clone(), *request)),
            Of::Nobody { .. } => None,
        }
    }

    /// Returns whether bytes can be written there without waiting for anything but the kernel.
    ///
    /// Another process may have to bring in pages of files, pages that are not present, and pages
    /// whose writes are watched.
    pub fn is_ready(&self, address: u64, len: usize) -> bool {
        match self.0 {
            Of::Thread { request, .. } => are_plain(request.tid, address, len).unwrap_or(false),
            Of::Nobody { .. } => true,
        }
    }

    /// Creates memory without an owner, for the `fuzz_api` of `beeline-bpf-syscall`.
    pub fn of_nobody(start: u64, bytes: &'a [u8]) -> Self {
        Memory(Of::Nobody { start, bytes })
    }

    /// Fills `buffer` from `address`.
    ///
    /// # Errors
    /// EFAULT where there is no such memory.
    pub fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), Errno> {
        if buffer.is_empty() {
            return Ok(());
        }
        match self.0 {
            Of::Thread { listener, request } => {
                read_process(request.tid, address, buffer)?;
                still_waits(listener, request)
            }
            Of::Nobody { start, bytes } => {
                let from = offset(start, bytes, address, buffer.len())?;
                let there = bytes.iter().skip(from).chain(std::iter::repeat(&0));
                for (to, from) in buffer.iter_mut().zip(there) {
                    *to = *from;
                }
                Ok(())
            }
        }
    }

    /// Returns `len` bytes from `address`. The caller has bounded `len`.
    ///
    /// # Errors
    ///
    /// Those of [`Self::read`].
    pub fn bytes(&self, address: u64, len: usize) -> Result<Vec<u8>, Errno> {
        let mut buffer = vec![0; len];
        self.read(address, &mut buffer)?;
        Ok(buffer)
    }

    /// Reads 32 bits.
    ///
    /// # Errors
    /// EFAULT where there is no such memory.
    pub fn read_u32(&self, address: u64) -> Result<u32, Errno> {
        let mut buffer = [0; 4];
        self.read(address, &mut buffer)?;
        Ok(u32::from_ne_bytes(buffer))
    }

    /// Returns the bytes before the first NUL, at most `limit`.
    ///
    /// A longer string is cut there. Never reads into a page behind the string's.
    ///
    /// # Errors
    ///
    /// Those of [`Self::read`].
    pub fn string(&self, address: u64, limit: usize) -> Result<Vec<u8>, Errno> {
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

    /// Writes `bytes` to `address`.
    ///
    /// # Errors
    /// EFAULT where there is no such memory.
    pub fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Errno> {
        if bytes.is_empty() {
            return Ok(());
        }
        match self.0 {
            Of::Thread { listener, request } => {
                still_waits(listener, request)?;
                write_process(request.tid, address, bytes)
            }
            Of::Nobody {
                start,
                bytes: there,
            } => offset(start, there, address, bytes.len()).map(drop),
        }
    }

    /// Writes 32 bits.
    ///
    /// # Errors
    /// EFAULT where there is no such memory.
    pub fn write_u32(&self, address: u64, value: u32) -> Result<(), Errno> {
        self.write(address, &value.to_ne_bytes())
    }
}

/// Returns whether all pages of a range are present, and only the kernel can have to bring them in.
fn are_plain(tid: i32, address: u64, len: usize) -> Option<bool> {
    const ENTRY: u64 = size_of::<u64>() as u64;
    let end = address.checked_add(len as u64)?;
    let (first, end) = (address / PAGE, end.div_ceil(PAGE));
    let mut entries = vec![0; ((end - first) * ENTRY) as usize];
    let pagemap = File::open(format!("/proc/{tid}/pagemap")).ok()?;
    pagemap.read_exact_at(&mut entries, first * ENTRY).ok()?;
    let is_plain = |entry: &[u8; ENTRY as usize]| {
        u64::from_ne_bytes(*entry) & (PM_PRESENT | PM_FILE | PM_UFFD_WP) == PM_PRESENT
    };
    Some(entries.as_chunks().0.iter().all(is_plain))
}

fn still_waits(listener: &Listener, request: &Request) -> Result<(), Errno> {
    // No caller is left to see the number.
    if listener.waits(request.id) {
        Ok(())
    } else {
        Err(Errno(libc::ESRCH))
    }
}

/// Returns the offset of an address in bytes that begin at `start`, if `len` bytes fit there before
/// the end of their last page.
fn offset(start: u64, bytes: &[u8], address: u64, len: usize) -> Result<usize, Errno> {
    let place = || {
        let from = usize::try_from(address.checked_sub(start)?).ok()?;
        let room = bytes.len().next_multiple_of(PAGE as usize);
        (from.checked_add(len)? <= room).then_some(from)
    };
    place().ok_or(Errno(libc::EFAULT))
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
    // SAFETY: `local` covers exactly `buffer`, which is exclusively borrowed; `remote` is an
    // address in the other process, which the kernel checks.
    let done = unsafe { libc::process_vm_readv(tid, &raw const local, 1, &raw const remote, 1, 0) };
    if done >= 0 || !forbidden() {
        return all(done, buffer.len());
    }
    let memory = File::open(format!("/proc/{tid}/mem")).map_err(errno)?;
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
    // SAFETY: `local` covers exactly `bytes`, which the call only reads; `remote` is an address in
    // the other process, which the kernel checks.
    let done =
        unsafe { libc::process_vm_writev(tid, &raw const local, 1, &raw const remote, 1, 0) };
    if done >= 0 || !forbidden() {
        return all(done, bytes.len());
    }
    let memory = File::options()
        .write(true)
        .open(format!("/proc/{tid}/mem"))
        .map_err(errno)?;
    memory
        .write_all_at(bytes, address)
        .map_err(|_| Errno(libc::EFAULT))
}

/// Returns whether the call itself was refused (a kernel built without it, a sandbox around
/// Beeline) rather than the address.
fn forbidden() -> bool {
    matches!(
        io::Error::last_os_error().raw_os_error(),
        Some(libc::ENOSYS | libc::EPERM)
    )
}

/// Checks that everything was transferred. Some of it is missing where memory is not mapped, or for
/// a reason of the kernel's own, such as too little memory.
fn all(done: isize, wanted: usize) -> Result<(), Errno> {
    match usize::try_from(done) {
        Ok(done) if done == wanted => Ok(()),
        Ok(_) => Err(Errno(libc::EFAULT)),
        Err(_) => Err(errno(io::Error::last_os_error())),
    }
}

fn errno(error: io::Error) -> Errno {
    Errno(error.raw_os_error().unwrap_or(libc::EFAULT))
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
    fn pages_are_plain_that_are_there_and_of_no_file() {
        const LEN: usize = 2 * PAGE as usize;
        static OF_A_FILE: [u8; 8] = *b"constant";
        let touched = vec![1_u8; LEN];
        // SAFETY: this is a new mapping at an address that the kernel chooses, so it overlaps
        // nothing; it is never accessed, and unmapped once.
        let fresh = unsafe {
            let (may, how) = (libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            libc::mmap(std::ptr::null_mut(), LEN, may, how, -1, 0)
        };
        let is_plain = |address: u64, len| are_plain(own_tid(), address, len);
        assert_eq!(is_plain(touched.as_ptr() as u64 + 8, LEN - 8), Some(true));
        assert_eq!(is_plain(fresh as u64, 8), Some(false));
        assert_eq!(OF_A_FILE[0], b'c');
        assert_eq!(is_plain(OF_A_FILE.as_ptr() as u64, 8), Some(false));
        assert_eq!(is_plain(u64::MAX - 4, 8), None);
        // SAFETY: `fresh` is the mapping of `LEN` bytes made here, and nothing points into it.
        unsafe { libc::munmap(fresh, LEN) };
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
