//! Hooked code runs as if it were not hooked: every sample function is hooked at each of its
//! instructions in turn, and all registers, the flags and memory are compared with an unhooked run.

mod support;

use std::sync::atomic::Ordering::Relaxed;

use beeline_hook::{
    Direct, EmitError, Filter, Flags, Full, Function, INT3, Kind, Plan, Reason, Registers,
    Trampoline, TrampolineSpec, displaced, emit, jump_patch, plan,
};
use iced_x86::code_asm::*;
use iced_x86::{Decoder, DecoderOptions, IcedError};

use support::breakpoint::{BREAKPOINT, BREAKPOINT_TARGET, catch_breakpoints};
use support::hook;
use support::memory::{Pool, write};
use support::state::{ARITHMETIC, State};

type Sample = fn(&mut CodeAssembler) -> Result<(), IcedError>;

/// Functions with difficult instructions.
const SAMPLES: &[(&str, Sample)] = &[
    ("frame", |a| {
        a.endbr64()?;
        a.push(rbp)?;
        a.mov(rbp, rsp)?;
        a.sub(rsp, 32)?;
        a.mov(qword_ptr(rbp - 8), rdi)?;
        a.add(rdi, rsi)?;
        a.adc(rdx, qword_ptr(rbp - 8))?;
        a.mov(rax, rdx)?;
        a.leave()?;
        a.ret()
    }),
    ("five byte nop", |a| {
        a.nop_1(dword_ptr(rax + rax * 1))?;
        a.db(&[])?;
        a.lea(rax, ptr(rdi + rsi * 2))?;
        a.ret()
    }),
    ("red zone", |a| {
        a.mov(qword_ptr(rsp - 8), rdi)?;
        a.mov(qword_ptr(rsp - 64), rsi)?;
        a.mov(qword_ptr(rsp - 128), rdx)?;
        a.mov(rax, qword_ptr(rsp - 8))?;
        a.xor(rax, qword_ptr(rsp - 64))?;
        a.xor(rax, qword_ptr(rsp - 128))?;
        a.ret()
    }),
    ("flags kept over moves", |a| {
        a.cmp(rdi, rsi)?;
        a.mov(rcx, rdi)?;
        a.mov(r8, rsi)?;
        a.mov(r9, rdx)?;
        a.cmova(rax, rcx)?;
        a.setg(r8b)?;
        a.seto(r9b)?;
        a.setp(r10b)?;
        a.lahf()?;
        a.ret()
    }),
    ("flags read at the entry", |a| {
        a.adc(rdi, rsi)?;
        a.setb(al)?;
        a.ret()
    }),
    ("loop in the middle", |a| {
        let mut again = a.create_label();
        a.mov(ecx, 5)?;
        a.xor(eax, eax)?;
        a.set_label(&mut again)?;
        a.lea(rax, ptr(rax + rcx * 4))?;
        a.dec(ecx)?;
        a.jne(again)?;
        a.ret()
    }),
    ("loop to the start with live flags", |a| {
        let mut again = a.create_label();
        a.set_label(&mut again)?;
        a.adc(rax, rdi)?;
        a.mov(qword_ptr(rsp - 16), rax)?;
        a.movzx(ecx, cl)?;
        a.lea(rcx, ptr(rcx - 1))?;
        a.jrcxz(again)?;
        a.mov(rax, qword_ptr(rsp - 16))?;
        a.ret()
    }),
    ("short loop instruction", |a| {
        let mut again = a.create_label();
        let mut over = a.create_label();
        a.mov(ecx, 3)?;
        a.xor(eax, eax)?;
        a.set_label(&mut again)?;
        a.add(rax, rcx)?;
        a.loop_(again)?;
        a.jrcxz(over)?;
        a.mov(eax, 99)?;
        a.set_label(&mut over)?;
        a.inc(rax)?;
        a.nop()?;
        a.ret()
    }),
    ("branch first", |a| {
        let mut less = a.create_label();
        a.jb(less)?;
        a.lea(rax, ptr(rdi + 1))?;
        a.ret()?;
        a.set_label(&mut less)?;
        a.lea(rax, ptr(rdi + 2))?;
        a.ret()
    }),
    ("jump first", |a| {
        let mut on = a.create_label();
        a.jmp(on)?;
        a.db(&[0xcc; 14])?;
        a.set_label(&mut on)?;
        a.mov(eax, 7)?;
        a.ret()
    }),
    ("operand relative to the instruction", |a| {
        let mut number = a.create_label();
        a.mov(rax, qword_ptr(number))?;
        a.cmp(dword_ptr(number), 0x1234_5678)?;
        a.sete(dl)?;
        a.add(rax, qword_ptr(number))?;
        a.movq(xmm3, qword_ptr(number))?;
        a.ret()?;
        a.set_label(&mut number)?;
        a.dq(&[0x0bad_cafe_1234_5678])
    }),
    ("calls", |a| {
        let mut inner = a.create_label();
        let mut slot = a.create_label();
        a.sub(rsp, 8)?;
        a.call(inner)?;
        a.lea(r11, ptr(inner))?;
        a.call(r11)?;
        a.mov(qword_ptr(rsp), r11)?;
        a.call(qword_ptr(rsp))?;
        a.mov(qword_ptr(slot), r11)?;
        a.call(qword_ptr(slot))?;
        a.xor(r11d, r11d)?;
        a.mov(qword_ptr(slot), r11)?;
        a.mov(qword_ptr(rsp), r11)?;
        a.add(rsp, 8)?;
        a.ret()?;
        a.set_label(&mut inner)?;
        // The return address itself must be the original one; this returns its distance to its
        // function.
        a.mov(rax, qword_ptr(rsp))?;
        a.sub(rax, r11)?;
        a.lea(rcx, ptr(rcx + 1))?;
        a.lea(r8, ptr(r8 + rax))?;
        a.mov(r9, qword_ptr(rsp))?;
        a.lea(r10, ptr(inner))?;
        a.sub(r9, r10)?;
        a.xor(r10d, r10d)?;
        a.xor(r8d, r8d)?;
        a.xor(eax, eax)?;
        a.ret()?;
        a.set_label(&mut slot)?;
        a.dq(&[0])
    }),
    ("backward string copy", |a| {
        a.sub(rsp, 128)?;
        a.mov(qword_ptr(rsp), rdi)?;
        a.mov(qword_ptr(rsp + 8), rsi)?;
        a.lea(rsi, ptr(rsp + 8))?;
        a.lea(rdi, ptr(rsp + 24))?;
        a.std()?;
        a.mov(ecx, 2)?;
        a.mov(edx, edx)?;
        a.rep().movsq()?;
        a.cld()?;
        a.mov(rax, qword_ptr(rsp + 16))?;
        a.xor(rax, qword_ptr(rsp + 24))?;
        a.xor(esi, esi)?;
        a.xor(edi, edi)?;
        a.add(rsp, 128)?;
        a.ret()
    }),
    ("too short", |a| a.ret()),
];

