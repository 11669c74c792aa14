//! Facts about numbers are true of every number that was possible before, and some of them are
//! exact.

use beeline_isa::{Alu, Cond, Size, Swap};
use beeline_verifier::scalar::{Comparison, Scalar, Tnum};
use proptest::prelude::*;

const OPS: [Alu; 13] = [
    Alu::Add,
    Alu::Sub,
    Alu::Mul,
    Alu::Div,
    Alu::SignedDiv,
    Alu::Mod,
    Alu::SignedMod,
    Alu::Or,
    Alu::And,
    Alu::Xor,
    Alu::Lsh,
    Alu::Rsh,
    Alu::Arsh,
];
const CONDS: [Cond; 11] = [
    Cond::Equal,
    Cond::NotEqual,
    Cond::Greater,
    Cond::GreaterEqual,
    Cond::Less,
    Cond::LessEqual,
    Cond::SignedGreater,
    Cond::SignedGreaterEqual,
    Cond::SignedLess,
    Cond::SignedLessEqual,
    Cond::AnySet,
];
const SIZES: [Size; 4] = [Size::B1, Size::B2, Size::B4, Size::B8];

/// The values around changes of sign and width.
const EDGES: [u64; 12] = [
    0,
    1,
    5,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    1 << 32,
    i64::MAX as u64,
    i64::MIN as u64,
    0xffff_ffff_0000_0000,
    0xffff_ffff_8000_0000,
    u64::MAX,
];

/// Returns all sets of numbers of so many bits with some of them known, with their members.
fn tnums(bits: u32) -> Vec<(Tnum, Vec<u64>)> {
    let mut tnums = Vec::new();
    for mask in 0..1 << bits {
        for value in (0..1 << bits).filter(|value| value & mask == 0) {
            let members = (0..1 << bits).filter(|member| member & !mask == value);
            tnums.push((Tnum { value, mask }, members.collect()));
        }
    }
    tnums
}

#[test]
fn bits_hold_all_results() {
    let all = tnums(4);
    for (left, xs) in &all {
        for (right, ys) in &all {
            let sum = left.add(*right);
            let difference = left.sub(*right);
            let product = left.mul(*right);
            let union = left.union(*right);
            let (and, or, xor) = (left.and(*right), left.or(*right), left.xor(*right));
            let common = left.intersect(*right);
            assert_eq!(left.contains(*right), ys.iter().all(|y| xs.contains(y)));
            assert_eq!(left.overlaps(*right), ys.iter().any(|y| xs.contains(y)));
            for &x in xs {
                assert!(union.has(x));
                assert!(common.has(x) || !right.has(x));
                for &y in ys {
                    assert!(union.has(y));
                    assert!(sum.has(x + y));
                    assert!(difference.has(x.wrapping_sub(y)));
                    assert!(product.has(x * y), "{left} * {right}");
                    assert!(and.has(x & y) && or.has(x | y) && xor.has(x ^ y));
                }
            }
        }
    }
}

#[test]
fn bits_of_one() {
    for (bits, members) in tnums(5) {
        for count in [0, 3, 40] {
            for &member in &members {
                assert!(bits.lsh(count).has(member << count));
                assert!(bits.rsh(count).has(member >> count));
                let (high, number) = (bits.lsh(59), member << 59);
                assert!(high.arsh(count).has((number as i64 >> count) as u64));
                let (high, number) = (bits.lsh(27), member << 27);
                let shifted = (number as i32 >> (count & 31)) as u32;
                assert!(high.arsh32(count & 31).has(shifted.into()));
                assert!(bits.neg().has(member.wrapping_neg()));
            }
        }
        for number in 0..34 {
            let last = *members.last().expect("at least one");
            let next = members.iter().find(|&&member| member > number);
            assert_eq!(bits.next(number), *next.unwrap_or(&last), "{bits} {number}");
        }
        for size in [0, 1, 2, 4, 8] {
            let are_multiples = members.iter().all(|member| size == 0 || member % size == 0);
            assert_eq!(bits.is_aligned(size), are_multiples);
        }
    }
}

