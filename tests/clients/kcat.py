"""kcat, run once."""

import subprocess

__all__ = ["kcat"]


def kcat(bootstrap: str, *arguments: str, text: str = "") -> str:
    done = subprocess.run(
        ["kcat", "-b", bootstrap, *arguments],
        input=text,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
