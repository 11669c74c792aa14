//! Helpers for programs attached to control groups.

use super::table::*;
use super::{Arg::*, Helper, HelperId, Ret};

helpers! {
    GET_LOCAL_STORAGE(Map, Any) -> Ret::Value { or_null: false }
        => SOCK_OPS CGROUP_VERDICT CGROUP_SKB CGROUP_SOCK_ADDR;
    GET_RETVAL() => CGROUP_VERDICT;
    SET_RETVAL(Any) => CGROUP_VERDICT;
    BIND(Context, READ, Size) => CGROUP_CONNECT;
    SYSCTL_GET_NAME(Context, WRITE, Size, Any) => CGROUP_SYSCTL;
    SYSCTL_GET_CURRENT_VALUE(Context, FILL, Size) => CGROUP_SYSCTL;
    SYSCTL_GET_NEW_VALUE(Context, FILL, Size) => CGROUP_SYSCTL;
    SYSCTL_SET_NEW_VALUE(Context, READ, Size) => CGROUP_SYSCTL;
}
