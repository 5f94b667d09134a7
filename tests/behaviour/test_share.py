"""Answers that a team shares: pushed into a folder or a bucket, and pulled by others who trust their writer."""

import json
import shutil
import time
import tracemalloc
from collections.abc import Callable
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import yaml
import zstandard
from support.packs import answer
from support.project import ProjectFolder, python
from support.server import Server

from agac.store import packs
from agac.store.packs import Damaged, KnownAnswers, PackedAnswer, endpoint_mark

Team = Callable[..., ProjectFolder]
CI = {"AGAC_REMOTE_WRITER": "ci"}


@pytest.fixture
def team(tmp_path: Path, server: Server) -> Team:
    """Makes projects, one a machine, with the same files and one folder as their remote."""

    def make(
        name: str, *, rows: int = 3, trust: tuple[str, ...] = ("ci",), url: str = "../remote", **remote: Any
    ) -> ProjectFolder:
        found = ProjectFolder(tmp_path / name)
        found.configure(server.base_url, prices={"small": {"input": 1000.0, "output": 1000.0}})
        keys = yaml.safe_load((found.root / "agac.yml").read_text("utf-8"))
        found.write(
            "agac.yml", yaml.safe_dump({**keys, "remote": {"url": "../remote", "trust": list(trust), **remote}})
        )
        found.workflow(rows=rows)
        return found

    return make


def as_real(project: ProjectFolder) -> None:
    """The answers of the store count as those of a real model."""
    with project.changed() as change:
        change("UPDATE endpoint SET simulated = 0")


def ran(project: ProjectFolder, name: str = "reviews") -> ProjectFolder:
    assert project.run(name).exit_code == 0
    as_real(project)
    return project


def pushed(project: ProjectFolder, writer: str = "ci") -> Any:
    return project.agac("push", "--json", env={"AGAC_REMOTE_WRITER": writer}, code=0).json


def pulled(project: ProjectFolder) -> Any:
    return project.agac("pull", "--json", code=0).json


def files(remote: Path) -> list[str]:
    return sorted(path.relative_to(remote).as_posix() for path in remote.rglob("*") if path.is_file())


def test_a_colleague_asks_nothing_that_was_paid_for(team: Team, server: Server, tmp_path: Path) -> None:
    first = ran(team("first"))
    report = pushed(first)
    assert (report["answers"], report["packs"], report["there"], report["kept"]) == (3, 1, 0, 0)
    assert report["usd"] > 0
    assert [name.rpartition(".")[2] for name in files(tmp_path / "remote")] == ["index", "pack"]
    again = pushed(first)
    assert (again["answers"], again["packs"], again["there"]) == (0, 0, 3)
    second = team("second")
    plan = second.agac("plan", "-a", "reviews", "--json").json
    assert (plan["stages"][0]["run"], plan["stages"][0]["remote"]) == (3, 3)
    assert "3 of them are answered in the remote" in second.agac("plan", "-a", "reviews").out
    assert not (second.root / ".agac/agac.db").exists()
    report = pulled(second)
    assert (report["answers"], report["writers"], report["unfit"], report["problems"]) == (3, {"ci": 3}, 0, [])
    assert pulled(second)["answers"] == 0
    server.reset()
    assert second.run().exit_code == 0
    assert server.account()["requests"] == 0
    assert second.output() == first.output()
    [(writer, pack)] = second.query("SELECT DISTINCT writer, name FROM pack JOIN result ON pack_id = pack.id")
    assert (tmp_path / f"remote/v1/{writer}/{pack}.pack").is_file()
    own, theirs = (one.query("SELECT fingerprint, value, created_at FROM result ORDER BY 1") for one in (first, second))
    assert own == theirs
    assert pushed(second, "colleague")["answers"] == 0, "what was pulled is not pushed"


