//! Command lines of programs that run virtual machines, or lead to them.

use std::collections::HashMap;
use std::path::PathBuf;

use beeline_vm_protocol::PORT;
use beeline_vm_protocol::address::Address;
use serde_json::Value;

/// The word in the name of a serial port that is a proxy's. Others are not connected to:
/// whoever else a port is for, QEMU's guest agent for one, would not understand a greeting.
const OURS: &str = "beeline";

/// The program that gives a machine of QEMU's a vsock.
pub const VHOST_DEVICE: &str = "vhost-device-vsock";

/// The facts of a command line.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct CommandLine {
    /// The program, as the user knows it.
    pub program: &'static str,
    pub name: Option<String>,
    /// The places where a proxy may listen. Paths are as the program sees them.
    pub places: Vec<Address>,
    /// Sockets of QEMU's monitor.
    pub qmp: Vec<PathBuf>,
    /// Sockets by which QEMU has a vsock device in another process, or by which such a process gives
    /// it.
    pub vhost: Vec<PathBuf>,
    /// A file that says more (Firecracker).
    pub config: Option<PathBuf>,
}

/// True for the name of a serial port that is a proxy's.
pub fn is_ours(name: &str) -> bool {
    name.contains(OURS)
}

/// Returns what a command line says; `None` if it is of no program that is known here.
pub fn read(words: &[String]) -> Option<CommandLine> {
    let program = words.first()?.rsplit('/').next()?;
    match program {
        _ if program.starts_with("qemu-system-") => Some(qemu(words)),
        "qemu-kvm" | "kvm" => Some(qemu(words)),
        "cloud-hypervisor" => Some(cloud_hypervisor(words)),
        "firecracker" => Some(firecracker(words)),
        VHOST_DEVICE => Some(vhost_device(words)),
        _ => None,
    }
}

/// The properties in an option's argument.
type Properties = HashMap<String, String>;

/// Reads `first,key=value,key`, where two commas are one of a value, or JSON. The value of a first
/// word without `=` is the one of `implied`.
fn properties(text: &str, implied: &str) -> Properties {
    if text.starts_with('{') {
        let object: serde_json::Map<String, Value> = serde_json::from_str(text).unwrap_or_default();
        let as_text = |value: Value| match value {
            Value::String(text) => text,
            other => other.to_string(),
        };
        return object
            .into_iter()
            .map(|(key, value)| (key, as_text(value)))
            .collect();
    }
    const COMMA: &str = "\0";
    let text = text.replace(",,", COMMA);
    let parts = text.split(',').enumerate().map(|(at, part)| {
        let part = part.replace(COMMA, ",");
        match part.split_once('=') {
            Some((key, value)) => (key.to_owned(), value.to_owned()),
            None if at == 0 => (implied.to_owned(), part),
            None => (part, "on".to_owned()),
        }
    });
    parts.collect()
}

/// Returns options with their arguments, which are the next words, or stand behind `=`.
fn options(words: &[String]) -> impl Iterator<Item = (&str, &str)> {
    words.iter().enumerate().filter_map(|(at, word)| {
        let option = word.strip_prefix('-')?;
        let option = option.strip_prefix('-').unwrap_or(option);
        match option.split_once('=') {
            Some((option, argument)) => Some((option, argument)),
            None => Some((option, words.get(at + 1)?.as_str())),
        }
    })
}

/// Returns the address of a machine by the kernel's vsock.
fn vsock(cid: &str) -> Option<Address> {
    let cid = match cid.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok()?,
        None => cid.parse().ok()?,
    };
    Some(Address::Vsock { cid, port: PORT })
}

fn uds(path: &str) -> Address {
    Address::Uds {
        path: path.into(),
        port: PORT,
    }
}

/// True for a socket at which QEMU listens, in old and new words.
fn listens(socket: &Properties) -> bool {
    let word = socket.get("server").map(String::as_str);
    matches!(word, Some("on" | "yes" | "true"))
}

