"""Hooks of schedulers, run with stand-ins for the commands that they call."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SLURM = EXAMPLES / "slurm"
SIDECAR = EXAMPLES / "kubernetes" / "sidecar.sh"
MANIFEST = EXAMPLES / "kubernetes" / "job.yaml"
SCRIPTS = sorted([*SLURM.glob("*.sh"), SIDECAR])
_PATIENCE_S = 30.0

STUB = """\
#!{python}
import json, os, signal, sys, time
argv = sys.argv[1:]
with open({log!r}, "a") as log:
    log.write(json.dumps(argv) + "\\n")
fails = os.environ.get("STUB_FAILS", "").split(",")
words = " ".join(argv[:2])
if words in fails:
    print("error: no controller answers", file=sys.stderr)
    sys.exit(1)
once = os.environ.get("STUB_FAILS_ONCE", "")
if words == once and not os.path.exists({log!r} + ".failed"):
    open({log!r} + ".failed", "w").close()
    print("error: the name is taken", file=sys.stderr)
    sys.exit(1)
if words == "job register":
    print(json.dumps({{"id": 7, "generation": 3, "parameters": {{"generation": 99}}}}, indent=2))
elif words == "job env":
    export = "export " if argv[-1] == "shell" else ""
    print(export + "RINGSTEP_JOB_ID=7\\n" + export + "RINGSTEP_GENERATION=3")
