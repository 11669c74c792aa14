//! The facts at one point of one path: registers, stacks of all frames, and the objects that the
//! program holds (`struct bpf_verifier_state` and its parts).

use std::rc::Rc;

use beeline_isa::{FRAME_POINTER, REGISTERS};
use beeline_uapi::verifier::BPF_REG_SIZE;

use crate::context::SocketKind;
use crate::scalar::Scalar;

/// The content of a register: `enum bpf_reg_type` without its flags, which are [`Flags`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Type {
    /// Never written, or destroyed by a call.
    Uninit,
    Scalar,
    Context,
    /// A map itself (`CONST_PTR_TO_MAP`).
    Map(MapId),
    MapValue(MapId),
    MapKey(MapId),
    /// A pointer into the stack of a frame.
    Stack(u8),
    Packet,
    PacketMeta,
    PacketEnd,
    FlowKeys,
    Socket(SocketKind),
    /// A structure of the kernel's BTF, or with [`Flags::ALLOC`] of the program's.
    Btf(u32),
    /// Memory of so many bytes.
    Mem(u32),
    /// A buffer with a size that only the caller knows: accesses are recorded.
    Buffer,
    /// A writable tracepoint's buffer.
    TracepointBuffer,
    /// A function of the program, by its number.
    Func(u32),
    /// A dynptr that was handed to a function (`CONST_PTR_TO_DYNPTR`).
    Dynptr(DynptrKind),
    Arena,
}

/// A map by its place in [`Program::maps`](crate::program::Program::maps); `inner` for the maps
/// that it holds. `unique` distinguishes two maps that look-ups in a map of maps returned
/// (`map_uid`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MapId {
    pub index: u16,
    pub inner: bool,
    pub unique: u32,
}

/// `enum bpf_dynptr_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DynptrKind {
    Local,
    Ringbuf,
    Skb,
    Xdp,
    SkbMeta,
    /// For an argument: any kind.
    Any,
}

/// Flags of a pointer's type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Flags(pub u16);

impl Flags {
    pub(crate) const NONE: Self = Self(0);
    pub(crate) const MAYBE_NULL: Self = Self(1 << 0);
    pub(crate) const RDONLY: Self = Self(1 << 1);
    pub(crate) const RINGBUF: Self = Self(1 << 2);
    pub(crate) const USER: Self = Self(1 << 3);
    pub(crate) const PERCPU: Self = Self(1 << 4);
    pub(crate) const UNTRUSTED: Self = Self(1 << 5);
    pub(crate) const TRUSTED: Self = Self(1 << 6);
    pub(crate) const RCU: Self = Self(1 << 7);
    pub(crate) const ALLOC: Self = Self(1 << 8);
    pub(crate) const NON_OWN_REF: Self = Self(1 << 9);
    pub(crate) const DYNPTR_SLICE: Self = Self(1 << 10);

    pub(crate) fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    #[must_use]
    pub(crate) const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    #[must_use]
    pub(crate) const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

/// A register, or a register's content in a stack slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reg {
    pub kind: Type,
    pub flags: Flags,
    /// The fixed part of a pointer's offset; for a number that is linked to another, the difference
    /// from it.
    pub off: i32,
    /// The bytes after a packet pointer that are known to be there, or the result of its comparison
    /// with the end (`AT_PKT_END`, `BEYOND_PKT_END`).
    ///
    /// For a socket out of a map, the map's number, from 1.
    pub range: i32,
    /// The variable part of a pointer's offset, or a number.
    pub var: Scalar,
    /// Equal for registers that hold the same number or came from the same look-up; 0 for none.
    ///
    /// `BPF_ADD_CONST` is set if the number is `off` more than the others'.
    pub id: u32,
    /// The reference that it stands for; 0 for none.
    pub ref_id: u32,
    /// True if its bounds mattered: states with other bounds are different.
    pub precise: bool,
}

impl Reg {
    pub(crate) const UNINIT: Self = Self {
        kind: Type::Uninit,
        flags: Flags::NONE,
        off: 0,
        range: 0,
        var: Scalar::UNKNOWN,
        id: 0,
        ref_id: 0,
        precise: false,
    };

    /// A number that may be anything.
    pub(crate) const UNKNOWN: Self = Self {
        kind: Type::Scalar,
        ..Self::UNINIT
    };

