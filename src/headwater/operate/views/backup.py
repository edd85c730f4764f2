"""Backup and restore of a view's checkpoint and state, to and from a folder or URL.

    URL/<view>/<run>/<batch>/   the files of the run, as of a batch
    URL/<view>/saved.json       the run and batch of the backup; written last, so that its files are complete

The log decides: a backup can be restored only while its batch is still the log's newest result. With an older
one, the view would publish batches twice. Then the view must be computed again from the log.
"""

import shutil
import uuid
from pathlib import Path

import msgspec
from pyarrow import ArrowInvalid, fs

from headwater.client.client import Client
from headwater.config import Settings
from headwater.errors import StorageError, UsageError, one_line
from headwater.formats import VIEW_BACKUP
from headwater.operate.views.newest_result import newest_result
from headwater.operate.views.running import refuse_while_running
from headwater.result import Result

__all__ = ["Backup", "backup", "restore"]

NOTE = "saved.json"


class Backup(msgspec.Struct, frozen=True):
    """A backup that was made or restored."""

    run: str
    batch: int
    files: int
    size_bytes: int
    format: int = 1


def backup(settings: Settings, view: str, url: str) -> Backup:
    """Copies the checkpoint and state of a stopped view to a URL of ``pyarrow.fs``.

    The previous backup there is deleted afterwards.
    """
    refuse_while_running(settings, f"view {view!r} cannot be backed up")
    newest = _newest(settings, view)
    local = settings.data / "checkpoints" / view / newest.run
    if not local.exists():
        raise UsageError(
            f"view {view!r} has no checkpoint on this machine",
            got=f"no folder {local}",
            hint="run it here first",
        )
    system, root = _filesystem(url)
    remote = f"{root}/{view}"
    try:
        before = _note(system, remote)
        folder = f"{newest.run}/{newest.batch}"
        _clear(system, f"{remote}/{folder}")
        fs.copy_files(str(local), f"{remote}/{folder}", fs.LocalFileSystem(), system)
        files = _files(system, f"{remote}/{folder}")
        size_bytes = sum(info.size for info in files)
        made = Backup(newest.run, newest.batch, len(files), size_bytes, VIEW_BACKUP.newest)
        with system.open_output_stream(f"{remote}/{NOTE}") as out:
            out.write(msgspec.json.encode(made))
        if before is not None and (before.run, before.batch) != (made.run, made.batch):
            _clear(system, f"{remote}/{before.run}/{before.batch}")
    except OSError as error:
        raise _unreachable(url, error) from error
    return made


def restore(settings: Settings, view: str, url: str) -> Backup:
    """Copies a backup to this machine, where the next start continues from it.

    UsageError if it is older than the log's newest result, or if this machine already has the checkpoint.
    """
    refuse_while_running(settings, f"view {view!r} cannot be restored")
    newest = _newest(settings, view)
    local = settings.data / "checkpoints" / view / newest.run
    if local.exists():
        raise UsageError(f"this machine already has the checkpoint of view {view!r}", got=str(local))
    system, root = _filesystem(url)
    remote = f"{root}/{view}"
    part = settings.data / "checkpoints" / f".fetching-{uuid.uuid4().hex}"
    try:
        found = _note(system, remote)
        if found is None:
            raise UsageError(
                f"there is no backup of view {view!r} at {url}", hint=f"headwater view backup {view} {url}"
            )
        if (found.run, found.batch) != (newest.run, newest.batch):
            raise UsageError(
                f"the backup of view {view!r} is older than the log",
                got=f"batch {found.batch} of run {found.run}",
                expected=f"batch {newest.batch} of run {newest.run}",
                hint=f"compute the view again from the log: headwater view reset {view}",
            )
        part.mkdir(parents=True)
        fs.copy_files(f"{remote}/{found.run}/{found.batch}", str(part), system, fs.LocalFileSystem())
        _check_complete(found, part, view, url)
        local.parent.mkdir(parents=True, exist_ok=True)
        part.rename(local)
    except OSError as error:
        raise _unreachable(url, error) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return found


def _check_complete(found: Backup, copied: Path, view: str, url: str) -> None:
    files = _files(fs.LocalFileSystem(), str(copied))
    size_bytes = sum(info.size for info in files)
    if (len(files), size_bytes) != (found.files, found.size_bytes):
        raise StorageError(
            f"the backup of view {view!r} at {url} is not complete",
            got=f"{len(files)} files, {size_bytes:,} bytes",
            expected=f"{found.files} files, {found.size_bytes:,} bytes",
            hint=f"compute the view again from the log: headwater view reset {view}",
        )


def _newest(settings: Settings, view: str) -> Result:
    client = Client(settings.access)
    try:
        return newest_result(client, view)
    finally:
        client.close()


def _filesystem(url: str) -> tuple[fs.FileSystem, str]:
    try:
        system, path = fs.FileSystem.from_uri(str(Path(url).absolute()) if "://" not in url else url)
    except (ArrowInvalid, OSError) as error:
        raise UsageError(
            f"{url!r} is not a place for backups",
            got=one_line(error),
            expected="a folder, or a URL like s3://bucket/folder, gs://bucket/folder or hdfs://host/folder",
        ) from error
    return system, path.rstrip("/")


def _note(system: fs.FileSystem, remote: str) -> Backup | None:
    try:
        with system.open_input_stream(f"{remote}/{NOTE}") as source:
            return VIEW_BACKUP.decode(source.read(), Backup, f"{remote}/{NOTE}")
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise StorageError(f"{remote}/{NOTE} cannot be read", got=one_line(error)) from error


def _files(system: fs.FileSystem, folder: str) -> list[fs.FileInfo]:
    infos = system.get_file_info(fs.FileSelector(folder, recursive=True))
    return [info for info in infos if info.type == fs.FileType.File]


def _clear(system: fs.FileSystem, folder: str) -> None:
    if system.get_file_info(folder).type != fs.FileType.NotFound:
        system.delete_dir(folder)


def _unreachable(url: str, error: OSError) -> StorageError:
    return StorageError(f"{url} cannot be read or written", got=one_line(error))
