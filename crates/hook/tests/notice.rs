//! Code that reports a thread changes nothing else.

mod support;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use beeline_hook::notice_stub;

use support::memory::Pool;
use support::state::{ARITHMETIC, State};

#[test]
fn a_notice_changes_two_words_and_goes_on() {
    const RET: u8 = 0xc3;
    let (flag, count) = (AtomicU32::new(0), AtomicU64::new(7));
    let mut pool = Pool::new(1 << 12);
    let to = pool.push(&[RET]);
    let (flag_at, count_at) = (flag.as_ptr() as u64, count.as_ptr() as u64);
    let stub = notice_stub(pool.next(), flag_at, count_at, to).unwrap();
    let start = pool.push(&stub);
    for (round, flags) in (1..).zip([0, ARITHMETIC]) {
        let before = State::sample(flags);
        // SAFETY: the code returns, and writes to the two words only.
        assert_eq!(unsafe { before.call(start) }, before);
        assert_eq!((flag.load(Relaxed), count.load(Relaxed)), (1, 7 + round));
    }
}

#[test]
fn a_notice_out_of_reach_is_an_error() {
    let error = notice_stub(0x1000, 0, 0, 1 << 40).unwrap_err();
    assert_eq!(error.target, 1 << 40);
}
