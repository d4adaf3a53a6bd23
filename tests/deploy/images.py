"""Build the images for real: buildah, on a base made with debootstrap."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.site import ROOT

TOOLS = ("buildah", "debootstrap", "ip", "unshare", "nsenter", "chroot")


def require_tools():
    """Skip where images and network namespaces cannot be made."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}; run make system-deps")
    if os.geteuid() != 0:
        pytest.skip("needs root, for network namespaces")
    probe = subprocess.run(["unshare", "--mount", "--net", "true"], capture_output=True)
    if probe.returncode:
        pytest.skip("this kernel or container does not allow namespaces")


def local_package_sources():
    """Return local folders that pip looks in here, to be mounted for the build."""
    listing = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True
    )
    words = listing.stdout.replace("'", " ").replace("file://", " ").split()
    return sorted({w for w in words if w.startswith("/") and Path(w).exists()})


class Images:
    """The two images in a private store, and their file systems."""

    def __init__(self, store):
        self.store = store
        self.mounts = {}

    def buildah(self, *arguments, timeout=1800):
        done = subprocess.run(
            [
                *("buildah", "--root", str(self.store / "root")),
                *("--runroot", str(self.store / "run"), *map(str, arguments)),
            ],
            capture_output=True,
            text=True,
            timeout=timeout,
            cwd=ROOT,
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout.strip()

    def make_base(self):
        """Make a slim Debian with Python from its packages."""
        if "fedbnn-base" in self.buildah("images", "--format", "{{.Name}}"):
            return
        rootfs = self.store / "rootfs"
        if not (rootfs / "usr/bin/python3").exists():
            done = subprocess.run(
                [
                    *("debootstrap", "--variant=minbase"),
                    "--include=python3,python3-venv,ca-certificates",
                    *("bookworm", str(rootfs)),
                ],
                capture_output=True,
                text=True,
                timeout=1800,
            )
            assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        container = self.buildah("from", "scratch")
        self.buildah("add", container, rootfs, "/")
        self.buildah("commit", container, "fedbnn-base")
        self.buildah("rm", container)

    def build(self, target):
        sources = local_package_sources()
        folders = [Path(path) for path in sources if Path(path).is_dir()]
        links = [str(path) for path in folders if list(path.glob("*.whl"))]
        indexes = [path.as_uri() for path in folders if str(path) not in links]
        # An index lies beside the files that it lists.
        beside = {str(path.parent) for path in folders if str(path) not in links}
        mounted = [
            path for path in sources if Path(path).parent not in map(Path, beside)
        ]
        mounted += sorted(beside)
        settings = self.store / "uv.toml"
        settings.write_text(
            f"find-links = {json.dumps(links)}\n"
            f"extra-index-url = {json.dumps(indexes)}\n"
            'index-strategy = "unsafe-best-match"\nsystem-certs = true\n'
        )
        self.buildah(
            *("bud", "--isolation", "chroot", "--network", "host", "--layers"),
            *("--build-arg", "BASE=localhost/fedbnn-base", "--build-arg", "TORCH="),
            *("-v", f"{settings}:/etc/uv/uv.toml:ro"),
            *(part for path in mounted for part in ("-v", f"{path}:{path}:ro")),
            *("-f", "docker/Dockerfile", "--target", target),
            *("-t", f"fedbnn-{target}", "."),
        )

    def root_of(self, image):
        """Return the image's file system, mounted."""
        if image not in self.mounts:
            container = self.buildah("from", f"localhost/{image}")
            self.mounts[image] = (container, self.buildah("mount", container))
        return Path(self.mounts[image][1])

    def environment_of(self, image):
        """Return the environment, user and working directory that the image sets."""
        text = self.buildah(
            *("inspect", "--type", "image", "--format"),
            "{{range .OCIv1.Config.Env}}{{println .}}{{end}}",
            f"localhost/{image}",
        )
        return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)

    def close(self):
        for container, _ in self.mounts.values():
            self.buildah("umount", container)
            self.buildah("rm", container)
        # The store is mounted on itself and stays so otherwise.
        overlay = self.store / "root" / "overlay"
        subprocess.run(["umount", overlay], check=False, capture_output=True)