fn assemble(sample: Sample, at: u64) -> Vec<u8> {
    let mut assembler = CodeAssembler::new(64).unwrap();
    sample(&mut assembler).unwrap();
    assembler.int3().unwrap();
    let mut code = assembler.assemble(at).unwrap();
    code.resize(code.len().next_multiple_of(16), INT3);
    code
}

fn full(leave: bool) -> TrampolineSpec {
    TrampolineSpec::Full(Full {
        descriptor: if leave { hook::WATCHED } else { hook::PLAIN },
        enter: hook::test_hook_enter as *const () as u64,
        leave: leave.then_some(hook::test_hook_leave as *const () as u64),
        shows_registers: true,
    })
}

/// Does the same as [`full`], for functions that read no register.
fn blind(leave: bool) -> TrampolineSpec {
    let TrampolineSpec::Full(spec) = full(leave) else {
        unreachable!()
    };
    TrampolineSpec::Full(Full {
        shows_registers: false,
        ..spec
    })
}

fn direct() -> TrampolineSpec {
    let entry = hook::test_hook_light as *const () as u64;
    TrampolineSpec::Direct(Direct {
        entry,
        clobbers: Registers::CALLER_SAVED,
    })
}

/// Asks a filter before [`full`] or [`blind`]: one that looks at rdi and, like any other, spoils
/// what it may.
fn filtered(passes: bool, is_shown: bool) -> TrampolineSpec {
    let hook = if is_shown { full(false) } else { blind(false) };
    let TrampolineSpec::Full(hook) = hook else {
        unreachable!()
    };
    let entry = match passes {
        true => hook::test_hook_light as *const () as u64,
        false => hook::test_hook_decline as *const () as u64,
    };
    let filter = Filter {
        entry,
        argument: Some(hook::PLAIN),
        reads: 1 << 14,
        clobbers: Registers::CALLER_SAVED,
    };
    TrampolineSpec::Filtered(filter, hook)
}

