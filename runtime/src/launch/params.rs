//! Packs operands and addresses into the kernel's parameter, in the layout of the plan.

use crate::error::Error;
use crate::launch::raw_operand::RawOperand;
use crate::tensors::SymmetricPlace;
use mkernel_spec::Dtype;
use mkernel_spec::abi::{
    ArgKind, ArgLayout, Extent, MAX_RANKS, Operand, OperandSpec, Source, Stride, TensorMapSpec,
    TraceBuffer, rows_of_load,
};
use mkernel_spec::fabric::KernelEndpoint;
use std::mem::offset_of;
use std::ops::{Deref, DerefMut};

/// The values from which the parameter of one launch is packed.
pub(crate) struct ParamInputs<'a> {
    pub specs: &'a [OperandSpec],
    /// The operands, in the order of `specs`.
    pub operands: &'a [RawOperand],
    /// The places in symmetric memory, in the order of `specs`. Operands outside symmetric memory have no place.
    pub places: &'a [SymmetricPlace],
    /// The workspaces of this node's ranks, including this one, as addresses in this process.
    pub workspaces: [u64; MAX_RANKS],
    /// The index of this rank's workspace.
    pub local_rank: u32,
    pub host_page: u64,
    pub gate: u64,
    pub operator_number: u32,
    pub deadline_ns: u64,
    pub rank: u32,
    /// The rows of the call, and the address of a word with the rows or 0.
    pub rows: (u32, u64),
    /// The endpoint for puts to other nodes.
    pub endpoint: KernelEndpoint,
    /// The memory of the trace, if the kernel is traced.
    pub trace: TraceBuffer,
}

/// The arguments of `cuTensorMapEncodeTiled`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TensorMap {
    pub address: u64,
    pub dims: Axes<u64>,
    pub strides_bytes: Axes<u64>,
    pub dtype: Dtype,
    pub box_elems: Axes<u32>,
}

/// The most dimensions of a tensor map.
const MAX_AXES: usize = 5;

/// Values of the dimensions of a tensor map, the innermost first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Axes<T> {
    values: [T; MAX_AXES],
    count: usize,
}

impl<T: Copy + Default> FromIterator<T> for Axes<T> {
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> Self {
        let mut axes = Self::default();
        for (to, value) in axes.values.iter_mut().zip(values) {
            *to = value;
            axes.count += 1;
        }
        axes
    }
}

impl<T> Deref for Axes<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.values[..self.count]
    }
}

impl<T> DerefMut for Axes<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.values[..self.count]
    }
}

