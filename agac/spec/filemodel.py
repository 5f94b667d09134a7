"""What all models of files are: mappings in which nothing is unknown, and nothing is guessed."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator
from pydantic_core import PydanticCustomError

from agac.spec import modelchecks as check

NonEmpty = Annotated[str, Field(min_length=1)]
TimeText = Annotated[str, Field(json_schema_extra=check.TIME_FORM)]
Duration = Annotated[float, BeforeValidator(check.duration, json_schema_input_type=TimeText | float)]


class FileModel(BaseModel):
    """A mapping in a file: no unknown keys, no conversions, nothing changes after reading."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", validate_default=False)

    @field_validator("*", mode="before")
    @classmethod
    def _has_value(cls, value: Any) -> Any:
        if value is None:
            raise PydanticCustomError("no_value", "has no value; give one or remove the key")
        return value
