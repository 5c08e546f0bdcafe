//! A test of two processes of this host, connected by a socket. After one is killed, the other must name the killed process in
//! time.

use crate::pair::{MARGIN, Options, RunningEndpoint, error_of, post, put, unconnected, until};
use mkernel_fabric::{FabricError, PeerId};
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The environment variable with the folder of the parent's socket. It is set in the child process.
const SOCKET_FOLDER: &str = "MKERNEL_TEST_MEETING";

/// Exchanges connection info over one socket and connects over another.
fn connect(mut control: UnixStream, wire: UnixStream) -> RunningEndpoint {
    let mut endpoint = unconnected(Box::new(wire), Options::default());
    let info = endpoint.connect_info();
    control
        .write_all(&(info.len() as u32).to_le_bytes())
        .expect("writes");
    control.write_all(&info).expect("writes");
    let mut length = [0; 4];
    control.read_exact(&mut length).expect("reads");
    let mut info = vec![0; u32::from_le_bytes(length).min(1 << 16) as usize];
    control.read_exact(&mut info).expect("reads");
    endpoint.connect(info).expect("connects").start()
}

/// Puts in the child process until the fabric fails.
fn put_for_ever(folder: &Path) {
    let socket = || UnixStream::connect(folder.join("socket")).expect("the parent listens");
    let end = connect(socket(), socket());
    while post(&end, &put(1, 1000, 7, 3)).is_some() {}
    panic!("{:?}", end.proxy.error());
}

/// A child process that is killed on drop.
struct KilledOnDrop(Child);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_killed_process_is_named_in_time() {
    if let Some(folder) = std::env::var_os(SOCKET_FOLDER) {
        return put_for_ever(Path::new(&folder));
    }
    let folder = tempfile::tempdir().expect("a folder");
    let listener = UnixListener::bind(folder.path().join("socket")).expect("listens");
    let mut child = Command::new(std::env::current_exe().expect("own path"));
    let name = "processes::a_killed_process_is_named_in_time";
    child
        .args([name, "--exact"])
        .env(SOCKET_FOLDER, folder.path());
    let child = child.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let mut child = KilledOnDrop(child.expect("own binary"));
    let accept = || listener.accept().expect("the child comes").0;
    let end = connect(accept(), accept());
    for number in 0..500 {
        post(&end, &put(0, 100, number, number)).expect("posted");
    }
    until("puts of the child", MARGIN, || {
        end.arrivals.count(PeerId(0), 1) > 500
    });
    child.0.kill().expect("kills");
    let start = Instant::now();
    let error = error_of(&end, MARGIN);
    assert!(
        start.elapsed() < Duration::from_secs(5),
        "{:?}",
        start.elapsed()
    );
    let FabricError::Lost { peer, .. } = &error else {
        panic!("{error:?}")
    };
    assert_eq!(&*peer.name, "rank 1 on node b");
}
