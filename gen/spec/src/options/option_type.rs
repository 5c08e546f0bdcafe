//! [`OptionType`]: how a value of an option is read and written, once for each type.

use super::dim::Dim;
use super::dtype::Dtype;
use super::value::Value;
use super::values::Values;
use crate::diagnostic::Diagnostics;
use crate::field::Field;
use std::fmt;

/// A type of options.
pub(crate) trait OptionType: Sized {
    /// The values that the user writes.
    fn values() -> Values;

    /// Reads the value that the user has written. An error describes the values that would work.
    fn read(value: &Value) -> Result<Self, String>;

    /// The word for the value, if there is a word.
    fn word(&self) -> Option<String> {
        None
    }

    /// The number, if the value is a given count.
    fn given_count(&self) -> Option<u32> {
        None
    }

    /// The word of a choice, if the value is given.
    fn given_word(&self) -> Option<String> {
        None
    }
}

impl OptionType for Dim {
    fn values() -> Values {
        Values::Size
    }

    fn read(value: &Value) -> Result<Self, String> {
        value.size()
    }
}

impl OptionType for u32 {
    fn values() -> Values {
        Values::Count(None)
    }

    fn read(value: &Value) -> Result<Self, String> {
        value.count()
    }

    fn given_count(&self) -> Option<u32> {
        Some(*self)
    }
}

impl OptionType for bool {
    fn values() -> Values {
        Values::Switch
    }

    fn read(value: &Value) -> Result<Self, String> {
        value.switch()
    }

    fn word(&self) -> Option<String> {
        Some(self.to_string())
    }
}

impl OptionType for String {
    fn values() -> Values {
        Values::Name
    }

    fn read(value: &Value) -> Result<Self, String> {
        value.name()
    }
}

impl<T: OptionType> OptionType for Option<T> {
    fn values() -> Values {
        T::values()
    }

    fn read(value: &Value) -> Result<Self, String> {
        T::read(value).map(Some)
    }

    fn given_count(&self) -> Option<u32> {
        self.as_ref().and_then(T::given_count)
    }

    fn given_word(&self) -> Option<String> {
        self.as_ref().and_then(T::given_word)
    }
}

/// A type of a few values, some of which an option takes.
pub(crate) trait Choice: Copy + fmt::Debug + fmt::Display + 'static {
    /// The values that an option takes, by name.
    const CHOICES: &'static [(&'static str, Self)];
}

impl Choice for Dtype {
    const CHOICES: &'static [(&'static str, Self)] = &{
        let mut choices = [("", Self::Bf16); Self::FLOATS.len()];
        let mut i = 0;
        while i < choices.len() {
            choices[i] = (Self::FLOATS[i].name(), Self::FLOATS[i]);
            i += 1;
        }
        choices
    };
}

fn words<T: Choice>() -> Vec<&'static str> {
    T::CHOICES.iter().map(|(word, _)| *word).collect()
}

impl<T: Choice> OptionType for T {
    fn given_word(&self) -> Option<String> {
        self.word()
    }

    fn values() -> Values {
        Values::Words(words::<T>())
    }

    fn read(value: &Value) -> Result<Self, String> {
        let index = value.word(&words::<T>())?;
        Ok(T::CHOICES[index].1)
    }

    fn word(&self) -> Option<String> {
        Some(self.to_string())
    }
}

/// Records a diagnostic at `field` unless `word` is among `allowed`.
pub(crate) fn check_word(word: &str, allowed: &[&str], field: Field, found: &mut Diagnostics) {
    found.require(
        allowed.contains(&word),
        field,
        || format!("{word} is not possible here"),
        format!("use {}", allowed.join(" or ")),
    );
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
            /// All values.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$Variant),+];

            /// The name of the value in every file, flag and message.
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

        impl $crate::options::option_type::Choice for $Enum {
            const CHOICES: &'static [(&'static str, Self)] = &[$(($name, Self::$Variant)),+];
        }
    };
}
pub(crate) use choices;
