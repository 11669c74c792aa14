//! System calls that are foreseen: what is known of them before they are made, for the verdict of a
//! seccomp filter.

/// A system call that Beeline makes in targets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForeseenCall {
    /// Its name.
    pub name: &'static str,
    /// `__NR_*`.
    pub number: u64,
    /// Its arguments, as far as they are always the same.
    pub arguments: [Option<u64>; 6],
    /// The work that needs it.
    pub purpose: &'static str,
}

impl ForeseenCall {
    /// A call of which only the number is known.
    pub const fn new(name: &'static str, number: u64, purpose: &'static str) -> Self {
        Self {
            name,
            number,
            arguments: [None; 6],
            purpose,
        }
    }

    /// The same call with an argument that is known, counted from 0.
    pub const fn with(mut self, argument: usize, value: u64) -> Self {
        self.arguments[argument] = Some(value);
        self
    }

    /// True if this is the call.
    pub fn is(&self, number: u64, arguments: &[u64; 6]) -> bool {
        let mut pairs = self.arguments.iter().zip(arguments);
        let agrees =
            |(foreseen, is): (&Option<u64>, &u64)| foreseen.is_none_or(|known| known == *is);
        self.number == number && pairs.all(agrees)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_arguments_count_and_others_do_not() {
        let call = ForeseenCall::new("futex", 202, "").with(1, 1);
        assert!(call.is(202, &[7, 1, 9, 0, 0, 0]));
        assert!(!call.is(202, &[7, 0, 9, 0, 0, 0]));
        assert!(!call.is(203, &[7, 1, 9, 0, 0, 0]));
    }
}
