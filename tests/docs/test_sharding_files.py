"""The files that begin shards on Kubernetes, on Slurm, over ssh and on one machine: checked, and run with processes."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from support.commands import clean_environment, template
from support.project import ProjectFolder
from support.server import Server, simulator
from support.services import services, starts, starts_service

from agac.core.errors import ExitCode

ROOT = Path(__file__).resolve().parents[2]
FILES = ROOT / "docs/examples/sharding"
SCRIPTS = sorted(path for path in FILES.iterdir() if path.suffix in (".sh", ".sbatch"))
MANIFESTS = sorted(FILES.glob("*.yml"))
JOB = Draft202012Validator(json.loads(Path(__file__).with_name("kubernetes-1.37-job.json").read_text("utf-8")))
"""What Kubernetes 1.37 publishes (Apache-2.0) of a Job and all that can stand in it, strict, without descriptions."""


def read(name: str) -> Any:
    return yaml.safe_load((FILES / name).read_text("utf-8"))


def container(manifest: Any) -> Any:
    (one,) = manifest["spec"]["template"]["spec"]["containers"]
    return one


def problems(manifest: Any) -> list[str]:
    """What Kubernetes would refuse: the schema's part, and of its own rules those about what stands in our files."""
    found = [f"{'.'.join(map(str, error.path))}: {error.message}" for error in JOB.iter_errors(manifest)]
    spec = manifest["spec"]
    pod, rules = spec["template"]["spec"], spec.get("podFailurePolicy", {}).get("rules", [])
    indexed = spec.get("completionMode", "NonIndexed") == "Indexed"
    checks = {
        "completionMode is one of two": spec.get("completionMode") in (None, "Indexed", "NonIndexed"),
        "restartPolicy of a Job": pod.get("restartPolicy") in ("Never", "OnFailure"),
        "podFailurePolicy wants restartPolicy Never": not rules or pod["restartPolicy"] == "Never",
        "podFailurePolicy has at most 20 rules": len(rules) <= 20,
        "Indexed wants completions": not indexed or "completions" in spec,
        "parallelism is at most 100000 for Indexed": not indexed or spec["parallelism"] <= 100_000,
        "backoffLimitPerIndex wants Indexed": "backoffLimitPerIndex" not in spec or indexed,
        "a mount has its volume": {one["name"] for one in container(manifest).get("volumeMounts", [])}
        <= {one["name"] for one in pod.get("volumes", [])},
        "a name is a DNS label": bool(
            re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", manifest["metadata"]["name"])
        ),
    }
    for rule in rules:
        codes, conditions = rule.get("onExitCodes"), rule.get("onPodConditions")
        checks |= {
            f"{rule}: one of the two": (codes is None) != (conditions is None),
            f"{rule}: action": rule["action"] in ("Count", "FailIndex", "FailJob", "Ignore"),
            f"{rule}: FailIndex wants backoffLimitPerIndex": rule["action"] != "FailIndex"
            or "backoffLimitPerIndex" in spec,
        }
        if codes:
            values = codes["values"]
            checks |= {
                f"{rule}: operator": codes["operator"] in ("In", "NotIn"),
                f"{rule}: values are sorted, single and no 0": values == sorted(set(values)) and 0 not in values,
                f"{rule}: names the container": codes["containerName"] == container(manifest)["name"],
            }
    return found + [name for name, fine in checks.items() if not fine]


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_a_manifest_is_one_that_kubernetes_takes(path: Path) -> None:
    assert problems(yaml.safe_load(path.read_text("utf-8"))) == []


def test_what_kubernetes_would_refuse_is_found() -> None:
    broken = deepcopy(read("kubernetes-shards.yml"))
    broken["spec"]["backoffLimitPerIndexes"] = broken["spec"].pop("backoffLimitPerIndex")
    broken["spec"]["parallelism"] = "16"
    broken["spec"]["template"]["spec"]["restartPolicy"] = "OnFailure"
    text = "\n".join(
        problems(broken | {"spec": {**broken["spec"], "parallelism": 16}})
        + [e.message for e in JOB.iter_errors(broken)]
    )
    for said in (
        "'backoffLimitPerIndexes' was unexpected",
        "'16' is not of type",
        "wants restartPolicy Never",
        "FailIndex wants",
    ):
        assert said in text


