//! [`Store`]: each kernel is compiled once, then found.

use crate::bundle::Bundle;
use crate::cache::{Cache, Cleaned};
use crate::compiler::compile;
use crate::cubin::Cubin;
use crate::entry::{Entry, EntryFault};
use crate::env::Env;
use crate::error::{GenError, Place, with_causes};
use crate::failed;
use crate::key::Key;
use crate::lock::{InFlight, Waited, lock};
use crate::source::CudaSource;
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

/// How long a process waits for another that compiles the same kernel: many times what a compile takes.
const LOCK_WAIT: Duration = Duration::from_secs(60);

/// Size of a cache, unless told otherwise: some ten thousand kernels.
const LIMIT_BYTES: u64 = 1 << 30;

/// Compiled kernels: ahead-of-time bundles, a cache on disk, and the compiler behind them.
///
/// Share one among threads. No trouble with bundles or the cache is an error: it is a warning, and the kernel is
/// compiled. Of trouble with a cache or bundle (read-only, full, not a folder) only the first in a process is a warning.
///
/// Caches and bundles decide what code runs. So one is used only if it belongs to this user or to root and nobody else
/// can write to it: the folder itself, the folders and files in it, all asked of open descriptors and without following
/// links below the folder. Else it is a warning, and kernels are compiled without it.
#[derive(Debug)]
pub struct Store {
    cache: Option<Cache>,
    bundles: Vec<Bundle>,
    jit: bool,
    limit_bytes: u64,
    lock_wait: Duration,
    in_flight: InFlight,
}

impl Store {
    /// The store that caches in `root`, which need not exist. Environment variables have no say in it.
    #[must_use]
    pub fn open(root: impl Into<PathBuf>) -> Self {
        Self::new(Some(root.into()))
    }

    /// A store without a cache.
    #[must_use]
    pub fn without_cache() -> Self {
        Self::new(None)
    }