#[test]
fn ranges_of_bits_are_the_least() {
    for min in 0..32 {
        for max in min..32 {
            let range = Tnum::range(min, max);
            assert!((min..=max).all(|number| range.has(number)));
            let smallest = tnums(5)
                .into_iter()
                .filter(|(_, members)| (min..=max).all(|number| members.contains(&number)))
                .map(|(_, members)| members.len())
                .min();
            assert_eq!(smallest, Some(1 << range.mask.count_ones()));
        }
    }
}

/// Returns the ranges between any two edges, unsigned and signed, of either width.
fn intervals() -> Vec<Scalar> {
    let mut all = Vec::new();
    for min in EDGES {
        for max in EDGES {
            let mut unsigned = Scalar::UNKNOWN;
            (unsigned.wide.umin, unsigned.wide.umax) = (min, max);
            let mut signed = Scalar::UNKNOWN;
            (signed.wide.smin, signed.wide.smax) = (min as i64, max as i64);
            let mut narrow = Scalar::UNKNOWN;
            (narrow.narrow.smin, narrow.narrow.smax) = (min as i32, max as i32);
            all.extend([unsigned, signed, narrow]);
        }
    }
    all.retain(|scalar| scalar.contradiction().is_none());
    for scalar in &mut all {
        scalar.sync();
        assert_eq!(scalar.contradiction(), None, "{scalar:?}");
    }
    all.dedup();
    all
}

#[test]
fn intervals_hold_all_results() {
    let with_members = |scalar: Scalar| {
        let members: Vec<u64> = EDGES.into_iter().filter(|&edge| scalar.has(edge)).collect();
        (scalar, members)
    };
    let all: Vec<_> = intervals().into_iter().map(with_members).collect();
    // Each with a seventh of all, and the next one with another seventh.
    for (number, (left, xs)) in all.iter().enumerate() {
        for (right, ys) in all.iter().skip(number % 7).step_by(7) {
            for wide in [false, true] {
                for op in OPS {
                    let result = left.alu(op, wide, *right);
                    for (&x, &y) in pairs(xs, ys) {
                        let value = compute(op, wide, x, y);
                        assert!(
                            result.has(value),
                            "{left:?} {op:?} {wide} {right:?} {x:#x} {y:#x}"
                        );
                    }
                }
                for cond in CONDS {
                    check_branch(cond, wide, (left, xs), (right, ys));
                }
            }
        }
    }
}

fn pairs<'a>(xs: &'a [u64], ys: &'a [u64]) -> impl Iterator<Item = (&'a u64, &'a u64)> {
    xs.iter().flat_map(move |x| ys.iter().map(move |y| (x, y)))
}

fn check_branch(cond: Cond, wide: bool, left: (&Scalar, &[u64]), right: (&Scalar, &[u64])) {
    let comparison = Comparison { cond, wide };
    let decided = comparison.decide(left.0, right.0);
    let refined = [false, true].map(|holds| {
        let (mut x, mut y) = (*left.0, *right.0);
        comparison.refine(holds, &mut x, &mut y);
        (x, y)
    });
    for (&x, &y) in pairs(left.1, right.1) {
        let holds = compare(cond, wide, x, y);
        assert!(
            decided.is_none_or(|decided| decided == holds),
            "{left:?} {cond:?} {wide} {right:?} {x:#x} {y:#x}"
        );
        let (l, r) = &refined[usize::from(holds)];
        assert!(
            l.has(x) && r.has(y),
            "{left:?} {cond:?} {wide} {holds} {right:?} {x:#x} {y:#x}: {l:?} {r:?}"
        );
    }
}

/// Returns a number, edges more often than others.
fn number() -> impl Strategy<Value = u64> {
    let near = (prop::sample::select(&EDGES), -3..4_i64);
    prop_oneof![
        near.prop_map(|(edge, step)| edge.wrapping_add(step as u64)),
        0..256_u64,
        any::<u64>(),
    ]
}

