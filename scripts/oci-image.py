#!/usr/bin/env python3
"""oci-image.py VERSION FILE OUTPUT: puts one static program into an image for containers, without a daemon.

The output is an OCI image layout in a tar archive, as `podman load` and `skopeo copy oci-archive:FILE` take it: one layer
with /usr/bin/beeline and nothing else. Times are those of SOURCE_DATE_EPOCH, so equal programs make equal images.

https://github.com/opencontainers/image-spec describes the format.
"""

import gzip
import hashlib
import io
import json
import os
import sys
import tarfile
import time

EPOCH = int(os.environ["SOURCE_DATE_EPOCH"])
CREATED = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(EPOCH))
MEDIA_TYPE = "application/vnd.oci.image."


def main():
    version, program, output = sys.argv[1:]
    with open(program, "rb") as file:
        content = file.read()
    plain = tar([("usr", None), ("usr/bin", None), ("usr/bin/beeline", content)])
    blobs = {}
    layer = add(blobs, "layer.v1.tar+gzip", gzip.compress(plain, 9, mtime=0))
    config = add(blobs, "config.v1+json", to_json(image_config(version, digest(plain))))
    manifest = {"schemaVersion": 2, "mediaType": MEDIA_TYPE + "manifest.v1+json", "config": config, "layers": [layer]}
    named = add(blobs, "manifest.v1+json", to_json(manifest))
    name = f"localhost/beeline:{version}"
    named["annotations"] = {"org.opencontainers.image.ref.name": name, "io.containerd.image.name": name}
    index = {"schemaVersion": 2, "mediaType": MEDIA_TYPE + "index.v1+json", "manifests": [named]}
    files = [("blobs", None), ("blobs/sha256", None)]
    files += [(f"blobs/sha256/{name}", blobs[name]) for name in sorted(blobs)]
    files += [("index.json", to_json(index)), ("oci-layout", to_json({"imageLayoutVersion": "1.0.0"}))]
    with open(output, "wb") as file:
        file.write(tar(files))


def image_config(version, layer_digest):
    return {
        "architecture": "amd64",
        "os": "linux",
        "created": CREATED,
        "config": {
            "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
            "Cmd": ["beeline", "--help"],
            "Labels": {
                "org.opencontainers.image.title": "beeline",
                "org.opencontainers.image.version": version,
                "org.opencontainers.image.licenses": "Apache-2.0 OR MIT",
            },
        },
        "rootfs": {"type": "layers", "diff_ids": [layer_digest]},
        "history": [{"created": CREATED, "comment": "beeline, linked statically"}],
    }


def add(blobs, kind, content):
    """Keeps a blob, and returns its descriptor."""
    name = digest(content)
    blobs[name.removeprefix("sha256:")] = content
    return {"mediaType": MEDIA_TYPE + kind, "digest": name, "size": len(content)}


def digest(content):
    return "sha256:" + hashlib.sha256(content).hexdigest()


def to_json(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def tar(entries):
    """An archive of files (a path and its content) and directories (a path and None), all of root's."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.USTAR_FORMAT) as out:
        for path, content in entries:
            entry = tarfile.TarInfo(path)
            entry.mtime, entry.mode = EPOCH, 0o755 if content is None or path.startswith("usr/bin/") else 0o644
            entry.type = tarfile.DIRTYPE if content is None else tarfile.REGTYPE
            entry.size = len(content or b"")
            out.addfile(entry, io.BytesIO(content or b""))
    return archive.getvalue()


main()