def test_a_chain_is_pulled_to_its_end(team: Team, server: Server) -> None:
    stages = [
        {"name": "classify", "prompt": "Review: ${text}", "output_schema": {"mood": "good|bad"}},
        {"name": "reply", "needs": "classify", "prompt": "Reply, ${classify.mood}: ${text}", "reuse": "row"},
        {"name": "vote", "needs": "reply", "prompt": "Vote ${reply}", "replicas": 3, "output_schema": {"mood": "a|b"}},
    ]  # fmt: skip
    first, second = team("first"), team("second")
    for one in (first, second):
        one.workflow(stages=stages)
    assert pushed(ran(first))["answers"] > 3 * 3
    assert pulled(second)["answers"] > 3 * 3
    server.reset()
    second.run()
    assert server.account()["requests"] == 0
    assert second.output() == first.output()


def test_what_no_model_answered_for_this_project_stays(team: Team, tmp_path: Path) -> None:
    first = team("first")
    assert first.run().exit_code == 0
    assert pushed(first)["answers"] == 0, "simulated"
    as_real(first)
    with first.changed() as change:
        change("UPDATE result SET how = 'adopted' WHERE id = 1")
        change("UPDATE endpoint SET base_url = 'http://127.0.0.1:1/v1'")
    assert (pushed(first)["answers"], pushed(first)["kept"]) == (0, 2)
    never = team("never")
    never.workflow(stages=[{"name": "classify", "prompt": "Review: ${text}", "reuse": "never"}])
    assert pushed(ran(never))["answers"] == 0
    assert not files(tmp_path / "remote")


def test_an_answer_that_holds_a_secret_stays(team: Team) -> None:
    first = team("first", rows=1)
    keys = yaml.safe_load((first.root / "agac.yml").read_text("utf-8"))
    keys["providers"]["local"]["api_key"] = "${THE_KEY}"
    first.write("agac.yml", yaml.safe_dump(keys))
    first.write(".env", "THE_KEY=hush-hush-hush-1234\n")
    ran(first)
    with first.changed() as change:
        change("""UPDATE result SET value = '{"sentiment": "neutral", "reason": "hush-hush-hush-1234"}'""")
    assert (pushed(first)["answers"], pushed(first)["kept"]) == (0, 1)


def test_only_trusted_writers_and_named_endpoints(team: Team, server: Server) -> None:
    pushed(ran(team("first")), "mallory")
    second = team("second")
    assert pulled(second)["answers"] == 0
    assert second.agac("plan", "-a", "reviews", "--json").json["stages"][0]["remote"] == 0
    nobody = team("nobody", trust=())
    assert "it names no writer" in nobody.agac("pull").out
    elsewhere = team("elsewhere", trust=("mallory",))
    keys = yaml.safe_load((elsewhere.root / "agac.yml").read_text("utf-8"))
    keys["providers"]["local"]["base_url"] = "https://api.example.com/v1"
    elsewhere.write("agac.yml", yaml.safe_dump(keys))
    assert pulled(elsewhere)["answers"] == 0
    keys["providers"]["local"]["base_url"] = "${WHERE}"
    elsewhere.write("agac.yml", yaml.safe_dump(keys))
    found = elsewhere.agac("pull", "--json", env={"WHERE": server.base_url}, code=0).json
    assert found["answers"] == 0, "an address that a variable tells is committed by nobody"


def test_an_own_answer_is_never_replaced_and_the_oldest_wins(team: Team, server: Server) -> None:
    one, two, three = (ran(team(name)) for name in ("one", "two", "three"))
    for project, when, what in ((one, 2000.0, "older"), (two, 3000.0, "newer")):
        with project.changed() as change:
            change("UPDATE result SET created_at = ?, value = json_set(value, '$.reason', ?)", when, what)
    pushed(one, "ci")
    pushed(two, "alice")
    reader = team("reader", trust=("alice", "ci"))
    assert pulled(reader)["writers"] == {"ci": 3}
    assert {row[0] for row in reader.query("SELECT created_at FROM result")} == {2000.0}
    assert pulled(three)["answers"] == 0
    # an own one that is too old stays the one that counts where its age does not matter
    three.workflow(defaults={"max_age": "7d"})
    now = time.time()
    with one.changed() as change:
        change("UPDATE result SET created_at = ?", now - 3600)
    with three.changed() as change:
        change("UPDATE result SET created_at = 1000.0")
    assert pulled(three)["answers"] == 0, "max_age counts from the answer, and nothing so new was pushed"
    assert pushed(one)["answers"] == 3
    assert pulled(three)["answers"] == 3
    three.workflow()
    server.reset()
    assert three.run().exit_code == 0
    assert server.account()["requests"] == 0
    assert {row["reason"] for row in three.output()}.isdisjoint({"older", "newer"})


