//! Assigns the layers of a model to the devices of a cluster.