elif "--every" in argv:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    time.sleep(60)
"""


class Site:
    """A machine with stand-ins for ``ringstep`` and ``scontrol``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "calls"
        self.bin = folder / "bin"
        self.bin.mkdir()
        self._program("ringstep", STUB.format(python=sys.executable, log=str(self.log)))
        self._program(
            "scontrol", '#!/bin/sh\n[ "$3" = "node[1-3]" ] || exit 1\nprintf "node%s\\n" 1 2 3\n'
        )
        self.env = {
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "RINGSTEP_CONF": str(folder / "none.conf"),
            "RINGSTEP_STATE": str(folder / "state"),
            "RINGSTEP_LOG": str(folder / "log"),
            "SLURM_JOB_ID": "42",
            "SLURM_JOB_NODELIST": "node[1-3]",
            "SLURM_JOB_PARTITION": "gpu",
            "SLURM_JOB_ACCOUNT": "research",
        }

    def _program(self, name: str, text: str) -> None:
        path = self.bin / name
        path.write_text(text)
        path.chmod(0o755)

    def run(self, script: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [script, *arguments],
            env={**self.env, **env},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def calls(self, words: str = "") -> list[list[str]]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [argv for argv in map(json.loads, lines) if " ".join(argv).startswith(words)]

    def wait_for(self, words: str) -> list[str]:
        """The first call that starts so; what runs in the background may come late."""
        deadline = time.monotonic() + _PATIENCE_S
        while not self.calls(words):
            assert time.monotonic() < deadline, self.calls()
            time.sleep(0.02)
        return self.calls(words)[0]

    @property
    def renewer(self) -> int | None:
        path = self.folder / "state" / "slurm-42.pid"
        return int(path.read_text()) if path.exists() else None

    def said(self) -> str:
        path = self.folder / "log"
        return path.read_text() if path.exists() else ""

    def close(self) -> None:
        if self.renewer is not None and alive(self.renewer):
            os.kill(self.renewer, signal.SIGKILL)


def alive(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    # A process that ended and that nobody asked about yet does not live.
    return text.rpartition(")")[2].split()[0] != "Z"


def children_of(pid: int) -> str:
    """Command lines of a process's children."""
    lines = ""
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with suppress(OSError):
            lines += Path(f"/proc/{child}/cmdline").read_text()
    return lines


@pytest.fixture
def site(tmp_path: Path):  # type: ignore[no-untyped-def]
    made = Site(tmp_path)
    yield made
    made.close()


def options(argv: list[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for flag, value in itertools.pairwise(argv):
        if flag.startswith("--"):
            found.setdefault(flag, []).append(value)
    return found


# -- Slurm -----------------------------------------------------------------------------------


def test_prolog_registers_the_nodes_and_keeps_the_lease(site: Site) -> None:
    done = site.run(SLURM / "prolog.sh", SLURM_SCRIPT_CONTEXT="prolog_slurmctld")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    (register,) = site.calls("job register")
    said = options(register)
    assert said["--name"] == ["slurm-42"]
    assert said["--ring"] == ["node1,node2,node3"]
    assert said["--lease"] == ["10m"]
    assert said["--request-id"] == ["slurm-cluster-42-0"]
    assert "--tenant" not in said
    renew = site.wait_for("job renew")
    assert renew == ["job", "renew", "slurm-42", "--every", "60s", "--generation", "3"]
    assert site.renewer is not None
    assert alive(site.renewer)
    assert "registered: Job_ID 7, generation 3" in site.said()


def test_epilog_ends_the_renewals_and_releases(site: Site) -> None:
    site.run(SLURM / "prolog.sh")
    site.wait_for("job renew")
    renewer = site.renewer
    assert renewer is not None
    done = site.run(SLURM / "epilog.sh")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert site.calls("job release") == [["job", "release", "slurm-42", "--generation", "3"]]
    deadline = time.monotonic() + _PATIENCE_S
    while alive(renewer):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert list((site.folder / "state").iterdir()) == []
    # A second epilog has nothing left to do.
    assert site.run(SLURM / "epilog.sh").returncode == 0
    assert len(site.calls("job release")) == 1


def test_prolog_that_runs_twice_asks_for_the_same_registration(site: Site) -> None:
    for _ in range(2):
        assert site.run(SLURM / "prolog.sh").returncode == 0
    first, second = site.calls("job register")
    assert first == second
    first_renewer = site.calls("job renew")
    assert len(first_renewer) <= 2
    assert site.renewer is not None


def test_requeued_job_is_registered_anew_and_what_is_in_its_way_goes(site: Site) -> None:
    done = site.run(SLURM / "prolog.sh", SLURM_RESTART_COUNT="1", STUB_FAILS_ONCE="job register")
    assert done.returncode == 0
    first, second = site.calls("job register")
    assert options(first)["--request-id"] == options(second)["--request-id"]
    assert options(first)["--request-id"] == ["slurm-cluster-42-1"]
    assert len(site.calls("job release")) == 1
    assert "released what an earlier run left" in site.said()


def test_configuration_names_hosts_rails_tenant_and_more(site: Site) -> None:
    (site.folder / "site.conf").write_text(
        "RINGSTEP_HOST_SED='s/^node/h/'\n"
        'RINGSTEP_RAILS="r0 r1"\n'
        "RINGSTEP_TENANT=account\n"
        "RINGSTEP_LEASE=5m\n"
        'RINGSTEP_REGISTER_OPTIONS="--chunk 1MiB --sender persistent"\n'
    )
    site.run(SLURM / "prolog.sh", RINGSTEP_CONF=str(site.folder / "site.conf"))
    (register,) = site.calls("job register")
    said = options(register)
    assert said["--ring"] == ["h1-r0,h2-r0,h3-r0", "h1-r1,h2-r1,h3-r1"]
    assert said["--rail"] == ["r0", "r1"]
    assert (said["--tenant"], said["--lease"]) == (["research"], ["5m"])
    assert (said["--chunk"], said["--sender"]) == (["1MiB"], ["persistent"])


def test_jobs_elsewhere_and_on_one_node_are_left_alone(site: Site) -> None:
    assert site.run(SLURM / "prolog.sh", RINGSTEP_PARTITIONS="other more").returncode == 0
    (site.bin / "scontrol").write_text("#!/bin/sh\necho node1\n")
    assert site.run(SLURM / "prolog.sh").returncode == 0
    assert site.run(SLURM / "epilog.sh").returncode == 0
    assert site.calls() == []


@pytest.mark.parametrize(("strict", "status"), [("0", 0), ("1", 1)])
@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"STUB_FAILS": "job register"}, "not registered: error: no controller answers"),
        ({"SLURM_JOB_NODELIST": "node[9]"}, "show hostnames node[9]' failed"),
        ({"SLURM_JOB_ID": ""}, "no SLURM_JOB_ID"),
        ({"RINGSTEP_BIN": "/none/ringstep"}, "not registered:"),
        ({"SLURM_SCRIPT_CONTEXT": "prolog_slurmd"}, "not made for prolog_slurmd"),
    ],
)
def test_failure_is_logged_and_fails_the_job_only_where_that_is_asked_for(
    site: Site, env: dict[str, str], said: str, strict: str, status: int
) -> None:
    done = site.run(SLURM / "prolog.sh", RINGSTEP_STRICT=strict, **env)
    assert (done.returncode, done.stdout) == (status, "")
    assert said in site.said()
    assert site.calls("job renew") == []