fn qemu(words: &[String]) -> CommandLine {
    let mut line = CommandLine {
        program: "QEMU",
        ..CommandLine::default()
    };
    let of = |wanted: &'static str, implied: &'static str| {
        options(words)
            .filter(move |(option, _)| *option == wanted)
            .map(move |(_, text)| properties(text, implied))
    };
    line.name = of("name", "guest").find_map(|mut name| name.remove("guest"));
    let sockets: HashMap<String, Properties> = of("chardev", "backend")
        .filter(|socket| socket.get("backend").is_some_and(|is| is == "socket"))
        .filter_map(|socket| Some((socket.get("id")?.clone(), socket)))
        .collect();
    let path_of = |id: Option<&String>, must_listen: bool| {
        let socket = sockets.get(id?)?;
        let fits = !must_listen || listens(socket);
        socket.get("path").filter(|_| fits).map(PathBuf::from)
    };
    for device in of("device", "driver") {
        let driver = device.get("driver").map_or("", String::as_str);
        if driver.starts_with("vhost-vsock-") {
            line.places
                .extend(device.get("guest-cid").and_then(|cid| vsock(cid)));
        } else if driver.starts_with("vhost-user-vsock-") {
            line.vhost.extend(path_of(device.get("chardev"), false));
        } else if driver == "virtserialport" && device.get("name").is_some_and(|name| is_ours(name))
        {
            let path = path_of(device.get("chardev"), true);
            line.places
                .extend(path.map(|path| Address::Serial { path }));
        }
    }
    for monitor in of("mon", "chardev") {
        if monitor.get("mode").is_some_and(|mode| mode == "control") {
            line.qmp.extend(path_of(monitor.get("chardev"), true));
        }
    }
    for text in options(words).filter(|(option, _)| matches!(*option, "qmp" | "qmp-pretty")) {
        let Some(socket) = text.1.strip_prefix("unix:") else {
            continue;
        };
        let socket = properties(socket, "path");
        if listens(&socket) {
            line.qmp.extend(socket.get("path").map(PathBuf::from));
        }
    }
    line
}

fn cloud_hypervisor(words: &[String]) -> CommandLine {
    let of_vsock = options(words).filter(|(option, _)| *option == "vsock");
    let places = of_vsock.filter_map(|(_, text)| {
        let vsock = properties(text, "cid");
        vsock.get("socket").map(|path| uds(path))
    });
    CommandLine {
        program: "Cloud Hypervisor",
        places: places.collect(),
        ..CommandLine::default()
    }
}

fn firecracker(words: &[String]) -> CommandLine {
    let of = |wanted: &str| {
        let mut found = options(words).filter(|(option, _)| *option == wanted);
        found.next().map(|(_, argument)| argument.to_owned())
    };
    CommandLine {
        program: "Firecracker",
        name: of("id"),
        config: of("config-file").map(PathBuf::from),
        ..CommandLine::default()
    }
}

/// Returns the place that a configuration file of Firecracker's names.
pub fn of_config(text: &str) -> Option<Address> {
    let config: Value = serde_json::from_str(text).ok()?;
    config["vsock"]["uds_path"].as_str().map(uds)
}

