//! Structures that cross the system call interface.

/// Declares structures with the kernel's layout: no hidden padding, any bytes are valid.
macro_rules! layout {
    ($(
        $(#[$meta:meta])*
        pub struct $name:ident { $($(#[$field_meta:meta])* $field:ident: $type:ty,)* }
    )*) => {$(
        $(#[$meta])*
        #[derive(
            Debug, Clone, Copy, Default, PartialEq, Eq,
            ::zerocopy::FromBytes, ::zerocopy::IntoBytes,
            ::zerocopy::KnownLayout, ::zerocopy::Immutable,
        )]
        #[repr(C)]
        pub struct $name { $($(#[$field_meta])* pub $field: $type,)* }
    )*};
}

pub(crate) use layout;
