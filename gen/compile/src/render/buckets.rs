//! The source of a kernel with buckets: bodies of one kernel for different numbers of rows.

use super::assembly::AssemblyContext;
use super::text::{comment, layout_assertion};
use crate::kernel_template::KernelTemplate;
use mkernel_spec::KernelPlan;
use serde::Serialize;

/// The variables of `templates/buckets.cu.tera`, which have the names of the fields.
#[derive(Serialize)]
struct BucketsContext<'a> {
    id: &'a str,
    about: Vec<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    traced: bool,
    headers: Vec<&'a str>,
    buckets: Vec<Bucket>,
    last: Bucket,
    args_assertion: String,
}

/// A bucket in the source of a kernel.
#[derive(Clone, Serialize)]
struct Bucket {
    /// The namespace of the bucket.
    name: String,
    /// The member of the kernel's parameter with its arguments.
    args: String,
    /// A comma after all buckets except the last.
    comma: &'static str,
}

/// The kernel of a plan with buckets. `assembled` holds the kernel of each bucket alone.
pub(super) fn template(plan: &KernelPlan, assembled: Vec<AssemblyContext<'_>>) -> KernelTemplate {
    let op = plan.spec.op().name();
    let template = format!("ops/{op}.cu.tera");
    let title = assembled.first().map_or("", |first| first.title);
    let mut headers = vec!["buckets"];
    let (mut buckets, mut bodies) = (Vec::new(), Vec::new());
    for (body, context) in plan.bodies.iter().zip(assembled) {
        for header in &context.headers {
            if !headers.contains(header) {
                headers.push(header);
            }
        }
        let rows = body.max_rows().unwrap_or(0);
        let name = format!("up_to_{rows}");
        buckets.push(Bucket {
            name: name.clone(),
            args: format!("args_{rows}"),
            comma: ",",
        });
        let context = context.in_bucket(name, format!("Calls with up to {rows} rows."));
        bodies.push(KernelTemplate::new(
            &plan.id,
            (plan.device.arch, plan.device.backend),
            &template,
            &context,
        ));
    }
    let (offsets, size_bytes) = plan.parameter();
    let args = buckets.iter().map(|bucket| bucket.args.as_str());
    let args_assertion = layout_assertion("Args", size_bytes, args.zip(offsets));
    if let Some(last) = buckets.last_mut() {
        last.comma = "";
    }
    let context = BucketsContext {
        id: &plan.id,
        about: comment(
            &format!(
                "{title}. mkernel-gen assembled it from templates/{template}, once for each bucket."
            ),
            0,
        ),
        traced: plan.spec.config().traced,
        headers,
        last: buckets[buckets.len() - 1].clone(),
        buckets,
        args_assertion,
    };
    let template = "buckets.cu.tera";
    KernelTemplate::new(
        &plan.id,
        (plan.device.arch, plan.device.backend),
        template,
        &context,
    )
    .with_bodies(bodies)
}
