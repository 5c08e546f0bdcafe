//! [`Store`]: compiles each kernel once, and then finds it in a bundle or in the cache.

use crate::bundle::Bundle;
use crate::cache::{Cache, Cleaned};
#[cfg(feature = "jit")]
use crate::compiler::compile;
use crate::cubin::Cubin;
use crate::entry::{Entry, EntryFault};
use crate::env::Env;
use crate::error::{Attempt, GenError, InvalidVariables, with_causes};
use crate::failed_source;
use crate::kernel_template::KernelTemplate;
use crate::key::Key;
use crate::lock::{InFlight, LockOutcome, lock};
use crate::source::CudaSource;
use mkernel_spec::{Arch, Backend};
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

/// The time that a process waits for another process that compiles the same kernel: many times the duration of a compilation.
const LOCK_WAIT: Duration = Duration::from_secs(60);

/// The default size limit of a cache, which is enough for about ten thousand kernels.
const LIMIT_BYTES: u64 = 1 << 30;

/// Compiled kernels: ahead-of-time bundles, a cache on disk, and the compiler behind them.
///
/// Threads should share one store. If a bundle or the cache cannot be used, there is a warning and the kernel is
/// compiled. If the folder as a whole cannot be used (read-only, full, not a folder), only the first such problem in a
/// process is a warning.
///
/// Caches and bundles determine which code runs. A cache or bundle is used only if its folder, subfolders and files
/// belong to this user or to root and nobody else can write to them. Owners and modes are read from open descriptors.
/// Links below the folder are not followed. If a cache or bundle is refused, a warning is logged and kernels are compiled.
#[derive(Debug)]
pub struct Store {
    cache: Option<Cache>,
    bundles: Vec<Bundle>,
    jit: bool,
    limit_bytes: u64,
    lock_wait: Duration,
    in_flight: InFlight,
}

/// A kernel that is requested.
struct Wanted<'a> {
    key: Key,
    id: &'a str,
    arch: Arch,
    backend: Backend,
}

impl Wanted<'_> {
    /// The error if the kernel is missing and may not be compiled.
    fn refused(&self, unusable: Vec<Attempt>) -> GenError {
        GenError::JitDisabled {
            id: self.id.to_owned(),
            key: self.key,
            backend: self.backend,
            unusable,
        }
    }
}

impl Store {
    /// A store with a cache in `root`, which need not exist. Environment variables have no effect on it.
    #[must_use]
    pub fn open(root: impl Into<PathBuf>) -> Self {
        Self::new(Some(root.into()))
    }

    /// A store without a cache.
    #[must_use]
    pub fn without_cache() -> Self {
        Self::new(None)
    }

    /// The store that environment variables configure. See [`Env`].
    ///
    /// # Errors
    /// The variables with invalid values.
    pub fn from_env() -> Result<Self, InvalidVariables> {
        let env = Env::valid()?;
        let mut store = Self::new(env.cache_root().filter(|_| env.cache));
        if env.cache && store.cache.is_none() {
            tracing::warn!(
                "kernels are not cached and each process compiles its own, since none of MKERNEL_CACHE_DIR, XDG_CACHE_HOME and HOME is set"
            );
        }
        store.jit = env.jit;
        Ok(env.bundles.iter().fold(store, Self::with_bundle))
    }

    fn new(root: Option<PathBuf>) -> Self {
        Self {
            cache: root.map(|root| Cache { root }),
            bundles: Vec::new(),
            jit: true,
            limit_bytes: LIMIT_BYTES,
            lock_wait: LOCK_WAIT,
            in_flight: InFlight::default(),
        }
    }

    /// Adds the bundle `path`. Bundles are searched in the order in which they were added, before the cache. A bundle
    /// that cannot be used is ignored with a warning.
    #[must_use]
    pub fn with_bundle(mut self, path: impl Into<PathBuf>) -> Self {
        match Bundle::open(path) {
            Ok(bundle) => self.bundles.push(bundle),
            Err(GenError::ReadBundle { path, source }) if !is_first(&path) => {
                tracing::debug!("{}: {}", path.display(), with_causes(&source));
            }
            Err(error) => tracing::warn!("{}", with_causes(&error)),
        }
        self
    }

    /// Disables compiling, so that a missing kernel is the error [`GenError::JitDisabled`].
    #[must_use]
    pub fn without_jit(mut self) -> Self {
        self.jit = false;
        self
    }

    /// Sets the size limit of the cache, beyond which the oldest kernels are removed. The default is 1 GiB.
    #[must_use]
    pub fn with_limit_bytes(mut self, limit_bytes: u64) -> Self {
        self.limit_bytes = limit_bytes;
        self
    }

    /// Sets the time to wait for another process that compiles the same kernel. The default is one minute.
    #[must_use]
    pub fn with_lock_wait(mut self, lock_wait: Duration) -> Self {
        self.lock_wait = lock_wait;
        self
    }

    /// The folder of the cache, if there is one.
    #[must_use]
    pub fn root(&self) -> Option<&Path> {
        self.cache.as_ref().map(|cache| cache.root.as_path())
    }

