//! [`OptionSpec`], which describes an option, and the macro that declares structs of options.

use super::dim::Dim;
use super::op::Op;
use super::option_type::OptionType;
use super::value::Value;
use super::values::{Limits, Values};
use crate::field::Field;

/// An option of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptionSpec {
    /// The name of the option.
    pub field: Field,
    /// The struct that has the option.
    pub of: &'static str,
    /// The TOML table that may contain the option; `None` if there is no such table.
    pub group: Option<&'static str>,
    /// The documentation of the option, in paragraphs. The first paragraph is a summary.
    pub doc: Vec<String>,
    /// The values that the option takes.
    pub values: Values,
    /// The word of the default value; `None` if the default has no word.
    pub default: Option<String>,
}

impl OptionSpec {
    /// An option of type `T`; `doc` is its documentation as rustc has it, line by line.
    pub(crate) fn new<T: OptionType>(
        field: Field,
        (of, group): (&'static str, Option<&'static str>),
        doc: &[&str],
        default: Option<String>,
    ) -> Self {
        let lines: Vec<_> = doc.iter().map(|line| line.trim()).collect();
        let paragraphs = lines.split(|line| line.is_empty());
        Self {
            field,
            of,
            group,
            doc: paragraphs.map(|lines| lines.join(" ")).collect(),
            values: T::values(),
            default,
        }
    }

    /// The option, with values restricted to these limits.
    pub(crate) fn within(mut self, limits: Limits) -> Self {
        self.values = Values::Count(Some(limits));
        self
    }

    /// The option, with values restricted to these words.
    pub(crate) fn among<const N: usize>(mut self, words: [&'static str; N]) -> Self {
        self.values = Values::Words(words.into());
        self
    }
}

/// A collection of options: a struct that `options!` declares, or an enum of such structs.
pub trait Options {
    /// All options, the options of groups last. `group` is the TOML table that contains this struct.
    fn options(&self, group: Option<&'static str>) -> Vec<OptionSpec>;

    /// Assigns a value to an option. Returns false if there is no such option.
    ///
    /// # Errors
    /// A description of the values that the option takes.
    fn assign(&mut self, field: Field, value: &Value) -> Result<bool, String>;
}

/// The configuration of one kind of operator.
pub trait OperatorConfig: Options {
    /// The operator.
    fn op(&self) -> Op;

    /// The dimensions.
    fn dims(&self) -> Vec<(Field, Dim)>;

