//! Test runs of programs with a `struct __sk_buff` (`bpf_prog_test_run_skb`,
//! `bpf_prog_test_run_flow_dissector`).

use beeline_runtime::packet::{LinkHeader, Packet, SKB_LONGEST};
use beeline_supervisor::{Answer, Reply};
use beeline_uapi::context::{FlowKeys, SkBuff};
use beeline_uapi::fields::u32_at;
use beeline_uapi::linux::PAGE_SIZE;
use beeline_uapi::packet::*;
use beeline_uapi::{Errno, ProgramType, flags};
use zerocopy::IntoBytes;

use super::io::{Finished, Io};
use super::xdp::LOOPBACK;
use super::{TestRuns, has_device};
use crate::objects::ProgramObject;
use crate::refused::{NOT_YET, by_kernel_only};
use crate::syscalls::attr::TestRun;

/// The bytes of an Ethernet header.
const HEADER: usize = ETH_HLEN as usize;

impl TestRuns<'_> {
    pub(super) fn skb(&self, wanted: &TestRun, program: &ProgramObject, io: &Io<'_>) -> Answer {
        let size = wanted.data_in.len;
        let known = flags::TEST_SKB_CHECKSUM_COMPLETE;
        if wanted.flags & !known != 0 || wanted.cpu != 0 || wanted.batch_size != 0 {
            return Err(Errno::EINVAL);
        }
        if !(ETH_HLEN..=SKB_LONGEST).contains(&size) {
            return Err(Errno::EINVAL);
        }
        if wanted.flags & known != 0 {
            let what = "test runs with BPF_F_TEST_SKB_CHECKSUM_COMPLETE";
            self.backend.unsupported(&by_kernel_only(what, NOT_YET));
            return Err(Errno::ENOTSUPP);
        }
        let bytes = io.read(&wanted.data_in)?;
        let context = io.context::<SkBuff>()?;
        let header = match program.prog_type {
            ProgramType::SCHED_CLS | ProgramType::SCHED_ACT => LinkHeader::Shown,
            _ => LinkHeader::Hidden,
        };
        let device = context.as_ref().map_or(0, |context| context.ifindex);
        if device > LOOPBACK && !has_device(device) {
            return Err(Errno::ENODEV);
        }
        check_network_header(&bytes)?;
        let mut packet = Packet::skb(&bytes, header).map_err(|error| error.errno())?;
        describe(&mut packet, &bytes);
        packet.skb_context().ifindex = device.max(LOOPBACK);
        if let Some(context) = &context {
            take(packet.skb_context(), context)?;
        }

        let result = self.on_packet(program, packet, wanted.repeat)?;
        let mut packet = result.packet;
        if header == LinkHeader::Hidden {
            packet.put_link_header();
        }
        let finished = Finished {
            retval: result.value as u32,
            duration: result.duration.as_nanos().try_into().unwrap_or(u32::MAX),
            direct: packet.direct_len(),
        };
        io.finish(&packet.bytes(), finished)?;
        if let Some(mut context) = context {
            give(packet.skb_context(), &mut context);
            io.put_context(context.as_bytes())?;
        }
        Ok(Reply::Value(0))
    }

    pub(super) fn flow_dissector(
        &self,
        wanted: &TestRun,
        program: &ProgramObject,
        io: &Io<'_>,
    ) -> Answer {
        let size = wanted.data_in.len;
        let is_size = (ETH_HLEN..=PAGE_SIZE as u32).contains(&size);
        if wanted.flags != 0 || wanted.cpu != 0 || wanted.batch_size != 0 || !is_size {
            return Err(Errno::EINVAL);
        }
        let bytes = io.read(&wanted.data_in)?;
        let context = io.context::<FlowKeys>()?;
        let flags = context.map_or(0, |context| context.flags);
        if context.is_some_and(|context| {
            context
                != FlowKeys {
                    flags,
                    ..FlowKeys::default()
                }
        }) {
            return Err(Errno::EINVAL);
        }
        let mut packet = Packet::skb(&bytes, LinkHeader::Shown).map_err(|error| error.errno())?;
        let keys = FlowKeys {
            nhoff: ETH_HLEN as u16,
            thoff: ETH_HLEN as u16,
            n_proto: u16_at(&bytes, 2 * ETH_ALEN),
            flags,
            ..FlowKeys::default()
        };
        packet.begin_with_keys(keys);

        let result = self.on_packet(program, packet, wanted.repeat)?;
        let mut packet = result.packet;
        let mut keys = packet.flow_keys();
        keys.nhoff = keys.nhoff.clamp(ETH_HLEN as u16, size as u16);
        keys.thoff = keys.thoff.clamp(keys.nhoff, size as u16);
        let finished = Finished {
            retval: result.value as u32,
            duration: result.duration.as_nanos().try_into().unwrap_or(u32::MAX),
            direct: size_of::<FlowKeys>(),
        };
        io.finish(keys.as_bytes(), finished)?;
        if let Some(context) = context {
            io.put_context(context.as_bytes())?;
        }
        Ok(Reply::Value(0))
    }
}

