//! `mkernel-gen topology`: shows the GPUs and NICs of a host, and which NICs serve which GPU.

use super::failure::Failure;
use super::output::{Line, print, print_json};
use clap::Args;
use mkernel_topology::{GpuLinks, NicSelection, Topology, describe};
use schemars::JsonSchema;
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};

/// Arguments of `mkernel-gen topology`.
#[derive(Args)]
pub struct ShowTopology {
    /// Read this copy of another machine's /sys instead
    #[arg(long, value_name = "DIR")]
    sysfs: Option<PathBuf>,
    /// NICs to use, as in mlx5_0,mlx5_3, or for each GPU, as in 0=mlx5_0;1=mlx5_3 [default: MKERNEL_NICS, else the
    /// nearest]
    #[arg(long, value_name = "NICS")]
    nics: Option<String>,
}

#[derive(Serialize, JsonSchema)]
pub struct Shown<'a> {
    #[schemars(with = "serde_json::Map<String, serde_json::Value>")]
    topology: &'a Topology,
    /// The links between pairs of GPUs. `None` without a driver.
    #[schemars(with = "Option<Vec<serde_json::Value>>")]
    gpu_links: Option<&'a GpuLinks>,
    #[schemars(with = "serde_json::Map<String, serde_json::Value>")]
    choices: &'a NicSelection,
}

impl Line for Shown<'_> {
    const KIND: &'static str = "topology";
}

impl ShowTopology {
    /// Prints the topology.
    pub fn run(&self, json: bool) -> Result<(), Failure> {
        let root = self.sysfs.as_deref().unwrap_or(Path::new("/sys"));
        // Folders inside may be absent, since not every machine has GPUs or NICs.
        fs::read_dir(root).map_err(|source| Failure::Read {
            path: root.to_owned(),
            source,
        })?;
        let topology = Topology::read(root);
        let wanted = self
            .nics
            .clone()
            .unwrap_or_else(mkernel::network::wanted_nics);
        let choices = topology.select_nics(&wanted).map_err(Failure::Nics)?;
        let links = self.links(&topology);
        if json {
            return print_json(&Shown {
                topology: &topology,
                gpu_links: links.as_ref(),
                choices: &choices,
            });
        }
        print(&describe(&topology, &choices, links.as_ref()))
    }

    /// The links between GPUs by the driver. `None` if the topology describes another machine.
    fn links(&self, topology: &Topology) -> Option<GpuLinks> {
        if self.sysfs.is_some() || topology.gpus.is_empty() {
            return None;
        }
        let links = mkernel::network::gpu_links();
        links
            .inspect_err(|error| tracing::debug!(%error, "links between GPUs are not known"))
            .ok()
    }
}
