//! Test runs of `xdp` programs (`bpf_prog_test_run_xdp`).

use beeline_runtime::packet::{Packet, XDP_DIRECT};
use beeline_supervisor::{Answer, Reply};
use beeline_uapi::context::XdpMd;
use beeline_uapi::linux::PAGE_SIZE;
use beeline_uapi::packet::*;
use beeline_uapi::{AttachType, Errno, flags};
use zerocopy::IntoBytes;

use super::io::{Finished, Io};
use super::{TestRuns, has_device};
use crate::objects::ProgramObject;
use crate::refused::{NOT_YET, by_kernel_only};
use crate::syscalls::attr::TestRun;

/// The number of the device that a packet comes from if the tool names none: the loopback device.
pub(super) const LOOPBACK: u32 = 1;

impl TestRuns<'_> {
    pub(super) fn xdp(&self, wanted: &TestRun, program: &ProgramObject, io: &Io<'_>) -> Answer {
        let is_live = wanted.flags & flags::TEST_XDP_LIVE_FRAMES != 0;
        let elsewhere = [AttachType::XDP_DEVMAP, AttachType::XDP_CPUMAP];
        if elsewhere.contains(&program.expected_attach_type)
            || wanted.flags & !flags::TEST_XDP_LIVE_FRAMES != 0
        {
            return Err(Errno::EINVAL);
        }
        if is_live {
            if wanted.batch_size > TEST_XDP_MAX_BATCH {
                return Err(Errno::E2BIG);
            }
            let what = "test runs with BPF_F_TEST_XDP_LIVE_FRAMES";
            self.backend.unsupported(&by_kernel_only(what, NOT_YET));
            return Err(Errno::ENOTSUPP);
        }
        if wanted.batch_size != 0 {
            return Err(Errno::EINVAL);
        }
        let context = io.context::<XdpMd>()?;
        let size = wanted.data_in.len;
        let (mut meta, mut direct) = (0, size);
        if let Some(context) = &context {
            if context.data_meta != 0 || context.data_end > size || context.data > context.data_end
            {
                return Err(Errno::EINVAL);
            }
            (meta, direct) = (context.data, context.data_end);
            let room = XDP_PACKET_HEADROOM
                .saturating_sub(meta)
                .saturating_sub(XDP_FRAME_BYTES);
            if !meta.is_multiple_of(4) || meta > XDP_METALEN_MAX.min(room) {
                return Err(Errno::EINVAL);
            }
        }
        let direct = direct.min(XDP_DIRECT + meta);
        if size.saturating_sub(meta) < ETH_HLEN {
            return Err(Errno::EINVAL);
        }
        // Before it is read: the tool can name any size.
        if (size - direct).div_ceil(PAGE_SIZE as u32) > MAX_SKB_FRAGS {
            return Err(Errno::ENOMEM);
        }
        let bytes = io.read(&wanted.data_in)?;
        let (device, queue) = received_by(context.as_ref())?;
        let mut packet =
            Packet::xdp(&bytes, meta as usize, direct as usize).map_err(|error| error.errno())?;
        let shown = packet.xdp_context();
        (shown.ingress_ifindex, shown.rx_queue_index) = (device, queue);

        let result = self.on_packet(program, packet, wanted.repeat)?;
        let mut packet = result.packet;
        let (meta, direct) = (packet.meta_len(), packet.direct_len());
        let finished = Finished {
            retval: result.value as u32,
            duration: result.duration.as_nanos().try_into().unwrap_or(u32::MAX),
            direct: meta + direct,
        };
        io.finish(&packet.bytes(), finished)?;
        if let Some(mut context) = context {
            context.data = meta as u32;
            context.data_end = (meta + direct) as u32;
            io.put_context(context.as_bytes())?;
        }
        Ok(Reply::Value(0))
    }
}

/// Returns the device and its queue that the packet comes from (`xdp_convert_md_to_buff`).
fn received_by(context: Option<&XdpMd>) -> Result<(u32, u32), Errno> {
    let Some(context) = context else {
        return Ok((LOOPBACK, 0));
    };
    let (device, queue) = (context.ingress_ifindex, context.rx_queue_index);
    if context.egress_ifindex != 0 || (device == 0 && queue != 0) {
        return Err(Errno::EINVAL);
    }
    match device {
        0 => Ok((LOOPBACK, 0)),
        _ if !has_device(device) => Err(Errno::ENODEV),
        // Devices with several queues are not looked at.
        _ if queue != 0 => Err(Errno::EINVAL),
        _ => Ok((device, queue)),
    }
}
