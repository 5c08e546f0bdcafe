//! [`Layer`]: the weight and the bias of a linear layer, and calls of the operators that multiply by the weight.

use crate::call::call_with_rows;
use crate::called::Called;
use crate::error::refuse;
use crate::factor::Factor;
use crate::matmul::matmul;
use crate::operands::{self, Input, Output};
use crate::ranks::Ranks;
use candle_core::{D, DType, Result, Tensor};
use mkernel::spec::{BLayout, Dim, Dtype, Epilogue, GemmConfig, GemmOp, GemmShape, Scales, Tuning};
use mkernel::{Operand, Operator};
use std::sync::Arc;

/// This rank's part of a linear layer.
#[derive(Clone, Debug)]
pub(super) struct Layer {
    pub ranks: Ranks,
    weight: Factor,
    scales: Scales,
    bias: Option<Tensor>,
}

impl Layer {
    /// Creates a layer from the weight, `[N, K]`, and the bias, `[N]`.
    pub fn new(ranks: &Ranks, weight: Factor, bias: Option<Tensor>) -> Result<Self> {
        let (n, _) = weight.elements().dims2()?;
        let scales = weight.scales_of_weight()?;
        let of_bias = match (weight.elements().dtype(), scales) {
            (DType::F8E4M3, Scales::None) => {
                refuse!("weight has elements of F8E4M3 without scales; pass Factor::scaled")
            }
            (DType::F8E4M3, _) => &[Dtype::Bf16][..],
            _ => &Dtype::FACTORS,
        };
        if scales == Scales::None {
            operands::dtype("weight", weight.elements(), &Dtype::FACTORS)?;
        }
        let of_weight = [("weight", weight.elements())].into_iter();
        let of_weight = of_weight.chain(weight.scales().map(|scales| ("b_scales", scales)));
        for (name, tensor) in of_weight.chain(bias.as_ref().map(|bias| ("bias", bias))) {
            operands::check(ranks, name, tensor)?;
        }
        if let Some(bias) = &bias {
            operands::dtype("bias", bias, of_bias)?;
            if bias.dims() != [n] {
                refuse!(
                    "the bias has the shape {:?}, but the weight has {n} rows; the bias must be [{n}]",
                    bias.dims()
                );
            }
        }
        let ranks = ranks.clone();
        Ok(Self {
            ranks,
            weight,
            scales,
            bias,
        })
    }

    pub fn weight(&self) -> &Tensor {
        self.weight.elements()
    }

    pub fn outputs(&self) -> Result<usize> {
        self.weight().dim(0)
    }

    /// Returns whether candle can multiply without an operator of several ranks.
    pub fn is_local(&self) -> bool {
        self.is_plain() && self.ranks.world() == 1
    }

    fn is_plain(&self) -> bool {
        self.scales == Scales::None
    }

    /// Returns the number of rows of `x [.., K]`, whose K must equal the K of the weight.
    pub fn count_rows(&self, x: &Factor) -> Result<usize> {
        let (cols, k) = (x.elements().dim(D::Minus1)?, self.weight().dim(1)?);
        if cols != k || k == 0 {
            refuse!("the input has {cols} columns, but the weight has {k}");
        }
        Ok(x.elements().elem_count() / k)
    }

    /// Computes the output on this rank alone by candle. One rank exchanges nothing, and for few rows the product of cuBLAS is faster
    /// than a fused kernel.
    pub fn local(&self, x: &Tensor) -> Result<Tensor> {
        if !self.is_plain() {
            refuse!(
                "the weight is F8E4M3 with scales, and candle has no product of scaled elements; call forward_scaled"
            );
        }
        let y = matmul(x, self.weight())?;
        match &self.bias {
            Some(bias) => y.broadcast_add(bias),
            None => Ok(y),
        }
    }

    pub fn config(&self, op: GemmOp) -> Result<GemmConfig> {
        let (n, k) = self.weight().dims2()?;
        Ok(GemmConfig {
            dtype: operands::dtype("weight", self.weight(), &Dtype::GEMM_FACTORS)?,
            scales: self.scales,
            n: Dim::Static(n as u64),
            k: Dim::Static(k as u64),
            b_layout: BLayout::Nk,
            epilogue: Epilogue {
                bias: self.bias.is_some(),
                ..Epilogue::default()
            },
            // An operator serves numbers of rows that are alike.
            tuning: Tuning {
                buckets: Some(1),
                ..Tuning::default()
            },
            ..GemmConfig::new(op)
        })
    }

    /// Calls the operator of `config` with `rows` rows, and the operands that its epilogue adds.
    pub fn call<const R: usize>(
        &self,
        config: GemmConfig,
        (x, rows): (&Factor, usize),
        added: &[Input<'_>],
        results: [(Operand, Vec<usize>); R],
    ) -> Result<[Tensor; R]> {
        if x.scales().is_some() == self.is_plain() {
            refuse!(
                "the input has elements of {:?}, but the weight of {:?}; both must have scales (Factor::scaled), or neither",
                x.elements().dtype(),
                self.weight().dtype()
            );
        }
        let operator = self.operator(config, rows)?;
        let scales = [
            (Operand::AScales, x.scales()),
            (Operand::BScales, self.weight.scales()),
            (Operand::Bias, self.bias.as_ref()),
        ];
        let scales = scales.into_iter().filter_map(|(name, x)| Some((name, x?)));
        let factors = [(Operand::A, x.elements()), (Operand::B, self.weight())];
        let mut inputs: Vec<Input<'_>> = factors.into_iter().chain(scales).collect();
        inputs.extend_from_slice(added);
        let outputs = results.map(|(operand, dims)| {
            let dtype = self.result_dtype(operand, config.epilogue);
            Output::new(operand, dims, dtype)
        });
        let called = Called {
            operator: &operator,
            rows: Some(rows as u64),
        };
        call_with_rows(&self.ranks, called, &inputs, outputs)
    }

    fn result_dtype(&self, operand: Operand, epilogue: Epilogue) -> DType {
        match (operand, self.weight().dtype()) {
            (Operand::CScales, _) => DType::F32,
            (Operand::C, _) if epilogue.quantises() => DType::F8E4M3,
            (_, DType::F8E4M3) => DType::BF16,
            (_, dtype) => dtype,
        }
    }

    /// Returns an operator for this number of rows. One operator serves all numbers of rows up to a power of two, so operators are
    /// few.
    fn operator(&self, config: GemmConfig, rows: usize) -> Result<Arc<Operator>> {
        let size = |dim: Dim| dim.fixed().unwrap_or_default();
        let shape = GemmShape {
            m: rows.max(1).next_power_of_two() as u64,
            n: size(config.n),
            k: size(config.k),
        };
        self.ranks.operator(config, shape)
    }
}
