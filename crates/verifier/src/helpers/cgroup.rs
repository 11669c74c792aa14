//! Helpers of programs that are attached to control groups.

use super::table::*;
use super::{Arg::*, Helper, Ret};

helpers! {
     81 GET_LOCAL_STORAGE(Map, Any) -> Ret::Value { or_null: false };
    186 GET_RETVAL();
    187 SET_RETVAL(Any);
     64 BIND(Context, READ, Size);
    101 SYSCTL_GET_NAME(Context, WRITE, Size, Any);
    102 SYSCTL_GET_CURRENT_VALUE(Context, FILL, Size);
    103 SYSCTL_GET_NEW_VALUE(Context, FILL, Size);
    104 SYSCTL_SET_NEW_VALUE(Context, READ, Size);
}
