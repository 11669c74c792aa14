//! The processes of a guest: QEMU, its vsock device, and the shell that ends them with the tests.

use super::kit::Kit;
use super::{Backing, Options};
use crate::Lines;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Starts the vsock device, then QEMU behind it. Ends them and removes the folder when QEMU ends,
/// or when its own input does, which happens however the tests end.
const KEEPER: &str = r#"
folder=$1 vhost=$2
shift 2
"$vhost" --vm "guest-cid=3,uds-path=$folder/vsock,socket=$folder/vhost,tx-buffer-size=65536,queue-size=1024" &
device=$!
while [ ! -S "$folder/vhost" ]; do
    kill -0 $device || exit 1
    sleep 0.02
done
"$@" </dev/null &
machine=$!
echo "machine $machine"
# What ends from now on ends as it should.
exec 2>/dev/null
# The shell gives what runs behind it no input; so this one's is kept as 3.
exec 3<&0
{ read -r nothing <&3; kill -9 $machine; } 2>/dev/null &
reader=$!
wait $machine
kill -9 $reader $device
wait
rm -rf "$folder"
"#;

/// A running machine. It is killed when dropped.
pub(super) struct Machine {
    keeper: Child,
    /// The id of QEMU's process.
    pub(super) pid: u32,
    /// The output of the guest's console.
    pub(super) console: Lines,
    /// The output of QEMU and the vsock device.
    pub(super) errors: Lines,
    pub(super) folder: PathBuf,
}

impl Machine {
    /// Starts a machine that boots `initramfs`, in a new folder in shared memory.
    pub(super) fn start(kit: &Kit, options: &Options, initramfs: &[u8]) -> Machine {
        let folder = tempfile::Builder::new()
            .prefix("beeline-guest-")
            .tempdir_in("/dev/shm")
            .expect("cannot make a folder in shared memory")
            .keep();
        std::fs::write(folder.join("initramfs"), initramfs).expect("cannot write an initramfs");
        let mut command = Command::new("sh");
        command.args(["-c", KEEPER, "guest"]).arg(&folder);
        command.arg(kit.vhost_vsock()).arg(kit.qemu());
        arguments(&mut command, kit, options, &folder);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        // Ctrl-C at a terminal is for the tests; the keeper sees their end.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut keeper = command.spawn().expect("cannot start a shell");
        let console = Lines::collect(keeper.stdout.take().expect("stdout is piped"));
        let errors = Lines::collect(keeper.stderr.take().expect("stderr is piped"));
        let said = console.wait_for(0, crate::PATIENCE, |line| line.starts_with("machine "));
        let pid = said.and_then(|(_, line)| line.split(' ').nth(1)?.parse().ok());
        Machine {
            pid: pid.unwrap_or_else(|| panic!("the machine does not start: {:?}", errors.so_far())),
            keeper,
            console,
            errors,
            folder,
        }
    }

    /// Returns whether QEMU is still running.
    pub(super) fn runs(&self) -> bool {
        crate::is_alive(self.pid)
    }

    /// Ends it like a power cut, and waits until nothing is left of it.
    pub(super) fn kill(&mut self) {
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Adds QEMU's arguments. The processor is emulated: test machines rarely have a hypervisor inside
/// a virtual machine.
fn arguments(command: &mut Command, kit: &Kit, options: &Options, folder: &Path) {
    let file = |name: &str| folder.join(name).display().to_string();
    let memory = options.memory;
    let socket = |id: &str, name: &str| {
        let path = file(name);
        format!("socket,id={id},path={path},server=on,wait=off")
    };
    // Without cmpxchg16b, because some boots fail with it under emulation.
    command.args(["-accel", "tcg", "-cpu", "max,cx16=off", "-nodefaults"]);
    command.args(["-display", "none", "-serial", "stdio"]);
    command.args(["-smp", &options.smp.to_string()]);
    command.args(["-m", &format!("{memory}M")]);
    back_memory(command, options, folder);
    command.arg("-kernel").arg(kit.vmlinux(options.kernel));
    command.args(["-initrd", &file("initramfs")]);
    // The serial console is slow; a panic shows on it and ends the boot.
    let words = options.parameters;
    let words = format!("console=ttyS0 quiet mitigations=off panic=0 {words}");
    command.args(["-append", &words]);

    let disk = format!(
        "if=none,id=tools,format=raw,readonly=on,file={}",
        kit.tools().display()
    );
    command.args(["-drive", &disk, "-device", "virtio-blk-pci,drive=tools"]);
    command.args(["-netdev", "user,id=net0,restrict=on"]);
    command.args(["-device", "virtio-net-pci,netdev=net0,romfile="]);
    let vsock = format!("socket,id=vsock,path={}", file("vhost"));
    command.args(["-chardev", &vsock]);
    command.args(["-device", "vhost-user-vsock-pci,chardev=vsock"]);

    command.args(["-device", "virtio-serial-pci"]);
    for name in ["control", "beeline"] {
        command.args(["-chardev", &socket(name, name)]);
        let port = format!("virtserialport,chardev={name},name={name}");
        command.args(["-device", &port]);
    }
    // One monitor for the guest's user, one for the tests.
    for name in ["qmp", "qmp-tests"] {
        command.args(["-chardev", &socket(name, name)]);
        command.args(["-mon", &format!("chardev={name},mode=control")]);
    }
}

/// Sets the backing of the guest's memory.
fn back_memory(command: &mut Command, options: &Options, folder: &Path) {
    let memory = options.memory;
    let file = |id: &str, size: u32, name: &str| {
        let path = folder.join(name);
        let path = path.display();
        format!("memory-backend-file,id={id},size={size}M,mem-path={path},share=on")
    };
    let mut objects = Vec::new();
    match options.backing {
        Backing::File => objects.push(file("mem0", memory, "memory")),
        Backing::HugePages => objects.push(format!(
            "memory-backend-memfd,id=mem0,size={memory}M,share=on,hugetlb=on,hugetlbsize=2M"
        )),
        Backing::Nodes => {
            objects.push(file("mem0", memory / 2, "memory"));
            objects.push(file("mem1", memory / 2, "memory-1"));
        }
    }
    for object in &objects {
        command.args(["-object", object]);
    }
    if options.backing == Backing::Nodes {
        let last = options.smp - 1;
        command.args(["-machine", "q35"]);
        command.args(["-numa", "node,nodeid=0,memdev=mem0"]);
        command.args(["-numa", &format!("node,nodeid=1,memdev=mem1,cpus=0-{last}")]);
    } else {
        command.args(["-machine", "q35,memory-backend=mem0"]);
    }
}
