//! The environment variables of this crate, read here and nowhere else.
//!
//! | variable | meaning |
//! |---|---|
//! | `RANK` | this process's rank |
//! | `WORLD_SIZE` | how many ranks there are |
//! | `LOCAL_RANK` | this process's GPU; `RANK` if absent |
//! | `MASTER_ADDR` | host of rank 0; `127.0.0.1` if absent |
//! | `MASTER_PORT` | a port there: ours, or, if `TORCHELASTIC_USE_AGENT_STORE` is `True`, torchrun's own, and ours is the next |
//! | `MKERNEL_PORT` | our port, whatever the others say |
//! | `TORCHELASTIC_RUN_ID` | name of the job; ranks of different jobs refuse each other |
//! | `MKERNEL_TIMEOUT_MS` | deadline of every wait; 30000 if absent |
//! | `MKERNEL_DEVICE` | `gpu`, if absent; `sim`: simulated GPUs; `auto`: simulated ones where there is no GPU |
//! | `MKERNEL_NICS` | NICs to use, `mlx5_0,mlx5_3`, or those of each GPU, `0=mlx5_0;1=mlx5_3`; the nearest if absent |
//! | `MKERNEL_SIM_SEED` | what the order of events on simulated GPUs depends on; 0 if absent |
//! | `MKERNEL_SIM_SMS` | SMs of a simulated GPU; 8 if absent |
//! | `MKERNEL_SIM_SKEW` | how unfair that order is to ranks, CTAs and warps, 0 to 100; 20 if absent |

use crate::error::Error;
use crate::simulation::Simulation;
use mkernel_spec::spec::WORLDS;
use std::str::FromStr;
use std::time::Duration;

const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

/// Who this process is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub rank: u32,
    pub world: u32,
    pub local_rank: usize,
    /// Where ranks meet; none in a world of one.
    pub meeting: Option<Meeting>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Meeting {
    pub host: String,
    pub port: u16,
    pub job: String,
}

/// Who this process is, by the variables that torchrun sets.
pub(crate) fn place() -> Result<Place, Error> {
    read_place(read)
}

/// The deadline of every wait.
pub(crate) fn timeout() -> Result<Duration, Error> {
    read_timeout(read)
}

/// `MKERNEL_NICS`, as [`mkernel_topology::Wanted`] reads it; empty if it is not set.
#[must_use]
pub fn wanted_nics() -> String {
    read("MKERNEL_NICS").unwrap_or_default()
}

/// Which GPUs a program wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Device {
    Gpu,
    Simulated,
    /// Simulated ones where there is no GPU.
    Auto,
}

/// Which GPUs this program is to use.
pub(crate) fn device() -> Result<Device, Error> {
    read_device(read)
}

/// What simulated GPUs of `ranks` ranks are like.
pub(crate) fn simulation(ranks: usize) -> Result<Simulation, Error> {
    read_simulation(read, ranks)
}

fn read_device(lookup: impl Fn(&str) -> Option<String>) -> Result<Device, Error> {
    let name = "MKERNEL_DEVICE";
    match lookup(name).as_deref().map(str::trim) {
        None | Some("" | "gpu") => Ok(Device::Gpu),
        Some("sim") => Ok(Device::Simulated),
        Some("auto") => Ok(Device::Auto),
        Some(other) => Err(wrong(name, Some(other.to_owned()), "gpu, sim or auto")),
    }
}

fn read_simulation(
    lookup: impl Fn(&str) -> Option<String>,
    ranks: usize,
) -> Result<Simulation, Error> {
    let usual = Simulation::default();
    Ok(Simulation {
        ranks: u32::try_from(ranks).unwrap_or(u32::MAX),
        seed: parse(&lookup, "MKERNEL_SIM_SEED", "a whole number")?.unwrap_or(usual.seed),
        sms: parse(&lookup, "MKERNEL_SIM_SMS", "a number of SMs")?.unwrap_or(usual.sms),
        skew: parse(&lookup, "MKERNEL_SIM_SKEW", "0 to 100")?.unwrap_or(usual.skew),
        timeline: false,
    })
}

