//! The places that only a kernel has, by the attach types of the programs there.

use std::os::fd::{AsFd, OwnedFd};

use beeline_kernel::link::Target;
use beeline_runtime::backend::Backend;
use beeline_supervisor::Call;
use beeline_uapi::{AttachType, Errno};

use crate::host_kernel::{self, shares_namespace};
use crate::refused::NOT_YET;

/// A kind of place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// A cgroup, named by a descriptor of its directory.
    Cgroup,
    /// A network device, by its number.
    Device,
    /// A network namespace, by a descriptor.
    Network,
    /// A hook of netfilter, in the caller's network namespace.
    Netfilter,
    /// A map of sockets, by a descriptor.
    Sockets,
    /// The one that the program was loaded for, such as a hook of the kernel's security modules.
    Own,
    /// An iterator, for which the program was loaded.
    Iterator,
}

impl Place {
    /// Returns the kind of place of programs with an attach type. None for those that are not passed
    /// on: places in programs, and in the kernel's own structures.
    fn of(kind: AttachType) -> Option<Self> {
        match kind {
            AttachType::CGROUP_INET_INGRESS
            | AttachType::CGROUP_INET_EGRESS
            | AttachType::CGROUP_INET_SOCK_CREATE
            | AttachType::CGROUP_SOCK_OPS
            | AttachType::CGROUP_DEVICE
            | AttachType::CGROUP_INET4_BIND
            | AttachType::CGROUP_INET6_BIND
            | AttachType::CGROUP_INET4_CONNECT
            | AttachType::CGROUP_INET6_CONNECT
            | AttachType::CGROUP_INET4_POST_BIND
            | AttachType::CGROUP_INET6_POST_BIND
            | AttachType::CGROUP_UDP4_SENDMSG
            | AttachType::CGROUP_UDP6_SENDMSG
            | AttachType::CGROUP_SYSCTL
            | AttachType::CGROUP_UDP4_RECVMSG
            | AttachType::CGROUP_UDP6_RECVMSG
            | AttachType::CGROUP_GETSOCKOPT
            | AttachType::CGROUP_SETSOCKOPT
            | AttachType::CGROUP_INET4_GETPEERNAME
            | AttachType::CGROUP_INET6_GETPEERNAME
            | AttachType::CGROUP_INET4_GETSOCKNAME
            | AttachType::CGROUP_INET6_GETSOCKNAME
            | AttachType::CGROUP_INET_SOCK_RELEASE
            | AttachType::CGROUP_UNIX_CONNECT
            | AttachType::CGROUP_UNIX_SENDMSG
            | AttachType::CGROUP_UNIX_RECVMSG
            | AttachType::CGROUP_UNIX_GETPEERNAME
            | AttachType::CGROUP_UNIX_GETSOCKNAME
            | AttachType::LSM_CGROUP => Some(Self::Cgroup),
            AttachType::XDP
            | AttachType::TCX_INGRESS
            | AttachType::TCX_EGRESS
            | AttachType::NETKIT_PRIMARY
            | AttachType::NETKIT_PEER => Some(Self::Device),
            AttachType::FLOW_DISSECTOR | AttachType::SK_LOOKUP => Some(Self::Network),
            AttachType::SK_SKB_STREAM_PARSER
            | AttachType::SK_SKB_STREAM_VERDICT
            | AttachType::SK_SKB_VERDICT
            | AttachType::SK_MSG_VERDICT => Some(Self::Sockets),
            AttachType::NETFILTER => Some(Self::Netfilter),
            AttachType::LSM_MAC => Some(Self::Own),
            AttachType::TRACE_ITER => Some(Self::Iterator),
            _ => None,
        }
    }

    /// Returns the kind of place for a thread of the tool's, or the reason, in words, for which the
    /// kernel is not asked.
    pub(crate) fn for_tool(
        backend: &dyn Backend,
        tid: i32,
        kind: AttachType,
    ) -> Result<Self, String> {
        if let Some(why) = host_kernel::refusal(backend, tid) {
            return Err(why);
        }
        let place = Self::of(kind).ok_or(NOT_YET)?;
        place.check(tid)?;
        Ok(place)
    }

    /// Returns the place as Beeline can name it to the kernel. `named` is the tool's descriptor or
    /// number.
    ///
    /// # Errors
    ///
    /// Those of [`Call::tool_file`].
    pub(crate) fn file(self, call: &Call<'_>, named: i32) -> Result<Option<OwnedFd>, Errno> {
        match self {
            Self::Cgroup | Self::Network | Self::Sockets => call.tool_file(named).map(Some),
            Self::Device | Self::Netfilter | Self::Own | Self::Iterator => Ok(None),
        }
    }

    /// Returns the place that `named` is, or of which [`Self::file`] is the file.
    pub(crate) fn target(self, named: i32, file: Option<&OwnedFd>) -> Target<'_> {
        match (self, file) {
            (Self::Device, _) => Target::Device(named.cast_unsigned()),
            (_, Some(file)) => Target::File(file.as_fd()),
            _ => Target::Own,
        }
    }

    /// Fails with the reason, in words, if Beeline would name another place by what a thread of the
    /// tool's says.
    pub(crate) fn check(self, tid: i32) -> Result<(), &'static str> {
        const PID: (&str, &str) = ("pid", "the tool is in another PID namespace");
        const CGROUP: (&str, &str) = ("cgroup", "the tool is in another cgroup namespace");
        let all: &[_] = match self {
            Self::Iterator => &[PID, CGROUP],
            Self::Cgroup
            | Self::Device
            | Self::Network
            | Self::Netfilter
            | Self::Sockets
            | Self::Own => &[],
        };
        let other = all.iter().find(|(kind, _)| !shares_namespace(tid, kind));
        other.map_or(Ok(()), |(_, why)| Err(*why))
    }
}
