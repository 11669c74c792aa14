//! The kernel's objects in memory of programs: in values of maps, in objects that programs
//! allocate, and on the stack (`linux/bpf.h`). Their contents are no part of the interface.

use crate::layout;

layout! {
    /// `struct bpf_spin_lock`.
    pub struct SpinLock {
        /// The lock's word.
        val: u32,
    }

    /// `struct bpf_res_spin_lock` (`asm-generic/rqspinlock.h`).
    pub struct ResSpinLock {
        /// The lock's word.
        val: u32,
    }

    /// `struct bpf_timer`.
    pub struct Timer {
        /// The kernel's own.
        opaque: [u64; 2],
    }

    /// `struct bpf_wq`.
    pub struct Wq {
        /// The kernel's own.
        opaque: [u64; 2],
    }

    /// `struct bpf_task_work`.
    pub struct TaskWork {
        /// The kernel's own.
        opaque: u64,
    }

    /// `struct bpf_list_head`.
    pub struct ListHead {
        /// The kernel's own.
        opaque: [u64; 2],
    }

    /// `struct bpf_list_node`.
    pub struct ListNode {
        /// The kernel's own.
        opaque: [u64; 3],
    }

    /// `struct bpf_rb_root`.
    pub struct RbRoot {
        /// The kernel's own.
        opaque: [u64; 2],
    }

    /// `struct bpf_rb_node`.
    pub struct RbNode {
        /// The kernel's own.
        opaque: [u64; 4],
    }

    /// `struct bpf_refcount`.
    pub struct Refcount {
        /// The kernel's own.
        opaque: u32,
    }

    /// `struct bpf_dynptr`.
    pub struct Dynptr {
        /// The kernel's own.
        opaque: [u64; 2],
    }
}

/// A structure that is a special field wherever a type has it: the kinds of `enum btf_field_type`
/// that are known by a structure's name (`linux/bpf.h`, not for user space).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpecialField {
    /// `BPF_SPIN_LOCK`.
    SpinLock,
    /// `BPF_RES_SPIN_LOCK`.
    ResSpinLock,
    /// `BPF_TIMER`.
    Timer,
    /// `BPF_WORKQUEUE`.
    Workqueue,
    /// `BPF_TASK_WORK`.
    TaskWork,
    /// `BPF_LIST_HEAD`.
    ListHead,
    /// `BPF_LIST_NODE`.
    ListNode,
    /// `BPF_RB_ROOT`.
    RbRoot,
    /// `BPF_RB_NODE`.
    RbNode,
    /// `BPF_REFCOUNT`.
    Refcount,
}

/// The containers that the kernel takes special fields of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldHolder {
    /// The value of a map (`map_check_btf`).
    Value,
    /// A structure that programs allocate (`btf_parse_struct_metas`).
    Object,
}

impl SpecialField {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::SpinLock,
        Self::ResSpinLock,
        Self::Timer,
        Self::Workqueue,
        Self::TaskWork,
        Self::ListHead,
        Self::ListNode,
        Self::RbRoot,
        Self::RbNode,
        Self::Refcount,
    ];

    /// Returns the one whose structure has this name (`btf_get_field_type`).
    pub fn named(name: &[u8]) -> Option<Self> {
        let mut all = Self::ALL.into_iter();
        all.find(|field| field.name().as_bytes() == name)
    }

    /// Returns the structure's name (`btf_field_type_name`).
    pub const fn name(self) -> &'static str {
        match self {
            Self::SpinLock => "bpf_spin_lock",
            Self::ResSpinLock => "bpf_res_spin_lock",
            Self::Timer => "bpf_timer",
            Self::Workqueue => "bpf_wq",
            Self::TaskWork => "bpf_task_work",
            Self::ListHead => "bpf_list_head",
            Self::ListNode => "bpf_list_node",
            Self::RbRoot => "bpf_rb_root",
            Self::RbNode => "bpf_rb_node",
            Self::Refcount => "bpf_refcount",
        }
    }

    /// Returns the structure's bytes (`btf_field_type_size`).
    pub const fn size(self) -> u32 {
        self.layout().0 as u32
    }

    /// Returns the structure's alignment (`btf_field_type_align`).
    pub const fn align(self) -> u32 {
        self.layout().1 as u32
    }

    const fn layout(self) -> (usize, usize) {
        const fn of<T>() -> (usize, usize) {
            (size_of::<T>(), align_of::<T>())
        }
        match self {
            Self::SpinLock => of::<SpinLock>(),
            Self::ResSpinLock => of::<ResSpinLock>(),
            Self::Timer => of::<Timer>(),
            Self::Workqueue => of::<Wq>(),
            Self::TaskWork => of::<TaskWork>(),
            Self::ListHead => of::<ListHead>(),
            Self::ListNode => of::<ListNode>(),
            Self::RbRoot => of::<RbRoot>(),
            Self::RbNode => of::<RbNode>(),
            Self::Refcount => of::<Refcount>(),
        }
    }

    /// Returns whether a structure may have no more than one (`btf_get_field_type`).
    pub const fn is_unique(self) -> bool {
        matches!(
            self,
            Self::SpinLock | Self::ResSpinLock | Self::Timer | Self::Workqueue | Self::TaskWork
        )
    }

    /// Returns whether it is special in this container (the mask of `btf_parse_fields`).
    pub const fn is_special_in(self, holder: FieldHolder) -> bool {
        match self {
            Self::Timer | Self::Workqueue | Self::TaskWork => matches!(holder, FieldHolder::Value),
            Self::ListNode | Self::RbNode => matches!(holder, FieldHolder::Object),
            Self::SpinLock | Self::ResSpinLock | Self::ListHead | Self::RbRoot | Self::Refcount => {
                true
            }
        }
    }
}