/// Returns a fact about a number, and the number.
fn scalar() -> impl Strategy<Value = (Scalar, u64)> {
    let facts = (number(), number(), number(), number(), any::<u8>());
    (number(), facts).prop_map(|(member, (mask, one, other, third, which))| {
        let mut scalar = Scalar::UNKNOWN;
        if which & 1 != 0 {
            scalar.bits = Tnum {
                value: member & !mask,
                mask,
            };
        }
        if which & 2 != 0 {
            scalar.wide.umin = one.min(other).min(member);
            scalar.wide.umax = one.max(other).max(member);
        }
        if which & 4 != 0 {
            let numbers = [one as i64, third as i64, member as i64];
            scalar.wide.smin = numbers.into_iter().min().unwrap_or(0);
            scalar.wide.smax = numbers.into_iter().max().unwrap_or(0);
        }
        if which & 8 != 0 {
            let numbers = [third as i32, other as i32, member as i32];
            scalar.narrow.smin = numbers.into_iter().min().unwrap_or(0);
            scalar.narrow.smax = numbers.into_iter().max().unwrap_or(0);
        }
        if which & 16 != 0 {
            scalar.narrow.umin = (mask as u32).min(member as u32);
            scalar.narrow.umax = (mask as u32).max(member as u32);
        }
        (scalar, member)
    })
}

fn synced() -> impl Strategy<Value = (Scalar, u64)> {
    scalar().prop_map(|(mut scalar, member)| {
        scalar.sync();
        (scalar, member)
    })
}

