"""The headers of records that say how a queue is to deliver them, and who waits for a reply.

    headwater-due           not before this time
    headwater-priority      0 to 9, the highest first
    headwater-expires       not after this time
    headwater-id            another record of this id is a duplicate
    headwater-reply-to      the topic of replies
    headwater-correlation   which request a reply belongs to; the reply has it too
    headwater-error         of a reply: why there is none

Times are milliseconds since 1970 UTC. All values are text.
"""

__all__ = [
    "CORRELATION_HEADER",
    "DUE_HEADER",
    "ERROR_HEADER",
    "EXPIRES_HEADER",
    "ID_HEADER",
    "PRIORITY_HEADER",
    "REPLY_TO_HEADER",
]

DUE_HEADER = "headwater-due"
PRIORITY_HEADER = "headwater-priority"
EXPIRES_HEADER = "headwater-expires"
ID_HEADER = "headwater-id"
REPLY_TO_HEADER = "headwater-reply-to"
CORRELATION_HEADER = "headwater-correlation"
ERROR_HEADER = "headwater-error"
