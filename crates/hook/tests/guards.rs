//! Wherever a thread arrives in a jump that a kernel uprobe has overwritten, or has left, it meets
//! a known breakpoint before any other code that no compiler wrote.

use beeline_hook::{Function, Guard, INT3, Kind, Plan, plan, reach};
use iced_x86::{Code, Decoder, DecoderOptions, Instruction};

const SITE: u64 = 0x7f12_3456_7890;

/// First instructions of functions, with enough behind them.
const CODE: &[&[u8]] = &[
    b"\x55\x48\x89\xe5\x53\x50\xc3", // push rbp; mov rbp, rsp; push rbx; push rax
    b"\x50\x51\x52\x53\x54\x55\xc3", // push, push, ...
    b"\x41\x57\x41\x56\x41\x55\xc3", // push r15; push r14; push r13
    b"\x31\xc0\x89\xf8\x01\xf0\xc3", // xor eax, eax; mov eax, edi; add eax, esi
    b"\x85\xff\x74\x02\x31\xc0\x90\x90\xc3", // test edi, edi; je +2
    b"\x48\x89\xf8\x48\x01\xf0\xc3", // mov rax, rdi; add rax, rsi
    b"\x83\xff\x01\x74\x02\x31\xc0\xc3\xc3", // cmp edi, 1
    b"\x48\x83\xec\x18\x48\x89\xf8\xc3", // sub rsp, 24
    b"\xf3\x0f\x1e\xfa\x55\x48\x89\xe5\xc3", // endbr64
    b"\x8b\x44\x24\x08\x01\xf8\x90\xc3", // mov eax, [rsp+8]
    b"\x0f\x1f\x44\x00\x00\x48\x89\xf8\xc3", // nop
    b"\x48\x8d\x64\x24\xf8\x48\x89\xf8\xc3", // lea rsp, [rsp-8]
    b"\xb8\x01\x00\x00\x00\x01\xf8\xc3", // mov eax, 1
    b"\xf7\xc7\x00\x01\x00\x00\x74\x00\x90\xc3", // test edi, 256
    b"\x68\x01\x00\x00\x00\x58\x90\xc3", // push 1
    b"\x8b\x05\x00\x01\x00\x00\x01\xf8\xc3", // mov eax, [rip+256]
    b"\x0f\xb6\x05\x00\x01\x00\x00\x90\xc3", // movzx eax, byte [rip+256]
    b"\x80\x3d\x00\x01\x00\x00\x00\x74\x00\xc3", // cmp byte [rip+256], 0
    b"\x48\x81\xec\x00\x10\x00\x00\x90\x90\xc3", // sub rsp, 4096
    b"\x48\xb8\x01\x02\x03\x04\x05\x06\x07\x08\x90\xc3", // mov rax, imm64
    b"\xff\x25\x00\x01\x00\x00\xcc\xcc", // jmp [rip+256]
    b"\xe9\x00\x01\x00\x00\xcc\xcc", // jmp +256
    b"\xc3\x90\x90\x90\x90\x90\x90\x90", // ret
    b"\xc3\xcc\xcc\xcc\xcc\xcc\xcc\xcc", // ret, as assemblers pad
    b"\x89\xf8\xc3\x66\x90\xcc\xcc\xcc", // mov eax, edi; ret
    b"\x64\x48\x8b\x04\x25\x28\x00\x00\x00\x90\x90\xc3", // mov rax, fs:[40]
];

fn jump(code: &[u8]) -> Plan {
    let function = Function { start: SITE, code };
    let plan = plan(SITE, &function).unwrap();
    assert_eq!(plan.kind, Kind::Jump, "{code:02x?}");
    plan
}

fn decode(bytes: &[u8], offset: usize) -> Instruction {
    let at = SITE + offset as u64;
    Decoder::with_ip(64, &bytes[offset..], at, DecoderOptions::NONE).decode()
}

/// Runs from `offset` on until a breakpoint, over at most one other instruction, and returns where
/// the next one would begin.
fn trap(bytes: &[u8], offset: usize) -> Option<(usize, bool)> {
    let first = decode(bytes, offset);
    if first.code() == Code::Int3 {
        return Some(((first.next_ip() - SITE) as usize, false));
    }
    let second = decode(bytes, offset + first.len());
    let is_trap = second.code() == Code::Int3;
    is_trap.then(|| ((second.next_ip() - SITE) as usize, true))
}

