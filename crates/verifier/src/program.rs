//! The input of the verifier: a program, the maps it names, and the types it comes with.

use std::fmt;

use beeline_isa::Insn;
pub use beeline_uapi::helper::availability::Policy;
use beeline_uapi::object::SpecialField;
use beeline_uapi::{AttachType, HelperId, MapType, ProgramType, flags};

use crate::state::MapId;
use crate::types::{KernelTypes, ProgramTypes};

/// A program as `BPF_PROG_LOAD` has it.
#[derive(Clone, Copy, Default)]
pub struct Program<'a> {
    /// The purpose of the program.
    pub kind: Kind,
    /// True if it may call helpers that the kernel reserves for programs under the GPL.
    pub gpl: bool,
    /// Its instructions; maps by descriptor, as in [`Program::maps`].
    pub insns: &'a [Insn],
    /// Every map that an instruction may name, with its descriptor.
    ///
    /// Two descriptors may name one map ([`Map::id`]).
    pub maps: &'a [(i32, &'a Map)],
    /// Its BTF, with the functions and lines that it describes.
    pub types: Option<&'a ProgramTypes>,
    /// The BTF of the kernel, for the objects that the program may look at.
    pub kernel: Option<&'a KernelTypes>,
    /// Says which of the helpers that its type may call exist where it is to run; `None` for all.
    pub helpers: Option<&'a dyn Fn(HelperId) -> bool>,
    /// Says whether so many bytes may be taken for the states of its paths, all together.
    ///
    /// `None` for no limit. If they may not, the verdict is `ENOMEM`.
    pub memory: Option<&'a dyn Fn(usize) -> bool>,
    /// The modules of the kernel that instructions name something of.
    pub modules: Modules<'a>,
    /// For type `BPF_PROG_TYPE_EXT`: the accepted program in which it replaces a function.
    ///
    /// [`Kind::attach_btf_id`] is the function, in that program's BTF.
    pub target: Option<&'a Program<'a>>,
}

/// Modules of the kernel as a program's instructions name them.
#[derive(Debug, Clone, Copy, Default)]
pub struct Modules<'a> {
    /// The `fd_array` of the load; `None` if the load came without.
    ///
    /// Calls of modules' functions have a place in it (`off`).
    pub fd_array: Option<&'a [i32]>,
    /// Every descriptor of BTF that an instruction or `fd_array` may name.
    ///
    /// It comes with the module's place among those of [`KernelTypes::with_modules`]; `None` if it
    /// is not a module's.
    pub btf: &'a [(i32, Option<usize>)],
}

impl<'a> Program<'a> {
    /// Returns the map with this number.
    pub(crate) fn map(&self, id: MapId) -> &'a Map {
        let (_, map) = self.maps[usize::from(id.index)];
        match &map.inner {
            Some(inner) if id.inner => inner,
            _ => map,
        }
    }
}

impl fmt::Debug for Program<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Program")
            .field("kind", &self.kind)
            .field("insns", &self.insns.len())
            .finish_non_exhaustive()
    }
}

/// Returns whether programs under this licence may call helpers for programs under the GPL.
pub fn is_gpl_compatible(license: &str) -> bool {
    matches!(
        license,
        "GPL"
            | "GPL v2"
            | "GPL and additional rights"
            | "Dual BSD/GPL"
            | "Dual MIT/GPL"
            | "Dual MPL/GPL"
    )
}

/// The purpose of a program, which decides about its context, its helpers and its results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Kind {
    /// `prog_type` of the load.
    pub prog_type: ProgramType,
    /// `expected_attach_type` of the load.
    pub attach_type: AttachType,
    /// `BPF_F_STRICT_ALIGNMENT`, `BPF_F_SLEEPABLE` and so on.
    pub flags: u32,
    /// The function, tracepoint or structure of the kernel's BTF that it attaches to; 0 for none.
    pub attach_btf_id: u32,
    /// The policy of the session that loads it.
    pub policy: Policy,
}

