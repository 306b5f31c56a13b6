#!/usr/bin/env python3
"""The servers of `dev/scripts/peers_in_python.py`, on the loopback.

    dev/scripts/peer_servers.py hub DIR     the Hub with a model of the files of a directory; each
                                            answer takes 20 ms
    dev/scripts/peer_servers.py s3 FILE     a bucket of moto with the file

Each prints its address, and serves until it is killed.
"""

import hashlib
import json
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

REPO, COMMIT, MODEL = "owner/name", "0123456789abcdef0123456789abcdef01234567", "model.safetensors"
LATENCY = 0.02
KEY, SECRET, BUCKET = "AKIATESTING", "very-secret-key", "bucket"


class Hub(BaseHTTPRequestHandler):
    """The Hub, as far as a download of one model needs it."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    files, cdn = {}, None

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.answer(is_head=True)

    def do_GET(self):
        self.answer(is_head=False)

    def answer(self, is_head):
        time.sleep(LATENCY)
        path = self.path.split("?")[0]
        file, digest, size = self.files.get(path.split("/")[-1], (None, None, 0))
        linked = {
            "X-Repo-Commit": COMMIT,
            "X-Linked-Size": size,
            "X-Linked-Etag": f'"{digest}"',
        }
        if file and path.startswith(f"/{REPO}/resolve/"):
            place = {"Location": f"{self.cdn}/cdn/{file.name}", "Content-Length": 0}
            self.head(302, linked | place)
        elif path.startswith(f"/api/models/{REPO}/tree/"):
            self.json([self.entry(name) for name in self.files], is_head)
        elif path.startswith(f"/api/models/{REPO}"):
            files = [{"rfilename": name} for name in self.files]
            info = {"_id": "0", "id": REPO, "modelId": REPO, "sha": COMMIT, "siblings": files}
            self.json(info | {"private": False, "tags": [], "downloads": 0, "likes": 0}, is_head)
        elif file and path.startswith("/cdn/"):
            self.bytes(file, digest, size, is_head)
        else:
            self.head(404, {"Content-Length": 0, "X-Error-Code": "EntryNotFound"})

    def entry(self, name):
        _, digest, size = self.files[name]
        lfs = {"oid": digest, "size": size, "pointerSize": 134}
        return {"type": "file", "oid": digest[:40], "size": size, "path": name, "lfs": lfs}

    def head(self, code, headers):
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, str(value))
        self.end_headers()

    def json(self, value, is_head):
        body = json.dumps(value).encode()
        self.head(200, {"Content-Type": "application/json", "Content-Length": len(body)})
        if not is_head:
            self.wfile.write(body)

    def bytes(self, file, digest, size, is_head):
        start, end = 0, size
        common = {"ETag": f'"{digest}"', "Accept-Ranges": "bytes"}
        wanted = self.headers.get("Range", "")
        if wanted.startswith("bytes="):
            first, last = wanted.removeprefix("bytes=").split("-")
            start, end = int(first), min(int(last) + 1, size) if last else size
            common["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
        self.head(206 if wanted else 200, common | {"Content-Length": end - start})
        if is_head:
            return
        with file.open("rb") as opened:
            while start < end:
                start += os.sendfile(self.connection.fileno(), opened.fileno(), start, end - start)


def serve_hub(directory):
    for file in sorted(Path(directory).iterdir()):
        with file.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
        Hub.files[file.name] = file, digest, file.stat().st_size
    # The content comes from another origin, as it does from the Hub.
    hub, cdn = (ThreadingHTTPServer(("127.0.0.1", 0), Hub) for _ in range(2))
    Hub.cdn = f"http://127.0.0.1:{cdn.server_port}"
    threading.Thread(target=cdn.serve_forever, daemon=True).start()
    print(f"http://127.0.0.1:{hub.server_port}", flush=True)
    hub.serve_forever()


def serve_s3(path):
    """A bucket of moto with one file."""
    import logging

    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    s3 = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
    s3.create_bucket(Bucket=BUCKET)
    s3.upload_file(path, BUCKET, MODEL)
    print(endpoint, flush=True)
    time.sleep(1 << 30)


if __name__ == "__main__":
    {"hub": serve_hub, "s3": serve_s3}[sys.argv[1]](sys.argv[2])