/// Puts the sample into the pool and hooks it there; returns its address.
fn hooked(
    pool: &mut Pool,
    sample: Sample,
    offset: u64,
    make: impl FnOnce(&Plan, u64) -> Trampoline,
) -> (u64, Plan, Trampoline) {
    let start = pool.next();
    pool.push(&assemble(sample, start));
    let len = (pool.next() - start) as usize;
    let plan = plan(
        start + offset,
        &Function {
            start,
            code: pool.bytes(start, len),
        },
    )
    .unwrap();
    let at = pool.next();
    assert!(plan.reach().unwrap().contains(&at));
    let trampoline = make(&plan, at);
    pool.push(&trampoline.bytes);
    let patch = match plan.kind {
        Kind::Jump => jump_patch(plan.site, plan.window_len, at).unwrap(),
        Kind::Breakpoint { .. } => {
            BREAKPOINT.store(plan.site, Relaxed);
            BREAKPOINT_TARGET.store(at, Relaxed);
            vec![INT3]
        }
    };
    // SAFETY: the pool's own memory, and nothing runs there now.
    unsafe { write(plan.site, &patch) };
    (start, plan, trampoline)
}

/// Offsets of the sample's instructions up to its first filler.
fn offsets(sample: Sample) -> Vec<u64> {
    let code = assemble(sample, 0);
    let mut decoder = Decoder::with_ip(64, &code, 0, DecoderOptions::NONE);
    let mut offsets = Vec::new();
    let mut furthest = 0;
    while decoder.can_decode() {
        let instruction = decoder.decode();
        if instruction.near_branch_target() != 0 {
            furthest = furthest.max(instruction.near_branch_target());
        }
        if instruction.mnemonic() != iced_x86::Mnemonic::Int3 {
            offsets.push(instruction.ip());
        }
        if instruction.mnemonic() == iced_x86::Mnemonic::Ret && instruction.ip() >= furthest {
            break;
        }
    }
    offsets
}

fn same_at_every_site(spec: TrampolineSpec) {
    let _turn = hook::TURN
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    catch_breakpoints();
    let mut pool = Pool::new(1 << 20);
    let (mut jumps, mut breakpoints, mut kept) = (0, 0, 0);
    for (name, sample) in SAMPLES {
        for offset in offsets(*sample) {
            let plain = pool.next();
            let code = assemble(*sample, plain);
            pool.push(&code);
            let (start, plan, _) = hooked(&mut pool, *sample, offset, |plan, at| {
                emit(plan, at, &spec).unwrap()
            });
            match plan.kind {
                Kind::Jump => jumps += 1,
                Kind::Breakpoint { .. } => breakpoints += 1,
            }
            kept += u32::from(plan.flags.live());
            for flags in [0, ARITHMETIC, 0x801, 0x0d4, 0x0c4, 0x041] {
                let before = State::sample(flags);
                hook::reset();
                // SAFETY: samples return and keep the stack.
                let (wanted, mut got) = unsafe { (before.call(plain), before.call(start)) };
                if plan.at_start && !plan.flags.live() {
                    // Flags mean nothing on entry to a function, and some samples pass them on.
                    got.flags = wanted.flags;
                }
                assert_eq!(got, wanted, "{name} +{offset:#x} {:?}", plan.kind);
                assert!(
                    hook::entered() > 0 || name.contains("branch") || name.contains("loop"),
                    "{name} +{offset:#x}"
                );
                if offset == 0 && !plan.red_zone {
                    assert_eq!(hook::misaligned(), 0, "{name}");
                }
            }
        }
    }
    eprintln!("{jumps} jumps, {breakpoints} breakpoints, {kept} keep the flags");
    assert!(jumps > 40 && breakpoints > 5 && kept > 10);
}