impl ParamInputs<'_> {
    fn index(&self, wanted: Operand) -> Option<usize> {
        self.specs.iter().position(|spec| spec.operand == wanted)
    }

    /// Returns the operand. An operand without rows on this rank is replaced by a valid address, which the kernel never
    /// accesses.
    fn operand(&self, wanted: Operand) -> RawOperand {
        let found = self.index(wanted);
        match found.map(|at| (&self.specs[at], &self.operands[at])) {
            Some((spec, operand)) if spec.rows.on(self.rank) > 0 => *operand,
            Some((spec, _)) => RawOperand {
                ptr: self.workspace(),
                row_stride_elems: spec.cols.next_multiple_of(8),
            },
            None => RawOperand {
                ptr: self.workspace(),
                row_stride_elems: 8,
            },
        }
    }

    /// Returns the place of the operand in symmetric memory. An operand without rows has no place.
    fn place(&self, wanted: Operand) -> SymmetricPlace {
        let place = self.index(wanted).and_then(|at| self.places.get(at));
        place.copied().unwrap_or_default()
    }

    fn row_bytes(&self, wanted: Operand) -> u64 {
        let dtype = self.index(wanted).map(|at| self.specs[at].dtype);
        self.operand(wanted).row_stride_elems * dtype.unwrap_or_default().bytes()
    }

    fn workspace(&self) -> u64 {
        self.workspaces[self.local_rank as usize % MAX_RANKS]
    }

    pub(crate) fn tensor_map(&self, spec: &TensorMapSpec) -> TensorMap {
        // If the rows are in device memory, the host assumes the most rows.
        let on = |extent: &Extent| match self.rows {
            (rows, 0) => extent.in_call(rows.into()).on(self.rank),
            _ => extent.on(self.rank),
        };
        let empty = spec.extents.iter().any(|extent| on(extent) == 0);
        let start = |operand| match empty {
            true => self.workspace(),
            false => self.operand(operand).ptr,
        };
        let address = match spec.source {
            Source::Operand(operand) => start(operand),
            // The address may lie before the operand, and may wrap around. Kernels access only rows inside the operand.
            Source::BeforeOperand { operand, rows } => {
                start(operand).wrapping_sub(rows * self.row_bytes(operand))
            }
            Source::Workspace { offset_bytes } => self.workspace() + offset_bytes,
        };
        let size = |extent: &Extent| on(extent).max(1);
        let stride = |stride: &Stride| match *stride {
            Stride::Bytes(bytes) => bytes,
            Stride::RowOf(operand) => self.row_bytes(operand),
            Stride::RowsOf { operand, rows } => self.row_bytes(operand) * size(&rows),
        };
        let mut box_elems: Axes<u32> = spec.box_elems.iter().copied().collect();
        if let ([_, rows, ..], true) = (&mut *box_elems, spec.box_of_call) {
            *rows = self.box_rows(*rows);
        }
        TensorMap {
            address,
            dims: spec.extents.iter().map(size).collect(),
            strides_bytes: spec.strides.iter().map(stride).collect(),
            dtype: spec.dtype,
            box_elems,
        }
    }

    /// Returns the rows of a box in this call, or the most rows if the rows are in device memory.
    fn box_rows(&self, most: u32) -> u32 {
        match self.rows {
            (rows, 0) => rows_of_load(most, rows.into()),
            _ => most,
        }
    }

    /// Returns `count` tensor maps: the maps of an operand in symmetric memory on the ranks of this node.
    fn tensor_maps(&self, spec: &TensorMapSpec, count: usize) -> impl Iterator<Item = TensorMap> {
        let own = self.tensor_map(spec);
        let addresses = match spec.source {
            Source::Operand(operand) => self.place(operand).addresses,
            _ => [0; MAX_RANKS],
        };
        let on_peer = move |address| match address {
            // If the operand has no rows on the peer, the kernel does not use the map.
            0 => own,
            address => TensorMap { address, ..own },
        };
        addresses.into_iter().take(count).map(on_peer)
    }

    /// Writes the arguments of a bucket to `bytes`, its part of the kernel's parameter. `encode` encodes a tensor map.
    pub(crate) fn fill(
        &self,
        layout: &ArgLayout,
        bytes: &mut [u8],
        mut encode: impl FnMut(&TensorMap) -> Result<[u8; 128], Error>,
    ) -> Result<(), Error> {
        for arg in &layout.args {
            let to = &mut bytes[arg.offset_bytes..];
            match &arg.kind {
                ArgKind::TensorMap(spec) => put(to, &encode(&self.tensor_map(spec))?),
                ArgKind::Pointer(operand) | ArgKind::Result(operand) => {
                    put(to, &self.operand(*operand).ptr.to_ne_bytes());
                }
                ArgKind::RowStrideBytes(operand) => {
                    put(to, &self.row_bytes(*operand).to_ne_bytes());
                }
                ArgKind::Workspaces => put_addresses(to, self.workspaces),
                ArgKind::OnPeers(operand) => put_addresses(to, self.place(*operand).addresses),
                ArgKind::SymmetricPlace(operand) => {
                    put(to, &self.place(*operand).number.to_ne_bytes());
                }
                ArgKind::TensorMapsOnPeers { map, count } => {
                    for (to, map) in to.chunks_exact_mut(128).zip(self.tensor_maps(map, *count)) {
                        put(to, &encode(&map)?);
                    }
                }
                ArgKind::HostPage => put(to, &self.host_page.to_ne_bytes()),
                ArgKind::Gate => put(to, &self.gate.to_ne_bytes()),
                ArgKind::OperatorNumber => put(to, &self.operator_number.to_ne_bytes()),
                ArgKind::DeadlineNs => put(to, &self.deadline_ns.to_ne_bytes()),
                ArgKind::Rank => put(to, &self.rank.to_ne_bytes()),
                ArgKind::Rows => put(to, &self.rows.0.to_ne_bytes()),
                ArgKind::RowsAddress => put(to, &self.rows.1.to_ne_bytes()),
                ArgKind::BoxRows { most } => put(to, &self.box_rows(*most).to_ne_bytes()),
                ArgKind::Endpoint => put_endpoint(to, &self.endpoint),
                ArgKind::Trace => put_trace(to, &self.trace),
            }
        }
        Ok(())
    }
}

fn put_addresses(to: &mut [u8], addresses: [u64; MAX_RANKS]) {
    for (to, address) in to.chunks_exact_mut(8).zip(addresses) {
        put(to, &address.to_ne_bytes());
    }
}

fn put_endpoint(to: &mut [u8], endpoint: &KernelEndpoint) {
    let ring = &endpoint.ring;
    let long_words = [
        (offset_of!(KernelEndpoint, ring.slots), ring.slots),
        (offset_of!(KernelEndpoint, ring.words), ring.words),
        (offset_of!(KernelEndpoint, ring.state), ring.state),
        (offset_of!(KernelEndpoint, arrivals), endpoint.arrivals),
        (offset_of!(KernelEndpoint, network), endpoint.network),
        (
            offset_of!(KernelEndpoint, workspace_offset),
            endpoint.workspace_offset,
        ),
    ];
    let words = [
        (
            offset_of!(KernelEndpoint, ring.capacity_log2),
            ring.capacity_log2,
        ),
        (offset_of!(KernelEndpoint, region), endpoint.region),
    ];
    for (at, word) in long_words {
        put(&mut to[at..], &word.to_ne_bytes());
    }
    for (at, word) in words {
        put(&mut to[at..], &word.to_ne_bytes());
    }
}

fn put_trace(to: &mut [u8], trace: &TraceBuffer) {
    let long_words = [
        (offset_of!(TraceBuffer, address), trace.address),
        (offset_of!(TraceBuffer, ctas), trace.ctas),
        (offset_of!(TraceBuffer, warps), trace.warps),
        (offset_of!(TraceBuffer, events), trace.events),
    ];
    let words = [
        (offset_of!(TraceBuffer, first_events), trace.first_events),
        (offset_of!(TraceBuffer, other_events), trace.other_events),
    ];
    for (at, word) in long_words {
        put(&mut to[at..], &word.to_ne_bytes());
    }
    for (at, word) in words {
        put(&mut to[at..], &word.to_ne_bytes());
    }
}

fn put(to: &mut [u8], value: &[u8]) {
    to[..value.len()].copy_from_slice(value);
}

#[cfg(test)]
mod tests;
