"""Spark sessions with two executors, each a process of its own, all on the loopback."""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession

from tests.docs.pages import ROOT
from tests.support.patience import PATIENCE

CLUSTER = "local-cluster[2,1,1024]"
"""Two executors with one core and 1 GiB each."""
JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""Options with which a process of Java that lives a minute needs least processor time."""
MARK = "FFRECORD_TEST_SPARK"
"""Variable in the environment of all processes of a session, by which the end finds them."""


@contextlib.contextmanager
def environment(folder: Path) -> Iterator[None]:
    """Set the environment of Spark's processes, and wait at the end until all of them are gone."""
    if not java_is_there():
        pytest.skip("Java is not installed; scripts/setup installs it")
    home = folder / "home"
    home.mkdir()
    for each in Path(pyspark.__file__).parent.iterdir():  # Spark writes into its home
        (home / each.name).symlink_to(each)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_HOME", str(home))
        patch.setenv("SPARK_LOCAL_DIRS", str(folder / "local"))
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        patch.setenv("SPARK_LOCAL_HOSTNAME", "localhost")
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
        patch.setenv("SPARK_DAEMON_JAVA_OPTS", JAVA)
        patch.setenv("SPARK_LAUNCHER_OPTS", JAVA)
        patch.setenv(MARK, str(folder))
        yield
    wait_for_end(str(folder))


def java_is_there() -> bool:
    return shutil.which("java") is not None or "JAVA_HOME" in os.environ


@contextlib.contextmanager
def session(folder: Path, master: str = CLUSTER, **options: str) -> Iterator[SparkSession]:
    """Start a driver and its executors; end them with the block."""
    settings = {
        "spark.task.maxFailures": "2",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "localhost",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": JAVA,
        "spark.executor.extraJavaOptions": JAVA,
        "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        **options,
    }
    builder = SparkSession.builder.master(master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    made = builder.getOrCreate()
    made.sparkContext.setLogLevel("OFF")  # failures are what the tests are about
    try:
        yield made
    finally:
        context = made.sparkContext
        gateway: Any = context._gateway
        made.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(PATIENCE)
        type(context)._gateway = type(context)._jvm = None


def processes(mark: str) -> list[int]:
    """Return the processes that have this mark in their environment."""
    found = []
    for each in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if f"{MARK}={mark}".encode() in (each / "environ").read_bytes().split(b"\0"):
                found.append(int(each.name))
    return found


def wait_for_end(mark: str) -> None:
    """Wait until no process has this mark, except this one."""
    for pid in processes(mark):
        with contextlib.suppress(ProcessLookupError):
            fd = os.pidfd_open(pid)
            try:
                assert select.select([fd], [], [], PATIENCE)[0], f"process {pid} is still there"
            finally:
                os.close(fd)


@contextlib.contextmanager
def two_hosts(folder: Path) -> Iterator[str]:
    """Start a standalone cluster with a worker on each of two addresses; yield its URL.

    Spark never runs a task twice at once on the same host, and all workers of a local cluster are
    on one. All addresses that begin with 127 are on the loopback.
    """
    with contextlib.ExitStack() as stack:
        url = r"spark://[\d.:]+"
        address = ("--host", "127.0.0.1", "--port", "0")
        master = stack.enter_context(_daemon(url, "master.Master", *address))
        for host in ("127.0.0.1", "127.0.0.2"):
            options = "--host", host, "--cores", "1", "--memory", "1g"
            place = "--work-dir", str(folder / host)
            registered = "Successfully registered with master"
            stack.enter_context(_daemon(registered, "worker.Worker", *options, *place, master))
        yield master


@contextlib.contextmanager
def _daemon(ready: str, name: str, *arguments: str) -> Iterator[str]:
    """Start a daemon of Spark; yield the text in its log that says that it is ready."""
    command = [f"{os.environ['SPARK_HOME']}/bin/spark-class", f"org.apache.spark.deploy.{name}"]
    with subprocess.Popen(
        [*command, "--webui-port", "0", *arguments], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        lines = iter(process.stderr)
        said = next(found for line in lines if (found := re.search(ready, line)))
        rest = threading.Thread(target=deque(maxlen=0).extend, args=(lines,))  # a pipe may fill up
        rest.start()
        try:
            yield said[0]
        finally:
            process.terminate()
            rest.join()
