//! Regions of memory that a plan lays out. One declaration is the source of all facts about a region: its size, its offset, its
//! accessor in kernels, and the name of an address in a report.

use crate::abi::FLAG_STRIDE_BYTES;
use serde::Serialize;

/// The type of the elements of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Element {
    /// A u32 that other CTAs or ranks poll or add to. Each element lies on an L2 line of its own.
    Flag,
    /// A u32 that grows with the calls of an operator. Elements lie side by side.
    Count,
    /// A mark, which names the call that the element belongs to, and a u32.
    Marked,
    /// A number of packets of the low-latency protocol: two u32s, each before its mark.
    Packets(u64),
    /// u32s side by side.
    Words(u64),
    /// u64s side by side.
    LongWords(u64),
    /// fp32s side by side.
    Floats(u64),
    /// A number of bytes.
    Bytes(u64),
    /// An mbarrier in shared memory.
    Barrier,
}

impl Element {
    /// The distance from one element to the next, in bytes.
    #[must_use]
    pub const fn stride_bytes(self) -> u64 {
        match self {
            Self::Flag => FLAG_STRIDE_BYTES,
            Self::Count => 4,
            Self::Packets(count) => 16 * count,
            Self::Words(count) | Self::Floats(count) => 4 * count,
            Self::LongWords(count) => 8 * count,
            Self::Bytes(count) => count,
            Self::Barrier | Self::Marked => 8,
        }
    }

    /// The words that count calls or hold the mark of a call: the period of the pattern in bytes, and the offsets in the period.
    #[must_use]
    pub const fn words_of_calls(self) -> Option<(u64, &'static [u64])> {
        match self {
            Self::Flag | Self::Count | Self::Marked => Some((self.stride_bytes(), &[0])),
            Self::Packets(_) => Some((16, &[4, 12])),
            _ => None,
        }
    }

    /// The CUDA type of the memory that the region's address points to.
    #[must_use]
    pub const fn cxx(self) -> &'static str {
        match self {
            Self::Flag | Self::Count | Self::Words(_) | Self::Barrier => "u32",
            Self::LongWords(_) | Self::Marked => "u64",
            Self::Floats(_) => "float",
            Self::Bytes(_) | Self::Packets(_) => "u8",
        }
    }
}

/// One dimension of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Index {
    /// The name of the dimension.
    pub name: &'static str,
    /// The number of elements along the dimension.
    pub extent: u64,
}

/// The handle of a region. Only declarations of memory make handles, so a misspelt region does not compile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct RegionId(&'static str);

impl RegionId {
    /// The handle of the region that a declaration of memory calls `name`.
    pub(crate) const fn new(name: &'static str) -> Self {
        Self(name)
    }

    /// The name of the region.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.0
    }
}

/// A part of shared memory or of the workspace: an array in row-major order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Region {
    /// The name of the region, which is also the name of the accessor in kernels.
    pub name: &'static str,
    /// The purpose of the region, in sentences.
    #[serde(skip)]
    pub doc: Vec<&'static str>,
    /// The type of the elements.
    pub element: Element,
    /// The dimensions, outermost first; empty if the region is one element.
    pub indices: Vec<Index>,
    /// The offset of the region, in bytes.
    pub offset_bytes: u64,
    /// The size of the region, in bytes.
    pub bytes: u64,
    /// Whether all bodies of a kernel have this region in common: the state, and the words by which ranks describe a call, perhaps
    /// to ranks that run another body.
    #[serde(skip)]
    pub is_common: bool,
}

impl Region {
    /// The most elements of a region. Kernels number them in 32 bits, as `mk/region.cuh` does, and so do the extents that
    /// are arguments of its templates.
    pub const MAX_ELEMENTS: u64 = u32::MAX as u64;

    /// The handle of the region.
    #[must_use]
    pub const fn id(&self) -> RegionId {
        RegionId(self.name)
    }

    /// The number of elements, at most [`u64::MAX`].
    #[must_use]
    pub fn elements(&self) -> u64 {
        let extents = self.indices.iter().map(|index| index.extent);
        extents.fold(1, u64::saturating_mul)
    }

    /// The offset of an element in bytes; `None` if an index is missing, superfluous or out of range.
    ///
    /// ```
    /// use mkernel_spec::plan::{Element, Index, Region};
    ///
    /// let tile = Index { name: "tile", extent: 10 };
    /// let partials = Region {
    ///     name: "partials",
    ///     doc: Vec::new(),
    ///     element: Element::Bytes(64),
    ///     indices: vec![Index { name: "source", extent: 4 }, tile],
    ///     offset_bytes: 1024,
    ///     bytes: 4 * 10 * 64,
    ///     is_common: false,
    /// };
    /// assert_eq!(partials.offset_of(&[3, 7]), Some(1024 + 37 * 64));
    /// assert_eq!(partials.name_of(1024 + 37 * 64 + 8).as_deref(), Some("partials[3][7] + 8"));
    /// assert_eq!(partials.offset_of(&[4, 7]), None);
    /// ```
    #[must_use]
    pub fn offset_of(&self, at: &[u64]) -> Option<u64> {
        let in_range = at.len() == self.indices.len()
            && at
                .iter()
                .zip(&self.indices)
                .all(|(i, index)| *i < index.extent);
        let number = at
            .iter()
            .zip(&self.indices)
            .fold(0, |number, (i, index)| number * index.extent + i);
        in_range.then(|| self.offset_bytes + number * self.element.stride_bytes())
    }

