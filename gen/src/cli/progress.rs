//! A progress bar on standard error.

use super::output::is_quiet;
use indicatif::{ProgressBar, ProgressStyle};
use std::time::Duration;

/// A bar of `steps` steps. It is hidden with `--quiet`, and unless standard error is a terminal. The template is one of indicatif.
pub fn bar(template: &str, steps: u64) -> ProgressBar {
    if is_quiet() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template(template);
    let bar =
        ProgressBar::new(steps).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}
