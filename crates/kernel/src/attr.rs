//! `union bpf_attr` as words, and the system call: all that is unsafe.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{FromRawFd, OwnedFd};

use beeline_uapi::Command;

/// Up to `fd_array_cnt`. Older kernels take what they do not know if it is 0.
const WORDS: usize = 38;

/// The argument of a command. It borrows what its pointers lead to.
#[derive(Debug)]
pub struct Attr<'a> {
    words: [u32; WORDS],
    held: PhantomData<&'a mut [u8]>,
}

impl Default for Attr<'_> {
    fn default() -> Self {
        Self {
            words: [0; WORDS],
            held: PhantomData,
        }
    }
}

impl<'a> Attr<'a> {
    /// Sets a word.
    pub fn put(&mut self, word: usize, value: u32) {
        self.words[word] = value;
    }

    /// A word; the kernel writes some.
    pub fn get(&self, word: usize) -> u32 {
        self.words[word]
    }

    /// Has two words point to what the kernel reads, and another say how many elements there are.
    pub fn lend<T>(&mut self, pointer: usize, count: usize, to: &'a [T]) {
        self.put(count, to.len() as u32);
        self.put_address(pointer, to.as_ptr().expose_provenance());
    }

    /// The same with what the kernel writes.
    pub fn lend_mut(&mut self, pointer: usize, count: usize, to: &'a mut [u8]) {
        self.put(count, to.len() as u32);
        self.put_address(pointer, to.as_mut_ptr().expose_provenance());
    }

    /// Has two words point to something whose size the kernel knows.
    ///
    /// # Safety
    ///
    /// It must have that size.
    pub unsafe fn point(&mut self, word: usize, to: &'a [u8]) {
        self.put_address(word, to.as_ptr().expose_provenance());
    }

    fn put_address(&mut self, word: usize, address: usize) {
        self.words[word] = address as u32;
        self.words[word + 1] = (address >> 32) as u32;
    }

    /// A command that gives a number.
    pub fn call(&mut self, command: Command) -> io::Result<i32> {
        // SAFETY: the kernel reads and writes the words within the size it is told. What they point to is borrowed for as long as
        // they live; its lengths stand beside the pointers, or are what `point`'s caller vouches for.
        let result = unsafe {
            libc::syscall(
                libc::SYS_bpf,
                i64::from(command.0),
                self.words.as_mut_ptr(),
                size_of_val(&self.words),
            )
        };
        match i32::try_from(result) {
            Ok(number) if number >= 0 => Ok(number),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// A command that gives a new descriptor.
    pub fn make(&mut self, command: Command) -> io::Result<OwnedFd> {
        let fd = self.call(command)?;
        // SAFETY: the kernel just made it for us; nobody else has it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}
