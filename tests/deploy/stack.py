"""Start compose files as they stand, without docker: namespaces, chroot and binds.

Each service gets the image's file system under an overlay of its own, a process and
mount namespace, its own network namespace with its own address, the volumes, secrets,
user and environment of the file, and the command of the file. A bridge in one more
namespace connects them; nothing of the host's network is touched.
"""

import os
import re
import shlex
import subprocess
import time
from pathlib import Path

import yaml

from fedbnn_core.flower.processes import end_marked_processes
from tests.deploy.site import wait_until

MARKER = "FEDBNN_TEST_STACK"
USER = "49999:49999"


def interpolate(text, variables):
    """Replace ${NAME:-default} and ${NAME:?message} as compose does."""

    def value(match):
        name, operator, rest = match[1], match[2], match[3]
        if variables.get(name):
            return variables[name]
        assert operator != ":?", f"{name}: {rest}"
        return rest or ""

    return re.sub(r"\$\{(\w+)(?:(:-|:\?)([^}]*))?\}", value, text)


class Network:
    """A bridge in a namespace of its own, and one namespace per service."""

    def __init__(self, name, subnet):
        self.name, self.subnet = name, subnet
        self.hosts = {}
        self._ip("netns", "add", name)
        self._ip("-n", name, "link", "add", "bridge0", "type", "bridge")
        self._ip("-n", name, "link", "set", "bridge0", "up")

    def _ip(self, *arguments):
        subprocess.run(["ip", *arguments], check=True, capture_output=True)

    def namespace(self, service):
        return f"{self.name}-{service}"

    def attach(self, service):
        """Give a service its own namespace and address."""
        number = len(self.hosts) + 2
        space, end = self.namespace(service), f"port{number}"
        self._ip("netns", "add", space)
        self._ip("-n", space, "link", "set", "lo", "up")
        self._ip(
            *("-n", self.name, "link", "add", end, "type", "veth"),
            *("peer", "name", "eth0", "netns", space),
        )
        self._ip("-n", self.name, "link", "set", end, "master", "bridge0", "up")
        address = f"{self.subnet}.{number}"
        self._ip("-n", space, "addr", "add", f"{address}/24", "dev", "eth0")
        self._ip("-n", space, "link", "set", "eth0", "up")
        self.hosts[service] = address
        return address

    def cut(self, service, *, off=True):
        """Pull a service's cable, or put it back."""
        state = "down" if off else "up"
        self._ip("-n", self.namespace(service), "link", "set", "eth0", state)

    def bytes_of(self, service):
        """Return the bytes that a service has received and sent."""
        base = "/sys/class/net/eth0/statistics"
        command = ["cat", f"{base}/rx_bytes", f"{base}/tx_bytes"]
        done = subprocess.run(
            ["ip", "netns", "exec", self.namespace(service), *command],
            capture_output=True,
            text=True,
            check=True,
        )
        return tuple(int(word) for word in done.stdout.split())

    def close(self):
        for service in self.hosts:
            subprocess.run(["ip", "netns", "del", self.namespace(service)], check=False)
        subprocess.run(["ip", "netns", "del", self.name], check=False)


