//! Claims about one machine here, about whole clusters in `chaos`, on the simulator in `sim`.

mod chaos;
mod protocol;
mod sim;