def test_the_exit_codes_that_the_manifests_name_are_those_of_agac() -> None:
    spec = read("kubernetes-shards.yml")["spec"]
    rules = {
        rule["action"]: rule["onExitCodes"]["values"]
        for rule in spec["podFailurePolicy"]["rules"]
        if "onExitCodes" in rule
    }
    assert rules == {"Ignore": [ExitCode.NOT_READY], "FailJob": [ExitCode.USAGE], "FailIndex": [ExitCode.LIMIT]}
    shards = container(read("kubernetes-shards.yml"))
    variables = {one["name"]: one["value"] for one in shards["env"]}
    assert int(variables["SHARDS"]) == spec["completions"] >= spec["parallelism"]
    assert shards["image"] == container(read("kubernetes-merge.yml"))["image"], "the same files and the same agac"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_script_is_sound(path: Path) -> None:
    assert os.access(path, os.X_OK)
    assert path.read_text("utf-8").startswith("#!/usr/bin/env bash\n")
    subprocess.run(["bash", "-n", path], check=True)
    assert shellcheck(path.read_text("utf-8"), "bash") == ""


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_the_shell_of_a_manifest_is_sound(path: Path) -> None:
    one = container(yaml.safe_load(path.read_text("utf-8")))
    assert one["command"] == ["sh", "-c"]
    (text,) = one["args"]
    assert shellcheck(text, "sh") == ""


def shellcheck(text: str, shell: str) -> str:
    """What it finds but for SC1091 (agac.env is the user's) and SC2016 (a text for another shell)."""
    program = Path(sys.executable).with_name("shellcheck")
    words = [program, f"--shell={shell}", "--exclude=SC1091,SC2016", "--format=gcc", "-"]
    return subprocess.run(words, input=text, capture_output=True, text=True, timeout=60).stdout


SBATCH = {
    "job-name": r"[\w-]+", "array": r"1-\d+(%\d+)?", "cpus-per-task": r"\d+", "mem": r"\d+[MG]",
    "time": r"(\d+-)?\d\d:\d\d:\d\d", "signal": r"B:(TERM|INT)@\d+", "requeue": None, "open-mode": "append|truncate",
    "output": r"[\w-]*(%[Aaj][\w-]*)+\.log",
}  # fmt: skip
"""Options of sbatch that stand in our files, with the form of their values."""


@pytest.mark.parametrize("path", sorted(FILES.glob("*.sbatch")), ids=lambda path: path.name)
def test_the_options_for_slurm_are_ones_that_it_knows_and_stand_before_the_first_command(path: Path) -> None:
    found = sbatch_options(path)
    assert found
    for name, value in found.items():
        assert name in SBATCH, f"--{name}"
        form = SBATCH[name]
        assert (value is None) if form is None else re.fullmatch(form, value or ""), f"--{name}={value}"
    if "array" in found:
        assert f"${{SHARDS:-{(found['array'] or '').removeprefix('1-')}}}" in path.read_text("utf-8")
        assert found["signal"]
        assert "requeue" in found
        assert "%a" in (found["output"] or ""), "a log for each shard"


def sbatch_options(path: Path) -> dict[str, str | None]:
    """By name; asserts that none comes too late to be read."""
    found: dict[str, str | None] = {}
    over = False
    for line in path.read_text("utf-8").split("\n"):
        if line.startswith("#SBATCH "):
            assert not over, f"sbatch does not read this any more: {line}"
            (word,) = shlex.split(line)[1:]
            name, _, value = word.removeprefix("--").partition("=")
            found[name] = value or None
        over = over or bool(line.strip() and not line.startswith("#"))
    return found


SHARDS = 3
ROWS = 30
FAILS = 7
"""Of the rows, the one without the field that the prompt names: it fails without being asked."""
FILES_OF_RESULTS = ("results.jsonl", "results.json", "errors.jsonl")

SSH = """\
#!/bin/sh
# the host is the word before the last one; the connection to host-2 is lost once
for word; do host=$command; command=$word; done
case " $* " in *" -n -o BatchMode=yes "*) ;; *) exit 254 ;; esac
cd "$HOSTS/$host" || exit 255
if [ "$host" = host-2 ] && mkdir lost 2>/dev/null; then exit 255; fi
exec sh -c "$command"
"""
SBATCH_STANDS_IN = """\
#!/usr/bin/env bash
# runs the tasks of an array at once, each again as long as it asks for that; a job after it runs where none failed
for word; do
  case $word in --array=1-*) last=${word#--array=1-} ;; --dependency=*) after=$word ;; *) file=$word ;; esac
done
task() {
  while true; do
    SLURM_ARRAY_JOB_ID=7 SLURM_ARRAY_TASK_ID=$1 bash "$file" >>"task-$1.log" 2>&1 || echo "$1: $?" >>failed
    rmdir "requeue-7_$1" 2>/dev/null || return
  done
}
if [ -n "${last:-}" ]; then
  for number in $(seq "$last"); do task "$number" & done
  wait
  echo "7;cluster"
else
  if [ -e failed ] || [ "$after" != --dependency=afterok:7 ]; then exit 1; fi
  bash "$file" >&2
  echo 8
fi
"""
SCONTROL = '#!/bin/sh\n[ "$1" = requeue ] && mkdir "requeue-$2"\n'