fn read(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

fn read_timeout(lookup: impl Fn(&str) -> Option<String>) -> Result<Duration, Error> {
    let expected = "a number of milliseconds, 1 or more";
    match parse::<u64>(&lookup, "MKERNEL_TIMEOUT_MS", expected)? {
        Some(0) => Err(wrong("MKERNEL_TIMEOUT_MS", Some("0".into()), expected)),
        Some(ms) => Ok(Duration::from_millis(ms)),
        None => Ok(DEFAULT_TIMEOUT),
    }
}

fn read_place(lookup: impl Fn(&str) -> Option<String>) -> Result<Place, Error> {
    let required =
        |name, expected| parse(&lookup, name, expected)?.ok_or_else(|| wrong(name, None, expected));
    let world: u32 = required("WORLD_SIZE", "the number of ranks, as torchrun sets it")?;
    let rank: u32 = required("RANK", "this process's rank, as torchrun sets it")?;
    if !WORLDS.contains(&world) {
        return Err(Error::World(world as usize));
    }
    if rank >= world {
        return Err(wrong(
            "RANK",
            Some(rank.to_string()),
            "less than WORLD_SIZE",
        ));
    }
    let local_rank = parse(&lookup, "LOCAL_RANK", "this process's GPU")?.unwrap_or(rank as usize);
    let meeting = if world == 1 {
        None
    } else {
        Some(read_meeting(&lookup)?)
    };
    Ok(Place {
        rank,
        world,
        local_rank,
        meeting,
    })
}

fn read_meeting(lookup: &impl Fn(&str) -> Option<String>) -> Result<Meeting, Error> {
    let expected = "a port number, 1 to 65535";
    let port = match parse::<u16>(lookup, "MKERNEL_PORT", expected)? {
        Some(port) => port,
        None => {
            let master: u16 = parse(lookup, "MASTER_PORT", expected)?.ok_or_else(|| {
                wrong(
                    "MASTER_PORT",
                    None,
                    "a free port of rank 0's host, the same on all ranks",
                )
            })?;
            let taken = lookup("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|value| value == "True");
            master.checked_add(u16::from(taken)).ok_or_else(|| {
                wrong(
                    "MASTER_PORT",
                    Some(master.to_string()),
                    "less than 65535 under torchrun; or set MKERNEL_PORT",
                )
            })?
        }
    };
    if port == 0 {
        let name = if lookup("MKERNEL_PORT").is_some() {
            "MKERNEL_PORT"
        } else {
            "MASTER_PORT"
        };
        return Err(wrong(name, Some("0".into()), expected));
    }
    Ok(Meeting {
        host: lookup("MASTER_ADDR").unwrap_or_else(|| "127.0.0.1".into()),
        port,
        job: lookup("TORCHELASTIC_RUN_ID").unwrap_or_default(),
    })
}

fn parse<T: FromStr>(
    lookup: &impl Fn(&str) -> Option<String>,
    name: &'static str,
    expected: &'static str,
) -> Result<Option<T>, Error> {
    lookup(name)
        .map(|value| {
            value
                .trim()
                .parse()
                .map_err(|_| wrong(name, Some(value.clone()), expected))
        })
        .transpose()
}

fn wrong(name: &'static str, value: Option<String>, expected: &'static str) -> Error {
    Error::Environment {
        name,
        value,
        expected,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(variables: &'static [(&str, &str)]) -> impl Fn(&str) -> Option<String> {
        |name| {
            variables
                .iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| (*value).to_owned())
        }
    }

    #[test]
    fn torchruns_own_port_is_left_to_it() {
        let place = read_place(with(&[
            ("RANK", "3"),
            ("WORLD_SIZE", "8"),
            ("LOCAL_RANK", "2"),
            ("MASTER_ADDR", "node7"),
            ("MASTER_PORT", "29500"),
            ("TORCHELASTIC_USE_AGENT_STORE", "True"),
            ("TORCHELASTIC_RUN_ID", "job1"),
        ]))
        .expect("a place");
        let meeting = Meeting {
            host: "node7".into(),
            port: 29501,
            job: "job1".into(),
        };
        assert_eq!(
            place,
            Place {
                rank: 3,
                world: 8,
                local_rank: 2,
                meeting: Some(meeting)
            }
        );
    }

    #[test]
    fn other_launchers_ports_are_ours_and_our_own_variable_wins() {
        let place = read_place(with(&[
            ("RANK", "0"),
            ("WORLD_SIZE", "2"),
            ("MASTER_PORT", "4000"),
        ]))
        .expect("a place");
        assert_eq!(place.meeting.expect("two ranks meet").port, 4000);
        let both = [
            ("RANK", "1"),
            ("WORLD_SIZE", "2"),
            ("MASTER_PORT", "x"),
            ("MKERNEL_PORT", "5000"),
        ];
        let place = read_place(with(Box::leak(Box::new(both)))).expect("a place");
        assert_eq!(place.meeting.expect("two ranks meet").port, 5000);
        assert_eq!(place.local_rank, 1);
    }

    #[test]
    fn one_rank_needs_no_network() {
        let place = read_place(with(&[("RANK", "0"), ("WORLD_SIZE", "1")])).expect("a place");
        assert_eq!(
            place,
            Place {
                rank: 0,
                world: 1,
                local_rank: 0,
                meeting: None
            }
        );
    }

    #[test]
    fn mistakes_name_the_variable_and_its_value() {
        let message = |variables| {
            read_place(with(variables))
                .expect_err("a mistake")
                .to_string()
        };
        assert!(message(&[]).contains("WORLD_SIZE is not set"));
        assert!(message(&[("WORLD_SIZE", "eight")]).contains("WORLD_SIZE is \"eight\""));
        assert!(message(&[("WORLD_SIZE", "2"), ("RANK", "2")]).contains("RANK is \"2\""));
        assert!(message(&[("WORLD_SIZE", "0"), ("RANK", "0")]).contains("0 ranks"));
        assert!(message(&[("WORLD_SIZE", "2"), ("RANK", "0")]).contains("MASTER_PORT is not set"));
        assert!(
            message(&[("WORLD_SIZE", "2"), ("RANK", "0"), ("MASTER_PORT", "0")])
                .contains("MASTER_PORT")
        );
        let last = &[
            ("WORLD_SIZE", "2"),
            ("RANK", "0"),
            ("MASTER_PORT", "65535"),
            ("TORCHELASTIC_USE_AGENT_STORE", "True"),
        ];
        assert!(message(last).contains("MKERNEL_PORT"));
    }

    #[test]
    fn the_timeout_is_a_positive_number() {
        assert_eq!(
            read_timeout(with(&[])).expect("the default"),
            DEFAULT_TIMEOUT
        );
        assert_eq!(
            read_timeout(with(&[("MKERNEL_TIMEOUT_MS", "250")])).expect("set"),
            Duration::from_millis(250)
        );
        assert!(read_timeout(with(&[("MKERNEL_TIMEOUT_MS", "0")])).is_err());
        assert!(read_timeout(with(&[("MKERNEL_TIMEOUT_MS", "soon")])).is_err());
    }

    #[test]
    fn the_device_is_a_gpu_unless_it_is_said_otherwise() {
        let device = |variables| read_device(with(variables));
        assert_eq!(device(&[]).expect("absent"), Device::Gpu);
        assert_eq!(
            device(&[("MKERNEL_DEVICE", "sim")]).expect("set"),
            Device::Simulated
        );
        assert_eq!(
            device(&[("MKERNEL_DEVICE", "auto")]).expect("set"),
            Device::Auto
        );
        let error = device(&[("MKERNEL_DEVICE", "cpu")]).expect_err("none of the three");
        assert!(error.to_string().contains("gpu, sim or auto"), "{error}");
    }

    #[test]
    fn simulated_gpus_are_as_the_variables_say() {
        let variables = &[
            ("MKERNEL_SIM_SEED", "77"),
            ("MKERNEL_SIM_SMS", "16"),
            ("MKERNEL_SIM_SKEW", "90"),
        ];
        let expected = Simulation {
            ranks: 4,
            seed: 77,
            sms: 16,
            skew: 90,
            timeline: false,
        };
        assert_eq!(read_simulation(with(variables), 4).expect("set"), expected);
        assert!(read_simulation(with(&[("MKERNEL_SIM_SMS", "many")]), 1).is_err());
    }
}
