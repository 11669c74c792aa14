//! The instructions that stubs consist of, without their operands.

use crate::arch::x86_64::jump::{CALL_OPCODE, JUMP_LEN, JUMP_OPCODE};
use crate::syscalls::WATCHED;

pub const JMP: &[u8] = &[JUMP_OPCODE];
pub const CALL: &[u8] = &[CALL_OPCODE];
pub const JE: &[u8] = &[0x0f, 0x84];
pub const JAE: &[u8] = &[0x0f, 0x83];
pub const JNE: &[u8] = &[0x0f, 0x85];
/// `cmp eax, -ENOSYS`
pub const CMP_EAX_ENOSYS: &[u8] = &[0x83, 0xf8, (-38i8).cast_unsigned()];
/// `jmp [rip + disp32]`
pub const JMP_AT_RIP: &[u8] = &[0xff, 0x25];
pub const JMP_R11: &[u8] = &[0x41, 0xff, 0xe3];
pub const LEA_R11: &[u8] = &[0x4c, 0x8d, 0x1d];
pub const MOV_RCX: &[u8] = &[0x48, 0xb9];
pub const MOV_R11: &[u8] = &[0x49, 0xbb];
pub const MOV_ECX: &[u8] = &[0xb9];
pub const MOV_ECX_EAX: &[u8] = &[0x89, 0xc1];
pub const AND_ECX: &[u8] = &[0x81, 0xe1];
pub const MOV_EAX_ESI: &[u8] = &[0x89, 0xf0];
pub const AND_EAX: &[u8] = &[0x25];
/// `cmp byte [r11 + rax], 0`
pub const CMP_AT_R11_RAX: &[u8] = &[0x41, 0x80, 0x3c, 0x03, 0];
/// `mov [rsp - 16], rsi`; the return address will be above.
pub const STORE_NUMBER: &[u8] = &[0x48, 0x89, 0x74, 0x24, 0xf0];
/// `mov ecx, [rsp - 16]`
pub const LOAD_NUMBER: &[u8] = &[0x8b, 0x4c, 0x24, 0xf0];
/// `mov [rsp - 24], r11`
pub const STORE_STUB: &[u8] = &[0x4c, 0x89, 0x5c, 0x24, 0xe8];
/// `cmp [rsp - 24], r11`
pub const CMP_STUB: &[u8] = &[0x4c, 0x39, 0x5c, 0x24, 0xe8];
/// `cmp byte [rcx], WATCHED`
pub const CMP_AT_RCX: &[u8] = &[0x80, 0x39, WATCHED];
/// `cmp byte [rip + disp32], imm8` without these.
pub const CMP_AT_RIP: &[u8] = &[0x80, 0x3d];
/// `cmp byte [r11 + rcx], 0`
pub const CMP_AT_R11_RCX: &[u8] = &[0x41, 0x80, 0x3c, 0x0b, 0];
/// `cmp byte [r11 + rcx + 1024], 0`
pub const CMP_BEHIND_R11_RCX: &[u8] = &[0x41, 0x80, 0xbc, 0x0b, 0, 4, 0, 0, 0];
/// `lea rsp, [rsp + disp32]`
pub const LEA_RSP: &[u8] = &[0x48, 0x8d, 0xa4, 0x24];
/// `movzx ecx, byte [rip + disp32]`
pub const MOVZX_ECX_AT_RIP: &[u8] = &[0x0f, 0xb6, 0x0d];
/// `movzx ecx, byte [rcx]`
pub const MOVZX_ECX_AT_RCX: &[u8] = &[0x0f, 0xb6, 0x09];
/// `jrcxz`, over a jump.
pub const JRCXZ_OVER_JMP: &[u8] = &[0xe3, JUMP_LEN as u8];
/// `cmp cl, WATCHED`
pub const CMP_CL: &[u8] = &[0x80, 0xf9, WATCHED];
/// `pushfq`, `pop [rsp + disp32]` without that.
pub const STORE_FLAGS: &[u8] = &[0x9c, 0x8f, 0x84, 0x24];
/// `push [rsp + disp32]` without that.
pub const PUSH_AT_RSP: &[u8] = &[0xff, 0xb4, 0x24];
pub const POPFQ: &[u8] = &[0x9d];
