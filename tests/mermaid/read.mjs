// Reads a JSON list of Mermaid texts; writes for each what Mermaid's parser makes of it: its boxes and its lines.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const modules = createRequire(join(process.argv[2], "package.json"));
const { JSDOM } = modules("jsdom");
const page = new JSDOM("<!DOCTYPE html>");
globalThis.window = page.window;
globalThis.document = page.window.document;
const { default: mermaid } = await import(pathToFileURL(modules.resolve("mermaid")));
mermaid.initialize({ securityLevel: "strict" });

const read = [];
for (const text of JSON.parse(readFileSync(0, "utf-8"))) {
  const { db } = await mermaid.mermaidAPI.getDiagramFromText(text);
  read.push({
    boxes: [...db.getVertices().values()].map((box) => ({ id: box.id, text: box.text, shape: box.type, classes: box.classes })),
    lines: db.getEdges().map((line) => ({ from: line.start, to: line.end, text: line.text, stroke: line.stroke })),
  });
}
process.stdout.write(JSON.stringify(read));
