"""Profiles: the file keeps no secrets, and a profile is used as a whole or not at all."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cli_inline import call, json_output

from tierlog.cli import client_config, cluster_files, profiles
from tierlog.cli.commands.cluster_local import profile_warning
from tierlog.cli.errors import CliError, ExitCode
from tierlog.client.admin import variable

CLOSED = "127.0.0.1:1"
OTHER = "127.0.0.1:2"


@pytest.fixture(autouse=True)
def configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the file."""
    for name in ("TIERLOG_BOOTSTRAP", "TIERLOG_ADMIN", "TIERLOG_CLIENT_CONFIG", "TIERLOG_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "config"


def create(name: str, *words: str) -> None:
    ended = call("profile", "create", name, *words)
    assert ended.code == 0, ended.stderr


def target(*words: str) -> str:
    """The target that a command prints before it fails to reach it."""
    ended = call("topic", "create", "t", *words)
    assert ended.code == ExitCode.UNREACHABLE, ended.stderr
    return ended.stderr.splitlines()[0].removeprefix("target: ")


def test_only_the_owner_can_read_the_file_and_it_has_no_secrets(
    configuration: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROD_PASSWORD", "open sesame")
    create("prod", "-b", CLOSED, "--user", "ada", "--password", "env:PROD_PASSWORD")
    file = configuration / "tierlog" / "profiles.yaml"
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o077 == 0
    assert "open sesame" not in file.read_text()
    assert "open sesame" not in call("profile", "show", "prod").stdout
    found = profiles.load().named("prod").client_properties()
    assert found["sasl.password"] == "open sesame"
    assert found["security.protocol"] == "SASL_SSL"


def test_changes_at_the_same_time_lose_none_of_each_other(configuration: Path) -> None:
    def add(name: str) -> None:
        with profiles.changing() as before:
            added = profiles.Profile(name, {"bootstrap": CLOSED})
            profiles.save(profiles.Profiles("", {**before.by_name, name: added}))

    names = {f"cluster-{number}" for number in range(20)}
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, names))
    assert profiles.load().by_name.keys() == names


def test_file_behind_a_link_is_changed_and_the_link_stays(configuration: Path, tmp_path: Path) -> None:
    (configuration / "tierlog").mkdir(parents=True)
    link, real = configuration / "tierlog" / "profiles.yaml", tmp_path / "dotfiles.yaml"
    real.touch(0o600)
    link.symlink_to(real)
    create("prod", "-b", CLOSED)
    assert link.is_symlink() and "prod" in real.read_text()


@pytest.mark.parametrize("option", ["--password", "--key-password", "--admin-password", "--admin-token"])
def test_a_secret_in_place_of_its_reference_is_refused(option: str, configuration: Path) -> None:
    ended = call("profile", "create", "prod", "-b", CLOSED, "--user", "ada", option, "open sesame")
    assert ended.code == ExitCode.USAGE and "env:VARIABLE" in ended.stderr
    assert "sesame" not in ended.stderr and not configuration.exists()


def test_a_file_that_others_can_change_is_refused(configuration: Path) -> None:
    create("prod", "-b", CLOSED)
    (configuration / "tierlog" / "profiles.yaml").chmod(0o666)
    ended = call("topic", "list", "--profile", "prod")
    assert ended.code == ExitCode.USAGE and "chmod 600" in ended.stderr


@pytest.mark.parametrize(
    "text", ["- a\n", "profiles:\n  p:\n    bootstrop: x\n", "profiles:\n  p: x\n", "[" * 5_000]
)
def test_a_damaged_file_is_named(text: str, configuration: Path) -> None:
    create("prod", "-b", CLOSED)
    file = configuration / "tierlog" / "profiles.yaml"
    file.write_text(text)
    ended = call("topic", "list")
    assert ended.code == ExitCode.USAGE and str(file) in ended.stderr


def test_a_secret_in_the_file_is_refused_with_the_names_of_file_and_profile(configuration: Path) -> None:
    create("prod", "-b", CLOSED)
    file = configuration / "tierlog" / "profiles.yaml"
    file.write_text("profiles:\n  stage:\n    password: sesame\n")
    ended = call("profile", "list")
    assert ended.code == ExitCode.USAGE
    assert f"{file}: profile stage: password is not a reference" in ended.stderr
    assert "sesame" not in ended.stderr


def test_precedence_of_options_variables_and_profiles(monkeypatch: pytest.MonkeyPatch) -> None:
    directory = Path.cwd()
    assert target("--bootstrap", CLOSED) == CLOSED
    create("prod", "-b", CLOSED, "--use")
    create("stage", "-b", OTHER)
    assert target() == f"{CLOSED} (profile prod)"
    monkeypatch.setenv("TIERLOG_PROFILE", "stage")
    assert target() == f"{OTHER} (profile stage)"
    assert target("--profile", "prod") == f"{CLOSED} (profile prod)"
    assert target("--bootstrap", "127.0.0.1:3") == "127.0.0.1:3"
    monkeypatch.setenv("TIERLOG_BOOTSTRAP", "127.0.0.1:4")
    assert target() == "127.0.0.1:4"
    ended = call("topic", "create", "t", "--profile", "prod")
    assert ended.code == ExitCode.USAGE and "TIERLOG_BOOTSTRAP" in ended.stderr
    ended = call("topic", "create", "t", "--profile", "prod", "--bootstrap", OTHER)
    assert ended.code == ExitCode.USAGE and "--bootstrap" in ended.stderr
    assert Path.cwd() == directory


