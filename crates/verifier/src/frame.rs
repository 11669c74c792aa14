//! Computes the part of its stack frame that a function may access, which compilers must provide.

use beeline_isa::{FRAME_POINTER, Op, STACK_BYTES};

use crate::flow::{Flow, Function};

impl Flow {
    /// Returns the bytes of stack below r10 that a function may access.
    ///
    /// This is the depth of its accesses through r10, or everything if the address leaves r10.
    pub fn stack_bytes(&self, function: Function) -> u32 {
        let mut deepest = 0;
        for (_, op) in self.reachable_ops(function) {
            let direct = stack_access(&op);
            let uses = op
                .read()
                .filter(|&register| register == FRAME_POINTER)
                .count();
            // Any use but as the base of an access passes the address on.
            let escapes = uses > usize::from(direct.is_some());
            let deep = if escapes {
                -STACK_BYTES
            } else {
                direct.map_or(0, |(off, _)| off)
            };
            deepest = deepest.min(deep.max(-STACK_BYTES));
        }
        deepest.unsigned_abs()
    }
}

/// Returns the offset and width of an access based on r10.
fn stack_access(op: &Op) -> Option<(i32, i32)> {
    let (base, off, bytes) = match *op {
        Op::Load { size, src, off, .. } | Op::LoadAcquire { size, src, off, .. } => {
            (src, off, size.bytes())
        }
        Op::Store { size, dst, off, .. } | Op::StoreRelease { size, dst, off, .. } => {
            (dst, off, size.bytes())
        }
        Op::Atomic { wide, dst, off, .. } => (dst, off, if wide { 8 } else { 4 }),
        _ => return None,
    };
    (base == FRAME_POINTER).then_some((off.into(), bytes.into()))
}
