package repotest_test

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	mdLink    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	mdHeading = regexp.MustCompile(`(?m)^#+ +(.+?) *$`)
	mdFence   = regexp.MustCompile("(?ms)^```.*?^```[ \t]*$")
	slugDrop  = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// markdown returns the text of every document, by path.
func markdown(t *testing.T) map[string]string {
	t.Helper()
	top := root(t)
	docs := map[string]string{}
	walk(t, func(rel string) {
		if path.Ext(rel) != ".md" {
			return
		}
		data, err := os.ReadFile(filepath.Join(top, rel))
		if err != nil {
			t.Fatal(err)
		}
		docs[rel] = string(data)
	})
	return docs
}

func TestDocumentsExist(t *testing.T) {
	for _, name := range []string{
		"README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE", "Makefile", ".golangci.yml", ".ci/run",
		"docs/README.md", "docs/tcp.md", "docs/http.md", "docs/postgres.md", "docs/sqlite.md", "docs/embedding.md", "docs/runbook.md",
	} {
		if !exists(filepath.Join(root(t), name)) {
			t.Errorf("%s is missing", name)
		}
	}
}

func TestLinksLeadSomewhere(t *testing.T) {
	docs := markdown(t)
	for name, text := range docs {
		for _, m := range mdLink.FindAllStringSubmatch(mdFence.ReplaceAllString(text, ""), -1) {
			target := m[1]
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			file, anchor, _ := strings.Cut(target, "#")
			to := name
			if file != "" {
				to = path.Join(path.Dir(name), file)
			}
			if !exists(filepath.Join(root(t), to)) {
				t.Errorf("%s links to %s, which does not exist", name, target)
				continue
			}
			if anchor != "" && !anchors(docs[to])[anchor] {
				t.Errorf("%s links to %s, but %s has no such heading", name, target, to)
			}
		}
	}
}

// anchors returns the names GitHub gives a document's headings.
func anchors(text string) map[string]bool {
	names := map[string]bool{}
	for _, m := range mdHeading.FindAllStringSubmatch(mdFence.ReplaceAllString(text, ""), -1) {
		slug := slugDrop.ReplaceAllString(strings.ToLower(m[1]), "")
		names[strings.ReplaceAll(slug, " ", "-")] = true
	}
	return names
}
