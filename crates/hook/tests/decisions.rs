//! The decision for each kind of site, and its message.

use beeline_hook::{
    EmitError, Flags, Full, Function, Incoming, Kind, Plan, PlanError, Reason, TrampolineSpec,
};
use beeline_hook::{emit, plan, plan_among, reach};

const START: u64 = 0x40_1000;

fn at(offset: u64, code: &[u8]) -> Result<Plan, PlanError> {
    plan(START + offset, &Function { start: START, code })
}

#[track_caller]
fn jump(code: &[u8], window_len: usize) -> Plan {
    let plan = at(0, code).unwrap();
    assert_eq!((&plan.kind, plan.window_len), (&Kind::Jump, window_len));
    plan
}

#[track_caller]
fn breakpoint(offset: u64, code: &[u8], why: &str) -> Plan {
    let plan = at(offset, code).unwrap();
    match &plan.kind {
        Kind::Breakpoint { reason } => assert_eq!(reason.to_string(), why),
        Kind::Jump => panic!("a jump"),
    }
    plan
}

#[track_caller]
fn refused(offset: u64, code: &[u8], why: &str) {
    assert_eq!(at(offset, code).unwrap_err().to_string(), why);
}

#[test]
fn usual_prologues_take_a_jump() {
    // endbr64; push rbp; mov rbp, rsp
    jump(b"\xf3\x0f\x1e\xfa\x55\x48\x89\xe5\xc3", 8);
    // nop dword [rax+rax]
    jump(b"\x0f\x1f\x44\x00\x00\xc3", 6);
    // push rbp; mov rbp, rsp; sub rsp, 16
    jump(b"\x55\x48\x89\xe5\x48\x83\xec\x10\xc9\xc3", 8);
    // mov eax, 39; syscall; ret: the system call stays
    jump(b"\xb8\x27\x00\x00\x00\x0f\x05\xc3", 5);
    // sub rsp, 8; call +0
    jump(b"\x48\x83\xec\x08\xe8\x00\x01\x00\x00\xc3", 9);
    // push rax; jne +2; mov eax, edi
    jump(b"\x50\x75\x02\x89\xf8\xc3", 5);
    // cmp dword [rip+16], 0
    jump(b"\x83\x3d\x10\x00\x00\x00\x00\xc3", 8);
    // jmp elsewhere
    let plan = jump(b"\xe9\x00\x10\x00\x00", 5);
    assert_eq!(plan.instructions().count(), 1);
}

#[test]
fn padding_behind_a_short_function_is_used() {
    let plan = jump(b"\xc3\x90\x90\x90\x90\x90\x90", 5);
    assert_eq!(plan.instructions().count(), 1);
    jump(b"\x31\xc0\xc3\x0f\x1f\x40\x00", 7);
    jump(b"\xeb\x7f\xcc\xcc\xcc\xcc", 5);
}

#[test]
fn bytes_behind_a_function_are_not_touched() {
    breakpoint(0, b"\x31\xc0\xc3", "the function is too short (3 bytes)");
    breakpoint(0, b"\xc3", "the function is too short (1 byte)");
    // ret; push rbp: another function without a symbol
    breakpoint(
        0,
        b"\x31\xc0\xc3\x55\x48\x89\xe5\xc3",
        "the function is too short (3 bytes)",
    );
    // A patchable function's entry looks like padding, but starts where functions start.
    let mut two = vec![0x90; 13];
    two.extend(b"\xc3\x90\x90\x0f\x1f\x44\x00\x00\xc3");
    breakpoint(13, &two, "the function is too short (3 bytes)");
}

#[test]
fn branches_into_the_window_are_seen() {
    // push rax; dec edi; jne -4 (to the dec); ret
    breakpoint(
        0,
        b"\x50\xff\xcf\x75\xfc\x58\xc3",
        "a branch at +0x3 lands inside the patched bytes",
    );
    // The same loop, from the dec on: it lands on the site itself.
    let plan = at(1, b"\x50\xff\xcf\x75\xfc\x58\xc3").unwrap();
    assert_eq!(plan.kind, Kind::Jump);
    // far below
    let mut far = vec![0x50, 0x51, 0x52, 0x53, 0x54, 0xb8, 0, 0, 0, 0];
    far.extend([0x90; 300]);
    far.extend(b"\x0f\x84");
    far.extend((2i32 - (far.len() as i32 + 4)).to_le_bytes());
    far.push(0xc3);
    breakpoint(0, &far, "a branch at +0x136 lands inside the patched bytes");
    // lea rax, [rip-5]: its own third byte may be jumped to
    breakpoint(
        0,
        b"\x48\x8d\x05\xfb\xff\xff\xff\xff\xe0",
        "a branch at +0x0 lands inside the patched bytes",
    );
    breakpoint(
        0,
        b"\xeb\xfe\x90\x90\x90\x90\xc3",
        "the instruction branches to itself",
    );
}