fn patches<'a>(plan: &'a Plan) -> impl Iterator<Item = (&'a Guard, Vec<u8>)> + 'a {
    let (low, high) = reach(SITE).into_inner();
    plan.guards.iter().flat_map(move |guard| {
        let targets = guard.targets(SITE, low, high).take(50);
        targets.map(move |target| (guard, guard.patch(SITE, target)))
    })
}

fn file(plan: &Plan) -> Vec<u8> {
    plan.displaced_bytes().flatten().copied().collect()
}

#[test]
fn every_usual_first_instruction_can_be_guarded() {
    for code in CODE {
        assert_ne!(jump(code).guards.len(), 0, "{code:02x?}");
    }
}

#[test]
fn behind_the_first_instruction_that_the_kernel_runs_is_a_breakpoint() {
    for code in CODE {
        let plan = jump(code);
        let first = plan.instructions().next().unwrap().decoded();
        let ends = matches!(
            first.code(),
            Code::Retnq | Code::Jmp_rel32_64 | Code::Jmp_rm64
        );
        for (guard, patch) in patches(&plan).filter(|_| !ends) {
            let (behind, _) = trap(&patch, first.len()).unwrap();
            let known = guard.traps.iter().find(|trap| trap.behind == behind);
            assert!(known.is_some(), "{code:02x?} {patch:02x?}");
        }
    }
}

#[test]
fn when_the_first_byte_comes_back_a_breakpoint_is_next() {
    for code in CODE {
        let plan = jump(code);
        let original = file(&plan);
        for (guard, mut patch) in patches(&plan) {
            patch[0] = original[0];
            let first = decode(&patch, 0);
            let own = plan.instructions().next().unwrap().decoded();
            if guard.traps.is_empty() {
                // The instruction branches away by itself, or is the jump.
                assert!(first.code() == own.code(), "{code:02x?} {patch:02x?}");
                continue;
            }
            let (behind, _) = trap(&patch, 0).unwrap();
            let known = guard.traps.iter().find(|trap| trap.behind == behind);
            let known = known.unwrap_or_else(|| panic!("{code:02x?} {patch:02x?}"));
            // The file's instruction has either been run, or is run from the start.
            assert!(known.resume == 0 || first.len() == own.len());
        }
    }
}

#[test]
fn other_places_are_where_a_changed_displacement_leads() {
    for code in CODE {
        let plan = jump(code);
        // Padding behind the instructions, too.
        let original = code;
        let decoder = Decoder::with_ip(64, code, SITE, DecoderOptions::NONE);
        let starts = decoder.into_iter().map(|one| (one.ip() - SITE) as usize);
        let starts: Vec<usize> = starts.collect();
        let lead = |patch: &[u8]| decode(patch, 0).near_branch_target();
        for (guard, patch) in patches(&plan) {
            let target = lead(&patch);
            let others = guard.variants(SITE, target);
            for start in starts.iter().filter(|start| (1..5).contains(*start)) {
                for byte in [INT3, original[*start]] {
                    let mut changed = patch.clone();
                    changed[*start] = byte;
                    let to = lead(&changed);
                    assert!(to == target || others.contains(&to), "{code:02x?}");
                }
            }
        }
    }
}

#[test]
fn targets_ascend_within_bounds_and_have_the_fixed_bytes() {
    for code in CODE {
        let plan = jump(code);
        for guard in &plan.guards {
            let (low, high) = (SITE - (1 << 30), SITE + (1 << 30));
            let targets: Vec<u64> = guard.targets(SITE, low, high).collect();
            assert!(targets.is_sorted());
            for target in targets {
                assert!((low..=high).contains(&target));
                let patch = guard.patch(SITE, target);
                let bytes = patch[1..5].iter().zip(guard.fixed);
                assert!(
                    bytes
                        .into_iter()
                        .all(|(byte, fixed)| fixed.is_none_or(|one| one == *byte))
                );
            }
        }
    }
}

#[test]
fn when_a_later_instructions_first_byte_comes_back_it_is_whole_or_a_breakpoint_is_next() {
    for code in CODE {
        let plan = jump(code);
        let best = plan.guards.first();
        let is_harmless = best.is_none_or(|best| later_bytes_come_back_unharmed(&plan, best));
        assert!(is_harmless, "{code:02x?} {best:02x?}");
    }
}

/// movsxd rdi, edi; lea rax, [rdi+rsi*2]; ret: the bytes behind the second one's first byte decide
/// the length of the jump.
#[test]
fn there_are_many_ways_to_have_a_breakpoint_next() {
    let plan = jump(b"\x48\x63\xff\x48\x8d\x04\x77\xc3");
    let guards = plan.guards.iter();
    let harmless: Vec<_> = guards
        .take_while(|guard| later_bytes_come_back_unharmed(&plan, guard))
        .collect();
    let mut last: Vec<_> = harmless.iter().map(|guard| guard.fixed[3]).collect();
    last.dedup();
    assert!(last.len() > 20, "{last:02x?}");
}

/// True if each later instruction with a first byte that has come back is whole, or leads to an
/// `int3` that says where to go on.
fn later_bytes_come_back_unharmed(plan: &Plan, guard: &Guard) -> bool {
    let original = file(plan);
    let lens = plan.instructions().map(|one| one.decoded().len());
    let starts = lens.scan(0, |at, len| Some(std::mem::replace(at, *at + len)));
    let later: Vec<usize> = starts.filter(|start| (1..4).contains(start)).collect();
    let (low, high) = reach(SITE).into_inner();
    let target = guard.targets(SITE, low, high).next().unwrap();
    let mut patch = guard.patch(SITE, target);
    for start in &later {
        patch[*start] = original[*start];
    }
    later.iter().all(|start| {
        let own = decode(&original, *start);
        let whole = *start..(*start + own.len()).min(patch.len());
        if patch[whole.clone()] == original[whole] {
            return true;
        }
        let is_known = |behind: usize| {
            let mut traps = guard.traps.iter();
            traps.any(|trap| trap.behind == behind && trap.resume == *start)
        };
        trap(&patch, *start).is_some_and(|(behind, _)| is_known(behind))
    })
}