class Stack:
    """The services of one or more compose files on one network."""

    def __init__(self, folder, images, network):
        self.folder, self.images, self.network = folder, images, network
        self.volumes, self.files, self.processes = {}, {}, {}

    def load(self, path, prefix="", **variables):
        """Read a compose file; its services are called PREFIX + name."""
        text = interpolate(path.read_text(encoding="utf-8"), variables)
        content = yaml.safe_load(text)
        for name, service in content["services"].items():
            mode = service.get("network_mode", "")
            if not mode:
                self.network.attach(prefix + name)
            self.files[prefix + name] = (content, service, prefix)
        return content

    def volume(self, name, image, target):
        """Return a named volume; a new one is like the image's folder."""
        path = self.folder / "volumes" / name
        if not path.exists():
            path.mkdir(parents=True)
            inside = self.images.root_of(image) / target.lstrip("/")
            if inside.exists():
                os.chown(path, inside.stat().st_uid, inside.stat().st_gid)
                path.chmod(inside.stat().st_mode & 0o7777)
        return path

    def start(self, name, command=None):
        """Start a service's command in its namespaces; return the process."""
        content, service, prefix = self.files[name]
        image = service["image"]
        work = self.folder / f"{name}-{len(list(self.folder.glob(f'{name}-*')))}"
        for part in ("upper", "work", "root"):
            (work / part).mkdir(parents=True)
        root = work / "root"
        lines = [
            "set -e",
            f"mount -t overlay overlay -o lowerdir={self.images.root_of(image)},"
            f"upperdir={work}/upper,workdir={work}/work {root}",
            f"mount -t proc proc {root}/proc",
            f"mount --rbind /dev {root}/dev",
            f"mount -t tmpfs -o mode=1777 tmpfs {root}/tmp",  # noqa: S108
        ]
        hosts = "127.0.0.1 localhost\n" + "".join(
            f"{address} {host}\n" for host, address in self.network.hosts.items()
        )
        (work / "hosts").write_text(hosts)
        lines.append(f"cp {work}/hosts {root}/etc/hosts")
        for entry in service.get("volumes", []):
            source, target, *mode = entry.split(":")
            if source in content["volumes"]:
                path = self.volume(prefix + source, image, target)
            else:
                path = Path(source).resolve()
            lines.append(f"mkdir -p {root}{target}")
            lines.append(f"mount --bind {path} {root}{target}")
            if mode == ["ro"]:
                lines.append(f"mount -o remount,bind,ro {root}{target}")
        for secret in service.get("secrets", []):
            path = Path(content["secrets"][secret]["file"]).resolve()
            lines.append(f"mkdir -p {root}/run/secrets")
            lines.append(f"touch {root}/run/secrets/{secret}")
            lines.append(f"mount --bind {path} {root}/run/secrets/{secret}")
        if service.get("read_only"):
            lines.append(f"mount -o remount,ro {root}")
        environment = self.images.environment_of(image) | {
            MARKER: str(self.folder),
            "COLUMNS": "200",
            **service.get("environment", {}),
        }
        user = service.get("user", USER)
        settings = " ".join(shlex.quote(f"{k}={v}") for k, v in environment.items())
        words = shlex.join(command or service["command"])
        enter = f"chroot --userspec={user} {root} env -i {settings}"
        (work / "enter").write_text(enter)
        lines.append(f"exec {enter} {words}")
        script = work / "start.sh"
        script.write_text("\n".join(lines) + "\n")
        mode = service.get("network_mode", "")
        owner = prefix + mode.removeprefix("service:") if ":" in mode else name
        outside = ["unshare", "--net"] if mode == "none" else []
        if not outside:
            outside = ["ip", "netns", "exec", self.network.namespace(owner)]
        log = (work / "log").open("wb")
        process = subprocess.Popen(
            [
                *(*outside, "unshare", "--mount", "--pid", "--fork", "--kill-child"),
                *("sh", str(script)),
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | {MARKER: str(self.folder)},
        )
        process.work = work
        self.processes[name] = process
        return process

    def log(self, name):
        return (self.processes[name].work / "log").read_text(errors="replace")

    def execute(self, name, command):
        """Run a command inside a running service, as docker exec does."""
        process = self.processes[name]
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        inside = wait_until(children.read_text, 20, "service").split()[0]
        enter = (process.work / "enter").read_text()
        return subprocess.run(
            [
                *("nsenter", "-t", inside, "--mount", "--net", "--pid", "sh", "-c"),
                f"exec {enter} {shlex.join(command)}",
            ],
            capture_output=True,
            text=True,
            timeout=600,
        )

    def is_healthy(self, name):
        """Run the service's own health check."""
        if self.processes[name].poll() is not None:
            raise AssertionError(f"{name} ended:\n{self.log(name)}")
        kind, *command = self.files[name][1]["healthcheck"]["test"]
        assert kind == "CMD"
        return self.execute(name, command).returncode == 0

    def wait_for_health(self, name, timeout=180):
        wait_until(
            lambda: self.is_healthy(name), timeout, lambda: f"health: {self.log(name)}"
        )

    def up(self, *names):
        """Start services in the order given, each when what it waits for is there."""
        for name in names:
            _, service, prefix = self.files[name]
            for other, rule in service.get("depends_on", {}).items():
                if rule["condition"] == "service_healthy":
                    self.wait_for_health(prefix + other)
                else:
                    code = self.processes[prefix + other].wait(120)
                    assert code == 0, self.log(prefix + other)
            self.start(name)

    def kill(self, name):
        """End a service at once."""
        self.processes[name].kill()
        self.processes[name].wait(30)

    def close(self):
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
                process.wait(30)
        end_marked_processes(MARKER, str(self.folder))
        time.sleep(0.5)
