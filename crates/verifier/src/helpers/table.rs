//! How the tables of helpers are written, and sets of them.

use beeline_uapi::HelperId;

use super::{Arg, Helper, Ret};

/// `ARG_PTR_TO_MEM | MEM_RDONLY`.
pub(super) const READ: Arg = mem(false, false, false);
/// `ARG_PTR_TO_MEM | PTR_MAYBE_NULL | MEM_RDONLY`.
pub(super) const READ_OR_NULL: Arg = mem(false, false, true);
/// `ARG_PTR_TO_MEM | MEM_WRITE`.
pub(super) const WRITE: Arg = mem(true, false, false);
/// `ARG_PTR_TO_MEM_OR_NULL | MEM_WRITE`.
pub(super) const WRITE_OR_NULL: Arg = mem(true, false, true);
/// `ARG_PTR_TO_UNINIT_MEM`.
pub(super) const FILL: Arg = mem(true, true, false);

const fn mem(write: bool, uninit: bool, or_null: bool) -> Arg {
    Arg::Mem {
        write,
        uninit,
        or_null,
        fixed: None,
        aligned: false,
    }
}

/// `ARG_PTR_TO_FIXED_SIZE_MEM | MEM_RDONLY`.
pub(super) const fn read_exactly(bytes: u32) -> Arg {
    Arg::Mem {
        write: false,
        uninit: false,
        or_null: false,
        fixed: Some(bytes),
        aligned: false,
    }
}

/// `ARG_PTR_TO_FIXED_SIZE_MEM | MEM_WRITE | MEM_ALIGNED`.
pub(super) const fn write_exactly(bytes: u32) -> Arg {
    Arg::Mem {
        write: true,
        uninit: false,
        or_null: false,
        fixed: Some(bytes),
        aligned: true,
    }
}

/// `ARG_PTR_TO_FIXED_SIZE_MEM | MEM_UNINIT | MEM_WRITE | MEM_ALIGNED`.
pub(super) const fn fill_exactly(bytes: u32) -> Arg {
    Arg::Mem {
        write: true,
        uninit: true,
        or_null: false,
        fixed: Some(bytes),
        aligned: true,
    }
}

/// `ARG_PTR_TO_BTF_ID`.
pub(super) const fn btf(name: &'static str) -> Arg {
    Arg::Btf {
        name,
        or_null: false,
    }
}

/// `ARG_PTR_TO_BTF_ID_OR_NULL`.
pub(super) const fn btf_or_null(name: &'static str) -> Arg {
    Arg::Btf {
        name,
        or_null: true,
    }
}

/// `ARG_PTR_TO_BTF_ID_SOCK_COMMON`.
pub(super) const SOCK: Arg = Arg::BtfSockCommon {
    release: false,
    or_null: false,
};
/// The same or null.
pub(super) const SOCK_OR_NULL: Arg = Arg::BtfSockCommon {
    release: false,
    or_null: true,
};

/// `RET_PTR_TO_MAP_VALUE_OR_NULL`.
pub(super) const VALUE_OR_NULL: Ret = Ret::Value { or_null: true };

/// `RET_PTR_TO_BTF_ID_OR_NULL`.
pub(super) const fn found(name: &'static str) -> Ret {
    Ret::Btf {
        name,
        or_null: true,
        trusted: false,
    }
}

impl Helper {
    /// One that gives a number and of which nothing special is to be said.
    pub(super) const fn new(id: u32, args: &'static [Arg]) -> Self {
        Self {
            id,
            args,
            ret: Ret::Integer,
            gpl_only: false,
            packet_access: false,
            might_sleep: false,
            changes_packet: false,
            fastcall: false,
        }
    }

    pub(super) const fn returns(self, ret: Ret) -> Self {
        Self { ret, ..self }
    }

    pub(super) const fn gpl(self) -> Self {
        Self {
            gpl_only: true,
            ..self
        }
    }

    pub(super) const fn packet_access(self) -> Self {
        Self {
            packet_access: true,
            ..self
        }
    }

    pub(super) const fn might_sleep(self) -> Self {
        Self {
            might_sleep: true,
            ..self
        }
    }

    pub(super) const fn changes_packet(self) -> Self {
        Self {
            changes_packet: true,
            ..self
        }
    }

    pub(super) const fn fastcall(self) -> Self {
        Self {
            fastcall: true,
            ..self
        }
    }
}

/// A table of helpers, one a line: `NUMBER NAME(arguments) -> result, flags;`, where no result is a number. A helper that
/// differs with the type of the program has a line for each form, `NAME_FORM`.
macro_rules! helpers {
    ($($id:literal $name:ident($($arg:expr),*) $(-> $ret:expr)? $(, $flag:ident)*;)*) => {
        $(
            pub(super) static $name: Helper =
                Helper::new($id, &[$($arg),*])$(.returns($ret))?$(.$flag())*;
        )*

        /// All of this table, by name.
        #[cfg(test)]
        pub(super) const NAMES: &[(&str, &Helper)] = &[$((stringify!($name), &$name)),*];
    };
}
pub(super) use helpers;

/// Some helpers, by number.
pub(super) struct Set([Option<&'static Helper>; HelperId::COUNT as usize]);

impl Set {
    /// Of these; no two have the same number.
    pub(super) const fn new(helpers: &[&'static Helper]) -> Self {
        let mut by_id = [None; HelperId::COUNT as usize];
        let mut at = 0;
        while at < helpers.len() {
            let place = &mut by_id[helpers[at].id as usize];
            assert!(place.is_none(), "two helpers with one number");
            *place = Some(helpers[at]);
            at += 1;
        }
        Self(by_id)
    }

    /// All but one.
    pub(super) const fn without(&self, helper: &Helper) -> Self {
        let mut by_id = self.0;
        by_id[helper.id as usize] = None;
        Self(by_id)
    }

    pub(super) fn get(&self, id: u32) -> Option<&'static Helper> {
        self.0.get(id as usize).copied().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{cgroup, general, packet, socket, tracing};

    #[test]
    fn numbers_fit_names() {
        let mut seen = [false; beeline_uapi::HelperId::COUNT as usize];
        for (name, helper) in [
            cgroup::NAMES,
            general::NAMES,
            packet::NAMES,
            socket::NAMES,
            tracing::NAMES,
        ]
        .concat()
        {
            let known = beeline_isa::helper::name(helper.id).expect("a helper");
            let rest = name.strip_prefix(&known.to_uppercase());
            assert!(
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('_')),
                "{name} is not {known}"
            );
            seen[helper.id as usize] = true;
        }
        let missing: Vec<_> = (1..beeline_uapi::HelperId::COUNT)
            .filter(|&id| !seen[id as usize])
            .filter_map(beeline_isa::helper::name)
            .collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
}