    /// The name of an address inside the region, as in `partials[3][7] + 8`.
    #[must_use]
    pub fn name_of(&self, offset_bytes: u64) -> Option<String> {
        let within = offset_bytes
            .checked_sub(self.offset_bytes)
            .filter(|within| *within < self.bytes)?;
        let stride_bytes = self.element.stride_bytes();
        let mut number = within / stride_bytes;
        let mut at = Vec::new();
        for index in self.indices.iter().rev() {
            at.push(number % index.extent);
            number /= index.extent;
        }
        let at: String = at.iter().rev().map(|i| format!("[{i}]")).collect();
        Some(match within % stride_bytes {
            0 => format!("{}{at}", self.name),
            rest => format!("{}{at} + {rest}", self.name),
        })
    }
}

/// Places regions one behind another.
pub(crate) struct Placer {
    align_bytes: u64,
    /// The offset of the next region, in bytes.
    pub end_bytes: u64,
}

impl Placer {
    /// Starts at `start_bytes` and places each region at a multiple of `align_bytes`.
    pub const fn new(start_bytes: u64, align_bytes: u64) -> Self {
        Self {
            align_bytes,
            end_bytes: start_bytes,
        }
    }

    /// Places the next region.
    pub fn place(
        &mut self,
        name: &'static str,
        doc: &[&'static str],
        element: Element,
        shape: &[(&'static str, u64)],
    ) -> Region {
        let indices = shape.iter().map(|&(name, extent)| Index { name, extent });
        let mut region = Region {
            name,
            doc: doc.iter().map(|line| line.trim()).collect(),
            element,
            indices: indices.collect(),
            offset_bytes: self.end_bytes,
            bytes: 0,
            is_common: false,
        };
        region.bytes = region.elements().saturating_mul(element.stride_bytes());
        self.end_bytes = (self.end_bytes + region.bytes).next_multiple_of(self.align_bytes);
        region
    }
}

/// Declares memory: a struct with a field and a handle for each region, so that a misspelt name does not compile, and its
/// layout. A region that a plan does not need is `None`. An element and its dimensions may depend on the plan. All bodies of
/// a kernel share regions that are `for all bodies`.
macro_rules! regions {
    (
        $(#[$attr:meta])*
        $vis:vis struct $memory:ident($plan:ident: $plan_type:ty), from $start:expr, aligned to $align:literal;
        $(
            $(#[doc = $doc:literal])*
            $name:ident: $element:expr, [$($index:ident: $extent:expr),*] $(, for all $bodies:ident)? $(, if $needed:expr)?;
        )+
    ) => {
        $(#[$attr])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[allow(dead_code, reason = "some regions are only read by kernels")]
        $vis struct $memory {
            $($(#[doc = $doc])* pub(crate) $name: Option<$crate::plan::Region>,)+
            /// Bytes from the start of memory to the end of the last region.
            pub(crate) bytes: u64,
        }

        #[allow(dead_code, non_upper_case_globals, reason = "handles have the names of regions")]
        impl $memory {
            $(
                #[doc = concat!("The handle of `", stringify!($name), "`.")]
                pub const $name: $crate::plan::RegionId =
                    $crate::plan::RegionId::new(stringify!($name));
            )+
        }

        impl $memory {
            /// The elements and dimensions that a plan needs, in the order of the declaration.
            #[must_use]
            pub(super) fn new($plan: $plan_type) -> Self {
                let mut placer = $crate::parts::region::Placer::new($start, $align);
                $(let $name = (true $(&& $needed)?).then(|| {
                    let shape = [$((stringify!($index), u64::from($extent))),*];
                    let region = placer.place(stringify!($name), &[$($doc),*], $element, &shape);
                    let all_bodies: &[&str] = &[$(stringify!($bodies))?];
                    let is_common = !all_bodies.is_empty();
                    $crate::plan::Region { is_common, ..region }
                });)+
                Self { $($name,)+ bytes: placer.end_bytes }
            }

            /// The regions that the plan needs.
            #[must_use]
            pub(super) fn regions(&self) -> Vec<$crate::plan::Region> {
                [$(&self.$name),+].into_iter().flatten().cloned().collect()
            }
        }
    };
}
pub(crate) use regions;
