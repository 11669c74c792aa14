//! The user ring buffer against the kernel's: whatever a tool writes, a program that drains it sees
//! the same.

mod common;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

use beeline_maps::user_ringbuf::UserRing;
use beeline_uapi::flags::{RINGBUF_BUSY_BIT as BUSY, RINGBUF_DISCARD_BIT as DISCARD};
use beeline_uapi::{Errno, HelperId, MapType};
use common::{
    Ours, caller, kernel,
    kernel::KernelMap,
    pair::{Random, soak},
    spec,
};

const SIZE: u64 = 4096;

/// The memory of a ring, as a tool has it.
struct Tool {
    consumer: *mut u8,
    /// The producer's page, then the data.
    producer: *mut u8,
}

impl Tool {
    fn consumer(&self) -> u64 {
        // SAFETY: the first word of a mapped page.
        unsafe { AtomicU64::from_ptr(self.consumer.cast()) }.load(SeqCst)
    }

    fn set_producer(&self, position: u64) {
        // SAFETY: the first word of a mapped page.
        unsafe { AtomicU64::from_ptr(self.producer.cast()) }.store(position, SeqCst);
    }

    fn set_header(&self, position: u64, header: u32) {
        let at = self
            .producer
            .wrapping_add(4096 + (position % SIZE) as usize);
        // SAFETY: a word of the mapped data.
        unsafe { AtomicU32::from_ptr(at.cast()) }.store(header, SeqCst);
    }
}

/// Returns a program that drains the ring, with a callback that does nothing.
fn drain_program(map: &KernelMap) -> std::os::fd::OwnedFd {
    let mut insns = kernel::map_address(1, map).to_vec();
    insns.extend([kernel::insn(0x18, 2, 4, 0, 5), 0]);
    insns.extend([kernel::move_imm(3, 0), kernel::move_imm(4, 0)]);
    insns.extend(kernel::call(HelperId::USER_RINGBUF_DRAIN));
    let callback = insns.len() as u32;
    insns.extend([kernel::move_imm(0, 0), kernel::call(HelperId::UNSPEC)[1]]);
    kernel::load_with_callback(&insns, callback)
}

/// Drains the ring as `bpf_user_ringbuf_drain` does, from the parts that are here.
fn drain(ring: UserRing<'_>) -> i32 {
    let drain = ring.drain(&caller(7, 0)).unwrap();
    let mut samples = 0;
    loop {
        match drain.peek() {
            Ok(sample) => {
                drain.release(sample);
                samples += 1;
            }
            Err(Errno::ENODATA) => return samples,
            Err(Errno::EAGAIN) => {}
            Err(error) => return -error.0,
        }
    }
}

fn header(random: &mut Random) -> u32 {
    let bits = random.pick(&[0, 0, 0, DISCARD, DISCARD, BUSY, BUSY | DISCARD]);
    let len = match random.below(8) {
        0 => random.next() as u32 & !(BUSY | DISCARD),
        1 => 4080 + random.below(20) as u32,
        _ => random.below(80) as u32,
    };
    bits | len
}

#[test]
fn samples_are_judged_as_by_the_kernel() {
    if kernel::is_missing() {
        return;
    }
    let spec = spec(MapType::USER_RINGBUF, 0, 0, SIZE as u32);
    let ours = Ours::new(&spec, 2).unwrap();
    let theirs = KernelMap::new(&spec).unwrap();
    let program = drain_program(&theirs);
    let write = libc::PROT_READ | libc::PROT_WRITE;
    let tools = [
        Tool {
            consumer: ours.memory.base,
            producer: ours.memory.base.wrapping_add(4096),
        },
        Tool {
            consumer: common::map(&theirs.fd, 0, 4096, libc::PROT_READ),
            producer: common::map(&theirs.fd, 4096, 4096 + 2 * SIZE as usize, write),
        },
    ];
    let mut seen = [0; 4];
    soak(5000, |random| {
        let consumer = tools[0].consumer();
        let producer =
            consumer + random.pick(&[0, 8, 64, 200, SIZE - 8, SIZE, SIZE + 8, SIZE + 4000]);
        let producer = if random.below(8) == 0 {
            producer.saturating_sub(random.below(64))
        } else {
            producer
        };
        let headers: Vec<u32> = (0..SIZE / 8).map(|_| header(random)).collect();
        for tool in &tools {
            for (at, header) in (0..).step_by(8).zip(&headers) {
                tool.set_header(at, *header);
            }
            tool.set_producer(producer);
        }
        let results = [
            drain(UserRing::of(&ours.map).unwrap()),
            kernel::run_loaded(&program),
        ];
        assert_eq!(results[0], results[1], "seed {}", random.seed);
        assert_eq!(
            tools[0].consumer(),
            tools[1].consumer(),
            "seed {}",
            random.seed
        );
        seen[match results[0] {
            1.. => 0,
            0 => 1,
            -7 => 2,
            _ => 3,
        }] += 1;
    });
    assert!(seen.iter().all(|times| *times > 20), "{seen:?}");
}

#[test]
fn one_at_a_time() {
    let ours = Ours::new(&spec(MapType::USER_RINGBUF, 0, 0, SIZE as u32), 2).unwrap();
    let ring = UserRing::of(&ours.map).unwrap();
    let first = ring.drain(&caller(7, 0)).unwrap();
    assert_eq!(ring.drain(&caller(8, 1)).unwrap_err(), Errno::EBUSY);
    drop(first);
    assert!(ring.drain(&caller(8, 1)).is_ok());
}
