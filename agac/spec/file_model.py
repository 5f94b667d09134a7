"""What every mapping of every file is made of: the model that all of them are, and the values that
several have."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from agac.spec import validation as check

NonEmpty = Annotated[str, Field(min_length=1)]
TimeText = Annotated[str, Field(json_schema_extra=check.TIME_FORM)]
Duration = Annotated[
    float, BeforeValidator(check.duration, json_schema_input_type=TimeText | float)
]
ShareText = Annotated[str, Field(json_schema_extra=check.SHARE_FORM)]
Share = Annotated[float, BeforeValidator(check.share, json_schema_input_type=ShareText | float)]


class FileModel(BaseModel):
    """A mapping in a file: no unknown keys, no conversions, nothing changes after reading."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", validate_default=False)

    merges: ClassVar[bool] = False
    """Whether a level that sets some of the keys leaves the others as a weaker level has them."""

    may_be_empty: ClassVar[bool] = True  # whether none of the keys has to stand

    @field_validator("*", mode="before")
    @classmethod
    def _has_value(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuses None. For a key that may be left out `model_errors.validate` takes a written
        `null` for no key."""
        if value is None:
            optional = not cls.model_fields[info.field_name or ""].is_required()
            raise check.no_value(optional=optional)
        return value

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not (self.may_be_empty or self.model_fields_set):
            *others, last = type(self).model_fields
            raise check.refused(f"is empty; give {', '.join(others)} or {last}")
        for fault in self.faults():
            raise check.refused(fault)
        return self

    def faults(self) -> Iterable[str]:
        """Sentences about keys that do not go together; the first is told."""
        return ()


def key(description: str, *, default: Any = None, **rules: Any) -> Any:
    """Returns a key that may be left out, and what it is at then."""
    return Field(default=default, description=description, **rules)


WebAddress = Annotated[NonEmpty, AfterValidator(check.web_address)]
Variable = Annotated[str, AfterValidator(check.one_variable)]
SizeText = Annotated[str, Field(json_schema_extra=check.SIZE_FORM)]
Size = Annotated[int, BeforeValidator(check.size, json_schema_input_type=SizeText | int)]
Deadline = Annotated[
    Any, AfterValidator(check.deadline), Field(json_schema_extra={"type": ["string", "number"]})
]
TextOrList = str | list[str]
Paths = Annotated[
    list[NonEmpty],
    Field(min_length=1),
    BeforeValidator(check.paths, json_schema_input_type=TextOrList),
]
StageNames = Annotated[
    list[str], BeforeValidator(check.one_or_many, json_schema_input_type=TextOrList)
]
FieldPath = Annotated[NonEmpty, AfterValidator(check.field_path)]
_OneOrMore = BeforeValidator(check.field_or_fields, json_schema_input_type=TextOrList)
FieldPaths = Annotated[list[FieldPath], _OneOrMore, AfterValidator(check.no_repeats)]