def test_a_profile_in_use_comes_before_the_local_cluster(tmp_path: Path) -> None:
    cluster_files.save(tmp_path / "local", cluster_files.new_plan(1))
    cluster_files.set_last_started(tmp_path / "local")
    assert "the local cluster" in target()
    create("prod", "-b", CLOSED, "--admin", f"http://{CLOSED}", "--use")
    assert target() == f"{CLOSED} (profile prod)"
    health = call("cluster", "health")
    assert health.code == ExitCode.UNREACHABLE and CLOSED in health.stderr


def test_a_local_cluster_says_that_commands_go_to_the_profile_in_use(
    configuration: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = cluster_files.new_plan(1)
    assert profile_warning(plan) == ""
    create("prod", "-b", CLOSED, "--use")
    warning = profile_warning(plan)
    assert "The profile prod is in use" in warning and f"--bootstrap {plan.bootstrap}" in warning
    monkeypatch.setenv("TIERLOG_PROFILE", "other")
    assert "profile other" in profile_warning(plan)
    monkeypatch.delenv("TIERLOG_PROFILE")
    (configuration / "tierlog" / "profiles.yaml").write_text("- damaged")
    assert profile_warning(plan) == "", "the cluster runs all the same"


def test_client_settings_leave_the_profile_out(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(f"bootstrap.servers={OTHER}\n")
    create("prod", "-b", CLOSED, "--use")
    assert target("--client-config", str(file)) == OTHER
    refused = call("topic", "delete", "t", "--client-config", str(file))
    assert f"in {OTHER}?" in refused.stderr


def test_an_admin_login_goes_only_where_the_profile_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "bearer of news")
    create("prod", "-b", CLOSED, "--admin-token", "env:TOKEN", "--admin-ca", "/etc/ca.pem")
    client_config.choose_profile("prod", [])
    try:
        assert variable("TIERLOG_ADMIN_CA") == "/etc/ca.pem"
        assert client_config.admin_login("https://a:9644") == {"Authorization": "Bearer bearer of news"}
        assert client_config.admin_login("http://a:9644") == {}, "without TLS"
        monkeypatch.setenv("TIERLOG_ADMIN_CA", "/etc/other.pem")
        assert variable("TIERLOG_ADMIN_CA") == "/etc/other.pem"
    finally:
        client_config.remember(None)
    assert client_config.admin_login("https://a:9644") == {}
    monkeypatch.delenv("TIERLOG_ADMIN_CA")
    assert variable("TIERLOG_ADMIN_CA") is None


@pytest.mark.parametrize(
    ("addresses", "is_sent"),
    [
        (("-b", "prod.example:9092"), False),
        (("-a", "https://prod.example:9644,http://127.0.0.1:9644"), False),
        (("-b", CLOSED), True),
        (("-b", "prod.example:9092", "-a", "http://localhost:9644"), True),
        (("-a", "http://[::1]:9644"), True),
    ],
)
def test_a_remote_cluster_cannot_send_the_login_to_a_port_of_this_machine(
    addresses: tuple[str, ...], is_sent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes name the addresses of each other, and another user of this machine may have bound that port."""
    monkeypatch.setenv("TOKEN", "bearer of news")
    create("prod", *addresses, "--admin-token", "env:TOKEN")
    client_config.choose_profile("prod", [])
    try:
        assert bool(client_config.admin_login("http://127.0.0.1:9644")) is is_sent
    finally:
        client_config.remember(None)


def test_a_reference_without_a_value_is_named(tmp_path: Path) -> None:
    create("prod", "-b", CLOSED, "--user", "ada", "--password", f"file:{tmp_path}/missing")
    ended = call("topic", "list", "--profile", "prod")
    assert ended.code == 1 and f"{tmp_path}/missing" in ended.stderr
    create("stage", "-b", CLOSED, "--user", "ada", "--password", "env:NO_SUCH_VARIABLE")
    ended = call("topic", "list", "--profile", "stage")
    assert ended.code == 1 and "NO_SUCH_VARIABLE" in ended.stderr


def test_profiles_are_listed_shown_used_and_deleted() -> None:
    create("prod", "-b", CLOSED, "--use")
    create("stage", "--admin", f"http://{OTHER}")
    assert call("profile", "create", "stage", "-b", CLOSED).code == 1
    [rows] = json_output("profile", "list")
    assert [(row["name"], row["in_use"]) for row in rows] == [("prod", True), ("stage", False)]
    assert call("profile", "prompt").stdout == f"prod ({CLOSED})\n"
    assert call("profile", "use", "stage").code == 0
    assert json_output("profile", "prompt") == [{"profile": "stage", "target": f"http://{OTHER}"}]
    assert json.loads(call("profile", "show", "--json").stdout)["admin"] == f"http://{OTHER}"
    refused = call("profile", "delete", "stage")
    assert refused.code == 1 and "--yes" in refused.stderr
    assert call("profile", "delete", "stage", "--yes").code == 0
    assert call("profile", "show").code == ExitCode.NOT_FOUND
    assert call("profile", "prompt").stdout == ""


@pytest.mark.parametrize(
    "words",
    [
        ("pr/od", "-b", CLOSED),
        ("prod",),
        ("prod", "-b", CLOSED, "--protocol", "TLS"),
        ("prod", "-b", CLOSED, "--user", "ada"),
        ("prod", "-b", CLOSED, "--protocol", "SASL_SSL"),
        ("prod", "-b", CLOSED, "--user", "ada", "--password", "env:P", "--mechanism", "NTLM"),
        ("prod", "-b", CLOSED, "--user", "ada", "--password", "env:"),
    ],
)
def test_incomplete_profiles_are_refused(words: tuple[str, ...]) -> None:
    ended = call("profile", "create", *words)
    assert ended.code == ExitCode.USAGE and len(ended.stderr.splitlines()) == 2
    with pytest.raises(CliError):
        profiles.load().named("prod")
