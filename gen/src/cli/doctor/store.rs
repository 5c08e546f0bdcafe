//! The cache, the bundles, and the measured choices of plans.

use super::finding::Finding;
use crate::cli::failure::chain;
use crate::cli::format::{bytes, count};
use mkernel_compile::{Bundle, Env, Store, check_cache};
use std::path::Path;

const CACHE: &str = "cache";
const BUNDLES: &str = "bundles";
const TUNED: &str = "tuned";

/// The folder of the cache, and the kernels in it.
pub fn cache(env: &Env) -> Finding {
    if !env.cache {
        let remedy = "unset MKERNEL_CACHE";
        let found = "off by MKERNEL_CACHE; each process compiles its own kernels";
        return Finding::note(CACHE, found, remedy);
    }
    let Some(root) = env.cache_root() else {
        let found = "none, since none of MKERNEL_CACHE_DIR, XDG_CACHE_HOME and HOME is set; each process compiles its own kernels";
        return Finding::note(CACHE, found, "export MKERNEL_CACHE_DIR=/path/of/a/folder");
    };
    if let Err(error) = check_cache(&root) {
        let found = format!("{}: {}", root.display(), chain(&error));
        let remedy = "export MKERNEL_CACHE_DIR=/path/of/a/folder, which this user can write and others cannot";
        return Finding::fault(CACHE, found, remedy);
    }
    let entries = Store::open(&root).entries();
    let size = bytes(entries.iter().map(|entry| entry.bytes).sum());
    let kernels = count(entries.len(), "kernel");
    Finding::ok(CACHE, format!("{}, {kernels}, {size}", root.display()))
}

/// The bundles of `MKERNEL_BUNDLE`.
pub fn bundles(env: &Env) -> Vec<Finding> {
    if env.bundles.is_empty() {
        return vec![Finding::ok(BUNDLES, "none (MKERNEL_BUNDLE is not set)")];
    }
    env.bundles.iter().map(|path| bundle(path)).collect()
}

fn bundle(path: &Path) -> Finding {
    let shown = path.display();
    let remedy = format!("mkernel-gen build KERNELS.toml --out {shown}, or unset MKERNEL_BUNDLE");
    let kernels = match Bundle::open(path) {
        Ok(bundle) => bundle.kernels(),
        Err(error) => return Finding::fault(BUNDLES, chain(&error), remedy),
    };
    let damaged: Vec<_> = kernels
        .iter()
        .filter_map(|kernel| Some(format!("{}: {}", kernel.id, kernel.entry.as_ref().err()?)))
        .collect();
    let found = format!("{shown}, {}", count(kernels.len(), "kernel"));
    match damaged.len() {
        0 => Finding::ok(BUNDLES, found),
        damages => Finding::fault(
            BUNDLES,
            format!("{found}, {damages} damaged:\n{}", damaged.join("\n")),
            remedy,
        ),
    }
}

/// The measured choices of plans, and the GPUs that they hold for.
pub fn tuned() -> Finding {
    match mkernel::tuned() {
        Ok(tuned) => {
            let mut gpus: Vec<_> = tuned.kernels().iter().map(|of| of.gpu.as_str()).collect();
            gpus.sort_unstable();
            gpus.dedup();
            let on = if gpus.is_empty() { "" } else { " on " };
            let kernels = count(tuned.kernels().len(), "kernel");
            Finding::ok(
                TUNED,
                format!("choices of {kernels}{on}{}", gpus.join(", ")),
            )
        }
        Err(error) => Finding::fault(
            TUNED,
            chain(&error),
            "mkernel-gen tune KERNELS.toml --out FILE, or unset MKERNEL_TUNED",
        ),
    }
}