fn vhost_device(words: &[String]) -> CommandLine {
    let mut line = CommandLine {
        program: VHOST_DEVICE,
        ..CommandLine::default()
    };
    let machines = options(words).filter(|(option, _)| *option == "vm");
    let mut devices: Vec<_> = machines.map(|(_, text)| properties(text, "")).collect();
    // One machine may be described by options of their own.
    let own = options(words).map(|(option, argument)| (option.to_owned(), argument.to_owned()));
    devices.push(own.collect());
    for device in devices {
        line.places
            .extend(device.get("uds-path").map(|path| uds(path)));
        line.vhost.extend(device.get("socket").map(PathBuf::from));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Option<CommandLine> {
        let words: Vec<_> = line.split(' ').map(str::to_owned).collect();
        read(&words)
    }

    fn places(line: &str) -> Vec<String> {
        let places = of(line).unwrap().places;
        places.iter().map(Address::to_string).collect()
    }

    #[test]
    fn qemus_devices_and_monitors_are_found() {
        let line = "/usr/bin/qemu-system-x86_64 -name guest=web-3,debug-threads=on -m 4G \
            -device vhost-vsock-pci,id=v,guest-cid=3 -qmp unix:/run/a,,b.qmp,server=on,wait=off \
            -chardev socket,id=s,path=/run/port,server=on,wait=off -device virtserialport,chardev=s,name=beeline.0 \
            -chardev socket,id=t,path=/run/agent,server=on -device virtserialport,chardev=t,name=org.qemu.guest_agent.0 \
            -chardev socket,id=m,path=/run/mon,server,nowait -mon chardev=m,mode=control \
            -chardev socket,id=h,path=/run/hmp,server=on -mon chardev=h,mode=readline \
            -chardev socket,id=u,path=/run/vhost -device vhost-user-vsock-pci,chardev=u";
        assert_eq!(places(line), ["vsock:3:8790", "serial:/run/port"]);
        let found = of(line).unwrap();
        assert_eq!(found.name.as_deref(), Some("web-3"));
        assert_eq!(found.qmp, ["/run/mon", "/run/a,b.qmp"].map(PathBuf::from));
        assert_eq!(found.vhost, ["/run/vhost"].map(PathBuf::from));
        // As libvirt writes them.
        let line = "qemu-kvm -name x -device {\"driver\":\"vhost-vsock-pci\",\"guest-cid\":7,\"id\":\"vsock0\"}";
        assert_eq!(places(line), ["vsock:7:8790"]);
        assert_eq!(of(line).unwrap().name.as_deref(), Some("x"));
    }

    #[test]
    fn other_monitors_lead_to_their_sockets() {
        let line = "cloud-hypervisor --kernel k --vsock cid=3,socket=/run/ch.vsock";
        assert_eq!(places(line), ["uds:/run/ch.vsock:8790"]);
        let line = "firecracker --id vm7 --config-file=vm.json --no-api";
        let found = of(line).unwrap();
        assert_eq!(found.config, Some("vm.json".into()));
        assert_eq!(found.name.as_deref(), Some("vm7"));
        let config = "{\"vsock\":{\"guest_cid\":3,\"uds_path\":\"./v.sock\"}}";
        assert_eq!(of_config(config).unwrap().to_string(), "uds:./v.sock:8790");
        let device = "vhost-device-vsock --vm guest-cid=3,uds-path=/a,socket=/b --vm guest-cid=4,uds-path=/c,socket=/d";
        assert_eq!(places(device), ["uds:/a:8790", "uds:/c:8790"]);
        let device = of("vhost-device-vsock --guest-cid=3 --socket=/b --uds-path=/a").unwrap();
        assert_eq!(device.places, [uds("/a")]);
        assert_eq!(device.vhost, ["/b"].map(PathBuf::from));
    }

    #[test]
    fn what_makes_no_sense_is_left_out() {
        for line in ["", "bash -c qemu-system-x86_64", "qemu-img create x"] {
            assert_eq!(of(line), None, "{line}");
        }
        for line in [
            "qemu-system-x86_64 -device",
            "qemu-system-x86_64 -device vhost-vsock-pci,guest-cid=x -device {\"driver\" -device ,,=,",
            "qemu-system-x86_64 -device virtserialport,chardev=no,name=beeline -qmp unix:,server=on -mon",
            "qemu-system-x86_64 -qmp tcp:localhost:1,server=on -qmp unix:/a -chardev socket,id=,path=",
        ] {
            assert_eq!(places(line), [""; 0], "{line}");
        }
        assert_eq!(of_config("{"), None);
        assert_eq!(of_config("[]"), None);
    }
}
