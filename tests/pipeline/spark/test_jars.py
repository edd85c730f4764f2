"""The connector jars: verified, cached, and one clear line when they cannot be had."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from headwater.errors import MachineError
from headwater.pipeline.spark import jars


@pytest.fixture(scope="module")
def cached():
    return jars.ensure()


def test_cached_jars_are_taken_without_network(cached, tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    assert jars.ensure() == cached
    assert [path.name for path in cached] == [jar.file for jar in jars.COORDINATES]


def test_the_cache_follows_the_xdg_setting(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert jars.cache() == tmp_path / "headwater" / "jars"


def test_a_damaged_jar_is_replaced(cached, tmp_path, monkeypatch):
    """The good copy comes from a local Maven repository, the place that is asked first."""
    folder, home = tmp_path / "jars", tmp_path / "home"
    shutil.copytree(cached[0].parent, folder)
    jar = jars.COORDINATES[0]
    place = home.joinpath(".m2", "repository", *jar.group.split("."), jar.artifact, jar.version)
    place.mkdir(parents=True)
    shutil.copy(cached[0], place / jar.file)
    (folder / jar.file).write_bytes(b"damaged")
    monkeypatch.setenv("HOME", str(home))
    assert jars.ensure(folder)[0].read_bytes() == cached[0].read_bytes()


def test_a_failed_fetch_names_the_artifact_and_where_the_client_looked(cached, tmp_path, monkeypatch):
    folder = tmp_path / "jars"
    shutil.copytree(cached[0].parent, folder)
    jar = jars.COORDINATES[-1]
    (folder / jar.file).unlink()
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "mvn").write_text(
        f"#!{sys.executable}\nprint('cannot reach the repository')\nraise SystemExit(1)\n"
    )
    (tools / "mvn").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DEFAULT_ARTIFACT_REPOSITORY", "http://127.0.0.1:9/nowhere/")
    with pytest.raises(MachineError) as caught:
        jars.ensure(folder)
    said = str(caught.value)
    assert said.startswith(f"jar {jar.coordinates} is missing and could not be fetched")
    assert str(Path(tmp_path) / ".m2") in said
    assert "127.0.0.1:9/nowhere" in said
    assert "Maven: cannot reach the repository" in said
    assert f"put {jar.file} into {folder}" in said
    assert "\n" not in said
