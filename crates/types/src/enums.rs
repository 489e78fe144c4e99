//! Enums that know all their variants.

/// Declares an enum, and with it `ALL`: none of its variants can be forgotten there.
#[macro_export]
macro_rules! enum_with_all {
    ($(#[$about:meta])* $vis:vis enum $name:ident {
        $($(#[$of_variant:meta])* $variant:ident $(= $number:literal)?),* $(,)?
    }) => {
        $(#[$about])*
        $vis enum $name {
            $($(#[$of_variant])* $variant $(= $number)?),*
        }

        impl $name {
            /// Every one, in the order of declaration.
            $vis const ALL: [Self; [$(stringify!($variant)),*].len()] = [$(Self::$variant),*];
        }
    };
}
