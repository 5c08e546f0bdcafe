//! [`OptionType`]: how a value of an option is read and written, once for each type.

use super::dim::Dim;
use super::dtype::Dtype;
use super::values::{Values, Written};
use std::fmt;

/// A type of options.
pub(crate) trait OptionType: Sized {
    /// What the user writes.
    fn values() -> Values;

    /// What was written.
    fn read(written: &dyn Written) -> Result<Self, String>;

    /// The Rust expression that makes it, with the paths that user code has.
    fn literal(&self) -> String;

    /// The word for it, if there is one.
    fn word(&self) -> Option<String> {
        None
    }

    /// The number, if it is a count and given.
    fn given_count(&self) -> Option<u32> {
        None
    }
}

impl OptionType for Dim {
    fn values() -> Values {
        Values::Size
    }

    fn read(written: &dyn Written) -> Result<Self, String> {
        written.size()
    }

    fn literal(&self) -> String {
        match self {
            Self::Static(size) => format!("::mkernel::spec::Dim::Static({size}u64)"),
            Self::Dynamic => "::mkernel::spec::Dim::DYNAMIC".to_owned(),
            Self::UpTo { most } => format!("::mkernel::spec::Dim::UpTo {{ most: {most}u64 }}"),
        }
    }
}

impl OptionType for u32 {
    fn values() -> Values {
        Values::Count(None)
    }

    fn read(written: &dyn Written) -> Result<Self, String> {
        written.count()
    }

    fn literal(&self) -> String {
        format!("{self}u32")
    }

    fn given_count(&self) -> Option<u32> {
        Some(*self)
    }
}

impl OptionType for bool {
    fn values() -> Values {
        Values::Switch
    }

    fn read(written: &dyn Written) -> Result<Self, String> {
        written.switch()
    }

    fn literal(&self) -> String {
        self.to_string()
    }

    fn word(&self) -> Option<String> {
        Some(self.to_string())
    }
}

impl OptionType for String {
    fn values() -> Values {
        Values::Name
    }

    fn read(written: &dyn Written) -> Result<Self, String> {
        written.name()
    }

    fn literal(&self) -> String {
        format!("::std::string::String::from({self:?})")
    }
}

impl<T: OptionType> OptionType for Option<T> {
    fn values() -> Values {
        T::values()
    }

    fn read(written: &dyn Written) -> Result<Self, String> {
        T::read(written).map(Some)
    }

    fn literal(&self) -> String {
        match self {
            Some(value) => format!("::core::option::Option::Some({})", value.literal()),
            None => "::core::option::Option::None".to_owned(),
        }
    }

    fn given_count(&self) -> Option<u32> {
        self.as_ref().and_then(T::given_count)
    }
}

/// A type of few values, of which an option takes some.
pub(crate) trait Choice: Copy + fmt::Debug + fmt::Display + 'static {
    /// The type's name.
    const TYPE: &'static str;
    /// What an option takes, by name.
    const CHOICES: &'static [(&'static str, Self)];
}

impl Choice for Dtype {
    const TYPE: &'static str = "Dtype";
    const CHOICES: &'static [(&'static str, Self)] = &[
        (Self::Bf16.name(), Self::Bf16),
        (Self::Fp32.name(), Self::Fp32),
    ];
}

fn words<T: Choice>() -> Vec<&'static str> {
    T::CHOICES.iter().map(|(word, _)| *word).collect()
}

impl<T: Choice> OptionType for T {
    fn values() -> Values {
        Values::Words(words::<T>())
    }

    fn read(written: &dyn Written) -> Result<Self, String> {
        let index = written.word(&words::<T>())?;
        Ok(T::CHOICES[index].1)
    }

    fn literal(&self) -> String {
        format!("::mkernel::spec::{}::{self:?}", T::TYPE)
    }

    fn word(&self) -> Option<String> {
        Some(self.to_string())
    }
}

/// A type of few values, each with the name that the user writes.
macro_rules! choices {
    ($(#[$meta:meta])* pub enum $Enum:ident {
        $($(#[$variant_meta:meta])* $Variant:ident = $name:literal,)+
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum $Enum {
            $($(#[$variant_meta])* $Variant,)+
        }

        impl $Enum {
            /// Every one.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$Variant),+];

            /// Its name in every file, flag and message.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$Variant => $name,)+
                }
            }
        }

        impl std::fmt::Display for $Enum {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }

        impl $crate::config::option_type::Choice for $Enum {
            const TYPE: &'static str = stringify!($Enum);
            const CHOICES: &'static [(&'static str, Self)] = &[$(($name, Self::$Variant)),+];
        }
    };
}
pub(crate) use choices;
