"""The files that begin shards on Kubernetes, on Slurm, over ssh and on one machine: checked, and run with processes."""

import json
import os
import re
import shlex
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

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
