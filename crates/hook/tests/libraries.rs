//! Every function of real libraries can be hooked, and moved code means the same.

mod support;

use std::collections::BTreeMap;

use beeline_hook::{
    Direct, EmitError, Full, Function, Incoming, Kind, Plan, PlanError, Reason, Registers,
    TrampolineSpec, emit, jump_patch, plan, plan_among,
};
use iced_x86::{Decoder, DecoderOptions};

use support::elf::Library;
use support::same;

/// The assumed addresses of the libraries, and the distance from there to trampolines.
const BASE: u64 = 0x7f12_3450_0000;
const DISTANCE: u64 = 0x2345_6780;

#[derive(Default)]
struct Tally {
    sites: u32,
    jumps: u32,
    /// Jumps that a kernel uprobe must not overwrite, by their first instructions.
    unguarded: BTreeMap<String, u32>,
    flags_kept: u32,
    reasons: BTreeMap<String, u32>,
    refused: BTreeMap<String, u32>,
}

impl Tally {
    fn site(&mut self, site: u64, function: &Function, incoming: &Incoming) {
        self.sites += 1;
        let plan = match plan_among(site, function, incoming) {
            Ok(plan) => plan,
            Err(error) => return *self.refused.entry(kind_of(&error)).or_default() += 1,
        };
        self.flags_kept += u32::from(plan.flags.live());
        match &plan.kind {
            Kind::Jump => {
                self.jumps += 1;
                let first = plan.instructions().next();
                if let Some(first) = first.filter(|_| plan.guards.is_empty()) {
                    *self
                        .unguarded
                        .entry(format!("{:?}", first.decoded().code()))
                        .or_default() += 1;
                }
            }
            Kind::Breakpoint { reason } => *self.reasons.entry(reason_of(reason)).or_default() += 1,
        }
        check(&plan).unwrap_or_else(|why| panic!("{site:#x}: {why}"));
    }

    fn report(&self, name: &str) {
        let share = 100.0 * f64::from(self.jumps) / f64::from(self.sites);
        eprintln!(
            "{name}: {} sites, {} jumps ({share:.2}%), {} keep the flags",
            self.sites, self.jumps, self.flags_kept
        );
        eprintln!("    breakpoints: {:?}", self.reasons);
        let unguarded: u32 = self.unguarded.values().sum();
        eprintln!("    unguarded jumps: {unguarded}, {:?}", self.unguarded);
        eprintln!("    refused: {:?}", self.refused);
    }
}

fn kind_of(error: &PlanError) -> String {
    match error {
        PlanError::CannotMove { instruction, .. } => {
            instruction.split(' ').next().unwrap_or_default().to_owned()
        }
        other => format!("{other:?}")
            .split(' ')
            .next()
            .unwrap_or_default()
            .to_owned(),
    }
}

fn reason_of(reason: &Reason) -> String {
    format!("{reason:?}")
        .split(' ')
        .next()
        .unwrap_or_default()
        .to_owned()
}

/// Checks trampolines of all kinds on both sides of the site.
fn check(plan: &Plan) -> Result<(), String> {
    let leave = plan.at_start.then_some(0x7f00_0000_2000);
    let full = TrampolineSpec::Full(Full {
        descriptor: 0x7f00_0000_0000,
        enter: 0x7f00_0000_1000,
        leave,
        shows_registers: true,
    });
    let direct = TrampolineSpec::Direct(Direct {
        entry: 0x7f00_0000_1000,
        clobbers: Registers::CALLER_SAVED,
    });
    for (at, spec) in [(plan.site + DISTANCE, full), (plan.site - DISTANCE, direct)] {
        assert!(plan.reach().is_some_and(|reach| reach.contains(&at)));
        let trampoline = emit(plan, at, &spec).map_err(|error| error.to_string())?;
        assert!(trampoline.bytes.len() < 800, "{}", trampoline.bytes.len());
        same::check(plan, &trampoline, at)?;
        if plan.kind == Kind::Jump {
            jump_patch(plan.site, plan.window_len, at).map_err(|error| error.to_string())?;
        }
    }
    Ok(())
}

fn functions_of(name: &str) -> Option<Library> {
    let library = Library::find(name);
    if library.is_none() {
        eprintln!("skipped: {name} is not installed");
    }
    library
}

fn incoming(library: &Library) -> Incoming {
    Incoming::of(library.bodies().map(|(start, code)| Function {
        start: BASE + start,
        code,
    }))
}

fn starts(name: &str) {
    let Some(library) = functions_of(name) else {
        return;
    };
    let incoming = incoming(&library);
    let mut tally = Tally::default();
    for (start, code) in library.bodies() {
        tally.site(
            BASE + start,
            &Function {
                start: BASE + start,
                code,
            },
            &incoming,
        );
    }
    tally.report(name);
    assert!(tally.sites > 1000);
    assert!(f64::from(tally.jumps) > 0.98 * f64::from(tally.sites));
    assert!(f64::from(tally.refused.values().sum::<u32>()) < 0.002 * f64::from(tally.sites));
}

#[test]
fn function_starts_of_libc() {
    starts("libc.so.6");
}

#[test]
fn function_starts_of_libcrypto() {
    starts("libcrypto.so.3");
}

/// Each instruction of every 20th function.
fn insides(name: &str) {
    let Some(library) = functions_of(name) else {
        return;
    };
    let incoming = incoming(&library);
    let mut tally = Tally::default();
    for (start, code) in library
        .bodies()
        .step_by(20)
        .filter(|(_, code)| code.len() < 4096)
    {
        let function = Function {
            start: BASE + start,
            code,
        };
        let mut decoder = Decoder::with_ip(64, code, function.start, DecoderOptions::NONE);
        while decoder.can_decode() {
            let instruction = decoder.decode();
            if instruction.is_invalid() {
                break;
            }
            tally.site(instruction.ip(), &function, &incoming);
        }
    }
    tally.report(&format!("inside functions of {name}"));
    assert!(tally.sites > 10_000);
}

#[test]
fn insides_of_libc() {
    insides("libc.so.6");
}

#[test]
fn insides_of_libcrypto() {
    insides("libcrypto.so.3");
}

/// A trampoline too far away is an error, never wrong code.
#[test]
fn out_of_reach_is_an_error() {
    let Some(library) = functions_of("libc.so.6") else {
        return;
    };
    let spec = TrampolineSpec::Direct(Direct {
        entry: 0,
        clobbers: Registers::NONE,
    });
    for (start, code) in library.bodies().step_by(5) {
        let Ok(plan) = plan(
            BASE + start,
            &Function {
                start: BASE + start,
                code,
            },
        ) else {
            continue;
        };
        for at in [plan.site + (1 << 33), plan.site - (1 << 33)] {
            match emit(&plan, at, &spec) {
                Ok(trampoline) => same::check(&plan, &trampoline, at).unwrap(),
                Err(EmitError::Relocate(_) | EmitError::JumpBack { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }
}