/// Returns a number, often a shift count.
fn operand() -> impl Strategy<Value = (Scalar, u64)> {
    prop_oneof![
        3 => synced(),
        1 => (0..64_u64).prop_map(|count| (Scalar::known(count), count)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 20_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn sync_loses_no_number((mut scalar, member) in scalar()) {
        scalar.sync();
        prop_assert!(scalar.has(member), "{:?}", scalar);
        prop_assert_eq!(scalar.contradiction(), None);
    }

    #[test]
    fn arithmetic_holds_the_result(
        (left, x) in synced(),
        (right, y) in operand(),
        op in prop::sample::select(&OPS),
        wide in any::<bool>(),
    ) {
        let result = left.alu(op, wide, right);
        prop_assert!(result.has(compute(op, wide, x, y)), "{:?}", result);
        prop_assert_eq!(result.contradiction(), None);
    }

    #[test]
    fn operations_on_one_operand_keep_its_values(
        (scalar, x) in synced(),
        off in number(),
        bytes in 0..4_usize,
    ) {
        let size = SIZES[bytes];
        let kept = u64::MAX >> (64 - 8 * u32::from(size.bytes()));
        let extended = |value: u64| match size {
            Size::B1 => value as i8 as u64,
            Size::B2 => value as i16 as u64,
            Size::B4 => value as i32 as u64,
            Size::B8 => value,
        };
        prop_assert!(scalar.neg(true).has(x.wrapping_neg()));
        prop_assert!(scalar.neg(false).has((x as u32).wrapping_neg().into()));
        prop_assert!(scalar.plus(off as i64).has(x.wrapping_add(off)));
        prop_assert!(scalar.zero_extended().has(x as u32 as u64));
        prop_assert!(scalar.truncated(size).has(x & kept));
        prop_assert!(scalar.sign_extended(size, true).has(extended(x)));
        if size < Size::B4 {
            prop_assert!(scalar.sign_extended(size, false).has(extended(x) as u32 as u64));
        }
        if size > Size::B1 {
            let reversed = x.swap_bytes() >> (64 - 8 * u32::from(size.bytes()));
            prop_assert!(scalar.swap(Swap::Little, size).has(x & kept));
            prop_assert!(scalar.swap(Swap::Big, size).has(reversed));
            prop_assert!(scalar.swap(Swap::Reverse, size).has(reversed));
        }
        if let Some(halves) = scalar.split() {
            prop_assert!(halves.iter().any(|half| half.has(x)));
        }
    }

    #[test]
    fn pointers_hold_the_sum((from, x) in synced(), (by, y) in synced()) {
        prop_assert!(from.moved(by, false).has(x.wrapping_add(y)));
        prop_assert!(from.moved(by, true).has(x.wrapping_sub(y)));
    }

    #[test]
    fn branches_lose_no_number(
        (left, x) in synced(),
        (right, y) in operand(),
        cond in prop::sample::select(&CONDS),
        wide in any::<bool>(),
    ) {
        check_branch(cond, wide, (&left, &[x]), (&right, &[y]));
        let holds = compare(cond, wide, x, x);
        let mut same = left;
        Comparison { cond, wide }.refine_same(holds, &mut same);
        prop_assert!(same.has(x));
    }
}

#[test]
fn known_numbers_give_known_results() {
    for x in EDGES {
        for y in EDGES {
            let (left, right) = (Scalar::known(x), Scalar::known(y));
            for wide in [false, true] {
                for op in [Alu::Add, Alu::Sub, Alu::Mul, Alu::Or, Alu::And, Alu::Xor] {
                    let result = left.alu(op, wide, right);
                    assert_eq!(result, Scalar::known(compute(op, wide, x, y)));
                }
                for cond in CONDS {
                    let holds = compare(cond, wide, x, y);
                    let decided = Comparison { cond, wide }.decide(&left, &right);
                    assert_eq!(decided, Some(holds));
                }
            }
        }
    }
}

#[test]
fn an_index_is_bounded_by_a_mask() {
    let masked = Scalar::UNKNOWN.alu(Alu::And, true, Scalar::known(0xff));
    let mut words = String::from("scalar(");
    masked.describe(&mut words);
    assert_eq!(
        words,
        "scalar(smin=smin32=0,smax=umax=smax32=umax32=255,var_off=(0x0; 0xff)"
    );
    let bytes = masked.alu(Alu::Lsh, true, Scalar::known(3));
    assert_eq!(bytes.wide.umax, 0x7f8);
    assert!(bytes.bits.is_aligned(8));
}

/// Learns that the comparison of a number with a constant holds.
fn assume(number: &mut Scalar, cond: Cond, wide: bool, constant: u64) {
    Comparison { cond, wide }.refine(true, number, &mut Scalar::known(constant));
}

#[test]
fn a_signed_comparison_after_an_unsigned_one() {
    let mut index = Scalar::UNKNOWN;
    assume(&mut index, Cond::SignedLess, true, 16);
    assert_eq!(index.wide.umax, u64::MAX);
    assume(&mut index, Cond::SignedGreaterEqual, true, 0);
    assert_eq!((index.wide.umin, index.wide.umax), (0, 15));
    assert_eq!(index.bits, Tnum { value: 0, mask: 15 });
}

#[test]
fn a_low_half_extended_by_its_sign() {
    let mut length = Scalar::UNKNOWN;
    assume(&mut length, Cond::SignedLess, false, 64);
    let thirty_two = Scalar::known(32);
    let extended = length
        .alu(Alu::Lsh, true, thirty_two)
        .alu(Alu::Arsh, true, thirty_two);
    assert_eq!(
        (extended.wide.smin, extended.wide.smax),
        (i32::MIN.into(), 63)
    );
}

#[test]
fn one_multiple_in_range_is_that_number() {
    let mut multiple = Scalar::UNKNOWN.alu(Alu::And, true, Scalar::known(!7));
    assume(&mut multiple, Cond::Greater, true, 8);
    assume(&mut multiple, Cond::Less, true, 20);
    assert_eq!(multiple, Scalar::known(16));
}

#[test]
fn the_words_of_the_kernels_log() {
    let mut number = Scalar::UNKNOWN;
    (number.wide.umin, number.wide.umax) = (100, i64::MAX as u64);
    number.narrow.umin = 21;
    number.sync();
    let words = |number: &Scalar| {
        let mut words = String::new();
        number.describe(&mut words);
        words
    };
    assert_eq!(
        words(&number),
        "smin=umin=100,umax=0x7fffffffffffffff,umin32=21,var_off=(0x0; 0x7fffffffffffffff)"
    );
    assert_eq!(words(&number.plus(5)), "umin=105,umax=0x8000000000000004");
    let spilled = Scalar::between(0, 0x1ff).alu(Alu::Sub, true, Scalar::known(1));
    assert_eq!(words(&spilled), "smin=smin32=-1,smax=smax32=510");
    assert_eq!(
        words(&spilled.truncated(Size::B4)),
        "smin=0,smax=umax=0xffffffff,smin32=-1,smax32=510,var_off=(0x0; 0xffffffff)"
    );
    assert_eq!(words(&Scalar::UNKNOWN), "");
}

#[test]
fn a_number_less_than_itself() {
    let mut number = Scalar::between(0, 1).alu(Alu::Sub, true, Scalar::known(281));
    let comparison = Comparison {
        cond: Cond::SignedGreater,
        wide: true,
    };
    comparison.refine_same(true, &mut number);
    let line = number.violation("true_reg1");
    assert_eq!(
        line.as_deref(),
        Some(
            "verifier bug: REG INVARIANTS VIOLATION (true_reg1): range bounds violation \
             u64=[0xfffffffffffffee7, 0xfffffffffffffee8] s64=[0xfffffffffffffee8, 0xfffffffffffffee7] \
             u32=[0xfffffee7, 0xfffffee8] s32=[0xfffffee7, 0xfffffee8] var_off=(0xfffffffffffffee0, 0xf)"
        )
    );
}

#[test]
fn contradictions_are_named() {
    let mut scalar = Scalar::known(7);
    scalar.wide.umax = 6;
    assert_eq!(scalar.contradiction(), Some("range bounds violation"));
    scalar.wide.umax = 8;
    assert_eq!(
        scalar.contradiction(),
        Some("const tnum out of sync with range bounds")
    );
    scalar.bits.mask = 1 << 40;
    assert_eq!(scalar.contradiction(), None);
    scalar.narrow.umax = 9;
    assert_eq!(
        scalar.contradiction(),
        Some("const subreg tnum out of sync with range bounds")
    );
    scalar.forget_bounds();
    assert_eq!(
        scalar.bits,
        Tnum {
            value: 7,
            mask: 1 << 40
        }
    );
    assert_eq!(scalar.narrow.umax, u32::MAX);
}

fn compute(op: Alu, wide: bool, x: u64, y: u64) -> u64 {
    if !wide {
        return compute_narrow(op, x as u32, y as u32).into();
    }
    let (sx, sy) = (x as i64, y as i64);
    match op {
        Alu::Add => x.wrapping_add(y),
        Alu::Sub => x.wrapping_sub(y),
        Alu::Mul => x.wrapping_mul(y),
        Alu::Div => x.checked_div(y).unwrap_or(0),
        Alu::Mod => x.checked_rem(y).unwrap_or(x),
        Alu::SignedDiv if y == 0 => 0,
        Alu::SignedDiv => sx.wrapping_div(sy) as u64,
        Alu::SignedMod if y == 0 => x,
        Alu::SignedMod => sx.wrapping_rem(sy) as u64,
        Alu::Or => x | y,
        Alu::And => x & y,
        Alu::Xor => x ^ y,
        Alu::Lsh => x.wrapping_shl(y as u32),
        Alu::Rsh => x.wrapping_shr(y as u32),
        Alu::Arsh => sx.wrapping_shr(y as u32) as u64,
    }
}

fn compute_narrow(op: Alu, x: u32, y: u32) -> u32 {
    let (sx, sy) = (x as i32, y as i32);
    match op {
        Alu::Add => x.wrapping_add(y),
        Alu::Sub => x.wrapping_sub(y),
        Alu::Mul => x.wrapping_mul(y),
        Alu::Div => x.checked_div(y).unwrap_or(0),
        Alu::Mod => x.checked_rem(y).unwrap_or(x),
        Alu::SignedDiv if y == 0 => 0,
        Alu::SignedDiv => sx.wrapping_div(sy) as u32,
        Alu::SignedMod if y == 0 => x,
        Alu::SignedMod => sx.wrapping_rem(sy) as u32,
        Alu::Or => x | y,
        Alu::And => x & y,
        Alu::Xor => x ^ y,
        Alu::Lsh => x.wrapping_shl(y),
        Alu::Rsh => x.wrapping_shr(y),
        Alu::Arsh => sx.wrapping_shr(y) as u32,
    }
}

fn compare(cond: Cond, wide: bool, x: u64, y: u64) -> bool {
    let (x, y, sx, sy) = if wide {
        (x, y, x as i64, y as i64)
    } else {
        let low = |number: u64| u64::from(number as u32);
        (low(x), low(y), (x as i32).into(), (y as i32).into())
    };
    match cond {
        Cond::Equal => x == y,
        Cond::NotEqual => x != y,
        Cond::Greater => x > y,
        Cond::GreaterEqual => x >= y,
        Cond::Less => x < y,
        Cond::LessEqual => x <= y,
        Cond::SignedGreater => sx > sy,
        Cond::SignedGreaterEqual => sx >= sy,
        Cond::SignedLess => sx < sy,
        Cond::SignedLessEqual => sx <= sy,
        Cond::AnySet => x & y != 0,
    }
}
