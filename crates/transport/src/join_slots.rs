//! Who may have a join exchange: few at once, and of one address fewer and not too often, so that one host
//! keeps no one else out.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use exo_stdx::Mutex;
use tokio::sync::oneshot;

/// Exchanges at once, whoever they are with. Another one takes the place of the oldest of the address that
/// has most: an honest exchange takes milliseconds, so whoever holds several for long is most likely
/// stalling, also with many addresses.
pub const JOIN_CONCURRENT_MAX: usize = 8;
/// Of these, with one address. This machine is not counted: whoever floods from here has the machine anyway.
const OF_ADDRESS_MAX: usize = 3;
/// Exchanges that one address may have in a row.
const BURST: u32 = 12;
/// After them, one in so much time.
const ONE_IN: Duration = Duration::from_millis(250);
/// Addresses that are remembered.
const ADDRESSES_MAX: usize = 1024;

/// The places there are.
#[derive(Default)]
pub(crate) struct JoinSlots(Mutex<OpenExchanges>);

#[derive(Default)]
struct OpenExchanges {
    last: u64,
    /// The oldest first.
    open: VecDeque<OpenExchange>,
    addresses: BTreeMap<IpAddr, AddressUse>,
}

struct OpenExchange {
    id: u64,
    address: IpAddr,
    /// Dropped with this, it tells whoever has the place.
    _crowded_out: oneshot::Sender<()>,
}

/// An address that has had an exchange.
struct AddressUse {
    /// Exchanges it has had of its burst, before those that time has given back.
    used: u32,
    since: Instant,
}

/// A place, until it is dropped or somebody else's.
pub(crate) struct JoinSlot {
    slots: Arc<JoinSlots>,
    id: u64,
    /// Answers when it is; `None` once it has.
    told: Option<oneshot::Receiver<()>>,
}

impl JoinSlots {
    /// A place for somebody at this address, or why there is none.
    pub(crate) fn take(self: &Arc<Self>, address: IpAddr) -> Result<JoinSlot, &'static str> {
        self.take_at(address, Instant::now())
    }

    fn take_at(self: &Arc<Self>, address: IpAddr, now: Instant) -> Result<JoinSlot, &'static str> {
        let address = network_of(address);
        let mut taken = self.0.lock();
        if !address.is_loopback() {
            taken.count(address, now)?;
        }
        if taken.open.len() >= JOIN_CONCURRENT_MAX {
            let dropped = taken.take_one_for(address).ok_or("too many join exchanges at once")?;
            tracing::debug!(host = %dropped.address, "too many join exchanges at once: dropped one");
        }
        taken.last += 1;
        let (id, (crowded_out, told)) = (taken.last, oneshot::channel());
        taken.open.push_back(OpenExchange { id, address, _crowded_out: crowded_out });
        Ok(JoinSlot { slots: self.clone(), id, told: Some(told) })
    }
}

impl OpenExchanges {
    fn count(&mut self, address: IpAddr, now: Instant) -> Result<(), &'static str> {
        if self.addresses.len() >= ADDRESSES_MAX && !self.addresses.contains_key(&address) {
            let open = &self.open;
            self.addresses.retain(|address, usage| {
                usage.used_at(now) > 0 || open.iter().any(|one| one.address == *address)
            });
            if self.addresses.len() >= ADDRESSES_MAX {
                return Err("too many addresses had join exchanges just now");
            }
        }
        let open = self.open.iter().filter(|one| one.address == address).count();
        let usage = self.addresses.entry(address).or_insert(AddressUse { used: 0, since: now });
        let used = usage.used_at(now);
        if open >= OF_ADDRESS_MAX {
            return Err("too many join exchanges at once from one address");
        }
        if used >= BURST {
            return Err("too many join exchanges in a row from one address");
        }
        (usage.used, usage.since) = (used + 1, now);
        Ok(())
    }

    /// The place that somebody at another address gets; none for an address that has most of them itself.
    fn take_one_for(&mut self, address: IpAddr) -> Option<OpenExchange> {
        let mut of_addresses = BTreeMap::<IpAddr, usize>::new();
        self.open.iter().for_each(|one| *of_addresses.entry(one.address).or_default() += 1);
        let most = of_addresses.values().copied().max()?;
        if of_addresses.get(&address) == Some(&most) {
            return None;
        }
        let oldest = self.open.iter().position(|one| of_addresses[&one.address] == most)?;
        self.open.remove(oldest)
    }
}

