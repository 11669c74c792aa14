//! Nothing panics on any bytes, and moved code means the same.

mod support;

use beeline_hook::{
    CallPatch, CallSites, CallSpec, CommonCode, Direct, Full, Function, Incoming, Kind, Registers,
    TrampolineSpec, displaced, emit, jump_patch, plan, plan_among,
};
use iced_x86::{Decoder, DecoderOptions};
use proptest::prelude::*;

use support::same;

/// Bytes that begin something: prefixes, branches, calls, operands relative to the instruction.
fn likely() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        proptest::collection::vec(any::<u8>(), 1..6),
        proptest::sample::select(vec![
            vec![0x66],
            vec![0x67],
            vec![0xf2],
            vec![0xf3],
            vec![0x64],
            vec![0x48],
            vec![0x41],
            vec![0xf0],
            vec![0x0f],
            vec![0x0f, 0x84],
            vec![0xe8],
            vec![0xe9],
            vec![0xeb],
            vec![0x74],
            vec![0xe2],
            vec![0xe3],
            vec![0xff, 0x15],
            vec![0xff, 0x25],
            vec![0xff, 0x54, 0x24],
            vec![0xff, 0xd0],
            vec![0x8b, 0x05],
            vec![0xc7, 0xf8],
            vec![0xc4, 0xe2],
            vec![0xc5],
            vec![0x62, 0xf1],
            vec![0x0f, 0x05],
            vec![0xb8, 0x27, 0, 0, 0, 0x0f, 0x05],
            vec![0x48, 0x3d, 0x00, 0xf0, 0xff, 0xff],
            vec![0x90],
            vec![0xc3],
            vec![0xcc],
        ]),
    ];
    proptest::collection::vec(piece, 1..12).prop_map(|pieces| pieces.concat())
}

fn try_everything(code: &[u8], start: u64, at: u64) {
    let function = Function { start, code };
    let incoming = Incoming::of([function]);
    for site in start..start.saturating_add(code.len() as u64 + 1) {
        let _ = plan_among(site, &function, &incoming);
        let Ok(plan) = plan(site, &function) else {
            continue;
        };
        assert!(plan.window_len <= code.len());
        let leave = plan.at_start.then_some(1);
        let specs = [
            TrampolineSpec::Full(Full {
                descriptor: u64::MAX,
                enter: at,
                leave,
                shows_registers: true,
            }),
            TrampolineSpec::Direct(Direct {
                entry: at,
                clobbers: Registers::CALLER_SAVED,
            }),
        ];
        for spec in specs {
            let Ok(trampoline) = emit(&plan, at, &spec) else {
                continue;
            };
            same::check(&plan, &trampoline, at).unwrap();
        }
        if let Ok(body) = displaced(&plan, at) {
            same::check(&plan, &body, at).unwrap();
        }
        let near = plan.reach().is_some_and(|reach| reach.contains(&at));
        if near {
            assert!(plan.kind != Kind::Jump || jump_patch(site, plan.window_len, at).is_ok());
            for spec in specs {
                emit(&plan, at, &spec).unwrap();
            }
        }
    }
}

/// Decodes both, at the first address of each in the resume map that is in the window, and not of a
/// moved call.
fn displaced_mean_the_same(code: &[u8], start: u64, patch: &CallPatch, stub: &[u8], at: u64) {
    let mut last = None;
    for (address, moved) in &patch.resume_map {
        let offset = address.wrapping_sub(start) as usize;
        let behind_call = offset >= 2 && code[offset - 2..offset] == [0x0f, 0x05];
        let is_inside = address.wrapping_sub(patch.site) < patch.original.len() as u64;
        let is_check = behind_call && last != Some(address);
        last = Some(address);
        if is_inside && !is_check {
            let original =
                Decoder::with_ip(64, &code[offset..], *address, DecoderOptions::NONE).decode();
            let moved_code = &stub[moved.wrapping_sub(at) as usize..];
            same::same(&original, moved_code, *moved).unwrap();
        }
    }
}

/// All calls of a function, found at one address and hooked at another. No byte is overwritten for
/// two of them.
fn try_calls(code: &[u8], start: u64, bias: u64, away: i64) {
    let sites = CallSites::of(&[Function { start, code }], |_| Some(code));
    let mut overwritten = 0;
    for plan in &sites.plans {
        let at = plan.at(bias).call.wrapping_add_signed(away);
        let spec = CallSpec {
            enter: 0,
            exit: 0,
            compact_enter: 0,
            compact_exit: 0,
            watched: 0,
        };
        let common = CommonCode::emit(at.wrapping_sub(1 << 20), &spec).unwrap();
        let near =
            |plan: &beeline_hook::CallPlan| plan.reach().is_some_and(|reach| reach.contains(&at));
        let plan = plan.at(bias);
        match plan.emit(at, &common, 2) {
            Ok(stub) => {
                assert!(stub.bytes.len() < 1000);
                for patch in stub.patches {
                    displaced_mean_the_same(
                        code,
                        start.wrapping_add(bias),
                        &patch,
                        &stub.bytes,
                        at,
                    );
                    let from = patch.site.wrapping_sub(start.wrapping_add(bias)) as usize;
                    assert_eq!(code[from..from + patch.original.len()], patch.original);
                    assert_eq!(patch.bytes.len(), patch.original.len());
                    assert!(from >= overwritten);
                    overwritten = from + patch.original.len();
                }
            }
            Err(error) => assert!(!near(&plan), "{error}"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_patched_without_change_of_meaning(
        code in likely(),
        start in 0x10_0000u64..1 << 47,
        away in -(1i64 << 31)..1 << 31,
    ) {
        try_everything(&code, start, start.wrapping_add_signed(away));
    }

    #[test]
    fn any_address_is_patched_without_change_of_meaning(
        code in likely(),
        start in any::<u64>(),
        at in any::<u64>(),
    ) {
        try_everything(&code, start, at);
    }

    #[test]
    fn any_system_calls_are_patched_without_change_of_meaning(
        code in likely(),
        start in 0x10_0000u64..1 << 40,
        bias in 0u64..1 << 46,
        away in -(1i64 << 31)..1 << 31,
    ) {
        try_calls(&code, start, bias, away);
    }

    #[test]
    fn calls_at_any_address(code in likely(), start in any::<u64>(), bias in any::<u64>()) {
        try_calls(&code, start, bias, 0);
    }
}

/// Two calls side by side, of which the second has a prefix.
#[test]
fn a_prefixed_call_is_let_alone() {
    let code = [0x0f, 0x05, 0x66, 0x0f, 0x05, 0x40, 0x6a, 0x66];
    try_calls(&code, 0x10_0000, 0, 0);
    let start = 0x10_0000;
    let sites = CallSites::of(&[Function { start, code: &code }], |_| None);
    assert!(sites.plans.iter().all(|plan| plan.call == start));
    let unhookable = sites
        .unhookable
        .iter()
        .find(|unhookable| unhookable.call == start + 2);
    assert!(unhookable.is_some_and(|unhookable| unhookable.why.to_string().contains("prefixes")));
}
