//! Claims about one machine here, about whole clusters in `chaos`, on the simulator in `sim`.

use exo_types::Time;

use crate::{Input, Membership, Output};

mod chaos;
mod epochs;
mod protocol;
mod sim;

/// What a machine says whose disk answers at once.
fn handle(machine: &mut Membership, now: Time, input: Input) -> Vec<Output> {
    let mut all = machine.handle(now, input);
    let mut next = 0;
    while next < all.len() {
        if let Output::Persist(epoch) = all[next] {
            all.extend(machine.handle(now, Input::Persisted(epoch)));
        }
        next += 1;
    }
    all
}