#[test]
fn full_hooks_change_nothing() {
    same_at_every_site(full(false));
}

#[test]
fn blind_hooks_change_nothing() {
    same_at_every_site(blind(false));
}

#[test]
fn light_hooks_change_nothing() {
    same_at_every_site(direct());
}

#[test]
fn hooks_behind_a_filter_change_nothing() {
    same_at_every_site(filtered(true, true));
    same_at_every_site(filtered(true, false));
}

#[test]
fn filters_that_let_nothing_pass_change_nothing() {
    same_at_every_site(filtered(false, true));
    same_at_every_site(filtered(false, false));
}

/// A filter gets the registers that it looks at, and only if it lets the hit pass is the hook
/// called, which gets all.
#[test]
fn a_filter_decides_by_the_registers() {
    let _turn = hook::TURN
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    let mut pool = Pool::new(1 << 16);
    // mov rax, [rdi+112]; sub rax, rsi; mov rdi, rax; ret
    let entry = pool.push(b"\x48\x8b\x47\x70\x48\x29\xf0\x48\x89\xc7\xc3");
    let (_, sample) = SAMPLES[0];
    for leave in [false, true] {
        let TrampolineSpec::Full(hook) = full(leave) else {
            unreachable!()
        };
        let hook = Full {
            descriptor: hook::PLAIN,
            ..hook
        };
        let filter = Filter {
            entry,
            argument: Some(7),
            reads: 1 << 14,
            clobbers: Registers::of_numbers(1 << 0 | 1 << 7),
        };
        let spec = TrampolineSpec::Filtered(filter, hook);
        let plain = pool.next();
        pool.push(&assemble(sample, plain));
        let (start, ..) = hooked(&mut pool, sample, 0, |plan, at| {
            emit(plan, at, &spec).unwrap()
        });
        for (first, hits) in [(7, 0), (8, 1)] {
            let mut before = State::sample(0);
            before.general[7] = first;
            hook::reset();
            // SAFETY: samples return and keep the stack.
            let (wanted, got) = unsafe { (before.call(plain), before.call(start)) };
            assert_eq!(got, wanted);
            assert_eq!((hook::entered(), hook::misaligned()), (hits, 0));
        }
        let numbers = [15, 14, 13, 12, 5, 3, 11, 10, 9, 8, 0, 1, 2, 6, 7];
        let mut before = State::sample(0);
        before.general[7] = 8;
        assert_eq!(
            hook::regs()[..15],
            numbers.map(|number| before.general[number])
        );
    }
}

/// A moved body alone, as a signal handler uses it.
#[test]
fn moved_instructions_alone_change_nothing() {
    moved_alone(None);
}

/// A moved body alone, too far away for a displacement to reach back.
#[test]
fn instructions_moved_far_away_change_nothing() {
    let near = Pool::new(1 << 12).next();
    moved_alone(Some(near - (8 << 30)));
}

fn moved_alone(far: Option<u64>) {
    let _turn = hook::TURN
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    catch_breakpoints();
    let mut pool = Pool::new(1 << 20);
    let around = |at: u64| Pool::within(at - (1 << 30)..=at + (1 << 30), 1 << 20);
    let mut bodies = far.map(around);
    let mut moved = 0;
    for (name, sample) in SAMPLES {
        for offset in offsets(*sample) {
            let plain = pool.next();
            let code = assemble(*sample, plain);
            pool.push(&code);
            let hooked = hooked_from(&mut pool, bodies.as_mut(), (*sample, offset), displaced);
            let Some(start) = hooked else { continue };
            moved += 1;
            for flags in [0, ARITHMETIC] {
                let before = State::sample(flags);
                // SAFETY: samples return and keep the stack.
                let (wanted, got) = unsafe { (before.call(plain), before.call(start)) };
                assert_eq!(got, wanted, "{name} +{offset:#x}");
            }
        }
    }
    assert!(moved > 60, "{moved}");
}

