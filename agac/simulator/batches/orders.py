"""What is asked for when a batch is created."""

from __future__ import annotations

from typing import Any, NamedTuple

from agac.simulator.asks import ApiError
from agac.simulator.batches.lines import ENDPOINTS
from agac.simulator.batches.uploads import stay
from agac.simulator.openaiwire import missing

PARAMETERS = ("input_file_id", "endpoint", "completion_window", "metadata", "output_expires_after")
MOST_PAIRS, LONGEST_KEY, LONGEST_VALUE = 16, 64, 512


class Order(NamedTuple):
    """A batch that is to be: `kept_seconds` is how long its results are to be kept."""

    input_id: str
    endpoint: str
    metadata: dict[str, str] | None
    kept_seconds: float | None


def read_order(asked: dict[str, Any], family: str) -> Order:
    """Reads the body of a create; raises ApiError. Azure also takes endpoints without their version."""
    for name in PARAMETERS[:3]:
        if not isinstance(asked.get(name), str) or not asked[name]:
            raise missing(name)
    if unknown := sorted(set(asked) - set(PARAMETERS)):
        raise ApiError(400, f"Unknown parameter: '{unknown[0]}'.", code="unknown_parameter", param=unknown[0])
    endpoint = asked["endpoint"]
    if endpoint not in ENDPOINTS and not (family == "azure" and f"/v1{endpoint}" in ENDPOINTS):
        known = " and ".join(f"'{one}'" for one in ENDPOINTS)
        told = f"Invalid value: '{endpoint}'. Supported values are: {known}."
        raise ApiError(400, told, code="invalid_value", param="endpoint")
    if asked["completion_window"] != "24h":
        told = f"Invalid value: '{asked['completion_window']}'. Value must be '24h'."
        raise ApiError(400, told, code="invalid_value", param="completion_window")
    kept = asked.get("output_expires_after")
    if kept is not None and not isinstance(kept, dict):
        raise ApiError(400, "Invalid 'output_expires_after': expected an object.", param="output_expires_after")
    return Order(
        asked["input_file_id"],
        endpoint,
        read_metadata(asked.get("metadata")),
        None if kept is None else stay(kept.get("anchor"), kept.get("seconds"), "output_expires_after"),
    )


def read_metadata(metadata: Any) -> dict[str, str] | None:
    """Pairs of texts; raises ApiError for too many, or too long ones."""
    if metadata is None:
        return None
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ApiError(400, "Invalid 'metadata': expected an object of strings.", param="metadata")
    if len(metadata) > MOST_PAIRS:
        told = f"Invalid 'metadata': too many properties: {len(metadata)}, at most {MOST_PAIRS}."
        raise ApiError(400, told, param="metadata")
    for key, value in metadata.items():
        if len(key) > LONGEST_KEY or len(value) > LONGEST_VALUE:
            told = f"Invalid 'metadata': keys have at most {LONGEST_KEY} characters, values at most {LONGEST_VALUE}."
            raise ApiError(400, told, param="metadata")
    return metadata
