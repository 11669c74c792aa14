//! The kernel's BTF: its structures, and how far pointers that come out of them are trusted
//! (`btf_struct_access`, `check_ptr_to_btf_access`).

use beeline_btf::{Joined, Layout, Type, kind};
use beeline_uapi::{Errno, ProgramType};

use super::Refused;
use super::table::{TypeTable, is_struct, text};
use super::walk::Step;

/// The kernel's BTF, with an index of its names.
///
/// The types of modules have numbers behind the kernel's own ([`KernelTypes::in_module`]).
#[derive(Debug)]
pub struct KernelTypes {
    pub(super) types: TypeTable,
    modules: Layout,
}

/// The content at a place in a structure of the kernel, or in a BTF-described context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Member {
    /// A number.
    Scalar,
    /// A pointer to a structure.
    Pointer {
        /// The structure.
        btf_id: u32,
        /// The trust by type tags, by the exploration, and by special rules.
        trust: Trust,
        /// True if it must be checked before it is followed.
        or_null: bool,
    },
    /// A pointer in a structure to anything else (`PTR_TO_MEM | MEM_RDONLY | PTR_UNTRUSTED` of
    /// unknown size): loads through it are probed.
    UntrustedMem,
    /// A pointer in an iterator's context to a key or a value of a map (`PTR_TO_BUF |
    /// PTR_MAYBE_NULL`).
    Buffer {
        /// True if writable, else `MEM_RDONLY`.
        writable: bool,
    },
}

/// The trust in a pointer to a structure of the kernel.
///
/// Of several flags in the kernel, this is the one that decides how the pointer may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    /// `PTR_TRUSTED`.
    Trusted,
    /// `MEM_RCU`.
    Rcu,
    /// `MEM_USER`: reading through it is refused.
    User,
    /// `MEM_PERCPU`: reading through it is refused; helpers turn it into one that can be read.
    PerCpu,
    /// Neither trusted nor untrusted: loads are probed, and helpers that require trust refuse it.
    Plain,
    /// `PTR_UNTRUSTED`.
    Untrusted,
}

impl KernelTypes {
    /// Indexes `/sys/kernel/btf/vmlinux` or a file like it.
    pub fn new(btf: Vec<u8>) -> Option<Self> {
        TypeTable::new(btf).map(|types| Self {
            types,
            modules: Layout::default(),
        })
    }

    /// Indexes the kernel's types together with modules, which are named by their places in
    /// `modules`.
    ///
    /// They are files such as `/sys/kernel/btf/nf_conntrack`. `None` if one of them does not belong
    /// to the kernel's.
    pub fn with_modules(btf: &[u8], modules: &[&[u8]]) -> Option<Self> {
        let mut joined = Joined::new(btf)?;
        for module in modules {
            joined.add(module)?;
        }
        let layout = joined.layout().clone();
        TypeTable::new(joined.into_bytes()).map(|types| Self {
            types,
            modules: layout,
        })
    }

    /// Returns the number here for a module's type `id`; `None` if it has no such type.
    pub fn in_module(&self, module: usize, id: u32) -> Option<u32> {
        self.modules.number(module, id)
    }

    /// Returns the kernel's number for a type: for a module's type, the module's own number.
    pub fn own_number(&self, id: u32) -> u32 {
        if self.modules == Layout::default() {
            return id;
        }
        self.modules.place(id).1
    }

    /// Builds the indexes of names now instead of at the first look-up, which takes some
    /// milliseconds.
    #[must_use]
    pub fn indexed(self) -> Self {
        let _ = (self.structure(""), self.function(""));
        self
    }

    /// Returns a structure's or union's number by its name.
    pub fn structure(&self, name: &str) -> Option<u32> {
        let find = |kind| self.types.find(kind, name);
        find(kind::STRUCT).or_else(|| find(kind::UNION))
    }

    /// Returns whether it is a structure or union; `None` if there is no such type.
    pub fn is_structure(&self, id: u32) -> Option<bool> {
        self.types.get(id).map(is_struct)
    }

