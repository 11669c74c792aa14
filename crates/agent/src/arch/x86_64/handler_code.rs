//! The code between the kernel and the agent's signal handler.

/// The code of a handler's entry, which adds the target and the level to the kernel's three
/// arguments: `movabs rcx, target; mov r8d, level; movabs rax, handler; jmp rax`.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct HandlerCode([u8; 32]);

impl HandlerCode {
    /// The bytes that are the same in all, each with its place.
    const MARKS: [(usize, u8); 8] = [
        (0, 0x48),
        (1, 0xb9),
        (10, 0x41),
        (11, 0xb8),
        (16, 0x48),
        (17, 0xb8),
        (26, 0xff),
        (27, 0xe0),
    ];

    /// Creates the code of a level. `handler` is the agent's, `target` is the target's
    /// [`Target`](crate::abi::Target).
    pub fn new(handler: u64, target: u64, level: u32) -> Self {
        let mut code = [0xcc; 32];
        for (at, byte) in Self::MARKS {
            code[at] = byte;
        }
        code[2..10].copy_from_slice(&target.to_le_bytes());
        code[12..16].copy_from_slice(&level.to_le_bytes());
        code[18..26].copy_from_slice(&handler.to_le_bytes());
        Self(code)
    }

    /// Returns whether the code at an address is such code.
    ///
    /// # Safety
    ///
    /// There must be code at the address, and it must end by itself.
    #[inline(always)]
    pub unsafe fn is_at(address: *const u8) -> bool {
        // SAFETY: each byte that fits says that there are as many more as to the next one, and they
        // are read in their order.
        let fits = |(at, byte): &(usize, u8)| unsafe { address.add(*at).read() } == *byte;
        Self::MARKS.iter().all(fits)
    }
}
