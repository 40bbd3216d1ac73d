package clienttest

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"
)

// hooks give schemathesis the ranges of the number formats in OpenAPI's registry.
const hooks = `
import schemathesis

def bound(node):
    if isinstance(node, dict):
        kind = node.get("format")
        if isinstance(kind, str) and kind.lstrip("u").startswith("int") and kind.lstrip("uint").isdigit():
            bits = int(kind.lstrip("uint"))
            low, high = (0, 2**bits - 1) if kind[0] == "u" else (-2**(bits - 1), 2**(bits - 1) - 1)
            if "integer" in node.get("type", ()):
                node.setdefault("minimum", low)
                node.setdefault("maximum", high)
            else:  # text of a number
                node["pattern"] = "^-?[0-9]{1,%d}$" % (len(str(high)) - 1)
        if kind == "float":
            node.setdefault("minimum", -3.4e38)
            node.setdefault("maximum", 3.4e38)
        for value in node.values():
            bound(value)
    elif isinstance(node, list):
        for value in node:
            bound(value)

@schemathesis.hook
def before_load_schema(ctx, raw_schema):
    bound(raw_schema)

# 1.0 is an integer for JSON Schema, and none for encoding/json.
def integral(value):
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: integral(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [integral(inner) for inner in value]
    return value

@schemathesis.hook
def map_body(ctx, body):
    return integral(body)

# A form is text: a value of a wrong type looks like a right one, and MIME has no names with control characters. An object in a query
# is sent as its members, which are other parameters.
@schemathesis.hook
def filter_case(ctx, case):
    if any(isinstance(value, dict) for value in (case.query or {}).values()):
        return False
    if case.media_type not in ("multipart/form-data", "application/x-www-form-urlencoded") or case.meta is None:
        return True
    if not case.meta.generation.mode.is_positive:
        return False
    return not isinstance(case.body, dict) or all(name.isprintable() for name in case.body)
`

// OpenAPI fails the test unless the document is valid OpenAPI 3.1 and the service accepts exactly what the document
// allows. openapi-spec-validator checks the former. schemathesis checks the latter: it sends valid and invalid requests
// and compares the answers with the document.
func OpenAPI(t testing.TB, document string) {
	t.Helper()
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	resp, err := http.Get(document) //nolint:gosec,noctx // a server of the test
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if out, err := PythonTool(t, "openapi-spec-validator", "--schema", "3.1", write("openapi.json", string(text))).CombinedOutput(); err != nil {
		t.Errorf("openapi-spec-validator: %v\n%s", err, out)
	}
	st := PythonTool(t, "schemathesis", "run", document, "--checks", "all", "--phases", "examples,coverage,fuzzing",
		"--max-examples", "25", "--seed", "1", "--generation-database", "none", "--no-color", "--continue-on-failure")
	st.Dir = dir
	write("hooks.py", hooks)
	st.Env = append(os.Environ(), "SCHEMATHESIS_HOOKS=hooks", "PYTHONPATH="+dir)
	out, err := st.CombinedOutput()
	if err != nil {
		t.Errorf("schemathesis: %v\n%s", err, out)
	}
}
