"""The words of each kind of Problem that models and loading can find. They are product text: change them on purpose."""

from typing import Any

import pytest

INPUT = "input: {path: data/reviews.csv}\n"
STAGES = "stages:\n  - {name: a}\n"

WORKFLOWS = [
    # keys and types
    (
        "stages:\n  - name: a\n    promt: x\n",
        "workflows/w.yml:3:5: stages[0].promt: unknown key; did you mean 'prompt'?",
    ),
    (
        "qqq: 1\n" + INPUT + STAGES,
        (
            "workflows/w.yml:1:1: qqq: unknown key; known keys: budget, row_budget, confirm_above, stop_loss, "
            "max_errors, row_timeout, keep_replies, telemetry, description, input, inputs, defaults, vars, stages, "
            "output"
        ),
    ),
    (INPUT, "workflows/w.yml:1:1: missing key 'stages'"),
    (INPUT + "stages:\n  - prompt: x\n", "workflows/w.yml:3:5: stages[0]: missing key 'name'"),
    (INPUT + "stages:\n", "workflows/w.yml:2:1: stages: has no value; give one or remove the key"),
    (INPUT + "stages: []\n", "workflows/w.yml:2:9: stages: is empty; give a value or remove the key"),
    (INPUT + "stages:\n  -\n", "workflows/w.yml:3:4: stages[0]: has no value; give one or remove the key"),
    (INPUT + "stages: {a: 1}\n", "workflows/w.yml:2:9: stages: expected a list, got a mapping"),
    (INPUT + "stages: [x]\n", 'workflows/w.yml:2:10: stages[0]: expected a mapping, got the text "x"'),
    ("description: 5\n" + INPUT + STAGES, "workflows/w.yml:1:14: description: expected text, got the number 5"),
    ("- a\n", "workflows/w.yml:1:1: expected a mapping of keys at the top, got a list"),
    ("hello\n", 'workflows/w.yml:1:1: expected a mapping of keys at the top, got the text "hello"'),
    ("", "workflows/w.yml: is empty; a workflow has at least input and stages"),
    ("# nothing\n", "workflows/w.yml: is empty; a workflow has at least input and stages"),
    # input
    (STAGES, "missing key 'path'; name the file with the rows, as input: {path: data/reviews.csv}, or use --input"),
    (
        INPUT + "inputs: {path: data/reviews.csv}\n" + STAGES,
        "workflows/w.yml:2:1: inputs: input and inputs are two spellings of one key; keep input",
    ),
    (
        "input: {path: data/revews.csv}\n" + STAGES,
        "workflows/w.yml:1:15: input.path: no such file: 'data/revews.csv'; did you mean 'data/reviews.csv'?",
    ),
    ("input: {path: data}\n" + STAGES, "input.path: 'data' is a folder; name a file in it"),
    (
        "input: {path: ../x.csv}\n" + STAGES,
        "input.path: '../x.csv' leads out of the project; name a path inside it, or use --input",
    ),
    (
        "input: {path: /etc/passwd}\n" + STAGES,
        "'/etc/passwd' is not relative; paths are relative to the project's root and stay inside it, or use --input",
    ),
    (
        "input: {path: 'hf://datasets/x'}\n" + STAGES,
        "input.path: hf:// is not supported yet; name a csv, tsv, json, jsonl, txt or parquet file",
    ),
    ("input: {path: 'data/*.tsv'}\n" + STAGES, "input.path: 'data/*.tsv' matches no file; did you mean 'data/reviews"),
    (
        "input: {path: 'data/../*.tsv'}\n" + STAGES,
        "input.path: 'data/../*.tsv': a pattern goes down only; begin it below the folder that '..' leads to",
    ),
    (
        "input: {path: [data/reviews.csv, data/b.csv, '-']}\n" + STAGES,
        "input.path: no such file: 'data/b.csv'; '-' cannot stand in a list; a list names files",
    ),
    (
        "input: {path: [data/reviews.csv, agac.yml]}\n" + STAGES,
        "input.path: cannot tell the format of 'agac.yml'; name files of one format, or say it with format",
    ),
    ("input: {path: []}\n" + STAGES, "input.path: "),
    ("input: {path: 5}\n" + STAGES, "input.path: expected a path, or a list of paths"),
    ("input: {path: '-', format: files}\n" + STAGES, "input.path: format: files cannot be piped in"),
    (
        "input: {path: 'sqlite://'}\n" + STAGES,
        "input.path: 'sqlite://': names no database; write sqlite://data.db?query=",
    ),
    (
        "input: {path: 'sqlite://x.db'}\n" + STAGES,
        "'sqlite://x.db': does not say what to read; write sqlite://data.db?",
    ),
    (
        "input: {path: 'sqlite://x.db?qurey=SELECT 1'}\n" + STAGES,
        "'sqlite://x.db': unknown parameter 'qurey'; did you mean 'query'?",
    ),
    (
        "input: {path: 'sqlite://x.db?query=DROP TABLE x'}\n" + STAGES,
        "'sqlite://x.db': the query is no SELECT; a source only reads: begin it with SELECT or WITH",
    ),
    ("input: {path: 'sqlite://x.db?table=t'}\n" + STAGES, "input.path: no such database: 'x.db'"),
    (
        "input: {path: 'sqlite://../x.db?table=t'}\n" + STAGES,
        "input.path: '../x.db' leads out of the project; name a path inside it, or use --input",
    ),
    (
        "input: {path: data/reviews.csv, format: sqlite}\n" + STAGES,
        "input.path: a database is named with what to read: sqlite://data/reviews.csv?query=SELECT … or",
    ),
    (
        "input: {path: 'sqlite://x.db?table=t', format: csv}\n" + STAGES,
        "input.path: the path names a SQLite database, and format says csv; remove format",
    ),
    ("input: {path: data/rows.xlsx}\n" + STAGES, "input.path: xlsx is not supported yet; convert it to csv or jsonl"),
    (
        "input: {path: agac.yml}\n" + STAGES,
        "cannot tell the format of 'agac.yml'; add format: csv or tsv or json or jsonl or txt or parquet",
    ),
    (
        "input: {path: data/reviews.csv, format: cvs}\n" + STAGES,
        "input.format: unknown value 'cvs'; did you mean 'csv'?",
    ),
    (
        "input: {path: data/reviews.csv, format: xlm}\n" + STAGES,
        "input.format: unknown value 'xlm'; choose csv, tsv, json, jsonl, txt, parquet, files, sqlite",
    ),
    (
        "input: {path: data/reviews.csv, on_duplicate_id: fist}\n" + STAGES,
        "input.on_duplicate_id: unknown value 'fist'; did you mean 'first'?",
    ),
    # output
    (
        INPUT + STAGES + "output: {dir: .}\n",
        "output.dir: is the project's root; results need a folder of their own, as output/reviews",
    ),
    (
        INPUT + STAGES + "output: {dir: workflows}\n",
        "output.dir: workflows holds the project's own files (workflows); results need a folder of their own",
    ),
    (INPUT + STAGES + "output: {dir: data}\n", "output.dir: data holds the project's own files (data); "),
    (INPUT + STAGES + "output: {dir: .agac/x}\n", "output.dir: .agac/x belongs to agac or git; "),
    (INPUT + STAGES + "output: {dir: ../x}\n", "output.dir: '../x' leads out of the project; name a path inside it"),
    (INPUT + STAGES + "output: {dir: agac.yml}\n", "output.dir: agac.yml is a file, and results need a folder"),
    (
        INPUT + STAGES + "output: {include_input: yes}\n",
        'output.include_input: expected true or false, got the text "yes"',
    ),
    # vars
    (
        INPUT + "vars: {a b: 1}\n" + STAGES,
        "vars.a b: 'a b' is no name for a variable; use letters, digits, _ and -, and start with a letter or _",
    ),
    # what needs what
    (
        INPUT + "stages:\n  - {name: a}\n  - {name: a}\n",
        "workflows/w.yml:4:12: stages[1].name: stages[0] is called 'a' already; names are unique",
    ),
    (
        INPUT + "stages:\n  - {name: classify}\n  - {name: b, needs: clasify}\n",
        "w.yml:4:22: stages[1].needs: stage 'b' needs 'clasify', which does not exist; did you mean 'classify'?",
    ),
    (
        INPUT + "stages:\n  - {name: a}\n  - {name: b, needs: nope, filter: 'true'}\n",
        "w.yml:4:22: stages[1].needs: stage 'b' needs 'nope', which does not exist; stages: a, b",
    ),
    (
        INPUT
        + "stages:\n  - {name: a, dedupe: x, needs: b}\n  - {name: b, dedupe: x, needs: a}\noutput: {stages: a}\n",
        "stages[0].needs: these stages need each other in a circle: a → b → a; let one of them start",
    ),
    (
        INPUT + "stages:\n  - {name: a}\n  - {name: b, needs: [a, a]}\n",
        "w.yml:4:22: stages[1].needs: stage 'b' needs 'a' twice; name it once",
    ),
    (
        INPUT + "stages:\n  - {name: a, otherwise: drop}\n",
        "otherwise says what happens when `when` is false; add when, or remove otherwise",
    ),
    (
        INPUT + "stages:\n  - {name: a, output_field: x, output_schema: {x: string}}\n",
        "output_field is for plain replies; give either output_field or output_schema",
    ),
    (INPUT + "stages:\n  - {name: a, visible: {}}\n", "stages[0].visible: is empty; give only or never"),
    (INPUT + "stages:\n  - {name: a, output_field: a.b}\n", "'a.b' cannot be read as a field of a result"),
    (
        INPUT + "stages:\n  - {name: a}\n  - {name: b, enabled: false}\noutput: {stages: [a, b, c]}\n",
        "output.stages: names the stage 'b', which is not enabled",
    ),
    (
        INPUT + "stages:\n  - {name: classify}\noutput: {stages: clasify}\n",
        "w.yml:4:18: output.stages: names the stage 'clasify', which does not exist; did you mean 'classify'?",
    ),
    (INPUT + "stages:\n  - {name: a, needs: a}\n", "stage 'a' needs itself; name the stage before it"),
    (
        INPUT + "stages:\n  - {name: a, needs: b}\n  - {name: b}\n",
        "stages[0].needs: these stages need each other in a circle: a → b → a; let one of them start",
    ),
]