    /// The store that the environment asks for: see [`Env`].
    #[must_use]
    pub fn from_env() -> Self {
        let env = Env::get();
        let mut store = Self::new(env.cache_root().filter(|_| env.cache));
        if env.cache && store.cache.is_none() {
            tracing::warn!(
                "kernels are not cached, each process compiles its own: none of MKERNEL_CACHE_DIR, XDG_CACHE_HOME and HOME is set"
            );
        }
        store.jit = env.jit;
        env.bundles.iter().fold(store, Self::with_bundle)
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

    /// Looks in the bundle `path` too, after those that were added before and ahead of the cache. A bundle that cannot
    /// be used is left out with a warning.
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

    /// Never compiles: a kernel that is not found is [`GenError::JitDisabled`].
    #[must_use]
    pub fn without_jit(mut self) -> Self {
        self.jit = false;
        self
    }

    /// Lets the cache grow to `limit_bytes`; beyond that the oldest kernels go. 1 GiB if not called.
    #[must_use]
    pub fn with_limit_bytes(mut self, limit_bytes: u64) -> Self {
        self.limit_bytes = limit_bytes;
        self
    }

    /// Waits at most so long for another process that compiles the same kernel. A minute if not called.
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

    /// The kernel of `key`, if a bundle or the cache has it. A damaged one counts as absent, with a warning.
    #[must_use]
    pub fn get(&self, key: &Key) -> Option<Cubin> {
        self.look(key).ok()
    }

    /// The same, or where it is and why it cannot be used.
    fn look(&self, key: &Key) -> Result<Cubin, Vec<Place>> {
        let mut unusable = Vec::new();
        let mut note = |path: &Path, fault: &EntryFault| {
            let (path, reason) = (path.display().to_string(), with_causes(fault));
            tracing::warn!("kernel {key} in {path} is not used: {reason}");
            unusable.push(Place { path, reason });
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

    /// Adds a kernel to the cache; if that fails, a warning. A kernel that is there stays.
    pub fn put(&self, key: &Key, source: &CudaSource, cubin: &Cubin) {
        let Some(cache) = &self.cache else { return };
        match cache.publish(key, source, cubin) {
            Ok(()) => cache.prune(self.limit_bytes),
            Err(error) => self.warn_once(&format!("kernel {} cannot be cached", cubin.id), &error),
        }
    }

    /// The machine code of `source`: from a bundle, else from the cache, else from its target's compiler. Threads and processes that
    /// want the same kernel at once compile it once.
    ///
    /// # Errors
    /// Those of [`Nvrtc`](crate::Nvrtc) or [`HostCxx`](crate::HostCxx), and [`GenError::JitDisabled`].
    pub fn get_or_build(&self, source: &CudaSource) -> Result<Cubin, GenError> {
        self.get_or_build_with(source, compile)
    }

    /// As [`Store::get_or_build`], with another compiler, whose result must depend on nothing but the source.
    ///
    /// # Errors
    /// Those of `compile`, and [`GenError::JitDisabled`].
    pub fn get_or_build_with(
        &self,
        source: &CudaSource,
        compile: impl FnOnce(&CudaSource) -> Result<Cubin, GenError>,
    ) -> Result<Cubin, GenError> {
        let key = Key::of(source);
        match self.look(&key) {
            Ok(cubin) => return Ok(cubin),
            Err(unusable) if !self.jit => {
                return Err(GenError::JitDisabled {
                    id: source.id.clone(),
                    key,
                    target: source.target,
                    unusable,
                });
            }
            Err(_) => {}
        }
        let slot = self.in_flight.slot(&key);
        // Held while this thread builds, which ends: waiting for another process does after `lock_wait`.
        let mut ready = lock(&slot);
        if let Some(cubin) = &*ready {
            return Ok(cubin.clone());
        }
        let cubin = self.build(&key, source, compile)?;
        *ready = Some(cubin.clone());
        Ok(cubin)
    }

    fn build(
        &self,
        key: &Key,
        source: &CudaSource,
        compile: impl FnOnce(&CudaSource) -> Result<Cubin, GenError>,
    ) -> Result<Cubin, GenError> {
        for bundle in self.bundles.iter().filter(|bundle| bundle.lists(source)) {
            tracing::warn!(
                "the bundle {} has kernel {}, but damaged or from other sources; it is compiled anew",
                bundle.path().display(),
                source.id
            );
        }
        let _lock = match self.wait_for_lock(key) {
            Some(Waited::Appeared(cubin)) => return Ok(cubin),
            Some(Waited::Locked(lock)) => Some(lock),
            Some(Waited::TimedOut) => {
                let waited = self.lock_wait;
                tracing::warn!(
                    "another process has been compiling {} for {waited:?}; not waiting longer",
                    source.id
                );
                None
            }
            None => None,
        };
        // Who had the lock before may have published it; only who has it now may remove a damaged one.
        match self.read_cached(key) {
            Ok(Some(cubin)) => return Ok(cubin),
            Ok(None) => {}
            Err(_) => self.quarantine(key),
        }
        let cubin = compile(source)
            .map_err(|error| failed::save(self.cache.as_ref(), key, source, error))?;
        self.put(key, source, &cubin);
        Ok(cubin)
    }

    /// None if there is no cache, or no way to lock it.
    fn wait_for_lock(&self, key: &Key) -> Option<Waited<Cubin>> {
        let waited = self.cache.as_ref()?.lock(key, self.lock_wait);
        waited
            .map_err(|error| self.warn_once("the kernel cache cannot be locked", &error))
            .ok()
    }

    fn read_cached(&self, key: &Key) -> Result<Option<Cubin>, EntryFault> {
        let Some(cache) = &self.cache else {
            return Ok(None);
        };
        match cache.read(key) {
            Err(EntryFault::Cache(error)) => {
                self.warn_once("the kernel cache is not used", &error);
                Ok(None)
            }
            read => read,
        }
    }

    fn quarantine(&self, key: &Key) {
        let Some(cache) = &self.cache else { return };
        match cache.quarantine(key) {
            Ok(path) => tracing::info!("the damaged kernel {key} is now {}", path.display()),
            Err(error) => self.warn_once("a damaged kernel cannot be moved away", &error),
        }
    }

    /// The sound kernels in the cache, sorted by name.
    #[must_use]
    pub fn entries(&self) -> Vec<Entry> {
        let entries = self.cache.as_ref().map_or(Ok(Vec::new()), Cache::entries);
        entries.unwrap_or_else(|error| {
            self.warn_once("the kernel cache is not used", &error);
            Vec::new()
        })
    }

    /// Removes a kernel from the cache. False if it was not there.
    ///
    /// # Errors
    /// [`GenError::Remove`]
    pub fn remove(&self, key: &Key) -> Result<bool, GenError> {
        self.cache
            .as_ref()
            .map_or(Ok(false), |cache| cache.remove(key))
    }

    /// Removes all kernels from the cache, and what is left of failed, damaged and unfinished ones: folders that have
    /// mkernel's names and contents. All else stays, and is listed in the result. With `dry_run` nothing is removed.
    ///
    /// # Errors
    /// [`GenError::NotACache`] if the folder has something else in it and was not made by mkernel;
    /// [`GenError::Clean`], [`GenError::Remove`]
    pub fn clean(&self, dry_run: bool) -> Result<Cleaned, GenError> {
        self.cache
            .as_ref()
            .map_or(Ok(Cleaned::default()), |cache| cache.clean(dry_run))
    }

    /// Says that the cache is in trouble: as a warning the first time in this process.
    fn warn_once(&self, what: &str, error: &io::Error) {
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

/// Whether trouble with the cache or bundle `path` is the first in this process: every rank has a store of its own.
fn is_first(path: &Path) -> bool {
    static TROUBLED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    lock(&TROUBLED).insert(path.to_owned())
}