    pub(crate) const fn known(value: u64) -> Self {
        Self::scalar(Scalar::known(value))
    }

    pub(crate) const fn scalar(var: Scalar) -> Self {
        Self {
            kind: Type::Scalar,
            var,
            ..Self::UNINIT
        }
    }

    /// Creates a pointer to the start of something.
    pub(crate) const fn pointer(kind: Type) -> Self {
        Self {
            kind,
            var: Scalar::known(0),
            ..Self::UNINIT
        }
    }

    #[must_use]
    pub(crate) const fn flagged(self, flags: Flags) -> Self {
        Self {
            flags: self.flags.with(flags),
            ..self
        }
    }

    pub(crate) fn is_scalar(&self) -> bool {
        self.kind == Type::Scalar
    }

    /// Returns whether it was written and is not a number.
    pub(crate) fn is_pointer(&self) -> bool {
        !matches!(self.kind, Type::Scalar | Type::Uninit)
    }

    pub(crate) fn may_be_null(&self) -> bool {
        self.flags.has(Flags::MAYBE_NULL)
    }

    /// Returns whether it is the number 0.
    pub(crate) fn is_null(&self) -> bool {
        self.is_scalar() && self.var.constant() == Some(0)
    }

    /// Returns the number, if it is one and known.
    pub(crate) fn constant(&self) -> Option<u64> {
        self.var.constant().filter(|_| self.is_scalar())
    }

    /// Returns whether it is a packet pointer with a range of its own.
    pub(crate) fn is_packet(&self) -> bool {
        matches!(self.kind, Type::Packet | Type::PacketMeta)
    }

    pub(crate) fn is_packet_or_end(&self) -> bool {
        self.is_packet() || self.kind == Type::PacketEnd
    }

    /// Implements `type_is_ptr_alloc_obj`.
    pub(crate) fn is_allocated_object(&self) -> bool {
        matches!(self.kind, Type::Btf(_)) && self.flags.has(Flags::ALLOC)
    }

    pub(crate) fn is_non_owning(&self) -> bool {
        self.is_allocated_object() && self.flags.has(Flags::NON_OWN_REF)
    }

    /// Returns whether a pointer of this type is never null (`reg_not_null`).
    pub(crate) fn is_not_null(&self) -> bool {
        if self.may_be_null() {
            return false;
        }
        match self.kind {
            Type::Socket(SocketKind::Xdp) => false,
            Type::Socket(_) | Type::MapValue(_) | Type::MapKey(_) | Type::Map(_) => true,
            Type::Btf(_) => self.is_trusted(),
            Type::Mem(_) => !self.flags.has(Flags::UNTRUSTED),
            _ => false,
        }
    }

    /// Implements `is_trusted_reg`.
    pub(crate) fn is_trusted(&self) -> bool {
        if self.ref_id != 0 {
            return true;
        }
        let modifiers = Flags(!0).without(Flags::MAYBE_NULL).without(Flags::RDONLY);
        self.flags.has(Flags::TRUSTED)
            && !Flags(self.flags.0 & modifiers.0).has(Flags::UNTRUSTED)
            && !self.flags.has(Flags::USER.with(Flags::PERCPU))
    }
}

/// The content of a byte of stack: `enum bpf_stack_slot_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Byte {
    Invalid,
    /// A byte of the register in [`Slot::reg`].
    Spill,
    Misc,
    Zero,
    Dynptr,
    Iter,
    IrqFlag,
}

/// Eight bytes of stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slot {
    /// The bytes; the lowest address comes first.
    pub bytes: [Byte; 8],
    /// The register that was spilled there; for a dynptr or an iterator, its description.
    pub reg: Reg,
    /// For dynptrs and iterators.
    pub object: Object,
}

/// A dynptr or an iterator on the stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Object {
    None,
    Dynptr {
        kind: DynptrKind,
        first: bool,
    },
    Iter {
        /// The structure, by its BTF id.
        btf_id: u32,
        /// True if it is not yet at its end; otherwise it is drained.
        active: bool,
        /// The number of turns taken; not compared.
        depth: u32,
    },
    /// The flags of `bpf_local_irq_save`, or of a lock.
    IrqFlag {
        of_lock: bool,
    },
}

