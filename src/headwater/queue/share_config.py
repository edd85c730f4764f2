"""Settings of a share group: Kafka's names and defaults, and the widest ranges that Kafka can allow."""

import re
from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec

from headwater.errors import ErrorCode, RequestError

__all__ = ["ShareConfig", "parse_share_config"]

_PREFIX = "share."
LATEST, EARLIEST, BY_DURATION = "latest", "earliest", "by_duration:"
DURATION_MS_MAX = 100 * 366 * 86_400_000
_DURATION = re.compile(
    r"P(?:(?P<days>\d+)D)?"
    r"(?:T(?=\d)(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d{1,9})?)S)?)?",
    re.IGNORECASE,
)
"""A duration in ISO 8601, as Kafka takes it: PnDTnHnMn.nS."""


def _setting(name: str) -> str:
    return _PREFIX + name.replace("_", ".")


class ShareConfig(msgspec.Struct, frozen=True, rename=_setting):
    """All settings of a share group."""

    auto_offset_reset: str = LATEST
    delayed_max: Annotated[int, msgspec.Meta(ge=100, le=100_000)] = msgspec.field(
        default=10_000, name="headwater.delayed.max"
    )
    """How many records of a partition may be delayed before no new ones are delivered."""
    queue: bool = msgspec.field(default=False, name="headwater.queue")
    """Whether records are opened, so that their headers count (``record_index.py``)."""
    order_by: Literal["", "key"] = msgspec.field(default="", name="headwater.order.by")
    """With ``key``, one record of a key at a time, in the order of offsets. It implies ``queue``."""
    delivery_count_limit: Annotated[int, msgspec.Meta(ge=2, le=25)] = 5
    heartbeat_interval_ms: Annotated[int, msgspec.Meta(ge=1, le=3_600_000)] = 5_000
    isolation_level: Literal["read_committed", "read_uncommitted"] = "read_uncommitted"
    partition_max_record_locks: Annotated[int, msgspec.Meta(ge=100, le=10_000)] = 2_000
    record_lock_duration_ms: Annotated[int, msgspec.Meta(ge=1_000, le=3_600_000)] = 30_000
    renew_acknowledge_enable: bool = True
    session_timeout_ms: Annotated[int, msgspec.Meta(ge=1, le=3_600_000)] = 45_000

    @property
    def reads_committed(self) -> bool:
        return self.isolation_level == "read_committed"

    duplicates_ms: Annotated[int, msgspec.Meta(ge=0, le=7 * 86_400_000)] = msgspec.field(
        default=0, name="headwater.duplicates.ms"
    )
    """For how long a record is a duplicate of one with its id, in groups that open them; 0: none is."""
    keep_ms: Annotated[int, msgspec.Meta(ge=-1, le=DURATION_MS_MAX)] = msgspec.field(
        default=30 * 86_400_000, name="headwater.keep.ms"
    )
    """How long retention leaves records that are not settled, in groups that open them; -1 for ever."""

    @property
    def opens_records(self) -> bool:
        return self.queue or self.orders_by_key

    @property
    def orders_by_key(self) -> bool:
        return self.order_by == "key"

    @property
    def reset_age_ms(self) -> int | None:
        """With ``by_duration``, the age of the records at which a new group begins."""
        text = self.auto_offset_reset
        return _duration_ms(text.removeprefix(BY_DURATION)) if text.startswith(BY_DURATION) else None

    def texts(self) -> dict[str, str]:
        """Every setting as Kafka's tools show it."""
        values = msgspec.to_builtins(self)
        return {
            key: str(value).lower() if isinstance(value, bool) else str(value)
            for key, value in values.items()
        }


def parse_share_config(config: Mapping[str, str]) -> ShareConfig:
    """Checks the settings of a group; raises RequestError with INVALID_CONFIG."""
    unknown = config.keys() - set(ShareConfig.__struct_encode_fields__)
    if unknown:
        raise RequestError(ErrorCode.INVALID_CONFIG, f"Unknown group config name: {min(unknown)}")
    try:
        parsed = msgspec.convert(dict(config), ShareConfig, strict=False)
    except msgspec.ValidationError as error:
        raise RequestError(ErrorCode.INVALID_CONFIG, f"Invalid value for configuration: {error}") from error
    reset = parsed.auto_offset_reset
    if reset not in {LATEST, EARLIEST}:
        if not reset.startswith(BY_DURATION):
            what = f"share.auto.offset.reset is {reset!r}, expected latest, earliest or by_duration:PT1H"
            raise RequestError(ErrorCode.INVALID_CONFIG, what)
        _duration_ms(reset.removeprefix(BY_DURATION))
    if parsed.heartbeat_interval_ms >= parsed.session_timeout_ms:
        what = (
            f"share.heartbeat.interval.ms {parsed.heartbeat_interval_ms} is not less than"
            f" share.session.timeout.ms {parsed.session_timeout_ms}"
        )
        raise RequestError(ErrorCode.INVALID_CONFIG, what)
    return parsed


def _duration_ms(text: str) -> int:
    match = _DURATION.fullmatch(text)
    if match is None or not any(match.groupdict().values()):
        what = f"duration {text!r} is not valid, expected one of ISO 8601 such as PT1H or P2DT30M"
        raise RequestError(ErrorCode.INVALID_CONFIG, what)
    part = {name: float(value or 0) for name, value in match.groupdict().items()}
    hours = part["days"] * 24 + part["hours"]
    duration_ms = ((hours * 60 + part["minutes"]) * 60 + part["seconds"]) * 1000
    if duration_ms > DURATION_MS_MAX:
        what = f"a duration of {len(text)} characters is too long, expected at most 100 years"
        raise RequestError(ErrorCode.INVALID_CONFIG, what)
    return round(duration_ms)
