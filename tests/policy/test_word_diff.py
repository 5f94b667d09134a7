"""Two texts word by word: nothing is lost, and what differs is shown."""

from hypothesis import given
from hypothesis import strategies as st

from agac.core.word_diff import as_markdown, as_text, word_diff

TEXTS = st.text(alphabet=st.sampled_from("ab c.\n$*@"), max_size=40)


@given(TEXTS, TEXTS)
def test_both_texts_are_in_it(before: str, now: str) -> None:
    spans = word_diff(before, now)
    assert "".join(text for how, text in spans if how != "added") == before
    assert "".join(text for how, text in spans if how != "removed") == now
    assert all(text for _, text in spans)


def test_what_differs_is_marked() -> None:
    spans = word_diff("Write a reply to ${review}", "Draft a kind reply to ${review}\nNow")
    assert as_text(spans) == "[-Write-]{+Draft+} a {+kind+} reply to ${review}\n{+Now+}"
    assert as_markdown(spans) == "~~Write~~**Draft** a **kind** reply to \\$\\{review\\}\n**Now**"
    assert as_text(spans, width=20) == "[-Write-]{+Draft+} …"
    assert as_markdown(word_diff("ask @me", "ask @you *now*")) == "ask @~~me~~**you \\*now\\***"


def test_what_is_the_same_for_long_is_cut() -> None:
    long = "word " * 200
    assert as_text(word_diff(f"{long}old {long}", f"{long}new {long}")).count("word") < 30
    many = "".join(f"line {i} of many\n" for i in range(3000))
    assert as_text(word_diff(many, many + "one more\n")).endswith("{+one more+}\n")


def test_texts_that_would_take_too_long_to_compare_are_told_apart_at_their_ends() -> None:
    old, new = "a b " * 1_200, "b a c " * 1_200
    assert word_diff(f"same\n{old}\nend", f"same\n{new}\nend") == [
        ("same", "same\n"),
        ("removed", f"{old}\n"),
        ("added", f"{new}\n"),
        ("same", "end"),
    ]
    lines = word_diff("same\n" + "a\nb\n" * 5_000 + "end", "same\n" + "b\na\nc\n" * 5_000 + "end")
    assert [how for how, _ in lines] == ["same", "removed", "added", "same"]
    assert lines[0] == ("same", "same\n")
    assert lines[-1] == ("same", "end")
