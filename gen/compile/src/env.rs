//! [`Env`]: the environment variables of this crate. No other file reads them.

use crate::error::{InvalidVariable, InvalidVariables};
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::LazyLock;

/// The values of environment variables, read once per process. An empty variable counts as unset.
///
/// | variable | meaning | default |
/// |---|---|---|
/// | `MKERNEL_CACHE_DIR` | root of the kernel cache | `$XDG_CACHE_HOME/mkernel`, else `~/.cache/mkernel` |
/// | `MKERNEL_CACHE` | `0`: no cache on disk | `1` |
/// | `MKERNEL_BUNDLE` | folders of ahead-of-time bundles, separated by `:` | none |
/// | `MKERNEL_JIT` | `0`: a kernel that is in no bundle and not cached is an error | `1` |
/// | `MKERNEL_NVRTC` | path of libnvrtc or of its folder; no other folder is searched | several folders are searched |
/// | `MKERNEL_NVRTC_ANY` | `1`: accept any version of libnvrtc | `0` |
/// | `MKERNEL_CXX` | C++ compiler for simulated GPUs, as a path or as a program and its arguments; no other compiler is tried | the first of `CXX`, `c++`, `g++`, `clang++` that supports C++20 |
/// | `CUDA_HOME`, `CUDA_PATH`, `CUDA_ROOT` | CUDA toolkits, searched for libnvrtc in this order | none |
///
/// Variables that are `0` or `1` may also be `off`, `no` and `false`, or `on`, `yes` and `true`. Any other value is an
/// error of [`Store::from_env`](crate::Store::from_env).
///
/// `CXX`, `HOME`, `XDG_CACHE_HOME`, `VIRTUAL_ENV` and `PATH` have their usual meaning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Env {
    /// `MKERNEL_CACHE_DIR`
    pub cache_dir: Option<PathBuf>,
    /// `MKERNEL_CACHE`
    pub cache: bool,
    /// `MKERNEL_BUNDLE`
    pub bundles: Vec<PathBuf>,
    /// `MKERNEL_JIT`
    pub jit: bool,
    /// `MKERNEL_NVRTC`
    pub nvrtc: Option<PathBuf>,
    /// `MKERNEL_NVRTC_ANY`
    pub nvrtc_any: bool,
    /// `MKERNEL_CXX`: a path, or a program and its arguments
    pub mkernel_cxx: Option<PathBuf>,
    /// `CXX`: a program and optional arguments
    pub cxx: Option<String>,
    /// `CUDA_HOME`, `CUDA_PATH` and `CUDA_ROOT`, as far as they are set
    pub cuda_toolkits: Vec<PathBuf>,
    /// `HOME`
    pub home: Option<PathBuf>,
    /// `XDG_CACHE_HOME`
    pub xdg_cache_home: Option<PathBuf>,
    /// `VIRTUAL_ENV`
    pub virtual_env: Option<PathBuf>,
    /// `PATH`
    pub path: Vec<PathBuf>,
    /// The variables whose values are not valid. Their defaults are in the other fields.
    pub invalid: Vec<InvalidVariable>,
}