def test_a_schema_of_today_refuses(team: Team, tmp_path: Path) -> None:
    first = ran(team("first"))
    with first.changed() as change:
        change("""UPDATE result SET value = '{"sentiment": "furious", "reason": "x"}' WHERE id = 1""")
        change("""UPDATE result SET value = '"just text"' WHERE id = 2""")
    pushed(first)
    second = team("second")
    report = pulled(second)
    assert (report["answers"], report["unfit"]) == (1, 2)
    assert second.query("SELECT count(*) FROM result") == [(1,)]


READ_ONLY = [
    {"AGAC_REMOTE_READ_ONLY": "1"}, {"GITHUB_EVENT_NAME": "pull_request"}, {"GITHUB_EVENT_NAME": "pull_request_target"},
    {"CI_MERGE_REQUEST_IID": "12"}, {"BITBUCKET_PR_ID": "3"},
]  # fmt: skip


@pytest.mark.parametrize("env", READ_ONLY, ids=lambda env: "=".join(*env.items()))
def test_jobs_of_pull_requests_push_nothing(team: Team, tmp_path: Path, env: dict[str, str]) -> None:
    first = team("first", rows=1)
    refused = first.agac("push", env={**CI, **env}, code=2)
    assert f"{next(iter(env))} says that this job only reads the remote" in refused.err
    assert not files(tmp_path / "remote")


@pytest.mark.parametrize("name", ["", "../ci", ".ci", "a/b", "x" * 65])
def test_a_writer_has_a_plain_name(team: Team, name: str) -> None:
    first = team("first", rows=1)
    said = "AGAC_REMOTE_WRITER: " if name else "AGAC_REMOTE_WRITER is not set"
    assert said in first.agac("push", env={"AGAC_REMOTE_WRITER": name}, code=2).err
    first.write("agac.yml", yaml.safe_dump({"remote": {"trust": [name]}}))
    assert "is no name of a writer" in first.agac("validate", code=2).out


def test_a_run_pushes_at_its_end_and_does_not_fail_where_it_cannot(team: Team, tmp_path: Path) -> None:
    first = team("first", push="auto")
    told = first.agac("run", "-a", "reviews", code=0)
    assert "AGAC_REMOTE_WRITER" in told.err
    as_real(first)
    first.agac("run", "-a", "reviews", env=CI, code=0)
    assert len(files(tmp_path / "remote")) == 2
    (tmp_path / "remote").rename(tmp_path / "away")
    (tmp_path / "remote").write_text("a file", encoding="utf-8")
    first.numbered(4)
    told = first.agac("run", "-a", "reviews", env=CI, code=0)
    assert "answers were not pushed: the remote ../remote" in told.err
    assert "the remote ../remote" in first.agac("plan", "-a", "reviews", code=0).err


def test_places_that_are_no_remote(team: Team) -> None:
    first = team("first", rows=1)
    for url, said in (("ftp://host/x", "cannot be opened"), ("s3://", "cannot be opened")):
        assert said in first.agac("push", env={**CI, "AGAC_REMOTE": url}, code=2).err
    first.configure()
    for command in ("pull", "push"):
        assert "names no remote" in first.agac(command, code=2).err


# Packs that were tampered with.


def read(content: bytes, name: str | None = None) -> list[PackedAnswer]:
    return list(packs.unpacked("ci", name or sha256(content).hexdigest(), content, now=2000.0))


def test_a_pack_is_read_as_it_was_written_and_sorted() -> None:
    answers = [answer(fingerprint=bytes([n]) * 16, value=json.dumps("é\u2028 ~\r")) for n in (3, 1, 2)]
    name, content, index = packs.packed(answers)
    assert packs.packed(reversed(answers)) == (name, content, index)
    assert read(content, name) == sorted(one._replace(pack=name) for one in answers)


