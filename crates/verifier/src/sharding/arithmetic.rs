//! Arithmetic on abstract values.

use beeline_isa::{Alu, Size};

use super::value::*;

const LOW: u64 = u32::MAX as u64;

/// Returns the offset, and some bytes.
pub(super) fn moved_by(offset: Offset, by: i64) -> Offset {
    match offset {
        Offset::At(at) => Offset::At(at.wrapping_add(by)),
        Offset::Some { base, stride, def } => Offset::Some {
            base: base.wrapping_add(by),
            stride,
            def,
        },
    }
}

/// Returns a value as something that is added. `def` names it if it has no name.
pub(super) fn addend(value: &Value, def: Def) -> Addend {
    match (&value.kind, value.def()) {
        (Kind::Const(number), _) => Addend::Const(*number),
        (_, Some(of)) => Addend::Def(of),
        _ => Addend::Def(def),
    }
}

/// Returns `src`, or its low half.
pub(super) fn moved(wide: bool, src: &Value, def: Def) -> Value {
    if wide {
        return src.clone();
    }
    let kind = match &src.kind {
        Kind::Const(number) => Kind::Const(number & LOW),
        Kind::Id(Id::Both) => Kind::Id(Id::One(OneId::Thread)),
        Kind::Id(Id::One(_)) => src.kind.clone(),
        Kind::Sum(sum) if sum.size == 4 => sum.named(def),
        _ => return src.blurred(def),
    };
    Value {
        kind,
        ..src.clone()
    }
}

pub(super) fn sign_extended(wide: bool, from: Size, src: &Value, def: Def) -> Value {
    match (&src.kind, from) {
        // Ids are below 2^31.
        (Kind::Id(Id::Both | Id::One(_)), Size::B4) => moved(false, src, def),
        (Kind::Sum(sum), Size::B4) if wide && sum.size == 4 => Value {
            kind: sum.named(def),
            ..src.clone()
        },
        _ => src.blurred(def),
    }
}

/// Returns `one op two`; `def` is the origin of results that are not understood.
pub(super) fn alu(op: Alu, wide: bool, one: &Value, two: &Value, def: Def) -> Value {
    let known = match op {
        Alu::Add => plus(wide, one, two, def).or_else(|| plus(wide, two, one, def)),
        Alu::Sub => minus(wide, one, two, def),
        Alu::And if wide && two.as_const() == Some(LOW) => low_half(one),
        _ => None,
    };
    if let Some(value) = known.or_else(|| number(op, wide, one, two)) {
        return value;
    }
    if let (true, Some(count)) = (wide, two.as_const())
        && let Some(value) = shifted(op, one, count)
    {
        return value;
    }
    let mut result = one.mix(two, def);
    result.zeros = match (op, two.as_const()) {
        (Alu::Lsh, Some(count)) => (one.low_zeros() + (count as u32 & 63)).min(32),
        (Alu::Add | Alu::Sub | Alu::Or | Alu::Xor, _) => one.low_zeros().min(two.low_zeros()),
        (Alu::And, _) => one.low_zeros().max(two.low_zeros()).min(32),
        (Alu::Mul, _) => (one.low_zeros().min(32) + two.low_zeros().min(32)).min(32),
        _ => 0,
    };
    result
}

/// Adds to what is followed: pointers and sums.
fn plus(wide: bool, base: &Value, by: &Value, def: Def) -> Option<Value> {
    let mut result = base.clone();
    result.taint = base.taint.with(by.all_taint());
    result.elements = base.elements.with(by.all_elements());
    result.handles = base.handles.with(by.all_handles());
    result.kind = match &base.kind {
        Kind::Frame(at) if wide => {
            let by = by
                .as_const()
                .and_then(|by| i32::try_from(by.cast_signed()).ok());
            Kind::Frame(at.and_then(|at| at.checked_add(by?)))
        }
        Kind::Element {
            place,
            offset,
            null,
        } if wide => Kind::Element {
            place: place.clone(),
            offset: offset_by(*offset, by, def),
            null: *null,
        },
        Kind::Sum(sum) if wide || sum.size == 4 => Kind::Sum(Sum {
            plus: match (sum.plus, by.as_const(), by.def()) {
                (Addend::Const(plus), Some(by), _) => Addend::Const(plus.wrapping_add(by)),
                (Addend::Const(0), None, Some(by)) => Addend::Def(by),
                _ => Addend::Def(def),
            },
            def,
            ..sum.clone()
        }),
        _ => return None,
    };
    Some(result)
}

fn minus(wide: bool, base: &Value, by: &Value, def: Def) -> Option<Value> {
    match by.as_const() {
        Some(number) => plus(wide, base, &Value::constant(number.wrapping_neg()), def),
        None => {
            let by = Value {
                kind: Kind::Unknown(def),
                zeros: by.low_zeros(),
                ..by.blurred(def)
            };
            plus(wide, base, &by, def)
        }
    }
}

fn offset_by(offset: Offset, by: &Value, def: Def) -> Offset {
    let by_stride = 1u64 << by.low_zeros().min(32);
    match (offset, by.as_const()) {
        (_, Some(by)) => moved_by(offset, by.cast_signed()),
        (Offset::At(base), None) => Offset::Some {
            base,
            stride: by_stride,
            def,
        },
        (Offset::Some { base, stride, .. }, None) => Offset::Some {
            base,
            stride: stride.min(by_stride),
            def,
        },
    }
}

fn low_half(value: &Value) -> Option<Value> {
    matches!(value.kind, Kind::Id(Id::Both | Id::One(_))).then(|| moved(false, value, Def::Stale))
}

/// Shifts ids from one half of 64 bits to the other.
fn shifted(op: Alu, value: &Value, count: u64) -> Option<Value> {
    let Kind::Id(id) = value.kind else {
        return None;
    };
    let id = match (op, count, id) {
        (Alu::Lsh, 32, Id::Both) => Id::High(OneId::Thread),
        (Alu::Lsh, 32, Id::One(id)) => Id::High(id),
        (Alu::Rsh | Alu::Arsh, 32, Id::Both) => Id::One(OneId::Process),
        (Alu::Rsh | Alu::Arsh, 32, Id::High(id)) => Id::One(id),
        _ => return None,
    };
    Some(Value {
        kind: Kind::Id(id),
        ..value.clone()
    })
}

fn number(op: Alu, wide: bool, one: &Value, two: &Value) -> Option<Value> {
    let (a, b) = (one.as_const()?, two.as_const()?);
    let bits = if wide { 64 } else { 32 };
    let (a, b) = if wide { (a, b) } else { (a & LOW, b & LOW) };
    let count = (b % bits) as u32;
    let result = match op {
        Alu::Add => a.wrapping_add(b),
        Alu::Sub => a.wrapping_sub(b),
        Alu::Mul => a.wrapping_mul(b),
        Alu::Or => a | b,
        Alu::And => a & b,
        Alu::Xor => a ^ b,
        Alu::Lsh => a << count,
        Alu::Rsh => a >> count,
        _ => return None,
    };
    let kind = Kind::Const(if wide { result } else { result & LOW });
    Some(Value {
        kind,
        ..one.mix(two, Def::Stale)
    })
}
