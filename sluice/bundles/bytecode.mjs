// Compiles a folder's modules, each beside its source, as importing them would: node bytecode.mjs FOLDER DEPLOYED_AT NODE_MODULES
import { pathToFileURL } from "node:url";

const [folder, deployedAt, modules] = process.argv.slice(2);
const { loadPyodide } = await import(pathToFileURL(`${modules}/pyodide/pyodide.mjs`));
const python = await loadPyodide();
python.FS.mkdir("/folder");
python.FS.mount(python.FS.filesystems.NODEFS, { root: folder }, "/folder");
const compiled = python.globals.get("dict").callKwargs({ deployed_at: deployedAt });
const ok = python.runPython(`
import compileall, py_compile
compileall.compile_dir(
    "/folder", quiet=2, stripdir="/folder", prependdir=deployed_at,
    invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
)
`, { globals: compiled });
process.exit(ok ? 0 : 1);