    /// Returns a type's name, for messages.
    pub fn name(&self, id: u32) -> &str {
        self.types.name(id)
    }

    /// Returns the bytes of a type.
    pub fn size(&self, id: u32) -> Option<u32> {
        self.types.sized(id).ok().map(|sized| sized.bytes)
    }

    /// Returns the result of a load of `size` bytes at `off` into a structure
    /// (`btf_struct_access`).
    ///
    /// `base` is the trust in the pointer to it. `rcu` says that nothing read here goes away
    /// meanwhile (`in_rcu_cs`: a program that cannot sleep, or an RCU or lock section).
    ///
    /// # Errors
    /// `EINVAL` if it is no structure, nothing is at the offset, or structures are nested too
    /// deeply. `EACCES` if the load goes beyond the structure or a member, or takes a part of a
    /// pointer. `EFAULT` if the type of a member has no size.
    pub fn member(
        &self,
        structure: u32,
        off: i32,
        size: u32,
        base: Trust,
        rcu: bool,
    ) -> Result<Member, Refused> {
        let step = self.types.walk(structure, off.cast_unsigned(), size)?;
        let (btf_id, tag, field, untrusted) = match step {
            Step::Pointer {
                id,
                tag,
                field,
                untrusted,
            } => (id, tag, field, untrusted),
            Step::OtherPointer => return Ok(Member::UntrustedMem),
            Step::Scalar | Step::Struct { .. } => return Ok(Member::Scalar),
        };
        let is = |suffix| self.is_listed(structure, field, btf_id, suffix);
        let walked = if untrusted {
            Trust::Untrusted
        } else {
            Trust::Plain
        };
        let tagged = match tag {
            "user" => Trust::User,
            "percpu" => Trust::PerCpu,
            _ => walked,
        };
        let (trust, or_null) = match base {
            Trust::Untrusted => (Trust::Untrusted, false),
            Trust::Trusted | Trust::Rcu if is("__safe_trusted") => (Trust::Trusted, false),
            Trust::Trusted | Trust::Rcu if is("__safe_trusted_or_null") => (Trust::Trusted, true),
            Trust::Trusted | Trust::Rcu if !rcu => (Trust::Untrusted, false),
            Trust::Trusted | Trust::Rcu if is("__safe_rcu") => (Trust::Rcu, false),
            Trust::Trusted | Trust::Rcu if is("__safe_rcu_or_null") => (Trust::Rcu, true),
            Trust::Trusted | Trust::Rcu if tag == "rcu" && untrusted => (Trust::Untrusted, true),
            Trust::Trusted | Trust::Rcu if tag == "rcu" => (Trust::Rcu, true),
            _ => (tagged, false),
        };
        Ok(Member::Pointer {
            btf_id,
            trust,
            or_null,
        })
    }

    /// Returns whether the kernel declares that this member keeps its parent's trust
    /// (`btf_nested_type_is_trusted`). It does so by structures with the parent's name and a
    /// suffix.
    fn is_listed(&self, structure: u32, field: &str, target: u32, suffix: &str) -> bool {
        let types = &self.types;
        let it = types.at(structure);
        let list = format!("{}{suffix}", text(it.name));
        let Some(list) = types.find(it.kind, &list) else {
            return false;
        };
        types.members(types.at(list)).any(|member| {
            let pointer = types.at(member.type_id);
            pointer.kind == kind::PTR
                && member.name == field.as_bytes()
                && types.target(pointer).0 == target
        })
    }

    /// Returns whether a pointer to `have`, `off` bytes on, may stand for one to `want`
    /// (`btf_struct_ids_match`).
    ///
    /// With `strict`, only if they are the same.
    pub fn matches(&self, have: u32, off: i32, want: u32, strict: bool) -> bool {
        self.types.matches(have, off, want, strict)
    }

