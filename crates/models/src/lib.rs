//! Model architectures in terms of the backend contract.