@pytest.mark.parametrize(("text", "expected"), WORKFLOWS)
def test_words_of_a_workflow(tree: Any, text: str, expected: str) -> None:
    assert any(expected in problem for problem in tree.problems(text)), tree.problems()


STAGE = [
    (
        "{name: a b}",
        "stages[0].name: 'a b' is no stage name; use letters, digits, _ and -, and start with a letter or _",
    ),
    ("{name: vars}", "stages[0].name: 'vars' has a meaning of its own in templates; choose another name"),
    ("{name: row_json}", "stages[0].name: 'row_json' has a meaning of its own in templates; choose another name"),
    ("{name: a, needs: 5}", "stages[0].needs: expected the name of a stage"),
    ("{name: a, temperature: hot}", 'stages[0].temperature: expected a number, got the text "hot"'),
    ("{name: a, temperature: true}", "stages[0].temperature: expected a number, got true"),
    ("{name: a, temperature: 3}", "stages[0].temperature: must be at most 2, not 3"),
    ("{name: a, max_tokens: 1.5}", "stages[0].max_tokens: expected a whole number, got the number 1.5"),
    ("{name: a, max_tokens: 0}", "stages[0].max_tokens: must be at least 1, not 0"),
    ('{name: a, max_tokens: "400"}', 'stages[0].max_tokens: expected a whole number, got the text "400"'),
    ("{name: a, concurrency: 0}", "stages[0].concurrency: must be at least 1, not 0"),
    ("{name: a, timeout: 0}", "stages[0].timeout.total: must be more than 0, not 0"),
    (
        "{name: a, timeout: 30s}",
        "stages[0].timeout: expected a number of seconds or a mapping with connect, first_byte, total",
    ),
    ("{name: a, timeout: {conect: 3}}", "stages[0].timeout.conect: unknown key; did you mean 'connect'?"),
    ("{name: a, run_mode: snyc}", "stages[0].run_mode: unknown value 'snyc'; did you mean 'sync'?"),
    ("{name: a, batch: 5}", "stages[0].batch: expected a mapping, got the number 5"),
    ("{name: a, batch: {max_request: 5}}", "stages[0].batch.max_request: unknown key; did you mean 'max_requests'?"),
    ("{name: a, batch: {max_requests: 0}}", "stages[0].batch.max_requests: must be at least 1, not 0"),
    ("{name: a, batch: {max_bytes: 10 MBytes}}", "'10 MBytes' is no size; write it as 500kB, 100MB, 1GB or 64MiB"),
    ("{name: a, batch: {max_bytes: 0B}}", "stages[0].batch.max_bytes: must be at least 1, not '0B'"),
    ("{name: a, batch: {max_bytes: 1.5}}", "stages[0].batch.max_bytes: expected a size as 5000000, 500kB or 100MB"),
    ("{name: a, batch: {poll_interval: 0}}", "stages[0].batch.poll_interval: must be more than 0, not 0"),
    ("{name: a, batch: {poll_interval: soon}}", "'soon' is no time; write it as 90s, 30m, 12h, 7d or 2w"),
    ("{name: a, batch: {retry: again}}", "stages[0].batch.retry: unknown value 'again'; choose batch, sync, fail"),
    ("{name: a, batch: {max_rounds: 0}}", "stages[0].batch.max_rounds: must be at least 1, not 0"),
    (
        "{name: a, batch: {deadline: tonight}}",
        "stages[0].batch.deadline: 'tonight' is no deadline; write a time as 90m or 8h, or a time of day as 07:30",
    ),
    ("{name: a, batch: {deadline: 24:00}}", "'24:00' is no deadline; write a time as 90m or 8h"),
    ("{name: a, batch: {deadline: true}}", "True is no deadline"),
    ("{name: a, batch: {deadline: 0h}}", "stages[0].batch.deadline: must be more than 0, not '0h'"),
    ("{name: a, batch: {on_deadline: stop}}", "stages[0].batch.on_deadline: unknown value 'stop'; choose wait, sync"),
    (
        "{name: a, run_mode: batch, batch: {on_deadline: wait}}",
        "stages[0].batch.on_deadline: says what happens at the deadline; add deadline, or remove on_deadline",
    ),
    (
        "{name: a, run_mode: batch, batch: {deadline: 5w}}",
        "stages[0].batch.deadline: 35 days is longer than any provider keeps a batch",
    ),
    (
        "{name: a, run_mode: batch, batch: {retry: fail, max_rounds: 2}}",
        (
            "warning: stages[0].batch.max_rounds: has no effect with retry: fail, which puts no request into a second "
            "batch; remove one"
        ),
    ),
    (
        "{name: a, batch: {max_requests: 5}}",
        "warning: stages[0].batch: has no effect: the stage runs in sync mode; add `run_mode: batch`, or remove batch",
    ),
    (
        "{name: a, filter: 'true', run_mode: batch}",
        "stages[0].run_mode: a stage with filter asks no model; remove run_mode, or make a stage of its own of it",
    ),
    (
        "{name: a, python: tools/x.py:f, batch: {max_requests: 5}}",
        "stages[0].batch: a stage with python asks no model; remove batch, or make a stage of its own of it",
    ),
    ('{name: a, prompt: ""}', "stages[0].prompt: is empty; give a value or remove the key"),
    ("{name: a, prompt: x, template: y}", "stages[0].template: give either prompt or template, not both"),
    ("{name: a, prompt: prompts/x.md}", "stages[0].prompt: no such file: 'prompts/x.md'; files in ./: agac.yml"),
    ("{name: a, template: text}", "stages[0].template: no such file: 'text'; files in ./: agac.yml"),
    ("{name: a, template: ../x.md}", "stages[0].template: '../x.md' leads out of the project; name a path inside it"),
    ("{name: a, prompt: ../x.md}", "stages[0].prompt: '../x.md' leads out of the project; name a path inside it"),
    (
        "{name: a, instructions: ~/x}",
        "stages[0].instructions: '~/x' is not relative; paths are relative to the project's root",
    ),
    (
        '{name: a, prompt: "a ${"}',
        "stages[0].prompt: placeholder is never closed: '${'; add the } or write $${ for the text ${",
    ),
    (
        '{name: a, prompt: "${ }"}',
        "stages[0].prompt: empty placeholder ${}; name a field, or write $${} for the text ${}",
    ),
    ('{name: a, instructions: "${review}"}', "instructions are the same for every row; move ${review} into prompt"),
    (
        '{name: a, instructions: "${vars.tone}"}',
        "stages[0].instructions: unknown variable ${vars.tone}; variables: none",
    ),
    ("{name: a, agent: suport}", "stages[0].agent: no agent 'suport'; agents in agentcards/: none"),
    ("{name: a, output_schema: 5}", "expected a file, a JSON Schema, {field: type, …} or python:module.Class"),
    ("{name: a, output_schema: {}}", "stages[0].output_schema: is empty; name a file or list the fields of the result"),
    ("{name: a, output_schema: x.json}", "stages[0].output_schema: no such file: 'x.json'; in schemas/: none"),
    (
        '{name: a, output_schema: "yes|no"}',
        "stages[0].output_schema: no such file: 'yes|no'; a result has named fields: write {answer: \"yes|no\"}",
    ),
    ("{name: a, output_schema: {s: str}}", "stages[0].output_schema.s: unknown type 'str'; did you mean 'string'?"),
    (
        "{name: a, output_schema: {s: sentiment}}",
        "unknown type 'sentiment'; types: string, integer, number, boolean, object, array; a choice is written a|b|c",
    ),
    (
        "{name: a, output_schema: {s: 'string|null'}}",
        "'string|null' mixes texts to choose from with the type 'string'; write an optional field as 'string?'",
    ),
    (
        "{name: a, output_schema: {a?: string}}",
        'output_schema.a?: the ? of an optional field stands after its type; write a: "string?"',
    ),
    (
        "{name: a, output_schema: {a?: {b: string}}}",
        "a ? is not part of a field's name; make the whole a JSON Schema and leave 'a' out of required",
    ),
    (
        "{name: a, output_schema: {a: {type: string, description: x}}}",
        (
            "output_schema.a: this is the shorthand, in which 'a' would be an object with a field 'type'; "
            "write a: string, or make the whole a JSON Schema with type: object and properties"
        ),
    ),
    (
        "{name: a, output_schema: {a: {type: array, items: {type: string}}}}",
        "would be an object with a field 'type'; make the whole a JSON Schema with type: object and properties",
    ),
    ("{name: a, output_schema: {a: [{type: string}]}}", "a field 'type'; write a: [string], or make the whole"),
    (
        "{name: a, output_schema: {tags: string[]?}}",
        "expected ',' or '}' here; put quotes around text that has [ ] { } or , in it; the '{' was opened on line 3",
    ),
    ("{name: a, output_schema: {s: 'a||b'}}", "'a||b' has an empty choice; write the choices as a|b|c"),
    ("{name: a, output_schema: {s: 'a|b|a'}}", "'a|b|a' names 'a' twice"),
    ("{name: a, output_schema: {s: 5}}", 'expected a type such as string, "a|b|c", "string[]", or a mapping of fields'),
    ("{name: a, output_schema: {type: objct, properties: {}}}", "unknown type 'objct'; did you mean 'object'?"),
    (
        "{name: a, output_schema: {type: object, required: x}}",
        "output_schema.required: not a valid JSON Schema: 'x' is not of type 'array'",
    ),
    (
        "{name: a, output_schema: {$ref: 'http://x/y'}}",
        "'http://x/y' points outside this schema; only #/… is followed, nothing is ever fetched",
    ),
    (
        "{name: a, output_schema: {$ref: '#/$defs/A', $defs: {B: {}}}}",
        "'#/$defs/A' does not exist; did you mean '#/$defs/B'?",
    ),
    ("{name: a, output_schema: {$ref: '#'}}", "'#' leads back to itself"),
    (
        "{name: a, output_schema: {type: string, pattern: '('}}",
        "output_schema.pattern: '(' is not a regular expression: ",
    ),
    ("{name: a, output_schema: 'python:x'}", "'python:x' is not python:module.Class, as python:tools.models.Review"),
    (
        "{name: a, output_schema: 'python:tools.m.X'}",
        "no module 'tools.m' in the project; it would be the file tools/m.py",
    ),
]


