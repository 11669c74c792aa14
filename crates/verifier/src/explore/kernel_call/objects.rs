//! Objects of the program's own types: counted, dropped, and in lists and trees
//! (`__process_kf_arg_ptr_to_graph_root`, `__process_kf_arg_ptr_to_graph_node`).

use beeline_isa::Op;
use beeline_uapi::Errno;

use super::super::callback::Callback;
use super::super::{Check, Explorer, no};
use super::{Call, Meta};
use crate::program::{FieldKind, MapField};
use crate::state::{Flags, HeldKind, LockPlace, Reg, Type};
use crate::types::kernel_functions::KernelFunction;

/// Returns whether it takes over its second argument (`bpf_list_push_*`, `bpf_rbtree_add`).
pub(super) fn is_given_to(function: &KernelFunction) -> bool {
    matches!(
        function.name,
        "bpf_list_push_front_impl" | "bpf_list_push_back_impl" | super::RBTREE_ADD
    )
}

impl Explorer<'_> {
    /// Checks that a dropped object was allocated by the program, in the same manner.
    pub(super) fn dropped_argument(&self, call: &Call<'_>, arg: u8, reg: &Reg) -> Check {
        let per_cpu = Flags::ALLOC.with(Flags::PERCPU);
        let wanted = match (reg.kind, reg.flags) {
            (Type::Btf(_), Flags::ALLOC) => "bpf_obj_drop_impl",
            (Type::Btf(_), flags) if flags == per_cpu => "bpf_percpu_obj_drop_impl",
            _ => {
                return no(
                    Errno::EINVAL,
                    format!("arg#{arg} expected pointer to allocated object"),
                );
            }
        };
        if !call.is(wanted) {
            return no(Errno::EINVAL, format!("arg#{arg} expected for {wanted}()"));
        }
        if reg.ref_id == 0 {
            return no(Errno::EINVAL, "allocated object must be referenced");
        }
        Ok(())
    }

    pub(super) fn counted_argument(&self, arg: u8, reg: &Reg, meta: &mut Meta) -> Check {
        let (Type::Btf(btf_id), true) = (reg.kind, reg.is_allocated_object()) else {
            return no(
                Errno::EINVAL,
                format!("arg#{arg} is neither owning or non-owning ref"),
            );
        };
        if !reg.is_non_owning() {
            meta.owned = true;
        }
        if !self.is_counted(btf_id) {
            return no(
                Errno::EINVAL,
                format!("arg#{arg} doesn't point to a type with bpf_refcount field"),
            );
        }
        meta.object = btf_id;
        Ok(())
    }

    fn is_counted(&self, btf_id: u32) -> bool {
        let fields = self.object_fields(btf_id);
        fields.iter().any(|field| field.kind == FieldKind::RefCount)
    }

    fn object_fields(&self, btf_id: u32) -> Vec<MapField> {
        let types = self.program.types;
        types.map_or_else(Vec::new, |types| {
            types.object_fields(btf_id, self.program.kernel)
        })
    }

    /// Returns the special fields of the value or object that a register points to.
    pub(in super::super) fn fields_behind(&self, reg: &Reg) -> Vec<MapField> {
        match reg.kind {
            Type::MapValue(id) => self.program.map(id).fields.clone(),
            Type::Btf(btf_id) if reg.flags.has(Flags::ALLOC) => self.object_fields(btf_id),
            _ => Vec::new(),
        }
    }

    /// Checks a list's head or a tree's root: it must be in a value or an object with its lock
    /// held.
    pub(super) fn root_argument(&self, number: u8, reg: &Reg, meta: &mut Meta) -> Check {
        let arg = number - 1;
        let is_object = matches!(reg.kind, Type::Btf(_)) && reg.flags == Flags::ALLOC;
        let is_value = matches!(reg.kind, Type::MapValue(_)) && reg.flags == Flags::NONE;
        if !is_object && !is_value {
            return no(
                Errno::EINVAL,
                format!("arg#{arg} expected pointer to map value or allocated object"),
            );
        }
        if is_object && reg.ref_id == 0 {
            return no(Errno::EINVAL, "allocated object must be referenced");
        }
        let name = self.root_name(meta);
        let place = constant_place(number, reg, name)?;
        let fields = self.fields_behind(reg);
        let root = fields.iter().find(|field| {
            let is_root = matches!(
                field.kind,
                FieldKind::ListHead { .. } | FieldKind::RbRoot { .. }
            );
            is_root && i64::from(field.offset) == place
        });
        let Some(root) = root else {
            return no(Errno::EINVAL, format!("{name} not found at offset={place}"));
        };
        self.check_root_is_locked(reg, &fields, name)?;
        meta.root = Some(*root);
        Ok(())
    }

    /// Returns the name of the current function's root.
    fn root_name(&self, _meta: &Meta) -> &'static str {
        match self.op_at(self.insn) {
            Some(Op::CallKernel { btf_id })
                if super::function(self.program, btf_id)
                    .is_some_and(|function| function.name.starts_with("bpf_list_")) =>
            {
                "bpf_list_head"
            }
            _ => "bpf_rb_root",
        }
    }

    /// Implements `check_reg_allocation_locked`.
    fn check_root_is_locked(&self, reg: &Reg, fields: &[MapField], name: &str) -> Check {
        let here = match reg.kind {
            Type::MapValue(id) => LockPlace::Map(id),
            Type::Btf(btf_id) => LockPlace::Object(btf_id),
            _ => LockPlace::None,
        };
        let is_held = self
            .cur
            .held
            .iter()
            .any(|held| held.kind.is_lock() && held.id == reg.id && held.place == here);
        if is_held {
            return Ok(());
        }
        let lock = fields
            .iter()
            .find(|field| field.kind == FieldKind::SpinLock);
        let at = lock.map_or(-1, |lock| i64::from(lock.offset));
        let why = format!("bpf_spin_lock at off={at} must be held for {name}");
        if self.cur.locks > 0 {
            let first = "held lock and object are not in the same allocation";
            return no(Errno::EINVAL, format!("{first}\n{why}"));
        }
        no(Errno::EINVAL, why)
    }

    pub(super) fn check_is_owned(&self, arg: u8, reg: &Reg) -> Check {
        if !matches!(reg.kind, Type::Btf(_)) || reg.flags != Flags::ALLOC {
            return no(
                Errno::EINVAL,
                format!("arg#{arg} expected pointer to allocated object"),
            );
        }
        if reg.ref_id == 0 {
            return no(Errno::EINVAL, "allocated object must be referenced");
        }
        Ok(())
    }

    pub(super) fn check_is_in_tree(&self, name: &str, reg: &Reg) -> Check {
        if !reg.is_non_owning() && reg.ref_id == 0 {
            return no(
                Errno::EINVAL,
                format!("{name} can only take non-owning or refcounted bpf_rb_node pointer"),
            );
        }
        if self.in_tree_callback() {
            return no(Errno::EINVAL, format!("{name} not allowed in rbtree cb"));
        }
        Ok(())
    }

    /// Checks that a node is of the type, and the member, that the list or tree is for.
    pub(super) fn node_argument(&self, number: u8, reg: &Reg, meta: &mut Meta) -> Check {
        let Some(root) = meta.root else {
            return no(Errno::EINVAL, "a node without a root");
        };
        let (kind, node_name, root_name, structure, wanted) = match root.kind {
            FieldKind::ListHead { btf_id, node } => (
                FieldKind::ListNode,
                "bpf_list_node",
                "bpf_list_head",
                btf_id,
                node,
            ),
            FieldKind::RbRoot { btf_id, node } => (
                FieldKind::RbNode,
                "bpf_rb_node",
                "bpf_rb_root",
                btf_id,
                node,
            ),
            _ => return no(Errno::EINVAL, "a node without a root"),
        };
        let place = constant_place(number, reg, node_name)?;
        let fields = self.fields_behind(reg);
        let here = |field: &MapField| field.kind == kind && i64::from(field.offset) == place;
        let (true, Type::Btf(have)) = (fields.iter().any(here), reg.kind) else {
            return no(
                Errno::EINVAL,
                format!("{node_name} not found at offset={place}"),
            );
        };
        let name = |id| self.program.types.map_or("", |types| types.name(id));
        if have != structure {
            return no(
                Errno::EINVAL,
                format!(
                    "operation on {root_name} expects arg#1 {node_name} at offset={wanted} in struct {}, but arg is at offset={place} in struct {}",
                    name(structure),
                    name(have)
                ),
            );
        }
        meta.object = have;
        if place != i64::from(wanted) {
            return no(
                Errno::EINVAL,
                format!(
                    "arg#1 offset={place}, but expected {node_name} at offset={wanted} in struct {}",
                    name(structure)
                ),
            );
        }
        Ok(())
    }

    /// Gives the object to the list or tree. While the lock is held, the program may keep using it.
    pub(super) fn give_object(&mut self) -> Check {
        let ref_id = self.cur.reg(2).ref_id;
        let counted = match self.cur.reg(2).kind {
            Type::Btf(btf_id) => self.is_counted(btf_id),
            _ => false,
        };
        self.cur.for_each_reg(|reg| {
            if reg.ref_id == ref_id {
                reg.ref_id = 0;
                *reg = not_owning(*reg, counted);
            }
        });
        if self.cur.drop_held(HeldKind::Object, ref_id) {
            return Ok(());
        }
        no(Errno::EINVAL, "reference has not been acquired before")
    }

    /// Returns a node of a list or tree, as its functions return it.
    pub(super) fn node(&self, root: MapField) -> Reg {
        let (btf_id, node) = match root.kind {
            FieldKind::ListHead { btf_id, node } | FieldKind::RbRoot { btf_id, node } => {
                (btf_id, node)
            }
            _ => (0, 0),
        };
        Reg {
            off: node.cast_signed(),
            ..Reg::pointer(Type::Btf(btf_id)).flagged(Flags::ALLOC)
        }
    }

    /// Returns a node that stays where it is.
    pub(super) fn node_in_place(&self, reg: Reg) -> Reg {
        let counted = matches!(reg.kind, Type::Btf(btf_id) if self.is_counted(btf_id));
        not_owning(reg, counted)
    }

    /// Calls back for `bpf_rbtree_add`, which compares the new node with others, by a function that
    /// takes two nodes.
    pub(super) fn compare_in_tree(&mut self, function: usize, meta: &Meta) -> Check {
        let Some(root) = meta.root else {
            return no(Errno::EINVAL, "a tree without a root");
        };
        let node = self.node_in_place(self.node(root));
        let mut args = [Reg::UNINIT; 5];
        args[..2].fill(node);
        let returns = (0, 1);
        self.put_off_callback(function, Callback { args, returns })
    }

    /// Returns whether this is the function that compares a tree's nodes
    /// (`in_rbtree_lock_required_cb`).
    pub(in super::super) fn in_tree_callback(&self) -> bool {
        let frame = self.cur.frame();
        let call = frame.callsite.filter(|_| frame.in_callback);
        match call.and_then(|insn| self.op_at(insn)) {
            Some(Op::CallKernel { btf_id }) => super::calls_back(self.program, btf_id),
            _ => false,
        }
    }
}

/// Implements `ref_set_non_owning`.
fn not_owning(reg: Reg, counted: bool) -> Reg {
    let reg = reg.flagged(Flags::NON_OWN_REF);
    if counted {
        reg.flagged(Flags::RCU)
    } else {
        reg
    }
}

fn constant_place(number: u8, reg: &Reg, name: &str) -> Check<i64> {
    match reg.var.constant() {
        Some(variable) => Ok(i64::from(reg.off) + variable.cast_signed()),
        None => no(
            Errno::EINVAL,
            format!(
                "R{number} doesn't have constant offset. {name} has to be at the constant offset"
            ),
        ),
    }
}