impl Env {
    /// The environment of this process.
    #[must_use]
    pub fn get() -> &'static Self {
        static ENV: LazyLock<Env> = LazyLock::new(|| Env::read(|name| std::env::var_os(name)));
        &ENV
    }

    /// The environment of this process, if all variables are valid.
    ///
    /// # Errors
    /// All variables with invalid values.
    pub fn valid() -> Result<&'static Self, InvalidVariables> {
        Self::get().check()
    }

    fn check(&self) -> Result<&Self, InvalidVariables> {
        match self.invalid.is_empty() {
            true => Ok(self),
            false => Err(InvalidVariables(self.invalid.clone())),
        }
    }

    /// Reads variables through `var`.
    pub(crate) fn read(var: impl Fn(&str) -> Option<OsString>) -> Self {
        let text = |name: &str| var(name).filter(|value| !value.is_empty());
        let path = |name: &str| text(name).map(PathBuf::from);
        let paths = |name: &str| {
            let list = text(name).unwrap_or_default();
            std::env::split_paths(&list)
                .filter(|p| !p.as_os_str().is_empty())
                .collect()
        };
        let mut invalid = Vec::new();
        let mut switch = |name: &'static str, default: bool| match text(name) {
            None => default,
            Some(value) => {
                let value = value.to_string_lossy().into_owned();
                parse_switch(&value).unwrap_or_else(|| {
                    invalid.push(InvalidVariable {
                        name,
                        value,
                        expected: "0 or 1",
                    });
                    default
                })
            }
        };
        Self {
            cache_dir: path("MKERNEL_CACHE_DIR"),
            cache: switch("MKERNEL_CACHE", true),
            bundles: paths("MKERNEL_BUNDLE"),
            jit: switch("MKERNEL_JIT", true),
            nvrtc: path("MKERNEL_NVRTC"),
            nvrtc_any: switch("MKERNEL_NVRTC_ANY", false),
            mkernel_cxx: path("MKERNEL_CXX"),
            cxx: text("CXX").map(|value| value.to_string_lossy().into_owned()),
            cuda_toolkits: ["CUDA_HOME", "CUDA_PATH", "CUDA_ROOT"]
                .into_iter()
                .filter_map(path)
                .collect(),
            home: path("HOME"),
            xdg_cache_home: path("XDG_CACHE_HOME"),
            virtual_env: path("VIRTUAL_ENV"),
            path: paths("PATH"),
            invalid,
        }
    }

    /// The root of the kernel cache, unless no variable gives one.
    #[must_use]
    pub fn cache_root(&self) -> Option<PathBuf> {
        self.cache_dir.clone().or_else(|| self.user_cache())
    }

    /// The cache of this user, regardless of `MKERNEL_CACHE_DIR`.
    pub(crate) fn user_cache(&self) -> Option<PathBuf> {
        // The XDG specification requires that relative paths are ignored.
        let absolute = |path: &Option<PathBuf>| path.clone().filter(|p| p.is_absolute());
        absolute(&self.xdg_cache_home)
            .or_else(|| Some(absolute(&self.home)?.join(".cache")))
            .map(|base| base.join("mkernel"))
    }
}

fn parse_switch(value: &str) -> Option<bool> {
    match value.trim().to_ascii_lowercase().as_str() {
        "0" | "off" | "no" | "false" => Some(false),
        "1" | "on" | "yes" | "true" => Some(true),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(vars: &[(&str, &str)]) -> Env {
        Env::read(|name| vars.iter().find(|(n, _)| *n == name).map(|(_, v)| v.into()))
    }

    #[test]
    fn defaults() {
        let env = env(&[]);
        assert!(env.cache && env.jit && !env.nvrtc_any);
        assert_eq!(env.cache_root(), None);
        assert!(env.bundles.is_empty());
    }

    #[test]
    fn cache_root_prefers_the_most_specific() {
        let home = ("HOME", "/home/u");
        let xdg = ("XDG_CACHE_HOME", "/x");
        assert_eq!(
            env(&[home]).cache_root(),
            Some("/home/u/.cache/mkernel".into())
        );
        assert_eq!(env(&[home, xdg]).cache_root(), Some("/x/mkernel".into()));
        assert_eq!(
            env(&[home, ("XDG_CACHE_HOME", "x")]).cache_root(),
            Some("/home/u/.cache/mkernel".into())
        );
        assert_eq!(
            env(&[home, xdg, ("MKERNEL_CACHE_DIR", "c")]).cache_root(),
            Some("c".into())
        );
        assert_eq!(env(&[("HOME", "")]).cache_root(), None);
    }

    #[test]
    fn switches_and_lists() {
        let env = env(&[
            ("MKERNEL_CACHE", "off"),
            ("MKERNEL_NVRTC_ANY", " Yes"),
            ("MKERNEL_BUNDLE", "/a::/b"),
        ]);
        assert!(!env.cache && env.jit && env.nvrtc_any);
        env.check().expect("all are valid");
        assert_eq!(env.bundles, [PathBuf::from("/a"), PathBuf::from("/b")]);
    }

    #[test]
    fn all_switches_with_other_values_are_named() {
        let env = env(&[
            ("MKERNEL_CACHE", "maybe"),
            ("MKERNEL_JIT", "2"),
            ("MKERNEL_NVRTC_ANY", "-1"),
        ]);
        let text = env.check().expect_err("none is valid").to_string();
        assert_eq!(
            text,
            "environment variable MKERNEL_CACHE is \"maybe\"; it should be 0 or 1\n\
             environment variable MKERNEL_JIT is \"2\"; it should be 0 or 1\n\
             environment variable MKERNEL_NVRTC_ANY is \"-1\"; it should be 0 or 1"
        );
    }

    #[test]
    fn toolkits_come_from_three_variables() {
        let env = env(&[("CUDA_ROOT", "/r"), ("CUDA_HOME", "/h"), ("CUDA_PATH", "")]);
        assert_eq!(env.cuda_toolkits, [PathBuf::from("/h"), "/r".into()]);
    }
}