@pytest.mark.parametrize(("stage", "expected"), STAGE)
def test_words_of_a_stage(tree: Any, stage: str, expected: str) -> None:
    assert any(expected in problem for problem in tree.stage_problems(stage)), tree.problems()


PROJECTS = [
    ("- a\n", "agac.yml:1:1: expected a mapping of keys at the top, got a list"),
    ("defalts: {}\n", "agac.yml:1:1: defalts: unknown key; did you mean 'defaults'?"),
    ("providers:\n", "agac.yml:1:1: providers: has no value; give one or remove the key"),
    ("providers: {x: }\n", "agac.yml:1:13: providers.x: has no value; give one or remove the key"),
    (
        "providers: {a.b: {}}\n",
        "providers.a.b: 'a.b' is no provider name; use letters, digits, _ and -, and start with a letter",
    ),
    (
        "providers: {x: {dialect: mistral}}\n",
        "providers.x.dialect: dialect 'mistral' is not supported yet; openai-chat, openai-responses and anthropic are",
    ),
    (
        "providers: {x: {dialect: openai-caht}}\n",
        "providers.x.dialect: unknown value 'openai-caht'; did you mean 'openai-chat'?",
    ),
    ("providers: {x: {base_url: localhost}}\n", "'localhost' is no address; it starts with http:// or https://"),
    (
        "providers: {x: {base_url: 'https://me:pw@host/v1'}}\n",
        "has a user or a password in it; put credentials into api_key or headers as ${VARIABLE}",
    ),
    (
        "providers: {x: {api_key: sk-abc}}\n",
        "providers.x.api_key: looks like a secret; write ${MY_KEY} and put the key in .env",
    ),
    (
        "providers: {x: {api_key: 0a1b2c3d4e5f60718293}}\n",
        "api_key: looks like a secret; write ${MY_KEY} and put the key in .env",
    ),
    (
        "providers: {x: {api_key: '${my key}'}}\n",
        "${…} takes the name of one variable: letters, digits and _, as in ${MY_KEY}",
    ),
    ('providers: {x: {api_key: "a\\nb"}}\n', "providers.x.api_key: must be a single line"),
    (
        "providers: {x: {headers: {Authorization: Bearer abc}}}\n",
        "headers.Authorization: looks like a secret; write ${MY_KEY}",
    ),
    (
        "providers: {x: {headers: {x-key: 0123456789abcdef0123456789abcdef}}}\n",
        "headers.x-key: looks like a secret; write ${MY_KEY}",
    ),
    ("providers: {x: {headers: {a b: c}}}\n", "providers.x.headers.a b: 'a b' is no header name"),
    ("providers: {x: {batch: opnai}}\n", "x.batch.api: unknown value 'opnai'; did you mean 'openai'?"),
    ("providers: {x: {batch: true}}\n", "x.batch: expected openai, anthropic, none, or a mapping with api"),
    ("providers: {x: {batch: {max_requests: 1}}}\n", "providers.x.batch: missing key 'api'"),
    ("providers: {x: {batch: {api: openai, max_request: 1}}}\n", "x.batch.max_request: unknown key; did you mean"),
    ("providers: {x: {batch: {api: openai, max_bytes: 5 cows}}}\n", "batch.max_bytes: '5 cows' is no size"),
    ("providers: {x: {batch: {api: openai, windows: []}}}\n", "batch.windows: is empty; give a value"),
    (
        "providers: {x: {batch: {api: openai, endpoint_prefix: v1/}}}\n",
        "batch.endpoint_prefix: 'v1/' is no start of a path; write it as /v1, or as '' for none",
    ),
    ("providers: {x: {limits: {enqueued_tokens: 0}}}\n", "limits.enqueued_tokens: must be at least 1, not 0"),
    ("providers: {x: {prices: {m: {input: 1}}}}\n", "providers.x.prices.m: missing key 'output'"),
    ("providers: {x: {prices: {m: {input: -1, output: 1}}}}\n", "prices.m.input: must be at least 0, not -1"),
    ("providers: {x: {structured: json}}\n", "structured: unknown value 'json'; choose json_schema, json_object, none"),
    (
        "paths: {workflows: ../x}\n",
        "agac.yml:1:20: paths.workflows: '../x' leads out of the project; name a path inside it",
    ),
    (
        "defaults: {model: '${MODEL}'}\n",
        "defaults.model: the environment variable MODEL is not set; set it or add it to .env",
    ),
    (
        "defaults: {stages: 1}\n",
        (
            "defaults.stages: unknown key; known keys: model, run_mode, batch, temperature, max_tokens, timeout, "
            "concurrency, fallback, repair, json_repair, reuse, max_age"
        ),
    ),
]


@pytest.mark.parametrize(("text", "expected"), PROJECTS)
def test_words_of_agac_yml(tree: Any, text: str, expected: str) -> None:
    tree.write("agac.yml", text)
    assert any(expected in problem for problem in tree.problems()), tree.problems()


def test_a_secret_is_never_repeated(tree: Any) -> None:
    tree.write("agac.yml", "providers: {x: {api_key: sk-canary-4711, headers: {Authorization: Bearer canary-4711}}}\n")
    assert len(tree.problems()) == 2
    assert not [problem for problem in tree.problems() if "4711" in problem]
