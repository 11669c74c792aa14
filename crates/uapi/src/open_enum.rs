//! Enumerations that allow for numbers without a name.

/// Declares a type that wraps a number, with a constant for each value that the kernel names. `= "BPF_"` is what the kernel's
/// names begin with and the constants' do not.
macro_rules! open_enum {
    (
        $(#[$meta:meta])*
        pub struct $name:ident($number:ty) = $prefix:literal;
        $($constant:ident = $value:literal,)*
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        #[repr(transparent)]
        pub struct $name(pub $number);

        #[allow(missing_docs, reason = "the names are the kernel's")]
        impl $name {
            $(pub const $constant: Self = Self($value);)*
        }

        impl $name {
            /// All that have a name, in ascending order.
            pub const ALL: &'static [Self] = &[$(Self($value),)*];

            /// The kernel's name, or `None` for a number that it does not use.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some(concat!($prefix, stringify!($constant))),)*
                    _ => None,
                }
            }
        }

        impl ::core::fmt::Display for $name {
            /// The kernel's name, or the number behind the type's.
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, "{}({})", stringify!($name), self.0),
                }
            }
        }

        impl ::core::fmt::Debug for $name {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                ::core::fmt::Display::fmt(self, f)
            }
        }
    };
}

pub(crate) use open_enum;
