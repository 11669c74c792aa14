//! Code that tells of a site that is not as it was left.

use super::jump::jump;
use crate::patch::ReachError;

/// Returns code, to be placed at `at`, that reports that a site is not as it was left, and goes on
/// at `to`.
///
/// It stores 1 at `flag`, and adds 1 at `count`, where threads that do so at once may count as one.
/// It changes no register, no flags and nothing in the red zone.
///
/// # Errors
///
/// [`ReachError`] if `to` is out of a jump's reach.
pub fn notice_stub(at: u64, flag: u64, count: u64, to: u64) -> Result<Vec<u8>, ReachError> {
    let mut stub = vec![0x48, 0x8d, 0x64, 0x24, 0x80]; // lea rsp, [rsp-128]
    stub.extend([0x50, 0x51]); // push rax; push rcx
    stub.extend([0x48, 0xb8]); // movabs rax, flag
    stub.extend(flag.to_le_bytes());
    stub.extend([0xc7, 0x00, 1, 0, 0, 0]); // mov dword [rax], 1
    stub.extend([0x48, 0xb8]); // movabs rax, count
    stub.extend(count.to_le_bytes());
    stub.extend([0x48, 0x8b, 0x08]); // mov rcx, [rax]
    stub.extend([0x48, 0x8d, 0x49, 0x01]); // lea rcx, [rcx+1]
    stub.extend([0x48, 0x89, 0x08]); // mov [rax], rcx
    stub.extend([0x59, 0x58]); // pop rcx; pop rax
    stub.extend([0x48, 0x8d, 0xa4, 0x24, 0x80, 0, 0, 0]); // lea rsp, [rsp+128]
    stub.extend(jump(at + stub.len() as u64, to)?);
    Ok(stub)
}
