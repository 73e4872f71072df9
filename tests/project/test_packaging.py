"""Packages made by `python -m build`: their content, and their use outside this repository."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from pathlib import Path

import pytest

from ffrecord import MissingPackageError
from ffrecord.version import __version__
from tests.docs.pages import ROOT
from tests.fuse.mounted import mounting
from tests.support import trees

# PACKAGES are in the wheel. The source distribution also has the folders in BESIDE.
PACKAGES = ("ffrecord", "ffrecord_fuse")
BESIDE = ("docs", "scripts", "tests")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the source distribution and the wheel, from a copy: a build leaves files behind."""
    pytest.importorskip("build")
    source = tmp_path_factory.mktemp("source")
    for name in (*PACKAGES, *BESIDE):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in ROOT.iterdir():
        if path.is_file() and path.name != ".git":
            shutil.copy(path, source)
    out = source / "dist"
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", out, source],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "deprecat" not in (done.stdout + done.stderr).lower()
    return out


def files_of(*folders: str) -> set[str]:
    return {
        path.relative_to(ROOT).as_posix()
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_a_wheel_has_the_packages_the_licence_and_nothing_else(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    assert wheel.name == f"ffrecord-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as opened:
        names = set(opened.namelist())
        info = f"ffrecord-{__version__}.dist-info"
        licence = opened.read(f"{info}/licenses/LICENSE")
    assert {name for name in names if not name.startswith(info)} == files_of(*PACKAGES)
    assert {"ffrecord/py.typed", "ffrecord_fuse/py.typed"} <= names
    assert licence == (ROOT / "LICENSE").read_bytes()


def test_a_source_distribution_has_the_tests_and_docs_too(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    due = files_of(*PACKAGES, *BESIDE)
    assert due | {"README.md", "CHANGELOG.md", "LICENSE", "pyproject.toml"} <= names


def test_the_metadata_has_the_fields_that_a_package_index_shows(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        text = opened.read(f"ffrecord-{__version__}.dist-info/METADATA").decode()
        scripts = opened.read(f"ffrecord-{__version__}.dist-info/entry_points.txt").decode()
    found = Parser().parsestr(text)
    assert found["Description-Content-Type"] == "text/markdown"
    assert found["License-Expression"] == "MIT"
    assert found["Requires-Python"] == ">=3.10"
    assert str(found.get_payload()).strip() == (ROOT / "README.md").read_text().strip()
    assert {"torch", "fsspec", "fuse", "convert", "dataset"} <= set(
        found.get_all("Provides-Extra") or []
    )
    assert not any("torch" in each for each in found.get_all("Requires-Dist") or []
                   if "extra" not in each)  # fmt: skip
    assert "ffrecord = ffrecord.__main__:command" in scripts
    assert "ffrecord-fuse = ffrecord_fuse.cli:main" in scripts
    assert "ffr = ffrecord.fsspec:PackedFolderFileSystem" in scripts
    assert "ffr = ffrecord.fsspec.upath:PackedFolderPath" in scripts


def test_without_torch_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in sys.modules if each.split(".")[:2] == ["ffrecord", "torch"]]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [_NoTorch(), *sys.meta_path])
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    with pytest.raises(MissingPackageError, match=r"pip install 'ffrecord\[torch\]'"):
        importlib.import_module("ffrecord.torch")


class _NoTorch:
    def find_spec(self, name: str, *_: object) -> None:
        if name == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")


# ---- installed ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of commands of a new venv with the wheel.

    The dependencies are linked from the current venv, so that the test needs no network.
    """
    place = tmp_path_factory.mktemp("venv")
    venv.create(place, with_pip=False)
    bin_folder = place / "bin"
    (wheel,) = built.glob("*.whl")
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", bin_folder / "python", "install", "--no-deps",
         "--no-index", wheel],
        check=True, capture_output=True,
    )  # fmt: skip
    (packages,) = place.glob("lib/python*/site-packages")
    shared = importlib.import_module("numpy").__file__
    assert shared is not None
    for name in ("numpy", "numpy.libs", "isal", "libaio", "tqdm"):
        there = Path(shared).parent.parent / name
        if there.exists():
            (packages / name).symlink_to(there)
    return bin_folder


def environment(installed: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return {**kept, "PATH": f"{installed}:/usr/sbin:/usr/bin:/sbin:/bin"}


def run(installed: Path, place: Path, *words: str) -> str:
    done = subprocess.run(
        words, cwd=place, env=environment(installed), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), words
    return done.stdout


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    trees.plain_tree(tmp_path / "photos", {"cats/1": b"meow", "dogs/1": b"woof"})
    (tmp_path / "mounted").mkdir()
    with mounting.released(tmp_path / "mounted"):
        yield tmp_path


@pytest.mark.long
def test_an_installed_wheel_packs_lists_and_mounts(installed: Path, place: Path) -> None:
    assert run(installed, place, "ffrecord", "--version") == f"ffrecord {__version__}\n"
    where = run(installed, place, "python", "-c", "import ffrecord; print(ffrecord.__file__)")
    assert str(ROOT) not in where
    run(installed, place, "ffrecord", "pack", "photos", "photos.ffr")
    assert run(installed, place, "ffrecord", "ls", "photos.ffr") == "cats\ndogs\n"
    assert run(installed, place, "ffrecord", "cat", "photos.ffr", "cats/1") == "meow"
    done = subprocess.run(
        ["python", "-c", "import ffrecord.torch"], cwd=place, env=environment(installed),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stderr.splitlines()[-1].endswith("pip install 'ffrecord[torch]'")
    if mounting.why_not() is None:
        run(installed, place, "ffrecord", "mount", "photos.ffr", "mounted")
        assert (place / "mounted/dogs/1").read_bytes() == b"woof"
        run(installed, place, "ffrecord", "umount", "mounted")


@pytest.mark.long
@pytest.mark.skipif(shutil.which("mount.fuse3") is None, reason="fuse3 is not installed")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may call mount(8)")
def test_mount8_finds_the_installed_program(installed: Path, place: Path) -> None:
    """mount(8) finds the program by its name, as from fstab.

    It searches the system's folders only and ignores PATH. The test links the program into one of
    them, in a private mount namespace.
    """
    run(installed, place, "ffrecord", "pack", "photos", "photos.ffr")
    (place / "bin").mkdir()
    (place / "bin/ffrecord-fuse").symlink_to(installed / "ffrecord-fuse")
    script = """
        mount --bind bin /usr/local/sbin
        mount -t fuse.ffrecord-fuse "$PWD/photos.ffr" mounted -o noexec,workers=2
        cat mounted/cats/1
        findmnt -n -o FSTYPE,OPTIONS mounted
        umount mounted
    """
    can = subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True)
    if can.returncode or not os.path.isdir("/usr/local/sbin"):
        pytest.skip("cannot create a mount namespace")
    said = run(installed, place, "unshare", "-m", "sh", "-ec", script)
    assert said.startswith("meowfuse.ffrecord")
    assert "noexec" in said
    assert mounting.wait_until_ended(place / "mounted")
