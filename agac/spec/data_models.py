"""Where rows come from and results go, as workflow files and agac.yml have it: one frozen model for
each mapping."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, model_validator

from agac.spec import data_specs
from agac.spec import validation as check
from agac.spec.file_model import FileModel, NonEmpty, Paths, StageNames, key


class InputFile(FileModel):
    """Where rows come from."""

    path: Paths | None = key(
        "File with the rows, relative to the project; a pattern as `data/*.csv`, a list of files, "
        "`sqlite://data.db?query=SELECT …`, "
        "`postgres://USER:${PGPASSWORD}@HOST/DATABASE?query=SELECT …`, or `-` for "
        "standard input."
    )
    format: data_specs.InputFormat | None = key(
        "Format; by the suffix when left out. `files`: each file is a row."
    )
    id_field: NonEmpty | None = key("Field that holds each row's id; else rows are numbered.")
    on_duplicate_id: data_specs.OnDuplicateId = key(
        "What to do with the later of two rows with one id.", default="error"
    )
    delimiter: Annotated[str, AfterValidator(check.csv_delimiter)] | None = key(
        "The character between the cells of a csv or tsv file; a comma or a tab when left out.",
        examples=[";"],
    )
    encoding: Annotated[NonEmpty, AfterValidator(check.text_encoding)] | None = key(
        (
            "How text is written: `cp1252`, `latin-1`, …; UTF-8 when left out, or as a byte order "
            "mark says."
        ),
        examples=["cp1252"],
    )
    on_short_record: data_specs.OnShortRecord = key(
        "A csv or tsv record with fewer fields than the header: its row fails if a prompt or "
        "condition needs a missing field (`fail`), or its missing fields are null (`null`).",
        default="fail",
    )
    sql: NonEmpty | None = key(
        (
            "One SELECT over the rows, which are the table `input`: what it gives are the rows of "
            "the workflow."
        ),
        examples=["select id, text from input where length(text) > 20"],
    )
    sheet: NonEmpty | int | None = key(
        "Sheet of an xlsx file, by name or number from 1.", examples=["Prices", 2]
    )
    header_row: int | None = key(
        "Row of the sheet that names the columns; else the first that is not empty.", ge=1
    )
    hive: bool = key(
        "Make fields of the folders of parquet files: `year=2024/lang=de`.", default=False
    )
    allow_empty: bool = key("Let an input that lost all its rows empty the results.", default=False)

    @model_validator(mode="before")
    @classmethod
    def _null_without_quotes(cls, keys: Any) -> Any:
        """`on_short_record: null`, which YAML reads as no value."""
        if isinstance(keys, dict) and keys.get("on_short_record", "fail") is None:
            return keys | {"on_short_record": "null"}
        return keys


_WrittenInput = NonEmpty | list[NonEmpty] | InputFile
Input = Annotated[
    InputFile, BeforeValidator(check.input_mapping, json_schema_input_type=_WrittenInput)
]


class OutputFile(FileModel):
    """Where results go."""

    dir: NonEmpty | None = key("Folder for the results, relative to the project.")
    include_input: bool = key("Put the row's fields beside its result.", default=False)
    format: Annotated[
        list[data_specs.OutputFormat],
        BeforeValidator(
            check.formats,
            json_schema_input_type=data_specs.OutputFormat | list[data_specs.OutputFormat],
        ),
    ] = key(
        "Files to write beside the JSON ones: `csv`, `tsv`, `txt`, `parquet`, or a list.",
        default=[],
    )
    to: NonEmpty | None = key(
        "Table to write rows into: `sqlite://data/out.db?table=NAME`, "
        "`postgres://USER:${PGPASSWORD}@HOST/DB?table=NAME`."
    )
    merge: data_specs.Merge | None = key(
        "What a result is written as: `replace` (alone), `extend` (the row's fields, then the "
        "result's), `update` (the "
        "same, the result's win), `append` (the row with the result under the stage's name)."
    )
    stages: StageNames | None = key(
        "Stages whose results are written: several by their names; else those that no stage needs.",
        min_length=1,
    )
    how: bool = key(
        (
            "Put beside each result how people had to do with it, by stage: `auto`, `approved`, "
            "`manual`, `rejected`."
        ),
        default=False,
    )
    sources: bool = key(
        "Put beside each result the pages that providers' own searches found for it, by stage.",
        default=False,
    )
    bom: bool = key(
        "Begin csv and tsv files with a byte order mark, by which Excel knows UTF-8.", default=False
    )
    csv_safe: bool = key(
        "Keep spreadsheets from running cells of csv and tsv files as formulas.", default=False
    )

    def faults(self) -> Iterator[str]:
        for name in ("csv_safe", "bom"):
            if getattr(self, name) and not {"csv", "tsv"} & set(self.format):
                yield f"{name} is for csv and tsv; add format: csv, or remove {name}"
