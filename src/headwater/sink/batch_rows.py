"""The rows of a batch: of a keyed feed only the newest change of each key is written."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from headwater.change import Change

__all__ = ["NewestChange", "newest_changes", "outdated_keys", "row_id"]


class NewestChange(msgspec.Struct, frozen=True, gc=False):
    """The change of a key that a batch writes."""

    change: Change
    was_deleted: bool
    """The key was deleted in the same batch before it: so the row replaces the stored one whatever its
    version."""


def newest_changes(changes: Iterable[Change]) -> dict[str, NewestChange]:
    """For each key its last change, unless an earlier one has a greater version."""
    newest: dict[str, NewestChange] = {}
    for change in changes:
        before = newest.get(change.key)
        if before is None:
            newest[change.key] = NewestChange(change, change.value is None)
        elif _replaces(change, before.change):
            del newest[change.key]  # the order of the result is that of the log
            was_deleted = before.was_deleted or change.value is None
            newest[change.key] = NewestChange(change, was_deleted=was_deleted)
    return newest


def row_id(change: Change, *, append: bool) -> str:
    """The id of a change's row in a store: its key, or its place in the log for an append feed."""
    return f"{change.partition}-{change.offset}" if append else change.key


def outdated_keys(rows: Sequence[NewestChange], stored_versions: Mapping[str, int]) -> set[str]:
    """The keys whose stored row is newer than the one of the batch."""
    return {
        row.change.key
        for row in rows
        if not row.was_deleted
        and row.change.version is not None
        and row.change.version < stored_versions.get(row.change.key, -1)
    }


def _replaces(change: Change, before: Change) -> bool:
    return before.version is None or change.version is None or change.version >= before.version
