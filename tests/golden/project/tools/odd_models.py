from typing import Literal

from pydantic import BaseModel, Field, field_validator


class Part(BaseModel):
    name: str
    count: int = Field(ge=0, le=9)


class Review(BaseModel):
    """What is said of a text."""

    mood: Literal["good", "bad"]
    parts: list[Part]
    note: str | None = None


class Never(BaseModel):
    zeta: str

    @field_validator("zeta")
    @classmethod
    def _never(cls, value: str) -> str:
        raise ValueError("never right")
