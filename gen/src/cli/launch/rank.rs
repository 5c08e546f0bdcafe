//! [`Rank`]: the process of a rank, with its process group.

use super::output::{Forward, Stream};
use crate::cli::failure::Failure;
use mkernel::launcher_variables;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, getpid, getppid, kill_process_group,
    set_parent_process_death_signal, waitid,
};
use std::ffi::OsString;
use std::fmt::Write;
use std::fs::File;
use std::io::{self, Read};
use std::net::TcpListener;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};

/// The size of the job, and the place where ranks meet.
pub struct Place {
    world: usize,
    port: u16,
    secret: String,
    as_hosts: bool,
}

impl Place {
    /// A place with a free port of this host, unless `port` is given, and a new secret.
    pub fn new(world: usize, port: Option<u16>, as_hosts: bool) -> io::Result<Self> {
        let port = match port {
            Some(port) => port,
            None => TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port(),
        };
        let mut random = [0; 16];
        File::open("/dev/urandom")?.read_exact(&mut random)?;
        let secret = random.iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        });
        Ok(Self {
            world,
            port,
            secret,
            as_hosts,
        })
    }

    /// The variables of a rank. The variables of a launcher that has started this process are removed.
    fn set(&self, command: &mut Command, rank: usize) {
        for name in launcher_variables() {
            command.env_remove(name);
        }
        let (local_rank, local_world) = match self.as_hosts {
            true => (0, 1),
            false => (rank, self.world),
        };
        let numbers = [
            ("RANK", rank),
            ("WORLD_SIZE", self.world),
            ("LOCAL_RANK", local_rank),
            ("LOCAL_WORLD_SIZE", local_world),
            ("MASTER_PORT", self.port.into()),
        ];
        command.envs(numbers.map(|(name, number)| (name, number.to_string())));
        command.env("MASTER_ADDR", "127.0.0.1");
        if std::env::var_os("MKERNEL_SECRET").is_none() {
            command.env("MKERNEL_SECRET", &self.secret);
        }
        if self.as_hosts {
            command.env("MKERNEL_HOST_ID", format!("{}-{rank}", self.port));
            // Ranks of other hosts do not come to a loopback address.
            command.env("MASTER_ADDR", "0.0.0.0");
        }
    }
}

/// A process that has not ended.
pub struct Rank {
    pub number: usize,
    child: Child,
}

impl Rank {
    /// Starts `command` as a rank in a process group of its own. The kernel kills the process if this process ends.
    pub fn start(
        number: usize,
        words: &[OsString],
        place: &Place,
        forward: &Forward,
    ) -> Result<Self, Failure> {
        let program = PathBuf::from(words.first().cloned().unwrap_or_default());
        let mut command = Command::new(&program);
        command
            .args(words.iter().skip(1))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        place.set(&mut command, number);
        let launcher = getpid();
        let end_with_launcher = move || {
            set_parent_process_death_signal(Some(Signal::KILL))?;
            // The signal does not come if the launcher has ended before.
            match getppid() == Some(launcher) {
                true => Ok(()),
                false => Err(io::ErrorKind::Interrupted.into()),
            }
        };
        // SAFETY: between fork and exec, the closure makes two system calls and does not allocate.
        unsafe { command.pre_exec(end_with_launcher) };
        let child = command.spawn();
        let mut child = child.map_err(|source| Failure::Start { program, source })?;
        if let Some(pipe) = child.stdout.take() {
            forward.read(number, Stream::Stdout, pipe);
        }
        if let Some(pipe) = child.stderr.take() {
            forward.read(number, Stream::Stderr, pipe);
        }
        Ok(Self { number, child })
    }

    /// Sends a signal to the rank and to the processes that it has started.
    pub fn signal(&self, signal: Signal) {
        // The process has not been waited for, so no other group has this id.
        let _ = kill_process_group(Pid::from_child(&self.child), signal);
    }

    /// The status of the process if it has ended. The processes that it has started and left are killed.
    pub fn try_wait(&mut self) -> Option<ExitStatus> {
        let pid = WaitId::Pid(Pid::from_child(&self.child));
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        if matches!(waitid(pid, look), Ok(None)) {
            return None;
        }
        self.signal(Signal::KILL);
        self.child.wait().ok()
    }
}

/// The exit code of a shell for this status.
pub fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

/// Describes a status that is not success.
pub fn how(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("has ended with exit code {code}"),
        (None, Some(signal)) => format!("was ended by signal {signal}"),
        (None, None) => "has ended".to_owned(),
    }
}
