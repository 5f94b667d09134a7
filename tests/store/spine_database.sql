-- A database as agac 0.1 with schema 1 left it: five rows through two stages, and a repeated id.
BEGIN TRANSACTION;
CREATE TABLE attempt (
    id               INTEGER PRIMARY KEY,
    row_key          INTEGER NOT NULL REFERENCES row (key),
    stage            INTEGER NOT NULL,
    replica          INTEGER NOT NULL,
    event_id         INTEGER NOT NULL REFERENCES event (id),
    number           INTEGER NOT NULL,  
    fingerprint      BLOB NOT NULL,
    endpoint_id      INTEGER NOT NULL REFERENCES endpoint (id),
    purpose          TEXT NOT NULL,     
    started_at       REAL NOT NULL,
    duration         REAL NOT NULL,     
    status           INTEGER,           
    error_type       TEXT,
    error_message    TEXT,
    ambiguous        INTEGER NOT NULL,  
    input_tokens     INTEGER,
    cached_tokens    INTEGER,
    output_tokens    INTEGER,
    reasoning_tokens INTEGER,
    cost             REAL,              
    reply            BLOB               
);
INSERT INTO "attempt" VALUES(1,5,0,0,1,1,X'CBD3610D465D568EED475101A353CB10',1,'ask',1.79523549059368228916e+09,3.6857999984931666404e-03,200,NULL,NULL,0,6,0,15,0,3.15e-05,'{"id": "chatcmpl-sim90671cd7aaf56e0d6c5c5fc840db1c30", "object": "chat.completion", "created": 1735689600, "model": "small", "system_fingerprint": "agac-simulator", "choices": [{"index": 0, "message": {"role": "assistant", "content": "{\"sentiment\": \"positive\", \"reason\": \"Review I love number.\"}", "refusal": null}, "logprobs": null, "finish_reason": "stop"}], "usage": {"prompt_tokens": 6, "completion_tokens": 15, "total_tokens": 21, "prompt_tokens_details": {"cached_tokens": 0}, "completion_tokens_details": {"reasoning_tokens": 0}}}');
INSERT INTO "attempt" VALUES(2,4,0,0,1,1,X'0C2F5416B8D665A31369985978B37F53',1,'ask',1.79523549059425711633e+09,4.55608900301740504801e-03,200,NULL,NULL,0,6,0,15,0,3.15e-05,'{"id": "chatcmpl-sim37100fd33611954a183bb5b14dfcb928", "object": "chat.completion", "created": 1735689600, "model": "small", "system_fingerprint": "agac-simulator", "choices": [{"index": 0, "message": {"role": "assistant", "content": "{\"sentiment\": \"positive\", \"reason\": \"Review I love number.\"}", "refusal": null}, "logprobs": null, "finish_reason": "stop"}], "usage": {"prompt_tokens": 6, "completion_tokens": 15, "total_tokens": 21, "prompt_tokens_details": {"cached_tokens": 0}, "completion_tokens_details": {"reasoning_tokens": 0}}}');
INSERT INTO "attempt" VALUES(3,3,0,0,1,1,X'31A841B61E35806DAFFF64AA102094F0',1,'ask',1.7952354905945045948e+09,0.00551021200226387,200,NULL,NULL,0,6,0,15,0,3.15e-05,'{"id": "chatcmpl-sim8e92c8e303340df00a29a81125a3ed14", "object": "chat.completion", "created": 1735689600, "model": "small", "system_fingerprint": "agac-simulator", "choices": [{"index": 0, "message": {"role": "assistant", "content": "{\"sentiment\": \"positive\", \"reason\": \"Review I love number.\"}", "refusal": null}, "logprobs": null, "finish_reason": "stop"}], "usage": {"prompt_tokens": 6, "completion_tokens": 15, "total_tokens": 21, "prompt_tokens_details": {"cached_tokens": 0}, "completion_tokens_details": {"reasoning_tokens": 0}}}');
INSERT INTO "attempt" VALUES(4,2,0,0,1,1,X'D5552CD2A904BF2C08CB320DE4E946F6',1,'ask',1.79523549059465932845e+09,6.39267000224208459258e-03,200,NULL,NULL,0,6,0,15,0,3.15e-05,'{"id": "chatcmpl-simdd93c07c792c4bc7c4d6037a1b3fe7d6", "object": "chat.completion", "created": 1735689600, "model": "small", "system_fingerprint": "agac-simulator", "choices": [{"index": 0, "message": {"role": "assistant", "content": "{\"sentiment\": \"positive\", \"reason\": \"Review I love number.\"}", "refusal": null}, "logprobs": null, "finish_reason": "stop"}], "usage": {"prompt_tokens": 6, "completion_tokens": 15, "total_tokens": 21, "prompt_tokens_details": {"cached_tokens": 0}, "completion_tokens_details": {"reasoning_tokens": 0}}}');
INSERT INTO "attempt" VALUES(5,1,0,0,1,1,X'85DE00D0F3C67DC31E21B06E032494C4',1,'ask',1.79523549059477782255e+09,0.00704887800020515,200,NULL,NULL,0,6,0,15,0,3.15e-05,'{"id": "chatcmpl-sim91c2daacdab232142712fb300e4451c9", "object": "chat.completion", "created": 1735689600, "model": "small", "system_fingerprint": "agac-simulator", "choices": [{"index": 0, "message": {"role": "assistant", "content": "{\"sentiment\": \"positive\", \"reason\": \"Review I love number.\"}", "refusal": null}, "logprobs": null, "finish_reason": "stop"}], "usage": {"prompt_tokens": 6, "completion_tokens": 15, "total_tokens": 21, "prompt_tokens_details": {"cached_tokens": 0}, "completion_tokens_details": {"reasoning_tokens": 0}}}');
INSERT INTO "attempt" VALUES(6,5,1,0,1,1,X'CC87A79763DD7529A63A2836E3CD7CF0',1,'ask',1.79523549059801793099e+09,4.82881599964457564055e-03,200,NULL,NULL,0,10,0,9,0,2.05e-05,'{"id": "chatcmpl-sim591fefa9558b055f64dd647bb17ae404", "object": "chat.completion", "created": 1735689600, "model": "small", "system_fingerprint": "agac-simulator", "choices": [{"index": 0, "message": {"role": "assistant", "content": "Answer I love number found positive.", "refusal": null}, "logprobs": null, "finish_reason": "stop"}], "usage": {"prompt_tokens": 10, "completion_tokens": 9, "total_tokens": 19, "prompt_tokens_details": {"cached_tokens": 0}, "completion_tokens_details": {"reasoning_tokens": 0}}}');
INSERT INTO "attempt" VALUES(7,4,1,0,1,1,X'BED585A1E2721D6F3B81701159758B8B',1,'ask',1.79523549059934878352e+09,3.86820199855719693005e-03,200,NULL,NULL,0,10,0,16,0,3.45e-05,'{"id": "chatcmpl-sim06a03ce318ae464e56a5ff9efa7e3f4a", "object": "chat.completion", "created": 1735689600, "model": "small", "system_fingerprint": "agac-simulator", "choices": [{"index": 0, "message": {"role": "assistant", "content": "Answer I love number found. Answer I love number found positive.", "refusal": null}, "logprobs": null, "finish_reason": "stop"}], "usage": {"prompt_tokens": 10, "completion_tokens": 16, "total_tokens": 26, "prompt_tokens_details": {"cached_tokens": 0}, "completion_tokens_details": {"reasoning_tokens": 0}}}');
INSERT INTO "attempt" VALUES(8,3,1,0,1,1,X'D1E5A342D561FDF8E94BAA795DB8C53A',1,'ask',1.79523549060045623784e+09,3.13822300086030736565e-03,200,NULL,NULL,0,10,0,28,0,5.85e-05,'{"id": "chatcmpl-sim35eec454e9d02ccc8e5ffb4acf0e4842", "object": "chat.completion", "created": 1735689600, "model": "small", "system_fingerprint": "agac-simulator", "choices": [{"index": 0, "message": {"role": "assistant", "content": "Answer I love number found positive. Answer I love number found positive. Answer I love number found positive.", "refusal": null}, "logprobs": null, "finish_reason": "stop"}], "usage": {"prompt_tokens": 10, "completion_tokens": 28, "total_tokens": 38, "prompt_tokens_details": {"cached_tokens": 0}, "completion_tokens_details": {"reasoning_tokens": 0}}}');
INSERT INTO "attempt" VALUES(9,2,1,0,1,1,X'BE1943A7765551077D49A632DAC0DF40',1,'ask',1.7952354906013505459e+09,2.50761200004490092396e-03,200,NULL,NULL,0,10,0,9,0,2.05e-05,'{"id": "chatcmpl-sim2b1905de052afd41d03f35398fe5e024", "object": "chat.completion", "created": 1735689600, "model": "small", "system_fingerprint": "agac-simulator", "choices": [{"index": 0, "message": {"role": "assistant", "content": "Answer I love number found positive.", "refusal": null}, "logprobs": null, "finish_reason": "stop"}], "usage": {"prompt_tokens": 10, "completion_tokens": 9, "total_tokens": 19, "prompt_tokens_details": {"cached_tokens": 0}, "completion_tokens_details": {"reasoning_tokens": 0}}}');
INSERT INTO "attempt" VALUES(10,1,1,0,1,1,X'4E0D0B8FDE99533CC8D7BDE5852B8886',1,'ask',1.79523549060210943226e+09,2.01746099992305971682e-03,200,NULL,NULL,0,10,0,26,0,5.45e-05,'{"id": "chatcmpl-sim10fa17d269b253cf5e25f0e6bbbf309b", "object": "chat.completion", "created": 1735689600, "model": "small", "system_fingerprint": "agac-simulator", "choices": [{"index": 0, "message": {"role": "assistant", "content": "Answer I love number found positive. Answer I love number found. Answer I love number found positive.", "refusal": null}, "logprobs": null, "finish_reason": "stop"}], "usage": {"prompt_tokens": 10, "completion_tokens": 26, "total_tokens": 36, "prompt_tokens_details": {"cached_tokens": 0}, "completion_tokens_details": {"reasoning_tokens": 0}}}');
CREATE TABLE counter (
    run_id           INTEGER NOT NULL,
    stage            TEXT NOT NULL,     
    outcome          TEXT NOT NULL,     
    error_type       TEXT NOT NULL,     
    model            TEXT NOT NULL,     
    count            INTEGER NOT NULL,
    input_tokens     INTEGER NOT NULL,
    cached_tokens    INTEGER NOT NULL,
    output_tokens    INTEGER NOT NULL,
    reasoning_tokens INTEGER NOT NULL,
    cost             REAL NOT NULL,
    unpriced         INTEGER NOT NULL,  
    simulated        INTEGER NOT NULL,  
    PRIMARY KEY (run_id, stage, outcome, error_type, model)
) WITHOUT ROWID;
INSERT INTO "counter" VALUES(1,'','done','','',5,0,0,0,0,0.0,0,0);
INSERT INTO "counter" VALUES(1,'','failed','DuplicateId','',1,0,0,0,0,0.0,0,0);
INSERT INTO "counter" VALUES(1,'','present','','',6,0,0,0,0,0.0,0,0);
INSERT INTO "counter" VALUES(1,'classify','call','','simulator/small',5,30,0,75,0,0.0001575,0,5);
INSERT INTO "counter" VALUES(1,'classify','done','','',5,0,0,0,0,0.0,0,0);
INSERT INTO "counter" VALUES(1,'reply','call','','simulator/small',5,50,0,88,0,0.0001885,0,5);
INSERT INTO "counter" VALUES(1,'reply','done','','',5,0,0,0,0,0.0,0,0);
CREATE TABLE definition (
    hash       BLOB PRIMARY KEY,        
    workflow   TEXT NOT NULL,
    body       TEXT NOT NULL,           
    created_at REAL NOT NULL            
);
INSERT INTO "definition" VALUES(X'73F218FBD4E96667EE82B87BC8A11113','reviews','{"input":{"format":"csv","id_field":"id","on_duplicate_id":"error","path":"data/rows.csv"},"stages":[{"model":"simulator/small","name":"classify","needs":null,"params":{},"prompt":"Review: ${text}","schema":{"body":{"additionalProperties":false,"properties":{"reason":{"type":"string"},"sentiment":{"enum":["positive","neutral","negative"],"type":"string"}},"required":["sentiment","reason"],"type":"object"},"name":"classify"},"system":null},{"model":"simulator/small","name":"reply","needs":"classify","params":{},"prompt":"Answer ${text}, found ${classify.sentiment}","schema":null,"system":null}],"vars":{},"workflow":"reviews"}',1.79523549058738684657e+09);
CREATE TABLE endpoint (
    id         INTEGER PRIMARY KEY,
    provider   TEXT NOT NULL,
    base_url   TEXT NOT NULL,
    model      TEXT NOT NULL,           
    simulated  INTEGER NOT NULL,
    UNIQUE (provider, base_url, model, simulated)
);
INSERT INTO "endpoint" VALUES(1,'simulator','http://127.0.0.1:43629/v1','small',1);
CREATE TABLE event (
    id        INTEGER PRIMARY KEY,
    run_id    INTEGER NOT NULL REFERENCES run (id),
    kind      TEXT NOT NULL,
    at        REAL NOT NULL,
    ended_at  REAL,                     
    exit_code INTEGER,
    body      TEXT NOT NULL             
);
INSERT INTO "event" VALUES(1,1,'invocation',1.79523549058827972414e+09,1.79523549060679745671e+09,0,'{"calls":10,"concurrency":32,"cost_usd":0.00034600000000000006,"given":{},"given_up":0,"lost_calls":0,"retries":0,"rows_done":5,"rows_failed":1,"rows_left_failed":0,"rows_seen":6,"tasks_done":10,"tasks_reused":0}');
CREATE TABLE lease (
    workflow     TEXT PRIMARY KEY,
    token        INTEGER NOT NULL,      
    holder       TEXT NOT NULL,         
    heartbeat_at REAL NOT NULL
);
INSERT INTO "lease" VALUES('reviews',1,'',1.79523549060690808297e+09);
CREATE TABLE result (
    id          INTEGER PRIMARY KEY,
    fingerprint BLOB NOT NULL,
    value       TEXT NOT NULL,          
    endpoint_id INTEGER NOT NULL REFERENCES endpoint (id),
    created_at  REAL NOT NULL
);
INSERT INTO "result" VALUES(1,X'CBD3610D465D568EED475101A353CB10','{"sentiment":"positive","reason":"Review I love number."}',1,1.79523549059776234629e+09);
INSERT INTO "result" VALUES(2,X'0C2F5416B8D665A31369985978B37F53','{"sentiment":"positive","reason":"Review I love number."}',1,1.79523549059907913203e+09);
INSERT INTO "result" VALUES(3,X'31A841B61E35806DAFFF64AA102094F0','{"sentiment":"positive","reason":"Review I love number."}',1,1.79523549060025835034e+09);
INSERT INTO "result" VALUES(4,X'D5552CD2A904BF2C08CB320DE4E946F6','{"sentiment":"positive","reason":"Review I love number."}',1,1.79523549060120439536e+09);
INSERT INTO "result" VALUES(5,X'85DE00D0F3C67DC31E21B06E032494C4','{"sentiment":"positive","reason":"Review I love number."}',1,1.79523549060196352007e+09);
INSERT INTO "result" VALUES(6,X'CC87A79763DD7529A63A2836E3CD7CF0','"Answer I love number found positive."',1,1.79523549060292744641e+09);
INSERT INTO "result" VALUES(7,X'BED585A1E2721D6F3B81701159758B8B','"Answer I love number found. Answer I love number found positive."',1,1.79523549060328221319e+09);
INSERT INTO "result" VALUES(8,X'D1E5A342D561FDF8E94BAA795DB8C53A','"Answer I love number found positive. Answer I love number found positive. Answer I love number found positive."',1,1.79523549060366368291e+09);
INSERT INTO "result" VALUES(9,X'BE1943A7765551077D49A632DAC0DF40','"Answer I love number found positive."',1,1.79523549060389947884e+09);
INSERT INTO "result" VALUES(10,X'4E0D0B8FDE99533CC8D7BDE5852B8886','"Answer I love number found positive. Answer I love number found. Answer I love number found positive."',1,1.79523549060416674609e+09);
CREATE TABLE row (
    key           INTEGER PRIMARY KEY,
    run_id        INTEGER NOT NULL REFERENCES run (id),
    id            NOT NULL,             
    occurrence    INTEGER NOT NULL,     
    ordinal       INTEGER,              
    hash          BLOB NOT NULL,        
    data          TEXT NOT NULL,        
    state         INTEGER NOT NULL,     
    result_id     INTEGER,              
    error_stage   TEXT,                 
    error_type    TEXT,
    error_message TEXT,
    seen          INTEGER NOT NULL      
);
INSERT INTO "row" VALUES(1,1,'r-1',0,1,X'7A32ECDF39ECF1B818899FD4A8F84CC0','{"id":"r-1","text":"I love number 1"}',1,10,NULL,NULL,NULL,1);
INSERT INTO "row" VALUES(2,1,'r-2',0,2,X'6C6A8C389CA12AB0ADD5B05F07FDC91B','{"id":"r-2","text":"I love number 2"}',1,9,NULL,NULL,NULL,1);
INSERT INTO "row" VALUES(3,1,'r-3',0,3,X'49C78F5004944E70A1747C396FF00327','{"id":"r-3","text":"I love number 3"}',1,8,NULL,NULL,NULL,1);
INSERT INTO "row" VALUES(4,1,'r-4',0,4,X'BB0E5859FAE839813BCBDCF50124DE54','{"id":"r-4","text":"I love number 4"}',1,7,NULL,NULL,NULL,1);
INSERT INTO "row" VALUES(5,1,'r-5',0,5,X'688B1926860FA417093B1E09B6BFD0D7','{"id":"r-5","text":"I love number 5"}',1,6,NULL,NULL,NULL,1);
INSERT INTO "row" VALUES(6,1,'r-1',1,6,X'85A9CA2E9991067F1DB3F1313C80D527','{"id":"r-1","text":"again"}',2,NULL,NULL,'DuplicateId','id ''r-1'' was used by row 1 already; give each row its own id, or set input.on_duplicate_id: first | last | suffix',1);
CREATE TABLE run (
    id                INTEGER PRIMARY KEY,
    workflow          TEXT NOT NULL,
    definition_hash   BLOB NOT NULL REFERENCES definition (hash),
    selection         TEXT NOT NULL,    
    output_dir        TEXT NOT NULL,    
    include_input     INTEGER NOT NULL,
    fresh_since       REAL,             
    created_at        REAL NOT NULL,
    finished_at       REAL,             
    revision          INTEGER NOT NULL DEFAULT 0,   
    exported_revision INTEGER,          
    exported_files    TEXT              
);
INSERT INTO "run" VALUES(1,'reviews',X'73F218FBD4E96667EE82B87BC8A11113','{}','output/reviews',0,NULL,1.79523549058738684657e+09,1.79523549060679745671e+09,3,3,'{"results.jsonl": [872, 1795235490618269559], "results.json": [370, 1795235490618269559], "errors.jsonl": [246, 1795235490618269559], "summary.json": [1266, 1795235490620216459]}');
CREATE TABLE task (
    row_key       INTEGER NOT NULL REFERENCES row (key),
    stage         INTEGER NOT NULL,     
    replica       INTEGER NOT NULL,
    fingerprint   BLOB,                 
    outcome       TEXT NOT NULL,        
    result_id     INTEGER,
    error_type    TEXT,
    error_message TEXT,
    failures      INTEGER NOT NULL,     
    settled_at    REAL NOT NULL,
    PRIMARY KEY (row_key, stage, replica)
) WITHOUT ROWID;
INSERT INTO "task" VALUES(1,0,0,X'85DE00D0F3C67DC31E21B06E032494C4','done',5,NULL,NULL,0,1.79523549060197257993e+09);
INSERT INTO "task" VALUES(1,1,0,X'4E0D0B8FDE99533CC8D7BDE5852B8886','done',10,NULL,NULL,0,1.79523549060417079927e+09);
INSERT INTO "task" VALUES(2,0,0,X'D5552CD2A904BF2C08CB320DE4E946F6','done',4,NULL,NULL,0,1.7952354906012141704e+09);
INSERT INTO "task" VALUES(2,1,0,X'BE1943A7765551077D49A632DAC0DF40','done',9,NULL,NULL,0,1.79523549060390353203e+09);
INSERT INTO "task" VALUES(3,0,0,X'31A841B61E35806DAFFF64AA102094F0','done',3,NULL,NULL,0,1.79523549060026931757e+09);
INSERT INTO "task" VALUES(3,1,0,X'D1E5A342D561FDF8E94BAA795DB8C53A','done',8,NULL,NULL,0,1.79523549060367035865e+09);
INSERT INTO "task" VALUES(4,0,0,X'0C2F5416B8D665A31369985978B37F53','done',2,NULL,NULL,0,1.79523549059909868236e+09);
INSERT INTO "task" VALUES(4,1,0,X'BED585A1E2721D6F3B81701159758B8B','done',7,NULL,NULL,0,1.79523549060328865053e+09);
INSERT INTO "task" VALUES(5,0,0,X'CBD3610D465D568EED475101A353CB10','done',1,NULL,NULL,0,1.79523549059778213506e+09);
INSERT INTO "task" VALUES(5,1,0,X'CC87A79763DD7529A63A2836E3CD7CF0','done',6,NULL,NULL,0,1.79523549060293555255e+09);
CREATE INDEX run_identity ON run (workflow, definition_hash, selection);
CREATE INDEX event_run ON event (run_id, id);
CREATE UNIQUE INDEX row_id ON row (run_id, id, occurrence);
CREATE INDEX row_ordinal ON row (run_id, ordinal);
CREATE INDEX row_failed ON row (run_id, error_type, error_stage, ordinal) WHERE state = 2;
CREATE INDEX result_fingerprint ON result (fingerprint);
CREATE INDEX attempt_task ON attempt (row_key, stage);
COMMIT;