def test_log_that_cannot_be_written_harms_nobody(site: Site) -> None:
    done = site.run(SLURM / "prolog.sh", RINGSTEP_LOG="/nonexistent/log", STUB_FAILS="job register")
    assert done.returncode == 0
    assert "not registered" in done.stderr


def test_epilog_whose_release_fails_leaves_it_to_the_lease(site: Site) -> None:
    site.run(SLURM / "prolog.sh")
    done = site.run(SLURM / "epilog.sh", STUB_FAILS="job release", RINGSTEP_STRICT="1")
    assert done.returncode == 0
    assert "not released, its lease will run out: error: no controller answers" in site.said()


def test_epilog_does_not_end_a_stranger_with_the_number_of_its_own(site: Site) -> None:
    with subprocess.Popen(["sleep", "60"]) as stranger:
        (site.folder / "state").mkdir()
        (site.folder / "state" / "slurm-42.pid").write_text(f"{stranger.pid}\n")
        (site.folder / "state" / "slurm-42.generation").write_text("3\n")
        site.run(SLURM / "epilog.sh")
        assert stranger.poll() is None
        stranger.kill()


def test_task_prolog_exports_the_environment(site: Site) -> None:
    done = site.run(SLURM / "prolog.sh", SLURM_SCRIPT_CONTEXT="prolog_task")
    assert (done.returncode, done.stdout) == (
        0, "export RINGSTEP_JOB_ID=7\nexport RINGSTEP_GENERATION=3\n",
    )  # fmt: skip
    assert site.calls() == [["job", "env", "slurm-42", "--format", "dotenv"]]
    silent = site.run(SLURM / "prolog.sh", "environment", STUB_FAILS="job env")
    assert (silent.returncode, silent.stdout) == (0, "")
    one = site.run(SLURM / "prolog.sh", "environment", SLURM_JOB_NUM_NODES="1")
    assert (one.returncode, one.stdout) == (0, "")


def test_example_of_the_configuration_is_one(site: Site) -> None:
    done = site.run(
        SLURM / "prolog.sh", "environment", RINGSTEP_CONF=str(SLURM / "ringstep.conf.example")
    )
    # Its paths are not there; that it was read is said by what was called.
    assert done.returncode == 0
    text = (SLURM / "ringstep.conf.example").read_text()
    names = set(re.findall(r"^#?(RINGSTEP_\w+)=", text, re.MULTILINE))
    used = "".join(path.read_text() for path in SLURM.glob("*.sh"))
    commands = {"RINGSTEP_CONTROLLER", "RINGSTEP_CA", "RINGSTEP_TOKEN_FILE"}
    assert {name for name in names if name not in used} == commands


# -- Kubernetes ------------------------------------------------------------------------------


@pytest.fixture
def pod(site: Site) -> Site:
    site.env |= {
        "RINGSTEP_JOB_NAME": "resnet",
        "RINGSTEP_RING": "h1,h2 h3,h4",
        "RINGSTEP_REQUEST_ID": "uid-1",
        "RINGSTEP_ENV_FILE": str(site.folder / "env"),
    }
    return site


def test_init_container_registers_and_hands_the_environment_over(pod: Site) -> None:
    for _ in range(2):  # As every pod of the job does.
        assert pod.run(SIDECAR, "register").returncode == 0
    first, second = pod.calls("job register")
    assert first == second
    said = options(first)
    assert (said["--name"], said["--ring"]) == (["resnet"], ["h1,h2", "h3,h4"])
    assert said["--request-id"] == ["uid-1"]
    assert (pod.folder / "env").read_text() == (
        "export RINGSTEP_JOB_ID=7\nexport RINGSTEP_GENERATION=3\n"
    )