    /// The bundles in use.
    #[must_use]
    pub fn bundles(&self) -> &[Bundle] {
        &self.bundles
    }

    /// The kernel of `key`, if a bundle or the cache has it. A damaged kernel counts as missing, with a warning.
    #[must_use]
    pub fn get(&self, key: &Key) -> Option<Cubin> {
        self.find(key).ok()
    }

    /// The kernel of `key`, or the unusable copies of the kernel that were found.
    fn find(&self, key: &Key) -> Result<Cubin, Vec<Attempt>> {
        let mut unusable = Vec::new();
        let mut note = |path: &Path, fault: &EntryFault| {
            let (path, reason) = (path.display().to_string(), with_causes(fault));
            tracing::warn!("kernel {key} in {path} is not used: {reason}");
            unusable.push(Attempt { path, reason });
        };
        for bundle in &self.bundles {
            match bundle.read(key) {
                Ok(Some(cubin)) => return Ok(cubin),
                Ok(None) => {}
                Err(fault) => note(bundle.path(), &fault),
            }
        }
        match self.read_cached(key) {
            Ok(Some(cubin)) => return Ok(cubin),
            Ok(None) => {}
            Err(fault) => note(self.root().unwrap_or(Path::new("")), &fault),
        }
        Err(unusable)
    }

    /// Adds a kernel to the cache, or warns if that fails. A kernel that the cache already has is not replaced.
    pub fn put(&self, key: &Key, source: &CudaSource, cubin: &Cubin) {
        let Some(cache) = &self.cache else { return };
        match cache.publish(key, source, cubin) {
            Ok(()) => cache.prune(self.limit_bytes),
            Err(error) => {
                self.warn_first_time(&format!("kernel {} cannot be cached", cubin.id), &error)
            }
        }
    }

    /// The machine code of `source` from a bundle, from the cache or from the compiler. Threads and processes that
    /// request the same kernel at the same time compile it once.
    ///
    /// # Errors
    /// The errors of [`Nvrtc`](crate::Nvrtc) or [`HostCxx`](crate::HostCxx), and [`GenError::JitDisabled`].
    #[cfg(feature = "jit")]
    pub fn get_or_build(&self, source: &CudaSource) -> Result<Cubin, GenError> {
        self.get_or_build_with(source, compile)
    }

    /// Gets the machine code as [`Store::get_or_build`] does, with `compile` as the compiler. The result of `compile`
    /// must depend only on the source.
    ///
    /// # Errors
    /// The errors of `compile`, and [`GenError::JitDisabled`].
    pub fn get_or_build_with(
        &self,
        source: &CudaSource,
        compile: impl FnOnce(&CudaSource) -> Result<Cubin, GenError>,
    ) -> Result<Cubin, GenError> {
        let wanted = Wanted {
            key: Key::of(source),
            id: &source.id,
            arch: source.arch,
            backend: source.backend,
        };
        self.find_or_build(&wanted, || Ok(Cow::Borrowed(source)), compile)
    }

    /// Gets the machine code as [`Store::get_or_build`] does, but renders the text only if the kernel must be compiled.
    /// Without the feature `jit`, the kernel must be in a bundle or in the cache.
    ///
    /// # Errors
    /// [`GenError::Render`], and the errors of [`Store::get_or_build`].
    pub fn get_or_render(&self, kernel: &KernelTemplate) -> Result<Cubin, GenError> {
        let wanted = Wanted {
            key: Key::of_template(kernel),
            id: &kernel.id,
            arch: kernel.arch,
            backend: kernel.backend,
        };
        #[cfg(feature = "jit")]
        return self.find_or_build(&wanted, || kernel.render().map(Cow::Owned), compile);
        #[cfg(not(feature = "jit"))]
        self.find(&wanted.key)
            .map_err(|unusable| wanted.refused(unusable))
    }