LINES = {
    "no JSON": b"{",
    "an object": b"{}",
    "too few values": json.dumps(["00" * 16]).encode(),
    "too many values": answer().line().replace(b"]", b", 1]"),
    "another writer": answer(writer="mallory").line(),
    "a short fingerprint": answer(fingerprint=b"f").line(),
    "a value that is no text": answer(value=7).line(),
    "a lone surrogate": json.dumps(json.loads(answer(model="?").line())).replace("?", "\\ud800").encode(),
    "a time to come": answer(at=10_000.0).line(),
    "no time": answer(at=float("nan")).line(),
    "a time in words": answer(at="now").line(),
    "negative tokens": answer(input_tokens=-1).line(),
    "an adopted one": answer(how="adopted").line(),
    "nested without end": b"[" * 100_000,
}


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_an_unsound_line_damages_its_pack(line: bytes) -> None:
    with pytest.raises(Damaged, match="is no answer"):
        read(zstandard.compress(answer().line() + line))


def test_a_pack_is_the_content_that_its_name_stands_for() -> None:
    name, content, _ = packs.packed([answer()])
    for wrong in (content + b"x", content[:-1], None):
        with pytest.raises(Damaged, match="its name stands for"):
            list(packs.unpacked("ci", name, wrong, now=2000.0))
    with pytest.raises(Damaged, match="more than 20,000 answers"):
        read(zstandard.compress(b"1\n" * 20_001))
    with pytest.raises(Damaged, match="cannot be unpacked"):
        read(b"no pack at all")


def test_a_pack_that_unpacks_to_gigabytes_takes_no_memory() -> None:
    packer = zstandard.ZstdCompressor(level=19).compressobj()
    piece = bytes(10_000_000)
    bomb = b"".join([*(packer.compress(piece) for _ in range(200)), packer.flush()])
    assert len(bomb) < 1_000_000
    tracemalloc.start()
    try:
        for reads in (lambda: read(bomb), lambda: KnownAnswers().add("ci", "x", bomb)):
            with pytest.raises(Damaged, match="more than"):
                reads()
        assert tracemalloc.get_traced_memory()[1] < 3 * packs.MAX_BYTES
    finally:
        tracemalloc.stop()


def test_what_an_index_says_counts_only_until_its_pack_is_read() -> None:
    marks = [endpoint_mark("local", "u")]
    name, content, _ = packs.packed([answer()])
    _, _, lies = packs.packed([answer(at=1.0), answer(fingerprint=b"g" * 16)])
    with closing(KnownAnswers()) as known:
        known.add("ci", name, lies)
        assert len(known.find([b"f" * 16, b"g" * 16], marks)) == 2
        known.read("ci", name, content, 2000.0)
        assert [one[:2] for one in known.find([b"f" * 16, b"g" * 16], marks)] == [(b"f" * 16, 1000.0)]
        with pytest.raises(Damaged):
            known.read("ci", name, content[:-1], 2000.0)
        assert known.find([b"f" * 16], marks) == []
        for cut in (b"", None, zstandard.compress(b"x" * 33)):
            with pytest.raises(Damaged):
                known.add("ci", "other", cut)


def test_poisoned_packs_are_left_out_and_the_others_count(team: Team, tmp_path: Path) -> None:
    first = ran(team("first"))
    pushed(first)
    folder = tmp_path / "remote/v1/ci"
    (good,) = folder.glob("*.pack")
    index = good.with_suffix(".index").read_bytes()
    (folder / f"{'0' * 64}.pack").write_bytes(good.read_bytes())  # another hash than its name says
    (folder / f"{'0' * 64}.index").write_bytes(index)
    (folder / f"{'1' * 64}.index").write_bytes(index)  # its pack is gone
    (folder / f"{'2' * 64}.index").write_bytes(b"rubbish")
    (folder / "..index").write_bytes(index)
    (folder / "readme.index").write_bytes(index)
    (folder / "deep").mkdir()
    (folder / "deep" / f"{'3' * 64}.index").write_bytes(index)
    secret = tmp_path / "secret"
    secret.write_text("mine", encoding="utf-8")
    (folder / f"{'4' * 64}.pack").symlink_to(secret)
    (folder / f"{'4' * 64}.index").write_bytes(index)
    second = team("second")
    report = pulled(second)
    assert (report["answers"], report["unfit"]) == (3, 0)
    said = "".join(one["message"] + one["file"] for one in report["problems"])
    assert all(digit * 64 in said for digit in "0124")
    assert "mine" not in said