impl Slot {
    pub(crate) const INVALID: Self = Self {
        bytes: [Byte::Invalid; 8],
        reg: Reg::UNINIT,
        object: Object::None,
    };

    /// Returns whether a register was spilled here, at least in part.
    pub(crate) fn is_spill(&self) -> bool {
        self.bytes[0] == Byte::Spill
    }

    /// Returns whether all eight bytes of a number were spilled.
    pub(crate) fn is_whole_scalar(&self) -> bool {
        self.bytes[7] == Byte::Spill && self.reg.is_scalar()
    }

    pub(crate) fn is_spilled_scalar(&self) -> bool {
        self.is_spill() && self.reg.is_scalar()
    }
}

/// The state of one function.
#[derive(Debug, Clone)]
pub(crate) struct Frame {
    pub regs: [Reg; REGISTERS as usize],
    /// The slots from the frame pointer downwards: slot 0 is at r10 - 8.
    pub stack: Vec<Slot>,
    /// The call that led here; `None` for the function that the exploration began with.
    pub callsite: Option<usize>,
    /// The function's number.
    pub function: usize,
    /// True if a helper calls it during its own run.
    pub in_callback: bool,
    /// True if it is called later.
    pub in_async_callback: bool,
    /// The number of this entry into asynchronous callbacks.
    pub async_entry: u32,
    /// The range that a callback may return.
    pub callback_returns: (i64, i64),
    /// The number of times that the callback of this frame's call was simulated.
    pub callback_depth: u32,
}

impl Frame {
    pub(crate) fn new(callsite: Option<usize>, function: usize, number: u8) -> Self {
        let mut regs = [Reg::UNINIT; REGISTERS as usize];
        regs[usize::from(FRAME_POINTER)] = Reg::pointer(Type::Stack(number));
        Self {
            regs,
            stack: Vec::new(),
            callsite,
            function,
            in_callback: false,
            in_async_callback: false,
            async_entry: 0,
            callback_returns: (0, 0),
            callback_depth: 0,
        }
    }

    /// Makes room down to `off` (negative).
    pub(crate) fn grow(&mut self, off: i32) {
        let slots = usize::try_from((-off + BPF_REG_SIZE - 1) / BPF_REG_SIZE).unwrap_or(0);
        if self.stack.len() < slots {
            self.stack.resize(slots, Slot::INVALID);
        }
    }

    /// Returns the byte at `off` (negative), if it was ever accessed.
    pub(crate) fn byte(&self, off: i32) -> Option<Byte> {
        let (slot, byte) = place(off);
        Some(self.stack.get(slot)?.bytes[byte])
    }
}

/// Returns the slot, and the byte in it, for an offset from the frame pointer, which is negative.
pub(crate) fn place(off: i32) -> (usize, usize) {
    let below = (-off - 1) as usize;
    (below / 8, 7 - below % 8)
}

/// An object that a program must give back: `struct bpf_reference_state`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Held {
    pub kind: HeldKind,
    pub id: u32,
    /// The instruction that took it.
    pub insn: usize,
    /// For a lock: the register's map or object, to identify its place.
    pub place: LockPlace,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeldKind {
    Object,
    Lock,
    ResilientLock,
    ResilientLockIrq,
    Irq,
}