#[test]
fn branches_from_other_functions_are_seen() {
    // mov rax, rdi; mov rcx, rdx; ret, and one that jumps to +3
    let target = Function {
        start: START,
        code: b"\x48\x89\xf8\x48\x89\xd1\xc3",
    };
    let other = Function {
        start: START + 0x40,
        code: b"\x90\xe9\xbd\xff\xff\xff\xc3",
    };
    let harmless = Function {
        start: START + 0x60,
        code: b"\xe9\x9b\xff\xff\xff",
    };
    assert_eq!(plan(START, &target).unwrap().kind, Kind::Jump);
    assert_eq!(
        plan_among(START, &target, &Incoming::of([target, harmless]))
            .unwrap()
            .kind,
        Kind::Jump
    );
    let plan = plan_among(START, &target, &Incoming::of([target, other, harmless])).unwrap();
    let Kind::Breakpoint { reason } = plan.kind else {
        panic!("a jump")
    };
    let why = "a branch at 0x401041, in another function, lands inside the patched bytes";
    assert_eq!(reason.to_string(), why);
}

#[test]
fn inside_a_function_unknown_targets_matter() {
    // nop x5; nop x5; jmp rax
    let table = b"\x90\x90\x90\x90\x90\x90\x90\x90\x90\x90\xff\xe0";
    jump(table, 5);
    let why = "an indirect jump at +0xa makes the function's branch targets unknown";
    breakpoint(1, table, why);
    // jmp [rip+x] is a call of an imported function.
    let tail = b"\x90\x90\x90\x90\x90\x90\x90\x90\x90\x90\xff\x25\x00\x10\x00\x00";
    assert_eq!(at(1, tail).unwrap().kind, Kind::Jump);
    // jne to a cold part
    let cold = b"\x90\x90\x90\x90\x90\x90\x90\x90\x90\x90\x0f\x85\x00\x10\x00\x00\xc3";
    breakpoint(
        1,
        cold,
        "a branch at +0xa leaves the function, and may come back to anywhere in it",
    );
    let function = Function {
        start: START,
        code: cold,
    };
    assert_eq!(
        plan_among(START + 1, &function, &Incoming::of([function]))
            .unwrap()
            .kind,
        Kind::Jump
    );
}

#[test]
fn calls_are_last_or_not_moved_with_others() {
    // call rax; mov eax, 1
    let plan = breakpoint(
        0,
        b"\xff\xd0\xb8\x01\x00\x00\x00\xc3",
        "a call is not the last displaced instruction",
    );
    assert_eq!((plan.window_len, plan.instructions().count()), (2, 1));
    // push rbx; lea; call [rax+8]: last, so moved
    jump(b"\x53\x90\xff\x50\x08\xc3", 5);
}

#[test]
fn instructions_that_cannot_move_are_named() {
    refused(
        0,
        b"\x0f\x0b\xc3\x90\x90",
        "the instruction `ud2` at +0x0 cannot be hooked: the address it faults at is seen by the process; choose the one before or after it",
    );
    breakpoint(
        0,
        b"\x90\x90\xf4\x90\x90\xc3",
        "instruction `hlt` cannot be moved: the address it faults at is seen by the process",
    );
    breakpoint(
        0,
        b"\x0f\x05\xc3\x90\x90\x90",
        "instruction `syscall` cannot be moved: its address is seen by the kernel",
    );
    let plan = at(0, b"\xc7\xf8\x00\x01\x00\x00\xc3").unwrap();
    assert!(matches!(plan.kind, Kind::Breakpoint { .. }), "xbegin");
    refused(
        0,
        b"\xff\xd4\xc3",
        "the instruction `call rsp` at +0x0 cannot be hooked: its target is the stack pointer; choose the one before or after it",
    );
    // lea eax, [eip+1]
    assert!(at(0, b"\x67\x8d\x05\x01\x00\x00\x00\xc3").is_err());
}

#[test]
fn offsets_have_to_start_an_instruction() {
    let prologue = b"\x55\x48\x89\xe5\x48\x83\xec\x10\xc9\xc3";
    refused(
        2,
        prologue,
        "offset +0x2 is inside the instruction `mov rbp,rsp` at +0x1: choose an offset where an instruction starts",
    );
    refused(
        10,
        prologue,
        "address 0x40100a is outside the function (10 bytes at 0x401000): choose an address inside",
    );
    refused(
        0,
        b"",
        "address 0x401000 is outside the function (0 bytes at 0x401000): choose an address inside",
    );
    refused(
        3,
        b"\x90\x06\x90\x90\x90\x90\x90",
        "the bytes at +0x1 are no instruction, so +0x3 cannot be told to be one: probe the function's start",
    );
    assert!(
        plan(
            u64::MAX,
            &Function {
                start: u64::MAX - 1,
                code: b"\x90\x90\x90"
            }
        )
        .is_err()
    );
}

#[test]
fn data_behind_the_code_is_told_from_code() {
    // Behind the last return.
    jump(b"\xb8\x01\x00\x00\x00\xc3\x06\x07\x0e", 6);
    // In the middle: the code that follows is not seen.
    let why = "the bytes at +0x6 are no instructions, so a branch may be hidden";
    breakpoint(0, b"\xb8\x01\x00\x00\x00\x90\x06\x07\x0e", why);
}

