//! Which ops there are, without what they work on.

/// The name of an op without its operands, for `supports_op`, messages and counters.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)]
pub enum OpKind {
    Embed,
    RmsNorm,
    MatMul,
    Rope,
    KvWrite,
    Attention,
    SwiGlu,
    Add,
    SelectRows,
    ArgMax,
    Exchange,
    LayerBoundary,
}

impl OpKind {
    /// Every kind.
    pub const ALL: [Self; 12] = [
        Self::Embed,
        Self::RmsNorm,
        Self::MatMul,
        Self::Rope,
        Self::KvWrite,
        Self::Attention,
        Self::SwiGlu,
        Self::Add,
        Self::SelectRows,
        Self::ArgMax,
        Self::Exchange,
        Self::LayerBoundary,
    ];
}
