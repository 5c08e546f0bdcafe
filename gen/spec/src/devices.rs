//! The GPUs that have been measured, one file each. To add a GPU, add a file.

mod h200;
