//! The candidates of `ag_gemm` with one tile, among which the cost model chooses.

use crate::arch::Tile;
use crate::config::Field;
use crate::device::Device;
use crate::diagnostic::Diagnostics;
use crate::ops::gemm::config::Transfer;
use crate::ops::gemm::core::CoreLayout;
use crate::ops::gemm::cost::{self, Push};
use crate::ops::gemm::exchange::{Exchange, Way, own_bytes, put_bytes, ways};
use crate::ops::gemm::op_plan::{Chunks, Cluster, SLOT_BYTES, TileOrder};
use crate::ops::gemm::spec::GemmSpec;
use crate::plan::MAX_PUT_BYTES;
use crate::roofline::Traffic;

/// Row tiles that share B tiles in L2. 8 to 16 are equally fast within noise, and fewer are slower.
const GROUP_M: u32 = 8;

/// A possible plan.
pub(super) struct Candidate {
    pub core: CoreLayout,
    pub transfer: Option<Transfer>,
    pub comm_ctas: u32,
    pub chunks: Option<Chunks>,
    pub order: TileOrder,
    pub estimate_us: f64,
}

/// The parts that all candidates with one tile share.
struct Search<'a> {
    spec: GemmSpec<'a>,
    device: &'a Device,
    traffic: &'a Traffic,
    tile: Tile,
    core: CoreLayout,
    order: TileOrder,
    /// Whether no tile straddles two shards.
    aligned: bool,
}

/// Returns the candidates with one tile, or the reasons why no candidate exists.
pub(super) fn candidates(
    spec: GemmSpec<'_>,
    device: &Device,
    tile: Tile,
    traffic: &Traffic,
) -> Result<Vec<Candidate>, Diagnostics> {
    let search = Search::new(spec, device, tile, traffic)?;
    let mut refused = Diagnostics::default();
    refused.require(
        spec.tuning().cluster != Some(true),
        Field::CLUSTER,
        || {
            format!(
                "with tiles of {}x{}, no clusters that {} runs at the same time share every tile",
                tile.m, tile.n, device.name
            )
        },
        format!(
            "remove it, or write split_k = 2 to {} and fewer rows",
            Device::MAX_CLUSTER_CTAS
        ),
    );
    if spec.world() == 1 {
        let found = search.candidates(None, 0, None, Push::None);
        return if found.is_empty() {
            Err(refused)
        } else {
            Ok(found)
        };
    }
    if spec.crosses_nodes() && device.sm_count == 1 {
        refused.push(
            Field::NODES,
            format!(
                "across nodes some SMs send while others compute, and {} has 1 SM",
                device.name
            ),
            "use a GPU with 2 SMs or more",
        );
        return Err(refused);
    }
    let mut found = Vec::new();
    for way in ways(spec) {
        found.extend(search.by_way(way, &mut refused));
    }
    if found.is_empty() {
        Err(refused)
    } else {
        Ok(found)
    }
}

impl<'a> Search<'a> {
    fn new(
        spec: GemmSpec<'a>,
        device: &'a Device,
        tile: Tile,
        traffic: &'a Traffic,
    ) -> Result<Self, Diagnostics> {
        let core = CoreLayout::new(spec, tile, None, device)?;
        let shard_rows = spec.shard_rows();
        let row_tiles = spec.shape.m.div_ceil(u64::from(tile.m)) as u32;
        let whole_tiles = shard_rows / u64::from(tile.m) * u64::from(spec.world());
        // If each call gives the rows, tiles straddle shards.
        let aligned = spec.world() == 1
            || !spec.takes_rows()
                && shard_rows.is_multiple_of(u64::from(tile.m))
                && whole_tiles == u64::from(row_tiles);
        let shard_row_tiles =
            (spec.world() > 1 && aligned).then(|| (shard_rows / u64::from(tile.m)) as u32);
        let col_tiles = spec.shape.n.div_ceil(spec.tile_cols(tile).into()) as u32;
        // A group with own and with remote rows would wait for remote rows before all own rows are computed.
        let group_m = GROUP_M.min(shard_row_tiles.unwrap_or(GROUP_M));
        let order = TileOrder {
            row_tiles,
            col_tiles,
            slots: row_tiles * col_tiles,
            group_m: spec.tuning().group_m.unwrap_or(group_m),
            shard_row_tiles,
            whole_tiles: 0,
            tail_splits: 1,
            pace_steps: 0,
        };
        Ok(Self {
            spec,
            device,
            traffic,
            tile,
            core,
            order,
            aligned,
        })
    }

    fn candidates(
        &self,
        transfer: Option<Transfer>,
        comm_ctas: u32,
        chunks: Option<Chunks>,
        push: Push,
    ) -> Vec<Candidate> {
        let compute_ctas = self.device.sm_count - comm_ctas;
        let orders = (self.orders().into_iter())
            .flat_map(|order| (self.core).complete(self.spec, order, compute_ctas));
        let layouts = |order: TileOrder| {
            let asked = self.spec.tuning().cluster;
            let through_l2 = (asked != Some(true)).then(|| self.core.clone());
            // Clusters have not been measured where C has several rows of tiles.
            let may_cluster = asked.unwrap_or(order.row_tiles == 1);
            let cluster = may_cluster.then(|| self.in_clusters(&order, comm_ctas));
            (through_l2.into_iter().chain(cluster.flatten())).map(move |core| (core, order.clone()))
        };
        let candidate = |(core, order)| Candidate {
            estimate_us: cost::estimate_us(
                self.spec,
                &core,
                &order,
                push,
                self.traffic,
                self.device,
            ),
            core,
            transfer,
            comm_ctas,
            chunks: chunks.clone(),
            order,
        };
        orders.flat_map(layouts).map(candidate).collect()
    }

