"""What `workflows/product_catalog.yml` does with lines of supplier lists, before and after a model is asked."""

from __future__ import annotations

import re
from itertools import product as every
from typing import Any

Row = dict[str, Any]


def normalise(line: Row) -> Row:
    """A row in, a row out: names as the shop writes them, prices as numbers, choices as lists."""
    price = line["price"].replace(",", ".")
    return {
        "item": line["item"],
        "supplier": line["supplier"],
        "name": " ".join(line["name"].split()).title(),
        "brand": line["brand"].strip(),
        "price": float(price) if re.fullmatch(r"\d+(\.\d+)?", price) else None,
        "sizes": choices(line["sizes"]),
        "colours": choices(line["colours"]),
        "text": line["text"].strip(),
    }


def variants(product: Row) -> list[Row] | Row | None:
    """A row in, several out: one for each size and colour. None for what is no product, or has no price."""
    sizes, colours = product.pop("sizes"), product.pop("colours")
    if product["price"] is None or product["name"].startswith(("Test Item", "Gift Card")):
        return None
    forms = every(sizes or [""], colours or [""])
    made = [{**product, "size": size, "colour": colour, "sku": sku(product, size, colour)} for size, colour in forms]
    return made if len(made) > 1 else made[0]


def entry(variant: Row) -> Row:
    """A row and what the model said about it, as a line of the catalogue."""
    said = variant["describe"] or {}  # None where the stage was skipped
    return {
        "item": variant["item"],
        "supplier": variant["supplier"],
        "sku": variant["sku"],
        "title": said.get("title", f"{variant['brand']} {variant['name']}"),
        "size": variant["size"],
        "colour": variant["colour"],
        "price": variant["price"],
        "category": said.get("category"),
        "description": said.get("description"),
    }


def sku(product: Row, size: str, colour: str) -> str:
    """The same for the same variant, whichever supplier has it."""
    words = " ".join((product["brand"], product["name"], size, colour))
    return "-".join(re.findall(r"[a-z0-9]+", words.lower()))


def choices(cell: str) -> list[str]:
    """`S|M|L` as a list."""
    return [choice.strip() for choice in cell.split("|") if choice.strip()]