#[test]
fn flags_are_kept_only_where_something_reads_them() {
    let flags = |offset, code: &[u8]| at(offset, code).unwrap().flags;
    // Entered by calls only: registers that are not read at once mean nothing.
    assert_eq!(flags(0, b"\x55\x48\x89\xe5\x5d\xc3"), Flags::Dead);
    assert_eq!(flags(0, b"\x11\xf8\x90\x90\x90\xc3"), Flags::Arithmetic);
    // Inside: xor writes all; inc leaves the carry, which jc reads; moves decide nothing.
    assert_eq!(flags(1, b"\x90\x31\xc0\x90\x90\x90\xc3"), Flags::Dead);
    assert_eq!(
        flags(1, b"\x90\xff\xc0\x72\x00\x90\x90\xc3"),
        Flags::Arithmetic
    );
    assert_eq!(flags(1, b"\x90\x89\xf8\x90\x90\x90\xc3"), Flags::Arithmetic);
    // cmp; jc
    assert_eq!(flags(1, b"\x90\x39\xf8\x72\x00\x90\x90\xc3"), Flags::Dead);
    // shl eax, cl may write nothing, shl eax, 3 writes all
    assert_eq!(flags(1, b"\x90\xd3\xe0\x31\xc0\x90\x90\xc3"), Flags::Dead);
    assert_eq!(
        flags(1, b"\x90\xd3\xe0\x72\x00\x90\x90\xc3"),
        Flags::Arithmetic
    );
    assert_eq!(
        flags(1, b"\x90\xc1\xe0\x03\x72\x00\x90\x90\xc3"),
        Flags::Dead
    );
    // The direction flag may be set between std and cld.
    assert_eq!(flags(1, b"\xfd\x31\xc0\x90\x90\x90\xfc\xc3"), Flags::All);
}

#[test]
fn a_loop_to_the_start_keeps_the_red_zone() {
    let plan = at(0, b"\x48\xff\xcf\x90\x90\x75\xf9\xc3").unwrap();
    assert!(plan.at_start && plan.red_zone && plan.kind == Kind::Jump);
    let plan = at(0, b"\x48\xff\xcf\x90\x90\xc3").unwrap();
    assert!(plan.at_start && !plan.red_zone);
}

#[test]
fn a_trampoline_reaches_what_its_instructions_address() {
    // lea rax, [rip+0x7fffff00]: the trampoline has to be above the site's own lowest.
    let plan = at(0, b"\x48\x8d\x05\x00\xff\xff\x7f\x90\xc3").unwrap();
    let (low, high) = plan.reach().unwrap().into_inner();
    assert_eq!(
        (low, high),
        (*reach(START + 0x7fff_ff07).start(), *reach(START).end())
    );
    let spec = TrampolineSpec::Full(Full {
        descriptor: 0,
        enter: 0,
        leave: None,
        shows_registers: true,
    });
    assert!(emit(&plan, low, &spec).is_ok() && emit(&plan, high, &spec).is_ok());
    let error = emit(&plan, START - (1 << 20), &spec)
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with(
            "moving `lea rax,[80400F07h]` from 0x401000: 0x80400f07 is more than 2 GiB from"
        ),
        "{error}"
    );
    // It can jump back from anywhere.
    assert!(emit(&plan, START + (5 << 30), &spec).is_err());
    let plan = at(0, b"\x55\x48\x89\xe5\x90\xc3").unwrap();
    assert!(emit(&plan, START + (3 << 30), &spec).is_ok());
}

#[test]
fn a_breakpoints_trampoline_may_be_far_away() {
    let wide = |code: &[u8]| {
        let plan = at(0, code).unwrap().into_breakpoint(Reason::NoRoom);
        let (low, high) = plan.reach().unwrap().into_inner();
        high - low > 1 << 32
    };
    // push rbp; call; je; jrcxz: everything but operands relative to it.
    assert!(wide(b"\x55\x48\x89\xe5\x90\xc3"));
    assert!(wide(b"\xe8\x00\x01\x00\x00\xc3"));
    assert!(wide(b"\x74\x03\x90\x90\x90\x90\xc3"));
    assert!(wide(b"\xe3\x03\x90\x90\x90\x90\xc3"));
    assert!(!wide(b"\x48\x8d\x05\x00\x00\x00\x00\xc3"));
    assert!(!wide(b"\xff\x15\x00\x00\x00\x00\xc3"));
}

#[test]
fn returns_are_watched_from_the_start_only() {
    let spec = TrampolineSpec::Full(Full {
        descriptor: 0,
        enter: 0,
        leave: Some(0),
        shows_registers: true,
    });
    let plan = at(1, b"\x90\x31\xc0\x90\x90\x90\xc3").unwrap();
    assert!(
        matches!(emit(&plan, START, &spec), Err(EmitError::ReturnInside { site }) if site == START + 1)
    );
}
