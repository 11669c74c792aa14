//! Enumerations that allow unnamed numbers.

/// Declares a type that wraps a number, with a constant for each value that the kernel names. `=
/// "BPF_"` is the prefix of the kernel's names, which the constants omit.
macro_rules! open_enum {
    (
        $(#[$meta:meta])*
        pub struct $name:ident($number:ty) = $prefix:literal;
        $($constant:ident = $value:literal,)*
    ) => {
        $(#[$meta])*
        #[derive(
            Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default,
            ::zerocopy::FromBytes, ::zerocopy::IntoBytes,
            ::zerocopy::KnownLayout, ::zerocopy::Immutable,
        )]
        #[repr(transparent)]
        pub struct $name(pub $number);

        #[allow(missing_docs, reason = "the names are the kernel's")]
        impl $name {
            $(pub const $constant: Self = Self($value);)*
        }

        impl $name {
            /// All named values, in ascending order.
            pub const ALL: &'static [Self] = &[$(Self($value),)*];

            /// Returns the kernel's name, or `None` for a number that the kernel does not use.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some(concat!($prefix, stringify!($constant))),)*
                    _ => None,
                }
            }
        }

        impl ::core::fmt::Display for $name {
            /// Writes the kernel's name, or the type's name and the number.
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
