//! The macro and the shorthands for the tables of helpers.

use super::{Arg, Ret};

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
/// The same, or null.
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

/// A table of helpers, one per line: `NAME(arguments) -> result, flags => sets;`. Without a result,
/// a helper returns a number. The sets are those of [`Sets`](super::Sets). A helper whose arguments
/// depend on the program type has a line for each further form: `FORM as NAME(arguments) => sets;`.
macro_rules! helpers {
    ($(
        $name:ident $(as $of:ident)? ($($arg:expr),*) $(-> $ret:expr)? $(, $flag:ident)*
        => $($set:ident)+;
    )*) => {
        $(
            #[allow(missing_docs, reason = "the names are the kernel's")]
            pub static $name: Helper = Helper::new(helpers!(@id $name $($of)?), &[$($arg),*])
                $(.returns($ret))?$(.$flag())*$(.belongs_to($crate::helper::Sets::$set))+;
        )*

        /// All helpers of this table.
        pub(super) const ALL: &[&Helper] = &[$(&$name),*];
    };
    (@id $name:ident) => { HelperId::$name };
    (@id $form:ident $name:ident) => { HelperId::$name };
}
pub(super) use helpers;
