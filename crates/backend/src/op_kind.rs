//! Which ops there are, without what they work on.

exo_types::enum_with_all! {
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
}