    /// The dimensions, to be changed.
    fn dims_mut(&mut self) -> Vec<(Field, &mut Dim)>;
}

/// Structs of options, and the [`Field`] of each option. A struct may have
///
/// - `op: Type, sizes: Shape { … }`: the dimensions of a problem, and the name of the struct that has all of them;
/// - `options { … }`: all other options of the user;
/// - `groups { … }`: structs of options that stand in a table of their own in TOML, or beside the others.
///
/// `name as NAME` declares an option and `Field::NAME`; `name as =NAME` is an option that another struct declares. Help
/// and the book show the documentation of the option. This declaration
///
/// ```text
/// pub struct SumConfig {
///     op: SumOp, sizes: SumShape {
///         /// Rows.
///         m as =M,
///     }
///     options {
///         /// Warps of a row.
///         #[limits(1..=8)] // or `[1, 2, 4], "the reason"`; `#[default(true)]` is a default of its own
///         warps: Option<u32> as WARPS,
///     }
/// }
/// ```
///
/// becomes, in short,
///
/// ```text
/// impl Field { pub const WARPS: Self = Self::new("warps"); }
/// pub struct SumConfig { pub op: SumOp, pub m: Dim, pub warps: Option<u32> }
/// impl Options for SumConfig {
///     fn options(&self, ..) -> Vec<OptionSpec> { vec![/* m and warps: names, values, limits, documentation */] }
///     fn assign(&mut self, field, value) -> Result<bool, String> {
///         match field {
///             Field::M => self.m = OptionType::read(value)?,
///             Field::WARPS => self.warps = OptionType::read(value)?,
///             _ => return Ok(false),
///         }
///         Ok(true)
///     }
/// }
/// impl SumConfig {
///     pub fn new(op: SumOp) -> Self { Self { op, m: Dim::Dynamic, warps: None } }
///     pub(crate) fn check_limits(&self, found) { /* records warps outside 1..=8 */ }
///     pub fn shape(&self) -> Option<SumShape> { Some(SumShape { m: self.m.fixed()? }) }
/// }
/// impl OperatorConfig for SumConfig { /* op, dims and dims_mut */ }
/// pub struct SumShape { pub m: u64 }
/// impl SumShape { pub fn size(&self, field: Field) -> Option<u64> { /* m of Field::M */ } }
/// ```
macro_rules! options {
    (@default) => { Default::default() };
    (@default $default:expr) => { $default };
    (@new $Struct:ident [] $($rest:tt)*) => {};
    (@new $Struct:ident [$Op:ident] [$($size:ident)+] [$($name:ident = ($($default:expr)?))*] [$($group:ident)*]) => {
        impl $Struct {
            /// Every size dynamic, and every other option at its default.
            #[must_use]
            pub fn new(op: $Op) -> Self {
                Self {
                    op,
                    $($size: Dim::Dynamic,)+
                    $($name: options!(@default $($default)?),)*
                    $($group: Default::default(),)*
                }
            }
        }
    };
    ($(
        $(#[$meta:meta])*
        pub struct $Struct:ident {
            $(op: $Op:ident, sizes: $Shape:ident {$(
                $(#[doc = $size_doc:literal])*
                $size:ident as $(=$OldSize:ident)? $($NewSize:ident)?,
            )+})?
            options {$(
                $(#[doc = $doc:literal])*
                $(#[limits($($limits:tt)+)])?
                $(#[among($among:expr)])?
                $(#[default($default:expr)])?
                $(#[serde($($serde:tt)*)])?
                $name:ident: $type:ty as $(=$Old:ident)? $($New:ident)?,
            )*}
            $(groups {$(
                $(#[$group_meta:meta])*
                $group:ident: $Group:ident,
            )+})?
        }
    )+) => {
        impl $crate::config::Field {
            $(
                $($($(#[doc = concat!("`", stringify!($size), "`")] pub const $NewSize: Self = Self::new(stringify!($size));)?)+)?
                $($(#[doc = concat!("`", stringify!($name), "`")] pub const $New: Self = Self::new(stringify!($name));)?)*
            )+
        }

        $(
            $(#[$meta])*
            pub struct $Struct {
                $(
                    /// The operator.
                    pub op: $Op,
                    $($(#[doc = $size_doc])* pub $size: Dim,)+
                )?
                $(
                    $(#[doc = $doc])*
                    $(#[doc = $crate::options::option::limits!(@doc $($limits)+)])?
                    $(#[doc = concat!("\n\nOne of [`", stringify!($among), "`].")])?
                    $(#[serde($($serde)*)])?
                    pub $name: $type,
                )*
                $($($(#[$group_meta])* pub $group: $Group,)+)?
            }

            impl $crate::config::Options for $Struct {
                fn options(&self, group: Option<&'static str>) -> Vec<OptionSpec> {
                    let place = (stringify!($Struct), group);
                    #[allow(unused_mut, reason = "not every struct has groups")]
                    let mut all = vec![
                        $($(OptionSpec::new::<Dim>(
                            Field::$($OldSize)?$($NewSize)?, place, &[$($size_doc),*], None,
                        ),)+)?
                        $(OptionSpec::new::<$type>(
                            Field::$($Old)?$($New)?, place, &[$($doc),*],
                            <$type as OptionType>::word(&options!(@default $($default)?)),
                        )$(.within($crate::options::option::limits!($($limits)+)))?$(.among($among.map(|value| value.name())))?,)*
                    ];
                    $($(all.extend(self.$group.options(Some(stringify!($group))));)+)?
                    all
                }

                fn assign(&mut self, field: Field, value: &Value) -> Result<bool, String> {
                    match field {
                        $($(Field::$($OldSize)?$($NewSize)? => self.$size = OptionType::read(value)?,)+)?
                        $(Field::$($Old)?$($New)? => self.$name = OptionType::read(value)?,)*
                        _ => return Ok(false $($(|| self.$group.assign(field, value)?)+)?),
                    }
                    Ok(true)
                }
            }

            impl $Struct {
                /// Records counts outside their limits and values that the operator does not take. Groups check their own options.
                #[allow(dead_code, unused_variables, reason = "not every struct has limits")]
                pub(crate) fn check_limits(&self, found: &mut Diagnostics) {
                    $(
                        let field = Field::$($Old)?$($New)?;
                        $(if let Some(word) = self.$name.given_word() {
                            $crate::options::option_type::check_word(&word, &$among.map(|value| value.name()), field, found);
                        })?
                        let limits = None::<$crate::config::Limits>$(.or(Some($crate::options::option::limits!($($limits)+))))?;
                        if let (Some(limits), Some(value)) = (limits, self.$name.given_count()) {
                            limits.check(field, value, found);
                        }
                    )*
                }
            }

            options!(@new $Struct [$($Op)?] [$($($size)+)?] [$($name = ($($default)?))*] [$($($group)+)?]);

            $(
                impl $crate::config::OperatorConfig for $Struct {
                    fn op(&self) -> $crate::config::Op {
                        self.op.op()
                    }

                    fn dims(&self) -> Vec<(Field, Dim)> {
                        vec![$((Field::$($OldSize)?$($NewSize)?, self.$size)),+]
                    }

                    fn dims_mut(&mut self) -> Vec<(Field, &mut Dim)> {
                        vec![$((Field::$($OldSize)?$($NewSize)?, &mut self.$size)),+]
                    }
                }

                impl $Struct {
                    /// The shape, if no dimension is dynamic.
                    #[must_use]
                    pub fn shape(&self) -> Option<$Shape> {
                        Some($Shape { $($size: self.$size.fixed()?),+ })
                    }
                }

                #[doc = concat!("Sizes of [`", stringify!($Struct), "`].")]
                #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
                pub struct $Shape {
                    $($(#[doc = $size_doc])* pub $size: u64,)+
                }

                impl $Shape {
                    /// The size of a dimension; `None` if the problem does not have the dimension.
                    #[must_use]
                    pub fn size(&self, field: Field) -> Option<u64> {
                        match field {
                            $(Field::$($OldSize)?$($NewSize)? => Some(self.$size),)+
                            _ => None,
                        }
                    }
                }
            )?
        )+
    };
}
pub(crate) use options;

/// The [`Limits`] that `#[limits(…)]` gives, and with `@doc` the paragraph about the limits.
macro_rules! limits {
    ($low:literal..=$high:literal) => {
        $crate::config::Limits::Range($low, $high)
    };
    ([$($count:literal),+], $why:literal) => {
        $crate::config::Limits::OneOf(&[$($count),+], $why)
    };
    (@doc $low:literal..=$high:literal) => {
        concat!("\n\nFrom ", $low, " to ", $high, ".")
    };
    (@doc [$first:literal $(, $count:literal)*], $why:literal) => {
        concat!("\n\nOne of ", $first, $(", ", $count,)* ": ", $why, ".")
    };
}
pub(crate) use limits;

#[cfg(test)]
mod tests {
    use crate::config::Limits;

    #[test]
    fn limits_are_documented_in_words() {
        assert_eq!(limits!(1..=128), Limits::Range(1, 128));
        assert_eq!(limits!(@doc 1..=128), "\n\nFrom 1 to 128.");
        let of_few = limits!([64, 128], "wgmma works on 64 rows");
        assert_eq!(of_few, Limits::OneOf(&[64, 128], "wgmma works on 64 rows"));
        let documented = limits!(@doc [64, 128], "wgmma works on 64 rows");
        assert_eq!(documented, "\n\nOne of 64, 128: wgmma works on 64 rows.");
    }
}