impl HeldKind {
    pub(crate) fn is_lock(self) -> bool {
        matches!(
            self,
            Self::Lock | Self::ResilientLock | Self::ResilientLockIrq
        )
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LockPlace {
    None,
    Map(MapId),
    Object(u32),
}

/// The complete state.
#[derive(Debug, Clone)]
pub(crate) struct State {
    /// The frames, the outermost first.
    pub frames: Vec<Frame>,
    pub held: Vec<Held>,
    /// The number of spin locks held.
    pub locks: u32,
    /// The number of `bpf_rcu_read_lock` sections.
    pub rcu: u32,
    /// The number of `bpf_preempt_disable` sections.
    pub preempt: u32,
    pub irq_id: u32,
    pub in_sleepable: bool,
    /// The kept state that this one comes from.
    pub parent: Option<StateId>,
    /// The number of paths that come from it and are not yet at their end.
    pub branches: u32,
    /// The instruction before which it stands.
    pub insn: usize,
    /// The start of the history.
    pub first_insn: usize,
    /// The instruction before `insn` on this path.
    pub last_insn: Option<usize>,
    /// Jumps and stack accesses since `first_insn`.
    pub history: Rc<Vec<Step>>,
    pub callback_unroll_depth: u32,
    pub may_goto_depth: u32,
    /// The number of kept states before it on its path.
    pub dfs_depth: u32,
    /// True if the parts that no path needs any more were dropped.
    pub cleaned: bool,
    /// For a kept state: true if every number in it and in those that it comes from matters.
    pub all_precise: bool,
    /// For a way back into a loop: the state that it equals.
    pub equal: Option<StateId>,
}

/// The number of a kept state.
pub(crate) type StateId = u32;

/// The facts needed for following a path back that the instructions alone do not tell (`struct
/// bpf_jmp_history_entry`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Step {
    pub insn: usize,
    pub previous: Option<usize>,
    /// The frame and the slot of a stack access.
    pub stack: Option<(u8, u8)>,
    pub dst_is_stack: bool,
    pub src_is_stack: bool,
    /// The registers and slots with equal numbers that a comparison told something about.
    pub linked: Linked,
}

/// Up to six places.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Linked {
    pub places: [Option<LinkedPlace>; 6],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LinkedPlace {
    pub frame: u8,
    /// A register's number, or a stack slot's.
    pub number: u8,
    pub is_slot: bool,
}

impl Linked {
    pub(crate) fn push(&mut self, place: LinkedPlace) {
        if self.iter().any(|known| known == place) {
            return;
        }
        if let Some(free) = self.places.iter_mut().find(|place| place.is_none()) {
            *free = Some(place);
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = LinkedPlace> + '_ {
        self.places.iter().flatten().copied()
    }

    pub(crate) fn len(&self) -> usize {
        self.iter().count()
    }
}

impl State {
    pub(crate) fn new(frame: Frame) -> Self {
        Self {
            frames: vec![frame],
            held: Vec::new(),
            locks: 0,
            rcu: 0,
            preempt: 0,
            irq_id: 0,
            in_sleepable: false,
            parent: None,
            branches: 1,
            insn: 0,
            first_insn: 0,
            last_insn: None,
            history: Rc::default(),
            callback_unroll_depth: 0,
            may_goto_depth: 0,
            dfs_depth: 0,
            cleaned: false,
            all_precise: false,
            equal: None,
        }
    }

    /// Returns the number of the innermost frame.
    pub(crate) fn depth(&self) -> usize {
        self.frames.len() - 1
    }

    pub(crate) fn frame(&self) -> &Frame {
        let depth = self.depth();
        &self.frames[depth]
    }

    pub(crate) fn frame_mut(&mut self) -> &mut Frame {
        let depth = self.depth();
        &mut self.frames[depth]
    }

    pub(crate) fn reg(&self, number: u8) -> &Reg {
        &self.frame().regs[usize::from(number)]
    }

    pub(crate) fn reg_mut(&mut self, number: u8) -> &mut Reg {
        &mut self.frame_mut().regs[usize::from(number)]
    }

    /// Returns the instruction of a frame: its own for the innermost, its call for others.
    pub(crate) fn insn_of(&self, frame: usize) -> usize {
        self.frames
            .get(frame + 1)
            .and_then(|callee| callee.callsite)
            .unwrap_or(self.insn)
    }

    /// Calls `f` for every register and every spilled register of all frames.
    pub(crate) fn for_each_reg(&mut self, mut f: impl FnMut(&mut Reg)) {
        for frame in &mut self.frames {
            frame.regs.iter_mut().for_each(&mut f);
            for slot in &mut frame.stack {
                if slot.is_spill() {
                    f(&mut slot.reg);
                }
            }
        }
    }

    pub(crate) fn hold(&mut self, kind: HeldKind, id: u32, insn: usize, place: LockPlace) {
        self.held.push(Held {
            kind,
            id,
            insn,
            place,
        });
    }

    /// Forgets a reference; returns whether there was one.
    pub(crate) fn drop_held(&mut self, kind: HeldKind, id: u32) -> bool {
        let found = self
            .held
            .iter()
            .position(|held| held.kind == kind && held.id == id);
        found.map(|at| self.held.remove(at)).is_some()
    }
}