/// Checks that a packet of IP has at least the header of its version.
///
/// # Errors
///
/// `EINVAL` if not.
fn check_network_header(bytes: &[u8]) -> Result<(), Errno> {
    let least = match protocol(bytes) {
        ETH_P_IP => IPHDR_BYTES,
        ETH_P_IPV6 => IPV6HDR_BYTES,
        _ => 0,
    };
    match bytes.len() >= HEADER + least {
        true => Ok(()),
        false => Err(Errno::EINVAL),
    }
}

/// Fills in what the kernel finds out about a packet (`eth_type_trans`), and the socket that it
/// gives it.
fn describe(packet: &mut Packet, bytes: &[u8]) {
    let protocol = protocol(bytes);
    let skb = packet.skb_context();
    skb.protocol = protocol.to_be().into();
    skb.pkt_type = match bytes {
        [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, ..] => PACKET_BROADCAST,
        [first, ..] if first & 1 != 0 => PACKET_MULTICAST,
        // The loopback device's address.
        [0, 0, 0, 0, 0, 0, ..] => PACKET_HOST,
        _ => PACKET_OTHERHOST,
    };
    let network = bytes.get(HEADER..).unwrap_or_default();
    let words =
        |at: usize| -> [u32; 4] { std::array::from_fn(|word| u32_at(network, at + 4 * word)) };
    let (mut local, mut remote) = ([0; 4], [0; 4]);
    match protocol {
        ETH_P_IP => {
            skb.family = AF_INET;
            skb.local_ip4 = u32_at(network, IPHDR_SADDR);
            skb.remote_ip4 = u32_at(network, IPHDR_SADDR + size_of::<u32>());
        }
        ETH_P_IPV6 => {
            skb.family = AF_INET6;
            local = words(IPV6HDR_SADDR);
            remote = words(IPV6HDR_SADDR + size_of_val(&local));
        }
        _ => {}
    }
    (skb.local_ip6, skb.remote_ip6) = (local, remote);
    let (family, local_ip4, remote_ip4) = (skb.family, skb.local_ip4, skb.remote_ip4);
    let socket = packet.socket();
    socket.family = family;
    socket.state = TCP_CLOSE;
    socket.rx_queue_mapping = u32::MAX;
    (socket.src_ip4, socket.dst_ip4) = (local_ip4, remote_ip4);
    (socket.src_ip6, socket.dst_ip6) = (local, remote);
}

