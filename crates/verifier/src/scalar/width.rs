//! Parts of numbers, extended by zeroes or by their sign.

use beeline_isa::Size;

use super::Scalar;
use super::range::{Narrow, Wide};
use crate::tnum::Tnum;

impl Scalar {
    /// Returns the low 32 bits, the others zero (`zext_32_to_64` and `reg_bounds_sync`).
    #[must_use]
    pub fn zero_extended(mut self) -> Self {
        self.bits = self.bits.low();
        let narrow = self.narrow;
        let (smin, smax) = if narrow.smin >= 0 && narrow.smax >= 0 {
            (narrow.smin.into(), narrow.smax.into())
        } else {
            (0, u32::MAX.into())
        };
        self.wide = Wide {
            umin: narrow.umin.into(),
            umax: narrow.umax.into(),
            smin,
            smax,
        };
        self.sync();
        self
    }

    /// Returns the low `size` bytes, the others zero (`coerce_reg_to_size`).
    #[must_use]
    pub fn truncated(mut self, size: Size) -> Self {
        if size == Size::B8 {
            return self;
        }
        self.bits = self.bits.truncated(size);
        let kept = u64::MAX >> (64 - 8 * u32::from(size.bytes()));
        let (umin, umax) = if self.wide.umin & !kept == self.wide.umax & !kept {
            (self.wide.umin & kept, self.wide.umax & kept)
        } else {
            (0, kept)
        };
        self.wide = Wide {
            umin,
            umax,
            smin: umin as i64,
            smax: umax as i64,
        };
        if size < Size::B4 {
            self.narrow = Narrow::UNKNOWN;
        }
        self.sync();
        self
    }

    /// Returns the low `from` bytes, sign-extended to 64 bits, or to 32 with the high half zero
    /// (`coerce_reg_to_size_sx`, `coerce_subreg_to_size_sx`).
    #[must_use]
    pub fn sign_extended(self, from: Size, wide: bool) -> Self {
        if from == Size::B8 {
            self
        } else if wide {
            self.extended(from)
        } else {
            self.narrow_extended(from).zero_extended()
        }
    }

    fn extended(self, from: Size) -> Self {
        if let Some(value) = self.constant() {
            return Self::known(sign_extend(value, from) as u64);
        }
        if let Some((smin, smax)) = extended_bounds(self.wide.smin, self.wide.smax, from) {
            let (umin, umax) = (smin as u64, smax as u64);
            return Self {
                bits: Tnum::range(umin, umax),
                wide: Wide {
                    umin,
                    umax,
                    smin,
                    smax,
                },
                narrow: Narrow {
                    umin: umin as u32,
                    umax: umax as u32,
                    smin: smin as i32,
                    smax: smax as i32,
                },
            };
        }
        let (smin, smax) = limits(from);
        Self {
            bits: Tnum::UNKNOWN,
            wide: Wide {
                smin,
                smax,
                ..Wide::UNKNOWN
            },
            narrow: Narrow {
                smin: smin as i32,
                smax: smax as i32,
                ..Narrow::UNKNOWN
            },
        }
    }

    /// Extends the low half; leaves the 64-bit bounds unchanged.
    fn narrow_extended(mut self, from: Size) -> Self {
        if let Some(value) = self.constant() {
            let value = sign_extend(value, from) as u32;
            self.bits = Tnum::known(value.into());
            self.narrow = Narrow::known(value);
        } else if let Some((smin, smax)) =
            extended_bounds(self.narrow.smin.into(), self.narrow.smax.into(), from)
        {
            self.bits = Tnum::range(smin as u64, smax as u64).low();
            self.narrow = Narrow {
                umin: smin as u32,
                umax: smax as u32,
                smin: smin as i32,
                smax: smax as i32,
            };
        } else {
            let (smin, smax) = limits(from);
            self.bits = Tnum::UNKNOWN.low();
            self.narrow = Narrow {
                smin: smin as i32,
                smax: smax as i32,
                ..Narrow::UNKNOWN
            };
        }
        self
    }
}

/// Returns bounds of the extended low parts, if the bounds differ in nothing else, and if the
/// extended ones have one sign.
fn extended_bounds(smin: i64, smax: i64, from: Size) -> Option<(i64, i64)> {
    let width = 8 * u32::from(from.bytes());
    if smin >> width != smax >> width {
        return None;
    }
    let (one, other) = (
        sign_extend(smin as u64, from),
        sign_extend(smax as u64, from),
    );
    ((one < 0) == (other < 0)).then(|| (one.min(other), one.max(other)))
}

fn sign_extend(value: u64, from: Size) -> i64 {
    match from {
        Size::B1 => (value as i8).into(),
        Size::B2 => (value as i16).into(),
        Size::B4 => (value as i32).into(),
        Size::B8 => value as i64,
    }
}

fn limits(from: Size) -> (i64, i64) {
    let unused = 64 - 8 * u32::from(from.bytes());
    (i64::MIN >> unused, i64::MAX >> unused)
}