class Machines:
    """Folders with copies of a project, each as if on a machine of its own, that share a folder as their remote."""

    def __init__(self, folder: Path, server: Server, *, concurrency: int = 8) -> None:
        starts("machines that share a run")
        self.folder, self.server = folder, server
        self.project = ProjectFolder(folder / "project")
        self.project.configure(server.base_url)
        rows = [{"id": f"r-{i}", "text": f"I love number {i}", "kind": f"k{i % 4}"} for i in range(1, ROWS + 1)]
        del rows[FAILS]["text"]
        stage = {"name": "classify", "prompt": "Review: ${text}", "output_schema": {"sentiment": "string"}}
        self.project.workflow(rows=rows, path="data/rows.jsonl", stages=[stage | {"concurrency": concurrency}])
        self.variables = {"AGAC_REMOTE": str(folder / "remote"), "AGAC_REMOTE_WRITER": "reviews"}
        exports = [f"export {name}={shlex.quote(value)}\n" for name, value in self.variables.items()]
        self.project.write("agac.env", "".join(exports))
        self.programs = folder / "programs"
        self.programs.mkdir()

    def program(self, name: str, text: str) -> None:
        """What stands in for a program that is not here."""
        path = self.programs / name
        path.write_text(text, "utf-8")
        path.chmod(0o755)

    def machine(self, name: str) -> Path:
        """A copy of the project, without anything that a run left."""
        return Path(shutil.copytree(self.project.root, self.folder / name))

    def start(self, folder: Path, *words: str | Path, **variables: str) -> subprocess.Popen[str]:
        """A program, with `agac` on its PATH."""
        path = os.pathsep.join([str(template().typed), str(self.programs), os.environ["PATH"]])
        # answers of the simulator travel as those of a provider do
        environment = clean_environment({**variables, "PATH": path, "AGAC_TEST_REAL": "1"})
        return subprocess.Popen(
            [str(word) for word in words], cwd=folder, env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def pod(self, manifest: str, folder: Path, index: int | None = None) -> subprocess.Popen[str]:
        """What a pod does, by the manifest's own words."""
        one, more = container(read(manifest)), {} if index is None else {"JOB_COMPLETION_INDEX": str(index)}
        given = {each["name"]: each["value"] for each in one.get("env", [])} | self.variables
        if index is not None:
            more["SHARDS"] = str(SHARDS)
        return self.start(folder, *one["command"], *one["args"], **given | more)

    def ran(self, folder: Path, name: str, *words: str, **variables: str) -> str:
        """A script of ours, copied beside the project, to its end."""
        for path in SCRIPTS:
            shutil.copy(path, folder)
        return ended(self.start(folder, f"./{name}", *words, **variables))


def ended(process: subprocess.Popen[str], code: int = 0) -> str:
    said, _ = process.communicate(timeout=100)
    assert process.returncode == code, said
    return said


def results(folder: Path) -> list[bytes]:
    return [(folder / "output/reviews" / name).read_bytes() for name in FILES_OF_RESULTS]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with simulator() as running:
        yield running


@pytest.fixture(scope="module")
@starts_service
def alone(tmp_path_factory: pytest.TempPathFactory, server: Server) -> list[bytes]:
    """What one process writes."""
    machines = Machines(tmp_path_factory.mktemp("alone"), server)
    machines.project.agac("-q", "run", "-a", "reviews", code=ExitCode.ROWS_FAILED)
    return results(machines.project.root)


@pytest.fixture
@starts_service
def machines(tmp_path: Path, server: Server) -> Machines:
    return Machines(tmp_path, server)


def test_the_pods_of_the_two_jobs_write_what_one_process_writes(machines: Machines, alone: list[bytes]) -> None:
    pods = [machines.pod("kubernetes-shards.yml", machines.machine(f"pod-{i}"), i) for i in range(SHARDS)]
    for pod in pods:
        ended(pod)
    folder = machines.machine("merging")
    ended(machines.pod("kubernetes-merge.yml", folder))
    assert results(folder) == alone


def test_a_merge_without_all_shards_fails_with_a_code_that_the_manifest_names(machines: Machines) -> None:
    ended(machines.pod("kubernetes-shards.yml", machines.machine("pod"), 1))
    merging = machines.pod("kubernetes-merge.yml", machines.machine("merging"))
    merging.communicate(timeout=100)
    (rule,) = read("kubernetes-merge.yml")["spec"]["podFailurePolicy"]["rules"]
    assert merging.returncode in rule["onExitCodes"]["values"]


@services
def test_a_pod_that_is_asked_to_end_saves_and_another_one_goes_on_from_the_remote(tmp_path: Path) -> None:
    with simulator("--latency", "0.1") as slow:
        machines = Machines(tmp_path, slow, concurrency=2)
        pod = machines.pod("kubernetes-shards.yml", machines.machine("pod"), 0)
        told(pod, slow)
        ended(pod, ExitCode.INTERRUPTED)
        before = slow.account()["answered"]
        ended(machines.pod("kubernetes-shards.yml", machines.machine("pod again"), 0))
        after = slow.account()
    assert 0 < before < after["answered"]
    assert after["duplicates"] == 0


def told(process: subprocess.Popen[str], server: Server) -> None:
    """Asks the process to end once some rows were answered."""
    while server.account()["answered"] < 4:
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)