    /// Looks for a kernel, and compiles it if it is missing, unless another thread of this process does so.
    fn find_or_build<'a>(
        &self,
        wanted: &Wanted,
        render: impl FnOnce() -> Result<Cow<'a, CudaSource>, GenError>,
        compile: impl FnOnce(&CudaSource) -> Result<Cubin, GenError>,
    ) -> Result<Cubin, GenError> {
        match self.find(&wanted.key) {
            Ok(cubin) => return Ok(cubin),
            Err(unusable) if !self.jit => return Err(wanted.refused(unusable)),
            Err(_) => {}
        }
        let pending = self.in_flight.pending(&wanted.key);
        // The lock is held while this thread builds. That time is bounded, since it waits for other processes at most
        // for `lock_wait`.
        let mut ready = lock(&pending);
        if let Some(cubin) = &*ready {
            return Ok(cubin.clone());
        }
        let cubin = self.build(wanted, render, compile)?;
        *ready = Some(cubin.clone());
        Ok(cubin)
    }

    fn build<'a>(
        &self,
        wanted: &Wanted,
        render: impl FnOnce() -> Result<Cow<'a, CudaSource>, GenError>,
        compile: impl FnOnce(&CudaSource) -> Result<Cubin, GenError>,
    ) -> Result<Cubin, GenError> {
        let (key, id) = (&wanted.key, wanted.id);
        let lists = |bundle: &&Bundle| bundle.lists(id, wanted.arch, wanted.backend);
        for bundle in self.bundles.iter().filter(lists) {
            tracing::warn!(
                "the bundle {} has kernel {}, but the kernel is damaged or was built from other sources; compiling it again",
                bundle.path().display(),
                id
            );
        }
        let _lock = match self.wait_for_lock(key) {
            Some(LockOutcome::Appeared(cubin)) => return Ok(cubin),
            Some(LockOutcome::Locked(lock)) => Some(lock),
            Some(LockOutcome::TimedOut) => {
                let waited = self.lock_wait;
                tracing::warn!(
                    "another process has been compiling {} for {waited:?}; compiling it here too",
                    id
                );
                None
            }
            Some(LockOutcome::Unavailable(_)) | None => None,
        };
        // The previous holder of the lock may have published the kernel. Only the holder of the lock may remove a
        // damaged kernel.
        match self.read_cached(key) {
            Ok(Some(cubin)) => return Ok(cubin),
            Ok(None) => {}
            Err(_) => self.quarantine(key),
        }
        let source = render()?;
        let cubin = compile(&source)
            .map_err(|error| failed_source::save(self.cache.as_ref(), key, &source, error))?;
        self.put(key, &source, &cubin);
        Ok(cubin)
    }

    /// Waits for the lock of `key`. `None` without a usable cache.
    fn wait_for_lock(&self, key: &Key) -> Option<LockOutcome<Cubin>> {
        let cache = self.cache.as_ref()?;
        let waited = cache.lock(key, self.lock_wait);
        if let Ok(LockOutcome::Unavailable(error)) = &waited
            && is_first(&cache.root)
        {
            // Entries are published by renaming, so readers see whole entries even without locks.
            tracing::warn!(
                "the file system of the kernel cache {} has no locks ({error}); kernels are kept there, but processes that need the same one at the same time each compile it",
                cache.root.display()
            );
        }
        waited
            .map_err(|error| self.warn_first_time("the kernel cache cannot be locked", &error))
            .ok()
    }

    fn read_cached(&self, key: &Key) -> Result<Option<Cubin>, EntryFault> {
        let Some(cache) = &self.cache else {
            return Ok(None);
        };
        match cache.read(key) {
            Err(EntryFault::Cache(error)) => {
                self.warn_first_time("the kernel cache is not used", &error);
                Ok(None)
            }
            read => read,
        }
    }

    fn quarantine(&self, key: &Key) {
        let Some(cache) = &self.cache else { return };
        match cache.quarantine(key) {
            Ok(path) => tracing::info!("the damaged kernel {key} was moved to {}", path.display()),
            Err(error) => self.warn_first_time("a damaged kernel cannot be moved away", &error),
        }
    }

    /// The undamaged kernels in the cache, sorted by name.
    #[must_use]
    pub fn entries(&self) -> Vec<Entry> {
        let entries = self.cache.as_ref().map_or(Ok(Vec::new()), Cache::entries);
        entries.unwrap_or_else(|error| {
            self.warn_first_time("the kernel cache is not used", &error);
            Vec::new()
        })
    }

    /// Removes a kernel from the cache. Returns false if the cache does not have it.
    ///
    /// # Errors
    /// [`GenError::Remove`]
    pub fn remove(&self, key: &Key) -> Result<bool, GenError> {
        self.cache
            .as_ref()
            .map_or(Ok(false), |cache| cache.remove(key))
    }

    /// Removes all kernels from the cache, and the folders of failed, damaged and unfinished kernels. Files and folders
    /// that mkernel did not create stay, and are listed in the result. With `dry_run`, nothing is removed.
    ///
    /// # Errors
    /// [`GenError::NotACache`] if mkernel did not create the folder and it has other files;
    /// [`GenError::Clean`], [`GenError::Remove`]
    pub fn clean(&self, dry_run: bool) -> Result<Cleaned, GenError> {
        self.cache
            .as_ref()
            .map_or(Ok(Cleaned::default()), |cache| cache.clean(dry_run))
    }

    /// Logs a problem with the cache: as a warning the first time in this process, and as a debug message later.
    fn warn_first_time(&self, what: &str, error: &io::Error) {
        let root = self.root().unwrap_or(Path::new(""));
        let shown = root.display();
        if is_first(root) {
            tracing::warn!(
                "{what}: {error} (cache {shown}); kernels are compiled in each process. Set MKERNEL_CACHE_DIR to a folder that this user can write and others cannot, or MKERNEL_CACHE=0"
            );
        } else {
            tracing::debug!("{what}: {error} (cache {shown})");
        }
    }
}

/// Whether this is the first problem with the cache or bundle `path` in this process. Every rank has a store of its
/// own, so stores cannot count problems.
fn is_first(path: &Path) -> bool {
    static REPORTED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    lock(&REPORTED).insert(path.to_owned())
}