    /// Own rows first, or all rows together, so that B is loaded once.
    fn orders(&self) -> Vec<TileOrder> {
        let own_first = self.order.clone();
        let is_free = self.spec.tuning().group_m.is_none()
            && !self.spec.crosses_nodes()
            && own_first.shard_row_tiles.is_some();
        let all_rows = own_first.row_tiles;
        let together =
            (is_free && (own_first.group_m + 1..=GROUP_M).contains(&all_rows)).then(|| TileOrder {
                group_m: all_rows,
                ..own_first.clone()
            });
        [own_first].into_iter().chain(together).collect()
    }

    /// The layout in which the CTAs that share a tile are a cluster, if that is possible in this order.
    fn in_clusters(&self, order: &TileOrder, comm_ctas: u32) -> Option<CoreLayout> {
        let splits = order.tail_splits;
        let resident = self.device.resident_clusters(splits)?;
        let shares_all = order.whole_tiles == 0 && order.tail_tiles() <= resident;
        // Registers of a CTA in a cluster have no room for the sums of several granules, or for both the sums and the products of a
        // wide tile of elements of one byte.
        let has_one_granule = self
            .spec
            .granules()
            .is_none_or(|granules| granules == splits);
        let is_wide = self.spec.types().a.bytes() == 1 && self.tile == Tile { m: 128, n: 256 };
        // A CTA of a cluster completes fewer columns than share a scale.
        let quantises = self.spec.epilogue().quantises_sums();
        let fits = has_one_granule && !is_wide && !quantises;
        if !shares_all || !fits || comm_ctas > 0 || self.spec.takes_rows() {
            return None;
        }
        let weight_cols = self.spec.epilogue().weight_cols();
        let cluster = Cluster::new(
            self.device.arch.spec(),
            self.tile,
            self.spec.shape.m,
            splits,
            weight_cols,
        );
        CoreLayout::new(self.spec, self.tile, Some(cluster), self.device).ok()
    }

    /// Returns the candidates in which rows travel in this way, or records why no candidate exists.
    fn by_way(&self, way: Way, refused: &mut Diagnostics) -> Vec<Candidate> {
        let exchange = Exchange {
            spec: self.spec,
            device: self.device,
            aligned: self.aligned,
            tiles: self.order.tiles(),
        };
        match way {
            Way::Sm { ctas, slices } => {
                if !self.has_room_for(ctas, refused) {
                    return Vec::new();
                }
                let Some(chunks) = self.sm_chunks(&exchange, ctas, slices, refused) else {
                    return Vec::new();
                };
                let push = Push::Sm {
                    ctas,
                    slices,
                    own_bytes: own_bytes(self.spec),
                    first: chunks.push_warps > 1,
                    rounds: chunks.push_rounds(self.spec.types().a, self.device.sm_count),
                };
                self.candidates(Some(Transfer::SmPush), ctas, Some(chunks), push)
            }
            Way::Copies { per_peer } => {
                if !self.aligned {
                    refused.push(
                        Field::TRANSFER,
                        format!(
                            "copy engines want shards of whole tiles, but ⌈M/W⌉ = {} is no multiple of {} rows",
                            self.spec.shard_rows(),
                            self.tile.m
                        ),
                        "use sm_push, or pad M",
                    );
                    return Vec::new();
                }
                let chunks = exchange.copy_chunks(self.tile, per_peer);
                let copies = chunks.per_shard * (self.spec.world() - 1);
                let push = Push::Copies { copies };
                self.candidates(Some(Transfer::CopyEngine), 0, Some(chunks), push)
            }
        }
    }

    /// Returns whether `ctas` communication CTAs leave SMs to compute and have slots to send from. If not, records the reason.
    fn has_room_for(&self, ctas: u32, refused: &mut Diagnostics) -> bool {
        let (sms, core, tile) = (self.device.sm_count, &self.core, self.tile);
        if ctas >= sms {
            refused.push(
                Field::COMM_CTAS,
                format!("{ctas} communication CTAs leave none of {sms} SMs to compute"),
                format!("use fewer than {sms}"),
            );
            return false;
        }
        let fits = ctas == 0 || core.holds_slots();
        refused.require(
            fits,
            Field::COMM_CTAS,
            || {
                format!(
                    "communication CTAs push through {} bytes of shared memory, more than {} stages of a {}x{} tile and the output take",
                    core.arch.warps() * SLOT_BYTES,
                    core.stages,
                    tile.m,
                    tile.n
                )
            },
            "use more stages, a larger tile, or comm_ctas = 0",
        );
        fits
    }

    /// Returns the chunks in which SMs push, or records why no chunks are possible.
    fn sm_chunks(
        &self,
        exchange: &Exchange<'_>,
        ctas: u32,
        slices: u32,
        refused: &mut Diagnostics,
    ) -> Option<Chunks> {
        let (k, tile_k) = (self.spec.shape.k, self.spec.types().tile_k());
        let Some(chunks) = exchange.sm_chunks(ctas, slices) else {
            refused.push(
                Field::K_SLICES,
                format!("{slices} slices of K = {k} would not hold {tile_k} columns each"),
                "use fewer slices",
            );
            return None;
        };
        let bytes = put_bytes(self.spec, &chunks);
        if bytes > MAX_PUT_BYTES {
            refused.push(
                Field::CHUNK_ROWS,
                format!(
                    "{} rows of K = {k} are {bytes} bytes, a put to another node has at most {MAX_PUT_BYTES}",
                    chunks.rows
                ),
                "use fewer rows, or split K",
            );
            return None;
        }
        Some(chunks)
    }
}
