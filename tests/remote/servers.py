"""Servers on loopback, started and ended by the tests: nginx, and moto's S3 server."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from obstore.store import S3Store

from tests.support.patience import PATIENCE

NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")

CONFIGURATION = """
daemon off; master_process off; worker_processes 1; pid {place}/pid; error_log {place}/log crit;
events {{ worker_connections 1024; }}
http {{
    access_log off; keepalive_requests 100000; default_type application/octet-stream;
    client_body_temp_path {place}/body; proxy_temp_path {place}/proxy;
    fastcgi_temp_path {place}/fastcgi; uwsgi_temp_path {place}/uwsgi; scgi_temp_path {place}/scgi;
    server {{ listen 127.0.0.1:{port}; root {root}; }}
}}
"""


SETUP = """
import boto3, json, sys
connection = dict(endpoint_url=sys.argv[1], region_name="us-east-1",
                  aws_access_key_id="setup", aws_secret_access_key="setup")
iam = boto3.client("iam", **connection)
iam.create_user(UserName="reader")
policy = {"Version": "2012-10-17",
          "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
iam.put_user_policy(UserName="reader", PolicyName="all", PolicyDocument=json.dumps(policy))
key = iam.create_access_key(UserName="reader")["AccessKey"]
boto3.client("s3", **connection).create_bucket(Bucket="bucket")
print(key["AccessKeyId"], key["SecretAccessKey"])
"""
LISTED = 20  # names in a page of a listing; S3 itself sends 1,000
ACTIONS = 4  # calls of the setup; moto checks signatures after them


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def nginx(root: Path, place: Path) -> Iterator[str]:
    """Serve a folder with nginx, and yield its URL."""
    if NGINX is None:
        pytest.skip("nginx is not installed")
    port = free_port()
    configuration = place / "nginx.conf"
    configuration.write_text(CONFIGURATION.format(place=place, port=port, root=root))
    command = [NGINX, "-e", str(place / "log"), "-c", str(configuration)]
    with _running(command, f"http://127.0.0.1:{port}/") as url:
        yield url.rstrip("/")


@contextlib.contextmanager
def moto(environment: dict[str, str]) -> Iterator[str]:
    """Run moto's server, and yield its URL."""
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with _running(command, f"http://127.0.0.1:{port}/moto-api/data.json", environment):
        yield f"http://127.0.0.1:{port}"


_shared = contextlib.ExitStack()
atexit.register(_shared.close)


@functools.cache
def _moto() -> str:
    return _shared.enter_context(moto({}))


def empty_bucket() -> str:
    """Return the URL of an S3 server with an empty bucket, which takes any credentials.

    All tests use the same server, because it takes seconds to start.
    """
    url = _moto()
    for method, path in (("POST", "moto-api/reset"), ("PUT", "bucket")):
        asked = urllib.request.Request(f"{url}/{path}", method=method)
        urllib.request.urlopen(asked, timeout=PATIENCE).close()
    return url


def variables(url: str) -> dict[str, str]:
    """Return the environment variables that lead to the bucket."""
    return {
        "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "SECRET", "AWS_ENDPOINT_URL": url,
        "AWS_REGION": "us-east-1",
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class S3Server:
    """moto's server with a bucket, which demands signatures."""

    url: str
    key: str
    secret: str

    @property
    def options(self) -> dict[str, Any]:
        return {
            "access_key_id": self.key, "secret_access_key": self.secret, "endpoint": self.url,
            "region": "us-east-1",
        }  # fmt: skip

    @property
    def store(self) -> S3Store:
        return S3Store("bucket", client_options={"allow_http": True}, **self.options)


@contextlib.contextmanager
def s3() -> Iterator[S3Server]:
    """Run moto's server with a bucket and one user."""
    environment = {
        "INITIAL_NO_AUTH_ACTION_COUNT": str(ACTIONS), "MOTO_S3_DEFAULT_MAX_KEYS": str(LISTED),
    }  # fmt: skip
    with moto(environment) as url:
        run = subprocess.run(
            [sys.executable, "-c", SETUP, url], capture_output=True, text=True, timeout=PATIENCE,
            check=True,
        )  # fmt: skip
        yield S3Server(url, *run.stdout.split())


@contextlib.contextmanager
def _running(
    command: list[str], url: str, environment: dict[str, str] | None = None
) -> Iterator[str]:
    server = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={**os.environ, **(environment or {})},
    )  # fmt: skip
    try:
        _wait_for(url, server)
        yield url
    finally:
        server.kill()
        server.wait()


def _wait_for(url: str, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        assert server.poll() is None, "the server ended"
        try:
            urllib.request.urlopen(url, timeout=PATIENCE).close()
            return
        except urllib.error.HTTPError:
            return  # it answers
        except OSError:
            time.sleep(0.02)
    raise AssertionError("the server does not answer")