    /// Returns the kernel's own context of programs of a type, which `bpf_cast_to_kern_ctx` returns
    /// (`get_kern_ctx_btf_id`).
    ///
    /// # Errors
    /// `EINVAL` if the kernel's types have none for the type.
    pub fn kernel_context(&self, prog_type: ProgramType) -> Result<u32, Refused> {
        let types = &self.types;
        let name = format!("{}_kern", prog_type.name().unwrap_or_default());
        let all = self.structure("bpf_ctx_convert").unwrap_or(0);
        let mut members = types.members(types.at(all));
        let member = members.find(|member| member.name == name.as_bytes());
        let id = member.map_or(0, |member| member.type_id);
        if is_struct(types.at(id)) {
            return Ok(id);
        }
        Err((
            Errno::EINVAL,
            format!("kern ctx type id {id} is not a struct"),
        ))
    }

    /// Returns a function's name by its BTF id (`FUNC`), for calls of kernel functions.
    pub fn function_name(&self, id: u32) -> Option<&str> {
        let it = self.types.get(id)?;
        (it.kind == kind::FUNC).then(|| text(it.name))
    }

    /// Returns a function's BTF id by its name.
    pub fn function(&self, name: &str) -> Option<u32> {
        self.types.find(kind::FUNC, name)
    }

    /// Returns a `typedef`'s BTF id by its name, such as `btf_trace_sched_switch`: programs on
    /// tracepoints attach to it.
    pub fn typedef(&self, name: &str) -> Option<u32> {
        self.types.find(kind::TYPEDEF, name)
    }

    /// Returns the functions that programs may call, by BTF id (those with the tag `bpf_kfunc`).
    pub fn kernel_functions(&self) -> Vec<u32> {
        self.types.tagged("bpf_kfunc").collect()
    }

    /// Returns the `typedef`s and functions with names that begin so.
    pub fn named_with(&self, prefix: &str) -> Vec<u32> {
        let named = |id: &u32| {
            let it = self.types.at(*id);
            matches!(it.kind, kind::TYPEDEF | kind::FUNC) && it.name.starts_with(prefix.as_bytes())
        };
        (1..self.types.view().len()).filter(named).collect()
    }

    /// Returns the offset of a structure's member, in bytes.
    pub fn offset_of(&self, structure: &str, path: &str) -> Option<u32> {
        let field = self.types.view().field(self.structure(structure)?, path)?;
        Some(field.offset)
    }

    /// Checks that an instruction may load the address of this (`check_pseudo_btf_id`).
    ///
    /// # Errors
    /// `ENOENT` if there is no such type, `EINVAL` if it is no variable or function.
    pub(crate) fn check_addressable(&self, id: u32) -> Result<(), Refused> {
        let signed = id.cast_signed();
        match self.types.get(id) {
            None => Err((
                Errno::ENOENT,
                format!("ldimm64 insn specifies invalid btf_id {signed}."),
            )),
            Some(it) if it.kind != kind::VAR && it.kind != kind::FUNC => Err((
                Errno::EINVAL,
                format!("pseudo btf_id {signed} in ldimm64 isn't KIND_VAR or KIND_FUNC"),
            )),
            Some(_) => Ok(()),
        }
    }

    /// Returns a variable (`VAR`) by its BTF id: its type's number, its size (0 if unknown), and
    /// whether it is per CPU.
    pub fn variable(&self, id: u32) -> Option<(u32, u32, bool)> {
        let it = self.types.get(id).filter(|it| it.kind == kind::VAR)?;
        let (type_id, types) = (it.refers_to(), &self.types);
        let mut sections = types.all(kind::DATASEC, b".data..percpu");
        let per_cpu = sections.any(|section| {
            let mut variables = types.view().variables(types.at(section));
            variables.any(|variable| variable.type_id == id)
        });
        let target = types.skip_modifiers(type_id).0;
        Some((target, self.size(target).unwrap_or(0), per_cpu))
    }

    /// Returns the type of the same kind and name.
    pub(super) fn named(&self, like: Type<'_>) -> Option<u32> {
        self.types.find(like.kind, text(like.name))
    }

    /// Returns the types of the same kind and name, up to `___`: a program's own type may stand for
    /// them.
    pub(super) fn candidates(&self, like: Type<'_>) -> Vec<u32> {
        match text(like.name) {
            "" => Vec::new(),
            name => self.types.all_flavors(like.kind, name),
        }
    }
}