/// Returns the protocol that an Ethernet header announces (`eth_type_trans`).
fn protocol(bytes: &[u8]) -> u16 {
    let number = u16::from_be(u16_at(bytes, 2 * ETH_ALEN));
    let behind = bytes.get(HEADER..HEADER + 2);
    match behind {
        _ if number >= ETH_P_802_3_MIN => number,
        Some([0xff, 0xff]) => ETH_P_802_3,
        _ => ETH_P_802_2,
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    let bytes = bytes
        .get(at..at + 2)
        .and_then(|bytes| bytes.try_into().ok());
    bytes.map_or(0, u16::from_ne_bytes)
}

/// Takes over the fields that a tool may set (`convert___skb_to_skb`).
///
/// # Errors
///
/// `EINVAL` if another one is not 0, or if sizes contradict each other.
fn take(skb: &mut SkBuff, given: &SkBuff) -> Result<(), Errno> {
    let taken = SkBuff {
        mark: given.mark,
        priority: given.priority,
        ingress_ifindex: given.ingress_ifindex,
        ifindex: given.ifindex,
        cb: given.cb,
        tstamp: given.tstamp,
        wire_len: given.wire_len,
        gso_segs: given.gso_segs,
        gso_size: given.gso_size,
        hwtstamp: given.hwtstamp,
        ..SkBuff::default()
    };
    if taken != *given || given.gso_segs > GSO_MAX_SEGS {
        return Err(Errno::EINVAL);
    }
    let wire_len = match given.wire_len {
        0 => skb.len,
        len if len < skb.len || len > GSO_LEGACY_MAX_SIZE => return Err(Errno::EINVAL),
        len => len,
    };
    *skb = SkBuff {
        mark: given.mark,
        priority: given.priority,
        ingress_ifindex: given.ingress_ifindex,
        cb: given.cb,
        tstamp: given.tstamp,
        wire_len,
        gso_segs: given.gso_segs,
        // 16 bits in the kernel.
        gso_size: given.gso_size & u32::from(u16::MAX),
        hwtstamp: given.hwtstamp,
        ..*skb
    };
    Ok(())
}

/// Gives the tool the fields that it gets back (`convert_skb_to___skb`).
fn give(skb: &SkBuff, context: &mut SkBuff) {
    *context = SkBuff {
        mark: skb.mark,
        priority: skb.priority,
        ingress_ifindex: skb.ingress_ifindex,
        ifindex: skb.ifindex,
        cb: skb.cb,
        tstamp: skb.tstamp,
        wire_len: skb.wire_len,
        gso_segs: skb.gso_segs,
        hwtstamp: skb.hwtstamp,
        ..*context
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the start of a packet with this in the place of the protocol.
    fn packet(number: u16, behind: [u8; 2]) -> Vec<u8> {
        let addresses = [2; 2 * ETH_ALEN];
        [&addresses[..], &number.to_be_bytes(), &behind].concat()
    }

    #[test]
    fn small_numbers_in_the_place_of_the_protocol_are_lengths() {
        assert_eq!(protocol(&packet(ETH_P_IPV6, [0, 0])), ETH_P_IPV6);
        assert_eq!(
            protocol(&packet(ETH_P_802_3_MIN - 1, [0xff, 0xff])),
            ETH_P_802_3
        );
        assert_eq!(protocol(&packet(0, [0, 0])), ETH_P_802_2);
        assert_eq!(protocol(&[0; HEADER]), ETH_P_802_2);
    }

    #[test]
    fn only_the_fields_of_the_kernel_are_taken() {
        let zeros = SkBuff::default;
        let take = |given: SkBuff| {
            let mut skb = SkBuff { len: 60, ..zeros() };
            take(&mut skb, &given).map(|()| skb)
        };
        let good = SkBuff {
            mark: 7,
            cb: [1, 2, 3, 4, 5],
            gso_size: 10,
            ..zeros()
        };
        let taken = take(good).expect("fields that may be set");
        assert_eq!((taken.mark, taken.cb, taken.gso_size), (7, good.cb, 10));
        assert_eq!((taken.len, taken.wire_len), (60, 60));
        for bad in [
            SkBuff { len: 60, ..zeros() },
            SkBuff { hash: 1, ..zeros() },
            SkBuff {
                tstamp_type: 1,
                ..zeros()
            },
            SkBuff {
                wire_len: 59,
                ..zeros()
            },
            SkBuff {
                wire_len: GSO_LEGACY_MAX_SIZE + 1,
                ..zeros()
            },
            SkBuff {
                gso_segs: GSO_MAX_SEGS + 1,
                ..zeros()
            },
        ] {
            assert_eq!(take(bad), Err(Errno::EINVAL), "{bad:?}");
        }
    }
}
