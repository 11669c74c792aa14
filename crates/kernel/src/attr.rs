//! `union bpf_attr` as words, and the system call: all unsafe code of the crate.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{FromRawFd, OwnedFd};

use beeline_uapi::attr::ProgLoad;
use beeline_uapi::{Command, fields, offset_behind};

/// The words up to `fd_array_cnt`. Older kernels accept unknown fields that are 0.
const WORDS: usize = offset_behind!(ProgLoad, fd_array_cnt) / size_of::<u32>();

/// The word in which a field of a command's attribute begins. Pointers take two words.
macro_rules! word {
    ($of:ident . $field:ident) => {
        ::core::mem::offset_of!(::beeline_uapi::attr::$of, $field) / size_of::<u32>()
    };
}
pub(crate) use word;

/// The argument of a command. It borrows the memory that its pointers lead to.
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

    /// Sets two words to a number of 64 bits.
    pub fn put_long(&mut self, word: usize, value: u64) {
        self.words[word] = value as u32;
        self.words[word + 1] = (value >> 32) as u32;
    }

    /// Sets as many words as a text takes, which has a multiple of 4 bytes.
    pub fn put_text(&mut self, word: usize, text: &[u8]) {
        for (at, bytes) in text.chunks_exact(size_of::<u32>()).enumerate() {
            self.put(word + at, fields::u32_at(bytes, 0));
        }
    }

    /// Returns a word; the kernel writes some.
    pub fn get(&self, word: usize) -> u32 {
        self.words[word]
    }

    /// Sets two words to a pointer to data that the kernel reads, and another to the number of
    /// elements.
    pub fn lend<T>(&mut self, pointer: usize, count: usize, to: &'a [T]) {
        self.put(count, to.len() as u32);
        self.put_address(pointer, to.as_ptr().expose_provenance());
    }

    /// Sets two words to a pointer to data that the kernel writes, and another to the number of
    /// elements.
    pub fn lend_mut(&mut self, pointer: usize, count: usize, to: &'a mut [u8]) {
        self.put(count, to.len() as u32);
        self.put_address(pointer, to.as_mut_ptr().expose_provenance());
    }

    /// Sets two words to a pointer to something with a size that the kernel knows.
    ///
    /// # Safety
    ///
    /// It must have that size.
    pub unsafe fn point(&mut self, word: usize, to: &'a [u8]) {
        self.put_address(word, to.as_ptr().expose_provenance());
    }

    /// Sets two words to a pointer to something with a size that the kernel knows, and that it
    /// writes.
    ///
    /// # Safety
    ///
    /// It must have that size.
    pub unsafe fn point_mut(&mut self, word: usize, to: &'a mut [u8]) {
        self.put_address(word, to.as_mut_ptr().expose_provenance());
    }

    fn put_address(&mut self, word: usize, address: usize) {
        self.put_long(word, address as u64);
    }

    /// Calls a command that returns a number.
    ///
    /// # Errors
    /// The errno of bpf(2).
    pub fn call(&mut self, command: Command) -> io::Result<i32> {
        // SAFETY: the kernel reads and writes the words within the size it is told. The memory that
        // they point to is borrowed for as long as they live; its lengths stand beside the
        // pointers, or the caller of `point` vouches for them.
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

    /// Calls a command that returns a new descriptor.
    ///
    /// # Errors
    /// The errno of bpf(2).
    pub fn make(&mut self, command: Command) -> io::Result<OwnedFd> {
        let fd = self.call(command)?;
        // SAFETY: the kernel has just made it for us, and nothing else owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}
