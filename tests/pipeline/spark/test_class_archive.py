"""Spark's classes, kept for faster starts."""

import os
import subprocess
from pathlib import Path

import pyspark
import pytest

from headwater.operate.machine.keep_classes import keep
from headwater.pipeline.spark import class_archive, java

SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"


def submitted(*options: str) -> subprocess.CompletedProcess[str]:
    """Spark's own start with these options for its JVM; it only says its version."""
    environ = os.environ | {"SPARK_SUBMIT_OPTS": " ".join(options), "SPARK_HOME": str(SUBMIT.parents[1])}
    return subprocess.run(
        [SUBMIT, "--version"], env=environ, capture_output=True, text=True, timeout=400, check=False
    )


@pytest.fixture
def options() -> list[str]:
    keep()
    return class_archive.options(java.require())


def test_without_kept_classes_nothing_is_asked_of_the_jvm(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert class_archive.options(java.require()) == []


def test_a_jvm_takes_sparks_classes_from_the_file(tmp_path, options):
    log = tmp_path / "classes"
    assert submitted(*options, f"-Xlog:class+load:file={log}").returncode == 0
    loaded = next(
        line for line in log.read_text().splitlines() if " org.apache.spark.deploy.SparkSubmit " in line
    )
    assert loaded.endswith("shared objects file (top)")


def test_a_file_that_was_cut_off_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = java.require()
    path = class_archive.place(found, 1000)
    path.parent.mkdir(parents=True)
    path.write_bytes(bytes(1000))
    assert class_archive.find(found) == path
    path.write_bytes(bytes(999))
    assert class_archive.options(found) == []


def test_an_archive_of_jars_that_were_installed_again_is_not_used(tmp_path, monkeypatch):
    """In the same place and of the same version, with other times: a JVM refuses what was made of the old ones, without a word."""
    installed = tmp_path / "pyspark"
    (installed / "jars").mkdir(parents=True)
    jar = installed / "jars" / "spark.jar"
    jar.write_bytes(b"")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(pyspark, "__file__", str(installed / "__init__.py"))
    found = java.require()
    kept = class_archive.place(found, 3)
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_bytes(b"abc")
    assert class_archive.find(found) == kept
    os.utime(jar, (1, 1))
    assert class_archive.find(found) is None
    assert class_archive.others(found, class_archive.place(found, 3)) == [kept]