impl AddressUse {
    fn used_at(&self, now: Instant) -> u32 {
        let given_back = now.saturating_duration_since(self.since).as_millis() / ONE_IN.as_millis();
        self.used.saturating_sub(u32::try_from(given_back).unwrap_or(u32::MAX))
    }
}

impl JoinSlot {
    /// Waits until it is somebody else's.
    pub(crate) async fn crowded_out(&mut self) {
        if let Some(told) = &mut self.told {
            let _ = told.await;
            self.told = None;
        }
    }
}

impl Drop for JoinSlot {
    fn drop(&mut self) {
        self.slots.0.lock().open.retain(|one| one.id != self.id);
    }
}

/// One host has as many IPv6 addresses as it likes, all of one network.
pub(crate) fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) if !v6.is_loopback() => {
            IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX)))
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(n: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, n])
    }

    #[test]
    fn one_address_keeps_no_other_out() {
        let places = Arc::new(JoinSlots::default());
        let now = Instant::now();
        let mut held = Vec::new();
        while let Ok(place) = places.take_at(address(1), now) {
            held.push(place);
        }
        assert_eq!(held.len(), OF_ADDRESS_MAX);
        let other = places.take_at(address(2), now);
        assert!(other.is_ok());
        drop(held);
        assert!(places.take_at(address(1), now).is_ok(), "a place that is given back");
    }

    #[tokio::test]
    async fn one_host_with_many_addresses_crowds_out_its_own_exchanges() {
        let places = Arc::new(JoinSlots::default());
        let (now, is_open) = (Instant::now(), async |place: &mut JoinSlot| {
            tokio::time::timeout(Duration::from_millis(20), place.crowded_out()).await.is_err()
        });
        let mut held: Vec<_> =
            [1, 1, 1, 2, 2, 2, 3, 3].map(|n| places.take_at(address(n), now).unwrap()).into();
        let mut honest = places.take_at(address(9), now).unwrap();
        assert!(!is_open(&mut held[0]).await, "the oldest of who has most");
        assert!(is_open(&mut held[1]).await && is_open(&mut honest).await);
        let more: Vec<_> = [2, 3, 3, 1].map(|n| places.take_at(address(n), now)).into();
        assert_eq!(more.iter().filter(|place| place.is_ok()).count(), 2, "3 of one address at most");
        assert!(is_open(&mut honest).await, "who has one place keeps it");
        assert_eq!(places.0.lock().open.len(), JOIN_CONCURRENT_MAX);
    }

    #[test]
    fn an_address_is_served_in_its_rate_and_all_in_their_number() {
        let places = Arc::new(JoinSlots::default());
        let now = Instant::now();
        let served = (0..100).filter(|_| places.take_at(address(1), now).is_ok()).count();
        assert_eq!(served as u32, BURST);
        let later = now + 4 * ONE_IN;
        let served = (0..100).filter(|_| places.take_at(address(1), later).is_ok()).count();
        assert_eq!(served, 4);
        let held: Vec<_> = (10..100).filter_map(|n| places.take_at(address(n), now).ok()).collect();
        assert_eq!((held.len(), places.0.lock().open.len()), (90, JOIN_CONCURRENT_MAX));
        drop(held);
        assert_eq!(places.0.lock().open.len(), 0);
    }

    #[test]
    fn this_machine_is_not_counted_and_a_network_of_ipv6_is_one_address() {
        let places = Arc::new(JoinSlots::default());
        let now = Instant::now();
        let own = IpAddr::from([127, 0, 0, 1]);
        assert!((0..100).all(|_| places.take_at(own, now).is_ok()));
        let v6 = |low: u16| IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, low]);
        let held: Vec<_> = (0..20).filter_map(|n| places.take_at(v6(n), now).ok()).collect();
        assert_eq!(held.len(), OF_ADDRESS_MAX);
    }

    #[test]
    fn addresses_are_forgotten_when_their_time_is_over() {
        let places = Arc::new(JoinSlots::default());
        let now = Instant::now();
        let many = |n: usize| IpAddr::from([10, 1, (n / 256) as u8, (n % 256) as u8]);
        assert!((0..ADDRESSES_MAX).all(|n| places.take_at(many(n), now).is_ok()));
        assert!(places.take_at(address(1), now).is_err());
        assert!(places.take_at(address(1), now + 2 * ONE_IN).is_ok());
        assert!(places.0.lock().addresses.len() < 3);
    }
}
