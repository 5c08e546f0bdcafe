//! [`Planned`]: a plan as a JSON object.

use crate::cli::input::Kernel;
use crate::cli::output::Line;
use mkernel_spec::plan::{Body, TunedTimes, Workspace};
use mkernel_spec::{Device, KernelPlan, SizedSpec};
use schemars::JsonSchema;
use serde::Serialize;

/// A plan as a JSON object.
#[derive(Serialize, JsonSchema)]
pub struct Planned<'a> {
    label: &'a str,
    place: &'a str,
    #[schemars(with = "serde_json::Map<String, serde_json::Value>")]
    spec: &'a SizedSpec,
    #[schemars(with = "serde_json::Map<String, serde_json::Value>")]
    device: &'a Device,
    /// The body for the most rows, with the id, the shared memory and the bytes of the workspace of the whole kernel.
    #[serde(flatten)]
    #[schemars(with = "serde_json::Map<String, serde_json::Value>")]
    body: Body,
    /// The other bodies, from the fewest rows on.
    #[serde(skip_serializing_if = "<[Body]>::is_empty")]
    #[schemars(with = "Vec<serde_json::Map<String, serde_json::Value>>")]
    fewer_rows: &'a [Body],
    bound_us: f64,
    bound_reason: &'static str,
    /// The times that measured choices are justified by.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<serde_json::Map<String, serde_json::Value>>")]
    tuned: Option<TunedTimes>,
}

impl Line for Planned<'_> {
    const KIND: &'static str = "plan";
}

impl<'a> Planned<'a> {
    pub fn new(kernel: &'a Kernel, plan: &'a KernelPlan) -> Self {
        let body = plan.body();
        let workspace = Workspace {
            bytes: plan.workspace_bytes(),
            ..body.workspace.clone()
        };
        Self {
            label: &kernel.label,
            place: &kernel.location,
            spec: &plan.spec,
            device: &plan.device,
            body: Body {
                id: plan.id.clone(),
                smem_bytes: plan.smem_bytes(),
                workspace,
                ..body.clone()
            },
            fewer_rows: &plan.bodies[..plan.bodies.len() - 1],
            bound_us: body.bound.us(),
            bound_reason: body.bound.reason(),
            tuned: plan.tuned,
        }
    }
}