impl Kind {
    /// Returns the kind as which a program is judged that replaces a function of one of kind
    /// `target` (`resolve_prog_type`).
    ///
    /// Its own types must be read with this kind as well.
    #[must_use]
    pub fn replacing(self, target: &Self) -> Self {
        Self {
            prog_type: target.prog_type,
            attach_type: target.attach_type,
            attach_btf_id: 0,
            ..self
        }
    }

    /// Returns whether it may sleep.
    pub fn is_sleepable(&self) -> bool {
        self.flags & flags::SLEEPABLE != 0
    }
}

/// A map, with the properties that matter to a program.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Map {
    /// Identifies the map; two descriptors of one map have the same.
    pub id: u32,
    /// The name for messages.
    pub name: String,
    /// Its type.
    pub map_type: MapType,
    /// The bytes of a key.
    pub key_size: u32,
    /// The bytes of a value.
    pub value_size: u32,
    /// The number of elements, or the bytes of a ring buffer.
    pub max_entries: u32,
    /// `BPF_F_*` of `BPF_MAP_CREATE`.
    pub flags: u32,
    /// The whole value of a frozen read-only array of one element: the program may take it for
    /// constant.
    pub constant: Option<Vec<u8>>,
    /// For a map of maps: the properties of its maps.
    pub inner: Option<Box<Map>>,
    /// The special fields of its values, ascending by offset; from the map's BTF.
    pub fields: Vec<MapField>,
}

/// A field of a map's value that programs may access only with the helpers made for it (`struct
/// btf_field`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MapField {
    /// The offset from the value's start.
    pub offset: u32,
    /// The bytes of the field.
    pub size: u32,
    /// The kind of field.
    pub kind: FieldKind,
}

/// `enum btf_field_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldKind {
    /// `struct bpf_spin_lock`.
    SpinLock,
    /// `struct bpf_res_spin_lock`.
    ResilientSpinLock,
    /// `struct bpf_timer`.
    Timer,
    /// `struct bpf_wq`.
    Workqueue,
    /// `struct bpf_task_work`.
    TaskWork,
    /// `__kptr_untrusted`: a pointer to a structure of the kernel, by BTF id.
    UntrustedPointer(u32),
    /// `__kptr`: an owned pointer to a structure of the kernel, or, if `local`, of the program's
    /// own BTF.
    OwnedPointer {
        /// The structure.
        btf_id: u32,
        /// True if it is in the program's BTF.
        local: bool,
    },
    /// `__percpu_kptr`.
    PerCpuPointer(u32),
    /// `__uptr`.
    UserPointer(u32),
    /// `struct bpf_list_head`, for structures of the program's BTF that hold their `struct
    /// bpf_list_node` at `node`.
    ListHead {
        /// The structure.
        btf_id: u32,
        /// The offset from its start.
        node: u32,
    },
    /// `struct bpf_list_node`.
    ListNode,
    /// `struct bpf_rb_root`, for structures of the program's BTF that hold their `struct
    /// bpf_rb_node` at `node`.
    RbRoot {
        /// The structure.
        btf_id: u32,
        /// The offset from its start.
        node: u32,
    },
    /// `struct bpf_rb_node`.
    RbNode,
    /// `struct bpf_refcount`.
    RefCount,
}

impl FieldKind {
    /// Returns the name in the kernel's log (`btf_field_type_name`).
    pub fn name(self) -> &'static str {
        match self {
            Self::SpinLock => SpecialField::SpinLock.name(),
            Self::ResilientSpinLock => SpecialField::ResSpinLock.name(),
            Self::Timer => SpecialField::Timer.name(),
            Self::Workqueue => SpecialField::Workqueue.name(),
            Self::TaskWork => SpecialField::TaskWork.name(),
            Self::UntrustedPointer(_) | Self::OwnedPointer { .. } => "kptr",
            Self::PerCpuPointer(_) => "percpu_kptr",
            Self::UserPointer(_) => "uptr",
            Self::ListHead { .. } => SpecialField::ListHead.name(),
            Self::ListNode => SpecialField::ListNode.name(),
            Self::RbRoot { .. } => SpecialField::RbRoot.name(),
            Self::RbNode => SpecialField::RbNode.name(),
            Self::RefCount => SpecialField::Refcount.name(),
        }
    }
}
