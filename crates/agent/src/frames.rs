//! From one frame of a stack to its caller's.

use crate::arch;
use crate::unwind_table::{Cfa, Rule, Saved};

/// The registers that lead from a frame to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// The instruction pointer.
    pub ip: u64,
    /// The stack pointer.
    pub sp: u64,
    /// The frame pointer.
    pub fp: u64,
    /// True if the instruction there is the next to run, and not the one behind a call.
    pub is_exact: bool,
}

/// Memory that a walk reads, where it may fault.
pub trait Stack {
    /// Reads a word.
    fn word(&mut self, at: u64) -> Option<u64>;

    /// Reads the two words at what may be a frame pointer.
    fn pair(&mut self, at: u64) -> Option<[u64; 2]>;

    /// Returns the address that a function returns to in the end, if `at` holds `now`.
    fn original(&mut self, at: u64, now: u64) -> u64;
}

impl Frame {
    /// Returns an address within the instruction that the frame is in: behind a call the next
    /// instruction may be another function's.
    #[inline(always)]
    pub fn inside(&self) -> u64 {
        self.ip.wrapping_sub(u64::from(!self.is_exact))
    }

    /// Returns the caller's frame by the rule for this frame's code; `None` if there is no caller,
    /// or none can be read.
    #[inline(always)]
    pub fn caller(&self, rule: Rule, stack: &mut impl Stack) -> Option<Self> {
        let add = |base: u64, distance: i64| base.wrapping_add_signed(distance);
        let mut at = |base: u64, (distance, further): (i16, i16)| {
            let word = stack.word(add(base, distance.into()))?;
            Some(add(word, further.into()))
        };
        let cfa = match rule.cfa() {
            Cfa::Sp(distance) => add(self.sp, distance.into()),
            Cfa::Fp(distance) => add(self.fp, distance.into()),
            Cfa::AtSp(distance, further) => at(self.sp, (distance, further))?,
            Cfa::AtFp(distance, further) => at(self.fp, (distance, further))?,
            Cfa::Plt(pushed) => self.sp.wrapping_add(arch::plt_frame(self.ip, pushed)),
            Cfa::Unknown => return self.caller_by_frame_pointer(stack),
            Cfa::Signal => return self.interrupted(stack),
            Cfa::End => return None,
        };
        let fp = match rule.saved() {
            Saved::Kept => self.fp,
            Saved::AtCfa(distance) => stack.word(add(cfa, distance.into()))?,
            Saved::AtFp(distance) => stack.word(add(self.fp, distance.into()))?,
        };
        let slot = cfa.wrapping_sub(8);
        let ip = stack.word(slot)?;
        let ip = stack.original(slot, ip);
        // The outermost function of many threads returns to nowhere.
        (ip != 0).then_some(Self {
            ip,
            sp: cfa,
            fp,
            is_exact: false,
        })
    }

    /// As the kernel does it.
    fn caller_by_frame_pointer(&self, stack: &mut impl Stack) -> Option<Self> {
        let [fp, ip] = stack.pair(self.fp)?;
        Some(Self {
            ip: stack.original(self.fp.wrapping_add(8), ip),
            sp: self.fp.wrapping_add(16),
            fp,
            is_exact: false,
        })
    }

    fn interrupted(&self, stack: &mut impl Stack) -> Option<Self> {
        let mut word = |offset: u64| stack.word(self.sp.wrapping_add(offset));
        Some(Self {
            ip: word(arch::INTERRUPTED_IP)?,
            sp: word(arch::INTERRUPTED_SP)?,
            fp: word(arch::INTERRUPTED_FP)?,
            is_exact: true,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stack at an address, with a watched return.
    struct Words<'a> {
        start: u64,
        words: &'a [u64],
        watched: u64,
    }

    impl Stack for Words<'_> {
        fn word(&mut self, at: u64) -> Option<u64> {
            let index = usize::try_from(at.checked_sub(self.start)? / 8).ok()?;
            self.words.get(index).copied()
        }

        fn pair(&mut self, at: u64) -> Option<[u64; 2]> {
            Some([self.word(at)?, self.word(at.checked_add(8)?)?])
        }

        fn original(&mut self, at: u64, now: u64) -> u64 {
            match at == self.watched {
                true => now + 1000,
                false => now,
            }
        }
    }

    const FRAME: Frame = Frame {
        ip: 0x401_00c,
        sp: 0x1000,
        fp: 0x1020,
        is_exact: true,
    };

    fn caller(rule: Rule, words: &[u64]) -> Option<Frame> {
        let (start, watched) = (FRAME.sp, 0x1008);
        FRAME.caller(
            rule,
            &mut Words {
                start,
                words,
                watched,
            },
        )
    }

    fn found(ip: u64, sp: u64, fp: u64) -> Option<Frame> {
        let is_exact = false;
        Some(Frame {
            ip,
            sp,
            fp,
            is_exact,
        })
    }

    #[test]
    fn each_rule_leads_to_the_caller() {
        let words = [10, 11, 12, 0x1018, 14, 15, 16];
        let rule = Rule::new;
        let kept = Saved::Kept;
        assert_eq!(
            caller(rule(Cfa::Sp(8), kept), &words),
            found(10, 0x1008, 0x1020)
        );
        let saved = rule(Cfa::Sp(24), Saved::AtCfa(-16));
        assert_eq!(caller(saved, &words), found(12, 0x1018, 11));
        let by_frame_pointer = rule(Cfa::Fp(16), Saved::AtCfa(-16));
        assert_eq!(caller(by_frame_pointer, &words), found(15, 0x1030, 14));
        assert_eq!(caller(Rule::UNKNOWN, &words), found(15, 0x1030, 14));
        // A realigned stack.
        let realigned = rule(Cfa::AtFp(-8, 0), Saved::AtFp(0));
        assert_eq!(caller(realigned, &words), found(12, 0x1018, 14));
        let moved = rule(Cfa::AtSp(24, 8), kept);
        assert_eq!(caller(moved, &words), found(0x1018, 0x1020, 0x1020));
        // The third entry's push is done at 0xc, not yet at 0xd.
        assert_eq!(
            caller(rule(Cfa::Plt(13), kept), &words),
            found(10, 0x1008, 0x1020)
        );
        // A watched return.
        let pushed = rule(Cfa::Plt(12), kept);
        assert_eq!(caller(pushed, &words), found(1011, 0x1010, 0x1020));
        assert_eq!(caller(Rule::END, &words), None);
        assert_eq!(caller(rule(Cfa::Sp(8), kept), &[0]), None);
        for unreadable in [Cfa::Sp(0x1000), Cfa::Sp(-8), Cfa::Fp(i32::MAX)] {
            assert_eq!(caller(rule(unreadable, kept), &words), None);
        }
    }

    #[test]
    fn a_signal_frame_leads_to_what_it_interrupted() {
        let mut words = [0; 32];
        words[arch::INTERRUPTED_IP as usize / 8] = 1;
        words[arch::INTERRUPTED_SP as usize / 8] = 2;
        words[arch::INTERRUPTED_FP as usize / 8] = 3;
        let interrupted = Frame {
            ip: 1,
            sp: 2,
            fp: 3,
            is_exact: true,
        };
        assert_eq!(caller(Rule::SIGNAL, &words), Some(interrupted));
        assert_eq!(caller(Rule::SIGNAL, &words[..10]), None);
    }
}
