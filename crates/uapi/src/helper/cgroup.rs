//! Helpers for programs attached to control groups.

use super::table::*;
use super::{Arg::*, Helper, HelperId, Ret};

helpers! {
    GET_LOCAL_STORAGE(Map, Any) -> Ret::Value { or_null: false };
    GET_RETVAL();
    SET_RETVAL(Any);
    BIND(Context, READ, Size);
    SYSCTL_GET_NAME(Context, WRITE, Size, Any);
    SYSCTL_GET_CURRENT_VALUE(Context, FILL, Size);
    SYSCTL_GET_NEW_VALUE(Context, FILL, Size);
    SYSCTL_SET_NEW_VALUE(Context, READ, Size);
}
