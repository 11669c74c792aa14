//! The tool's type information in the kernel.
//!
//! The kernel tells types apart by the BTF that they are in: a list in a map's value holds what a
//! program allocates only if both name one BTF. So what the tool loaded once is loaded once here.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use beeline_kernel as kernel;
use parking_lot::Mutex;

/// The tool's BTF, and the kernel's. Of what the tool has closed, the kernel's goes with the next
/// one that is loaded.
static LOADED: Mutex<Vec<Pair>> = Mutex::new(Vec::new());

/// BTF as the tool gave it, and the kernel's in its place.
type Pair = (Weak<[u8]>, Arc<OwnedFd>);

/// Returns the kernel's BTF in the place of the tool's, which is loaded if it is not there yet.
///
/// # Errors
///
/// The kernel's verdict, with its log.
pub(crate) fn in_kernel(btf: &Arc<[u8]>) -> Result<Arc<OwnedFd>, kernel::Refusal> {
    let mut loaded = LOADED.lock();
    loaded.retain(|(tools, _)| tools.strong_count() > 0);
    let known = loaded
        .iter()
        .find(|(tools, _)| std::ptr::addr_eq(tools.as_ptr(), Arc::as_ptr(btf)));
    if let Some((_, kernels)) = known {
        return Ok(kernels.clone());
    }
    let kernels = Arc::new(kernel::load_types(btf)?);
    loaded.push((Arc::downgrade(btf), kernels.clone()));
    Ok(kernels)
}

/// As [`in_kernel`], with the errno alone.
///
/// # Errors
///
/// The kernel's errno.
pub(crate) fn of_map(btf: &Arc<[u8]>) -> io::Result<Arc<OwnedFd>> {
    in_kernel(btf).map_err(|refusal| io::Error::from_raw_os_error(refusal.errno))
}
