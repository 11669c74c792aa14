use beeline_agent::fault_fixup::{LONGEST, decode};
use beeline_codegen::{Baseline, Compiler, Machine};
use iced_x86::{Code, Decoder, OpKind};

/// The agent must recognise every load that the compiler writes, for every pair of registers. A
/// load that it does not recognise is a fault of the target.
#[test]
fn all_loads_of_programs_are_known_to_the_agent() {
    let (mut program, exit) = (Vec::new(), [0x95, 0, 0, 0, 0, 0, 0, 0]);
    // LDX of 4, 2, 1 and 8 bytes, and the sign-extending ones of 4, 2 and 1.
    for opcode in [0x61, 0x69, 0x71, 0x79, 0x81, 0x89, 0x91u8] {
        for (dst, src) in (0..10).flat_map(|dst| (0..11).map(move |src| (dst, src))) {
            for offset in [0i16, 16, -8, 0x1000] {
                let [low, high] = offset.to_le_bytes();
                program.extend([opcode, dst | src << 4, low, high, 0, 0, 0, 0]);
            }
        }
    }
    program.extend(exit);
    let insns: Vec<_> = beeline_isa::Insn::decode_all(&program).unwrap().collect();
    let bare = beeline_codegen::Bytecode::new(&insns);
    let code = Baseline.compile(&bare, Machine::X86_64).unwrap();
    let mut decoder = Decoder::new(64, &code.bytes, 0);
    let mut loads = 0;
    while decoder.can_decode() {
        let insn = decoder.decode();
        let from_memory = insn.op_count() == 2 && insn.op1_kind() == OpKind::Memory;
        if !from_memory || insn.code() == Code::Lea_r64_m {
            continue;
        }
        let mut bytes = [0; LONGEST];
        let rest = &code.bytes[insn.ip() as usize..];
        let len = rest.len().min(LONGEST);
        bytes[..len].copy_from_slice(&rest[..len]);
        let load = decode(&bytes).unwrap_or_else(|| panic!("{insn}"));
        assert_eq!(load.len, insn.len() as u64, "{insn}");
        let register = insn.op0_register().full_register().number() as u8;
        assert_eq!(load.register, register, "{insn}");
        loads += 1;
    }
    assert_eq!(loads, program.len() / 8 - 1);
}
