"""Thumbnails: pictures are made smaller, those that someone waits for before those of the archive.

headwater up examples/thumbnails/app.py
"""

from pathlib import Path

import headwater as hw

EDGE = 64
"""The longer side of a thumbnail."""

app = hw.App("album")


class Picture(hw.Event):
    file: str


class Thumbnail(hw.Event):
    file: str
    width: int
    height: int


app.stream("pictures", Picture, key="file", time=hw.ARRIVAL)
thumbnails = app.stream("thumbnails", Thumbnail, key="file", time=hw.ARRIVAL)


@app.worker("pictures", concurrency=4, timeout="1 minute")
def shrink(picture: Picture, ctx: hw.Work) -> None:
    """Writes a thumbnail beside its picture; a second attempt writes the same file."""
    source = Path(picture.file)
    try:
        width, height, pixels = read_ppm(source.read_bytes())
    except (OSError, ValueError) as error:
        raise hw.RejectError(f"{source} cannot be read: {error}") from error
    step = max(-(-max(width, height) // EDGE), 1)
    rows = (pixels[y * width * 3 : (y + 1) * width * 3] for y in range(0, height, step))
    small = b"".join(row[x * 3 : x * 3 + 3] for row in rows for x in range(0, width, step))
    across, down = -(-width // step), -(-height // step)
    target = source.with_suffix(".thumb.ppm")
    target.write_bytes(b"P6 %d %d 255\n" % (across, down) + small)
    ctx.write(thumbnails, Thumbnail(str(target), across, down))


def read_ppm(content: bytes) -> tuple[int, int, bytes]:
    """Width, height and pixels of a picture in the simplest of formats. ValueError if it is none."""
    kind, width, height, most, pixels = content.split(maxsplit=4)
    if kind != b"P6" or most != b"255" or len(pixels) < int(width) * int(height) * 3:
        raise ValueError("not a PPM file with 8 bits for each colour")
    return int(width), int(height), pixels
