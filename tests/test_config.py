"""Settings: where they come from, which wins, and what a wrong one is answered with."""

from pathlib import Path

import pytest

from headwater.access import Access
from headwater.config import Settings, load
from headwater.errors import UsageError


def write(tmp_path, text):
    file = tmp_path / "headwater.toml"
    file.write_text(text)
    return file


def complaint(**given):
    with pytest.raises(UsageError) as caught:
        load(**({"environ": {}} | given))
    return str(caught.value)


def test_without_a_file_and_environment_the_defaults_hold(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load(environ={}) == Settings()


def test_the_environment_wins_over_the_file_and_the_caller_over_both(tmp_path):
    file = write(tmp_path, "broker_port = 1000\nconsole_port = 1001\npartitions = 3\n")
    environ = {"HEADWATER_BROKER_PORT": "2000", "HEADWATER_CONSOLE_PORT": "2001", "PATH": "/bin"}
    settings = load(file, environ, broker_port=3000, partitions=None)
    assert (settings.broker_port, settings.console_port, settings.partitions) == (3000, 2001, 3)


def test_a_file_in_the_working_folder_is_read(tmp_path, monkeypatch):
    write(tmp_path, 'flush = "os"\n')
    monkeypatch.chdir(tmp_path)
    assert load(environ={}).flush == "os"


def test_an_unknown_setting_is_named_with_the_nearest_right_one(tmp_path):
    expected = "unknown setting 'brocker_port'; did you mean 'broker_port'?"
    assert complaint(path=write(tmp_path, "brocker_port = 9092\n")) == expected
    assert complaint(environ={"HEADWATER_BROCKER_PORT": "9092"}) == expected


def test_an_unknown_setting_that_resembles_nothing_lists_all_of_them():
    assert "settings are: log, log_user, " in complaint(environ={"HEADWATER_XYZ": "1"})


@pytest.mark.parametrize(
    ("variable", "value", "answer"),
    [
        ("BROKER_PORT", "many", "setting 'broker_port' is wrong; got 'many'; expected `int`"),
        ("BROKER_PORT", "70000", "setting 'broker_port' is wrong; got '70000'; expected `int` <= 65535"),
        ("PARTITIONS", "0", "setting 'partitions' is wrong; got '0'; expected `int` >= 1"),
        ("FLUSH", "never", "setting 'flush' is wrong; got 'never'; expected "),
        (
            "LOG",
            "redis://there",
            "setting 'log' is wrong; got 'redis://there'; expected embedded:… or kafka://… or kafkas://…",
        ),
        ("SPARK", "yarn", "setting 'spark' is wrong; got 'yarn'; expected local… or spark://…"),
        ("VIEW_TABLES", "./views", "setting 'view_tables' is wrong; got './views'; expected sqlite:…"),
        ("STORE", "sqlite:./views", "unknown setting 'store'; it is called 'view_tables' now"),
    ],
)
def test_a_wrong_value_is_answered_with_the_key_what_was_got_and_what_was_expected(variable, value, answer):
    assert complaint(environ={f"HEADWATER_{variable}": value}).startswith(answer)


def test_a_file_that_is_not_toml_is_named_with_the_place(tmp_path):
    assert "is not TOML: " in complaint(path=write(tmp_path, "broker_port: 9092\n"))


def test_a_file_that_was_asked_for_must_exist(tmp_path):
    assert complaint(path=tmp_path / "other.toml").endswith("other.toml does not exist")


def test_settings_cannot_be_changed():
    with pytest.raises(AttributeError):
        Settings().partitions = 3


def test_the_log_is_embedded_or_an_apache_kafka():
    assert Settings(log="embedded:/d", broker_port=9).bootstrap == "127.0.0.1:9"
    assert Settings(log="embedded:/d").embedded == Path("/d")
    kafka = Settings(log="kafka://a:9092,b:9092")
    assert kafka.embedded is None
    assert kafka.bootstrap == "a:9092,b:9092"


def test_settings_survive_the_way_through_the_environment_of_a_child():
    settings = Settings(log="kafka://a:1", flush="os", partitions=7, trigger_ms=5, users={"alice": "secret"})
    assert load(environ=settings.environ()) == settings


def test_the_settings_say_how_the_log_is_reached(tmp_path):
    ca = write(tmp_path, "")
    kafka = load(
        environ={},
        log="kafkas://a:1,b:1",
        log_user="u",
        log_password="p",
        log_ca=str(ca),
        log_options={"x": "y"},
    )
    assert kafka.access == Access("a:1,b:1", tls=True, ca=str(ca), user="u", password="p", options={"x": "y"})
    assert load(environ={}, log="kafka://a:1").access == Access("a:1")
    assert load(environ=kafka.environ()) == kafka


def test_an_embedded_log_with_users_and_tls_is_reached_by_its_first_user():
    embedded = Settings(users={"alice": "a", "bob": "b"}, tls_certificate="cert.pem")
    assert embedded.access == Access("127.0.0.1:9092", tls=True, ca="cert.pem", user="alice", password="a")
    assert Settings(users={"alice": "a", "bob": "b"}, log_user="bob").access.password == "b"
    assert "only one of them" in complaint(log="kafka://a:1", log_user="u")
    assert "not a user of the embedded log" in complaint(log_user="u")
    assert "does not name a file" in complaint(log="kafkas://a:1", log_ca="nowhere.pem")
    assert 'log = "kafkas://…"' in complaint(log="kafka://a:1", log_ca=__file__)


def test_no_error_and_no_text_of_settings_holds_a_password():
    assert "swordfish" not in complaint(log="kafka://alice:swordfish@a:1")
    assert "swordfish" not in complaint(environ={"HEADWATER_USERS": '{"alice": "swordfish"'})
    assert "swordfish" not in complaint(log_options={"sasl.password": ["swordfish"]})
    assert "swordfish" not in complaint(log_password=["swordfish"])
    assert "swordfish" not in complaint(users={"alice": ["swordfish"]})
    assert "swordfish" not in repr(Settings(users={"alice": "swordfish"}, log_password="swordfish"))


def test_options_of_spark_are_spark_s_own_and_none_that_rows_depend_on():
    given = {"HEADWATER_SPARK_OPTIONS": '{"spark.executor.memory": "4g"}'}
    assert load(environ=given).spark_options == {"spark.executor.memory": "4g"}
    assert "names of Spark" in complaint(spark_options={"executor.memory": "4g"})
    assert "that is the setting 'spark'" in complaint(spark_options={"spark.master": "yarn"})
    assert "times are UTC" in complaint(spark_options={"spark.sql.session.timeZone": "CET"})


def test_topics_have_as_many_replicas_as_the_settings_say():
    assert load(environ={}).access.replication == -1
    assert load(environ={}, log="kafka://a:1", replication=3).access.replication == 3
    assert "it is one broker" in complaint(replication=3)
    assert "-1, or at least 1" in complaint(log="kafka://a:1", replication=0)
