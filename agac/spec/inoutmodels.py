"""The keys of `input` and `output` of a workflow."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from agac.spec import modelchecks as check
from agac.spec.filemodel import FileModel, NonEmpty
from agac.spec.workflow import InputFormat, Merge, OnDuplicateId, OutputFormat

Paths = Annotated[
    list[NonEmpty], Field(min_length=1), BeforeValidator(check.paths, json_schema_input_type=str | list[str])
]


class InputFile(FileModel):
    """Where rows come from."""

    path: Paths | None = Field(
        default=None,
        description="File with the rows, relative to the project; a pattern as `data/*.csv`, a list of files, "
        "`sqlite://data.db?query=SELECT …`, or `-` for standard input.",
    )
    format: InputFormat | None = Field(
        default=None,
        description="Format of the input; by its suffix when left out. `files`: each file is a row "
        "`{path, name, content}`.",
    )
    id_field: NonEmpty | None = Field(
        default=None, description="Field that holds each row's id; else rows are numbered."
    )
    on_duplicate_id: OnDuplicateId = Field(
        default="error", description="What to do with the later of two rows with one id."
    )


class OutputFile(FileModel):
    """Where results go."""

    dir: NonEmpty | None = Field(default=None, description="Folder for the results, relative to the project.")
    include_input: bool = Field(default=False, description="Put the row's fields beside its result.")
    format: Annotated[
        list[OutputFormat],
        BeforeValidator(check.output_formats, json_schema_input_type=OutputFormat | list[OutputFormat]),
    ] = Field(default=[], description="Files to write beside the JSON ones: `csv`, `tsv`, `txt`, `parquet`, or a list.")
    to: NonEmpty | None = Field(
        default=None, description="Table to write rows into, by id: `sqlite://data/out.db?table=results`."
    )
    merge: Merge | None = Field(
        default=None,
        description="What a result is written as: `replace` (alone), `extend` (the row's fields, then the result's), "
        "`update` (the same, the result's win), `append` (the row with the result under the stage's name).",
    )
    stages: Annotated[list[str], BeforeValidator(check.one_or_many, json_schema_input_type=str | list[str])] | None = (
        Field(
            default=None,
            min_length=1,
            description="The stages whose results are written: one alone, of several an object by their names; those "
            "that no other stage needs when left out.",
        )
    )
    csv_safe: bool = Field(
        default=False, description="Keep spreadsheets from running cells of csv and tsv files as formulas."
    )

    @model_validator(mode="after")
    def _safe_cells_somewhere(self) -> OutputFile:
        if self.csv_safe and not {"csv", "tsv"} & set(self.format):
            raise PydanticCustomError("not_used", "csv_safe is for csv and tsv; add format: csv, or remove csv_safe")
        return self
