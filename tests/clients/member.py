"""A member of a group whose every request is its own."""

from typing import TYPE_CHECKING, Any

from clients.answers import named, subscription
from headwater.errors import ErrorCode

if TYPE_CHECKING:
    from clients.onelog import Log


ATTEMPTS = 10


class Member:
    """The one member of a group: it joins, leads and is given nothing."""

    def __init__(
        self, log: "Log", group: str, topics: list[str], instance: str | None, session_ms: int
    ) -> None:
        self._log, self.group, self.id = log, group, ""
        self.instance = instance
        protocols = [{"name": "range", "metadata": subscription(topics)}]
        for _ in range(ATTEMPTS):
            joined = log.call(
                "JoinGroup",
                7,
                group_id=group,
                session_timeout_ms=session_ms,
                rebalance_timeout_ms=session_ms,
                member_id=self.id,
                group_instance_id=instance,
                protocol_type="consumer",
                protocols=protocols,
            )
            if (
                joined.error_code == ErrorCode.UNKNOWN_MEMBER_ID
            ):  # a broker that starts forgets who has begun to join
                self.id = ""
                continue
            self.id = joined.member_id
            if joined.error_code != ErrorCode.MEMBER_ID_REQUIRED:
                break
        self.generation = joined.generation_id
        assert joined.error_code == 0, named(joined.error_code)

    def sync(self) -> str:
        answer = self._log.call(
            "SyncGroup",
            5,
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.id,
            group_instance_id=self.instance,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[{"member_id": self.id, "assignment": b"\0\0\0\0\0\0\0\0\0\0"}],
        )
        return named(answer.error_code)

    def beat(self, generation: int | None = None, member: str | None = None) -> str:
        answer = self._log.call(
            "Heartbeat",
            4,
            group_id=self.group,
            generation_id=self.generation if generation is None else generation,
            member_id=self.id if member is None else member,
            group_instance_id=self.instance,
        )
        return named(answer.error_code)

    def leave(self) -> str:
        members = [{"member_id": self.id, "group_instance_id": self.instance}]
        answer = self._log.call("LeaveGroup", 5, group_id=self.group, members=members)
        return named(answer.members[0].error_code)

    @property
    def identity(self) -> dict[str, Any]:
        """What a commit says of its member."""
        return {"generation_id_or_member_epoch": self.generation, "member_id": self.id}