@pytest.mark.parametrize(("strict", "status"), [("0", 0), ("1", 1)])
@pytest.mark.parametrize(
    "env", [{"STUB_FAILS": "job register"}, {"STUB_FAILS": "job env"}, {"RINGSTEP_RING": ""}]
)
def test_pod_without_a_controller_trains_all_the_same(
    pod: Site, env: dict[str, str], strict: str, status: int
) -> None:
    done = pod.run(SIDECAR, "register", RINGSTEP_STRICT=strict, **env)
    assert done.returncode == status
    assert done.stderr.startswith("ringstep: no")
    assert (pod.folder / "env").read_text() == ""
    assert pod.run(SIDECAR, "release").returncode == 0
    assert pod.calls("job release") == []


@pytest.mark.parametrize("registered", [True, False])
def test_sidecar_renews_until_it_is_told_to_end(pod: Site, registered: bool) -> None:
    if registered:
        pod.run(SIDECAR, "register")
    with subprocess.Popen([SIDECAR, "renew"], env=pod.env) as process:
        if registered:
            assert pod.wait_for("job renew") == [
                "job", "renew", "resnet", "--every", "60s", "--generation", "3",
            ]  # fmt: skip
        else:
            deadline = time.monotonic() + _PATIENCE_S
            while "sleep" not in children_of(process.pid):
                assert time.monotonic() < deadline
                time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        assert process.wait(_PATIENCE_S) == 0


def test_only_the_first_pod_releases(pod: Site) -> None:
    pod.run(SIDECAR, "register")
    assert pod.run(SIDECAR, "release", JOB_COMPLETION_INDEX="2").returncode == 0
    assert pod.calls("job release") == []
    assert pod.run(SIDECAR, "release", JOB_COMPLETION_INDEX="0").returncode == 0
    assert pod.calls("job release") == [["job", "release", "resnet", "--generation", "3"]]
    failed = pod.run(SIDECAR, "release", STUB_FAILS="job release")
    assert (failed.returncode, "its lease will run out" in failed.stderr) == (0, True)


def test_sidecar_says_how_it_is_used(pod: Site) -> None:
    assert pod.run(SIDECAR).returncode == 2


def test_manifest_has_the_containers_and_their_settings() -> None:
    text = MANIFEST.read_text()
    yaml = None
    try:
        import yaml
    except ImportError:
        # Without PyYAML: what matters is there, and indented by spaces.
        assert "\t" not in text
        assert re.findall(r"^ {8}- name: (ringstep-\S+)$", text, re.MULTILINE) == [
            "ringstep-register", "ringstep-renew",
        ]  # fmt: skip
        for part in ("restartPolicy: Always", "[/hooks/sidecar.sh, renew]", "emptyDir: {}"):
            assert part in text
        named = set(re.findall(r"- name: (RINGSTEP_\w+)$", text, re.MULTILINE))
    else:
        pod = yaml.safe_load(text)["spec"]["template"]["spec"]
        register, renew = pod["initContainers"]
        assert register["command"][1:] == ["register"]
        assert (renew["command"][1:], renew["restartPolicy"]) == (["renew"], "Always")
        assert renew["lifecycle"]["preStop"]["exec"]["command"][1:] == ["release"]
        volumes = {volume["name"] for volume in pod["volumes"]}
        for container in (*pod["initContainers"], *pod["containers"]):
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
        named = {one["name"] for one in register["env"] if one["name"].startswith("RINGSTEP_")}
    told = SIDECAR.read_text()
    assert {name for name in named if name not in told} == set()


# -- both ------------------------------------------------------------------------------------


def test_options_that_hooks_use_are_the_commands() -> None:
    """The stand-ins take any option; the command must have those."""
    from commands import run

    texts = "".join(path.read_text() for path in (*SCRIPTS, SLURM / "ringstep.conf.example"))
    helped = "".join(
        run("job", command, "--help").stdout for command in ("register", "renew", "release", "env")
    )
    for option in sorted(set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", texts))):
        assert option in helped, option


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_clean(script: Path) -> None:
    shellcheck = shutil.which("shellcheck")
    if shellcheck is None:
        pytest.skip("shellcheck is not installed: apt-get install shellcheck")
    done = subprocess.run(
        [shellcheck, "-x", script.relative_to(EXAMPLES.parent)],
        cwd=EXAMPLES.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_need_no_more_than_a_posix_shell(script: Path) -> None:
    shell = shutil.which("dash") or "/bin/sh"
    done = subprocess.run([shell, "-n", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert os.access(script, os.X_OK) == (script.name != "common.sh")
