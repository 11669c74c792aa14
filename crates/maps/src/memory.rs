//! The memory of a map, as one process has mapped it.

use beeline_uapi::Errno;

use crate::{Fields, Kind, Layout, Spec};

/// A map's file as one process has mapped it, and the positions in it that this process trusts.
///
/// The views on a map borrow it, one for each thing that there is to do.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Memory {
    pub(crate) base: *mut u8,
    pub(crate) spec: Spec,
    /// The special fields of its values.
    pub(crate) fields: Fields,
    /// The number of a stack map's first slot.
    pub(crate) first_id: u32,
    pub(crate) layout: Layout,
}

// A handle is copied as bytes: no padding may be in it.
const _: () = assert!(size_of::<Memory>() == 8 + size_of::<Spec>() + 8 + 4 + size_of::<Layout>());
const _: () = assert!(size_of::<Layout>() == 8 * 8 + 4 * 4);

// SAFETY: the memory behind `base` is shared between processes, so all access to it is by atomic
// words.
unsafe impl Send for Memory {}
// SAFETY: the memory behind `base` is shared between processes, so all access to it is by atomic
// words.
unsafe impl Sync for Memory {}

impl Memory {
    /// Describes the file mapped at `base`.
    ///
    /// # Errors
    ///
    /// Those of [`Layout::new`].
    ///
    /// # Safety
    ///
    /// As for [`Map::attach`](crate::Map::attach).
    pub(crate) unsafe fn attach(spec: &Spec, cpus: u32, base: *mut u8) -> Result<Self, Errno> {
        Ok(Self {
            base,
            spec: *spec,
            fields: Fields::EMPTY,
            first_id: 0,
            layout: Layout::new(spec, cpus)?,
        })
    }

    #[inline]
    pub(crate) fn kind(&self) -> Option<Kind> {
        self.spec.kind()
    }

    /// Returns the address of a place in the file. The callers' offsets come from the layout and
    /// checked indexes.
    #[inline]
    pub(crate) fn at(&self, offset: u64) -> *mut u8 {
        self.base.wrapping_add(offset as usize)
    }

    /// Returns where the value of an element lies, whose index the caller has checked; null if the
    /// CPU slot is out of range.
    #[inline]
    pub(crate) fn value(&self, index: u32, cpu: u32) -> *mut u8 {
        let layout = &self.layout;
        if cpu >= layout.cpus && layout.cpu_stride != 0 {
            return core::ptr::null_mut();
        }
        let offset = layout
            .values
            .wrapping_add(layout.stride.wrapping_mul(index.into()));
        self.at(offset.wrapping_add(layout.cpu_stride.wrapping_mul(cpu.into())))
    }
}
