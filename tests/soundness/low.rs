//! Contexts below 4 GB: their packets' addresses have 32 bits.

use beeline_fuzz::Random;
use beeline_uapi::ProgramType;

use crate::world::fill;

/// The longest packet. It ends where the memory does.
const PACKET: u64 = 96;
/// Bytes of the whole: a context may have up to 64 KB, for the program type that takes any memory
/// as its context (`syscall_prog_is_valid_access`).
const BYTES: usize = 68 << 10;

/// A context, and behind it a packet.
pub struct Context(&'static mut [u8]);

impl Context {
    pub fn new() -> Self {
        // SAFETY: a new mapping of our own, zeroed, that stays.
        let memory = unsafe {
            let memory = libc::mmap(
                std::ptr::null_mut(),
                BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_32BIT,
                -1,
                0,
            );
            assert_ne!(memory, libc::MAP_FAILED);
            std::slice::from_raw_parts_mut(memory.cast::<u8>(), BYTES)
        };
        Self(memory)
    }

    /// Fills the context as a program of some type finds it: random numbers, and a packet of some
    /// length.
    pub fn renew(&mut self, prog_type: ProgramType, random: &mut Random) -> &mut [u8] {
        fill(self.0, random);
        let packet = BYTES - PACKET as usize;
        fill(&mut self.0[packet..], random);
        let end = self.0.as_ptr().expose_provenance() as u64 + BYTES as u64;
        let data = end - random.below(PACKET + 1);
        // Offsets of the packet's begin, end and metadata, and of pointers to the kernel's
        // structures.
        let (begins, size, nulls): (&[usize], _, &[usize]) = match prog_type {
            ProgramType::XDP => (&[0, 8], 4, &[]),
            ProgramType::SK_MSG => (&[0], 8, &[72]),
            ProgramType::SOCKET_FILTER | ProgramType::SCHED_CLS | ProgramType::LWT_XMIT => {
                (&[76, 140], 4, &[144, 168])
            }
            _ => (&[], 4, &[]),
        };
        for &begin in begins {
            self.put(begin, size, data);
        }
        match begins {
            [] => {}
            [begin, ..] => self.put(begin + size, size, end),
        }
        for &null in nulls {
            self.put(null, 8, 0);
        }
        self.0
    }

    fn put(&mut self, at: usize, size: usize, value: u64) {
        self.0[at..at + size].copy_from_slice(&value.to_ne_bytes()[..size]);
    }
}