def test_an_array_of_slurm_and_the_merge_after_it_write_what_one_process_writes(
    machines: Machines, alone: list[bytes]
) -> None:
    machines.program("sbatch", SBATCH_STANDS_IN)
    machines.program("scontrol", SCONTROL)
    said = machines.ran(machines.project.root, "slurm-submit.sh", str(SHARDS))
    assert "shards: job 7, merge: job 8" in said
    assert results(machines.project.root) == alone


@services
def test_a_task_of_slurm_whose_time_is_over_saves_and_is_queued_again(tmp_path: Path) -> None:
    with simulator("--latency", "0.1") as slow:
        machines = Machines(tmp_path, slow, concurrency=2)
        machines.program("scontrol", SCONTROL)
        folder, script = machines.project.root, FILES / "slurm-shards.sbatch"
        task = {"SLURM_ARRAY_JOB_ID": "9", "SLURM_ARRAY_TASK_ID": "1", "SHARDS": str(SHARDS)}
        first = machines.start(folder, "bash", script, **task)
        told(first, slow)
        ended(first)
        assert (folder / "requeue-9_1").is_dir()
        (folder / "requeue-9_1").rmdir()
        ended(machines.start(folder, "bash", script, **task))
        assert not (folder / "requeue-9_1").exists()
        assert slow.account()["duplicates"] == 0


def test_shards_over_ssh_write_what_one_process_writes_although_a_connection_was_lost(
    machines: Machines, alone: list[bytes]
) -> None:
    machines.program("ssh", SSH)
    hosts = [f"host-{number}" for number in range(1, SHARDS + 1)]
    for host in hosts:
        machines.machine(f"hosts/{host}/project")
    folder = machines.project.root
    machines.ran(folder, "over-ssh.sh", "reviews", "project", *hosts, HOSTS=str(machines.folder / "hosts"), AGAIN="0")
    assert (machines.folder / "hosts/host-2/lost").exists()
    assert results(folder) == alone


def test_a_shard_over_ssh_that_fails_is_named_and_nothing_is_merged(machines: Machines) -> None:
    machines.program("ssh", SSH.replace("exec sh", "exit 2; exec sh"))
    (machines.folder / "hosts/host-1").mkdir(parents=True)
    for path in SCRIPTS:
        shutil.copy(path, machines.project.root)
    words = ["./over-ssh.sh", "reviews", "project", "host-1"]
    said = ended(machines.start(machines.project.root, *words, HOSTS=str(machines.folder / "hosts")), 1)
    assert "shard 1 at host-1 failed: see shard-1.log" in said
    assert not (machines.project.root / "output").exists()


def test_shards_on_one_machine_write_what_one_process_writes(machines: Machines, alone: list[bytes]) -> None:
    folder = machines.project.root
    machines.ran(folder, "on-one-machine.sh", "reviews", str(SHARDS), "2", **machines.variables)
    assert results(folder) == alone
