"""Draws requests per minute twice: by when the pipeline counted them, and by when they were made.

python examples/redeploy/draw.py redeploy.svg

The first is what a counter in a consumer shows; here it is read from ``rate.progress``, which says what each batch took and when.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from headwater.client.client import Client
from headwater.config import load
from headwater.follow.results import results
from headwater.result import Result

WIDTH, HEIGHT, GAP = 360, 160, 40
MINUTE = timedelta(minutes=1)


def counted(found: Iterable[Result]) -> dict[datetime, int]:
    """Requests by the minute in which the pipeline took them."""
    counts: Counter[datetime] = Counter()
    before = 0
    for result in found:
        reached = sum(offset for ends in result.inputs.values() for offset in ends.values())
        at = datetime.fromtimestamp(result.now_us / 1e6, UTC).replace(second=0, microsecond=0)
        counts[at] += reached - before
        before = reached
    return dict(counts)


def made(rows: Iterable[Mapping[str, object]]) -> dict[datetime, int]:
    """Requests by the minute in which they were made: the rows of the view."""
    return {datetime.fromisoformat(row["window"]["start"]): row["requests"] for row in rows}  # type: ignore[index,misc]


def svg(panels: Sequence[tuple[str, Mapping[datetime, int]]]) -> str:
    """Bars for each minute from the first to the last of all panels, side by side, on one scale."""
    known = [minute for _, counts in panels for minute in counts]
    first, steps = min(known), int((max(known) - min(known)) / MINUTE) + 1
    most = max(count for _, counts in panels for count in counts.values())
    wide = WIDTH / steps
    width = len(panels) * (WIDTH + GAP)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{HEIGHT + 60}" font-family="sans-serif" font-size="12">'
    parts = [head]
    for number, (title, counts) in enumerate(panels):
        left = number * (WIDTH + GAP) + GAP / 2
        parts.append(f'<text x="{left}" y="16" fill="#777">{title}</text>')
        for step in range(steps):
            count = counts.get(first + step * MINUTE, 0)
            tall = HEIGHT * count / most
            x, y = left + step * wide, 30 + HEIGHT - tall
            parts.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide - 2:.1f}" height="{tall:.1f}" fill="#2f7d5b"/>'
            )
            parts.append(
                f'<text x="{x + wide / 2 - 1:.1f}" y="{y - 3:.1f}" text-anchor="middle" fill="#777">{count}</text>'
            )
        parts += [
            f'<text x="{left}" y="{HEIGHT + 46}" fill="#777">{first:%H:%M}</text>',
            f'<text x="{left + WIDTH}" y="{HEIGHT + 46}" text-anchor="end" fill="#777">{first + (steps - 1) * MINUTE:%H:%M}</text>',
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"


def draw(client: Client, view: str = "rate") -> str:
    """The picture for a view as the log has it."""
    rows = {record.key(): json.loads(record.value()) for record in client.read([view])}
    by_count, by_time = counted(results(client, view)), made(rows.values())
    return svg([("by when they were counted", by_count), ("by when they were made", by_time)])


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(draw(Client(load().access)))