# Many at once, killed in the middle, and in a bucket.


def test_two_push_at_once_and_nothing_is_lost(team: Team, tmp_path: Path) -> None:
    first = ran(team("first", rows=40))
    copy = tmp_path / "copy"
    shutil.copytree(first.root, copy)
    twin = ProjectFolder.__new__(ProjectFolder)
    twin.root = copy
    third = ran(team("third", rows=50))
    at_work = [one.start("push", env=CI) for one in (first, twin, third)]
    assert [one.communicate() and one.poll() for one in at_work] == [0, 0, 0]
    assert len(files(tmp_path / "remote")) in (4, 6)
    assert pulled(team("second", rows=50))["answers"] == 50


@pytest.mark.parametrize("puts", [0, 1, 2, 3])
def test_a_push_that_was_killed_is_completed(
    team: Team, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, puts: int
) -> None:
    first = ran(team("first", rows=6))
    script = (
        "import os, signal, sys\n"
        "from agac.data.object_store import ObjectStore\n"
        "from agac.store import packs\n"
        "packs.FULL_ANSWERS = 3\n"
        "create, left = ObjectStore.create, [int(sys.argv[1])]\n"
        "async def counted(self, name, content):\n"
        "    if not left[0]: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    left[0] -= 1\n"
        "    return await create(self, name, content)\n"
        "ObjectStore.create = counted\n"
        "import agac.api\n"
        "agac.api.push()\n"
    )
    monkeypatch.setattr(packs, "FULL_ANSWERS", 3)
    ended = python(first.root, "-c", script, str(puts), env=CI)
    assert ended.code == -9, ended.err
    assert len(files(tmp_path / "remote")) == puts
    report = pushed(first)
    assert report["answers"] + report["there"] == 6
    assert pulled(team("second", rows=6))["answers"] == 6
    doctor = first.agac("remote", "doctor", "--json", env=CI, code=0).json
    assert doctor["packs"].keys() == {"ci"}


def test_the_doctor_tells_what_may_be_done(team: Team) -> None:
    first = ran(team("first", rows=2))
    pushed(first)
    for _ in range(2):
        told = first.agac("remote", "doctor", env=CI, code=0).out
        assert "You may push as ci; what is there is never replaced" in told
        assert "to trust one of them is to trust all" in told
    report = first.agac("remote", "doctor", "--json", env={**CI, "AGAC_REMOTE_READ_ONLY": "1"}, code=0).json
    assert report["create_only"] is None
    assert (report["packs"], report["trust"]) == ({"ci": 1}, ["ci"])
    pushed(first, "bob")
    assert "bob: 1 pack, not trusted" in first.agac("remote", "doctor", code=0).out


def test_a_bucket_is_a_remote(team: Team, bucket: dict[str, str]) -> None:
    first, second = ran(team("first", rows=5)), team("second", rows=5)
    twins = [first.start("push", "--json", env={**bucket, **CI}) for _ in range(2)]
    assert [one.communicate() and one.poll() for one in twins] == [0, 0]
    assert first.agac("push", "--json", env={**bucket, **CI}, code=0).json["there"] == 5
    plan = second.agac("plan", "-a", "reviews", "--json", env=bucket, code=0).json
    assert plan["stages"][0]["remote"] == 5
    assert second.agac("pull", "--json", env=bucket, code=0).json["writers"] == {"ci": 5}
    doctor = second.agac("remote", "doctor", "--json", env={**bucket, **CI}, code=0).json
    assert (doctor["create_only"], doctor["problems"]) == (True, [])
    missing = {**bucket, "AGAC_REMOTE": "s3://nobody/x"}
    assert "the remote s3://nobody/x" in second.agac("pull", env=missing, code=1).err
