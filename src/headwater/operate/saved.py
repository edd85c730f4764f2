"""Saved: a view's checkpoint and state, put at a URL and fetched from there by another machine.

    URL/<view>/<run>/<batch>/   the files of the run, as they stood behind a batch
    URL/<view>/saved.json       which run and batch that is; written last, so that what it names is whole

The log stays what decides: what was saved is fetched only while the log's newest result is the one that it stands behind. What is older cannot go on,
since batches would be published twice; such a view is made anew from the log.
"""

import shutil
import uuid
from pathlib import Path

import msgspec
from pyarrow import ArrowInvalid, fs

from headwater import result
from headwater.client import Client
from headwater.config import Settings
from headwater.errors import StorageError, UsageError, one_line
from headwater.formats import SAVED
from headwater.operate.running import refuse_while_running
from headwater.result import Result

__all__ = ["Saved", "fetch", "save"]

NOTE = "saved.json"


class Saved(msgspec.Struct, frozen=True):
    """What was saved or fetched."""

    run: str
    batch: int
    files: int
    size_bytes: int
    format: int = 1


def save(settings: Settings, view: str, url: str) -> Saved:
    """Puts what a view that stands would go on from at a URL of ``pyarrow.fs``; what was saved there before goes when this is whole."""
    refuse_while_running(settings, f"view {view!r} cannot be saved")
    seen = _newest(settings, view)
    here = settings.data / "checkpoints" / view / seen.run
    if not here.exists():
        raise UsageError(
            f"view {view!r} has no checkpoint to save", got=f"no folder {here}", hint="run it here first"
        )
    system, root = _at(url)
    there = f"{root}/{view}"
    try:
        before = _note(system, there)
        folder = f"{seen.run}/{seen.batch}"
        _clear(system, f"{there}/{folder}")
        fs.copy_files(str(here), f"{there}/{folder}", fs.LocalFileSystem(), system)
        found = _files(system, f"{there}/{folder}")
        size_bytes = sum(info.size for info in found)
        saved = Saved(seen.run, seen.batch, len(found), size_bytes, SAVED.newest)
        with system.open_output_stream(f"{there}/{NOTE}") as out:
            out.write(msgspec.json.encode(saved))
        if before is not None and (before.run, before.batch) != (saved.run, saved.batch):
            _clear(system, f"{there}/{before.run}/{before.batch}")
    except OSError as error:
        raise _unreachable(url, error) from error
    return saved


def fetch(settings: Settings, view: str, url: str) -> Saved:
    """Brings what was saved to this machine, where the next start goes on from it.

    UsageError when it is older than the log's newest result, and when the checkpoint is here already.
    """
    refuse_while_running(settings, f"view {view!r} cannot be fetched")
    seen = _newest(settings, view)
    here = settings.data / "checkpoints" / view / seen.run
    if here.exists():
        raise UsageError(f"the checkpoint of view {view!r} is here already", got=str(here))
    system, root = _at(url)
    there = f"{root}/{view}"
    part = settings.data / "checkpoints" / f".fetching-{uuid.uuid4().hex}"
    try:
        saved = _note(system, there)
        if saved is None:
            raise UsageError(
                f"there is nothing saved of view {view!r} at {url}", hint=f"headwater view save {view} {url}"
            )
        if (saved.run, saved.batch) != (seen.run, seen.batch):
            raise UsageError(
                f"what was saved of view {view!r} is older than the log",
                got=f"batch {saved.batch} of run {saved.run}",
                expected=f"batch {seen.batch} of run {seen.run}",
                hint=f"make it anew from the log: headwater view reset {view}",
            )
        part.mkdir(parents=True)
        fs.copy_files(f"{there}/{saved.run}/{saved.batch}", str(part), system, fs.LocalFileSystem())
        found = _files(fs.LocalFileSystem(), str(part))
        if (len(found), sum(info.size for info in found)) != (saved.files, saved.size_bytes):
            raise StorageError(
                f"what was saved of view {view!r} at {url} is not whole",
                got=f"{len(found)} files",
                expected=f"{saved.files} files, {saved.size_bytes:,} bytes",
                hint=f"make it anew from the log: headwater view reset {view}",
            )
        here.parent.mkdir(parents=True, exist_ok=True)
        part.rename(here)
    except OSError as error:
        raise _unreachable(url, error) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return saved


def _newest(settings: Settings, view: str) -> Result:
    """The newest result that readers see."""
    client = Client(settings.access)
    try:
        known = result.topic(view) in client.partitions()
        seen = result.newest(client, view) if known else None
    finally:
        client.close()
    if seen is None:
        raise UsageError(
            f"there is no view {view!r} with results", hint="headwater topic list shows what there is"
        )
    return seen


def _at(url: str) -> tuple[fs.FileSystem, str]:
    try:
        system, path = fs.FileSystem.from_uri(str(Path(url).absolute()) if "://" not in url else url)
    except (ArrowInvalid, OSError) as error:
        raise UsageError(
            f"{url!r} is no place for checkpoints",
            got=one_line(error),
            expected="a folder, or a URL like s3://bucket/folder, gs://bucket/folder or hdfs://host/folder",
        ) from error
    return system, path.rstrip("/")


def _note(system: fs.FileSystem, there: str) -> Saved | None:
    try:
        with system.open_input_stream(f"{there}/{NOTE}") as source:
            return SAVED.decode(source.read(), Saved, f"{there}/{NOTE}")
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise StorageError(f"{there}/{NOTE} cannot be read", got=one_line(error)) from error


def _files(system: fs.FileSystem, folder: str) -> list[fs.FileInfo]:
    found = system.get_file_info(fs.FileSelector(folder, recursive=True))
    return [info for info in found if info.type == fs.FileType.File]


def _clear(system: fs.FileSystem, folder: str) -> None:
    if system.get_file_info(folder).type != fs.FileType.NotFound:
        system.delete_dir(folder)


def _unreachable(url: str, error: OSError) -> StorageError:
    return StorageError(f"{url} cannot be read or written", got=one_line(error))
