//! [`NicOptions`]: the choice of a rank's NICs, and [`NIC_SETTINGS`]: the settings that variables and flags can set.
//!
//! The variables are `MKERNEL_RAILS`, `MKERNEL_GID_INDEX`, `MKERNEL_SERVICE_LEVEL`, `MKERNEL_TRAFFIC_CLASS`,
//! `MKERNEL_PARTITION_KEY`, `MKERNEL_QUEUE_PAIRS`, `MKERNEL_BYTE_WINDOW`, `MKERNEL_NIC_TIMEOUT_MS`, `MKERNEL_RELAXED_ORDERING`
//! and `MKERNEL_FLUSH`.

use crate::error::{EnvironmentError, Error};
use std::num::NonZeroU64;
use std::str::FromStr;
use std::time::Duration;

/// The choice of a rank's NICs and their settings. The options may differ between ranks, except the number of queue pairs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicOptions {
    /// The NICs in the form of `MKERNEL_NICS`: `mlx5_0,mlx5_3` for all GPUs, or `0=mlx5_0;1=mlx5_3` per GPU. If this is
    /// `None`, that variable applies, or else the NICs nearest to each GPU.
    pub nics: Option<String>,
    /// The most NICs of a GPU. If this is `None`, the GPU uses all NICs that `nics` gives it. Peers must have equal numbers of NICs.
    pub rails: Option<u8>,
    /// An index in the port's table of GIDs. If this is `None`, the default on Ethernet is the RoCE v2 GID with the
    /// farthest reach, and the first GID otherwise.
    pub gid_index: Option<u8>,
    /// The service level of InfiniBand, the priority of Ethernet, or the service level of EFA, 0 to 15.
    pub service_level: u8,
    /// The DSCP and ECN bits of the IP packets of RoCE v2. They apply to RC only.
    pub traffic_class: u8,
    /// An index in the port's table of partition keys. It applies to RC only.
    pub partition_key: u16,
    /// The number of queue pairs on each NIC: 1 to 16 for each peer with RC, 1 to 4 for all peers with EFA. It must be equal on
    /// all ranks.
    pub queue_pairs: u8,
    /// The most bytes to one peer in flight. `None` sets no limit.
    pub byte_window: Option<NonZeroU64>,
    /// The time for which NICs of RC repeat requests to a peer that does not answer. The default is one second more than the
    /// timeout of waits.
    pub nic_timeout: Option<Duration>,
    /// Whether writes of the NICs may pass each other on PCIe.
    pub relaxed_ordering: bool,
    /// The arrivals that wait until a read by the NIC has flushed their bytes.
    pub flush: Flush,
}

impl Default for NicOptions {
    fn default() -> Self {
        Self {
            nics: None,
            rails: None,
            gid_index: None,
            service_level: 0,
            traffic_class: 0,
            partition_key: 0,
            queue_pairs: 1,
            byte_window: None,
            nic_timeout: None,
            relaxed_ordering: false,
            flush: Flush::default(),
        }
    }
}

/// The arrivals that wait until a read by the NIC has flushed their bytes to the memory of the GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Flush {
    /// All arrivals if the GPU does not keep the order of writes by NICs, and no arrival otherwise.
    #[default]
    Auto,
    /// All arrivals.
    Always,
    /// No arrival.
    Never,
}

/// A setting of NICs, with its variable and the values that it can have. `mkernel-gen` has a flag of the same name for each.
#[derive(Debug)]
pub struct NicSetting {
    /// The name, as in `service-level`.
    pub name: &'static str,
    /// The environment variable.
    pub variable: &'static str,
    /// The meaning.
    pub about: &'static str,
    /// The possible values.
    pub values: &'static str,
    /// The default.
    pub default: &'static str,
    /// Whether the setting applies to RC only.
    pub is_rc_only: bool,
    /// Sets the option, or returns false if the value is not possible.
    set: fn(&mut NicOptions, &str) -> bool,
}

impl NicSetting {
    /// Sets the option to a value in the form of the variable. Returns false if the value is not possible.
    pub fn set(&self, options: &mut NicOptions, value: &str) -> bool {
        (self.set)(options, value.trim())
    }
}