/// Does the same as [`hooked`], from a breakpoint to another pool if there is one; `None` if that
/// is too far away.
fn hooked_from(
    pool: &mut Pool,
    bodies: Option<&mut Pool>,
    (sample, offset): (Sample, u64),
    make: fn(&Plan, u64) -> Result<Trampoline, EmitError>,
) -> Option<u64> {
    let Some(bodies) = bodies else {
        let near = |plan: &Plan, at| make(plan, at).unwrap();
        return Some(hooked(pool, sample, offset, near).0);
    };
    let start = pool.next();
    pool.push(&assemble(sample, start));
    let code = pool.bytes(start, (pool.next() - start) as usize);
    let site = plan(start + offset, &Function { start, code }).unwrap();
    let site = site.into_breakpoint(Reason::NoRoom);
    let at = bodies.next();
    if !site.reach().is_some_and(|reach| reach.contains(&at)) {
        return None;
    }
    bodies.push(&make(&site, at).unwrap().bytes);
    BREAKPOINT.store(site.site, Relaxed);
    BREAKPOINT_TARGET.store(at, Relaxed);
    // SAFETY: the pool's own memory, and nothing runs there now.
    unsafe { write(site.site, &site.breakpoint_patch()) };
    Some(start)
}

#[test]
fn the_hook_sees_the_registers_of_the_site() {
    let _turn = hook::TURN
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    let mut pool = Pool::new(1 << 16);
    let sample = SAMPLES
        .iter()
        .find(|(name, _)| *name == "flags read at the entry")
        .unwrap()
        .1;
    let (start, plan, _) = hooked(&mut pool, sample, 0, |plan, at| {
        emit(plan, at, &full(false)).unwrap()
    });
    assert_eq!(
        (plan.kind, plan.flags, plan.red_zone),
        (Kind::Jump, Flags::Arithmetic, false)
    );
    for flags in [0, ARITHMETIC, 0x800, 0x001, 0x0d4] {
        let before = State::sample(flags);
        hook::reset();
        // SAFETY: samples return and keep the stack.
        unsafe { before.call(start) };
        let regs = hook::regs();
        let numbers = [15, 14, 13, 12, 5, 3, 11, 10, 9, 8, 0, 1, 2, 6, 7];
        assert_eq!(regs[..15], numbers.map(|number| before.general[number]));
        // orig_ax, ip, cs, flags; then sp, ss.
        assert_eq!(regs[15..19], [u64::MAX, start, 0x33, before.flags]);
        assert_eq!((regs[19] % 16, regs[20]), (8, 0x2b));
        assert_eq!(hook::entered(), 1);
    }
}

/// Recursive Fibonacci numbers, which have a known number of calls.
const FIBONACCI: Sample = |a| {
    let mut start = a.create_label();
    let mut done = a.create_label();
    a.set_label(&mut start)?;
    a.push(rbx)?;
    a.push(rdi)?;
    a.lea(rsp, ptr(rsp - 8))?;
    a.mov(rax, rdi)?;
    a.cmp(rdi, 2)?;
    a.jb(done)?;
    a.dec(rdi)?;
    a.call(start)?;
    a.mov(rbx, rax)?;
    a.mov(rdi, qword_ptr(rsp + 8))?;
    a.sub(rdi, 2)?;
    a.call(start)?;
    a.add(rax, rbx)?;
    a.set_label(&mut done)?;
    a.lea(rsp, ptr(rsp + 8))?;
    a.pop(rdi)?;
    a.pop(rbx)?;
    a.ret()
};

#[test]
fn returns_are_seen_through_recursion() {
    let _turn = hook::TURN
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    let mut pool = Pool::new(1 << 16);
    let plain = pool.next();
    let code = assemble(FIBONACCI, plain);
    pool.push(&code);
    let (start, plan, trampoline) = hooked(&mut pool, FIBONACCI, 0, |plan, at| {
        emit(plan, at, &full(true)).unwrap()
    });
    assert_eq!(plan.kind, Kind::Jump);
    assert!(
        trampoline
            .return_entry
            .is_some_and(|entry| entry < trampoline.body)
    );
    hook::reset();
    let mut before = State::sample(0);
    before.general[7] = 15;
    // SAFETY: the sample returns and keeps the stack.
    let (mut wanted, mut got) = unsafe { (before.call(plain), before.call(start)) };
    assert_eq!(
        (got.general[0], hook::entered(), hook::left()),
        (610, 1973, 1973)
    );
    assert_eq!(hook::misaligned(), 0);
    // Arithmetic flags mean nothing after a return.
    (wanted.flags, got.flags) = (0, 0);
    assert_eq!(got, wanted);
    assert_eq!(hook::regs()[10], 610);
    assert_eq!(hook::regs()[16], 0);
}

