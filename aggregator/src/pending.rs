//! Places for pending handshakes. In: the addresses of peers that connect, are welcomed, and disconnect. Out: whether
//! there is a place for one more. Called by the acceptor.
//!
//! The owner of a network has all its addresses. So unknown addresses count by network: /24 of IPv4 and /64 of IPv6. A
//! part of the places is reserved for addresses from which an agent was welcomed before. So not even many networks
//! together can stop a host of the site from reconnecting.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};

/// Most pending handshakes at once.
const MOST: usize = 1_024;
/// Those of them that only known addresses get.
const RESERVED: usize = 256;
/// Most of one network of strangers, and of one known address.
const MOST_OF_ONE: usize = 256;
/// Most addresses that are known: those of the newest welcomes. (All chosen.)
const MOST_KNOWN: usize = 16_384;

/// Who holds a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Holder {
    /// An address from which an agent was welcomed.
    Known(IpAddr),
    /// Any address of a network, by the first one.
    Stranger(IpAddr),
}

/// The places.
#[derive(Debug, Default)]
pub(crate) struct Places {
    held: BTreeMap<Holder, usize>,
    known: BTreeMap<IpAddr, u64>,
    /// Known addresses by the welcome they were last known by.
    order: VecDeque<(u64, IpAddr)>,
    welcomes: u64,
}

impl Places {
    /// Takes a place; `None` when there are too many already. Also how many there are.
    pub(crate) fn take(&mut self, address: IpAddr) -> (Option<Holder>, usize) {
        let address = address.to_canonical();
        let all: usize = self.held.values().sum();
        let (holder, most) = match self.known.contains_key(&address) {
            true => (Holder::Known(address), MOST),
            false => (Holder::Stranger(network(address)), MOST - RESERVED),
        };
        // Strangers leave the reserve to the known ones, who may use all that is free.
        let taken = match holder {
            Holder::Known(_) => all,
            Holder::Stranger(_) => self.strangers(),
        };
        let held = self.held.get(&holder).copied().unwrap_or(0);
        if all >= MOST || taken >= most || held >= MOST_OF_ONE {
            return (None, all);
        }
        self.held.insert(holder, held + 1);
        (Some(holder), all)
    }

    fn strangers(&self) -> usize {
        self.held.iter().filter(|(holder, _)| matches!(holder, Holder::Stranger(_))).map(|(_, count)| count).sum()
    }

    /// Gives a place back.
    pub(crate) fn give_back(&mut self, holder: Holder) {
        if let Some(count) = self.held.get_mut(&holder) {
            *count -= 1;
            if *count == 0 {
                self.held.remove(&holder);
            }
        }
    }

    /// An agent was welcomed from this address.
    pub(crate) fn welcomed(&mut self, address: IpAddr) {
        let address = address.to_canonical();
        self.welcomes += 1;
        self.known.insert(address, self.welcomes);
        self.order.push_back((self.welcomes, address));
        while self.known.len() > MOST_KNOWN || self.order.len() > 2 * MOST_KNOWN {
            let Some((welcome, address)) = self.order.pop_front() else { return };
            // It may have been welcomed again since.
            if self.known.get(&address) == Some(&welcome) {
                self.known.remove(&address);
            }
        }
    }
}

fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            let [a, b, c, _] = address.octets();
            IpAddr::from([a, b, c, 0])
        }
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    /// Takes places from ever new addresses until there is none; returns how many were got.
    fn flood(places: &mut Places, address: impl Fn(u32) -> IpAddr) -> usize {
        (0..2_000).filter(|number| places.take(address(*number)).0.is_some()).count()
    }

    #[test]
    fn addresses_of_one_network_count_as_one() {
        let mut places = Places::default();
        let of_a_host = |number: u32| IpAddr::from(Ipv6Addr::from((0x2001_0db8_u128 << 96) + u128::from(number)));
        assert_eq!(flood(&mut places, of_a_host), MOST_OF_ONE, "a /64 of IPv6 has 2^64 addresses");
        let of_a_network = |number: u32| IpAddr::from([198, 51, 100, u8::try_from(number % 256).unwrap()]);
        assert_eq!(flood(&mut places, of_a_network), MOST_OF_ONE);
        let mapped = |number: u32| {
            let IpAddr::V4(address) = of_a_network(number) else { unreachable!() };
            IpAddr::V6(address.to_ipv6_mapped())
        };
        assert_eq!(flood(&mut places, mapped), 0, "the same network, written otherwise");
        assert!(places.take(IpAddr::from([203, 0, 113, 1])).0.is_some());
    }

    #[test]
    fn many_networks_leave_the_reserve_to_known_addresses() {
        let mut places = Places::default();
        let home = IpAddr::from([192, 0, 2, 7]);
        places.welcomed(home);
        let anywhere = |number: u32| IpAddr::from(Ipv4Addr::from((10_u32 << 24) + (number << 8)));
        assert_eq!(flood(&mut places, anywhere), MOST - RESERVED);
        let (held, _) = places.take(home);
        assert_eq!(held, Some(Holder::Known(home)));
        assert_eq!(flood(&mut places, |_| home), MOST_OF_ONE - 1, "and no known address takes all of it");
        assert!(places.take(IpAddr::from([192, 0, 2, 8])).0.is_none(), "its neighbour is a stranger");
        // A place that is given back is free again.
        places.give_back(Holder::Stranger(network(anywhere(5))));
        assert!(places.take(anywhere(5)).0.is_some());
    }

    #[test]
    fn what_is_known_has_a_bound() {
        let mut places = Places::default();
        let address = |number: u32| IpAddr::from(number.to_be_bytes());
        for number in 0..3 * u32::try_from(MOST_KNOWN).unwrap() {
            places.welcomed(address(number));
            places.welcomed(address(0));
        }
        assert_eq!(places.known.len(), MOST_KNOWN);
        assert!(places.known.contains_key(&address(0)), "it was welcomed last");
        assert!(places.order.len() <= 2 * MOST_KNOWN);
    }
}
