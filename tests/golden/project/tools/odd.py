import asyncio

from tools.odd_helper import SIZE


def clean(row):
    return {**row, "words": row["text"].split(), "size": SIZE}


async def wait(row):
    await asyncio.sleep(0)
    return {**row, "waited": True}


def several(row):
    """None for an empty text, a row for one word, a list for more."""
    found = row["text"].split()
    if not found:
        return None
    if len(found) == 1:
        return {"id": row["id"], "word": found[0], "kind": row["kind"]}
    return [{"word": word, "kind": row["kind"]} for word in found]


def risky(row):
    if row["n"] == "3":
        raise ValueError(f"three in {row['id']}")
    return row