#[test]
fn a_watched_call_keeps_its_stack_arguments_and_both_result_registers() {
    const CS: usize = 17;
    keeps_arguments_and_results(&full(true));
    assert_eq!(hook::regs()[CS], 0x33);
    keeps_arguments_and_results(&blind(true));
    assert_eq!(hook::regs()[CS], 0);
}

fn keeps_arguments_and_results(spec: &TrampolineSpec) {
    let _turn = hook::TURN
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    const SUMS: Sample = |a| {
        a.mov(rax, qword_ptr(rsp + 8))?;
        a.mov(rdx, qword_ptr(rsp + 16))?;
        a.add(rax, rdi)?;
        a.ret()
    };
    let mut pool = Pool::new(1 << 16);
    let (start, ..) = hooked(&mut pool, SUMS, 0, |plan, at| emit(plan, at, spec).unwrap());
    let caller = pool.next();
    let mut assembler = CodeAssembler::new(64).unwrap();
    assembler.push(22).unwrap();
    assembler.push(11).unwrap();
    assembler.call(start).unwrap();
    assembler.lea(rsp, ptr(rsp + 16)).unwrap();
    assembler.ret().unwrap();
    pool.push(&assembler.assemble(caller).unwrap());
    hook::reset();
    let before = State::sample(0);
    // SAFETY: the caller returns and keeps the stack.
    let after = unsafe { before.call(caller) };
    assert_eq!(
        (after.general[0], after.general[2]),
        (11 + before.general[7], 22)
    );
    assert_eq!((hook::entered(), hook::left()), (1, 1));
}

/// The return goes to the caller if a hook with a `leave` does not request it.
#[test]
fn a_return_that_is_not_wanted_is_not_seen() {
    let _turn = hook::TURN
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    let mut pool = Pool::new(1 << 16);
    let TrampolineSpec::Full(mut spec) = full(true) else {
        unreachable!()
    };
    spec.descriptor = hook::PLAIN;
    let spec = TrampolineSpec::Full(spec);
    let (start, ..) = hooked(&mut pool, FIBONACCI, 0, |plan, at| {
        emit(plan, at, &spec).unwrap()
    });
    hook::reset();
    let mut before = State::sample(0);
    before.general[7] = 10;
    // SAFETY: the sample returns and keeps the stack.
    let after = unsafe { before.call(start) };
    assert_eq!(
        (after.general[0], hook::entered(), hook::left()),
        (55, 177, 0)
    );
}

/// A thread that is moved from the site's bytes to the trampoline goes on as it would have.
#[test]
fn threads_can_be_moved_by_the_resume_map() {
    let _turn = hook::TURN
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    const MOVES: Sample = |a| {
        a.inc(al)?;
        a.inc(cl)?;
        a.inc(dl)?;
        a.inc(bl)?;
        a.ret()
    };
    let mut pool = Pool::new(1 << 16);
    let plain = pool.next();
    let code = assemble(MOVES, plain);
    pool.push(&code);
    let (start, _, trampoline) = hooked(&mut pool, MOVES, 0, |plan, at| {
        emit(plan, at, &full(false)).unwrap()
    });
    assert_eq!(trampoline.resume_map.len(), 4);
    assert_eq!(trampoline.resume_map[0], (start, trampoline.body));
    for (original, moved) in &trampoline.resume_map {
        let before = State::sample(0);
        // SAFETY: each of them is an instruction of a function without a frame.
        let (wanted, got) =
            unsafe { (before.call(plain + (original - start)), before.call(*moved)) };
        assert_eq!(got, wanted, "+{:#x}", original - start);
    }
}