/// All settings.
pub const NIC_SETTINGS: &[NicSetting] = &[
    NicSetting {
        name: "rails",
        variable: "MKERNEL_RAILS",
        about: "The most NICs of a GPU; equal on all ranks",
        values: "1 to 8",
        default: "all NICs that MKERNEL_NICS gives it",
        is_rc_only: false,
        set: |options, text| store(&mut options.rails, within(text, 1, 8).map(Some)),
    },
    NicSetting {
        name: "gid-index",
        variable: "MKERNEL_GID_INDEX",
        about: "The entry in the NICs' tables of GIDs",
        values: "0 to 255",
        default: "RoCE v2 of the farthest reach",
        is_rc_only: false,
        set: |options, text| store(&mut options.gid_index, text.parse().ok().map(Some)),
    },
    NicSetting {
        name: "service-level",
        variable: "MKERNEL_SERVICE_LEVEL",
        about: "The service level of InfiniBand or EFA, or the priority of Ethernet",
        values: "0 to 15",
        default: "0",
        is_rc_only: false,
        set: |options, text| store(&mut options.service_level, within(text, 0, 15)),
    },
    NicSetting {
        name: "traffic-class",
        variable: "MKERNEL_TRAFFIC_CLASS",
        about: "DSCP and ECN of RoCE v2 packets",
        values: "0 to 255",
        default: "0",
        is_rc_only: true,
        set: |options, text| store(&mut options.traffic_class, text.parse().ok()),
    },
    NicSetting {
        name: "partition-key",
        variable: "MKERNEL_PARTITION_KEY",
        about: "The entry in the NICs' tables of partition keys",
        values: "0 to 65535",
        default: "0",
        is_rc_only: true,
        set: |options, text| store(&mut options.partition_key, text.parse().ok()),
    },
    NicSetting {
        name: "queue-pairs",
        variable: "MKERNEL_QUEUE_PAIRS",
        about: "The queue pairs on each NIC, for each peer with RC and for all peers with EFA; equal on all ranks",
        values: "1 to 16 with RC, 1 to 4 with EFA",
        default: "1",
        is_rc_only: false,
        set: |options, text| store(&mut options.queue_pairs, within(text, 1, 16)),
    },
    NicSetting {
        name: "byte-window",
        variable: "MKERNEL_BYTE_WINDOW",
        about: "The most bytes to one peer in flight, so that many senders do not overrun a receiver; a longer put goes alone",
        values: "a number of bytes, 1 or more",
        default: "no limit",
        is_rc_only: false,
        set: |options, text| store(&mut options.byte_window, text.parse().ok().map(Some)),
    },
    NicSetting {
        name: "nic-timeout-ms",
        variable: "MKERNEL_NIC_TIMEOUT_MS",
        about: "The time for which NICs repeat requests to a peer that does not answer",
        values: "10 to 600000",
        default: "1000 more than MKERNEL_TIMEOUT_MS, 600000 at most",
        is_rc_only: true,
        set: |options, text| {
            let limit = within(text, 10, 600_000).map(Duration::from_millis);
            store(&mut options.nic_timeout, limit.map(Some))
        },
    },
    NicSetting {
        name: "relaxed-ordering",
        variable: "MKERNEL_RELAXED_ORDERING",
        about: "Whether writes of the NICs may pass each other on PCIe, which some hosts need for the full rate",
        values: "0 or 1",
        default: "0",
        is_rc_only: false,
        set: |options, text| {
            let is_on = match text {
                "0" | "off" | "no" | "false" => Some(false),
                "1" | "on" | "yes" | "true" => Some(true),
                _ => None,
            };
            store(&mut options.relaxed_ordering, is_on)
        },
    },
    NicSetting {
        name: "flush",
        variable: "MKERNEL_FLUSH",
        about: "Whether arrivals wait until the NIC has read GPU memory once more, which flushes its writes; auto does so if the \
                GPU does not keep their order",
        values: "auto, always or never",
        default: "auto",
        is_rc_only: false,
        set: |options, text| {
            let flush = match text {
                "auto" => Some(Flush::Auto),
                "always" => Some(Flush::Always),
                "never" => Some(Flush::Never),
                _ => None,
            };
            store(&mut options.flush, flush)
        },
    },
];

