//! The use of the resources of a rank.

/// A resource that serves one message at a time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Server {
    /// The time at which the resource is free.
    pub free_us: f64,
    /// The time for which the resource has been busy.
    pub busy_us: f64,
}

impl Server {
    /// Takes the resource for `us`, from `now_us` or from the time at which it is free. Returns the start and the end.
    pub fn take(&mut self, now_us: f64, us: f64) -> (f64, f64) {
        let start = self.free_us.max(now_us);
        self.free_us = start + us;
        self.busy_us += us;
        (start, self.free_us)
    }
}

/// A rank: its resources, and what it has sent and received.
#[derive(Clone, Debug)]
pub struct Usage {
    pub link_out: Server,
    pub link_in: Server,
    pub proxy: Server,
    /// The NICs of the rank in each direction.
    pub nics_out: Vec<Server>,
    pub nics_in: Vec<Server>,
    pub link_out_bytes: u64,
    pub link_in_bytes: u64,
    pub nic_out_bytes: u64,
    pub nic_in_bytes: u64,
    pub puts: u64,
    pub arrivals: u64,
    /// The times that a put waited for credits of its receiver.
    pub credit_waits: u64,
    /// The time of work by lane, over all workers.
    pub work_us: Vec<f64>,
}

impl Usage {
    pub fn new(rails: u32, lanes: usize) -> Self {
        let nics = vec![Server::default(); rails as usize];
        Self {
            link_out: Server::default(),
            link_in: Server::default(),
            proxy: Server::default(),
            nics_out: nics.clone(),
            nics_in: nics,
            link_out_bytes: 0,
            link_in_bytes: 0,
            nic_out_bytes: 0,
            nic_in_bytes: 0,
            puts: 0,
            arrivals: 0,
            credit_waits: 0,
            work_us: vec![0.0; lanes],
        }
    }

    /// The NIC that is free first.
    pub fn free_nic(&self) -> usize {
        let free = |nic: &usize| self.nics_out[*nic].free_us;
        let nics = 0..self.nics_out.len();
        nics.min_by(|a, b| free(a).total_cmp(&free(b))).unwrap_or(0)
    }
}