/// Sets an option to a value, or returns false if there is none.
fn store<T>(option: &mut T, value: Option<T>) -> bool {
    let is_possible = value.is_some();
    if let Some(value) = value {
        *option = value;
    }
    is_possible
}

/// Parses a number of a range.
fn within<T: FromStr + PartialOrd>(text: &str, least: T, most: T) -> Option<T> {
    let number = text.parse().ok()?;
    (least..=most).contains(&number).then_some(number)
}

impl NicOptions {
    /// Returns the options that environment variables set. `MKERNEL_NICS` is read later, since its meaning depends on the rank's
    /// GPU.
    ///
    /// # Errors
    /// [`EnvironmentError::Variable`] for a value that is not possible.
    pub fn from_env() -> Result<Self, Error> {
        Self::read(|name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
    }

    /// Reads the options by `lookup`, which returns the value of a variable.
    pub(crate) fn read(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, Error> {
        let mut options = Self::default();
        for setting in NIC_SETTINGS {
            let value = lookup(setting.variable).unwrap_or_default();
            if !value.trim().is_empty() && !setting.set(&mut options, &value) {
                return Err(Error::Environment(EnvironmentError::Variable {
                    name: setting.variable,
                    value: Some(value.trim().to_owned()),
                    expected: setting.values,
                }));
            }
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<NicOptions, Error> {
        NicOptions::read(|name| {
            let set = variables.iter().find(|(known, _)| *known == name);
            set.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn every_setting_has_a_variable_of_its_name() {
        for setting in NIC_SETTINGS {
            let name = setting.name.to_uppercase().replace('-', "_");
            assert_eq!(setting.variable, format!("MKERNEL_{name}"));
        }
    }

    #[test]
    fn variables_set_the_options() {
        assert_eq!(read(&[]).expect("none"), NicOptions::default());
        assert_eq!(
            read(&[("MKERNEL_FLUSH", "  ")]).expect("blank"),
            NicOptions::default()
        );
        let set = read(&[
            ("MKERNEL_RAILS", "2"),
            ("MKERNEL_GID_INDEX", "3"),
            ("MKERNEL_SERVICE_LEVEL", " 5 "),
            ("MKERNEL_TRAFFIC_CLASS", "106"),
            ("MKERNEL_PARTITION_KEY", "2"),
            ("MKERNEL_QUEUE_PAIRS", "4"),
            ("MKERNEL_BYTE_WINDOW", "8000000"),
            ("MKERNEL_NIC_TIMEOUT_MS", "2500"),
            ("MKERNEL_RELAXED_ORDERING", "on"),
            ("MKERNEL_FLUSH", "always"),
        ]);
        let expected = NicOptions {
            nics: None,
            rails: Some(2),
            gid_index: Some(3),
            service_level: 5,
            traffic_class: 106,
            partition_key: 2,
            queue_pairs: 4,
            byte_window: NonZeroU64::new(8_000_000),
            nic_timeout: Some(Duration::from_millis(2500)),
            relaxed_ordering: true,
            flush: Flush::Always,
        };
        assert_eq!(set.expect("all are possible"), expected);
    }

    #[test]
    fn impossible_values_are_named_with_those_that_are_possible() {
        for (variable, value) in [
            ("MKERNEL_SERVICE_LEVEL", "16"),
            ("MKERNEL_TRAFFIC_CLASS", "256"),
            ("MKERNEL_GID_INDEX", "-1"),
            ("MKERNEL_RAILS", "9"),
            ("MKERNEL_PARTITION_KEY", "65536"),
            ("MKERNEL_QUEUE_PAIRS", "0"),
            ("MKERNEL_BYTE_WINDOW", "0"),
            ("MKERNEL_NIC_TIMEOUT_MS", "9"),
            ("MKERNEL_RELAXED_ORDERING", "2"),
            ("MKERNEL_FLUSH", "sometimes"),
        ] {
            let text = read(&[(variable, value)]).expect_err(variable).to_string();
            let setting = NIC_SETTINGS.iter().find(|one| one.variable == variable);
            let values = setting.expect("a setting").values;
            assert!(
                text.contains(variable) && text.contains(value) && text.contains(values),
                "{text}"
            );
        }
    }
}
